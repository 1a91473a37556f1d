//! The dead-letter history of a message: reason, queue and count of its deaths. Its encoding is neither that of
//! `x-death` (AMQP 0.9.1) nor that of `x-opt-deaths` (AMQP 1.0). The container keeps it apart from the properties,
//! which stay as published.
//!
//! ```text
//! records u8 | first u8 | exchange of the last death: name | each record, the most recent first:
//!   queue: name | reason u8 | exchange: name | count u64 | first ms u64 | last ms u64
//!   flags u8 | [ttl ms u64] | keys u8, each: name
//! name: u8 len, bytes
//! ```

use crate::container::{Cursor, DecodeError};
use bytes::{BufMut, BytesMut};
use env::WallTime;
use std::sync::Arc;

/// Limit of records. A longer history keeps the first death and the latest ones.
pub(crate) const MAX_RECORDS: usize = 64;
/// Limit of routing key bytes in one record, so that a history always fits in a content header.
pub(crate) const MAX_KEY_BYTES: usize = 512;

const HAS_TTL: u8 = 1;
/// Flag that older versions ignore.
const FAILED: u8 = 2;

/// Why a message left a queue without being acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum DeadReason {
    /// A consumer rejected it without requeueing.
    Rejected = 1,
    /// Its time to live ended.
    Expired = 2,
    /// The queue reached its length limit.
    MaxLength = 3,
    /// A quorum queue reached its delivery limit.
    DeliveryLimit = 4,
}

impl DeadReason {
    /// Every reason, in the order of their bytes.
    pub const ALL: [DeadReason; 4] = [
        DeadReason::Rejected,
        DeadReason::Expired,
        DeadReason::MaxLength,
        DeadReason::DeliveryLimit,
    ];

    /// The name in headers and metrics.
    pub fn name(self) -> &'static str {
        match self {
            DeadReason::Rejected => "rejected",
            DeadReason::Expired => "expired",
            DeadReason::MaxLength => "maxlen",
            DeadReason::DeliveryLimit => "delivery_limit",
        }
    }

    /// Returns the reason with that byte in a stored history, or `None` if no reason has it.
    pub fn from_byte(byte: u8) -> Option<DeadReason> {
        DeadReason::ALL.into_iter().find(|r| *r as u8 == byte)
    }
}

/// The deaths in one queue for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Death {
    /// The queue that the message left.
    pub queue: Arc<str>,
    /// The reason of these deaths.
    pub reason: DeadReason,
    /// The exchange through which the message came into the queue before the first of these deaths.
    /// `routing_keys` holds its keys at that time (including those of CC, excluding those of BCC).
    pub exchange: Arc<str>,
    /// See `exchange`.
    pub routing_keys: Vec<Arc<str>>,
    /// Number of deaths in this queue for this reason.
    pub count: u64,
    /// Time of the first of these deaths.
    pub first: WallTime,
    /// Time of the latest of these deaths.
    pub last: WallTime,
    /// The time to live of the publish, which dead-lettering removes.
    pub ttl_ms: Option<u64>,
    /// True if each death was a failed delivery attempt: a rejection in a quorum queue.
    pub failed: bool,
}

/// A death to be recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dying<'a> {
    /// The queue that the message leaves.
    pub queue: &'a str,
    /// The reason of this death.
    pub reason: DeadReason,
    /// The exchange through which the message came into the queue.
    pub exchange: &'a str,
    /// Routing keys of the message, including those of CC and excluding those of BCC.
    pub routing_keys: Vec<&'a str>,
    /// Time to live that the publisher set, in milliseconds.
    pub ttl_ms: Option<u64>,
    /// See [`Death::failed`].
    pub failed: bool,
    /// Time of this death.
    pub at: WallTime,
}

/// The dead-letter history of a message; see the module documentation. Never empty once a death is recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deaths {
    /// The most recent record first.
    records: Vec<Death>,
    /// Index of the record with the very first death.
    first: usize,
    last_exchange: Arc<str>,
}

impl Deaths {
    /// The records, the most recent first.
    pub fn records(&self) -> &[Death] {
        &self.records
    }

    /// The first death of the message.
    pub fn first(&self) -> Option<&Death> {
        self.records.get(self.first)
    }

    /// The latest death of the message.
    pub fn last(&self) -> Option<&Death> {
        self.records.first()
    }

    /// The exchange through which the message came into the queue before its last death. The record of that
    /// death names the exchange of the first death of its kind instead.
    pub fn last_exchange(&self) -> &str {
        &self.last_exchange
    }

    /// Number of failed delivery attempts among the deaths.
    pub fn failed_attempts(&self) -> u64 {
        let failed = self.records.iter().filter(|death| death.failed);
        failed.fold(0, |sum, death| sum.saturating_add(death.count))
    }

