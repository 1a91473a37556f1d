//! The output buffer for TLS records.

/// Bytes to send. One buffer serves all connections of a thread and keeps its memory.
#[derive(Debug, Default)]
pub struct OutgoingBytes {
    bytes: Vec<u8>,
    filled: usize,
}

impl OutgoingBytes {
    /// The bytes added since the last [`OutgoingBytes::clear`].
    pub fn filled(&self) -> &[u8] {
        self.bytes.get(..self.filled).unwrap_or_default()
    }

    /// Returns true if there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Removes the content but keeps the memory.
    pub fn clear(&mut self) {
        self.filled = 0;
    }

    /// Free space of at least `size` bytes after the content. Report the written bytes with
    /// [`OutgoingBytes::fill`].
    pub(crate) fn space(&mut self, size: usize) -> &mut [u8] {
        let end = self.filled + size;
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes.get_mut(self.filled..).unwrap_or_default()
    }

    /// Marks the first `count` bytes of the space as content.
    pub(crate) fn fill(&mut self, count: usize) {
        self.filled = (self.filled + count).min(self.bytes.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_is_filled_in_steps_and_reused() {
        let mut out = OutgoingBytes::default();
        assert!(out.is_empty());
        out.space(3)[..2].copy_from_slice(b"ab");
        out.fill(2);
        assert!(out.space(5).len() >= 5);
        out.space(5)[..1].copy_from_slice(b"c");
        out.fill(1);
        assert_eq!(out.filled(), b"abc");
        out.fill(1000);
        assert_eq!(out.filled().len(), 7, "limited to the allocated space");
        out.clear();
        assert_eq!(out.filled(), b"");
    }
}
