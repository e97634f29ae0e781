//! What the driver asks of CUDA, and what it makes of the answers.

use crate::{CAPACITY, D0, D1, MIB, Rig, quiet, sim, start, total_calls};
use cudarc::driver::CudaContext;
use cudarc::driver::sys::{self, CUresult};
use fakecuda::Config;
use millpond::driver::cuda::{CudaDriver, cudarc, is_present};
use millpond::driver::{Driver, StreamHandle};
use millpond::{DeviceId, Error, Pool};
use std::ptr;
use std::time::{Duration, Instant};

/// The context that is current on the calling thread.
fn current() -> sys::CUcontext {
    let mut context = ptr::null_mut();
    // SAFETY: stores to a place of ours.
    unsafe { sys::cuCtxGetCurrent(&raw mut context).result() }.unwrap();
    context
}

fn set_current(context: sys::CUcontext) {
    // SAFETY: null, or a context that is alive.
    unsafe { sys::cuCtxSetCurrent(context).result() }.unwrap();
}

#[test]
fn devices_are_what_cuda_says() {
    let fake = start();
    assert!(is_present());
    let driver = CudaDriver::all().unwrap();
    assert_eq!((driver.name(), driver.device_count()), ("cuda", 2));
    let info = driver.device(D1).unwrap();
    assert_eq!((info.memory_bytes, info.granularity), (CAPACITY, fake.sim().granularity()));
    assert!(info.virtual_memory && driver.fallback(D1).is_none() && !info.name.is_empty());
    assert_eq!(driver.memory_info(D1).unwrap(), (CAPACITY, CAPACITY));
    let nowhere = driver.device(DeviceId(2)).unwrap_err();
    assert_eq!(nowhere.code, CUresult::CUDA_ERROR_INVALID_DEVICE as i32);
    assert!(nowhere.message.contains("device 2"), "{nowhere}");
    // Every page of the probe went back.
    drop(driver);
    assert!(fake.leaks().is_empty(), "{}", fake.leaks());
    quiet(&fake);
}

#[test]
fn devices_are_the_contexts_in_their_order() {
    let fake = start();
    let second = CudaContext::new(1).unwrap();
    let driver = CudaDriver::new([second.clone()]).unwrap();
    assert_eq!(driver.device_count(), 1);
    let pool = Pool::new(driver).unwrap();
    let stream = second.new_stream().unwrap();
    let ours = pool.register_cuda_stream(&stream).unwrap();
    assert_eq!(ours.device(), D0);
    let block = ours.alloc::<u8>(1 << 20).unwrap();
    assert_eq!(fake.sim().device_of(block.address()), Some(1));
    // A stream of a context that the pool knows nothing of.
    let first = CudaContext::new(0).unwrap();
    let foreign = pool.register_cuda_stream(&first.new_stream().unwrap()).unwrap_err();
    assert!(foreign.to_string().contains("CUDA device 0"), "{foreign}");
    drop((block, ours, stream, pool));
    let none = CudaDriver::new([]).unwrap_err();
    assert_eq!(none.code, CUresult::CUDA_ERROR_NO_DEVICE as i32);
    quiet(&fake);
}

/// Whatever is called, the thread's current context is as before: none, the device's, another's.
#[test]
fn the_current_context_stays() {
    let fake = start();
    let driver = CudaDriver::all().unwrap();
    let contexts: Vec<_> = driver.contexts().iter().map(|context| context.cu_ctx()).collect();
    let page = fake.sim().granularity();
    for context in [ptr::null_mut(), contexts[0], contexts[1]] {
        set_current(context);
        let check = |call: &str| assert_eq!(current(), context, "{call}");
        let all = CudaDriver::all().unwrap();
        check("all");
        drop(CudaDriver::new(all.contexts().iter().cloned()).unwrap());
        check("new");
        drop(all);
        // cudarc's own drop of a context makes it current.
        set_current(context);

        driver.memory_info(D1).unwrap();
        check("memory_info");
        let stream = driver.create_stream(D1).unwrap();
        check("create_stream");
        driver.check_stream(D1, stream).unwrap();
        check("check_stream");
        let event = driver.create_event(D1).unwrap();
        check("create_event");
        driver.record(D1, event, stream).unwrap();
        check("record");
        assert!(driver.query(D1, event).unwrap());
        check("query");
        driver.wait(D1, stream, event).unwrap();
        check("wait");
        assert!(driver.synchronize(D1, event, Duration::ZERO).unwrap());
        check("synchronize");
        let address = driver.reserve(D1, page).unwrap();
        check("reserve");
        let handle = driver.create_page(D1, page).unwrap();
        check("create_page");
        driver.map(D1, address, page, handle).unwrap();
        check("map");
        driver.set_access(D1, address, page, &[D0, D1]).unwrap();
        check("set_access");
        driver.unmap(D1, address, page).unwrap();
        check("unmap");
        driver.release_page(D1, handle).unwrap();
        check("release_page");
        driver.unreserve(D1, address, page).unwrap();
        check("unreserve");
        let plain = driver.allocate(D1, MIB).unwrap();
        check("allocate");
        driver.free(D1, plain).unwrap();
        check("free");
        driver.enable_peer(D1, D0).unwrap();
        driver.enable_peer(D1, D0).unwrap();
        check("enable_peer");
        driver.destroy_event(D1, event).unwrap();
        check("destroy_event");
        driver.destroy_stream(D1, stream).unwrap();
        check("destroy_stream");
        driver.query(D1, event).unwrap_err();
        check("a call that fails");
    }
    set_current(ptr::null_mut());
    drop(driver);
    // The last call of each round asked about an event that was gone.
    assert_eq!(fake.violations().len(), 3, "{:?}", fake.violations());
}

