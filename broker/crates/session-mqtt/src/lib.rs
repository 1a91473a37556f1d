//! The MQTT session: a sans-io state machine for MQTT 3.1, 3.1.1 and 5.0.
//!
//! [`MqttSession`] implements the trait `session::Session`: its inputs are bytes and events, its
//! outputs are bytes and calls of the node ([`Broker`](::session::Broker)). Section and statement numbers are
//! those of MQTT 5.0, unless 3.1.1 is named. Where the standard leaves a choice, the session
//! behaves like RabbitMQ.
//!
//! Subscriptions are registered in the [`topics::MqttRouter`] of the shard. A publish goes to that
//! router and, through the exchange named by [`MqttSettings::exchange`], to the queues that AMQP
//! clients have bound to it. A session that outlives its connection has such a queue as well, which
//! stores its QoS 1 and 2 messages. [`SessionLimits`] bounds all state that a client can create.
#![deny(missing_docs, unreachable_pub)]
#![forbid(unsafe_code)]

mod acknowledge;
mod active_state;
mod aliases;
mod client_connection;
mod completed;
mod connect;
mod deliver;
mod ending;
mod handover;
mod packet_ids;
mod protocol;
mod publish;
mod rare_state;
mod session;
mod session_queue;
mod settings;
mod shard_service;
mod shared;
mod state;
mod stream_subscriptions;
mod subscribe;
mod unanswered_publishes;

pub use protocol::MqttProtocol;
pub use session::MqttSession;
pub use settings::{MqttSettings, SessionConfig, SessionLimits, UnauthorizedAction};
pub use shard_service::{MqttService, MqttShard};
