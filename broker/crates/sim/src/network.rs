//! The net between nodes: it delays, loses, slows down and parts, in each direction by itself.
//!
//! As [`env::Net`] promises: frames of one node to another arrive in order or not at all. Links differ in their
//! delays, so frames of different nodes overtake each other.

use env::{NodeId, Rng, SeededRng, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Directed: what holds one way need not hold the other.
pub type Link = (NodeId, NodeId);

#[derive(Debug)]
pub struct Network {
    rng: SeededRng,
    /// Nothing passes.
    cut: BTreeSet<Link>,
    /// Added to each frame's delay.
    slow: BTreeMap<Link, Duration>,
    /// Frames lost in 1000.
    loss: u64,
    /// When the last frame of a link arrives.
    last: BTreeMap<Link, Time>,
}

/// A frame's way without faults.
const LEAST_DELAY: Duration = Duration::from_micros(50);
const DELAY_SPREAD: Duration = Duration::from_micros(950);

impl Network {
    pub fn new(rng: SeededRng) -> Network {
        Network {
            rng,
            cut: BTreeSet::new(),
            slow: BTreeMap::new(),
            loss: 0,
            last: BTreeMap::new(),
        }
    }

    /// When a frame sent now arrives; `None`: never.
    pub fn send(&mut self, now: Time, link: Link) -> Option<Time> {
        // Drawn whatever comes of it: one frame's fate does not shift the next one's chances.
        let (loss, spread) = (self.rng.below(1000), self.rng.next_u64());
        if self.cut.contains(&link) || loss < self.loss {
            return None;
        }
        let spread = spread % DELAY_SPREAD.as_nanos() as u64;
        let delay = LEAST_DELAY + Duration::from_nanos(spread) + self.delay(link);
        let last = self.last.entry(link).or_default();
        *last = (now + delay).max(*last + Duration::from_nanos(1));
        Some(*last)
    }

    /// Whether a frame that is on the way gets through.
    pub fn passes(&self, link: Link) -> bool {
        !self.cut.contains(&link)
    }

    pub fn delay(&self, link: Link) -> Duration {
        self.slow.get(&link).copied().unwrap_or_default()
    }

    pub fn cut(&mut self, link: Link) {
        self.cut.insert(link);
    }

    pub fn slow_down(&mut self, link: Link, by: Duration) {
        self.slow.insert(link, by);
    }

    pub fn lose(&mut self, in_1000: u64) {
        self.loss = in_1000;
    }

    /// As good as new; what is on the way still takes its time.
    pub fn heal(&mut self) {
        self.cut.clear();
        self.slow.clear();
        self.loss = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: Link = (NodeId(1), NodeId(2));
    const BACK: Link = (NodeId(2), NodeId(1));

    #[test]
    fn a_link_keeps_order_and_a_cut_is_one_way() {
        let mut net = Network::new(SeededRng::new(1));
        net.slow_down(LINK, Duration::from_millis(100));
        let slow = net.send(Time(0), LINK).expect("arrives");
        assert!(slow.0 > 100_000_000);
        net.heal();
        let next = net.send(Time(1), LINK).expect("arrives");
        assert!(next > slow, "overtook on its own link");
        assert!(net.send(Time(1), BACK).expect("arrives") < slow);
        net.cut(LINK);
        assert_eq!(net.send(Time(2), LINK), None);
        assert!(net.send(Time(2), BACK).is_some());
    }

    #[test]
    fn loss_is_about_what_was_asked() {
        let mut net = Network::new(SeededRng::new(1));
        net.lose(200);
        let lost = (0..10_000)
            .filter(|n| net.send(Time(*n), LINK).is_none())
            .count();
        assert!((1_700..2_300).contains(&lost), "{lost}");
    }
}
