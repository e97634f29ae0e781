//! A driver for models: streams as logs of what they were given, and how far the device has come.
//!
//! Submissions are linearised by a lock, as in any driver; that lock is loom's, so it orders the
//! pool's accesses as a real one would. A record remembers its place in the log, a wait what its
//! event stood for when it was submitted, and an event that was never recorded is done. The device
//! makes progress when a model says so.

use loom::sync::Mutex;
use millpond::driver::{
    DeviceId, DeviceInfo, Driver, DriverResult, EventHandle, PageHandle, StreamHandle,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// What a stream was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Work(u32),
    Record,
    /// Runs after the first so many operations of a stream.
    Wait(usize, usize),
}

#[derive(Debug, Default)]
struct Queue {
    ops: Vec<Op>,
    /// Operations done.
    done: usize,
    destroyed: bool,
    captures: bool,
}

#[derive(Debug, Default)]
struct State {
    streams: Vec<Queue>,
    /// By event: the stream and the number of its operations that the last record stands for.
    events: Vec<Option<(usize, usize)>>,
    pages: u64,
    /// What is mapped where.
    mappings: BTreeMap<u64, PageHandle>,
    /// Work that touches memory through a mapping.
    touches: Vec<(u64, StreamHandle, u32)>,
    /// The device does at once whatever it is given.
    keeps_up: bool,
}

impl State {
    fn stream(&mut self, handle: StreamHandle) -> &mut Queue {
        let queue = &mut self.streams[handle.0 as usize];
        assert!(!queue.destroyed, "a submission to a destroyed stream");
        assert!(!queue.captures, "a submission to a stream that captures");
        queue
    }

    fn event(&self, event: EventHandle) -> Option<(usize, usize)> {
        self.events[event.0 as usize - 1]
    }

    fn is_done(&self, event: EventHandle) -> bool {
        // Never recorded: done, as real drivers say.
        self.event(event).is_none_or(|(stream, upto)| self.streams[stream].done >= upto)
    }

    fn position(&self, stream: StreamHandle, work: u32) -> usize {
        let ops = &self.streams[stream.0 as usize].ops;
        ops.iter().position(|&op| op == Op::Work(work)).expect("work that was submitted")
    }
}

/// The model driver: one device.
#[derive(Debug, Default)]
pub struct ModelDriver(Mutex<State>);

impl ModelDriver {
    /// Page size, and the unit of the model's memory.
    pub const PAGE: u64 = 1 << 20;

    fn with<R>(&self, body: impl FnOnce(&mut State) -> R) -> R {
        body(&mut self.0.lock().unwrap())
    }

    /// Gives `stream` work, known by a number of its own.
    pub fn work(&self, stream: StreamHandle, work: u32) {
        self.with(|state| state.stream(stream).ops.push(Op::Work(work)));
    }

    /// The stream begins to capture, or ends it: nothing may be submitted to it meanwhile.
    pub fn capture(&self, stream: StreamHandle, on: bool) {
        self.with(|state| state.streams[stream.0 as usize].captures = on);
    }

    /// From now on the device does at once whatever it is given to record.
    pub fn keep_up(&self) {
        self.with(|state| state.keeps_up = true);
    }

    /// The device does what `stream` was given so far, up to the first wait that still holds it.
    pub fn run(&self, stream: StreamHandle) {
        self.with(|state| {
            let stream = stream.0 as usize;
            while let Some(&op) = state.streams[stream].ops.get(state.streams[stream].done) {
                if let Op::Wait(other, upto) = op
                    && state.streams[other].done < upto
                {
                    break;
                }
                state.streams[stream].done += 1;
            }
        });
    }

    /// Whether `stream` has done the work.
    pub fn is_done(&self, stream: StreamHandle, work: u32) -> bool {
        self.with(|state| state.position(stream, work) < state.streams[stream.0 as usize].done)
    }

    /// Whether the work is ordered before whatever `to` is given from now on.
    pub fn ordered(&self, stream: StreamHandle, work: u32, to: StreamHandle) -> bool {
        self.with(|state| {
            let position = state.position(stream, work);
            let mut reach = vec![0; state.streams.len()];
            reach[to.0 as usize] = state.streams[to.0 as usize].ops.len();
            let mut changed = true;
            while changed {
                changed = false;
                for (at, queue) in state.streams.iter().enumerate() {
                    for op in &queue.ops[..reach[at]] {
                        if let Op::Wait(other, upto) = *op
                            && reach[other] < upto
                        {
                            reach[other] = upto;
                            changed = true;
                        }
                    }
                }
            }
            let stream = stream.0 as usize;
            position < reach[stream] || position < state.streams[stream].done
        })
    }

    /// Says that `work` touches the page at an address.
    pub fn touch(&self, stream: StreamHandle, work: u32, at: u64) {
        self.with(|state| state.touches.push((at, stream, work)));
    }

    /// The page behind an address.
    pub fn page_at(&self, address: u64) -> Option<PageHandle> {
        self.with(|state| state.mappings.get(&(address / Self::PAGE * Self::PAGE)).copied())
    }

    /// Whether a stream was destroyed.
    pub fn is_destroyed(&self, stream: StreamHandle) -> bool {
        self.with(|state| state.streams[stream.0 as usize].destroyed)
    }

