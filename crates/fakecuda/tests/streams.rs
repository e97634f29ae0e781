//! Default streams, copies between devices, kernels, host functions and pinned memory.

mod common;

use common::*;
use cudarc::driver::{LaunchConfig, PushKernelArg};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

const OK: Code = Code::CUDA_SUCCESS;
const LEGACY: CUstream = 1 as CUstream;
const PER_THREAD: CUstream = 2 as CUstream;

fn seeded() -> millpond_simgpu::Builder {
    let machine = Sim::builder().devices(2).contents(true).oracle(true);
    machine.completion(Completion::Scheduled).seed(23)
}

/// Hazards of a write on one stream and a later one on another.
fn races(first: CUstream, second: CUstream) -> bool {
    let (fake, _context) = two_devices();
    let [first, second] = [first, second].map(|wanted| match wanted as usize {
        10 => stream(0),
        11 => stream(1),
        _ => wanted,
    });
    let block = alloc(64);
    assert_eq!((fill(block, 1, 64, first), fill(block, 2, 64, second)), (OK, OK));
    !kinds(&fake).is_empty()
}

#[test]
fn the_legacy_stream_and_blocking_streams_wait_for_each_other() {
    let (blocking, apart) = (10 as CUstream, 11 as CUstream);
    for legacy in [null_mut(), LEGACY] {
        assert!(!races(legacy, blocking) && !races(blocking, legacy));
        assert!(races(legacy, apart) && races(apart, legacy));
        assert!(!races(legacy, PER_THREAD) && !races(PER_THREAD, legacy));
    }
    assert!(races(blocking, blocking), "two of them");
    assert!(races(PER_THREAD, blocking));
    assert!(!races(PER_THREAD, PER_THREAD));
}

#[test]
fn the_legacy_stream_sees_each_new_piece_of_work() {
    let (fake, _context) = two_devices();
    let (a, b) = (stream(0), stream(0));
    let block = alloc(64);
    for round in 0..3 {
        assert_eq!(fill(block, round, 64, a), OK);
        assert_eq!(fill(block, round, 64, null_mut()), OK);
        assert_eq!(fill(block, round, 64, b), OK);
        assert_eq!(fill(block, round, 64, LEGACY), OK);
    }
    clean(&fake);
    assert_eq!((destroy_stream(a), destroy_stream(b)), (OK, OK));
    assert!(fake.leaks().events == 0 && fake.leaks().streams == 0, "{}", fake.leaks());
    assert_eq!(destroy_stream(null_mut()), Code::CUDA_ERROR_INVALID_HANDLE);
    one_violation(&fake, 0, "default stream");
}

#[test]
fn each_thread_has_a_default_stream_of_its_own() {
    let (fake, context) = two_devices();
    let block = alloc(64);
    assert_eq!(fill(block, 1, 64, PER_THREAD), OK);
    std::thread::scope(|scope| {
        let other = || {
            context.bind_to_thread().unwrap();
            assert_eq!(fill(block, 2, 64, PER_THREAD), OK);
        };
        scope.spawn(other).join().unwrap();
    });
    assert_eq!(kinds(&fake), [HazardKind::Unordered]);
}

#[test]
fn fills_repeat_their_unit() {
    let (fake, _context) = two_devices();
    let (a, block) = (stream(1), alloc(64));
    // SAFETY: handles and addresses are followed by nobody.
    unsafe {
        sys::cuMemsetD8Async(block, 0xff, 64, a).result().unwrap();
        sys::cuMemsetD16Async(block + 2, 0x0102, 3, a).result().unwrap();
        sys::cuMemsetD32Async(block + 12, 0x0304_0506, 3, a).result().unwrap();
        let misaligned = Code::CUDA_ERROR_INVALID_VALUE;
        assert_eq!(sys::cuMemsetD16Async(block + 1, 0, 1, a), misaligned);
        assert_eq!(sys::cuMemsetD32Async(block + 2, 0, 1, a), misaligned);
        assert_eq!(sys::cuMemsetD32Async(block, 0, usize::MAX, a), misaligned);
    }
    let expected = [
        &[0xff, 0xff, 2, 1, 2, 1, 2, 1, 0xff, 0xff, 0xff, 0xff][..],
        &[6, 5, 4, 3].repeat(3),
        &[0xff],
    ];
    assert_eq!(bytes(block, 25, a), expected.concat());
    clean(&fake);
}

