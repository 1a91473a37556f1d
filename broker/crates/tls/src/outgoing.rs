//! The buffer that records are made in.

/// Bytes for a socket. Its memory is written once and used again and again: one for all connections of a thread.
#[derive(Debug, Default)]
pub struct Outgoing {
    bytes: Vec<u8>,
    filled: usize,
}

impl Outgoing {
    /// What has been put in since the last [`Outgoing::clear`].
    pub fn filled(&self) -> &[u8] {
        self.bytes.get(..self.filled).unwrap_or_default()
    }

    /// Returns true if nothing waits to be sent.
    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Forgets the content and keeps the memory.
    pub fn clear(&mut self) {
        self.filled = 0;
    }

    /// Room of at least this many bytes behind what is filled.
    pub(crate) fn room(&mut self, wanted: usize) -> &mut [u8] {
        let end = self.filled + wanted;
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes.get_mut(self.filled..).unwrap_or_default()
    }

    /// The first `count` bytes of the room are filled now.
    pub(crate) fn fill(&mut self, count: usize) {
        self.filled = (self.filled + count).min(self.bytes.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_filled_step_by_step_and_used_again() {
        let mut out = Outgoing::default();
        assert!(out.is_empty());
        out.room(3)[..2].copy_from_slice(b"ab");
        out.fill(2);
        assert!(out.room(5).len() >= 5);
        out.room(5)[..1].copy_from_slice(b"c");
        out.fill(1);
        assert_eq!(out.filled(), b"abc");
        out.fill(1000);
        assert_eq!(out.filled().len(), 7, "never beyond what there is");
        out.clear();
        assert_eq!(out.filled(), b"");
    }
}
