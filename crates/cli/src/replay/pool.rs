//! The pool, as a replay's allocator.

use super::allocator::{Allocator, Figures};
use super::record::{Hits, Ladder};
use crate::gpus::{Metered, Reading, own_wait};
use millpond::{Buffer, DeviceId, Error, Pool, Result, Stream};
use std::sync::Arc;

pub(super) struct PoolAllocator {
    pub driver: Arc<Metered>,
    pub pool: Pool,
}

impl Allocator for PoolAllocator {
    type Stream = Stream;
    type Block = Buffer<u8>;
    type Error = Error;

    fn stream(&self, device: DeviceId) -> Result<Stream> {
        self.pool.stream(device)
    }

    fn device(stream: &Stream) -> DeviceId {
        stream.device()
    }

    fn handle(stream: &Stream) -> u64 {
        stream.handle().0
    }

    #[inline]
    fn alloc(&self, stream: &Stream, bytes: u64) -> Result<Buffer<u8>> {
        // More than the host can address is more than any device has.
        stream.alloc(usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    #[inline]
    fn free(&self, block: Buffer<u8>) -> Result<()> {
        drop(block);
        Ok(())
    }

    #[inline]
    fn record_use(&self, block: &mut Buffer<u8>, stream: &Stream) -> Result<()> {
        block.record_use(stream)
    }

    fn wait(&self, waiter: &Stream, signaller: &Stream) -> Result<()> {
        own_wait(|| waiter.wait(signaller))
    }

    fn is_no_memory(error: &Error) -> bool {
        match error {
            Error::OutOfMemory(_) | Error::TooLarge { .. } | Error::TooManyBlocks { .. } => true,
            Error::Driver(cause) => cause.out_of_memory,
            _ => false,
        }
    }

    fn address(block: &Buffer<u8>) -> u64 {
        block.address()
    }

    fn bytes(block: &Buffer<u8>) -> u64 {
        block.bytes()
    }

    fn granted_bytes(block: &Buffer<u8>) -> Option<u64> {
        Some(block.granted_bytes())
    }

    fn begin_step(&self) {
        self.pool.begin_step();
    }

    fn reading(&self) -> Reading {
        self.driver.reading()
    }

    fn stop_timing(&self) {
        self.driver.stop_timing();
    }

    fn figures(&self) -> Result<Figures> {
        let stats = self.pool.stats();
        let hits = &stats.hits;
        Ok(Figures {
            peak_reserved: stats.devices.iter().map(|device| device.peak_reserved_bytes).collect(),
            hits: Some(Hits {
                thread: hits.thread,
                stream: hits.stream,
                shard: hits.shard,
                planned: hits.planned,
                heap: hits.heap,
            }),
            ladder: Some(Ladder::of(&stats)),
            cross_stream_hits: Some(stats.cross_stream.hits),
            bookkeeping_bytes: Some(stats.bookkeeping_bytes),
            release_threshold: None,
        })
    }
}
