//! Errors as clients expect them: code, name, text (section 1.2 of the protocol's reference, texts as RabbitMQ's).

use metadata::{Name, Refused};

/// A reply code that ends a channel or the connection. Of the standard's others 312 comes with basic.return; RabbitMQ, and so
/// we, never send 311, 313, 402 and 502: what is too large is a 406, and what cannot be read a 501.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
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

impl Code {
    pub fn number(self) -> u16 {
        match self {
            Code::ConnectionForced => 320,
            Code::AccessRefused => 403,
            Code::NotFound => 404,
            Code::ResourceLocked => 405,
            Code::PreconditionFailed => 406,
            Code::FrameError => 501,
            Code::CommandInvalid => 503,
            Code::ChannelError => 504,
            Code::UnexpectedFrame => 505,
            Code::ResourceError => 506,
            Code::NotAllowed => 530,
            Code::NotImplemented => 540,
            Code::InternalError => 541,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Code::ConnectionForced => "CONNECTION_FORCED",
            Code::AccessRefused => "ACCESS_REFUSED",
            Code::NotFound => "NOT_FOUND",
            Code::ResourceLocked => "RESOURCE_LOCKED",
            Code::PreconditionFailed => "PRECONDITION_FAILED",
            Code::FrameError => "FRAME_ERROR",
            Code::CommandInvalid => "COMMAND_INVALID",
            Code::ChannelError => "CHANNEL_ERROR",
            Code::UnexpectedFrame => "UNEXPECTED_FRAME",
            Code::ResourceError => "RESOURCE_ERROR",
            Code::NotAllowed => "NOT_ALLOWED",
            Code::NotImplemented => "NOT_IMPLEMENTED",
            Code::InternalError => "INTERNAL_ERROR",
        }
    }

    /// Ends the connection, not only the channel.
    pub fn is_hard(self) -> bool {
        !matches!(
            self,
            Code::AccessRefused | Code::NotFound | Code::ResourceLocked | Code::PreconditionFailed
        )
    }

    /// From a queue's refusal.
    fn from_number(number: u16) -> Code {
        [
            Code::AccessRefused,
            Code::NotFound,
            Code::ResourceLocked,
            Code::PreconditionFailed,
            Code::ResourceError,
            Code::NotAllowed,
            Code::NotImplemented,
        ]
        .into_iter()
        .find(|c| c.number() == number)
        .unwrap_or(Code::InternalError)
    }
}

/// Bytes of a short string.
const MAX_SHORT: usize = 255;
/// At the end of a text that is longer.
const MORE: &str = "...";

/// Why a method failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub code: Code,
    pub text: String,
    /// The name of a queue or exchange that this node's tree does not have.
    pub unknown: Option<Name>,
}

impl Failure {
    pub fn new(code: Code, text: impl Into<String>) -> Failure {
        Failure {
            code,
            text: text.into(),
            unknown: None,
        }
    }

    /// 404 for a queue or an exchange that this node does not know.
    pub fn unknown(kind: &str, name: &str, vhost: &str) -> Failure {
        Failure {
            unknown: Some(name.into()),
            ..Failure::new(
                Code::NotFound,
                format!("no {kind} '{name}' in vhost '{vhost}'"),
            )
        }
    }

    pub fn of_queue(code: u16, text: String) -> Failure {
        Failure::new(Code::from_number(code), text)
    }

    pub fn of_change(refused: Refused) -> Failure {
        match refused {
            Refused::NotFound(text) => Failure::new(Code::NotFound, text),
            Refused::PreconditionFailed(text) | Refused::Invalid(text) => {
                Failure::new(Code::PreconditionFailed, text)
            }
            Refused::ResourceLocked(text) => Failure::new(Code::ResourceLocked, text),
            Refused::AccessRefused(text) => Failure::new(Code::AccessRefused, text),
            Refused::Unavailable(text) => Failure::new(Code::InternalError, text),
        }
    }

    /// What goes over the wire: the name in front of the text.
    pub fn reply_text(&self) -> String {
        let mut text = format!("{} - {}", self.code.name(), self.text);
        if text.len() > MAX_SHORT {
            text.truncate(text.floor_char_boundary(MAX_SHORT - MORE.len()));
            text.push_str(MORE);
        }
        text
    }
}

/// Short for a result whose error closes something.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// `return Err(...)` in one line.
macro_rules! refuse {
    ($code:ident, $($text:tt)+) => {
        return Err($crate::failure::Failure::new($crate::failure::Code::$code, format!($($text)+)))
    };
}
pub(crate) use refuse;
