//! The pool in one screen: a driver, a pool, a stream, buffers, and what the pool tells about itself.
//!
//! ```sh
//! cargo run --example quickstart
//! ```
//!
//! No GPU is needed: the devices are simulated.

use millpond::driver::sim::SimDriver;
use millpond::{Buffer, DeviceId, Error, Pool};
use millpond_simgpu::{Sim, Touch};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Two GPUs. Work is submitted to the simulation itself, so we keep a handle of it.
    let sim = Sim::builder().devices(2).capacity(1 << 30).build()?;

    // The pool reserves address space on every device now, and takes memory when it is asked.
    let pool = Pool::new(SimDriver::new(sim.clone()))?;

    // Streams belong to the pool, which keeps their handles alive as long as it needs them.
    let stream = pool.stream(DeviceId(0))?;

    // A buffer is uninitialised device memory. Whatever is submitted to its stream from now on may
    // use it at once: nothing has to be waited for.
    let weights: Buffer<f32> = stream.alloc(1 << 20)?;
    let sim_stream = stream.handle().into();
    sim.launch(sim_stream, &[Touch::write(weights.address(), weights.bytes())])?;
    println!("{} floats at {:#x} on {}", weights.len(), weights.address(), weights.device());

    // A training loop: the same sizes step after step. Dropping a buffer gives it back while the
    // device may still be working on it. The next allocation on the stream gets it again, since its
    // work comes after the old work anyway; that costs a few nanoseconds and no driver call.
    for _step in 0..1000 {
        let activations: Buffer<f32> = stream.alloc(300_000)?;
        let scratch: Buffer<u8> = stream.alloc(4096)?;
        let touches = [
            Touch::read(weights.address(), weights.bytes()),
            Touch::write(activations.address(), activations.bytes()),
            Touch::write(scratch.address(), scratch.bytes()),
        ];
        sim.launch(sim_stream, &touches)?;
    }

    // Where the blocks came from. Only the first steps went down to the heap.
    let stats = pool.stats();
    println!("{:?}", stats.hits);
    for device in &stats.devices {
        let (live, reserved) = (device.live_bytes, device.reserved_bytes);
        println!("{}: {live} bytes live, {reserved} reserved", device.device);
    }

    // Errors say what was asked for and what there is.
    match stream.alloc::<u8>(2 << 30) {
        Err(error @ Error::OutOfMemory(_)) => println!("as expected: {error}"),
        other => println!("unexpected: {other:?}"),
    }

    // Idle memory goes back to the driver when somebody says so. Memory whose work is still under
    // way stays: the pool never waits here.
    let reserved = pool.trim(DeviceId(0), 0)?;
    println!("after trimming: {reserved} bytes reserved");

    // A buffer may outlive its stream and its pool. The last of them takes the memory down with it.
    drop(stream);
    drop(pool);
    drop(weights);
    println!("not given back: {}", sim.leaks());
    Ok(())
}