    /// Events ever created.
    pub fn events(&self) -> usize {
        self.with(|state| state.events.len())
    }

    /// Pages taken and not given back.
    pub fn pages(&self) -> u64 {
        self.with(|state| state.pages)
    }
}

impl Driver for ModelDriver {
    fn name(&self) -> &'static str {
        "model"
    }

    fn device_count(&self) -> u16 {
        1
    }

    fn device(&self, _: DeviceId) -> DriverResult<DeviceInfo> {
        let (memory_bytes, granularity) = (2 * Self::PAGE, Self::PAGE);
        Ok(DeviceInfo { name: "model".to_owned(), memory_bytes, granularity, virtual_memory: true })
    }

    fn device_of_context(&self, _: u64) -> Option<DeviceId> {
        None
    }

    fn check_stream(&self, _: DeviceId, _: StreamHandle) -> DriverResult<()> {
        Ok(())
    }

    fn create_stream(&self, _: DeviceId) -> DriverResult<StreamHandle> {
        Ok(self.with(|state| {
            state.streams.push(Queue::default());
            StreamHandle(state.streams.len() as u64 - 1)
        }))
    }

    fn destroy_stream(&self, _: DeviceId, stream: StreamHandle) -> DriverResult<()> {
        self.with(|state| {
            let queue = &mut state.streams[stream.0 as usize];
            assert!(!queue.destroyed, "a stream destroyed twice");
            queue.destroyed = true;
        });
        Ok(())
    }

    fn create_event(&self, _: DeviceId) -> DriverResult<EventHandle> {
        Ok(self.with(|state| {
            state.events.push(None);
            EventHandle(state.events.len() as u64)
        }))
    }

    fn destroy_event(&self, _: DeviceId, _: EventHandle) -> DriverResult<()> {
        Ok(())
    }

    fn record(&self, _: DeviceId, event: EventHandle, stream: StreamHandle) -> DriverResult<()> {
        self.with(|state| {
            let queue = state.stream(stream);
            queue.ops.push(Op::Record);
            let upto = queue.ops.len();
            state.events[event.0 as usize - 1] = Some((stream.0 as usize, upto));
            if state.keeps_up {
                state.streams[stream.0 as usize].done = upto;
            }
        });
        Ok(())
    }

    fn query(&self, _: DeviceId, event: EventHandle) -> DriverResult<bool> {
        Ok(self.with(|state| state.is_done(event)))
    }

    fn wait(&self, _: DeviceId, stream: StreamHandle, event: EventHandle) -> DriverResult<()> {
        self.with(|state| {
            if let Some((other, upto)) = state.event(event) {
                state.stream(stream).ops.push(Op::Wait(other, upto));
            }
        });
        Ok(())
    }

    fn synchronize(&self, device: DeviceId, event: EventHandle, _: Duration) -> DriverResult<bool> {
        // Models have no clock: a wait on the host times out at once.
        self.query(device, event)
    }

    fn copy(&self, _: DeviceId, _: StreamHandle, _: u64, _: u64, _: u64) -> DriverResult<()> {
        unreachable!("memory has no contents here")
    }

    fn reserve(&self, _: DeviceId, _: u64) -> DriverResult<u64> {
        Ok(Self::PAGE)
    }

    fn unreserve(&self, _: DeviceId, _: u64, _: u64) -> DriverResult<()> {
        Ok(())
    }

    fn create_page(&self, _: DeviceId, _: u64) -> DriverResult<PageHandle> {
        Ok(self.with(|state| {
            state.pages += 1;
            PageHandle(state.pages)
        }))
    }

    fn release_page(&self, _: DeviceId, _: PageHandle) -> DriverResult<()> {
        self.with(|state| state.pages -= 1);
        Ok(())
    }

    fn map(&self, _: DeviceId, at: u64, _: u64, page: PageHandle) -> DriverResult<()> {
        self.with(|state| {
            let before = state.mappings.insert(at, page);
            assert_eq!(before, None, "mapped over a mapping");
        });
        Ok(())
    }

    fn set_access(&self, _: DeviceId, _: u64, _: u64, _: &[DeviceId]) -> DriverResult<()> {
        Ok(())
    }

    fn unmap(&self, _: DeviceId, at: u64, bytes: u64) -> DriverResult<()> {
        self.with(|state| {
            for at in (at..at + bytes).step_by(Self::PAGE as usize) {
                assert!(state.mappings.remove(&at).is_some(), "nothing is mapped there");
                for &(touched, stream, work) in &state.touches {
                    let done = state.position(stream, work) < state.streams[stream.0 as usize].done;
                    assert!(touched != at || done, "unmapped under work in flight");
                }
            }
        });
        Ok(())
    }

    fn allocate(&self, _: DeviceId, _: u64) -> DriverResult<u64> {
        unreachable!("the device has virtual memory")
    }

    fn free(&self, _: DeviceId, _: u64) -> DriverResult<()> {
        unreachable!("the device has virtual memory")
    }

    fn enable_peer(&self, _: DeviceId, _: DeviceId) -> DriverResult<()> {
        Ok(())
    }
}
