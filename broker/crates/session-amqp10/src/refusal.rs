//! Errors of operations, as the client is told.

use codec_amqp10::{AmqpError, Condition};
use operations::{ErrorKind, OperationError};

/// The reason why an operation of the client is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub condition: Condition<'static>,
    pub text: String,
}

impl Refusal {
    pub(crate) fn new(condition: Condition<'static>, text: impl Into<String>) -> Refusal {
        Refusal {
            condition,
            text: text.into(),
        }
    }

    pub(crate) fn to_error(&self) -> AmqpError<'_> {
        AmqpError::new(self.condition, &self.text)
    }
}

impl From<OperationError> for Refusal {
    fn from(error: OperationError) -> Refusal {
        let condition = match error.kind {
            ErrorKind::AccessRefused => Condition::UnauthorizedAccess,
            ErrorKind::NotFound => Condition::NotFound,
            ErrorKind::ResourceLocked => Condition::ResourceLocked,
            ErrorKind::PreconditionFailed => Condition::PreconditionFailed,
            ErrorKind::NotImplemented => Condition::NotImplemented,
            ErrorKind::NotPermitted | ErrorKind::Unavailable => Condition::InternalError,
        };
        Refusal::new(condition, error.text)
    }
}

/// The refusal for the code and text of a queue ([`queue::QueueReply::Refused`]).
pub(crate) fn from_queue_reply(code: u16, text: String) -> Refusal {
    let condition = match code {
        403 | 405 => Condition::ResourceLocked,
        404 => Condition::NotFound,
        406 => Condition::PreconditionFailed,
        540 => Condition::NotImplemented,
        _ => Condition::InternalError,
    };
    Refusal::new(condition, text)
}
