//! The pool, as a replay's allocator.

use super::allocator::{Allocator, Figures};
use super::life::Life;
use super::record::{BucketRecord, Hits, Ladder, MergingRecord, MovesRecord};
use crate::gpus::{Metered, Reading, own_wait};
use millpond::{Buffer, DeviceId, Error, Lifetime, Movable, Pool, Result, Stream};
use std::sync::Arc;

pub(super) struct PoolAllocator {
    pub driver: Arc<Metered>,
    pub pool: Pool,
    /// Whether its blocks move.
    pub moves: bool,
}

fn bucket(of: &millpond::BucketStats) -> BucketRecord {
    BucketRecord { requests: of.requests, hits: of.hits, cached_bytes: of.cached_bytes }
}

/// A block of the pool's.
pub(super) enum Block {
    Buffer(Buffer<u8>),
    Movable(Movable<u8>),
}

impl Block {
    /// The device that it is on.
    pub fn device(&self) -> DeviceId {
        match self {
            Self::Buffer(buffer) => buffer.device(),
            Self::Movable(movable) => movable.device(),
        }
    }
}

impl Allocator for PoolAllocator {
    type Stream = Stream;
    type Block = Block;
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
    fn alloc(&self, stream: &Stream, bytes: u64, life: Life) -> Result<Block> {
        // More than the host can address is more than any device has.
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        match life {
            Life::Plain => stream.alloc(len).map(Block::Buffer),
            Life::Lasting => stream.alloc_as(len, Lifetime::Persistent).map(Block::Buffer),
            Life::Movable => {
                let block = stream.alloc_movable(len)?;
                // A program writes to it: nothing is known of the work on a block never used.
                drop(block.pin(stream)?);
                Ok(Block::Movable(block))
            }
        }
    }

    #[inline]
    fn free(&self, block: Block) -> Result<()> {
        drop(block);
        Ok(())
    }

    #[inline]
    fn record_use(&self, block: &mut Block, stream: &Stream) -> Result<()> {
        match block {
            Block::Buffer(buffer) => buffer.record_use(stream),
            // What it is given up to now.
            Block::Movable(movable) => movable.pin(stream).map(drop),
        }
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

    fn used_on<R>(block: &Block, stream: &Stream, work: impl FnOnce(u64) -> R) -> Result<R> {
        match block {
            Block::Buffer(buffer) => Ok(work(buffer.address())),
            Block::Movable(movable) => Ok(work(movable.pin(stream)?.address())),
        }
    }

    fn bytes(block: &Block) -> u64 {
        match block {
            Block::Buffer(buffer) => buffer.bytes(),
            Block::Movable(movable) => movable.bytes(),
        }
    }

    fn granted_bytes(block: &Block) -> Option<u64> {
        Some(match block {
            Block::Buffer(buffer) => buffer.granted_bytes(),
            Block::Movable(movable) => millpond::size::granted(movable.bytes()),
        })
    }

    fn step_gap(&self, streams: &[Stream]) -> Result<()> {
        if !self.moves {
            return Ok(());
        }
        let mut devices = Vec::new();
        for stream in streams {
            if !devices.contains(&stream.device()) {
                devices.push(stream.device());
                self.pool.step_gap(stream)?;
            }
        }
        Ok(())
    }

    fn reserved(&self, device: u16) -> u64 {
        self.pool.reserved_bytes(DeviceId(device)).unwrap_or(0)
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
                buddy: hits.buddy,
                planned: hits.planned,
                heap: hits.heap,
            }),
            ladder: Some(Ladder::of(&stats)),
            buckets: Some(stats.buckets.iter().map(bucket).collect()),
            merging: Some(MergingRecord::of(&stats)),
            moves: Some(MovesRecord::of(&stats)),
            cross_stream_hits: Some(stats.cross_stream.hits),
            bookkeeping_bytes: Some(stats.bookkeeping_bytes),
            release_threshold: None,
        })
    }
}
