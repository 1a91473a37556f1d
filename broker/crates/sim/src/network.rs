//! The net between nodes: it delays, loses, slows down and parts, in each direction by itself.
//!
//! As [`env::Net`] promises: frames of one node to another arrive in order or not at all. Links differ in their
//! delays, so frames of different nodes overtake each other. Consensus does not rest on that promise:
//! [`Network::duplicate`] and [`Network::reorder`] break it, for scenarios without anything above consensus.

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
    /// Frames in 1000 that arrive twice.
    duplicated: u64,
    /// Frames in 1000 that later ones overtake.
    reordered: u64,
    /// When the last frame of a link arrives.
    last: BTreeMap<Link, Time>,
}

/// A frame's way without faults.
const LEAST_DELAY: Duration = Duration::from_micros(50);
const DELAY_SPREAD: Duration = Duration::from_micros(950);
/// What a frame that is overtaken, or a second copy, takes longer at most.
const DETOUR: Duration = Duration::from_millis(40);

impl Network {
    pub fn new(rng: SeededRng) -> Network {
        Network {
            rng,
            cut: BTreeSet::new(),
            slow: BTreeMap::new(),
            loss: 0,
            duplicated: 0,
            reordered: 0,
            last: BTreeMap::new(),
        }
    }

    /// When a frame sent now arrives, and when it does so again.
    pub fn send(&mut self, now: Time, link: Link) -> [Option<Time>; 2] {
        // Drawn whatever comes of it: one frame's fate does not shift the next one's chances.
        let mut draw = || self.rng.below(1000);
        let (loss, again, late) = (draw(), draw(), draw());
        let (spread, later) = (self.rng.next_u64(), self.rng.next_u64());
        if self.cut.contains(&link) || loss < self.loss {
            return [None, None];
        }
        let spread = spread % DELAY_SPREAD.as_nanos() as u64;
        let delay = LEAST_DELAY + Duration::from_nanos(spread) + self.delay(link);
        let last = self.last.entry(link).or_default();
        let in_order = (now + delay).max(*last + Duration::from_nanos(1));
        let behind = in_order + Duration::from_nanos(later % DETOUR.as_nanos() as u64);
        let first = if late < self.reordered {
            behind
        } else {
            *last = in_order;
            in_order
        };
        let second = (again < self.duplicated).then_some(behind + LEAST_DELAY);
        [Some(first), second]
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

    pub fn duplicate(&mut self, in_1000: u64) {
        self.duplicated = in_1000;
    }

    pub fn reorder(&mut self, in_1000: u64) {
        self.reordered = in_1000;
    }

    /// As good as new; what is on the way still takes its time.
    pub fn heal(&mut self) {
        self.cut.clear();
        self.slow.clear();
        self.loss = 0;
        self.duplicated = 0;
        self.reordered = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: Link = (NodeId(1), NodeId(2));
    const BACK: Link = (NodeId(2), NodeId(1));

    fn arrival(net: &mut Network, now: u64, link: Link) -> Option<Time> {
        let [first, second] = net.send(Time(now), link);
        assert_eq!(second, None);
        first
    }

    #[test]
    fn a_link_keeps_order_and_a_cut_is_one_way() {
        let mut net = Network::new(SeededRng::new(1));
        net.slow_down(LINK, Duration::from_millis(100));
        let slow = arrival(&mut net, 0, LINK).expect("arrives");
        assert!(slow.0 > 100_000_000);
        net.heal();
        let next = arrival(&mut net, 1, LINK).expect("arrives");
        assert!(next > slow, "overtook on its own link");
        assert!(arrival(&mut net, 1, BACK).expect("arrives") < slow);
        net.cut(LINK);
        assert_eq!(arrival(&mut net, 2, LINK), None);
        assert!(arrival(&mut net, 2, BACK).is_some());
    }

    #[test]
    fn loss_is_about_what_was_asked() {
        let mut net = Network::new(SeededRng::new(1));
        net.lose(200);
        let lost = (0..10_000).filter(|n| arrival(&mut net, *n, LINK).is_none());
        let lost = lost.count();
        assert!((1_700..2_300).contains(&lost), "{lost}");
    }

    #[test]
    fn frames_come_twice_and_out_of_order_when_asked_to() {
        let mut net = Network::new(SeededRng::new(1));
        net.duplicate(200);
        let sent: Vec<_> = (0..10_000).map(|n| net.send(Time(n), LINK)).collect();
        let twice = sent.iter().filter(|s| s[1].is_some()).count();
        assert!((1_700..2_300).contains(&twice), "{twice}");
        assert!(
            sent.iter()
                .all(|s| s[1].is_none_or(|again| Some(again) > s[0]))
        );
        assert!(sent.windows(2).all(|w| w[0][0] < w[1][0]), "in order");
        net.heal();
        net.reorder(200);
        let sent: Vec<_> = (0..10_000)
            .map(|n| arrival(&mut net, n, LINK).expect("arrives"))
            .collect();
        assert!(sent.windows(2).any(|w| w[0] > w[1]));
    }
}
