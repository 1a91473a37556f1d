//! Routing of a message from an exchange and routing keys to queues.

use crate::exchanges::{BindingTarget, Exchange};
use crate::traffic::TrafficCounter;
use crate::tree::Vhost;
use crate::{QueueId, QueueRecord, Tree, limits};
use routing::{ExchangeType, RoutingInput};
use smallvec::SmallVec;

/// Result of routing a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteResult {
    /// At least one queue takes the message.
    Routed,
    /// The exchange exists, but no queue takes the message.
    Unroutable,
    /// The exchange or the vhost does not exist.
    NoExchange,
}

impl Tree {
    /// Appends the queues that a message for this exchange goes to, each once, ordered by id. Follows exchange bindings
    /// and alternate exchanges, each exchange once. Reads from the message only if the routing depends on it.
    pub fn route(
        &self,
        vhost: &str,
        exchange: &str,
        keys: &[&str],
        message: &dyn RoutingInput,
        out: &mut Vec<QueueId>,
    ) -> RouteResult {
        match self.find_routes(vhost, exchange, keys, message, out) {
            Some((0, _)) => RouteResult::Unroutable,
            Some(_) => RouteResult::Routed,
            None => RouteResult::NoExchange,
        }
    }

    /// Like [`Tree::route`], for a message that a client publishes: it is counted.
    pub fn publish(
        &self,
        vhost: &str,
        exchange: &str,
        keys: &[&str],
        message: &dyn RoutingInput,
        out: &mut Vec<QueueId>,
    ) -> RouteResult {
        let Some((found, counter)) = self.find_routes(vhost, exchange, keys, message, out) else {
            return RouteResult::NoExchange;
        };
        counter.count(1, found as u64);
        match found {
            0 => RouteResult::Unroutable,
            _ => RouteResult::Routed,
        }
    }

    /// Whether a message that is published to one exchange passes another one, because of bindings between exchanges or
    /// as an alternate exchange.
    pub fn passes_exchange(
        &self,
        vhost: &str,
        (exchange, target_exchange): (&str, &str),
        keys: &[&str],
        message: &dyn RoutingInput,
    ) -> bool {
        let Some(vhost) = self.vhosts.get(vhost) else {
            return false;
        };
        // In most cases nothing leads to the exchange.
        let is_reachable =
            |target_exchange: &&Exchange| !target_exchange.bound.is_empty() || vhost.alternates > 0;
        let Some(target_exchange) = vhost.exchanges.get(target_exchange).filter(is_reachable)
        else {
            return false;
        };
        let Some(first) = vhost.exchanges.get(exchange) else {
            return false;
        };
        let seen = self.follow(vhost, first, keys, message, &mut Vec::new());
        seen.contains(&target_exchange.number)
    }

    /// The number of queues that the message goes to, and the counter of the exchange.
    #[inline]
    fn find_routes(
        &self,
        vhost: &str,
        exchange: &str,
        keys: &[&str],
        message: &dyn RoutingInput,
        out: &mut Vec<QueueId>,
    ) -> Option<(usize, &TrafficCounter)> {
        let vhost = self.vhosts.get(vhost)?;
        let start = out.len();
        let counter = if exchange.is_empty() {
            // A loop, because `extend` of an iterator of unknown length costs more than one push.
            for key in keys {
                if let Some(queue) = vhost.queues.get(*key) {
                    out.push(*queue);
                }
            }
            &vhost.default_exchange
        } else {
            let exchange = vhost.exchanges.get(exchange)?;
            self.follow(vhost, exchange, keys, message, out);
            &exchange.counter
        };
        if out.len() - start > 1 {
            out[start..].sort_unstable();
            dedup_from(out, start);
            if !self.lost.is_empty() {
                self.skip_lost(out, start);
            }
        }
        Some((out.len() - start, counter))
    }

    /// The numbers of the exchanges that the message passes.
    fn follow(
        &self,
        vhost: &Vhost,
        first: &Exchange,
        keys: &[&str],
        message: &dyn RoutingInput,
        out: &mut Vec<QueueId>,
    ) -> SmallVec<[u64; 4]> {
        let mut seen: SmallVec<[u64; 4]> = SmallVec::from_slice(&[first.number]);
        let mut next = 0;
        let mut found: Vec<BindingTarget> = Vec::new();
        while let Some(number) = seen.get(next).copied() {
            next += 1;
            let exchange = if number == first.number {
                Some(first)
            } else {
                self.exchange_names
                    .get(&number)
                    .and_then(|(_, name)| vhost.exchanges.get(name))
            };
            let Some(exchange) = exchange else {
                continue;
            };
            found.clear();
            exchange.matcher.route(keys, message, &mut found);
            if exchange.kind == ExchangeType::LocalRandom {
                self.keep_one_local(message, &mut found);
            }
            if found.is_empty()
                && let Some(alternate) = &exchange.alternate
                && let Some(alternate) = vhost.exchanges.get(alternate)
            {
                found.push(BindingTarget::Exchange(alternate.number));
            }
            for target in &found {
                match *target {
                    BindingTarget::Queue(id) => out.push(id),
                    BindingTarget::Exchange(number) => {
                        if !seen.contains(&number) && seen.len() < limits::HOPS {
                            seen.push(number);
                        }
                    }
                }
            }
        }
        seen
    }

    /// Keeps one random destination of a local random exchange on the publisher's node, or none if it has none there.
    /// For a message that no client publishes, every node counts as local.
    fn keep_one_local(&self, message: &dyn RoutingInput, found: &mut Vec<BindingTarget>) {
        let origin = message.origin();
        let is_local = |queue: &QueueRecord| {
            origin.is_none_or(|o| queue.members.first().is_some_and(|n| n.0 == o.node))
        };
        found.retain(|target| match target {
            BindingTarget::Queue(id) => self.queue_by_id(*id).is_some_and(|q| is_local(q)),
            BindingTarget::Exchange(_) => false,
        });
        if found.len() > 1 {
            let chosen = origin.map_or(0, |o| o.random) % found.len() as u64;
            found.swap(0, chosen as usize);
            found.truncate(1);
        }
    }
}

/// Removes duplicates from the sorted end of a list.
fn dedup_from(list: &mut Vec<QueueId>, start: usize) {
    debug_assert!(list[start..].is_sorted());
    let mut kept_len = start;
    for index in start..list.len() {
        if index == start || list[index] != list[kept_len - 1] {
            list[kept_len] = list[index];
            kept_len += 1;
        }
    }
    list.truncate(kept_len);
}
