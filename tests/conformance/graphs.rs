//! The memory of captured graphs: whose it is, how long, and what the pool leaves alone meanwhile.
//!
//! Nothing is captured here: a graph's launch is work on any stream that touches the addresses that
//! were given out in its capture. What a driver's captures forbid is tested over the CUDA driver.

use crate::machine::{D0, MIB, Machine, Need, Rig};
use millpond::{Error, Reuse, Stream};

const UNIT: u64 = 2 * MIB;

fn gives(stream: &Stream, bytes: u64) -> bool {
    match stream.alloc::<u8>(bytes as usize) {
        Ok(_) => true,
        Err(Error::OutOfMemory(_)) => false,
        Err(error) => panic!("{error:?}"),
    }
}

/// What was allocated in a capture serves nobody else until the graph's memory is dropped, and then
/// not before the last launch is over.
pub fn graph_memory_serves_its_graph_alone<M: Machine>(make: impl Fn(u16, u64) -> M) {
    for bytes in [20_000, UNIT] {
        let rig = Rig::new(&make, 1, 8 * UNIT);
        let pool = rig.builder().capacity(4 * UNIT).build().unwrap();
        let [s, t] = [0; 2].map(|_| pool.stream(D0).unwrap());
        let memory = pool.graph_memory().unwrap();
        let capture = memory.capture(&s).unwrap();
        let block = s.alloc::<u8>(bytes as usize).unwrap();
        let graphs = block.address()..block.address() + block.granted_bytes();
        drop(block);
        drop(capture);
        // Launched, while the rest of the memory comes and goes on both streams.
        for (round, stream) in [&s, &t, &s].into_iter().enumerate() {
            rig.machine.write(stream.handle(), graphs.start, bytes, 1000 + round as u64);
            rig.order(&s, &t);
            rig.order(&t, &s);
            for stream in [&s, &t] {
                for size in [bytes, UNIT] {
                    let address = rig.touch(stream, size);
                    assert!(!graphs.contains(&address), "a graph's memory served another");
                }
            }
            assert!(!gives(stream, 4 * UNIT), "with a graph's memory");
        }
        rig.machine.write(t.handle(), graphs.start, bytes, 1);
        drop(memory);
        // All of it, after the last launch: the oracle sees to that.
        rig.touch(&s, 4 * UNIT);
        drop((s, t));
        rig.done(pool);
    }
}

/// Within a capture freed memory serves its stream again at once; another stream of the capture gets
/// memory of its own.
pub fn captures_reuse_their_own_memory<M: Machine>(make: impl Fn(u16, u64) -> M) {
    for bytes in [20_000, UNIT] {
        let rig = Rig::new(&make, 1, 16 * UNIT);
        let pool = rig.pool();
        let [s, t] = [0; 2].map(|_| pool.stream(D0).unwrap());
        let memory = pool.graph_memory().unwrap();
        let captures = [&s, &t].map(|stream| memory.capture(stream).unwrap());
        assert_eq!(captures[0].stream().id(), s.id());
        let on = |stream: &Stream| {
            let block = stream.alloc::<u8>(bytes as usize).unwrap();
            assert_ne!(block.stream(), stream.id());
            block.address()
        };
        let first = on(&s);
        assert_eq!(on(&s), first);
        assert_ne!(on(&t), first);
        assert_eq!(on(&s), first);
        drop(captures);
        // A later capture of the same memory goes on with it.
        let capture = memory.capture(&s).unwrap();
        assert_eq!(on(&s), first);
        drop(capture);
        assert_ne!(rig.touch(&s, bytes), first);
        drop((memory, s, t));
        rig.done(pool);
    }
}

/// Idle memory beside a graph's does not become the graph's.
pub fn graphs_take_no_more_than_they_ask_for<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 16 * UNIT);
    let pool = rig.builder().capacity(8 * UNIT).build().unwrap();
    let [s, t] = [0; 2].map(|_| pool.stream(D0).unwrap());
    rig.touch(&t, 8 * UNIT);
    rig.machine.pass_time();
    let memory = pool.graph_memory().unwrap();
    let capture = memory.capture(&s).unwrap();
    for _ in 0..4 {
        // Each is freed at once, and the next one served.
        drop(s.alloc::<u8>(UNIT as usize).unwrap());
        drop(s.alloc::<u8>(5000).unwrap());
    }
    drop(capture);
    // All but one unit for large blocks and one for small ones, in pieces that need not hang together.
    let held: Vec<_> = (0..6).map(|_| rig.get(&t, UNIT)).collect();
    held.into_iter().for_each(|block| rig.free(&t, block));
    drop((memory, s, t));
    rig.done(pool);
}

