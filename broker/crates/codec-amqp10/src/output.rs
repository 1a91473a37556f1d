use bytes::{BufMut, BytesMut};

/// A growing buffer that encoders append to.
pub trait Output {
    /// Bytes in the buffer.
    fn position(&self) -> usize;
    /// Appends bytes.
    fn put(&mut self, bytes: &[u8]);
    /// Appends one byte.
    fn put_byte(&mut self, byte: u8);
    /// The bytes from `start` on.
    fn written(&mut self, start: usize) -> &mut [u8];
    /// Removes the bytes from `position` on.
    fn truncate_to(&mut self, position: usize);

    /// Moves the bytes from `at` on by `count` (at most 8) to the right. The bytes of the gap are unspecified.
    fn open_gap(&mut self, at: usize, count: usize) {
        debug_assert!(count <= 8 && at <= self.position());
        self.put(&[0; 8][..count]);
        let tail = self.written(at);
        let kept = tail.len() - count;
        tail.copy_within(..kept, count);
    }
}

impl Output for BytesMut {
    #[inline]
    fn position(&self) -> usize {
        self.len()
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    #[inline]
    fn put_byte(&mut self, byte: u8) {
        self.put_u8(byte);
    }

    #[inline]
    fn written(&mut self, start: usize) -> &mut [u8] {
        &mut self[start..]
    }

    #[inline]
    fn truncate_to(&mut self, position: usize) {
        self.truncate(position);
    }
}

/// A buffer of `N` bytes on the stack. Its user bounds the output by `N`.
pub(crate) struct StackBuffer<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> StackBuffer<N> {
    #[inline]
    pub(crate) fn new() -> Self {
        let bytes = [0; N];
        Self { bytes, len: 0 }
    }

    /// The bytes that were put.
    #[inline]
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl<const N: usize> Output for StackBuffer<N> {
    #[inline]
    fn position(&self) -> usize {
        self.len
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        self.bytes[self.len..end].copy_from_slice(bytes);
        self.len = end;
    }

    #[inline]
    fn put_byte(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }

    #[inline]
    fn written(&mut self, start: usize) -> &mut [u8] {
        &mut self.bytes[start..self.len]
    }

    #[inline]
    fn truncate_to(&mut self, position: usize) {
        self.len = self.len.min(position);
    }
}

impl Output for Vec<u8> {
    #[inline]
    fn position(&self) -> usize {
        self.len()
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    #[inline]
    fn put_byte(&mut self, byte: u8) {
        self.push(byte);
    }

    #[inline]
    fn written(&mut self, start: usize) -> &mut [u8] {
        &mut self[start..]
    }

    #[inline]
    fn truncate_to(&mut self, position: usize) {
        self.truncate(position);
    }
}
