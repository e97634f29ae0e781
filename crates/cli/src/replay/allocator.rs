//! What a replay asks of whoever serves memory.

use super::life::Life;
use super::record::{BucketRecord, Hits, Ladder, MergingRecord, MovesRecord};
use crate::gpus::Reading;
use millpond::DeviceId;

/// An allocator of stream-ordered device memory: the pool, or one that it is compared with.
///
/// The loop that is timed is generic over it, so that nothing stands between it and the calls.
pub(super) trait Allocator: Send + Sync + 'static {
    type Stream: Send;
    type Block: Send;
    type Error: std::error::Error + Send + Sync + 'static;

    /// A new stream of a device.
    fn stream(&self, device: DeviceId) -> Result<Self::Stream, Self::Error>;
    /// The device of a stream.
    fn device(stream: &Self::Stream) -> DeviceId;
    /// The driver's handle of a stream.
    fn handle(stream: &Self::Stream) -> u64;

    fn alloc(
        &self,
        stream: &Self::Stream,
        bytes: u64,
        life: Life,
    ) -> Result<Self::Block, Self::Error>;
    fn free(&self, block: Self::Block) -> Result<(), Self::Error>;
    /// `stream` uses the block until it is freed.
    fn record_use(&self, block: &mut Self::Block, stream: &Self::Stream)
    -> Result<(), Self::Error>;
    /// A wait of the trace's own: later work of `waiter` comes after all that `signaller` was given.
    fn wait(&self, waiter: &Self::Stream, signaller: &Self::Stream) -> Result<(), Self::Error>;
    /// Whether an allocation failed for want of memory.
    fn is_no_memory(error: &Self::Error) -> bool;

    /// Calls `work` with the address that work on `stream` may use meanwhile.
    fn used_on<R>(
        block: &Self::Block,
        stream: &Self::Stream,
        work: impl FnOnce(u64) -> R,
    ) -> Result<R, Self::Error>;
    fn bytes(block: &Self::Block) -> u64;
    /// With what was granted beyond the request, as far as it is known.
    fn granted_bytes(block: &Self::Block) -> Option<u64>;

    /// A step of the program begins.
    fn begin_step(&self) {}
    /// A place in a step where blocks may move: copies run on these streams.
    fn step_gap(&self, _: &[Self::Stream]) -> Result<(), Self::Error> {
        Ok(())
    }
    /// Physical bytes of a device that are held, if that is known at once.
    fn reserved(&self, _device: u16) -> u64 {
        0
    }

    /// What the counters of driver calls show.
    fn reading(&self) -> Reading;
    /// Times of driver calls are of no more interest.
    fn stop_timing(&self);
    /// More of a device is live than ever before. Not timed.
    fn at_peak(&self, _device: u16) {}
    /// What is known of the replay so far.
    fn figures(&self) -> Result<Figures, Self::Error>;
}

/// What an allocator knows of a replay; of itself, where it tells.
pub(super) struct Figures {
    /// By device.
    pub peak_reserved: Vec<u64>,
    pub hits: Option<Hits>,
    pub ladder: Option<Ladder>,
    pub buckets: Option<Vec<BucketRecord>>,
    pub merging: Option<MergingRecord>,
    pub moves: Option<MovesRecord>,
    /// Blocks that one stream got from another.
    pub cross_stream_hits: Option<u64>,
    pub bookkeeping_bytes: Option<u64>,
    /// Idle bytes above which the driver's own pool gives memory back.
    pub release_threshold: Option<u64>,
}
