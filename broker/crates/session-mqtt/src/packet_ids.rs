//! Packet identifiers of messages to a client [MQTT-2.2.1-4].
//!
//! They are in memory. A client may still hold some that an earlier life of the node gave messages of QoS 2: it waits for PUBREL, and
//! takes another message under such an identifier for the one it has [MQTT-4.3.3-10]. So a session that may see the next life uses a
//! small range only, and whoever goes on with it releases all of that range first.

use std::ops::RangeInclusive;

#[derive(Debug)]
pub(crate) struct PacketIds {
    last: u16,
    /// The highest one.
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
    /// Keeps to a range that is large enough for `quota` messages in flight.
    pub fn keep_low(&mut self, quota: u16) {
        self.highest = quota.saturating_mul(4).clamp(64, 1024).max(quota);
        self.last = self.last.min(self.highest);
    }

    /// All that there are.
    pub fn all(&self) -> RangeInclusive<u16> {
        1..=self.highest
    }

    /// One that is not in use. None: the client has to answer first.
    pub fn next(&mut self, in_use: impl Fn(u16) -> bool) -> Option<u16> {
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
    fn they_go_round_and_leave_out_what_is_in_use() {
        let mut ids = PacketIds::default();
        assert_eq!(ids.next(|_| false), Some(1));
        assert_eq!(ids.next(|id| id == 2), Some(3));
        ids.last = u16::MAX;
        assert_eq!(ids.next(|id| id == 1), Some(2));
    }

    #[test]
    fn a_session_that_lasts_keeps_to_few_of_them() {
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
