//! Driver calls by kind, as both commands report them.

use millpond_simgpu::Call;
use serde::Serialize;

/// Calls by kind.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct DriverCalls {
    pub alloc: u64,
    pub free: u64,
    pub create: u64,
    pub map: u64,
    pub set_access: u64,
    pub unmap: u64,
    pub release: u64,
    pub event_record: u64,
    pub event_query: u64,
    pub stream_wait: u64,
    pub sync: u64,
}

impl DriverCalls {
    /// The calls that `count` tells for each kind.
    pub fn counted(count: impl Fn(Call) -> u64) -> Self {
        Self {
            alloc: count(Call::Alloc),
            free: count(Call::Free),
            create: count(Call::Create),
            map: count(Call::Map),
            set_access: count(Call::SetAccess),
            unmap: count(Call::Unmap),
            release: count(Call::Release),
            event_record: count(Call::EventRecord),
            event_query: count(Call::EventQuery),
            stream_wait: count(Call::StreamWait),
            sync: count(Call::Sync),
        }
    }

    /// Calls that take, map or give back memory.
    pub fn memory(&self) -> u64 {
        let Self { alloc, free, create, map, set_access, unmap, release, .. } = *self;
        alloc + free + create + map + set_access + unmap + release
    }

    /// Calls about events.
    pub fn events(&self) -> u64 {
        self.event_record + self.event_query + self.stream_wait
    }
}
