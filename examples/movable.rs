//! Blocks that the pool may move: a checkerboard of holes becomes one, at a step gap, and a request fits
//! that did not.
//!
//! ```text
//! cargo run --example movable
//! ```

use millpond::driver::sim::SimDriver;
use millpond::{Budget, Defragmentation, DeviceId, Movable, Pool, Stream};
use millpond_simgpu::{Sim, Touch};
use std::error::Error;

const MIB: usize = 1 << 20;

/// Work on a stream that writes all of a block, or reads it. The address is good while it is pinned.
fn touch(
    sim: &Sim,
    stream: &Stream,
    block: &Movable,
    label: u64,
    write: bool,
) -> Result<u64, Box<dyn Error>> {
    let pinned = block.pin(stream)?;
    let (address, bytes) = (pinned.address(), pinned.bytes());
    let touch = if write { Touch::write(address, bytes) } else { Touch::read(address, bytes) };
    sim.launch(stream.handle().into(), &[touch.label(label)])?;
    Ok(address)
    // Here the guard is dropped: later work does not use the block, and it may move.
}

fn main() -> Result<(), Box<dyn Error>> {
    // A device that cannot map pages, so that nothing moves but by copies.
    let sim = Sim::builder().devices(1).capacity(20 << 20).oracle(true).build()?;
    let pool = Pool::builder(SimDriver::without_virtual_memory(sim.clone()))
        .defragmentation(Defragmentation::Compaction { budget: Budget::Unlimited })
        .build()?;
    let stream = pool.stream(DeviceId(0))?;
    pool.begin_step();

    let mut blocks = Vec::new();
    for label in 0..10 {
        let block = stream.alloc_movable::<u8>(2 * MIB)?;
        touch(&sim, &stream, &block, label, true)?;
        blocks.push((label, block));
    }
    // Every other one goes: 10 MiB are free, in holes of 2 MiB.
    blocks.retain(|(label, _)| label % 2 == 0);
    match stream.alloc::<u8>(10 * MIB) {
        Ok(_) => return Err("nothing so large was free".into()),
        Err(error) => println!("before: {error}"),
    }

    // Between backward and the optimizer, say: the place where blocks may move.
    let moved = pool.step_gap(&stream)?;
    println!("{moved:?}");
    let large = stream.alloc::<u8>(10 * MIB)?;
    println!("after: {large:?}");
    for (label, block) in &blocks {
        println!("block {label} is at {:#x}", touch(&sim, &stream, block, *label, false)?);
    }
    println!("{:?}", pool.stats().devices[0].moves);
    match sim.hazards().first() {
        None => Ok(()),
        Some(hazard) => Err(hazard.to_string().into()),
    }
}
