//! What clients published to exchanges where this tree is read: figures of this tree only, no part of what is replicated. They are
//! kept where routing finds the exchange anyway, so that counting costs two additions.

use crate::Tree;
use std::cell::Cell;

/// What came to an exchange from clients, and how many queues it went to from there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages that clients published to the exchange.
    pub published: u64,
    /// Each message once for each queue.
    pub routed: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct TrafficCounter(Cell<Traffic>);

impl TrafficCounter {
    pub(crate) fn count(&self, published: u64, routed: u64) {
        let before = self.0.get();
        self.0.set(Traffic {
            published: before.published + published,
            routed: before.routed + routed,
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

    /// What was counted of an exchange; None: it is not there.
    pub fn traffic(&self, vhost: &str, exchange: &str) -> Option<Traffic> {
        self.counter(vhost, exchange).map(|c| c.0.get())
    }

    /// Counts what [`Tree::publish`] did not see: messages that were routed before they were published, and receivers that are no
    /// queues of the exchange.
    pub fn count_traffic(&self, vhost: &str, exchange: &str, more: Traffic) {
        if let Some(counter) = self.counter(vhost, exchange) {
            counter.count(more.published, more.routed);
        }
    }

    /// Goes on counting where another tree, which this one takes the place of, has got to.
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
