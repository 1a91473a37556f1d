//! One direction of a client connection. Pieces travel separately and are put in order at the receiving end.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::fmt;

/// The content of one write.
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

/// The receiving end of a connection.
#[derive(Debug, Default)]
pub(super) struct ByteStream {
    next: u64,
    pieces: BTreeMap<u64, StreamPiece>,
}

/// Adds a piece that has arrived.
impl ByteStream {
    pub(super) fn put(&mut self, number: u64, piece: StreamPiece) {
        self.pieces.insert(number, piece);
    }

    /// Returns the next piece in order, if it has arrived.
    pub(super) fn take(&mut self) -> Option<StreamPiece> {
        let piece = self.pieces.remove(&self.next)?;
        self.next += 1;
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_come_out_in_order() {
        let mut stream = ByteStream::default();
        stream.put(1, StreamPiece::End);
        assert_eq!(stream.take(), None);
        stream.put(0, StreamPiece::Bytes(Bytes::from_static(b"a")));
        assert_eq!(
            stream.take(),
            Some(StreamPiece::Bytes(Bytes::from_static(b"a")))
        );
        assert_eq!(stream.take(), Some(StreamPiece::End));
        assert_eq!(stream.take(), None);
    }
}
