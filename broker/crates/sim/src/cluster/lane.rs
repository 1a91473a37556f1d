//! One direction of a client's connection: pieces travel by themselves and are put in order again.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::fmt;

/// What one write put on the connection.
#[derive(Clone, PartialEq, Eq)]
pub enum Piece {
    Bytes(Bytes),
    /// The sender has closed its side.
    End,
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Piece::Bytes(bytes) => write!(f, "{}:{:08x}", bytes.len(), crc32fast::hash(bytes)),
            Piece::End => f.write_str("end"),
        }
    }
}

/// The receiving end.
#[derive(Debug, Default)]
pub struct Lane {
    next: u64,
    early: BTreeMap<u64, Piece>,
}

impl Lane {
    pub fn put(&mut self, number: u64, piece: Piece) {
        self.early.insert(number, piece);
    }

    /// The next piece, when it is there.
    pub fn take(&mut self) -> Option<Piece> {
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
        let mut lane = Lane::default();
        lane.put(1, Piece::End);
        assert_eq!(lane.take(), None);
        lane.put(0, Piece::Bytes(Bytes::from_static(b"a")));
        assert_eq!(lane.take(), Some(Piece::Bytes(Bytes::from_static(b"a"))));
        assert_eq!(lane.take(), Some(Piece::End));
        assert_eq!(lane.take(), None);
    }
}
