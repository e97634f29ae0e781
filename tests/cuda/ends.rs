//! Ends: of the driver, of a context, of a process that was forked.

use crate::{D0, D1, Rig, scheduled, start, total_calls};
use millpond::interop::Slice;
use millpond::{Buffer, Error};
use millpond_simgpu::Leaks;

/// A rig that holds some of everything.
type Held = (Buffer<u8>, Slice<u8>, millpond::GraphMemory, millpond::Pin);

fn held(rig: &Rig) -> Held {
    let buffer = rig.stream.alloc(3 << 20).unwrap();
    let slice = rig.stream.alloc_slice_zeroed(70_000).unwrap();
    let memory = rig.pool.graph_memory().unwrap();
    let capture = memory.capture(&rig.stream).unwrap();
    drop(rig.stream.alloc::<u8>(1 << 20).unwrap());
    drop(capture);
    let pin = rig.pool.pin(buffer.address()).unwrap();
    (buffer, slice, memory, pin)
}

fn code<T: std::fmt::Debug>(result: millpond::Result<T>) -> i32 {
    match result {
        Err(Error::Driver(error)) => error.code,
        other => panic!("{other:?}"),
    }
}

/// After the driver has shut down, drops are quiet and calls that need it say why they fail.
#[test]
fn after_the_driver() {
    let rig = Rig::new(scheduled(1));
    let held = held(&rig);
    let raw = rig.pool.allocate(5000, &rig.stream).unwrap();
    rig.fake.shutdown();
    assert_eq!(code(rig.stream.alloc::<u8>(40 << 20)), 4);
    assert_eq!(code(rig.pool.stream(D0)), 4);
    assert_eq!(code(rig.pool.register_cuda_stream(&rig.cuda)), 4);
    rig.pool.free(raw).unwrap();
    // What is cached needs no driver.
    drop(rig.stream.alloc::<u8>(4900).unwrap());
    drop(held);
    let Rig { fake, context, cuda, pool, stream } = rig;
    drop((stream, pool, cuda, context));
    assert_eq!(fake.violations(), Vec::<String>::new());
    let again = millpond::driver::cuda::CudaDriver::all().unwrap_err();
    assert_eq!(again.code, 4);
}

/// Everything ends, and nothing is left of the second device, of which `other` is a stream.
#[track_caller]
fn the_other_gave_all_back(rig: Rig, other: millpond::Stream) {
    let Rig { fake, context, cuda, pool, stream } = rig;
    drop((other, stream, pool, cuda, context));
    // But for its context's default stream.
    let left = Leaks { streams: 0, ..fake.sim().leaks_of(1) };
    assert!(left.is_empty(), "{left}");
    assert_eq!(fake.sim().hazard_count(), 0);
}

/// A device whose context was destroyed answers with the driver's error; the other goes on.
#[test]
fn after_a_context() {
    let rig = Rig::new(start());
    let held = held(&rig);
    let other = rig.pool.stream(D1).unwrap();
    let elsewhere = other.alloc::<u8>(3 << 20).unwrap();
    rig.fake.destroy_context(0);
    assert_eq!(code(rig.stream.alloc::<u8>(40 << 20)), 709);
    assert_eq!(code(rig.pool.stream(D0)), 709);
    drop(elsewhere);
    drop(other.alloc::<u8>(40 << 20).unwrap());
    drop(held);
    the_other_gave_all_back(rig, other);
}

/// A graph's memory on one device does not depend on what has become of another.
#[test]
fn graphs_after_anothers_context() {
    let rig = Rig::new(start());
    let other = rig.pool.stream(D1).unwrap();
    let memory = rig.pool.graph_memory().unwrap();
    let capture = memory.capture(&other).unwrap();
    drop(other.alloc::<u8>(8 << 20).unwrap());
    drop(capture);
    drop(rig.stream.alloc::<u8>(3 << 20).unwrap());
    rig.fake.destroy_context(0);
    drop(memory);
    drop(other.alloc::<u8>(64 << 20).unwrap());
    the_other_gave_all_back(rig, other);
}

/// In a forked child drops call no driver, and calls are refused.
#[test]
fn in_a_forked_child() {
    let rig = Rig::new(start());
    let held = held(&rig);
    let lent = rig.stream.alloc::<u8>(5000).unwrap().into_cuda_slice(&rig.stream).unwrap();
    let buffers = [0; 2].map(|_| rig.stream.alloc::<u8>(5000).unwrap());
    // SAFETY: the child calls no more than the pool and the allocator.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        let before = total_calls(&rig.fake);
        let refused = matches!(rig.stream.alloc::<u8>(4 << 20), Err(Error::Forked))
            && matches!(rig.pool.graph_memory(), Err(Error::Forked))
            && matches!(rig.pool.register_cuda_stream(&rig.cuda), Err(Error::Forked));
        let [first, second] = buffers;
        let slice = Slice::new(first, &rig.stream).err();
        let away = second.into_cuda_slice(&rig.stream).err();
        let refused = refused
            && matches!(slice, Some((Error::Forked, _)))
            && matches!(away, Some((Error::Forked, _)));
        let refused = match rig.pool.take_back(lent) {
            Err((Error::Forked, slice)) => {
                // Its drop is cudarc's, and would call the driver.
                std::mem::forget(slice);
                refused
            }
            _ => false,
        };
        drop((held, rig.stream, rig.pool));
        let quiet = total_calls(&rig.fake) == before;
        // SAFETY: ends the process, without what the parent's test has still to do.
        unsafe { libc::_exit(i32::from(!refused) + 2 * i32::from(!quiet)) };
    }
    let mut status = 0;
    // SAFETY: a child of ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
    drop(rig.pool.take_back(lent).unwrap());
    drop((held, buffers));
    rig.done();
}
