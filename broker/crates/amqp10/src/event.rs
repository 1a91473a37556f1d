use bytes::Bytes;
use codec_amqp10::{
    AmqpError, AnyTarget, Attach, Begin, DeliveryState, Map, Multiple, Open, ReceiverSettleMode,
    Role, SenderSettleMode, Source,
};
use smallvec::SmallVec;

use crate::{Fault, LinkId, SessionId, ShortBytes};

/// A SASL message that the broker has to answer with [`crate::Connection::answer_sasl`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the connection reads nothing until this is answered"]
pub struct PendingSasl(pub(crate) ());

/// An open that the broker has to answer with [`crate::Connection::accept_open`] or [`crate::Connection::refuse_open`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the connection reads nothing until this is answered"]
pub struct PendingOpen(pub(crate) ());

/// An attach that the broker has to answer with [`crate::Connection::accept_attach`] or [`crate::Connection::refuse_attach`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the link is not attached until this is answered"]
pub struct PendingAttach {
    pub(crate) link: LinkId,
}

impl PendingAttach {
    /// The id that the link has when it is attached.
    pub fn link(&self) -> LinkId {
        self.link
    }
}

/// The broker's answer to a SASL message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaslDecision<'a> {
    /// Asks the client for more.
    Challenge(&'a [u8]),
    /// The client is authenticated.
    Accept,
    /// The credentials are wrong. The connection closes.
    Reject,
    /// The credentials could not be checked now. The connection closes.
    TemporaryError,
}

/// Something of the peer that concerns the broker.
#[derive(Debug, PartialEq)]
pub enum Event<'a> {
    /// The client chose a SASL mechanism that the server offers.
    SaslInit {
        /// The mechanism's name.
        mechanism: &'a str,
        /// Its first message.
        initial_response: Option<&'a [u8]>,
        /// The host that the client means.
        hostname: Option<&'a str>,
        /// To be answered.
        pending: PendingSasl,
    },
    /// The client answered a challenge.
    SaslResponse {
        /// The mechanism's message.
        response: &'a [u8],
        /// To be answered.
        pending: PendingSasl,
    },
    /// The client opened the connection.
    OpenRequested {
        /// The client's open.
        open: Box<Open<'a>>,
        /// To be answered.
        pending: PendingOpen,
    },
    /// The server accepted our open.
    Opened {
        /// The server's open.
        open: Box<Open<'a>>,
    },
    /// A session is mapped: the peer began it, or answered our begin.
    SessionBegun {
        /// The session.
        session: SessionId,
        /// The peer's begin.
        begin: Box<Begin<'a>>,
    },
    /// The peer attached a link.
    AttachRequested {
        /// The peer's attach. Its role is the peer's.
        attach: Box<Attach<'a>>,
        /// To be answered.
        pending: PendingAttach,
    },
    /// The peer answered our attach. Source and target are null if it refuses the link; a detach follows then.
    LinkAttached {
        /// The link.
        link: LinkId,
        /// The peer's attach.
        attach: Box<Attach<'a>>,
    },
    /// A whole message came on a receiving link.
    MessageReceived {
        /// The link.
        link: LinkId,
        /// The message.
        delivery: IncomingDelivery<'a>,
    },
    /// The peer told the state of deliveries. Settled ones are forgotten by the engine.
    Disposition {
        /// The session.
        session: SessionId,
        /// The peer's role for these deliveries: a receiver speaks of deliveries that we sent.
        role: Role,
        /// The state. None with `settled`: the default outcome of the source.
        state: Option<DeliveryState<'a>>,
        /// The peer settled. If not, and the state is terminal, [`crate::Connection::settle_sent`] has to follow.
        settled: bool,
        /// The deliveries in the order of their ids. Empty ones are not reported.
        deliveries: SmallVec<[SettledDelivery; 1]>,
    },
    /// The receiver of a sending link told its credit. With `drain` [`crate::Connection::drained`] has to follow, and with `echo`
    /// [`crate::Connection::report_flow`].
    CreditChanged {
        /// The link.
        link: LinkId,
        /// The new state.
        state: CreditState,
    },
    /// The sender of a receiving link told how many messages it has.
    AvailableChanged {
        /// The link.
        link: LinkId,
        /// The number of messages.
        available: u32,
    },
    /// The sender of a receiving link used up the credit that was granted with `drain`.
    Drained {
        /// The link.
        link: LinkId,
    },
    /// A session can send again after [`crate::SendError::WindowClosed`].
    WindowOpened {
        /// The session.
        session: SessionId,
    },
    /// A link is detached. Its unsettled deliveries are forgotten.
    LinkDetached {
        /// The link.
        link: LinkId,
        /// The terminus is closed as well.
        closed: bool,
        /// By the peer, or by an error that the engine found.
        cause: Cause<'a>,
    },
    /// A session and its links have ended.
    SessionEnded {
        /// The session.
        session: SessionId,
        /// By the peer, or by an error that the engine found.
        cause: Cause<'a>,
    },
    /// The connection and all that belongs to it have ended. The output still has to be sent. The last event.
    Closed {
        /// By the peer, or by an error that the engine found.
        cause: Cause<'a>,
    },
}

