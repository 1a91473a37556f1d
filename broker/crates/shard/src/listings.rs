//! Facts that shard 0 gathers from all shards of all nodes for the control plane: connections, consumers, counters; and
//! the connection that one of them is to close.

use control::{
    BrowseFacts, ConnectionFacts, ConsumerFacts, Counters, Reply, ShardFacts, StreamReplicaFacts,
    TrafficFacts,
};
use env::{NodeId, Time};
use session::DeliveryCounters;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Shards that have told nothing for so long are left out.
const GATHER_WITHIN: Duration = Duration::from_secs(2);
/// Listings that gather at the same time, at most; the oldest is answered early beyond that.
const MAX_GATHERING: usize = 64;

/// Where the facts go.
pub(crate) enum ListingTarget {
    Connections(Vec<ConnectionFacts>, Reply<Vec<ConnectionFacts>>),
    Consumers(Vec<ConsumerFacts>, Reply<Vec<ConsumerFacts>>),
    Counters(BTreeMap<NodeId, Counters>, Reply<Vec<(NodeId, Counters)>>),
    /// Of this node, for the service at this position: [`Listings::take_collected`].
    Service(usize, Box<Counters>),
    Traffic(TrafficFacts, Reply<TrafficFacts>),
    Streams(Vec<StreamReplicaFacts>, Reply<Vec<StreamReplicaFacts>>),
    Browsed(Option<Box<BrowseFacts>>, Reply<Option<BrowseFacts>>),
    Closed(bool, Reply<bool>),
}

impl ListingTarget {
    fn take(&mut self, from: NodeId, facts: ShardFacts) {
        match (self, facts) {
            (ListingTarget::Connections(all, _), ShardFacts::Connections(part)) => {
                let theirs = part.into_iter();
                all.extend(theirs.map(|c| ConnectionFacts { node: from, ..c }));
            }
            (ListingTarget::Consumers(all, _), ShardFacts::Consumers(part)) => all.extend(part),
            (ListingTarget::Counters(all, _), ShardFacts::Counters(part)) => {
                all.entry(from).or_default().add(&part);
            }
            (ListingTarget::Service(_, sum), ShardFacts::Counters(part)) => sum.add(&part),
            (ListingTarget::Traffic(all, _), ShardFacts::Traffic(part)) => all.add(&part),
            (ListingTarget::Streams(all, _), ShardFacts::Streams(part)) => {
                let theirs = part.into_iter();
                all.extend(theirs.map(|s| StreamReplicaFacts { node: from, ..s }));
            }
            (ListingTarget::Browsed(all, _), ShardFacts::Browsed(Some(page))) => {
                *all = Some(page);
            }
            (ListingTarget::Closed(any, _), ShardFacts::Closed(one)) => *any |= one,
            // Not what was asked for.
            _ => {}
        }
    }

    /// Returns true if no further answer is needed: only the owner of a queue lists its messages.
    fn is_complete(&self) -> bool {
        matches!(self, ListingTarget::Browsed(Some(_), _))
    }

    /// Answers the requester. Returns the counters that are for a service, and its position.
    fn answer(self) -> Option<(usize, Box<Counters>)> {
        match self {
            ListingTarget::Connections(all, reply) => reply(all),
            ListingTarget::Consumers(all, reply) => reply(all),
            ListingTarget::Counters(all, reply) => reply(all.into_iter().collect()),
            ListingTarget::Traffic(all, reply) => reply(all),
            ListingTarget::Streams(all, reply) => reply(all),
            ListingTarget::Browsed(page, reply) => reply(page.map(|page| *page)),
            ListingTarget::Closed(any, reply) => reply(any),
            ListingTarget::Service(at, sum) => return Some((at, sum)),
        }
        None
    }
}

struct PendingListing {
    facts: ListingTarget,
    /// Shards whose last part is still to come.
    left: usize,
    until: Time,
}

#[derive(Default)]
pub(crate) struct Listings {
    next: u64,
    open: BTreeMap<u64, PendingListing>,
    /// Counters for services.
    collected: VecDeque<(usize, Box<Counters>)>,
}

impl Listings {
    /// Takes counters that [`ListingTarget::Service`] has collected, and the service's position.
    pub(crate) fn take_collected(&mut self) -> Option<(usize, Box<Counters>)> {
        self.collected.pop_front()
    }

    fn answer(&mut self, done: PendingListing) {
        self.collected.extend(done.facts.answer());
    }

