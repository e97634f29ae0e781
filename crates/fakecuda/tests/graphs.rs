//! Graphs by capture, and their launches.

mod common;

use common::*;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use sys::CUgraphInstantiate_flags as Flags;
use sys::CUstreamCaptureMode as Mode;

const OK: Code = Code::CUDA_SUCCESS;
const RELAXED: Mode = Mode::CU_STREAM_CAPTURE_MODE_RELAXED;

fn instantiate(graph: sys::CUgraph) -> sys::CUgraphExec {
    // SAFETY: handles are followed by nobody.
    unsafe { result::graph::instantiate(graph, Flags(0)) }.unwrap()
}

fn launch(exec: sys::CUgraphExec, stream: CUstream) -> Code {
    // SAFETY: handles are followed by nobody.
    unsafe { sys::cuGraphLaunch(exec, stream) }
}

fn both_orders() -> [millpond_simgpu::Builder; 2] {
    let machine = || Sim::builder().devices(2).contents(true).oracle(true);
    [machine(), machine().completion(Completion::Scheduled).seed(11)]
}

#[test]
fn a_graph_of_cudarc_is_replayed() {
    for machine in both_orders() {
        let (fake, context) = common::machine(machine);
        // SAFETY: all accesses are on one stream.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().unwrap();
        let mut data = stream.clone_htod(&[1u32; 4]).unwrap();
        stream.begin_capture(RELAXED).unwrap();
        stream.memset_zeros(&mut data).unwrap();
        let graph = stream.end_capture(Flags(0)).unwrap().unwrap();
        assert_eq!(stream.clone_dtoh(&data).unwrap(), [1; 4], "nothing is done yet");
        graph.upload().unwrap();
        for round in 2..5 {
            graph.launch().unwrap();
            assert_eq!(stream.clone_dtoh(&data).unwrap(), [0; 4]);
            stream.memcpy_htod(&[round; 4], &mut data).unwrap();
        }
        drop((graph, data));
        stream.synchronize().unwrap();
        drop(stream);
        clean(&fake);
        assert!(fake.leaks().is_empty(), "{}", fake.leaks());
    }
}

/// A fork that fills one half on another stream, and a join before the copy of both.
fn forked(overlap: usize) -> (sys::CUgraph, CUstream, [CUdeviceptr; 2]) {
    let (a, b) = (stream(1), stream(1));
    let (fork, join) = (plain_event(), plain_event());
    let (block, copied) = (alloc(128), alloc(128));
    assert_eq!(begin(a, RELAXED), OK);
    assert_eq!(fill(block, 0, 128, a), OK);
    assert_eq!((record(fork, a), wait(b, fork)), (OK, OK));
    assert_eq!(fill(block, 1, 64 + overlap, a), OK);
    assert_eq!(fill(block + 64, 2, 64, b), OK);
    assert_eq!((record(join, b), wait(a, join)), (OK, OK));
    assert_eq!(copy(copied, block, 128, a), OK);
    (end(a).unwrap(), a, [block, copied])
}

#[test]
fn branches_run_beside_each_other_and_are_joined() {
    for machine in both_orders() {
        let (fake, _context) = common::machine(machine);
        let (graph, a, [block, copied]) = forked(0);
        let mut nodes = 0;
        let mut edges = 0;
        // SAFETY: pointers to locals, and null for what is not wanted.
        unsafe {
            sys::cuGraphGetNodes(graph, null_mut(), &mut nodes).result().unwrap();
            sys::cuGraphGetEdges(graph, null_mut(), null_mut(), &mut edges).result().unwrap();
        }
        assert_eq!((nodes, edges), (4, 4));
        let exec = instantiate(graph);
        for _ in 0..3 {
            assert_eq!(launch(exec, a), OK);
            let expected = [[1u8; 64], [2; 64]].concat();
            assert_eq!(bytes(copied, 128, a), expected);
            assert_eq!(fill(block, 9, 128, a), OK, "the launch is waited for");
        }
        clean(&fake);
    }
}

#[test]
fn branches_that_touch_the_same_bytes_race() {
    let (fake, _context) = two_devices();
    let (graph, a, _) = forked(8);
    assert_eq!(fake.sim().hazards(), [], "a capture touches nothing");
    let exec = instantiate(graph);
    assert_eq!(launch(exec, a), OK);
    assert_eq!(kinds(&fake), [HazardKind::Unordered]);
}

#[test]
fn a_launch_comes_after_its_stream_and_races_with_others() {
    let (fake, _context) = two_devices();
    let (graph, a, [block, _]) = forked(0);
    let exec = instantiate(graph);
    assert_eq!(fill(block, 0, 128, a), OK);
    assert_eq!(launch(exec, a), OK);
    let other = stream(1);
    assert_eq!(launch(exec, other), OK, "launches of one graph come one after the other");
    assert_eq!(kinds(&fake), []);
    let third = stream(1);
    assert_eq!(fill(block, 0, 128, third), OK);
    assert!(kinds(&fake).iter().all(|kind| *kind == HazardKind::Unordered));
    assert!(!kinds(&fake).is_empty());
}

