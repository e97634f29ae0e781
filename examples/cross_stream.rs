//! Memory used on several streams: what to tell the pool, and what happens if you do not.
//!
//! ```sh
//! cargo run --example cross_stream
//! ```
//!
//! The race oracle of the simulated devices watches: it knows which work is ordered after which, and
//! reports two touches of the same bytes that nothing orders, whatever the timing happened to be.

use millpond::driver::sim::SimDriver;
use millpond::{Buffer, DeviceId, Pool, Stream};
use millpond_simgpu::{Sim, Touch};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

const BYTES: usize = 1 << 20;

fn write(sim: &Sim, stream: &Stream, buffer: &Buffer<u8>) -> Result {
    Ok(sim.launch(stream.handle().into(), &[Touch::write(buffer.address(), buffer.bytes())])?)
}

fn read(sim: &Sim, stream: &Stream, buffer: &Buffer<u8>) -> Result {
    Ok(sim.launch(stream.handle().into(), &[Touch::read(buffer.address(), buffer.bytes())])?)
}

/// A machine with a pool and two streams of one device.
fn machine() -> Result<(Sim, Pool, Stream, Stream)> {
    let sim = Sim::builder().oracle(true).build()?;
    let pool = Pool::new(SimDriver::new(sim.clone()))?;
    let (producer, consumer) = (pool.stream(DeviceId(0))?, pool.stream(DeviceId(0))?);
    Ok((sim, pool, producer, consumer))
}

/// The producer writes, the consumer reads, and the memory is dropped while both may be at work.
fn until_the_free() -> Result {
    let (sim, _pool, producer, consumer) = machine()?;
    let buffer = producer.alloc(BYTES)?;
    write(&sim, &producer, &buffer)?;

    // Two different things. The consumer's work has to come after the producer's: that is `wait`.
    consumer.wait(&producer)?;
    read(&sim, &consumer, &buffer)?;
    // And whoever gets the memory next has to come after the consumer's: that is `record_use`. It
    // covers everything the consumer is given until the drop.
    buffer.record_use(&consumer)?;
    drop(buffer);

    // The producer asks again. The old block waits for the consumer, so the pool looks for something
    // better; where it must use this block, it lets the producer wait for the consumer first.
    let next = producer.alloc(BYTES)?;
    write(&sim, &producer, &next)?;
    println!("record_use: {} hazards", sim.hazard_count());
    Ok(())
}

/// The consumer is done with the memory long before it is dropped.
fn until_the_last_use() -> Result {
    let (sim, _pool, producer, consumer) = machine()?;
    let buffer = producer.alloc(BYTES)?;
    write(&sim, &producer, &buffer)?;
    consumer.wait(&producer)?;
    read(&sim, &consumer, &buffer)?;
    // What the consumer was given so far is all that touches the memory: `last_use`.
    buffer.last_use(&consumer)?;

    // The producer learns of the consumer's work so far, …
    producer.wait(&consumer)?;
    // … then the consumer gets plenty of work that has nothing to do with the memory.
    let other = consumer.alloc(BYTES)?;
    write(&sim, &consumer, &other)?;
    let address = buffer.address();
    drop(buffer);

    // With `record_use` the block would wait for that work as well. With `last_use` it is known to be
    // free: the producer gets the very same block, and nothing waits.
    let next = producer.alloc(BYTES)?;
    write(&sim, &producer, &next)?;
    let same = if next.address() == address { "the same block" } else { "another block" };
    println!("last_use: {same} at once, {} hazards", sim.hazard_count());
    Ok(())
}

/// The same without a word to the pool.
fn untold() -> Result {
    let (sim, _pool, producer, consumer) = machine()?;
    let buffer = producer.alloc(BYTES)?;
    write(&sim, &producer, &buffer)?;
    consumer.wait(&producer)?;
    read(&sim, &consumer, &buffer)?;
    // Missing: buffer.record_use(&consumer)?;
    drop(buffer);

    // As far as the pool knows, only the producer used the memory: it gets it back at once, and
    // overwrites what the consumer may not have read yet. On a GPU this goes well, mostly.
    let next = producer.alloc(BYTES)?;
    write(&sim, &producer, &next)?;
    println!("nothing recorded: {} hazards", sim.hazard_count());
    for hazard in sim.hazards() {
        println!("    {hazard}");
    }
    Ok(())
}

fn main() -> Result {
    until_the_free()?;
    until_the_last_use()?;
    untold()
}
