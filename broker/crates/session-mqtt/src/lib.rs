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
mod active_state;
mod aliases;
mod client_connection;
mod completed;
mod connect;
mod deliver;
mod ending;
mod for_topic;
mod handover;
mod packet_ids;
mod protocol;
mod publish;
mod rare_state;
mod session;
mod session_queue;
mod settings;
mod state;
mod subscribe;
mod unanswered_publishes;

pub use for_topic::for_topic;
pub use protocol::Mqtt;
pub use publish::publish_will;
pub use session::MqttSession;
pub use session_queue::{client_of, shared_subscription};
pub use settings::{Limits, SessionConfig, Settings};
pub use unanswered_publishes::publish_answer;