#[test]
fn errors_have_call_code_and_text() {
    let fake = start();
    let driver = CudaDriver::all().unwrap();
    fake.fail("cuMemCreate", 1, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS).unwrap();
    let error = driver.create_page(D0, fake.sim().granularity()).unwrap_err();
    assert_eq!((error.call, error.code, error.out_of_memory), ("cuMemCreate", 700, false));
    assert!(error.message.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{error}");
    assert!(error.to_string().contains("cuMemCreate failed"), "{error}");

    let error = driver.allocate(D0, 2 * CAPACITY).unwrap_err();
    assert_eq!((error.call, error.code, error.out_of_memory), ("cuMemAlloc_v2", 2, true));

    fake.fail("cuCtxGetCurrent", 1, CUresult::CUDA_ERROR_UNKNOWN).unwrap();
    assert_eq!(driver.create_event(D0).unwrap_err().call, "cuCtxGetCurrent");
    fake.fail("cuCtxSetCurrent", 1, CUresult::CUDA_ERROR_UNKNOWN).unwrap();
    assert_eq!(driver.create_event(D0).unwrap_err().call, "cuCtxSetCurrent");
    assert_eq!(driver.set_access(D0, 0, 0, &[DeviceId(9)]).unwrap_err().code, 101);
    drop(driver);
    quiet(&fake);
}

/// The per-thread default stream, and streams of other devices, are refused; the default stream is one
/// like any other.
#[test]
fn streams_are_checked_when_registered() {
    let rig = Rig::new(start());
    let refused = |result: millpond::Result<millpond::Stream>| match result {
        Err(Error::Driver(error)) => error.code,
        other => panic!("{other:?}"),
    };
    let per_thread = rig.context.per_thread_stream();
    assert_eq!(refused(rig.pool.register_cuda_stream(&per_thread)), 801);
    let handle = StreamHandle(rig.cuda.cu_stream() as u64);
    assert_eq!(refused(rig.pool.register_stream(D1, handle)), 201);
    let default = rig.pool.register_cuda_stream(&rig.context.default_stream()).unwrap();
    let block = default.alloc::<u8>(3 << 20).unwrap();
    rig.context.default_stream().memset_zeros(&mut { block }.on_mut(&rig.cuda)).unwrap();
    drop(rig.stream.alloc::<u8>(3 << 20).unwrap());
    drop(default);
    rig.done();
}

/// A stream of cudarc's is alive as long as the pool needs it.
#[test]
fn registered_streams_are_kept_alive() {
    let Rig { fake, context, cuda, pool, stream } = Rig::new(start());
    let used = fake.leaks().streams;
    drop(stream.alloc::<u8>(3 << 20).unwrap());
    drop(cuda);
    assert_eq!(fake.leaks().streams, used, "the stream went before the pool was through");
    assert_eq!(stream.cuda().unwrap().context(), &context);
    // Its last seal is refused, and made later.
    fake.fail_from("cuEventRecord", 1, CUresult::CUDA_ERROR_UNKNOWN).unwrap();
    drop(stream);
    assert_eq!(fake.leaks().streams, used);
    fake.clear_faults();
    pool.trim(D0, 0).unwrap();
    assert_eq!(fake.leaks().streams, used - 1);
    drop(pool);
    context.check_err().unwrap();
    quiet(&fake);
    drop(context);
    assert!(fake.leaks().is_empty(), "{}", fake.leaks());
}

/// A stream of cudarc's that goes with the pool's leaves the thread's current context as it was, and so
/// does a device that cannot be used.
#[test]
fn ends_leave_the_current_context() {
    let Rig { fake, context, cuda, pool, stream } = Rig::new(start());
    let second = CudaContext::new(1).unwrap();
    drop(cuda);
    let left = fake.leaks().streams;
    for current_one in [ptr::null_mut(), second.cu_ctx()] {
        let more = pool.register_cuda_stream(&context.new_stream().unwrap()).unwrap();
        set_current(current_one);
        drop(more);
        assert_eq!(current(), current_one, "a stream's end");
        assert_eq!(fake.leaks().streams, left);
        fake.fail("cuDeviceTotalMem_v2", 2, CUresult::CUDA_ERROR_UNKNOWN).unwrap();
        CudaDriver::all().unwrap_err();
        assert_eq!(current(), current_one, "a device that cannot be used");
    }
    set_current(ptr::null_mut());
    drop((stream, pool, second, context));
    quiet(&fake);
    assert!(fake.leaks().is_empty(), "{}", fake.leaks());
}

/// Hits make no call at all, and neither do frees: not for a small block, not for a large one.
#[test]
fn hits_and_frees_call_nothing() {
    let rig = Rig::new(start());
    let sizes = [500, 70_000, 900_000, 3 << 20];
    let round = || {
        let buffers = sizes.map(|bytes| rig.stream.alloc::<u8>(bytes).unwrap());
        drop(buffers);
    };
    (0..3).for_each(|_| round());
    let before = total_calls(&rig.fake);
    (0..1000).for_each(|_| round());
    assert_eq!(total_calls(&rig.fake), before);
    rig.done();
}

/// A host wait ends when the work is done, or at its limit.
#[test]
fn host_waits_have_a_limit() {
    let fake = start();
    let driver = CudaDriver::all().unwrap();
    let stream = driver.create_stream(D0).unwrap();
    let event = driver.create_event(D0).unwrap();
    driver.contexts()[0].bind_to_thread().unwrap();
    let sim_stream = fake.stream(stream.0 as sys::CUstream).unwrap();
    fake.sim().hang(sim_stream).unwrap();
    driver.record(D0, event, stream).unwrap();
    let start = Instant::now();
    assert!(!driver.synchronize(D0, event, Duration::from_millis(5)).unwrap());
    assert!(start.elapsed() >= Duration::from_millis(5));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| driver.synchronize(D0, event, Duration::from_secs(20)));
        std::thread::sleep(Duration::from_millis(2));
        fake.sim().unhang(sim_stream).unwrap();
        assert!(waits.join().unwrap().unwrap());
    });
    driver.destroy_event(D0, event).unwrap();
    driver.destroy_stream(D0, stream).unwrap();
    drop(driver);
    quiet(&fake);
}