#[test]
fn a_graph_across_devices() {
    for machine in both_orders() {
        let (fake, here) = common::machine(machine);
        let (a, block) = (stream(1), alloc(64));
        let there = CudaContext::new(1).unwrap();
        let (b, far) = (stream(1), alloc(64));
        let join = plain_event();
        here.bind_to_thread().unwrap();
        let fork = plain_event();
        assert_eq!(begin(a, RELAXED), OK);
        assert_eq!(fill(block, 5, 64, a), OK);
        assert_eq!((record(fork, a), wait(b, fork)), (OK, OK));
        // SAFETY: handles and addresses are followed by nobody.
        unsafe {
            result::memcpy_peer_async(there.cu_ctx(), far, here.cu_ctx(), block, 64, b).unwrap();
        }
        assert_eq!((record(join, b), wait(a, join)), (OK, OK));
        let exec = instantiate(end(a).unwrap());
        assert_eq!(launch(exec, a), OK);
        let seen = plain_event();
        assert_eq!((record(seen, a), wait(b, seen)), (OK, OK));
        assert_eq!(bytes(far, 64, b), [5; 64]);
        clean(&fake);
    }
}

static CALLED: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn called(_: *mut std::ffi::c_void) {
    CALLED.fetch_add(1, SeqCst);
}

#[test]
fn host_functions_and_pinned_copies_are_replayed() {
    for machine in both_orders() {
        let (fake, context) = common::machine(machine);
        let (a, block) = (stream(1), alloc(4));
        // SAFETY: read before it is freed.
        let pinned = unsafe { result::malloc_host(8, 0) }.unwrap().cast::<u8>();
        CALLED.store(0, SeqCst);
        // SAFETY: within the pinned memory; the function ignores its argument.
        let exec = unsafe {
            pinned.cast::<[u8; 4]>().write([1, 2, 3, 4]);
            assert_eq!(begin(a, RELAXED), OK);
            sys::cuMemcpyHtoDAsync_v2(block, pinned.cast(), 4, a).result().unwrap();
            sys::cuMemcpyDtoHAsync_v2(pinned.add(4).cast(), block, 4, a).result().unwrap();
            sys::cuLaunchHostFunc(a, Some(called), no_argument()).result().unwrap();
            instantiate(end(a).unwrap())
        };
        assert_eq!(CALLED.load(SeqCst), 0);
        for round in 0..3u8 {
            // SAFETY: nothing is in flight.
            unsafe { pinned.write(round) };
            assert_eq!((launch(exec, a), synchronize(a)), (OK, OK));
            // SAFETY: the copy is done.
            assert_eq!(unsafe { pinned.add(4).cast::<[u8; 4]>().read() }, [round, 2, 3, 4]);
        }
        assert_eq!(CALLED.load(SeqCst), 3);
        clean(&fake);
        // SAFETY: freed once.
        unsafe { result::free_host(pinned.cast()) }.unwrap();
        assert_eq!(launch(exec, a), Code::CUDA_ERROR_ILLEGAL_ADDRESS);
        one_violation(&fake, 0, "host memory that was freed");
        drop(context);
    }
}

#[test]
fn handles_and_flags_of_graphs() {
    let (fake, _context) = two_devices();
    let a = stream(1);
    assert_eq!(begin(a, RELAXED), OK);
    let graph = end(a).unwrap();
    let both = Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
        | Flags::CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH;
    let invalid = Code::CUDA_ERROR_INVALID_VALUE;
    // SAFETY: handles are followed by nobody.
    unsafe {
        assert_eq!(code(result::graph::instantiate(graph, both)), invalid);
        let exec = instantiate(graph);
        assert_eq!(code(result::graph::destroy(graph)), OK, "the executable graph lives on");
        assert_eq!((launch(exec, a), synchronize(a)), (OK, OK));
        assert_eq!(code(result::graph::destroy(graph)), invalid);
        one_violation(&fake, 0, "graph");
        assert_eq!(code(result::graph::instantiate(graph, Flags(0))), invalid);
        assert_eq!(begin(a, RELAXED), OK);
        let unsupported = Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        assert_eq!(launch(exec, a), unsupported, "no graphs in graphs");
        assert!(end(a).is_err());
        assert_eq!(code(result::graph::exec_destroy(exec)), OK);
        assert_eq!(launch(exec, a), invalid);
    }
    assert_eq!(fake.violations().len(), 3);
}
