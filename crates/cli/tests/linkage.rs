//! The command asks for no CUDA when it is loaded: it runs where there is none.
#![cfg(all(target_os = "linux", target_pointer_width = "64", target_endian = "little"))]

use std::ops::Range;

/// The parts of an ELF file that say what it needs.
struct Elf(Vec<u8>);

/// Kinds of sections.
const DYNAMIC: u64 = 6;
const DYNAMIC_SYMBOLS: u64 = 11;
/// An entry of the dynamic section.
const NEEDED: u64 = 1;

impl Elf {
    fn number(&self, at: usize, bytes: usize) -> u64 {
        let mut number = [0; 8];
        number[..bytes].copy_from_slice(&self.0[at..at + bytes]);
        u64::from_le_bytes(number)
    }

    /// A section header's kind, its link, and where the section lies.
    fn section(&self, nth: usize) -> (u64, usize, Range<usize>) {
        let (table, size) = (self.number(0x28, 8) as usize, self.number(0x3a, 2) as usize);
        let at = table + nth * size;
        let (from, len) = (self.number(at + 0x18, 8) as usize, self.number(at + 0x20, 8) as usize);
        (self.number(at + 4, 4), self.number(at + 0x28, 4) as usize, from..from + len)
    }

    /// The section of a kind, with the strings that it refers to.
    fn find(&self, kind: u64) -> (Range<usize>, Range<usize>) {
        let all = (0..self.number(0x3c, 2) as usize).map(|nth| self.section(nth));
        let mut found = all.filter(|&(is, ..)| is == kind);
        let (_, link, section) = found.next().expect("such a section");
        (section, self.section(link).2)
    }

    fn text(&self, strings: &Range<usize>, offset: u64) -> String {
        let text = &self.0[strings.start + offset as usize..strings.end];
        String::from_utf8_lossy(text.split(|&byte| byte == 0).next().unwrap_or(text)).into_owned()
    }

    /// Libraries that must be there when the program is loaded.
    fn needed(&self) -> Vec<String> {
        let (section, strings) = self.find(DYNAMIC);
        let entries = section.step_by(16).filter(|&at| self.number(at, 8) == NEEDED);
        entries.map(|at| self.text(&strings, self.number(at + 8, 8))).collect()
    }

    /// Symbols that they must have.
    fn undefined(&self) -> Vec<String> {
        let (section, strings) = self.find(DYNAMIC_SYMBOLS);
        let symbols = section.step_by(24).filter(|&at| self.number(at + 6, 2) == 0);
        symbols.map(|at| self.text(&strings, self.number(at, 4))).collect()
    }
}

#[test]
fn nothing_of_cuda_is_linked() {
    let program = std::fs::read(env!("CARGO_BIN_EXE_millpond")).expect("the command");
    assert_eq!(program[..5], *b"\x7fELF\x02", "a 64-bit program");
    let program = Elf(program);
    let (needed, undefined) = (program.needed(), program.undefined());
    // That they are read at all.
    assert!(needed.iter().any(|name| name.starts_with("libc.")), "{needed:?}");
    assert!(undefined.iter().any(|name| name == "dlopen" || name == "malloc"), "{undefined:?}");

    let of_cuda = |name: &&String| {
        let library = name.starts_with("libcu") || name.starts_with("libnv");
        let rest = name.strip_prefix("cuda").or_else(|| name.strip_prefix("cu"));
        library || rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
    };
    let found: Vec<_> = needed.iter().chain(&undefined).filter(of_cuda).collect();
    assert!(found.is_empty(), "{found:?}");
}
