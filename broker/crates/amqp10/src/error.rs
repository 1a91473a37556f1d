use std::fmt;

use codec_amqp10::{AmqpError, Condition, DecodeError, FrameError};

/// Bytes of a description that go to the peer, so that frames with one fit in the smallest frame size.
const MAX_DESCRIPTION_SIZE: usize = 256;

/// The scope of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The link: a detach with the error.
    Link,
    /// The session: an end with the error.
    Session,
    /// The connection: a close with the error.
    Connection,
}

/// An error that the engine found in the peer's frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The scope that it ends.
    pub level: Level,
    /// The condition that the peer is told.
    pub condition: Condition<'static>,
    /// The description that the peer is told.
    pub description: String,
}

impl Fault {
    pub(crate) fn new(
        level: Level,
        condition: Condition<'static>,
        description: impl fmt::Display,
    ) -> Self {
        Self {
            level,
            condition,
            description: shortened(&description.to_string()).to_owned(),
        }
    }

    pub(crate) fn link(condition: Condition<'static>, description: impl fmt::Display) -> Self {
        Self::new(Level::Link, condition, description)
    }

    pub(crate) fn session(condition: Condition<'static>, description: impl fmt::Display) -> Self {
        Self::new(Level::Session, condition, description)
    }

    pub(crate) fn connection(
        condition: Condition<'static>,
        description: impl fmt::Display,
    ) -> Self {
        Self::new(Level::Connection, condition, description)
    }

    /// An error of a frame that a session would handle: wrong contents end the session, broken bytes the connection.
    pub(crate) fn decode(error: DecodeError) -> Self {
        let level = if error.is_well_formed() && error.performative.is_some() {
            Level::Session
        } else {
            Level::Connection
        };
        Self::new(level, error.condition(), error)
    }

    pub(crate) fn framing(error: FrameError) -> Self {
        Self::connection(Condition::FramingError, error)
    }

    /// The error as it stands in a frame.
    pub fn to_error(&self) -> AmqpError<'_> {
        AmqpError {
            condition: self.condition,
            description: Some(&self.description),
            info: None,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.condition.symbol(), self.description)
    }
}

impl std::error::Error for Fault {}

/// Cuts a text at the last character that fits.
pub(crate) fn shortened(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_DESCRIPTION_SIZE)]
}

/// A command that the state of the connection does not allow. Nothing was changed or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandError {
    /// The connection is not open, or closing.
    NotRunning,
    /// The session or link does not exist any more.
    Gone,
    /// The link is of the other role, or was not attached yet.
    WrongState,
    /// The frame would be larger than the peer accepts.
    FrameTooLarge,
    /// Every channel or handle that the peer allows is in use.
    LimitReached,
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotRunning => "the connection is not open",
            Self::Gone => "the session or link has ended",
            Self::WrongState => "the link cannot do this in its state",
            Self::FrameTooLarge => "the frame is larger than the peer's max-frame-size",
            Self::LimitReached => "the peer's channel-max or handle-max is reached",
        })
    }
}

impl std::error::Error for CommandError {}

/// The reason why a delivery cannot be sent now. Nothing was changed or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The link does not exist, or is no sender.
    Command(CommandError),
    /// The receiver granted no credit.
    NoCredit,
    /// The peer's incoming window is closed, or an earlier message waits for it.
    WindowClosed,
    /// The output is above its limit.
    OutputFull,
    /// The peer did not settle [`crate::Config::max_unsettled`] deliveries.
    TooManyUnsettled,
    /// The message is larger than the link's receiver accepts.
    MessageTooLarge {
        /// The receiver's limit in bytes.
        max: u64,
    },
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command(error) => error.fmt(f),
            Self::NoCredit => f.write_str("the link has no credit"),
            Self::WindowClosed => f.write_str("the session's outgoing window is closed"),
            Self::OutputFull => f.write_str("the output is full"),
            Self::TooManyUnsettled => f.write_str("the session has too many unsettled deliveries"),
            Self::MessageTooLarge { max } => {
                write!(
                    f,
                    "the message is larger than the link's limit of {max} bytes"
                )
            }
        }
    }
}

impl std::error::Error for SendError {}

impl From<CommandError> for SendError {
    fn from(error: CommandError) -> Self {
        Self::Command(error)
    }
}
