//! The read buffer that the sockets of a thread share.

use bytes::BytesMut;
use std::io::{self, Read};

/// Maximum number of bytes per read.
pub(crate) const READ_CHUNK: usize = 64 * 1024;

/// Smallest remaining space in bytes that justifies a system call.
const READ_MIN: usize = 16 * 1024;

/// A read buffer that hands out slices of one allocation, so that complete frames are processed
/// without a copy. A retained slice keeps its chunk of [`READ_CHUNK`] bytes allocated; a chunk
/// without slices is reused.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    free: BytesMut,
}

impl Scratch {
    /// Reads once, after a copy of `before`. Returns None if the peer has closed its side. The
    /// second value is true if the read filled the buffer, so more input may be available.
    pub(crate) fn read(
        &mut self,
        before: &[u8],
        socket: &mut impl Read,
    ) -> io::Result<Option<(BytesMut, bool)>> {
        if self.free.len() < before.len() + READ_MIN {
            // Reuses the old chunk if no slice refers to it.
            self.free.clear();
            self.free.reserve(before.len() + READ_CHUNK);
            self.free.resize(before.len() + READ_CHUNK, 0);
        }
        let (front, space) = self.free.split_at_mut(before.len());
        front.copy_from_slice(before);
        let n = socket.read(space)?;
        if n == 0 {
            return Ok(None);
        }
        let full = n == space.len();
        Ok(Some((self.free.split_to(before.len() + n), full)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_reads_return_all_bytes() -> io::Result<()> {
        let data: Vec<u8> = (0..200_000u32).map(|i| i as u8).collect();
        let mut source = &data[..];
        let mut scratch = Scratch::default();
        let mut slices = Vec::new();
        loop {
            let Some((bytes, _)) = scratch.read(b"", &mut source)? else {
                break;
            };
            slices.push(bytes.freeze());
        }
        assert_eq!(slices.concat(), data);
        Ok(())
    }

    #[test]
    fn read_appends_to_the_given_bytes() -> io::Result<()> {
        let mut scratch = Scratch::default();
        let before = vec![1; 3 * READ_CHUNK];
        let mut source = &[2; 100][..];
        let (bytes, full) = scratch.read(&before, &mut source)?.expect("100 bytes");
        assert!(!full);
        assert_eq!(bytes.len(), before.len() + 100);
        assert_eq!(bytes[..before.len()], before);
        assert_eq!(bytes[before.len()..], [2; 100]);
        assert!(scratch.read(&before, &mut source)?.is_none());
        Ok(())
    }
}
