//! The client's end of a link on which it receives: credit and deliveries (sections 2.6.7 and 2.6.12).

use super::Amqp10Queue;
use super::filters::PartFilter;
use super::oracle::Amqp10Oracle;
use codec_amqp10::{Flow, Transfer};
use env::Time;
use std::collections::{BTreeSet, VecDeque};

/// Credit that the client granted in a flow.
#[derive(Clone, Copy, Debug)]
struct Grant {
    /// The delivery count that the broker may reach.
    limit: u32,
    drain: bool,
    echo: bool,
    at: Time,
}

impl Grant {
    fn wants_answer(&self) -> bool {
        self.drain || self.echo
    }
}

/// A delivery whose last transfer has not come.
#[derive(Debug)]
pub(super) struct PartialDelivery {
    pub id: u32,
    tag: Vec<u8>,
    pub payload: Vec<u8>,
}

pub(super) struct Receiver {
    /// None: the link with the responses of the management node.
    pub queue: Option<Amqp10Queue>,
    /// Unique in the run.
    pub number: u64,
    /// `None`: it gets all messages of its queue.
    pub filter: Option<PartFilter>,
    /// It browses: it gets copies, which are settled, and takes no messages.
    pub browses: bool,
    /// Deliveries are settled after the broker has settled them (receiver settle mode second).
    pub settles_second: bool,
    delivery_count: u32,
    /// The delivery count in the last flow of the broker.
    last_count: u32,
    /// The limit of the newest grant that the broker is known to have taken over.
    limit: u32,
    /// Grants in order that the broker may not know, and the last drain that it has not answered.
    grants: VecDeque<Grant>,
    /// Tags of all deliveries.
    tags: BTreeSet<Vec<u8>>,
    pub partial: Option<PartialDelivery>,
}

/// The distance from `from` to `to` in serial number arithmetic (RFC 1982).
pub(super) fn distance(from: u32, to: u32) -> i64 {
    i64::from(to.wrapping_sub(from).cast_signed())
}

impl Receiver {
    pub(super) fn new(queue: Option<Amqp10Queue>, number: u64, settles_second: bool) -> Receiver {
        Receiver {
            queue,
            number,
            filter: None,
            browses: false,
            settles_second,
            delivery_count: 0,
            last_count: 0,
            limit: 0,
            grants: VecDeque::new(),
            tags: BTreeSet::new(),
            partial: None,
        }
    }

    /// The broker has attached the link.
    pub(super) fn attached(&mut self, initial_delivery_count: u32) {
        self.delivery_count = initial_delivery_count;
        self.last_count = initial_delivery_count;
        self.limit = initial_delivery_count;
    }

    /// Deliveries that the client has granted and that have not come.
    pub(super) fn credit_left(&self) -> i64 {
        let granted = self.grants.back().map_or(self.limit, |grant| grant.limit);
        distance(self.delivery_count, granted).max(0)
    }

    pub(super) fn awaits_drain(&self) -> bool {
        self.grants.iter().any(|grant| grant.drain)
    }

    /// The last grant is a drain without an answer. One before another grant may stay without.
    pub(super) fn is_draining(&self) -> bool {
        self.grants.back().is_some_and(|grant| grant.drain)
    }

    /// The last grant has no answer.
    pub(super) fn awaits_answer(&self) -> bool {
        self.grants.back().is_some_and(Grant::wants_answer)
    }

    /// The broker sends no more: it knows all grants, and none is left.
    pub(super) fn is_stopped(&self) -> bool {
        self.grants.is_empty() && self.credit_left() == 0 && self.partial.is_none()
    }

    /// Number of grants that the broker may not know.
    pub(super) fn open_grants(&self) -> usize {
        self.grants.len()
    }

