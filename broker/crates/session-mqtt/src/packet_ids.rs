//! Packet identifiers of messages to a client [MQTT-2.2.1-4].
//!
//! They are kept in memory only. The client may still hold identifiers of QoS 2 messages from an
//! earlier incarnation of the node: it waits for PUBREL and would mistake another message with the
//! same identifier for the one that it has [MQTT-4.3.3-10]. So a session that may outlive the node
//! uses only a small range, and its next connection releases that whole range first.

use std::ops::RangeInclusive;

#[derive(Debug)]
pub(crate) struct PacketIds {
    last: u16,
    /// The highest identifier in use.
    highest: u16,
}

impl Default for PacketIds {
    fn default() -> PacketIds {
        PacketIds {
            last: 0,
            highest: u16::MAX,
        }
    }
}

impl PacketIds {
    /// Restricts the identifiers to a range that is large enough for `quota` messages in flight.
    pub(crate) fn keep_low(&mut self, quota: u16) {
        self.highest = quota.saturating_mul(4).clamp(64, 1024).max(quota);
        self.last = self.last.min(self.highest);
    }

    /// The range of identifiers.
    pub(crate) fn all(&self) -> RangeInclusive<u16> {
        1..=self.highest
    }

    /// Returns an unused identifier; `None` if the client must acknowledge a message first.
    pub(crate) fn next(&mut self, in_use: impl Fn(u16) -> bool) -> Option<u16> {
        for _ in 0..self.highest {
            self.last = self.last % self.highest + 1;
            if !in_use(self.last) {
                return Some(self.last);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_wrap_around_and_skip_used_ones() {
        let mut ids = PacketIds::default();
        assert_eq!(ids.next(|_| false), Some(1));
        assert_eq!(ids.next(|id| id == 2), Some(3));
        ids.last = u16::MAX;
        assert_eq!(ids.next(|id| id == 1), Some(2));
    }

    #[test]
    fn persistent_session_uses_a_small_range() {
        let mut ids = PacketIds::default();
        ids.keep_low(10);
        let first: Vec<u16> = (0..65).filter_map(|_| ids.next(|_| false)).collect();
        assert_eq!((first[63], first[64]), (64, 1));
        assert_eq!(ids.next(|id| id <= 64), None);
        assert_eq!(ids.next(|id| id != 7), Some(7));
        ids.keep_low(5000);
        assert_eq!(ids.all(), 1..=5000);
    }
}
