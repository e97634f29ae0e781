//! From operations back to lines, in a few words for a whole file.
//!
//! Operations mostly stand on consecutive lines, so only the breaks are kept. Invariant: in
//! `breaks`, indices and lines both ascend, and operation `i` stands on line
//! `line + (i - index)` of the last break with `index <= i`.

/// The lines of operations `0..len`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LineMap {
    /// Where a run of consecutive lines begins: operation and line.
    breaks: Vec<(usize, u64)>,
    len: usize,
}

impl LineMap {
    /// Appends the next operation's line.
    pub(crate) fn push(&mut self, line: u64) {
        if self.project(self.len) != Some(line) {
            self.breaks.push((self.len, line));
        }
        self.len += 1;
    }

    /// The line of an operation.
    pub(crate) fn line(&self, index: usize) -> Option<u64> {
        (index < self.len).then(|| self.project(index)).flatten()
    }

    fn project(&self, index: usize) -> Option<u64> {
        let after = self.breaks.partition_point(|&(start, _)| start <= index);
        let (start, line) = *self.breaks.get(after.checked_sub(1)?)?;
        line.checked_add((index - start) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_across_gaps() {
        let lines = [4, 5, 6, 9, 11, 12, 13];
        let mut map = LineMap::default();
        for line in lines {
            map.push(line);
        }
        assert_eq!(map.breaks.len(), 3);
        for (index, line) in lines.into_iter().enumerate() {
            assert_eq!(map.line(index), Some(line));
        }
        assert_eq!(map.line(lines.len()), None);
        assert_eq!(LineMap::default().line(0), None);
    }
}