    /// Grants credit. Returns false if an answer to this grant could not be told from the answer to another one.
    pub(super) fn grant(&mut self, now: Time, credit: u32, drain: bool, echo: bool) -> bool {
        let limit = self.delivery_count.wrapping_add(credit);
        let mut others = self.grants.iter().map(|grant| grant.limit);
        if others.any(|other| other == limit) || limit == self.limit {
            return false;
        }
        self.grants.push_back(Grant {
            limit,
            drain,
            echo,
            at: now,
        });
        true
    }

    /// Completes a flow with the state of the link: the last grant.
    pub(super) fn fill(&self, flow: &mut Flow<'_>) {
        let (limit, drain, echo) = self
            .grants
            .back()
            .map_or((self.limit, false, false), |grant| {
                (grant.limit, grant.drain, grant.echo)
            });
        flow.delivery_count = Some(self.delivery_count);
        flow.link_credit = Some(distance(self.delivery_count, limit).max(0) as u32);
        flow.drain = drain;
        flow.echo = echo;
    }

    /// Takes the first transfer of a delivery.
    pub(super) fn begin(&mut self, id: u32, tag: &[u8]) -> Result<(), String> {
        self.delivery_count = self.delivery_count.wrapping_add(1);
        let limits = self.grants.iter().map(|grant| grant.limit);
        let is_allowed = limits
            .chain([self.limit])
            .any(|limit| distance(self.delivery_count, limit) >= 0);
        if !is_allowed {
            return Err(format!(
                "delivery {} exceeds the credit, which is up to {} or one of {:?}",
                self.delivery_count, self.limit, self.grants
            ));
        }
        if !self.tags.insert(tag.to_vec()) {
            return Err(format!("delivery {id} has the tag of another one: {tag:?}"));
        }
        self.partial = Some(PartialDelivery {
            id,
            tag: tag.to_vec(),
            payload: Vec::new(),
        });
        Ok(())
    }

    /// Adds a transfer to the unfinished delivery, and returns the delivery after its last one.
    pub(super) fn append(
        &mut self,
        transfer: &Transfer<'_>,
        payload: &[u8],
    ) -> Result<Option<PartialDelivery>, String> {
        let partial = self.partial.as_mut().ok_or("a transfer of no delivery")?;
        let is_other = transfer.delivery_id.is_some_and(|id| id != partial.id)
            || transfer.delivery_tag.is_some_and(|tag| tag != partial.tag);
        if is_other || transfer.aborted {
            return Err(format!("{transfer:?} continues {}", partial.id));
        }
        partial.payload.extend_from_slice(payload);
        match transfer.more {
            true => Ok(None),
            false => Ok(self.partial.take()),
        }
    }

    /// Takes over a flow of the broker for this link, and checks it.
    pub(super) fn handle_flow(
        &mut self,
        flow: &Flow<'_>,
        oracle: &mut Amqp10Oracle,
    ) -> Result<(), String> {
        let (Some(count), Some(credit)) = (flow.delivery_count, flow.link_credit) else {
            return Err(format!("the flow of a sender lacks its state: {flow:?}"));
        };
        let is_drained = flow.drain && credit == 0;
        let unused = distance(self.delivery_count, count);
        if unused < 0 || (unused > 0 && !is_drained) {
            return Err(format!(
                "a flow counts {count} deliveries, and {} came: {flow:?}",
                self.delivery_count
            ));
        }
        let known = self.take_over_grants(flow, count, credit)?;
        let drain = known.iter().rfind(|grant| grant.drain);
        if let (true, Some(last)) = (is_drained, drain) {
            match self.browses {
                true => oracle.browsers.drains += 1,
                false => oracle.drains += 1,
            }
            let is_calm = oracle.calm_since(last.at);
            let may_be_inactive = self.queue == Some(Amqp10Queue::SingleActive);
            let available = flow.available.unwrap_or(0);
            // The flow may answer the first one of several.
            let first = known.iter().find(|grant| grant.drain);
            if let (1.., Some(queue), Some(filter), Some(first), false) =
                (unused, self.queue, self.filter, first, self.browses)
            {
                oracle.check_drain(queue, self.number, filter, first.at)?;
            }
            if unused > 0 && available > 0 && is_calm && !may_be_inactive {
                return Err(format!(
                    "a drain left {available} messages and {unused} credit: {last:?}"
                ));
            }
        }
        if let (false, Some(last)) = (is_drained, known.last().filter(|grant| grant.drain)) {
            // Taken over and not answered.
            self.grants.push_front(*last);
        }
        self.delivery_count = count;
        self.last_count = count;
        Ok(())
    }