#[test]
fn copies_between_devices() {
    for machine in [Sim::builder().devices(2).contents(true).oracle(true), seeded()] {
        let (fake, here) = common::machine(machine);
        let there = CudaContext::new(1).unwrap();
        let (a, b) = (here.new_stream().unwrap(), there.new_stream().unwrap());
        let source = a.clone_htod(&[9u32; 64]).unwrap();
        let far = b.clone_dtod(&source).unwrap();
        assert_eq!(b.clone_dtoh(&far).unwrap(), [9; 64]);
        clean(&fake);
        drop((source, far));
        a.synchronize().unwrap();
        clean(&fake);
    }
}

#[test]
fn peers_are_asked_for_enabled_and_disabled() {
    let (fake, here) = two_devices();
    let there = CudaContext::new(1).unwrap();
    let far = alloc(64);
    here.bind_to_thread().unwrap();
    let (a, near) = (stream(1), alloc(64));
    assert_eq!(fill(near, 1, 64, a), OK);
    let (mut can, mut own) = (0, 9);
    // SAFETY: pointers to locals; handles are followed by nobody.
    unsafe {
        sys::cuDeviceCanAccessPeer(&mut can, 0, 1).result().unwrap();
        sys::cuDeviceCanAccessPeer(&mut own, 0, 0).result().unwrap();
        assert_eq!((can, own), (1, 0));
        assert_eq!(copy(far, near, 64, a), OK);
        assert_eq!(kinds(&fake), [HazardKind::NoAccess], "not enabled");
        let peer = there.cu_ctx();
        assert_eq!(sys::cuCtxDisablePeerAccess(peer), Code::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
        assert_eq!(sys::cuCtxEnablePeerAccess(here.cu_ctx(), 0), Code::CUDA_ERROR_INVALID_DEVICE);
        assert_eq!(sys::cuCtxEnablePeerAccess(peer, 1), Code::CUDA_ERROR_INVALID_VALUE);
        assert_eq!(sys::cuCtxEnablePeerAccess(peer, 0), OK);
        let twice = Code::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
        assert_eq!(sys::cuCtxEnablePeerAccess(peer, 0), twice);
        assert_eq!(copy(far, near, 64, a), OK);
        assert_eq!(kinds(&fake).len(), 1);
        assert_eq!(sys::cuCtxDisablePeerAccess(peer), OK);
        assert_eq!(copy(far, near, 64, a), OK);
        assert_eq!(kinds(&fake)[1..], [HazardKind::NoAccess]);
    }
    // What is mapped is another matter: access is set mapping by mapping.
}

#[test]
fn a_machine_without_peers() {
    let machine = Sim::builder().devices(2);
    let config = Config { peers: false, ..Config::from(machine) };
    let (_fake, _context) = common::machine(config);
    let there = CudaContext::new(1).unwrap();
    let _here = CudaContext::new(0).unwrap();
    // SAFETY: handles are followed by nobody.
    let answer = unsafe { sys::cuCtxEnablePeerAccess(there.cu_ctx(), 0) };
    assert_eq!(answer, Code::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    let (address, page) = (reserve(UNIT), page(0));
    assert_eq!(map(address, page), OK);
    assert_eq!(grant(address, UNIT, &[1]), Code::CUDA_ERROR_INVALID_DEVICE);
    assert_eq!(grant(address, UNIT, &[0]), OK);
}

#[test]
fn kernels_are_launched_by_cudarc() {
    for machine in [Sim::builder().devices(2).contents(true).oracle(true), seeded()] {
        let (fake, context) = common::machine(machine);
        let stream = context.new_stream().unwrap();
        let module = context.load_module("// nothing looks at this".into()).unwrap();
        let sine = module.load_function("sin_kernel").unwrap();
        let add = module.load_function("add_f32").unwrap();
        let input: Vec<f32> = (0..100).map(|n| n as f32 / 10.0).collect();
        let device = stream.clone_htod(&input).unwrap();
        let mut sines = stream.alloc_zeros::<f32>(100).unwrap();
        let mut sums = stream.alloc_zeros::<f32>(100).unwrap();
        // SAFETY: the parameters are those of the kernels.
        unsafe {
            let shape = LaunchConfig::for_num_elems(100);
            let mut launch = stream.launch_builder(&sine);
            launch.arg(&mut sines).arg(&device).arg(&100i32).launch(shape).unwrap();
            let mut launch = stream.launch_builder(&add);
            launch.arg(&mut sums).arg(&sines).arg(&device).arg(&100u64).launch(shape).unwrap();
        }
        let expected: Vec<f32> = input.iter().map(|x| x.sin() + x).collect();
        assert_eq!(stream.clone_dtoh(&sums).unwrap(), expected);
        assert_eq!(code(module.load_function("unknown")), Code::CUDA_ERROR_NOT_FOUND);
        clean(&fake);
    }
}

#[test]
fn the_oracle_sees_what_kernels_touch() {
    let (fake, context) = two_devices();
    let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let module = context.load_module("".into()).unwrap();
    let [fill, read, touch] =
        ["fill_u64", "read", "touch"].map(|name| module.load_function(name).unwrap());
    let block = alloc(800);
    let shape = LaunchConfig::for_num_elems(1);
    // SAFETY: the parameters are those of the kernels.
    let launch = |stream: &Arc<CudaStream>, function, parameters: &[u64], shape| unsafe {
        let mut launch = stream.launch_builder(function);
        for parameter in parameters {
            launch.arg(parameter);
        }
        code(launch.launch(shape))
    };
    use std::sync::Arc;
    assert_eq!(launch(&a, &fill, &[block, 100, 7], shape), OK);
    assert_eq!(bytes(block + 792, 8, a.cu_stream()), 7u64.to_le_bytes());
    assert_eq!(launch(&b, &read, &[block, 800], shape), OK);
    assert_eq!(kinds(&fake), [], "the host has seen the fill done");
    assert_eq!(launch(&a, &touch, &[block + 400, 8], shape), OK);
    assert_eq!(kinds(&fake), [HazardKind::Unordered]);
    assert_eq!(launch(&a, &touch, &[block, 4096], shape), OK);
    assert_eq!(kinds(&fake)[1..], [HazardKind::Freed, HazardKind::Unordered]);
    let invalid = Code::CUDA_ERROR_INVALID_VALUE;
    for block_dim in [(0, 1, 1), (1025, 1, 1), (32, 32, 2)] {
        let shape = LaunchConfig { block_dim, ..shape };
        assert_eq!(launch(&a, &touch, &[block, 8], shape), invalid);
    }
    assert_eq!(launch(&a, &fill, &[block, u64::MAX, 0], shape), invalid);
    // On a stream of another context than the current one.
    let other = CudaContext::new(1).unwrap();
    other.bind_to_thread().unwrap();
    let mut parameters = [(&raw const block).cast_mut().cast::<c_void>(); 2];
    // SAFETY: the parameters are those of the kernel.
    let answer = unsafe {
        let mut out = null_mut();
        sys::cuModuleLoadData(&mut out, c"".as_ptr().cast()).result().unwrap();
        let function = result::module::get_function(out, c"read".into()).unwrap();
        let one = (1, 1, 1);
        code(result::launch_kernel(function, one, one, 0, a.cu_stream(), &mut parameters))
    };
    assert_eq!(answer, Code::CUDA_ERROR_INVALID_HANDLE);
    one_violation(&fake, 0, "not of the current context");
}

/// Waits until the test says so.
unsafe extern "C" fn until_told(argument: *mut c_void) {
    // SAFETY: the test gave the box away.
    let told = unsafe { Box::from_raw(argument.cast::<Receiver<()>>()) };
    told.recv_timeout(Duration::from_secs(30)).unwrap();
}

#[test]
fn work_waits_for_host_functions_and_host_functions_for_nobody() {
    for machine in [Sim::builder().devices(2).contents(true).oracle(true), seeded()] {
        let (fake, context) = common::machine(machine);
        let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
        let event = context.new_event(None).unwrap();
        let (tell, told) = channel();
        let told = Box::into_raw(Box::new(told));
        // SAFETY: the function takes the box.
        unsafe { result::stream::launch_host_function(a.cu_stream(), until_told, told.cast()) }
            .unwrap();
        event.record(&a).unwrap();
        b.wait(&event).unwrap();
        for _ in 0..100 {
            assert_eq!(event.try_is_complete(), Ok(false));
        }
        assert_eq!(query_stream(b.cu_stream()), Code::CUDA_ERROR_NOT_READY);
        let waiter = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| b.synchronize());
            std::thread::sleep(Duration::from_millis(30));
            assert!(!waiter.is_finished(), "the wait is for the function");
            tell.send(()).unwrap();
            waiter.join().unwrap()
        });
        waiter.unwrap();
        assert_eq!(event.try_is_complete(), Ok(true));
        clean(&fake);
    }
}

