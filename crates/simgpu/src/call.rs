//! The calls of the simulated driver, and how often each was made.

use std::ops::Sub;

macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// A kind of call. Several functions of [`Sim`](crate::Sim) can be of one kind.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Call {
            $($(#[$doc])* $name,)*
        }

        impl Call {
            /// Every kind, in the order of the declaration.
            pub const ALL: &'static [Call] = &[$(Call::$name,)*];

            /// The name of the nearest function of the CUDA driver API.
            pub const fn name(self) -> &'static str {
                match self { $(Call::$name => $text,)* }
            }
        }
    };
}

calls! {
    /// Plain allocation of device memory.
    Alloc = "cuMemAlloc",
    /// Release of a plain allocation; drains the device.
    Free = "cuMemFree",
    /// Creation of a page of physical memory.
    Create = "cuMemCreate",
    /// Mapping of a page at an address.
    Map = "cuMemMap",
    /// Granting access to mapped memory.
    SetAccess = "cuMemSetAccess",
    /// Removal of whole mappings.
    Unmap = "cuMemUnmap",
    /// Release of a page's handle.
    Release = "cuMemRelease",
    /// Reservation of addresses.
    Reserve = "cuMemAddressReserve",
    /// Return of reserved addresses.
    Unreserve = "cuMemAddressFree",
    /// Creation of an event.
    EventCreate = "cuEventCreate",
    /// Destruction of an event.
    EventDestroy = "cuEventDestroy",
    /// Recording of an event on a stream.
    EventRecord = "cuEventRecord",
    /// Question whether an event is done.
    EventQuery = "cuEventQuery",
    /// A stream told to wait for an event.
    StreamWait = "cuStreamWaitEvent",
    /// Creation of a stream.
    StreamCreate = "cuStreamCreate",
    /// Destruction of a stream.
    StreamDestroy = "cuStreamDestroy",
    /// A host wait: for an event, a stream or a device.
    Sync = "cuCtxSynchronize",
    /// Work of the program's own on a stream, content checks included.
    Launch = "cuLaunchKernel",
    /// A fill on a stream.
    Fill = "cuMemsetAsync",
    /// A copy on a stream, to and from the host included.
    Copy = "cuMemcpyAsync",
    /// One participant of a rendezvous.
    Rendezvous = "ncclAllReduce",
    /// Permission for a device to use plain allocations of another.
    PeerAccess = "cuCtxEnablePeerAccess",
    /// Question for free and total memory.
    MemoryInfo = "cuMemGetInfo",
}

impl Call {
    pub(crate) const COUNT: usize = Self::ALL.len();

    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}

/// How often each call was made, per device. Calls that failed by injection count; calls refused
/// for a handle or a device that does not exist do not.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Counters {
    devices: Vec<[u64; Call::COUNT]>,
}

impl Counters {
    pub(crate) fn new(devices: Vec<[u64; Call::COUNT]>) -> Self {
        Self { devices }
    }

    /// Calls of one kind on all devices.
    pub fn get(&self, call: Call) -> u64 {
        self.devices.iter().map(|counts| counts[call.index()]).sum()
    }

    /// Calls of one kind on one device; 0 where there is no such device.
    pub fn on(&self, device: u16, call: Call) -> u64 {
        self.devices.get(usize::from(device)).map_or(0, |counts| counts[call.index()])
    }

    /// Calls of any kind on all devices.
    pub fn total(&self) -> u64 {
        self.devices.iter().flatten().sum()
    }

    /// Number of devices counted.
    pub fn devices(&self) -> u16 {
        self.devices.len() as u16
    }
}

/// Calls made since an earlier snapshot. A later one subtracted from an earlier one gives zeros.
impl Sub<&Counters> for &Counters {
    type Output = Counters;

    fn sub(self, earlier: &Counters) -> Counters {
        let mut devices = self.devices.clone();
        for (now, then) in devices.iter_mut().zip(&earlier.devices) {
            for (now, then) in now.iter_mut().zip(then) {
                *now = now.saturating_sub(*then);
            }
        }
        Counters { devices }
    }
}

/// See the subtraction of references.
impl Sub for Counters {
    type Output = Counters;

    fn sub(self, earlier: Counters) -> Counters {
        &self - &earlier
    }
}
