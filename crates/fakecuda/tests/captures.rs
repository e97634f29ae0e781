//! Stream capture: what it refuses, with the code, and when.

mod common;

use common::*;
use std::ptr::null_mut;
use sys::CUstreamCaptureMode as Mode;
use sys::CUstreamCaptureStatus as Status;

const OK: Code = Code::CUDA_SUCCESS;
const UNSUPPORTED: Code = Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
const INVALIDATED: Code = Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
const GLOBAL: Mode = Mode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const THREAD_LOCAL: Mode = Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
const RELAXED: Mode = Mode::CU_STREAM_CAPTURE_MODE_RELAXED;

fn exchange(mut mode: Mode) -> Mode {
    // SAFETY: a pointer to a local.
    unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) }.result().unwrap();
    mode
}

#[test]
fn a_capture_begins_and_ends_on_one_stream() {
    let (fake, _context) = two_devices();
    let (a, b) = (stream(1), stream(1));
    assert_eq!(status(a), Ok(Status::CU_STREAM_CAPTURE_STATUS_NONE));
    assert_eq!(end(a), Err(Code::CUDA_ERROR_ILLEGAL_STATE));
    assert_eq!(begin(null_mut(), RELAXED), UNSUPPORTED, "the legacy stream");
    assert_eq!(begin(a, RELAXED), OK);
    assert_eq!(status(a), Ok(Status::CU_STREAM_CAPTURE_STATUS_ACTIVE));
    assert_eq!(begin(a, RELAXED), Code::CUDA_ERROR_ILLEGAL_STATE);
    let event = plain_event();
    assert_eq!((record(event, a), wait(b, event)), (OK, OK));
    assert_eq!(status(b), Ok(Status::CU_STREAM_CAPTURE_STATUS_ACTIVE), "joined by the wait");
    assert_eq!(end(b), Err(Code::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED));
    assert_eq!(status(a), Ok(Status::CU_STREAM_CAPTURE_STATUS_INVALIDATED));
    assert_eq!(end(a), Err(INVALIDATED));
    for stream in [a, b] {
        assert_eq!(status(stream), Ok(Status::CU_STREAM_CAPTURE_STATUS_NONE));
        assert_eq!(fill(alloc(64), 0, 64, stream), OK, "of use again");
    }
    clean(&fake);
}

#[test]
fn what_a_captured_stream_refuses() {
    let (_fake, context) = two_devices();
    let (a, block) = (stream(1), alloc(4096));
    let mut host = [0u8; 8];
    let refused: [&mut dyn FnMut() -> Code; 8] = [
        &mut || synchronize(a),
        &mut || query_stream(a),
        &mut || destroy_stream(a),
        &mut || code(context.synchronize()),
        &mut || code(unsafe { result::memcpy_dtoh_async(&mut host, block, a) }),
        &mut || code(unsafe { result::memcpy_htod_async(block, &[1u8], a) }),
        &mut || code(unsafe { result::malloc_async(a, 64) }),
        &mut || free_async(block, a),
    ];
    for (nth, call) in refused.into_iter().enumerate() {
        assert_eq!(begin(a, RELAXED), OK);
        assert_eq!(call(), UNSUPPORTED, "call {nth}");
        assert_eq!(status(a), Ok(Status::CU_STREAM_CAPTURE_STATUS_INVALIDATED), "call {nth}");
        assert_eq!(fill(block, 0, 8, a), INVALIDATED, "all is refused from then on");
        assert_eq!(end(a), Err(INVALIDATED));
    }
    assert_eq!(fill(block, 0, 8, a), OK);
}

#[test]
fn what_an_event_of_a_capture_refuses() {
    let (_fake, _context) = two_devices();
    let (a, event) = (stream(1), plain_event());
    let captured = Code::CUDA_ERROR_CAPTURED_EVENT;
    for asked in [query, |event| unsafe { sys::cuEventSynchronize(event) }] {
        assert_eq!(begin(a, RELAXED), OK);
        assert_eq!(record(event, a), OK);
        assert_eq!(asked(event), captured);
        assert_eq!(end(a), Err(INVALIDATED));
    }
    assert_eq!(query(event), captured, "after the capture too");
    assert_eq!(wait(a, event), captured);
    assert_eq!(record(event, a), OK);
    assert_eq!(query(event), OK, "until it is recorded again");
}

