//! The header: `key=value` pairs in the order of the file.

/// The `# key=value` lines above the first operation, in order. A key may recur.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Header {
    entries: Vec<(String, String)>,
    /// Of all entries, [`Header::ENTRY`] included.
    bytes: usize,
}

impl Header {
    /// The most bytes that key and value may have together.
    pub const MAX_LEN: usize = 4096;

    /// The most bytes that all entries may have together, [`Header::ENTRY`] for each counted in: what
    /// a reader has to keep of a few kilobytes that decompress to no end of entries.
    pub const MAX_TOTAL: usize = 1 << 20;

    /// What an entry counts for beside its key and value.
    pub const ENTRY: usize = 64;

    /// An empty header.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends an entry, without the blanks around the value. Returns whether it was appended: a
    /// key must be one word without `=`, neither part may hold control characters, both together
    /// must not exceed [`Header::MAX_LEN`] bytes, nor all entries [`Header::MAX_TOTAL`].
    #[must_use = "an entry that does not fit the format is not appended"]
    pub fn push(&mut self, key: &str, value: &str) -> bool {
        let value = value.trim();
        let fits = Self::is_key(key)
            && !key.contains(char::is_control)
            && !value.contains(char::is_control)
            && key.len() + value.len() <= Self::MAX_LEN
            && self.has_room(key, value);
        if fits {
            self.bytes += Self::ENTRY + key.len() + value.len();
            self.entries.push((key.to_owned(), value.to_owned()));
        }
        fits
    }

    /// The value of the first entry with this key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.iter().find(|(k, _)| *k == key).map(|(_, v)| v)
    }

    /// All entries, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.entries.iter().map(|(k, v)| (k.as_str(), v.as_str()))
    }

    /// How many entries there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether an entry stays within [`Header::MAX_TOTAL`].
    pub(crate) fn has_room(&self, key: &str, value: &str) -> bool {
        self.bytes + Self::ENTRY + key.len() + value.len() <= Self::MAX_TOTAL
    }

    /// Whether the text before a comment's first `=` makes it a header entry rather than prose.
    pub(crate) fn is_key(key: &str) -> bool {
        !key.is_empty() && !key.contains(|c: char| c.is_whitespace() || c == '=')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_order_and_repeats() {
        let mut header = Header::new();
        assert!(header.push("b", " 1 2 "));
        assert!(header.push("a", ""));
        assert!(header.push("b", "x=y"));
        let entries: Vec<_> = header.iter().collect();
        assert_eq!(entries, [("b", "1 2"), ("a", ""), ("b", "x=y")]);
        assert_eq!(header.get("b"), Some("1 2"));
        assert_eq!(header.get("c"), None);
    }

    #[test]
    fn refuses_what_would_not_read_back() {
        let mut header = Header::new();
        let long = "v".repeat(Header::MAX_LEN);
        for (key, value) in [
            ("", "v"),
            ("two words", "v"),
            ("k=", "v"),
            ("k\u{7}", "v"),
            ("k", "a\nb"),
            ("k", &long),
        ] {
            assert!(!header.push(key, value), "{key:?} {value:?}");
        }
        assert!(header.is_empty());
    }

    #[test]
    fn has_an_end() {
        let mut header = Header::new();
        let entries = Header::MAX_TOTAL / (Header::ENTRY + 2);
        assert!((0..entries).all(|_| header.push("k", "v")));
        assert!(!header.push("k", "v"));
        assert_eq!(header.len(), entries);
    }
}
