//! Sequence numbers of producers, for deduplication, and stored offsets of consumers.
//!
//! The log itself stores them. A chunk of messages has the new sequences and offsets in its trailer. A tracking
//! delta is a chunk with new offsets alone. A tracking snapshot starts each segment but the first one of the stream and
//! repeats everything, so the state at any offset follows from one segment.
//!
//! A record is: kind (1 byte: 0 is a sequence, 1 is an offset), length of the name (1), the name, and the number
//! (8). In a snapshot the number of a sequence follows the offset of the chunk that stored it (8).

use crate::chunk::{Chunk, ChunkFault};
use bytes::BufMut;
use std::collections::BTreeMap;

/// Longest name of a producer or of a stored offset, in bytes.
pub const MAX_NAME_BYTES: usize = 255;
/// Most producers of a stream whose sequence is kept. Beyond it, the producer that published least recently is
/// forgotten.
pub const MAX_SEQUENCES: usize = 1024;
/// Most stored offsets of a stream.
pub const MAX_OFFSETS: usize = 1024;
/// Most bytes of an encoded snapshot.
pub const MAX_SNAPSHOT_BYTES: usize =
    MAX_SEQUENCES * (18 + MAX_NAME_BYTES) + MAX_OFFSETS * (10 + MAX_NAME_BYTES);

const SEQUENCE: u8 = 0;
const OFFSET: u8 = 1;

/// A record of a trailer or of a tracking delta.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrackingRecord<'a> {
    /// The highest sequence number that a producer has in the chunk.
    Sequence {
        /// Name of the producer.
        producer: &'a [u8],
        /// The sequence number.
        sequence: u64,
    },
    /// An offset that a consumer stored.
    Offset {
        /// Name of the stored offset.
        name: &'a [u8],
        /// The offset.
        offset: u64,
    },
}

impl TrackingRecord<'_> {
    /// Appends the record. Its name must not be longer than [`MAX_NAME_BYTES`].
    pub(crate) fn put(&self, out: &mut impl BufMut) {
        let (kind, name, number) = match self {
            TrackingRecord::Sequence { producer, sequence } => (SEQUENCE, producer, sequence),
            TrackingRecord::Offset { name, offset } => (OFFSET, name, offset),
        };
        put_head(kind, name, out);
        out.put_u64(*number);
    }
}

fn put_head(kind: u8, name: &[u8], out: &mut impl BufMut) {
    debug_assert!(name.len() <= MAX_NAME_BYTES, "{} bytes", name.len());
    out.put_u8(kind);
    out.put_u8(name.len() as u8);
    out.put_slice(name);
}

/// Reads records from the front of a slice. Ends after a fault.
#[derive(Clone, Debug)]
pub struct TrackingRecords<'a> {
    rest: &'a [u8],
}

impl<'a> TrackingRecords<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> TrackingRecords<'a> {
        TrackingRecords { rest: bytes }
    }

    fn head(&mut self) -> Option<(u8, &'a [u8])> {
        let ([kind, len], rest) = self.rest.split_first_chunk::<2>()?;
        let (name, rest) = rest.split_at_checked(usize::from(*len))?;
        self.rest = rest;
        Some((*kind, name))
    }

    fn number(&mut self) -> Option<u64> {
        let (number, rest) = self.rest.split_first_chunk::<8>()?;
        self.rest = rest;
        Some(u64::from_be_bytes(*number))
    }

    fn record(&mut self) -> Option<TrackingRecord<'a>> {
        let (kind, name) = self.head()?;
        let number = self.number()?;
        match kind {
            SEQUENCE => Some(TrackingRecord::Sequence {
                producer: name,
                sequence: number,
            }),
            OFFSET => Some(TrackingRecord::Offset {
                name,
                offset: number,
            }),
            _ => None,
        }
    }
}

impl<'a> Iterator for TrackingRecords<'a> {
    type Item = Result<TrackingRecord<'a>, ChunkFault>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let record = self.record().ok_or(ChunkFault::Tracking);
        if record.is_err() {
            self.rest = &[];
        }
        Some(record)
    }
}

/// The newest sequence of a producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerSequence {
    /// The highest sequence number in the log.
    pub sequence: u64,
    /// First offset of the chunk that has it: a duplicate may be confirmed once this offset is committed.
    pub chunk: u64,
}

/// The sequences and stored offsets after a chunk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tracking {
    sequences: BTreeMap<Box<[u8]>, ProducerSequence>,
    offsets: BTreeMap<Box<[u8]>, u64>,
}

impl Tracking {
    /// The newest sequence of a producer.
    pub fn sequence(&self, producer: &[u8]) -> Option<ProducerSequence> {
        self.sequences.get(producer).copied()
    }

    /// A stored offset.
    pub fn offset(&self, name: &[u8]) -> Option<u64> {
        self.offsets.get(name).copied()
    }

