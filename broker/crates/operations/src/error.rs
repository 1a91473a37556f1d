//! The error of a refused operation.

use metadata::{ChangeError, Name};

/// The class of a refused operation, which decides the protocol's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The user lacks a permission, or the name is reserved (AMQP 0.9.1: 403).
    AccessRefused,
    /// The queue, exchange or vhost does not exist or cannot be reached (404).
    NotFound,
    /// The queue is exclusive to another connection (405).
    ResourceLocked,
    /// An argument is invalid or contradicts the existing object (406).
    PreconditionFailed,
    /// The object's type does not support the operation (540).
    NotImplemented,
    /// The configuration of the node does not permit the declaration (541).
    NotPermitted,
    /// The cluster cannot decide at the moment (541).
    Unavailable,
}

/// A refused operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct OperationError {
    /// The class of the error.
    pub kind: ErrorKind,
    /// The object, the cause and, where there is one, the remedy.
    pub text: String,
    /// The queue or exchange that the tree does not contain. On a node whose tree may be outdated, the operation can
    /// be tried again after the tree has caught up.
    pub missing: Option<Name>,
}

/// The result of a check or plan.
pub type OperationResult<T = ()> = Result<T, OperationError>;

impl OperationError {
    pub(crate) fn new(kind: ErrorKind, text: impl Into<String>) -> OperationError {
        OperationError {
            kind,
            text: text.into(),
            missing: None,
        }
    }

    /// The error for an object that the tree does not contain. `object` is `queue` or `exchange`.
    pub fn missing(object: &str, name: &str, vhost: &str) -> OperationError {
        OperationError {
            missing: Some(name.into()),
            ..OperationError::new(
                ErrorKind::NotFound,
                format!("no {object} '{name}' in vhost '{vhost}'"),
            )
        }
    }
}

impl From<ChangeError> for OperationError {
    fn from(error: ChangeError) -> OperationError {
        let (kind, text) = match error {
            ChangeError::NotFound(text) => (ErrorKind::NotFound, text),
            ChangeError::PreconditionFailed(text) | ChangeError::Invalid(text) => {
                (ErrorKind::PreconditionFailed, text)
            }
            ChangeError::ResourceLocked(text) => (ErrorKind::ResourceLocked, text),
            ChangeError::AccessRefused(text) => (ErrorKind::AccessRefused, text),
            ChangeError::NotPermitted(text) => (ErrorKind::NotPermitted, text),
            ChangeError::Unavailable(text) => (ErrorKind::Unavailable, text),
        };
        OperationError::new(kind, text)
    }
}

/// Returns an [`OperationError`] with a formatted text from the enclosing function.
macro_rules! refuse {
    ($kind:ident, $($text:tt)+) => {
        return Err($crate::error::OperationError::new($crate::error::ErrorKind::$kind, format!($($text)+)))
    };
}
pub(crate) use refuse;