    pub(crate) fn begin(&mut self, now: Time, left: usize, facts: ListingTarget) -> u64 {
        if self.open.len() >= MAX_GATHERING
            && let Some((_, oldest)) = self.open.pop_first()
        {
            self.answer(oldest);
        }
        self.next += 1;
        let gathering = PendingListing {
            facts,
            left,
            until: now + GATHER_WITHIN,
        };
        self.open.insert(self.next, gathering);
        self.next
    }

    /// Takes a part in; the last one of all answers.
    pub(crate) fn take(
        &mut self,
        token: u64,
        (from, now): (NodeId, Time),
        last: bool,
        facts: Option<ShardFacts>,
    ) {
        let Some(gathering) = self.open.get_mut(&token) else {
            return;
        };
        gathering.until = now + GATHER_WITHIN;
        if let Some(facts) = facts {
            gathering.facts.take(from, facts);
        }
        gathering.left -= usize::from(last && gathering.left > 0);
        if gathering.facts.is_complete() {
            gathering.left = 0;
        }
        if gathering.left == 0
            && let Some(done) = self.open.remove(&token)
        {
            self.answer(done);
        }
    }

    /// Answers those whose time is up with what is there.
    pub(crate) fn tick(&mut self, now: Time) {
        if self.open.is_empty() {
            return;
        }
        let late: Vec<PendingListing> = (self.open)
            .extract_if(.., |_, g| now >= g.until)
            .map(|(_, late)| late)
            .collect();
        late.into_iter().for_each(|late| self.answer(late));
    }

    pub(crate) fn wake_at(&self) -> Option<Time> {
        self.open.values().map(|g| g.until).min()
    }
}

/// A channel's counts under the API's names.
pub(crate) fn channel_counts(
    publishes: &session::PublishCounters,
    deliveries: &DeliveryCounters,
) -> control::MessageCounts {
    control::MessageCounts {
        publish: publishes.received,
        confirm: publishes.confirmed,
        return_unroutable: publishes.unroutable_returned,
        drop_unroutable: publishes.unroutable_dropped,
        ..control::MessageCounts::from(deliveries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn begin(listings: &mut Listings, left: usize) -> (u64, mpsc::Receiver<bool>) {
        let (tx, rx) = mpsc::channel();
        let reply = Box::new(move |any| {
            let _ = tx.send(any);
        });
        let facts = ListingTarget::Closed(false, reply);
        (listings.begin(Time::ZERO, left, facts), rx)
    }

    #[test]
    fn the_last_answer_or_the_time_ends_it_and_not_one_that_was_not_asked_for() {
        let mut listings = Listings::default();
        let (token, done) = begin(&mut listings, 2);
        let part = |any| Some(ShardFacts::Closed(any));
        listings.take(token, (NodeId(1), Time::ZERO), true, part(true));
        listings.take(token + 1, (NodeId(1), Time::ZERO), true, part(false));
        let none = Some(ShardFacts::Consumers(Vec::new()));
        listings.take(token, (NodeId(2), Time::ZERO), false, none);
        assert!(done.try_recv().is_err());
        listings.take(token, (NodeId(2), Time::ZERO), true, None);
        assert_eq!(done.try_recv(), Ok(true));
        let (_, late) = begin(&mut listings, 1);
        listings.tick(Time::ZERO);
        assert!(late.try_recv().is_err());
        listings.tick(Time::ZERO + GATHER_WITHIN);
        assert_eq!(late.try_recv(), Ok(false));
        assert_eq!(listings.wake_at(), None);
    }

    #[test]
    fn page_of_a_queue_needs_the_answer_of_its_owner_only() {
        let mut listings = Listings::default();
        let (tx, rx) = mpsc::channel();
        let reply = Box::new(move |page: Option<BrowseFacts>| {
            let _ = tx.send(page.is_some());
        });
        let token = listings.begin(Time::ZERO, 3, ListingTarget::Browsed(None, reply));
        let from = (NodeId(1), Time::ZERO);
        listings.take(token, from, true, Some(ShardFacts::Browsed(None)));
        assert!(rx.try_recv().is_err());
        let page = BrowseFacts::new(Ok(queue::BrowsePage::default()));
        let page = Some(ShardFacts::Browsed(Some(Box::new(page))));
        listings.take(token, from, true, page);
        assert_eq!(rx.try_recv(), Ok(true));
        listings.take(token, from, true, Some(ShardFacts::Browsed(None)));
    }

    #[test]
    fn too_many_at_once_answer_the_oldest() {
        let mut listings = Listings::default();
        let waiting: Vec<_> = (0..=MAX_GATHERING)
            .map(|_| begin(&mut listings, 1).1)
            .collect();
        assert_eq!(waiting[0].try_recv(), Ok(false));
        assert!(waiting[1].try_recv().is_err());
    }
}
