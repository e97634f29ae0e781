//! Rendezvous: operations that run on several streams together or not at all, as collectives do.

use std::sync::{Arc, Mutex};

use crate::oracle::{Clock, StreamKey};
use crate::sync::lock;

/// One stream's part in a rendezvous.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// Serial number of the stream.
    pub stream: u32,
    /// What the race oracle knows of it at its joining, with the oracle on.
    pub known: Option<(StreamKey, Clock)>,
}

/// A rendezvous, as the queues of its streams hold it.
#[derive(Debug)]
pub(crate) struct Party {
    size: usize,
    parts: Mutex<Vec<Part>>,
}

impl Party {
    pub(crate) fn new(size: usize) -> Self {
        Self { size, parts: Mutex::default() }
    }

    /// Adds a part; says whether it was the last, or why it cannot be.
    pub(crate) fn join(&self, part: Part) -> Result<bool, &'static str> {
        let mut parts = lock(&self.parts);
        if parts.len() == self.size {
            return Err("all parts of the rendezvous have been submitted");
        }
        if parts.iter().any(|there| there.stream == part.stream) {
            return Err("the stream takes part in the rendezvous already");
        }
        parts.push(part);
        Ok(parts.len() == self.size)
    }

    pub(crate) fn is_complete(&self) -> bool {
        lock(&self.parts).len() == self.size
    }

    pub(crate) fn streams(&self) -> Vec<u32> {
        lock(&self.parts).iter().map(|part| part.stream).collect()
    }

    pub(crate) fn parts(&self) -> Vec<Part> {
        lock(&self.parts).clone()
    }
}

/// A rendezvous whose parts are submitted one at a time, as the launches of a collective are by
/// programs that do not group them.
///
/// In between, other operations can come: this is how a stream that waits for a late event, or two
/// collectives launched in different orders, deadlock. See [`Sim::join`](crate::Sim::join).
#[derive(Clone, Debug)]
pub struct Meeting(pub(crate) Arc<Party>);