    /// Removes the grants up to the one that a flow shows, and returns them.
    ///
    /// Delivery count and credit of the flow are those after the grant. A grant below the delivery count shows as no credit,
    /// and so do those behind it that are below as well. A flow of a drain answers a drain; another one without properties
    /// answers an echo. The broker may answer several grants with one flow, and deliveries above the limit of a grant show that
    /// it has taken over a later one.
    fn take_over_grants(
        &mut self,
        flow: &Flow<'_>,
        count: u32,
        credit: u32,
    ) -> Result<Vec<Grant>, String> {
        let stated = count.wrapping_add(credit);
        let shows = |limit: u32| match credit {
            0 => distance(limit, count) >= 0,
            _ => limit == stated,
        };
        let needed = self.grants_needed(count)?;
        // The last of the needed grants, or a later one.
        let first = needed.saturating_sub(1);
        let position = |from: usize, pred: &dyn Fn(&Grant) -> bool| {
            let found = self.grants.iter().skip(from).position(pred);
            found.map(|found| from + found)
        };
        let answered = match (flow.drain, flow.properties.is_none()) {
            (true, _) => position(first, &|grant| grant.drain && shows(grant.limit)),
            (false, true) => position(0, &|grant| grant.echo),
            (false, false) => None,
        };
        let find = |from: usize| {
            let found = position(from.max(first), &|grant| shows(grant.limit));
            found.map(|found| found + 1)
        };
        // An answer shows the grant that it answers, or a later one. The answer to a grant that was found before shows nothing
        // new.
        let known = answered.and_then(find);
        let known = known.or_else(|| (needed == 0 && shows(self.limit)).then_some(0));
        let Some(mut known) = known.or_else(|| find(0)) else {
            return Err(format!(
                "a flow has the credit up to {stated}, which was not granted: {} or one of {:?}",
                self.limit, self.grants
            ));
        };
        while credit == 0
            && self
                .grants
                .get(known)
                .is_some_and(|grant| shows(grant.limit))
        {
            known += 1;
        }
        let known: Vec<Grant> = self.grants.drain(..known).collect();
        if let Some(last) = known.last() {
            self.limit = last.limit;
        }
        Ok(known)
    }

    /// The number of grants that the broker must have taken over to get to this delivery count.
    fn grants_needed(&self, count: u32) -> Result<usize, String> {
        let allows = |limit: u32| distance(count, limit) >= 0;
        if allows(self.limit) || allows(self.last_count) {
            return Ok(0);
        }
        let found = self.grants.iter().position(|grant| allows(grant.limit));
        found.map(|found| found + 1).ok_or_else(|| {
            format!(
                "a flow counts {count} deliveries, the credit is up to {} or one of {:?}",
                self.limit, self.grants
            )
        })
    }

