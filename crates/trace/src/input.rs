//! The bytes of a trace, decompressed where they are zstd's. What they are is told by the first
//! four of them.

use std::io::{self, BufReader, Chain, Cursor, Read};

/// Reads the decompressed bytes of `R`.
pub(crate) enum Input<R: Read> {
    Plain(Sniffed<R>),
    Zstd(zstd::stream::read::Decoder<'static, BufReader<Sniffed<R>>>),
}

/// The input, with the bytes put back that were looked at.
pub(crate) type Sniffed<R> = Chain<Cursor<Vec<u8>>, R>;

impl<R: Read> Input<R> {
    /// Looks at the first bytes and chooses.
    pub(crate) fn new(mut inner: R) -> io::Result<Self> {
        let mut head = Vec::with_capacity(MAGIC_LEN);
        inner.by_ref().take(MAGIC_LEN as u64).read_to_end(&mut head)?;
        let compressed = is_zstd(&head);
        let sniffed = Cursor::new(head).chain(inner);
        if !compressed {
            return Ok(Input::Plain(sniffed));
        }
        let buffered = BufReader::with_capacity(1 << 16, sniffed);
        Ok(Input::Zstd(zstd::stream::read::Decoder::with_buffer(buffered)?))
    }

    /// Whether the input is compressed.
    pub(crate) fn is_zstd(&self) -> bool {
        matches!(self, Input::Zstd(_))
    }
}

impl<R: Read> Read for Input<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Input::Plain(plain) => plain.read(buf),
            Input::Zstd(decoder) => decoder.read(buf),
        }
    }
}

const MAGIC_LEN: usize = 4;

/// Whether a file that begins so is zstd's: a frame, or one of the sixteen skippable frames that
/// parallel compressors put in front.
fn is_zstd(head: &[u8]) -> bool {
    let Ok(magic) = <[u8; MAGIC_LEN]>::try_from(head) else {
        return false;
    };
    let magic = u32::from_le_bytes(magic);
    magic == 0xFD2F_B528 || magic & 0xFFFF_FFF0 == 0x184D_2A50
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_zstd_by_its_magic() {
        assert!(is_zstd(&[0x28, 0xB5, 0x2F, 0xFD]));
        assert!(is_zstd(&[0x5A, 0x2A, 0x4D, 0x18]));
        assert!(!is_zstd(&[0x28, 0xB5, 0x2F]));
        assert!(!is_zstd(b"a 1 "));
        assert!(!is_zstd(b""));
    }

    #[test]
    fn puts_back_what_it_looked_at() {
        for text in ["", "a", "a 1", "a 1 ", "a 1 0 0 8\n"] {
            let mut back = String::new();
            let mut input = Input::new(text.as_bytes()).expect("a slice reads");
            assert!(!input.is_zstd());
            input.read_to_string(&mut back).expect("a slice reads");
            assert_eq!(back, text);
        }
    }
}