#[test]
fn nothing_crosses_the_border_of_a_capture() {
    let (_fake, _context) = two_devices();
    let (a, b) = (stream(1), stream(1));
    let (outside, never, of_a, of_b) = (plain_event(), plain_event(), plain_event(), plain_event());
    assert_eq!(record(outside, b), OK);
    assert_eq!(begin(a, RELAXED), OK);
    assert_eq!(wait(a, never), OK, "an event without a record is nothing to wait for");
    assert_eq!(wait(a, outside), Code::CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    assert_eq!(end(a), Err(INVALIDATED));

    assert_eq!((begin(a, RELAXED), begin(b, RELAXED)), (OK, OK));
    assert_eq!((record(of_a, a), record(of_b, b)), (OK, OK));
    assert_eq!(wait(a, of_b), Code::CUDA_ERROR_STREAM_CAPTURE_MERGE);
    assert_eq!((end(a), end(b)), (Err(INVALIDATED), Err(INVALIDATED)));
}

#[test]
fn forks_are_joined_before_the_end() {
    let (_fake, _context) = two_devices();
    let (a, b) = (stream(1), stream(1));
    let (fork, join) = (plain_event(), plain_event());
    let block = alloc(64);
    for joined in [true, false] {
        assert_eq!(begin(a, RELAXED), OK);
        assert_eq!((record(fork, a), wait(b, fork)), (OK, OK));
        assert_eq!(fill(block, 0, 64, b), OK);
        assert_eq!(record(join, b), OK);
        if joined {
            assert_eq!(wait(a, join), OK);
            assert!(end(a).is_ok());
        } else {
            assert_eq!(end(a), Err(Code::CUDA_ERROR_STREAM_CAPTURE_UNJOINED));
        }
        assert_eq!(status(b), Ok(Status::CU_STREAM_CAPTURE_STATUS_NONE));
    }
    // A fork that was given nothing leaves nothing open.
    assert_eq!(begin(a, RELAXED), OK);
    assert_eq!((record(fork, a), wait(b, fork)), (OK, OK));
    assert!(end(a).is_ok());
}

#[test]
fn the_legacy_stream_stays_away_from_blocking_captures() {
    let (_fake, _context) = two_devices();
    let implicit = Code::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    let (blocking, apart, block) = (stream(0), stream(1), alloc(64));
    assert_eq!(begin(apart, RELAXED), OK);
    assert_eq!(fill(block, 0, 64, null_mut()), OK, "not with that stream");
    let event = plain_event();
    assert_eq!(record(event, apart), OK);
    assert_eq!(wait(null_mut(), event), implicit);
    assert_eq!(end(apart), Err(INVALIDATED));

    assert_eq!(begin(blocking, RELAXED), OK);
    assert_eq!(status(null_mut()), Err(implicit));
    assert_eq!(fill(block, 0, 64, null_mut()), implicit);
    assert_eq!(end(blocking), Err(INVALIDATED));
    assert_eq!(fill(block, 0, 64, null_mut()), OK);
}

/// Whether a call is refused while there is a capture of a mode, on this thread or another.
fn refused(capture: Mode, own: bool, thread: Mode, call: &(dyn Fn() -> Code + Sync)) -> bool {
    let (_fake, context) = two_devices();
    let a = context.new_stream().unwrap();
    let a = &a;
    let attempt = || {
        context.bind_to_thread().unwrap();
        let before = exchange(thread);
        let answer = call();
        exchange(before);
        answer
    };
    assert_eq!(begin(a.cu_stream(), capture), OK);
    let answer =
        if own { attempt() } else { std::thread::scope(|s| s.spawn(attempt).join().unwrap()) };
    match answer {
        UNSUPPORTED => assert_eq!(end(a.cu_stream()), Err(INVALIDATED)),
        OK => assert!(end(a.cu_stream()).is_ok()),
        other => panic!("{other:?}"),
    }
    answer == UNSUPPORTED
}

#[test]
fn potentially_unsafe_calls_depend_on_both_modes() {
    let call: &(dyn Fn() -> Code + Sync) = &|| try_alloc(64).err().unwrap_or(OK);
    for (capture, own, thread, expected) in [
        (GLOBAL, true, GLOBAL, true),
        (GLOBAL, true, THREAD_LOCAL, true),
        (GLOBAL, true, RELAXED, false),
        (GLOBAL, false, GLOBAL, true),
        (GLOBAL, false, THREAD_LOCAL, false),
        (GLOBAL, false, RELAXED, false),
        (THREAD_LOCAL, true, GLOBAL, true),
        (THREAD_LOCAL, true, THREAD_LOCAL, true),
        (THREAD_LOCAL, true, RELAXED, false),
        (THREAD_LOCAL, false, GLOBAL, false),
        (THREAD_LOCAL, false, THREAD_LOCAL, false),
        (RELAXED, true, GLOBAL, false),
        (RELAXED, true, THREAD_LOCAL, false),
        (RELAXED, false, GLOBAL, false),
    ] {
        let is = refused(capture, own, thread, call);
        assert_eq!(is, expected, "{capture:?}, own: {own}, thread {thread:?}");
    }
}

#[test]
fn which_calls_are_potentially_unsafe() {
    let unsafe_calls: [(&str, &(dyn Fn() -> Code + Sync)); 8] = [
        ("free", &|| free(0)),
        ("query", &|| query(plain_event())),
        ("query stream", &|| query_stream(stream(1))),
        ("synchronise stream", &|| synchronize(stream(1))),
        ("synchronise event", &|| unsafe { sys::cuEventSynchronize(plain_event()) }),
        ("pinned", &|| code(unsafe { result::malloc_host(64, 0) })),
        ("map", &|| {
            let (mut handle, there) = (0, properties(0));
            unsafe { sys::cuMemCreate(&mut handle, UNIT, &there, 0) }
        }),
        ("module", &|| code(unsafe { result::module::load_data(c"".as_ptr().cast()) })),
    ];
    for (name, call) in unsafe_calls {
        assert!(refused(GLOBAL, true, GLOBAL, call), "{name}");
    }
    let safe_calls: [(&str, &(dyn Fn() -> Code + Sync)); 5] = [
        ("create event", &|| destroy_event(plain_event())),
        ("record", &|| record(plain_event(), stream(1))),
        ("wait", &|| wait(stream(1), plain_event())),
        ("memory info", &|| code(result::mem_get_info())),
        ("reserve", &|| {
            reserve(UNIT);
            OK
        }),
    ];
    for (name, call) in safe_calls {
        assert!(!refused(GLOBAL, true, GLOBAL, call), "{name}");
    }
}

#[test]
fn a_capture_ends_on_its_thread_unless_it_is_relaxed() {
    for mode in [GLOBAL, THREAD_LOCAL, RELAXED] {
        let (_fake, context) = two_devices();
        let a = context.new_stream().unwrap();
        assert_eq!(begin(a.cu_stream(), mode), OK);
        let elsewhere = std::thread::scope(|scope| {
            let ended = || {
                context.bind_to_thread().unwrap();
                end(a.cu_stream()).map(drop)
            };
            scope.spawn(ended).join().unwrap()
        });
        if mode == RELAXED {
            assert_eq!(elsewhere, Ok(()));
        } else {
            assert_eq!(elsewhere, Err(Code::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD));
            assert!(end(a.cu_stream()).is_ok(), "it goes on");
        }
    }
}

#[test]
fn a_captured_stream_tells_where_it_stands() {
    let (_fake, _context) = two_devices();
    let (a, block) = (stream(1), alloc(64));
    let (mut status, mut id, mut graph) = (Status::CU_STREAM_CAPTURE_STATUS_NONE, 0, null_mut());
    let (mut after, mut count): (*const sys::CUgraphNode, usize) = (std::ptr::null(), 9);
    let mut info = || {
        // SAFETY: pointers to locals; the nodes are read before the next call.
        unsafe {
            sys::cuStreamGetCaptureInfo_v2(
                a,
                &mut status,
                &mut id,
                &mut graph,
                &mut after,
                &mut count,
            )
            .result()
            .unwrap();
            let nodes = if after.is_null() {
                vec![]
            } else {
                std::slice::from_raw_parts(after, count).to_vec()
            };
            (status, id, nodes)
        }
    };
    assert_eq!(info().0, Status::CU_STREAM_CAPTURE_STATUS_NONE);
    assert_eq!(begin(a, RELAXED), OK);
    let (state, first, nodes) = info();
    assert_eq!((state, nodes.len()), (Status::CU_STREAM_CAPTURE_STATUS_ACTIVE, 0));
    assert_eq!(fill(block, 0, 64, a), OK);
    let (_, same, nodes) = info();
    assert_eq!((same, nodes.len()), (first, 1));
    let told = graph;
    let ended = end(a).unwrap();
    assert_eq!(ended, told);
    let mut kind = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
    // SAFETY: a pointer to a local.
    unsafe { sys::cuGraphNodeGetType(nodes[0], &mut kind) }.result().unwrap();
    assert_eq!(kind, sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET);
    assert_eq!(begin(a, RELAXED), OK);
    assert_ne!(info_id(a), first, "numbers are used once");
    assert!(end(a).is_ok());
}

fn info_id(stream: CUstream) -> u64 {
    let (mut status, mut id) = (Status::CU_STREAM_CAPTURE_STATUS_NONE, 0);
    // SAFETY: pointers to locals, and null for what is not wanted.
    unsafe {
        sys::cuStreamGetCaptureInfo_v2(
            stream,
            &mut status,
            &mut id,
            null_mut(),
            null_mut(),
            null_mut(),
        )
    }
    .result()
    .unwrap();
    id
}