    /// Adds a death, which becomes the most recent.
    pub fn record(&mut self, dying: &Dying<'_>) {
        self.last_exchange = dying.exchange.into();
        let same = |d: &Death| d.reason == dying.reason && *d.queue == *dying.queue;
        if let Some(at) = self.records.iter().position(same) {
            if let Some(moved) = self.records.get_mut(..=at) {
                moved.rotate_right(1);
            }
            self.first = match self.first {
                first if first == at => 0,
                first if first < at => first + 1,
                first => first,
            };
            if let Some(death) = self.records.first_mut() {
                death.count = death.count.saturating_add(1);
                death.last = dying.at;
                death.failed = dying.failed;
            }
            return;
        }
        self.evict_record();
        self.first = if self.records.is_empty() {
            0
        } else {
            self.first + 1
        };
        self.records.insert(0, new_record(dying));
    }

    /// Makes room for one more record, keeping the first death.
    fn evict_record(&mut self) {
        if self.records.len() < MAX_RECORDS {
            return;
        }
        let last = self.records.len() - 1;
        if self.first == last {
            self.records.remove(last - 1);
            self.first -= 1;
        } else {
            self.records.remove(last);
        }
    }

    /// True if dead-lettering to this queue would close a cycle without any client action: the message died
    /// there before, and since then (including that death) only for reasons that no client caused. More such
    /// deaths in a row than a history can hold count as a cycle.
    pub fn is_cycle(&self, queue: &str) -> bool {
        let automatic = |d: &&Death| d.reason != DeadReason::Rejected;
        let recent = self.records.iter().take_while(automatic);
        let mut length = 0;
        for death in recent {
            length += 1;
            if *death.queue == *queue {
                return true;
            }
        }
        length >= MAX_RECORDS - 1
    }

    pub(crate) fn encode(&self, out: &mut BytesMut) {
        out.put_u8(self.records.len().min(MAX_RECORDS) as u8);
        out.put_u8(self.first.min(MAX_RECORDS) as u8);
        put_short(out, &self.last_exchange);
        for death in self.records.iter().take(MAX_RECORDS) {
            put_short(out, &death.queue);
            out.put_u8(death.reason as u8);
            put_short(out, &death.exchange);
            out.put_u64(death.count);
            out.put_u64(death.first.0);
            out.put_u64(death.last.0);
            let ttl = if death.ttl_ms.is_some() { HAS_TTL } else { 0 };
            out.put_u8(ttl | if death.failed { FAILED } else { 0 });
            if let Some(ttl) = death.ttl_ms {
                out.put_u64(ttl);
            }
            out.put_u8(death.routing_keys.len().min(255) as u8);
            for key in death.routing_keys.iter().take(255) {
                put_short(out, key);
            }
        }
    }

    pub(crate) fn decode(raw: &[u8]) -> Result<Deaths, DecodeError> {
        let mut from = Cursor::new(raw);
        let count = usize::from(from.u8()?);
        let mut deaths = Deaths {
            first: from.u8()?.into(),
            last_exchange: from.name()?.into(),
            records: Vec::with_capacity(count.min(MAX_RECORDS)),
        };
        for _ in 0..count {
            deaths.records.push(take_record(&mut from)?);
        }
        if count > MAX_RECORDS || deaths.first >= count {
            return Err(DecodeError::Deaths);
        }
        Ok(deaths)
    }
}

fn new_record(dying: &Dying<'_>) -> Death {
    let mut room = MAX_KEY_BYTES;
    let has_room = |key: &&&str| {
        let left = room.checked_sub(key.len());
        room = left.unwrap_or(0);
        left.is_some()
    };
    let routing_keys = dying.routing_keys.iter().take(255).take_while(has_room);
    Death {
        queue: dying.queue.into(),
        reason: dying.reason,
        exchange: dying.exchange.into(),
        routing_keys: routing_keys.map(|key| Arc::from(*key)).collect(),
        count: 1,
        first: dying.at,
        last: dying.at,
        ttl_ms: dying.ttl_ms,
        failed: dying.failed,
    }
}

fn take_record(from: &mut Cursor<'_>) -> Result<Death, DecodeError> {
    let queue = from.name()?.into();
    let reason = DeadReason::from_byte(from.u8()?).ok_or(DecodeError::Deaths)?;
    let exchange = from.name()?.into();
    let (count, first, last) = (from.u64()?, WallTime(from.u64()?), WallTime(from.u64()?));
    let flags = from.u8()?;
    let ttl_ms = match flags & HAS_TTL {
        0 => None,
        _ => Some(from.u64()?),
    };
    let keys = (0..from.u8()?).map(|_| Ok(Arc::from(from.name()?)));
    Ok(Death {
        queue,
        reason,
        exchange,
        routing_keys: keys.collect::<Result<_, DecodeError>>()?,
        count,
        first,
        last,
        ttl_ms,
        failed: flags & FAILED != 0,
    })
}