/// The side that ended a link, session or connection.
#[derive(Clone, Debug, PartialEq)]
pub enum Cause<'a> {
    /// The peer, with an error or without.
    Peer(Option<AmqpError<'a>>),
    /// The engine, because of an error in the peer's frames.
    Fault(Fault),
}

/// A message that the peer sent. The broker has to settle it with [`crate::Connection::settle_received`], also if `settled` is
/// set: only settled deliveries give the link new credit.
#[derive(Debug, PartialEq)]
pub struct IncomingDelivery<'a> {
    /// The delivery.
    pub id: u32,
    /// The message's format; 0 for that of part 3.
    pub message_format: u32,
    /// The peer does not want to know the outcome.
    pub settled: bool,
    /// The transaction that the message belongs to.
    pub transaction: Option<ShortBytes>,
    /// The message.
    pub payload: Payload<'a>,
}

/// The bytes of a message.
#[derive(Debug, PartialEq, Eq)]
pub enum Payload<'a> {
    /// The rest of the only frame.
    Frame(&'a [u8]),
    /// The collected contents of several frames.
    Collected(Vec<u8>),
}

impl AsRef<[u8]> for Payload<'_> {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Frame(bytes) => bytes,
            Self::Collected(bytes) => bytes,
        }
    }
}

/// A delivery that a disposition is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettledDelivery {
    /// The link.
    pub link: LinkId,
    /// The delivery.
    pub id: u32,
    /// The number that the broker gave to the delivery when it sent it; 0 for received ones.
    pub token: u64,
}

/// The flow state of a sending link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CreditState {
    /// Deliveries that may be sent.
    pub credit: u32,
    /// The receiver wants the credit to be used up at once.
    pub drain: bool,
    /// The receiver wants an answer.
    pub echo: bool,
}

/// The answer to an attach.
#[derive(Clone, Debug, Default)]
pub struct AttachReply<'a> {
    /// The source that is in use.
    pub source: Option<Source<'a>>,
    /// The target that is in use.
    pub target: Option<AnyTarget<'a>>,
    /// The largest message that a receiving link accepts. None: that of the configuration.
    pub max_message_size: Option<u64>,
    /// Credit that a receiving link grants and renews. None: that of the configuration. 0: the broker grants credit itself.
    pub link_credit: Option<u32>,
    /// How a sending link settles. None: as the receiver asked.
    pub snd_settle_mode: Option<SenderSettleMode>,
    /// When a receiving link settles. None: with the outcome.
    pub rcv_settle_mode: Option<ReceiverSettleMode>,
    /// Extensions that the link supports.
    pub offered_capabilities: Multiple<'a>,
    /// Link properties.
    pub properties: Option<Map<'a>>,
}

/// A link that was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The link.
    pub link: LinkId,
    /// Credit that the receiver of a sending link granted before the link was accepted.
    pub credit: Option<CreditState>,
}

/// A piece of an outgoing message.
pub trait MessagePart: AsRef<[u8]> {
    /// The piece to keep until it can be sent.
    fn to_bytes(&self) -> Bytes;
}

impl MessagePart for Bytes {
    fn to_bytes(&self) -> Bytes {
        self.clone()
    }
}

/// A piece of an outgoing message that is borrowed.
#[derive(Clone, Copy, Debug)]
pub enum BorrowedPart<'a> {
    /// Copied if it cannot be sent at once.
    Slice(&'a [u8]),
    /// Shared if it cannot be sent at once.
    Shared(&'a Bytes),
}

impl AsRef<[u8]> for BorrowedPart<'_> {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Slice(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

impl MessagePart for BorrowedPart<'_> {
    fn to_bytes(&self) -> Bytes {
        match self {
            Self::Slice(bytes) => Bytes::copy_from_slice(bytes),
            Self::Shared(bytes) => Bytes::clone(bytes),
        }
    }
}

/// A message for the peer in shared pieces.
pub type OutgoingDelivery<'a> = OutgoingDeliveryOf<'a, Bytes>;

/// A message for the peer.
#[derive(Clone, Copy, Debug)]
pub struct OutgoingDeliveryOf<'a, P> {
    /// The tag, unique among the unsettled deliveries of the link; at most 32 bytes.
    pub tag: &'a [u8],
    /// The message's format; 0 for that of part 3.
    pub message_format: u32,
    /// Settled, if the link is in mixed mode. Other modes decide for themselves.
    pub settled: bool,
    /// The message, in pieces that are sent one after the other.
    pub parts: &'a [P],
    /// A number that [`Event::Disposition`] returns.
    pub token: u64,
}
