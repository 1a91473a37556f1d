//! The firehose: copies of what is published and delivered in a virtual host that is traced, to whoever has bound to its
//! trace exchange.

use crate::core::Core;
use crate::sessions::{FIREHOSE_KEY, number};
use message::{Table, Value};
use session::{FlowState, PublishTag, TraceEvent, TracedMessage};
use std::fmt::Display;

/// As RabbitMQ calls it. What it is given itself is not traced.
const EXCHANGE: &str = "amq.rabbitmq.trace";

#[derive(Default)]
pub struct Firehose {
    /// A queue of those who trace does not keep up: copies are left out until it has caught up.
    behind: bool,
}

impl Core {
    fn firehose_session(&self) -> u64 {
        number(self.ctx.shard(), 0, FIREHOSE_KEY)
    }

    /// No queue of those who trace is behind any more.
    pub fn firehose_relieved(&mut self, session: u64) {
        if session == self.firehose_session() {
            self.firehose.behind = false;
        }
    }

    /// Tells those who trace. At most once: nobody waits for it.
    pub fn trace(&mut self, connection: &dyn Display, traced: &TracedMessage<'_>) {
        let message = traced.message;
        if self.firehose.behind || message.exchange() == EXCHANGE || !self.is_traced(traced.vhost) {
            return;
        }
        let key = match traced.what {
            TraceEvent::Published { .. } => format!("publish.{}", message.exchange()),
            TraceEvent::Delivered { queue, .. } => format!("deliver.{queue}"),
        };
        let mut routes = Vec::new();
        let headers = Table::default;
        self.tree.route(
            traced.vhost,
            EXCHANGE,
            &[key.as_str()],
            &headers,
            &mut routes,
        );
        if routes.is_empty() {
            return;
        }
        let mut more = Table::default();
        if let TraceEvent::Delivered { redelivered, .. } = traced.what {
            more.set("redelivered", Value::I32(redelivered.into()));
        }
        more.set("vhost", Value::from(traced.vhost));
        more.set("connection", Value::from(&*connection.to_string()));
        more.set("channel", Value::I32(traced.channel.into()));
        more.set("user", Value::from(traced.user));
        if let TraceEvent::Published { routes } = traced.what {
            let names = routes.iter().filter_map(|id| self.tree.queue_by_id(*id));
            let names = names.map(|record| Value::from(&*record.name));
            more.set("routed_queues", Value::Array(names.collect()));
        }
        let node = self.ctx.config().name.clone();
        let to = (EXCHANGE, key.as_str());
        let Some(copy) = conversion::trace::copy(message, to, &node, more) else {
            return;
        };
        let nobody = PublishTag::NO_CONFIRM;
        for queue in routes {
            let flow = self.publish(self.firehose_session(), queue, nobody, copy.clone());
            if flow == FlowState::Behind {
                tracing::warn!(event = "firehose_behind", vhost = traced.vhost);
                self.firehose.behind = true;
            }
        }
    }

    fn is_traced(&self, vhost: &str) -> bool {
        self.tree.vhost(vhost).is_some_and(|v| v.traced)
    }
}