/// Names of queues and exchanges and routing keys have at most 255 bytes everywhere; a longer one would be
/// truncated.
fn put_short(out: &mut BytesMut, name: &str) {
    let end = name.floor_char_boundary(255);
    let name = name.get(..end).unwrap_or("");
    out.put_u8(name.len() as u8);
    out.put_slice(name.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn die(deaths: &mut Deaths, queue: &str, reason: DeadReason, at: u64) {
        deaths.record(&Dying {
            queue,
            reason,
            exchange: &format!("x{at}"),
            routing_keys: vec!["k"],
            ttl_ms: None,
            failed: queue == "a" && reason == DeadReason::Rejected,
            at: WallTime(at),
        });
    }

    fn names(deaths: &Deaths) -> Vec<(&str, DeadReason, u64)> {
        let each = deaths.records().iter();
        each.map(|d| (&*d.queue, d.reason, d.count)).collect()
    }

    #[test]
    fn deaths_are_counted_by_queue_and_reason_most_recent_first() {
        use DeadReason::{Expired, Rejected};
        let mut deaths = Deaths::default();
        die(&mut deaths, "a", Expired, 1);
        die(&mut deaths, "b", Rejected, 2);
        die(&mut deaths, "a", Rejected, 3);
        die(&mut deaths, "a", Expired, 4);
        assert_eq!(
            names(&deaths),
            [("a", Expired, 2), ("a", Rejected, 1), ("b", Rejected, 1)]
        );
        let first = deaths.first().unwrap();
        assert_eq!((&*first.queue, &*first.exchange), ("a", "x1"));
        assert_eq!((first.first, first.last), (WallTime(1), WallTime(4)));
        assert_eq!(deaths.last_exchange(), "x4");
        assert_eq!(deaths.failed_attempts(), 1);
        die(&mut deaths, "a", Rejected, 5);
        let mut out = BytesMut::new();
        deaths.encode(&mut out);
        assert_eq!(Deaths::decode(&out).unwrap().failed_attempts(), 2);
    }

    #[test]
    fn rejection_breaks_a_cycle() {
        use DeadReason::{Expired, MaxLength, Rejected};
        let mut deaths = Deaths::default();
        die(&mut deaths, "a", Expired, 1);
        die(&mut deaths, "b", MaxLength, 2);
        assert!(deaths.is_cycle("a") && deaths.is_cycle("b") && !deaths.is_cycle("c"));
        die(&mut deaths, "c", Rejected, 3);
        assert!(!deaths.is_cycle("a") && !deaths.is_cycle("c"));
        die(&mut deaths, "d", Expired, 4);
        assert!(deaths.is_cycle("d") && !deaths.is_cycle("c"));
    }

    #[test]
    fn long_history_keeps_its_first_death_and_detects_a_long_cycle() {
        let mut deaths = Deaths::default();
        die(&mut deaths, "origin", DeadReason::Rejected, 0);
        for n in 1..=2 * MAX_RECORDS as u64 {
            let queue = format!("q{n}");
            assert_eq!(deaths.is_cycle(&queue), n >= MAX_RECORDS as u64, "{n}");
            die(&mut deaths, &queue, DeadReason::Expired, n);
            assert_eq!(&*deaths.first().unwrap().queue, "origin");
            assert!(deaths.records().len() <= MAX_RECORDS);
        }
    }

    proptest! {
        #[test]
        fn history_equals_a_naive_model_and_round_trips(
            steps in proptest::collection::vec((0u8..5, 0usize..4), 1..60)
        ) {
            let mut deaths = Deaths::default();
            let mut naive: Vec<(u8, DeadReason)> = Vec::new();
            for (at, (queue, reason)) in steps.iter().enumerate() {
                let reason = DeadReason::ALL[*reason];
                die(&mut deaths, &queue.to_string(), reason, at as u64);
                naive.push((*queue, reason));
            }
            let mut seen = BTreeSet::new();
            let recent: Vec<_> = naive.iter().rev().filter(|k| seen.insert(**k)).collect();
            prop_assert_eq!(deaths.records().len(), recent.len());
            for (death, key) in deaths.records().iter().zip(&recent) {
                let count = naive.iter().filter(|k| k == key).count() as u64;
                prop_assert_eq!(&*death.queue, key.0.to_string());
                prop_assert_eq!((death.reason, death.count), (key.1, count));
            }
            let first = deaths.first().unwrap();
            prop_assert_eq!((&*first.queue, first.reason), (&*naive[0].0.to_string(), naive[0].1));
            let mut out = BytesMut::new();
            deaths.encode(&mut out);
            prop_assert_eq!(Deaths::decode(&out).unwrap(), deaths);
        }

        #[test]
        fn decoding_arbitrary_bytes_does_not_panic(raw: Vec<u8>) {
            let _ = Deaths::decode(&raw);
        }
    }
}