    /// The newest sequence of each producer, in the order of their names.
    pub fn sequences(&self) -> impl Iterator<Item = (&[u8], ProducerSequence)> {
        self.sequences
            .iter()
            .map(|(name, newest)| (&**name, *newest))
    }

    /// The stored offsets, in the order of their names.
    pub fn offsets(&self) -> impl Iterator<Item = (&[u8], u64)> {
        self.offsets.iter().map(|(name, offset)| (&**name, *offset))
    }

    /// Number of producers with a sequence.
    pub fn sequence_count(&self) -> usize {
        self.sequences.len()
    }

    /// Number of stored offsets.
    pub fn offset_count(&self) -> usize {
        self.offsets.len()
    }

    /// Bytes of memory, approximately.
    pub fn memory(&self) -> usize {
        let sequences = self.sequences.keys().map(|name| name.len() + 40);
        let offsets = self.offsets.keys().map(|name| name.len() + 32);
        sequences.sum::<usize>() + offsets.sum::<usize>()
    }

    /// Returns true if a new offset can be stored under this name.
    pub fn has_room_for_offset(&self, name: &[u8]) -> bool {
        self.offsets.len() < MAX_OFFSETS || self.offsets.contains_key(name)
    }

    /// Forgets stored offsets below the first offset of the stream.
    pub(crate) fn drop_offsets_below(&mut self, first_offset: u64) {
        self.offsets.retain(|_, offset| *offset >= first_offset);
    }

