//! Routes a message from an exchange and routing keys to queues.

use crate::exchanges::{Exchange, Target};
use crate::traffic::TrafficCounter;
use crate::tree::Vhost;
use crate::{QueueId, QueueRecord, Tree, limits};
use routing::{Envelope, Kind};
use smallvec::SmallVec;

/// How routing went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteResult {
    /// To one queue at least.
    Routed,
    /// The exchange is there; nothing took the message.
    Unroutable,
    /// No such exchange (or vhost).
    NoExchange,
}

impl Tree {
    /// Appends the queues that a message published to this exchange goes to, each once, in order of their ids. Exchange
    /// bindings and alternate exchanges are followed, each exchange once. The message is asked only where it matters.
    pub fn route(
        &self,
        vhost: &str,
        exchange: &str,
        keys: &[&str],
        message: &dyn Envelope,
        out: &mut Vec<QueueId>,
    ) -> RouteResult {
        match self.find_routes(vhost, exchange, keys, message, out) {
            Some((0, _)) => RouteResult::Unroutable,
            Some(_) => RouteResult::Routed,
            None => RouteResult::NoExchange,
        }
    }

    /// As [`Tree::route`], for a message that a client publishes: it is counted.
    pub fn publish(
        &self,
        vhost: &str,
        exchange: &str,
        keys: &[&str],
        message: &dyn Envelope,
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

    /// Whether a message that is published to one exchange comes by another one on its way, by bindings between exchanges or as
    /// an alternate exchange.
    pub fn comes_by(
        &self,
        vhost: &str,
        (exchange, by): (&str, &str),
        keys: &[&str],
        message: &dyn Envelope,
    ) -> bool {
        let Some(vhost) = self.vhosts.get(vhost) else {
            return false;
        };
        // Mostly nothing leads there.
        let leads = |by: &&Exchange| !by.bound.is_empty() || vhost.alternates > 0;
        let Some(by) = vhost.exchanges.get(by).filter(leads) else {
            return false;
        };
        let Some(first) = vhost.exchanges.get(exchange) else {
            return false;
        };
        let seen = self.follow(vhost, first, keys, message, &mut Vec::new());
        seen.contains(&by.number)
    }

    /// How many queues it goes to, and where the exchange is counted.
    #[inline]
    fn find_routes(
        &self,
        vhost: &str,
        exchange: &str,
        keys: &[&str],
        message: &dyn Envelope,
        out: &mut Vec<QueueId>,
    ) -> Option<(usize, &TrafficCounter)> {
        let vhost = self.vhosts.get(vhost)?;
        let start = out.len();
        let counter = if exchange.is_empty() {
            out.extend(keys.iter().filter_map(|key| vhost.queues.get(*key)));
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

    /// The numbers of the exchanges that it came by.
    fn follow(
        &self,
        vhost: &Vhost,
        first: &Exchange,
        keys: &[&str],
        message: &dyn Envelope,
        out: &mut Vec<QueueId>,
    ) -> SmallVec<[u64; 4]> {
        let mut seen: SmallVec<[u64; 4]> = SmallVec::from_slice(&[first.number]);
        let mut next = 0;
        let mut found: Vec<Target> = Vec::new();
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
            if exchange.kind == Kind::LocalRandom {
                self.keep_one_near(message, &mut found);
            }
            if found.is_empty()
                && let Some(alternate) = &exchange.alternate
                && let Some(alternate) = vhost.exchanges.get(alternate)
            {
                found.push(Target::Exchange(alternate.number));
            }
            for target in &found {
                match *target {
                    Target::Queue(id) => out.push(id),
                    Target::Exchange(number) => {
                        if !seen.contains(&number) && seen.len() < limits::HOPS {
                            seen.push(number);
                        }
                    }
                }
            }
        }
        seen
    }

    /// Of a local random exchange's destinations one on the publisher's node; none when none is there. To a message that
    /// no client publishes every node is near.
    fn keep_one_near(&self, message: &dyn Envelope, found: &mut Vec<Target>) {
        let origin = message.origin();
        let near = |queue: &QueueRecord| {
            origin.is_none_or(|o| queue.members.first().is_some_and(|n| n.0 == o.node))
        };
        found.retain(|target| match target {
            Target::Queue(id) => self.queue_by_id(*id).is_some_and(|q| near(q)),
            Target::Exchange(_) => false,
        });
        if found.len() > 1 {
            let chosen = origin.map_or(0, |o| o.random) % found.len() as u64;
            found.swap(0, chosen as usize);
            found.truncate(1);
        }
    }
}

/// Removes doubles from the sorted end of a list.
fn dedup_from(list: &mut Vec<QueueId>, start: usize) {
    let mut kept = start;
    for at in start..list.len() {
        if at == start || list[at] != list[kept - 1] {
            list[kept] = list[at];
            kept += 1;
        }
    }
    list.truncate(kept);
}
