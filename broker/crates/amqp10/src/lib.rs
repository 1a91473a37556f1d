//! AMQP 1.0 connections, sessions and links: a sans-io protocol engine without queues.
//!
//! [`Connection`] takes bytes and time, and gives bytes and [`Event`]s. A broker above it answers the events with the methods of
//! the connection: it accepts an open or an attach, sends deliveries, settles, and grants credit. The engine knows no queue, user
//! or shard. Section numbers are those of the OASIS standard, part 2 unless another part is named.
//!
//! # One event at a time
//!
//! [`Connection::poll`] reads frames from the front of the caller's input until one of them concerns the broker, and returns that
//! event. The broker handles it before the next frame is read. So the engine holds no queue of events, contents of an event borrow
//! from the input, and a refused link or a closed connection takes effect on the next frame.
//!
//! # State machines
//!
//! - [`Connection`] (section 2.4.7) is in one of these phases, each a type of its own: `Handshake` (protocol headers of section
//!   2.2 and SASL of part 5, section 5.3), `Opening` (open frames), `Running`, `Closing` (our close is sent, the peer's is
//!   awaited), and closed. While the broker decides about SASL or an open, the engine reads no further frame, so a client may
//!   pipeline (section 2.4.5) without limits of its own.
//! - A session (section 2.5.5) is `Beginning` (we began), `Mapped`, or `Ending` (our end is sent; frames are discarded until the
//!   peer's end). It counts transfers in its windows (section 2.5.6).
//! - A link (section 2.6) is `Attaching` (the peer or we attached, the other side did not answer), a `SenderLink`, a
//!   `ReceiverLink`, or `Detaching` (our detach is sent; frames are discarded until the peer's). Only an attaching link becomes
//!   a sender or receiver, and only these have credit (section 2.6.7).
//!
//! Decisions of the broker are bound to tokens ([`PendingSasl`], [`PendingOpen`], [`PendingAttach`]) that cannot be copied, so
//! that no request is answered twice.
//!
//! # Flow control
//!
//! `credit(snd) = delivery-count(rcv) + credit(rcv) - delivery-count(snd)` in serial number arithmetic ([`Serial`], RFC 1982).
//! Receiving links grant [`Config::link_credit`] and renew it when half is used and fewer deliveries than that are unsettled, so
//! that a slow queue withholds credit from its own link only. The incoming window is [`Config::incoming_window`] transfers and
//! is renewed at half; [`Connection::block_publishers`] closes it.
//!
//! # Limits
//!
//! Every buffer has a limit in [`Config`]: frames by [`Config::max_frame_size`], messages in several transfers by
//! [`Config::max_message_size`] each and [`Config::max_unfinished_size`] together, output by [`Config::output_limit`], unsettled
//! deliveries by link credit (incoming) and [`Config::max_unsettled`] (outgoing), links by [`Config::handle_max`], sessions by
//! [`Config::channel_max`].
//!
//! # Errors
//!
//! Each error of the peer ends the smallest thing that it concerns with the condition that the standard names: a detach for an
//! error of one link, an end for an error of a session (numbers of its scope, unknown handles, undecodable field values), and a
//! close for an error of the connection (framing, undecodable bytes, channels). All other links and sessions go on.
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

mod config;
mod connection;
mod deliveries;
mod error;
mod event;
mod handshake;
mod ids;
mod link;
mod serial;
mod session;

pub use config::{ClientSasl, Config, Peer};
pub use connection::{Connection, OpenReply};
pub use error::{CommandError, Fault, Level, SendError};
pub use event::{
    AttachReply, Attached, BorrowedPart, Cause, CreditState, Event, IncomingDelivery, MessagePart,
    OutgoingDelivery, OutgoingDeliveryOf, Payload, PendingAttach, PendingOpen, PendingSasl,
    SaslDecision, SettledDelivery,
};
pub use ids::{LinkId, SessionId, ShortBytes};
pub use link::LinkState;
pub use serial::Serial;
pub use session::SessionState;

/// Milliseconds of a clock that never goes back.
pub type Millis = u64;