    /// Returns true if [`Chunk::apply_tracking`] succeeds.
    pub(crate) fn can_apply(&self, chunk: &Chunk) -> bool {
        let is_new_name = |record: &Result<TrackingRecord<'_>, ChunkFault>| match record {
            Ok(TrackingRecord::Offset { name, .. }) => !self.offsets.contains_key(*name),
            _ => false,
        };
        let new_names = chunk.tracking_records().filter(is_new_name).count();
        self.offsets.len() + new_names <= MAX_OFFSETS
    }

    /// Applies a record of the chunk that starts at `chunk`. Fails if there are too many offsets.
    pub(crate) fn apply(
        &mut self,
        record: TrackingRecord<'_>,
        chunk: u64,
    ) -> Result<(), ChunkFault> {
        match record {
            TrackingRecord::Sequence { producer, sequence } => {
                let newest = ProducerSequence { sequence, chunk };
                if let Some(known) = self.sequences.get_mut(producer) {
                    *known = newest;
                    return Ok(());
                }
                if self.sequences.len() >= MAX_SEQUENCES {
                    self.forget_oldest_producer();
                }
                self.sequences.insert(producer.into(), newest);
            }
            TrackingRecord::Offset { name, offset } => {
                if !self.has_room_for_offset(name) {
                    return Err(ChunkFault::Tracking);
                }
                match self.offsets.get_mut(name) {
                    Some(known) => *known = offset,
                    None => {
                        self.offsets.insert(name.into(), offset);
                    }
                }
            }
        }
        Ok(())
    }

    /// Every replica forgets the same producer, because the choice depends on the log alone.
    fn forget_oldest_producer(&mut self) {
        let oldest = self.sequences.iter().min_by_key(|(_, s)| s.chunk);
        if let Some(name) = oldest.map(|(name, _)| name.clone()) {
            self.sequences.remove(&name);
        }
    }

    /// Appends a snapshot.
    pub fn put_snapshot(&self, out: &mut impl BufMut) {
        for (name, newest) in &self.sequences {
            put_head(SEQUENCE, name, out);
            out.put_u64(newest.chunk);
            out.put_u64(newest.sequence);
        }
        for (name, offset) in &self.offsets {
            put_head(OFFSET, name, out);
            out.put_u64(*offset);
        }
    }

    /// Decodes a snapshot.
    ///
    /// # Errors
    ///
    /// If a record is incomplete, of an unknown kind, repeated, or beyond the limits.
    pub fn decode_snapshot(bytes: &[u8]) -> Result<Tracking, ChunkFault> {
        let mut tracking = Tracking::default();
        let mut from = TrackingRecords::new(bytes);
        while !from.rest.is_empty() {
            let (kind, name) = from.head().ok_or(ChunkFault::Tracking)?;
            let first = from.number().ok_or(ChunkFault::Tracking)?;
            let is_new = match kind {
                SEQUENCE => {
                    let newest = ProducerSequence {
                        chunk: first,
                        sequence: from.number().ok_or(ChunkFault::Tracking)?,
                    };
                    tracking.sequences.insert(name.into(), newest).is_none()
                }
                OFFSET => tracking.offsets.insert(name.into(), first).is_none(),
                _ => false,
            };
            let fits =
                tracking.sequences.len() <= MAX_SEQUENCES && tracking.offsets.len() <= MAX_OFFSETS;
            if !is_new || !fits {
                return Err(ChunkFault::Tracking);
            }
        }
        Ok(tracking)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sequence(producer: &[u8], sequence: u64) -> TrackingRecord<'_> {
        TrackingRecord::Sequence { producer, sequence }
    }

    fn snapshot(tracking: &Tracking) -> Vec<u8> {
        let mut out = Vec::new();
        tracking.put_snapshot(&mut out);
        out
    }

    #[test]
    fn records_are_read_back() {
        let records = [
            sequence(b"orders-1", 7),
            TrackingRecord::Offset {
                name: b"",
                offset: u64::MAX,
            },
        ];
        let mut out = Vec::new();
        records.iter().for_each(|record| record.put(&mut out));
        let first = 2 + 8 + 8;
        assert_eq!(out.len(), first + 2 + 8);
        let read: Vec<_> = TrackingRecords::new(&out).collect();
        assert_eq!(read, records.map(Ok));
        for cut in 1..out.len() {
            let read: Vec<_> = TrackingRecords::new(&out[..cut]).collect();
            let is_boundary = cut == first;
            assert_eq!(
                read.last() == Some(&Err(ChunkFault::Tracking)),
                !is_boundary
            );
        }
    }

    #[test]
    fn least_recent_producer_is_forgotten_at_the_limit() {
        let mut tracking = Tracking::default();
        let name = |n: usize| n.to_be_bytes();
        for n in 0..MAX_SEQUENCES {
            tracking
                .apply(sequence(&name(n), 1), n as u64)
                .expect("fits");
        }
        tracking.apply(sequence(&name(0), 2), 5000).expect("known");
        tracking
            .apply(sequence(b"one more", 1), 5001)
            .expect("replaces");
        assert_eq!(tracking.sequence_count(), MAX_SEQUENCES);
        assert_eq!(tracking.sequence(&name(1)), None);
        let newest = ProducerSequence {
            sequence: 2,
            chunk: 5000,
        };
        assert_eq!(tracking.sequence(&name(0)), Some(newest));
        assert!(snapshot(&tracking).len() <= MAX_SNAPSHOT_BYTES);
    }

    #[test]
    fn offsets_beyond_the_limit_are_a_fault() {
        let mut tracking = Tracking::default();
        fn offset(name: &[u8]) -> TrackingRecord<'_> {
            TrackingRecord::Offset { name, offset: 9 }
        }
        for n in 0..MAX_OFFSETS {
            let name = n.to_be_bytes();
            assert!(tracking.has_room_for_offset(&name));
            tracking.apply(offset(&name), 1).expect("fits");
        }
        assert!(!tracking.has_room_for_offset(b"another"));
        let refused = tracking.apply(offset(b"another"), 1);
        assert_eq!(refused, Err(ChunkFault::Tracking));
        let known = 3_usize.to_be_bytes();
        assert!(tracking.has_room_for_offset(&known));
        tracking.apply(offset(&known), 1).expect("known name");
        tracking.drop_offsets_below(10);
        assert_eq!(tracking.offset_count(), 0);
    }

    #[test]
    fn damaged_snapshots_are_refused() {
        let mut tracking = Tracking::default();
        tracking.apply(sequence(b"a", 1), 1).expect("fits");
        let good = snapshot(&tracking);
        let twice = [&good[..], &good[..]].concat();
        let mut unknown = good.clone();
        unknown[0] = 2;
        for bad in [
            &good[..good.len() - 1],
            &twice,
            &unknown,
            &[0],
            &[0, 200, 1],
        ] {
            assert_eq!(Tracking::decode_snapshot(bad), Err(ChunkFault::Tracking));
        }
        assert_eq!(Tracking::decode_snapshot(b""), Ok(Tracking::default()));
    }

    proptest! {
        #[test]
        fn snapshot_round_trips(
            records in prop::collection::vec(
                (any::<bool>(), prop::collection::vec(any::<u8>(), 0..=255), any::<u64>(), any::<u64>()),
                0..50,
            ),
        ) {
            let mut tracking = Tracking::default();
            for (is_offset, name, number, chunk) in &records {
                let record = match is_offset {
                    true => TrackingRecord::Offset { name, offset: *number },
                    false => sequence(name, *number),
                };
                tracking.apply(record, *chunk).expect("fits");
            }
            let bytes = snapshot(&tracking);
            prop_assert_eq!(Tracking::decode_snapshot(&bytes), Ok(tracking));
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(tracking) = Tracking::decode_snapshot(&bytes) {
                prop_assert_eq!(snapshot(&tracking).len(), bytes.len());
            }
            for record in TrackingRecords::new(&bytes) {
                let _ = record;
            }
        }
    }
}