/// A block of a capture that lives on after its graph is like any other.
pub fn captured_buffers_outlive_their_graph<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 4 * UNIT);
    let pool = rig.pool();
    let [s, t] = [0; 2].map(|_| pool.stream(D0).unwrap());
    let memory = pool.graph_memory().unwrap();
    let capture = memory.capture(&s).unwrap();
    let output = s.alloc::<u8>(UNIT as usize).unwrap();
    drop((capture, memory));
    assert!(!gives(&t, 4 * UNIT));
    rig.machine.write(s.handle(), output.address(), UNIT, 7);
    output.record_use(&s).unwrap();
    drop(output);
    rig.touch(&t, 4 * UNIT);
    drop((s, t));
    rig.done(pool);
}

/// The pool records nothing on a stream that captures, and makes it wait for nothing; what it freed
/// before serves others after the capture.
pub fn capturing_streams_are_left_alone<M: Machine>(make: impl Fn(u16, u64) -> M) {
    for reuse in [Reuse::Wait, Reuse::Completed] {
        let rig = Rig::new(&make, 1, 4 * UNIT);
        rig.needs(Need::OnDemand);
        let pool = rig.builder().reuse(reuse).build().unwrap();
        let [s, t] = [0; 2].map(|_| pool.stream(D0).unwrap());
        let block = rig.get(&s, 4 * UNIT);
        rig.free(&s, block);
        let memory = pool.graph_memory().unwrap();
        let capture = memory.capture(&s).unwrap();
        assert!(matches!(memory.capture(&s), Err(Error::Capturing { stream }) if stream == s.id()));
        for (waiter, other) in [(&s, &t), (&t, &s)] {
            let refused = waiter.wait(other);
            assert!(matches!(refused, Err(Error::Capturing { stream }) if stream == s.id()));
        }
        rig.machine.pass_time();
        let before = rig.driver.event_calls();
        // All memory was the stream's, and nobody may ask it.
        assert!(!gives(&t, UNIT));
        assert!(!gives(&s, UNIT), "a graph's memory may be touched at any time");
        assert_eq!(rig.driver.event_calls(), before);
        assert_eq!(pool.trim(D0, 0).unwrap(), 4 * UNIT);
        assert_eq!(rig.driver.calls("unmap"), 0);
        drop(capture);
        assert!(rig.machine.leaks().is_some());
        let block = rig.get(&t, 4 * UNIT);
        rig.free(&t, block);
        assert_eq!(rig.trim_idle(&pool, D0, 0), 0);
        drop((memory, s, t));
        rig.done(pool);
    }
}

/// A graph's memory that is dropped while a stream captures, which may have launched it before, comes
/// back after that capture.
pub fn graph_memory_dropped_in_another_capture<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 4 * UNIT);
    let pool = rig.pool();
    let [s, t] = [0; 2].map(|_| pool.stream(D0).unwrap());
    let first = pool.graph_memory().unwrap();
    let capture = first.capture(&s).unwrap();
    let block = s.alloc::<u8>(2 * UNIT as usize).unwrap();
    let address = block.address();
    drop((block, capture));
    rig.machine.write(t.handle(), address, UNIT, 7);
    let second = pool.graph_memory().unwrap();
    let capture = second.capture(&t).unwrap();
    drop(first);
    rig.machine.pass_time();
    assert!(!gives(&s, 4 * UNIT));
    drop((capture, second));
    rig.touch(&s, 4 * UNIT);
    drop((s, t));
    rig.done(pool);
}

/// A pool stays open as long as a graph's memory lives.
pub fn graph_memory_keeps_its_pool_open<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 4 * UNIT);
    let pool = rig.pool();
    let stream = pool.stream(D0).unwrap();
    let memory = pool.graph_memory().unwrap();
    let capture = memory.capture(&stream).unwrap();
    let block = stream.alloc::<u8>(UNIT as usize).unwrap();
    drop((block, capture, stream, pool));
    assert!(rig.machine.leaks().is_some());
    assert!(format!("{memory:?}").contains("GraphMemory"));
    drop(memory);
    rig.assert_quiet();
    rig.assert_nothing_leaked();
}