unsafe extern "C" fn tells(argument: *mut c_void) {
    // SAFETY: the test gave the box away.
    let tell = unsafe { Box::from_raw(argument.cast::<std::sync::mpsc::Sender<()>>()) };
    tell.send(()).unwrap();
}

#[test]
fn a_device_goes_on_by_itself() {
    let (fake, context) = common::machine(seeded());
    let a = context.new_stream().unwrap();
    let (tell, told) = channel::<()>();
    let tell = Box::into_raw(Box::new(tell));
    let block = alloc(1 << 20);
    for _ in 0..50 {
        assert_eq!(fill(block, 1, 1 << 20, a.cu_stream()), OK);
    }
    // SAFETY: the function takes the box.
    unsafe { result::stream::launch_host_function(a.cu_stream(), tells, tell.cast()) }.unwrap();
    told.recv_timeout(Duration::from_secs(30)).expect("no call is needed for it");
    clean(&fake);
}

unsafe extern "C" fn calls_the_driver(argument: *mut c_void) {
    // SAFETY: the test waits for this function before its local goes.
    unsafe { *argument.cast::<Code>() = sys::cuCtxSynchronize() };
}

#[test]
fn host_functions_may_not_call_the_driver() {
    let (fake, context) = two_devices();
    let a = context.new_stream().unwrap();
    let mut answer = OK;
    let argument = (&raw mut answer).cast();
    // SAFETY: the local outlives the function, which is waited for.
    unsafe { result::stream::launch_host_function(a.cu_stream(), calls_the_driver, argument) }
        .unwrap();
    a.synchronize().unwrap();
    assert_eq!(answer, Code::CUDA_ERROR_NOT_PERMITTED);
    one_violation(&fake, 0, "cuCtxSynchronize called by a host function");
}

