//! The network between nodes. It delays and loses frames, slows down links and cuts them, for each direction
//! separately.
//!
//! Like [`env::Net`], it delivers the frames of one node to another in order or not at all. The delays of links differ,
//! so frames of different nodes overtake each other. Consensus does not rely on the order within a link:
//! [`Network::duplicate`] and [`Network::reorder`] break it, for scenarios with nothing above consensus.

use env::{NodeId, Rng, SeededRng, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A directed link: from, to.
pub type Link = (NodeId, NodeId);

/// The network and its faults.
#[derive(Debug)]
pub struct Network {
    rng: SeededRng,
    /// Links on which no frame passes.
    cut: BTreeSet<Link>,
    /// Added to each frame's delay.
    slow: BTreeMap<Link, Duration>,
    /// Lost frames per 1000.
    loss: u64,
    /// Duplicated frames per 1000.
    duplicated: u64,
    /// Frames per 1000 that later ones overtake.
    reordered: u64,
    /// Arrival of the last frame of each link.
    last_arrivals: BTreeMap<Link, Time>,
}

/// Minimum delay of a frame without faults.
const MIN_DELAY: Duration = Duration::from_micros(50);
const DELAY_SPREAD: Duration = Duration::from_micros(950);
/// Maximum extra delay of a reordered frame or of a second copy.
const MAX_EXTRA_DELAY: Duration = Duration::from_millis(40);

impl Network {
    /// Creates a network without faults.
    pub fn new(rng: SeededRng) -> Network {
        Network {
            rng,
            cut: BTreeSet::new(),
            slow: BTreeMap::new(),
            loss: 0,
            duplicated: 0,
            reordered: 0,
            last_arrivals: BTreeMap::new(),
        }
    }

    /// Schedules a frame sent now: its arrival, and the arrival of its second copy.
    pub fn send(&mut self, now: Time, link: Link) -> [Option<Time>; 2] {
        // Drawn in any case, so that the fate of one frame does not change the random numbers of the next.
        let mut draw = || self.rng.below(1000);
        let (loss, copy, reorder) = (draw(), draw(), draw());
        let (spread, extra) = (self.rng.next_u64(), self.rng.next_u64());
        if self.cut.contains(&link) || loss < self.loss {
            return [None, None];
        }
        let spread = spread % DELAY_SPREAD.as_nanos() as u64;
        let delay = MIN_DELAY + Duration::from_nanos(spread) + self.delay(link);
        let last = self.last_arrivals.entry(link).or_default();
        let in_order = (now + delay).max(*last + Duration::from_nanos(1));
        let delayed = in_order + Duration::from_nanos(extra % MAX_EXTRA_DELAY.as_nanos() as u64);
        let first = if reorder < self.reordered {
            delayed
        } else {
            *last = in_order;
            in_order
        };
        let second = (copy < self.duplicated).then_some(delayed + MIN_DELAY);
        [Some(first), second]
    }

    /// Whether a frame that arrives now gets through.
    pub fn passes(&self, link: Link) -> bool {
        !self.cut.contains(&link)
    }

    /// Extra delay of a link.
    pub fn delay(&self, link: Link) -> Duration {
        self.slow.get(&link).copied().unwrap_or_default()
    }

    /// Drops all frames of a link until [`Network::heal`].
    pub fn cut(&mut self, link: Link) {
        self.cut.insert(link);
    }

    /// Adds a delay to each frame of a link.
    pub fn slow_down(&mut self, link: Link, by: Duration) {
        self.slow.insert(link, by);
    }

    /// Sets the number of lost frames per 1000, on all links.
    pub fn lose(&mut self, in_1000: u64) {
        self.loss = in_1000;
    }

    /// Sets the number of duplicated frames per 1000.
    pub fn duplicate(&mut self, in_1000: u64) {
        self.duplicated = in_1000;
    }

    /// Sets the number of frames per 1000 that later ones overtake.
    pub fn reorder(&mut self, in_1000: u64) {
        self.reordered = in_1000;
    }

    /// Removes all faults. Frames on the way keep their arrival times.
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
    fn link_keeps_order_and_cut_is_one_way() {
        let mut net = Network::new(SeededRng::new(1));
        net.slow_down(LINK, Duration::from_millis(100));
        let slow = arrival(&mut net, 0, LINK).expect("arrives");
        assert!(slow.0 > 100_000_000);
        net.heal();
        let next = arrival(&mut net, 1, LINK).expect("arrives");
        assert!(next > slow, "frames of a link must arrive in order");
        assert!(arrival(&mut net, 1, BACK).expect("arrives") < slow);
        net.cut(LINK);
        assert_eq!(arrival(&mut net, 2, LINK), None);
        assert!(arrival(&mut net, 2, BACK).is_some());
    }

    #[test]
    fn loss_rate_is_close_to_the_configured_rate() {
        let mut net = Network::new(SeededRng::new(1));
        net.lose(200);
        let lost = (0..10_000).filter(|n| arrival(&mut net, *n, LINK).is_none());
        let lost = lost.count();
        assert!((1_700..2_300).contains(&lost), "{lost}");
    }

    #[test]
    fn duplicate_and_reorder_rates_apply() {
        let mut net = Network::new(SeededRng::new(1));
        net.duplicate(200);
        let sent: Vec<_> = (0..10_000).map(|n| net.send(Time(n), LINK)).collect();
        let twice = sent.iter().filter(|s| s[1].is_some()).count();
        assert!((1_700..2_300).contains(&twice), "{twice}");
        assert!(
            sent.iter()
                .all(|s| s[1].is_none_or(|copy| Some(copy) > s[0]))
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
