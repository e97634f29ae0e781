//! Captures: graphs keep their memory, and the pool does nothing that a capture forbids.

use crate::{D0, MIB, Rig, quiet, scheduled, start};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode, CUstreamCaptureStatus};
use cudarc::driver::{CudaGraph, CudaStream};
use millpond::driver::cuda::cudarc;
use millpond::{Buffer, Error, Reuse};
use std::sync::Arc;

const MODES: [CUstreamCaptureMode; 3] = [
    CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
    CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
];

const LEN: usize = MIB as usize;

fn end(stream: &Arc<CudaStream>) -> CudaGraph {
    stream.end_capture(CUgraphInstantiate_flags(0)).unwrap().expect("a graph")
}

/// A graph that works in memory of its own, launched again and again while others allocate and free:
/// it finds there what it left, and so do they.
#[test]
fn graphs_keep_their_memory() {
    for (seed, mode) in (0..30).zip(MODES.iter().cycle()) {
        let rig = Rig::new(scheduled(seed));
        let mut input: Buffer<u8> = rig.stream.alloc(LEN).unwrap();
        let memory = rig.pool.graph_memory().unwrap();
        let capture = memory.capture(&rig.stream).unwrap();
        rig.cuda.begin_capture(*mode).unwrap();
        // Two blocks in turn, the second in the first's memory; and one that lives on.
        let mut scratch: Buffer<u8> = rig.stream.alloc(LEN).unwrap();
        rig.cuda.memcpy_dtod(&input.on(&rig.cuda), &mut scratch.on_mut(&rig.cuda)).unwrap();
        let mut output: Buffer<u8> = rig.stream.alloc(LEN).unwrap();
        rig.cuda.memcpy_dtod(&scratch.on(&rig.cuda), &mut output.on_mut(&rig.cuda)).unwrap();
        let first = scratch.address();
        drop(scratch);
        let mut again: Buffer<u8> = rig.stream.alloc(LEN).unwrap();
        assert_eq!(again.address(), first);
        rig.cuda.memset_zeros(&mut again.on_mut(&rig.cuda)).unwrap();
        drop(again);
        let graph = end(&rig.cuda);
        drop(capture);

        for round in 1..6 {
            let value = vec![round; LEN];
            rig.cuda.memcpy_htod(&value, &mut input.on_mut(&rig.cuda)).unwrap();
            // Memory comes and goes beside the graph.
            let mut beside: Buffer<u8> = rig.stream.alloc(LEN).unwrap();
            assert_ne!(beside.address(), first);
            rig.cuda.memcpy_htod(&vec![!round; LEN], &mut beside.on_mut(&rig.cuda)).unwrap();
            graph.launch().unwrap();
            assert_eq!(rig.cuda.clone_dtoh(&output.on(&rig.cuda)).unwrap(), value);
            assert_eq!(rig.cuda.clone_dtoh(&beside.on(&rig.cuda)).unwrap(), vec![!round; LEN]);
        }
        graph.launch().unwrap();
        drop((graph, memory));
        // The last launch may still run; all memory comes back after it.
        let other = rig.pool.stream(D0).unwrap();
        drop((input, output));
        drop(other.alloc::<u8>(60 * LEN).unwrap());
        drop(other);
        rig.done();
    }
}

/// A capture over two streams: each gets memory of its own, and the graph's branches do not race.
#[test]
fn captures_over_two_streams() {
    for seed in 0..20 {
        let rig = Rig::new(scheduled(seed));
        let side = rig.context.new_stream().unwrap();
        let ours = rig.pool.register_cuda_stream(&side).unwrap();
        let memory = rig.pool.graph_memory().unwrap();
        let captures = [&rig.stream, &ours].map(|stream| memory.capture(stream).unwrap());
        rig.cuda.begin_capture(MODES[0]).unwrap();
        side.join(&rig.cuda).unwrap();
        let outputs: Vec<_> = [(&rig.stream, &rig.cuda), (&ours, &side)]
            .map(|(stream, cuda)| {
                // Freed at once: its memory serves the same stream only.
                let mut scratch: Buffer<u8> = stream.alloc(LEN).unwrap();
                cuda.memset_zeros(&mut scratch.on_mut(cuda)).unwrap();
                drop(scratch);
                let mut output: Buffer<u8> = stream.alloc(LEN).unwrap();
                cuda.memset_zeros(&mut output.on_mut(cuda)).unwrap();
                output
            })
            .into();
        rig.cuda.join(&side).unwrap();
        let graph = end(&rig.cuda);
        drop(captures);
        (0..3).for_each(|_| graph.launch().unwrap());
        for output in &outputs {
            assert_eq!(rig.cuda.clone_dtoh(&output.on(&rig.cuda)).unwrap(), vec![0; LEN]);
        }
        drop((graph, memory, outputs, ours, side));
        rig.done();
    }
}

