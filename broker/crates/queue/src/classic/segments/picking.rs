//! Messages that leave a segment before those ahead of them.

use super::Segments;
use crate::classic::location::{LoadedMessage, MessageLocation, SegmentId};
use crate::classic::record::{HEADER, RecordHeader};
use crate::classic::scan::read_exactly;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// Most messages of a queue that may be picked ahead of others and are remembered until those are read. Further ones can
/// be picked once the queue has delivered the messages ahead of them.
pub(super) const MAX_PICKED: usize = 65_536;

/// Numbers of the messages that were picked from a segment and are skipped when it is read.
#[derive(Debug, Default)]
pub(super) struct PickedMessages {
    by_segment: BTreeMap<SegmentId, BTreeSet<u64>>,
    count: usize,
}

impl PickedMessages {
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn contains(&self, segment: SegmentId, seq: u64) -> bool {
        let picked = self.by_segment.get(&segment);
        picked.is_some_and(|picked| picked.contains(&seq))
    }

    fn insert(&mut self, segment: SegmentId, seq: u64) {
        if self.by_segment.entry(segment).or_default().insert(seq) {
            self.count += 1;
        }
    }

    /// The segment is read to its end, or gone.
    pub(super) fn forget(&mut self, segment: SegmentId) {
        if let Some(picked) = self.by_segment.remove(&segment) {
            self.count -= picked.len();
        }
    }
}

impl Segments {
    /// The number of the last message of a segment. `None`: it is gone.
    pub(in crate::classic) fn last_seq(&self, number: SegmentId) -> Option<u64> {
        self.list.get(&number).map(|segment| segment.last_seq)
    }

    /// The segment is read to its end.
    pub(in crate::classic) fn finish_reading(&mut self, number: SegmentId) {
        self.picked.forget(number);
    }

    /// Skips a message in later reads of a segment: it was taken before it was written, ahead of others. The queue bounds
    /// their number by that of the messages that are out of order.
    pub(in crate::classic) fn skip(&mut self, number: SegmentId, seq: u64) {
        self.picked.insert(number, seq);
    }

    /// Reads the message with this number at this location, which must not have been read yet. Later reads of the segment
    /// skip it. `None`: it is not there, or too many messages were picked.
    pub(in crate::classic) fn pick(
        &mut self,
        location: MessageLocation,
        seq: u64,
    ) -> io::Result<Option<LoadedMessage>> {
        let number = location.segment;
        let Some(segment) = self.list.get(&number) else {
            return Ok(None);
        };
        let (len, recovered) = (segment.len, segment.recovered);
        let is_outside = location.offset < segment.start || location.offset >= len;
        let is_picked = self.picked.contains(number, seq) || self.picked.count >= MAX_PICKED;
        if is_outside || is_picked {
            return Ok(None);
        }
        let file = self.disk.open(&self.path(number, "seg"))?;
        let raw = read_exactly(&*file, location.offset, HEADER as u64)?;
        let is_wanted = |h: &RecordHeader| {
            let fits = location.offset + h.total() <= len;
            h.seq == seq && !h.footer && fits && (h.persistent || !recovered)
        };
        let Some(header) = RecordHeader::parse(&raw).filter(is_wanted) else {
            return Ok(None);
        };
        if recovered {
            self.read_settled(number)?;
            if self.is_settled(number, seq) {
                return Ok(None);
            }
        }
        let at = location.offset + HEADER as u64;
        let payload = read_exactly(&*file, at, u64::from(header.len))?;
        let Some((message, expires)) = header.message(&payload) else {
            return Ok(None);
        };
        self.picked.insert(number, seq);
        if let Some(segment) = self.list.get_mut(&number) {
            segment.unread = segment.unread.saturating_sub(1);
        }
        Ok(Some(LoadedMessage {
            seq,
            persistent: header.persistent,
            expires,
            body: header.body,
            location,
            message,
        }))
    }
}
