//! The reference workload: two devices, five streams, everything the pool does with a driver.

use crate::ground::Over;
use crate::rig::{CAPACITY, MIB, Rig};
use millpond::{Buffer, DeviceId, Error, Pool, Stream};
use millpond_simgpu::Touch;

/// A block, written to if its stream could be given work.
pub fn get(rig: &Rig, stream: &Stream, bytes: u64) -> Result<Buffer, Error> {
    let buffer = stream.alloc::<u8>(bytes as usize).inspect_err(|error| rig.assert_typed(error))?;
    again(rig, stream, &buffer);
    Ok(buffer)
}

fn again(rig: &Rig, stream: &Stream, buffer: &Buffer) {
    let touch = Touch::write(buffer.address(), buffer.bytes());
    let _ = rig.sim.launch(rig.ground.stream(stream.handle()), &[touch]);
}

/// Runs one stream after another by an event of the program's own; false where that fails.
fn order(rig: &Rig, before: &Stream, after: &Stream) -> bool {
    let sim = &rig.sim;
    let [from, to] = [before, after].map(|stream| rig.ground.stream(stream.handle()));
    let Ok(event) = sim.event_create(before.device().0) else { return false };
    let ordered = sim.event_record(event, from).is_ok() && sim.stream_wait(to, event).is_ok();
    while sim.event_destroy(event).is_err() {
        sim.clear_faults();
    }
    ordered
}

/// Pages go to other blocks and come back, for two streams in turn: all of a device is in use, or
/// idle in pieces too small.
fn move_pages(rig: &Rig, s: &Stream, t: &Stream) {
    const PAGE: u64 = 2 * MIB;
    let filler = get(rig, s, CAPACITY - 8 * PAGE);
    let guard = get(rig, s, PAGE);
    for gatherer in [t, t, s] {
        let mut row = [1, 2, 1, 2, 1].map(|pages| get(rig, s, pages * PAGE).ok());
        for place in [0, 2, 4] {
            row[place] = None;
        }
        // From three places behind the guard, where there is none.
        let gathered = get(rig, gatherer, 3 * PAGE);
        row = Default::default();
        drop((row, gathered));
        (0..3).for_each(|_| rig.sim.tick());
        // And back: all of the row in one.
        drop(get(rig, s, 7 * PAGE));
        (0..3).for_each(|_| rig.sim.tick());
    }
    drop((guard, filler));
}

/// Segments go for larger ones, on request and where there is no room, between two streams.
fn change_segments(rig: &Rig, pool: &Pool, s: &Stream, t: &Stream) {
    rig.noted(pool.trim(s.device(), 0));
    for (mib, stream) in [(10, s), (12, s), (20, t), (26, s), (28, t), (32, s)] {
        drop(get(rig, stream, mib * MIB));
        (0..2).for_each(|_| rig.sim.tick());
    }
}

/// A stream captures, while the pool serves another, and gives back what is idle.
fn capture(rig: &Rig, pool: &Pool, captured: &Stream, other: &Stream) {
    // The simulator knows no captures.
    if rig.setup.over == Over::Sim {
        return;
    }
    let Some(memory) = rig.noted(pool.graph_memory()) else { return };
    let Some(capture) = rig.noted(memory.capture(captured)) else { return };
    if rig.ground.begin_capture(captured.handle()) {
        for bytes in [70_000, 3 << 20] {
            // What a graph is to touch is touched at its launch, and there is none.
            rig.noted(captured.alloc::<u8>(bytes));
            drop(get(rig, other, bytes as u64));
        }
        rig.noted(pool.trim(other.device(), 0));
        drop(get(rig, other, 9 * MIB));
        rig.ground.end_capture(captured.handle());
    }
    drop((capture, memory));
}

/// One run. Errors are passed over, so that what comes after a failed call is tried too.
pub fn workload(rig: &Rig, pool: &Pool) {
    let sim = &rig.sim;
    let streams = [0, 0, 1].map(|device| rig.stream(pool, DeviceId(device)));
    let [Some(a), Some(b), Some(c)] = &streams else { return };
    for bytes in [900, 70_000, 3 * MIB] {
        let (x, y, z) = (get(rig, a, bytes), get(rig, a, bytes), get(rig, c, 2 * bytes));
        if let Ok(x) = &x
            && x.record_use(b).is_ok()
            && order(rig, a, b)
        {
            again(rig, b, x);
        }
        drop((x, z));
        drop(get(rig, b, bytes));
        rig.noted(b.wait(a));
        drop(y);
        drop(get(rig, b, bytes));
        rig.noted(c.wait(b));
        drop(get(rig, c, 3 * bytes));
        (0..2).for_each(|_| sim.tick());
    }
    capture(rig, pool, a, b);
    // Memory runs short: pages are moved and waited for.
    let mut held: Vec<_> = (0..6).map(|_| get(rig, a, 5 * MIB)).collect();
    held.swap_remove(1).into_iter().for_each(drop);
    held.swap_remove(3).into_iter().for_each(drop);
    held.push(get(rig, b, 9 * MIB));
    if let Some(d) = rig.stream(pool, DeviceId(1)) {
        match rig.setup.plain {
            false => move_pages(rig, c, &d),
            true => change_segments(rig, pool, c, &d),
        }
    }
    rig.noted(pool.trim(DeviceId(1), 2 * MIB));
    let late = get(rig, b, 6000);
    drop(streams);
    drop(late);
    rig.noted(pool.trim_all(4 * MIB));
    drop(held);
    if let Some(d) = rig.stream(pool, DeviceId(0)) {
        drop(get(rig, &d, 7 * MIB));
    }
}
