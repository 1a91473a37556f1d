//! The one buffer that a thread reads its sockets into.

use bytes::BytesMut;
use std::io::{self, Read};

/// Bytes that one read may return.
pub(crate) const READ_CHUNK: usize = 64 * 1024;

/// Below this the rest of a chunk is not worth a system call.
const READ_MIN: usize = 16 * 1024;

/// Hands out what was read as slices of one allocation: whole frames are taken from it without a copy. A slice that
/// somebody keeps holds its chunk of [`READ_CHUNK`] bytes; the chunk is used again when nobody does.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    free: BytesMut,
}

impl Scratch {
    /// One read, behind a copy of `before`. None: the other side has closed. The second value: the read filled all the
    /// room, so there may be more.
    pub(crate) fn read(
        &mut self,
        before: &[u8],
        socket: &mut impl Read,
    ) -> io::Result<Option<(BytesMut, bool)>> {
        if self.free.len() < before.len() + READ_MIN {
            // Takes the old chunk's room back when nobody refers to it.
            self.free.clear();
            self.free.reserve(before.len() + READ_CHUNK);
            self.free.resize(before.len() + READ_CHUNK, 0);
        }
        let (front, room) = self.free.split_at_mut(before.len());
        front.copy_from_slice(before);
        let n = socket.read(room)?;
        if n == 0 {
            return Ok(None);
        }
        let full = n == room.len();
        Ok(Some((self.free.split_to(before.len() + n), full)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_follow_each_other() -> io::Result<()> {
        let data: Vec<u8> = (0..200_000u32).map(|i| i as u8).collect();
        let mut source = &data[..];
        let mut scratch = Scratch::default();
        let mut kept = Vec::new();
        loop {
            let Some((bytes, _)) = scratch.read(b"", &mut source)? else {
                break;
            };
            kept.push(bytes.freeze());
        }
        assert_eq!(kept.concat(), data);
        Ok(())
    }

    #[test]
    fn a_read_goes_behind_what_was_there_before() -> io::Result<()> {
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
