//! A block of the pool in the hands of a stress run: what it holds, and who has to check it.

use millpond::{Buffer, Error, Pool, Result, Stream};

/// A block, with the pattern that fills it.
///
/// It is checked on its `home` stream before it is freed, on the device's own time: the host never
/// waits for the answer.
#[derive(Debug)]
pub(super) struct Block {
    pub memory: Memory,
    pub bytes: u64,
    pub pattern: u64,
    pub device: usize,
    /// Where its last check goes, after everything that writes to it; `None` once that is submitted.
    pub home: Option<Stream>,
    /// The thread that allocated it.
    pub born: usize,
}

/// Both ways of holding a block.
#[derive(Debug)]
pub(super) enum Memory {
    Buffer(Buffer<u8>),
    Raw(Raw),
}

/// A block known by its address.
#[derive(Debug)]
pub(super) struct Raw {
    pool: Pool,
    address: u64,
    freed: bool,
}

impl Raw {
    pub fn new(pool: &Pool, address: u64) -> Self {
        Self { pool: pool.clone(), address, freed: false }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // Only where a run was given up: everywhere else `Memory::free` came first.
        if !self.freed {
            let _ = self.pool.free(self.address);
        }
    }
}

impl Memory {
    pub fn address(&self) -> u64 {
        match self {
            Self::Buffer(buffer) => buffer.address(),
            Self::Raw(raw) => raw.address,
        }
    }

    pub fn record_use(&self, stream: &Stream) -> Result<()> {
        match self {
            Self::Buffer(buffer) => buffer.record_use(stream),
            Self::Raw(raw) => raw.pool.record_use(raw.address, stream),
        }
    }

    pub fn last_use(&self, stream: &Stream) -> Result<()> {
        match self {
            Self::Buffer(buffer) => buffer.last_use(stream),
            Self::Raw(raw) => raw.pool.last_use(raw.address, stream),
        }
    }

    /// Frees the block. By address the pool answers; a buffer cannot fail.
    pub fn free(self) -> Result<()> {
        match self {
            Self::Buffer(buffer) => {
                drop(buffer);
                Ok(())
            }
            Self::Raw(mut raw) => {
                raw.freed = true;
                raw.pool.free(raw.address)
            }
        }
    }
}

/// Ways to ask the pool for a block.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ask {
    Bytes,
    /// As eight-byte elements, if the size is a whole number of them.
    Words,
    /// Without waiting for the arena; if it is busy, with.
    Try,
    Address,
}

impl Ask {
    const ALL: [Self; 4] = [Self::Bytes, Self::Words, Self::Try, Self::Address];

    pub fn draw(rng: &mut super::rng::Rng) -> Self {
        Self::ALL[rng.below(Self::ALL.len() as u64) as usize]
    }

    /// Allocates; `busy` is called where the arena was busy.
    pub fn of(
        self,
        pool: &Pool,
        stream: &Stream,
        bytes: u64,
        busy: impl FnOnce(),
    ) -> Result<Memory> {
        let len = usize::try_from(bytes)
            .map_err(|_| Error::TooLarge { bytes, max: millpond::size::REQUEST_MAX })?;
        let buffer = match self {
            Self::Address => {
                return Ok(Memory::Raw(Raw::new(pool, pool.allocate(bytes, stream)?)));
            }
            Self::Words if len.is_multiple_of(8) => {
                let words: Buffer<u64> = stream.alloc(len / 8)?;
                match words.cast() {
                    Ok(buffer) => buffer,
                    Err(words) => return Ok(Memory::Raw(Raw::new(pool, words.into_address()))),
                }
            }
            Self::Try => match stream.try_alloc(len) {
                Err(Error::Busy { .. }) => {
                    busy();
                    stream.alloc(len)?
                }
                answer => answer?,
            },
            Self::Bytes | Self::Words => stream.alloc(len)?,
        };
        Ok(Memory::Buffer(buffer))
    }
}
