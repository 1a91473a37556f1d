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
    /// One read. Empty: the other side has closed. The second value: the read filled all the room, so there may be more.
    pub(crate) fn read(&mut self, socket: &mut impl Read) -> io::Result<(BytesMut, bool)> {
        if self.free.len() < READ_MIN {
            // Takes the old chunk's room back when nobody refers to it.
            self.free.clear();
            self.free.reserve(READ_CHUNK);
            self.free.resize(READ_CHUNK, 0);
        }
        let n = socket.read(&mut self.free)?;
        let full = n == self.free.len();
        Ok((self.free.split_to(n), full))
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
            let (bytes, _) = scratch.read(&mut source)?;
            if bytes.is_empty() {
                break;
            }
            kept.push(bytes.freeze());
        }
        assert_eq!(kept.concat(), data);
        Ok(())
    }
}
