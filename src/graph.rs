//! The memory of captured graphs.

use crate::block::StreamId;
use crate::core::Handle;
use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::stream::Stream;
use crate::sync::{Arc, Mutex, lock};
use std::fmt;

/// The private memory of captured graphs.
///
/// A graph replays what a stream was given while it captured, with the addresses that it was given
/// then. So memory that is allocated during a capture must serve nothing else as long as the graph can
/// be launched: it belongs to a `GraphMemory`, which the caller keeps beside the executable graph, and
/// drops after it. Until then it stays reserved and mapped where it is.
///
/// ```ignore
/// let memory = pool.graph_memory()?;
/// let capture = memory.capture(&ours)?;                 // `ours` is the pool's stream of cudarc's `stream`
/// stream.begin_capture(CU_STREAM_CAPTURE_MODE_GLOBAL)?; // in any mode: the pool's calls disturb none
/// let mut scratch: Buffer<f32> = ours.alloc(n)?;        // the graph's own
/// // ... launches on `stream` that use it ...
/// drop(scratch);                                        // serves the rest of the capture
/// let graph = stream.end_capture(flags)?;
/// drop(capture);
/// // ... launches of the graph ...
/// drop((graph, memory));                                // in this order
/// ```
///
/// What the graph works on from launch to launch, its inputs and results, is best allocated before the
/// capture. Slices (`millpond::interop`, with the CUDA driver) may be made, used and dropped within a
/// capture as buffers may; `Buffer::into_cuda_slice` takes no graph's memory.
///
/// Within a capture memory is reused as outside of it: what was freed on a stream serves that stream
/// again. Streams that join the capture are captured each by a call of their own, before they join;
/// between them memory is not reused. Several captures may share one memory, and then do share it:
/// their graphs must be launched one after the other, in the order in which they were captured.
///
/// A graph may be launched on any stream of the pool that belongs to a device it was captured on. Its
/// memory is given to others when all that these have been given before the drop is done. Launches on
/// other streams must be over before.
#[derive(Clone)]
pub struct GraphMemory(Arc<Inner>);

struct Inner {
    core: Handle,
    /// The streams that captured, and those that their memory belongs to.
    domains: Mutex<Vec<(StreamId, Stream)>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.core.is_forked() {
            return;
        }
        let domains = lock(&self.domains);
        let mut devices: Vec<_> = domains.iter().map(|(_, domain)| domain.device()).collect();
        devices.sort_unstable();
        devices.dedup();
        for (_, domain) in domains.iter() {
            self.core.fences.graph_ran_on(domain.id(), &devices);
        }
    }
}

/// A stream's capture, as far as the pool is concerned: it ends when this is dropped.
///
/// Meanwhile the pool records nothing on the stream, makes it wait for nothing, and gives no memory
/// back to the driver; [`Stream::wait`] with the stream is refused. Memory that was freed on it before
/// serves others again after the capture.
#[must_use = "the capture is over when this is dropped"]
pub struct Capture {
    stream: Stream,
    _memory: GraphMemory,
}

impl Pool {
    /// Private memory for graphs that are to be captured.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn graph_memory(&self) -> Result<GraphMemory> {
        self.core().check_process()?;
        let domains = Mutex::new(Vec::new());
        Ok(GraphMemory(Arc::new(Inner { core: self.core().clone(), domains })))
    }
}

impl GraphMemory {
    /// Says that `stream` is about to capture: what is allocated on it until the returned [`Capture`] is
    /// dropped comes from this memory. Waits for other threads that are recording on the stream. For
    /// buffers of this memory [`crate::Buffer::stream`] names a stream of the memory's own: what uses them
    /// outside of the graph's launches, on `stream` as on others, is declared by
    /// [`crate::Buffer::record_use`].
    ///
    /// # Errors
    /// [`Error::ForeignStream`]; [`Error::Capturing`] when it does so already;
    /// [`Error::TooManyStreams`], [`Error::Forked`], or a driver error.
    pub fn capture(&self, stream: &Stream) -> Result<Capture> {
        let core = &self.0.core;
        core.check_process()?;
        if !stream.is_of(core) {
            return Err(Error::ForeignStream { stream: stream.id() });
        }
        let domain = self.domain(stream)?;
        if !core.fences.begin_capture(stream.id()) {
            return Err(Error::Capturing { stream: stream.id() });
        }
        stream.serve_as(domain);
        Ok(Capture { stream: stream.clone(), _memory: self.clone() })
    }

    /// The stream that stands for the memory of what `stream` captures.
    fn domain(&self, stream: &Stream) -> Result<StreamId> {
        let mut domains = lock(&self.0.domains);
        if let Some((_, domain)) = domains.iter().find(|(of, _)| *of == stream.id()) {
            return Ok(domain.id());
        }
        // It is given no work; its end waits for everybody's, which takes a handle.
        let domain = Stream::create(&self.0.core, stream.device())?;
        let id = domain.id();
        self.0.core.fences.devote_to_graph(id);
        domains.push((stream.id(), domain));
        Ok(id)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let core = self.stream.core();
        if !core.is_forked() {
            self.stream.serve_as(self.stream.id());
            core.fences.end_capture(self.stream.id());
        }
    }
}

impl Capture {
    /// The stream.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }
}

impl fmt::Debug for GraphMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GraphMemory").finish_non_exhaustive()
    }
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Capture").field(&self.stream).finish()
    }
}