/// While a stream captures, in the strictest mode, other threads allocate, free, miss, take and share
/// pages, and what they do disturbs no capture.
#[test]
fn nothing_disturbs_a_capture() {
    for (seed, mode) in (0..12).zip(MODES.iter().cycle()) {
        for reuse in [Reuse::Wait, Reuse::Completed] {
            let mut rig = Rig::new(scheduled(seed));
            let driver = Arc::clone(rig.pool.driver());
            drop((rig.stream, rig.pool));
            let builder = millpond::Pool::builder_shared(driver).reuse(reuse);
            rig.pool = builder.watermarks(4 * MIB, 8 * MIB).peer_access(true).build().unwrap();
            rig.stream = rig.pool.register_cuda_stream(&rig.cuda).unwrap();
            let before = rig.stream.alloc::<u8>(6 * LEN).unwrap();
            let memory = rig.pool.graph_memory().unwrap();
            let capture = memory.capture(&rig.stream).unwrap();
            rig.cuda.begin_capture(*mode).unwrap();
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        let streams = [0; 2].map(|_| rig.pool.stream(D0).unwrap());
                        for round in 0..40 {
                            let bytes = LEN + round * 70_000 % (4 * LEN);
                            let block = streams[round % 2].alloc::<u8>(bytes).unwrap();
                            block.record_use(&streams[(round + 1) % 2]).unwrap();
                            drop(block);
                            rig.pool.trim(D0, 0).unwrap();
                        }
                    });
                }
            });
            drop(before);
            let mut inside: Buffer<u8> = rig.stream.alloc(LEN).unwrap();
            rig.cuda.memset_zeros(&mut inside.on_mut(&rig.cuda)).unwrap();
            drop(inside);
            let status = rig.cuda.capture_status().unwrap();
            assert_eq!(status, CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE);
            let graph = end(&rig.cuda);
            drop(capture);
            graph.launch().unwrap();
            drop((graph, memory));
            rig.done();
        }
    }
}

/// A capture that the pool was not told of: it refuses to record on the stream, and the capture goes on.
#[test]
fn a_capture_nobody_told_of() {
    let rig = Rig::new(start());
    let other = rig.pool.stream(D0).unwrap();
    let all = rig.stream.alloc::<u8>(64 * LEN).unwrap();
    drop(all);
    rig.cuda.begin_capture(MODES[2]).unwrap();
    let refused = other.wait(&rig.stream);
    assert!(matches!(&refused, Err(Error::Driver(error)) if error.code == 900), "{refused:?}");
    let refused = rig.stream.wait(&other);
    assert!(matches!(&refused, Err(Error::Driver(error)) if error.code == 900), "{refused:?}");
    assert!(matches!(other.alloc::<u8>(LEN), Err(Error::OutOfMemory(_) | Error::Driver(_))));
    let graph = rig.cuda.end_capture(CUgraphInstantiate_flags(0)).unwrap();
    drop(graph);
    // All as before.
    drop(other.alloc::<u8>(64 * LEN).unwrap());
    drop(other);
    rig.done();
}

/// A capture of a stream that the pool does not know, in the strictest mode and on the same thread: what
/// the pool calls meanwhile disturbs neither it nor the pool's own streams.
#[test]
fn captures_of_others_go_on() {
    let rig = Rig::new(scheduled(1));
    let theirs = rig.context.new_stream().unwrap();
    let other = rig.pool.stream(D0).unwrap();
    drop(rig.stream.alloc::<u8>(6 * LEN).unwrap());
    theirs.begin_capture(MODES[0]).unwrap();
    // Seals, asks, waits, takes pages and gives them back.
    drop(other.alloc::<u8>(6 * LEN).unwrap());
    drop(rig.stream.alloc::<u8>(60 * LEN).unwrap());
    rig.pool.trim(D0, 0).unwrap();
    let status = theirs.capture_status().unwrap();
    assert_eq!(status, CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE);
    drop(theirs.end_capture(CUgraphInstantiate_flags(0)).unwrap());
    assert_eq!(rig.pool.stats().poisoned_streams, 0);
    drop((theirs, other));
    rig.done();
}

/// Told of a capture, the pool refuses what would cross its border.
#[test]
fn waits_do_not_cross_the_border() {
    let rig = Rig::new(start());
    let other = rig.pool.stream(D0).unwrap();
    let memory = rig.pool.graph_memory().unwrap();
    let capture = memory.capture(&rig.stream).unwrap();
    rig.cuda.begin_capture(MODES[0]).unwrap();
    for (waiter, on) in [(&rig.stream, &other), (&other, &rig.stream)] {
        let refused = waiter.wait(on);
        assert!(matches!(refused, Err(Error::Capturing { .. })), "{refused:?}");
    }
    drop(end(&rig.cuda));
    drop((capture, memory));
    other.wait(&rig.stream).unwrap();
    quiet(&rig.fake);
    drop(other);
    rig.done();
}