#[test]
fn pinned_memory_is_read_when_the_copy_runs() {
    let (fake, _context) = common::machine(seeded());
    let (a, block) = (stream(1), alloc(64));
    // SAFETY: of 64 bytes, and freed below.
    let pinned = unsafe { result::malloc_host(64, 0) }.unwrap();
    let sim = fake.stream(a).unwrap();
    fake.sim().hang(sim).unwrap();
    // SAFETY: within the memory. That it is changed while the copy is in flight is the point.
    unsafe {
        pinned.cast::<u8>().write_bytes(1, 64);
        sys::cuMemcpyHtoDAsync_v2(block, pinned, 64, a).result().unwrap();
        pinned.cast::<u8>().write_bytes(2, 64);
    }
    fake.sim().unhang(sim).unwrap();
    assert_eq!(bytes(block, 64, a), [2; 64]);
    clean(&fake);
    fake.sim().hang(sim).unwrap();
    // SAFETY: freed once; the copy in flight keeps the memory.
    unsafe {
        sys::cuMemcpyDtoHAsync_v2(pinned, block, 64, a).result().unwrap();
        result::free_host(pinned).unwrap();
        one_violation(&fake, 0, "while a copy is in flight");
        assert_eq!(code(result::free_host(pinned)), Code::CUDA_ERROR_INVALID_VALUE);
    }
    fake.sim().unhang(sim).unwrap();
    assert_eq!(synchronize(a), OK);
    // Pageable memory is read at once.
    fake.sim().hang(sim).unwrap();
    let mut host = [5u8; 64];
    // SAFETY: the copy has read the array when it returns.
    unsafe { result::memcpy_htod_async(block, &host, a) }.unwrap();
    host = [6; 64];
    fake.sim().unhang(sim).unwrap();
    assert_eq!(bytes(block, 64, a), [5; 64]);
    assert_eq!(host, [6; 64]);
}