    pub(super) fn describe_wait(&self) -> String {
        format!(
            "{} deliveries, credit up to {}, then {:?}",
            self.delivery_count, self.limit, self.grants
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(ms: u64) -> Time {
        Time::ZERO + Duration::from_millis(ms)
    }

    fn receiver() -> Receiver {
        let mut receiver = Receiver::new(Some(Amqp10Queue::Quorum), 1, false);
        receiver.attached(0);
        receiver
    }

    fn flow(delivery_count: u32, link_credit: u32, drain: bool, available: u32) -> Flow<'static> {
        Flow {
            next_incoming_id: Some(0),
            incoming_window: 0,
            next_outgoing_id: 0,
            outgoing_window: 0,
            handle: Some(0),
            delivery_count: Some(delivery_count),
            link_credit: Some(link_credit),
            available: Some(available),
            drain,
            echo: false,
            properties: None,
        }
    }

    #[test]
    fn delivery_above_the_credit_is_an_error() {
        let mut receiver = receiver();
        assert!(receiver.grant(at(1), 3, false, false));
        assert!(receiver.grant(at(2), 1, false, true));
        receiver.begin(0, b"0").expect("credit");
        receiver
            .begin(1, b"1")
            .expect("the broker may not know the second grant");
        let oracle = &mut Amqp10Oracle::default();
        // The broker knows the second grant, which is below its count.
        receiver
            .handle_flow(&flow(2, 0, false, 0), oracle)
            .expect("an answer");
        assert!(!receiver.awaits_answer());
        assert!(receiver.begin(2, b"2").is_err());
    }

    #[test]
    fn flow_with_credit_that_was_not_granted_is_an_error() {
        let mut receiver = receiver();
        assert!(receiver.grant(at(1), 3, false, false));
        assert!(receiver.grant(at(2), 5, false, false));
        let oracle = &mut Amqp10Oracle::default();
        assert!(receiver.handle_flow(&flow(0, 8, false, 0), oracle).is_err());
        assert!(receiver.handle_flow(&flow(1, 4, false, 0), oracle).is_err());
        receiver
            .handle_flow(&flow(0, 5, false, 0), oracle)
            .expect("the last grant");
        assert_eq!(receiver.open_grants(), 0);
    }

    #[test]
    fn drain_uses_up_the_credit_and_leaves_no_available_message() {
        let mut receiver = receiver();
        assert!(receiver.grant(at(1), 3, true, false));
        receiver.begin(0, b"0").expect("credit");
        let oracle = &mut Amqp10Oracle::default();
        assert!(receiver.handle_flow(&flow(3, 0, true, 2), oracle).is_err());
        let mut receiver = self::receiver();
        assert!(receiver.grant(at(1), 3, true, false));
        receiver
            .handle_flow(&flow(3, 0, true, 0), oracle)
            .expect("an answer");
        assert!(!receiver.awaits_drain());
        assert_eq!(receiver.credit_left(), 0);
        assert!(receiver.begin(1, b"1").is_err());
    }

    #[test]
    fn drain_must_not_use_up_more_than_the_credit() {
        let mut receiver = receiver();
        assert!(receiver.grant(at(1), 3, true, false));
        let oracle = &mut Amqp10Oracle::default();
        assert!(receiver.handle_flow(&flow(4, 0, true, 0), oracle).is_err());
    }

    /// The broker answers all grants at once when deliveries of the first one wait for the window.
    #[test]
    fn answer_above_the_limit_of_a_drain_is_that_of_a_later_drain() {
        let mut receiver = receiver();
        assert!(receiver.grant(at(1), 7, true, false));
        assert!(receiver.grant(at(2), 11, false, true));
        for delivery in 0..9_u8 {
            receiver
                .begin(delivery.into(), &[delivery])
                .expect("credit");
            receiver.partial = None;
        }
        assert!(receiver.grant(at(3), 0, true, false));
        let oracle = &mut Amqp10Oracle::default();
        receiver
            .handle_flow(&flow(9, 0, true, 5), oracle)
            .expect("an answer");
        assert!(!receiver.awaits_answer());
        assert!(receiver.is_stopped());
        assert!(receiver.begin(9, b"9").is_err());
    }

    #[test]
    fn tag_that_comes_twice_is_an_error() {
        let mut receiver = receiver();
        assert!(receiver.grant(at(1), 3, false, false));
        receiver.begin(0, b"0").expect("credit");
        assert!(receiver.begin(1, b"0").is_err());
    }
}
