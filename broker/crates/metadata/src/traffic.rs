//! Counters of client publishes by exchange, as this tree's shard has seen them. They are not replicated. They are
//! stored with the exchange that routing looks up anyway, so that counting costs two additions.

use crate::Tree;
use std::cell::Cell;

/// Publishes to an exchange, and the number of queues that they were routed to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages that clients published to the exchange.
    pub published: u64,
    /// Number of routed copies: each message counts once for each queue.
    pub routed: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct TrafficCounter(Cell<Traffic>);

impl TrafficCounter {
    pub(crate) fn count(&self, published: u64, routed: u64) {
        let previous = self.0.get();
        self.0.set(Traffic {
            published: previous.published + published,
            routed: previous.routed + routed,
        });
    }
}

impl Tree {
    fn counter(&self, vhost: &str, exchange: &str) -> Option<&TrafficCounter> {
        let vhost = self.vhosts.get(vhost)?;
        match exchange {
            "" => Some(&vhost.default_exchange),
            name => vhost.exchanges.get(name).map(|x| &x.counter),
        }
    }

    /// The counters of an exchange. `None`: the exchange does not exist.
    pub fn traffic(&self, vhost: &str, exchange: &str) -> Option<Traffic> {
        self.counter(vhost, exchange).map(|c| c.0.get())
    }

    /// Counts publishes that [`Tree::publish`] did not see: messages that were routed before they were published, and
    /// receivers that are not queues of the exchange.
    pub fn count_traffic(&self, vhost: &str, exchange: &str, more: Traffic) {
        if let Some(counter) = self.counter(vhost, exchange) {
            counter.count(more.published, more.routed);
        }
    }

    /// Adds the counters of the tree that this one replaces.
    pub fn take_traffic(&self, before: &Tree) {
        for (name, vhost) in &before.vhosts {
            let exchanges = vhost.exchanges.iter().map(|(n, x)| (&**n, &x.counter));
            for (exchange, counter) in exchanges.chain([("", &vhost.default_exchange)]) {
                let counted = counter.0.get();
                if counted != Traffic::default() {
                    self.count_traffic(name, exchange, counted);
                }
            }
        }
    }
}
