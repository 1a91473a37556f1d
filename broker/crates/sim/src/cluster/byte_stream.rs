//! One direction of a client's connection: pieces travel by themselves and are put in order again.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::fmt;

/// What one write put on the connection.
#[derive(Clone, PartialEq, Eq)]
pub enum StreamPiece {
    Bytes(Bytes),
    /// The sender has closed its side.
    End,
}

impl fmt::Debug for StreamPiece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StreamPiece::Bytes(bytes) => {
                write!(f, "{}:{:08x}", bytes.len(), crc32fast::hash(bytes))
            }
            StreamPiece::End => f.write_str("end"),
        }
    }
}

/// The receiving end.
#[derive(Debug, Default)]
pub struct ByteStream {
    next: u64,
    early: BTreeMap<u64, StreamPiece>,
}

impl ByteStream {
    pub fn put(&mut self, number: u64, piece: StreamPiece) {
        self.early.insert(number, piece);
    }

    /// The next piece, when it is there.
    pub fn take(&mut self) -> Option<StreamPiece> {
        let piece = self.early.remove(&self.next)?;
        self.next += 1;
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_come_out_in_order() {
        let mut lane = ByteStream::default();
        lane.put(1, StreamPiece::End);
        assert_eq!(lane.take(), None);
        lane.put(0, StreamPiece::Bytes(Bytes::from_static(b"a")));
        assert_eq!(
            lane.take(),
            Some(StreamPiece::Bytes(Bytes::from_static(b"a")))
        );
        assert_eq!(lane.take(), Some(StreamPiece::End));
        assert_eq!(lane.take(), None);
    }
}
