//! Errors that close a channel or connection: reply code, name and text (section 1.2 of the
//! protocol reference; texts as in RabbitMQ).

use metadata::{ChangeError, Name};
use operations::{ErrorKind, OperationError};

/// A reply code that closes a channel or the connection. Of the other codes in the specification,
/// 312 is used by basic.return. As in RabbitMQ, 311, 313, 402 and 502 are never sent: oversized
/// messages get 406 and undecodable frames 501.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyCode {
    ConnectionForced,
    AccessRefused,
    NotFound,
    ResourceLocked,
    PreconditionFailed,
    FrameError,
    CommandInvalid,
    ChannelError,
    UnexpectedFrame,
    ResourceError,
    NotAllowed,
    NotImplemented,
    InternalError,
}

impl ReplyCode {
    pub(crate) fn number(self) -> u16 {
        match self {
            ReplyCode::ConnectionForced => 320,
            ReplyCode::AccessRefused => 403,
            ReplyCode::NotFound => 404,
            ReplyCode::ResourceLocked => 405,
            ReplyCode::PreconditionFailed => 406,
            ReplyCode::FrameError => 501,
            ReplyCode::CommandInvalid => 503,
            ReplyCode::ChannelError => 504,
            ReplyCode::UnexpectedFrame => 505,
            ReplyCode::ResourceError => 506,
            ReplyCode::NotAllowed => 530,
            ReplyCode::NotImplemented => 540,
            ReplyCode::InternalError => 541,
        }
    }

    fn name(self) -> &'static str {
        match self {
            ReplyCode::ConnectionForced => "CONNECTION_FORCED",
            ReplyCode::AccessRefused => "ACCESS_REFUSED",
            ReplyCode::NotFound => "NOT_FOUND",
            ReplyCode::ResourceLocked => "RESOURCE_LOCKED",
            ReplyCode::PreconditionFailed => "PRECONDITION_FAILED",
            ReplyCode::FrameError => "FRAME_ERROR",
            ReplyCode::CommandInvalid => "COMMAND_INVALID",
            ReplyCode::ChannelError => "CHANNEL_ERROR",
            ReplyCode::UnexpectedFrame => "UNEXPECTED_FRAME",
            ReplyCode::ResourceError => "RESOURCE_ERROR",
            ReplyCode::NotAllowed => "NOT_ALLOWED",
            ReplyCode::NotImplemented => "NOT_IMPLEMENTED",
            ReplyCode::InternalError => "INTERNAL_ERROR",
        }
    }

    /// Returns true if the code closes the connection and not only the channel.
    pub(crate) fn is_hard(self) -> bool {
        !matches!(
            self,
            ReplyCode::AccessRefused
                | ReplyCode::NotFound
                | ReplyCode::ResourceLocked
                | ReplyCode::PreconditionFailed
        )
    }

    /// Converts the code of a queue's error reply.
    fn from_number(number: u16) -> ReplyCode {
        [
            ReplyCode::AccessRefused,
            ReplyCode::NotFound,
            ReplyCode::ResourceLocked,
            ReplyCode::PreconditionFailed,
            ReplyCode::ResourceError,
            ReplyCode::NotAllowed,
            ReplyCode::NotImplemented,
        ]
        .into_iter()
        .find(|c| c.number() == number)
        .unwrap_or(ReplyCode::InternalError)
    }
}

/// Maximum length of a short string in bytes.
const MAX_SHORT: usize = 255;
/// Suffix of a truncated text.
const ELLIPSIS: &str = "...";

/// The reason why a method failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub code: ReplyCode,
    pub text: String,
    /// The name of a queue or exchange that is missing from this node's tree.
    pub unknown: Option<Name>,
}

impl Failure {
    pub(crate) fn new(code: ReplyCode, text: impl Into<String>) -> Failure {
        Failure {
            code,
            text: text.into(),
            unknown: None,
        }
    }

    pub(crate) fn from_queue_reply(code: u16, text: String) -> Failure {
        Failure::new(ReplyCode::from_number(code), text)
    }

    pub(crate) fn from_change_error(error: ChangeError) -> Failure {
        OperationError::from(error).into()
    }

    /// The reply text on the wire: the name of the code and the text.
    pub(crate) fn reply_text(&self) -> String {
        let mut text = format!("{} - {}", self.code.name(), self.text);
        if text.len() > MAX_SHORT {
            text.truncate(text.floor_char_boundary(MAX_SHORT - ELLIPSIS.len()));
            text.push_str(ELLIPSIS);
        }
        text
    }
}

impl From<OperationError> for Failure {
    fn from(error: OperationError) -> Failure {
        let code = match error.kind {
            ErrorKind::AccessRefused => ReplyCode::AccessRefused,
            ErrorKind::NotFound => ReplyCode::NotFound,
            ErrorKind::ResourceLocked => ReplyCode::ResourceLocked,
            ErrorKind::PreconditionFailed => ReplyCode::PreconditionFailed,
            ErrorKind::NotImplemented => ReplyCode::NotImplemented,
            ErrorKind::NotPermitted | ErrorKind::Unavailable => ReplyCode::InternalError,
        };
        Failure {
            unknown: error.missing,
            ..Failure::new(code, error.text)
        }
    }
}

/// The result of a method; an error closes the channel or connection.
pub(crate) type MethodResult<T = ()> = Result<T, Failure>;

/// Returns a [`Failure`] with a formatted text from the enclosing function.
macro_rules! refuse {
    ($code:ident, $($text:tt)+) => {
        return Err($crate::failure::Failure::new($crate::failure::ReplyCode::$code, format!($($text)+)))
    };
}
pub(crate) use refuse;