/// The driver copies between devices that may touch each other's memory, as work of a stream.
#[test]
fn copies_are_work_of_a_stream() {
    let fake = start();
    let driver = CudaDriver::all().unwrap();
    let contexts = driver.contexts().to_vec();
    let pool = Pool::builder(driver).peer_access(true).build().unwrap();
    let cuda = [0, 1].map(|device| contexts[device].new_stream().unwrap());
    let [from, to] = [0, 1].map(|device: usize| pool.register_cuda_stream(&cuda[device]).unwrap());
    let mut source = from.alloc::<u8>(3 << 20).unwrap();
    cuda[0].memcpy_htod(&vec![7; 3 << 20], &mut source.on_mut(&cuda[0])).unwrap();
    to.wait(&from).unwrap();
    let copy = to.alloc::<u8>(3 << 20).unwrap();
    let (device, stream) = (to.device(), to.handle());
    pool.driver().copy(device, stream, copy.address(), source.address(), 3 << 20).unwrap();
    source.last_use(&to).unwrap();
    drop(source);
    assert_eq!(cuda[1].clone_dtoh(&copy.on(&cuda[1])).unwrap(), vec![7; 3 << 20]);
    drop((copy, from, to, pool, cuda, contexts));
    quiet(&fake);
    assert!(fake.leaks().is_empty(), "{}", fake.leaks());
}

/// Devices that cannot reach each other say so when a pool without virtual memory is to let them.
#[test]
fn devices_that_cannot_be_peers() {
    let fake = fakecuda::start(Config { peers: false, ..Config::from(sim()) }).unwrap();
    let driver = CudaDriver::all().unwrap().without_virtual_memory();
    let error = Pool::builder(driver).peer_access(true).build().unwrap_err();
    assert!(matches!(&error, Error::Driver(cause) if cause.code == 217), "{error}");
    assert!(error.to_string().contains("cannot touch memory of device"), "{error}");
    quiet(&fake);
}

/// Peers: where access was asked for, another device's work touches the memory; else it may not.
#[test]
fn peers_touch_what_they_may() {
    for peers in [false, true] {
        let fake = start();
        let driver = CudaDriver::all().unwrap();
        let context = driver.contexts()[1].clone();
        let pool = Pool::builder(driver).peer_access(peers).build().unwrap();
        let stream = pool.stream(D0).unwrap();
        let other = context.new_stream().unwrap();
        for bytes in [5000_usize, 3 << 20] {
            let mut block = stream.alloc::<u8>(bytes).unwrap();
            let filled = other.memset_zeros(&mut block.on_mut(&other));
            other.synchronize().unwrap();
            assert_eq!(filled.is_ok() && fake.sim().hazard_count() == 0, peers, "{bytes}");
        }
        drop((stream, pool));
    }
}
