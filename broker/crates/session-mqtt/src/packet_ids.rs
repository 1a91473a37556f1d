//! Packet identifiers of messages to a client [MQTT-2.2.1-4].
//!
//! They are in memory. A client may still hold some that an earlier life of the node gave messages of QoS 2: it waits for PUBREL, and
//! takes another message under such an identifier for the one it has [MQTT-4.3.3-10]. So a session that may see the next life uses a
//! small range only, and whoever goes on with it releases all of that range first.

use std::collections::BTreeSet;

#[derive(Debug)]
#[expect(
    clippy::box_collection,
    reason = "few sessions have it, and each has its size"
)]
pub(crate) struct PacketIds {
    last: u16,
    /// The highest one.
    highest: u16,
    /// Released for an earlier life, and PUBCOMP has not come. None: there are none.
    releasing: Option<Box<BTreeSet<u16>>>,
}

impl Default for PacketIds {
    fn default() -> PacketIds {
        PacketIds {
            last: 0,
            highest: u16::MAX,
            releasing: None,
        }
    }
}

impl PacketIds {
    /// Keeps to a range that is large enough for `quota` messages in flight.
    pub fn keep_low(&mut self, quota: u16) {
        self.highest = quota.saturating_mul(4).clamp(64, 1024).max(quota);
        self.last = self.last.min(self.highest);
    }

    /// What another life of the node may have used is not used again before it is released.
    pub fn release_all(&mut self) {
        self.releasing = Some(Box::new((1..=self.highest).collect()));
    }

    /// Those that PUBREL has to go out for.
    pub fn releasing(&self) -> impl Iterator<Item = u16> {
        self.releasing.iter().flat_map(|all| all.iter().copied())
    }

    /// PUBCOMP has come. Whether it is for one of [`PacketIds::releasing`].
    pub fn was_released(&mut self, id: u16) -> bool {
        let Some(releasing) = &mut self.releasing else {
            return false;
        };
        let was = releasing.remove(&id);
        if releasing.is_empty() {
            self.releasing = None;
        }
        was
    }

    fn is_releasing(&self, id: u16) -> bool {
        let releasing = self.releasing.as_ref();
        releasing.is_some_and(|releasing| releasing.contains(&id))
    }

    /// Whether [`PacketIds::next`] has one; `count` are in use.
    pub fn has_free(&self, count: usize, in_use: impl Fn(u16) -> bool) -> bool {
        if self.releasing.is_none() && count < self.highest.into() {
            return true;
        }
        (1..=self.highest).any(|id| !in_use(id) && !self.is_releasing(id))
    }

    /// One that is not in use. None: the client has to answer first.
    pub fn next(&mut self, in_use: impl Fn(u16) -> bool) -> Option<u16> {
        for _ in 0..self.highest {
            self.last = self.last % self.highest + 1;
            if !in_use(self.last) && !self.is_releasing(self.last) {
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
        ids.release_all();
        assert_eq!(ids.releasing().count(), 64);
        assert_eq!(ids.next(|_| false), None);
        assert!(!ids.has_free(0, |_| false));
        assert!(ids.was_released(7) && !ids.was_released(7));
        assert!(ids.has_free(0, |_| false) && !ids.has_free(1, |id| id == 7));
        assert_eq!(ids.next(|_| false), Some(7));
        ids.keep_low(5000);
        assert_eq!(ids.highest, 5000);
    }
}
