//! Packet identifiers of messages to a client [MQTT-2.2.1-4].
//!
//! They are in memory. A client may still hold some that an earlier life of the node gave messages of QoS 2: it waits for PUBREL, and
//! takes another message under such an identifier for the one it has [MQTT-4.3.3-10]. So a session that may see the next life uses a
//! small range only, and whoever goes on with it releases all of that range first.

use std::collections::BTreeSet;

#[derive(Debug)]
pub(crate) struct PacketIds {
    last: u16,
    /// The highest one, unless more messages than that are in flight.
    highest: u16,
    /// Released for an earlier life, and PUBCOMP has not come.
    releasing: BTreeSet<u16>,
}

impl Default for PacketIds {
    fn default() -> PacketIds {
        PacketIds {
            last: 0,
            highest: u16::MAX,
            releasing: BTreeSet::new(),
        }
    }
}

impl PacketIds {
    /// Keeps to a range that is large enough for `quota` messages in flight.
    pub fn keep_low(&mut self, quota: u16) {
        self.highest = quota.saturating_mul(4).clamp(64, 1024);
        self.last = self.last.min(self.highest);
    }

    /// What another life of the node may have used: to be released now.
    pub fn release_all(&mut self) -> impl Iterator<Item = u16> + use<> {
        self.releasing = (1..=self.highest).collect();
        1..=self.highest
    }

    /// PUBCOMP has come. Whether it is for what [`PacketIds::release_all`] named.
    pub fn was_released(&mut self, id: u16) -> bool {
        self.releasing.remove(&id)
    }

    /// One that is not in use; at most `u16::MAX` - 1 are.
    pub fn next(&mut self, in_use: impl Fn(u16) -> bool) -> u16 {
        for _ in 0..self.highest {
            self.last = self.last % self.highest + 1;
            if !in_use(self.last) && !self.releasing.contains(&self.last) {
                return self.last;
            }
        }
        let mut more = (self.highest..u16::MAX).map(|id| id + 1);
        more.find(|id| !in_use(*id)).unwrap_or(u16::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_go_round_and_leave_out_what_is_in_use() {
        let mut ids = PacketIds::default();
        assert_eq!((ids.next(|_| false), ids.next(|id| id == 2)), (1, 3));
        ids.last = u16::MAX;
        assert_eq!(ids.next(|id| id == 1), 2);
    }

    #[test]
    fn a_session_that_lasts_keeps_to_few_of_them() {
        let mut ids = PacketIds::default();
        ids.keep_low(10);
        let first: Vec<u16> = (0..65).map(|_| ids.next(|_| false)).collect();
        assert_eq!((first[63], first[64]), (64, 1));
        assert_eq!(ids.release_all().count(), 64);
        assert_eq!(ids.next(|_| false), 65, "all others are being released");
        assert!(ids.was_released(7) && !ids.was_released(7));
        assert_eq!(ids.next(|_| false), 7);
    }
}
