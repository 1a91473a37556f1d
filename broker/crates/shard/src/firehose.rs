//! The firehose: copies of the messages that are published and delivered in a traced virtual host, for the queues that are
//! bound to its trace exchange.

use crate::context::Context;
use message::{Message, Table, Value};
use metadata::{QueueId, Tree};
use session::{TraceEvent, TracedMessage};
use std::fmt::Display;

/// The exchange of the copies, named as in RabbitMQ. Messages published to it are not traced.
const EXCHANGE: &str = "amq.rabbitmq.trace";

#[derive(Default)]
pub(crate) struct Firehose {
    /// A queue that gets copies does not keep up: further copies are left out until it has caught up.
    is_behind: bool,
}

/// A copy of a traced message, for these queues.
pub(crate) struct TracedCopy {
    pub routes: Vec<QueueId>,
    pub message: Message,
}

impl Firehose {
    /// Queues that were behind take copies again.
    pub(crate) fn relieve(&mut self) {
        self.is_behind = false;
    }

    /// A queue does not keep up.
    pub(crate) fn fall_behind(&mut self, vhost: &str) {
        tracing::warn!(event = "firehose_behind", vhost);
        self.is_behind = true;
    }

    /// The copy of a message that is traced, if a queue is bound to the trace exchange. Copies are published at most once.
    pub(crate) fn copy(
        &self,
        ctx: &Context,
        tree: &Tree,
        connection: &dyn Display,
        traced: &TracedMessage<'_>,
    ) -> Option<TracedCopy> {
        let message = traced.message;
        if self.is_behind || message.exchange() == EXCHANGE || !is_traced(tree, traced.vhost) {
            return None;
        }
        let key = match traced.what {
            TraceEvent::Published { .. } => format!("publish.{}", message.exchange()),
            TraceEvent::Delivered { queue, .. } => format!("deliver.{queue}"),
        };
        let mut routes = Vec::new();
        let headers = Table::default;
        tree.route(
            traced.vhost,
            EXCHANGE,
            &[key.as_str()],
            &headers,
            &mut routes,
        );
        if routes.is_empty() {
            return None;
        }
        let mut more = Table::default();
        if let TraceEvent::Delivered { redelivered, .. } = traced.what {
            more.set("redelivered", Value::I32(redelivered.into()));
        }
        more.set("vhost", Value::from(traced.vhost));
        more.set("connection", Value::from(&*connection.to_string()));
        more.set("channel", Value::I32(traced.channel.into()));
        more.set("user", Value::from(traced.user));
        if let TraceEvent::Published { routes, .. } = traced.what {
            let names = routes.iter().filter_map(|id| tree.queue_by_id(*id));
            let names = names.map(|record| Value::from(&*record.name));
            more.set("routed_queues", Value::Array(names.collect()));
        }
        let to = (EXCHANGE, key.as_str());
        let message = conversion::trace::copy(message, to, &ctx.config().name, more)?;
        Some(TracedCopy { routes, message })
    }
}

fn is_traced(tree: &Tree, vhost: &str) -> bool {
    tree.vhost(vhost).is_some_and(|v| v.traced)
}
