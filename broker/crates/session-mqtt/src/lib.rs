//! The MQTT session: a sans-io state machine for 3.1, 3.1.1 and 5.0.
//!
//! [`MqttSession`] implements the trait `session::Session`: bytes and notices in, bytes and calls on the node out. Sections and statement
//! numbers are those of MQTT 5.0, unless 3.1.1 is named. Where the standard leaves room, RabbitMQ's behaviour decides.
//!
//! Subscriptions are in the node's [`topics::Hub`]; a publish goes there and, through the exchange that
//! [`Settings::exchange`] names, to the queues that AMQP clients bound to it. A session that outlives its connection has such a
//! queue as well: its messages of QoS 1 and 2 come from there. Everything a client can make the session keep has a bound in
//! [`Limits`].
#![forbid(unsafe_code)]

mod acknowledge;
mod aliases;
mod completed;
mod connect;
mod deliver;
mod ending;
mod extras;
mod for_topic;
mod handover;
mod link;
mod packet_ids;
mod publish;
mod session;
mod settings;
mod state;
mod stored;
mod subscribe;
mod traffic;
mod unanswered;

pub use for_topic::for_topic;
pub use publish::publish_will;
pub use session::MqttSession;
pub use settings::{Limits, SessionConfig, Settings};
pub use stored::{client_of, shared_subscription};
pub use unanswered::publish_answer;