#[test]
fn memory_of_the_programs_own_is_registered() {
    let (fake, _context) = common::machine(seeded());
    let (a, block) = (stream(1), alloc(64));
    let mut host = vec![0u8; 128];
    let start = host.as_mut_ptr();
    // SAFETY: the vector outlives its registration, and is not touched meanwhile.
    unsafe {
        sys::cuMemHostRegister_v2(start.cast(), 128, 0).result().unwrap();
        let again = sys::cuMemHostRegister_v2(start.add(64).cast(), 8, 0);
        assert_eq!(again, Code::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        assert_eq!(fill(block, 4, 64, a), OK);
        sys::cuMemcpyDtoHAsync_v2(start.add(64).cast(), block, 64, a).result().unwrap();
        sys::cuMemHostUnregister(start.cast()).result().unwrap();
        let twice = sys::cuMemHostUnregister(start.cast());
        assert_eq!(twice, Code::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    }
    // Whether it was still in flight is the seed's choice; it is over in any case.
    assert_eq!(host[..64], [0; 64]);
    assert_eq!(host[64..], [4; 64]);
    drop(fake);
}

/// Without contents there are no bytes to read; the host waits for them all the same.
#[test]
fn copies_to_the_host_wait_without_contents() {
    for completion in [Completion::Lag(0), Completion::Lag(50), Completion::Scheduled] {
        let sim = Sim::builder().oracle(true).completion(completion).seed(3);
        let (fake, _context) = common::machine(sim);
        let a = stream(1);
        let (address, handle) = (reserve(UNIT), page(0));
        for on in [a, null_mut()] {
            assert_eq!((map(address, handle), grant(address, UNIT, &[0])), (OK, OK));
            assert_eq!(fill(address, 7, UNIT, on), OK);
            let mut host = [5u8; 64];
            let (to, from) = (host.as_mut_ptr().cast(), address + UNIT as u64 - 64);
            // SAFETY: 64 bytes of ours, which the calls have written to when they return.
            let read = unsafe {
                match on.is_null() {
                    true => sys::cuMemcpyDtoH_v2(to, from, 64),
                    false => sys::cuMemcpyDtoHAsync_v2(to, from, 64, on),
                }
            };
            assert_eq!((read, host), (OK, [0; 64]));
            // Nothing is in flight any more.
            assert_eq!(unmap(address, UNIT), OK);
            clean(&fake);
        }
        assert_eq!((release(handle), unreserve(address, UNIT)), (OK, OK));
        assert_eq!(destroy_stream(a), OK);
        assert!(fake.leaks().is_empty(), "{}", fake.leaks());
        assert_eq!((fake.leaks_of(0), fake.sim().leaks_of(0).streams), (fake.leaks(), 1));
    }
}

/// A created stream is known whatever context is current; a default one is the current context's.
#[test]
fn streams_are_known_by_their_handles() {
    let (fake, context) = common::two_devices();
    let a = stream(1);
    // SAFETY: no context is a context to be current.
    unsafe { sys::cuCtxSetCurrent(null_mut()).result() }.unwrap();
    assert!(fake.stream(a).is_ok());
    assert_eq!(fake.stream(null_mut()), Err(Code::CUDA_ERROR_INVALID_CONTEXT));
    context.bind_to_thread().unwrap();
    assert!(fake.stream(null_mut()).is_ok());
    assert_eq!(destroy_stream(a), OK);
    assert!(fake.stream(a).is_err());
}
