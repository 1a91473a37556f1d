use crate::{Decode, DecodeError, Encode, Map, Output, Reader, Symbol};

macro_rules! conditions {
    ($( $(#[$attribute:meta])* $name:ident $text:literal, )*) => {
        /// An error condition (sections 2.8.15 to 2.8.18 and 4.5.8). Conditions that the standard does not define are kept.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Condition<'a> {
            $( $(#[$attribute])* $name, )*
            /// A condition that the standard does not define.
            Other(Symbol<'a>),
        }

        impl<'a> Condition<'a> {
            /// The conditions of the standard.
            pub const STANDARD: &'static [Condition<'static>] = &[$( Condition::$name, )*];

            /// The condition's symbol.
            pub fn symbol(&self) -> Symbol<'a> {
                match self {
                    $( Self::$name => const { Symbol::from_static($text) }, )*
                    Self::Other(symbol) => *symbol,
                }
            }
        }

        impl<'a> From<Symbol<'a>> for Condition<'a> {
            fn from(symbol: Symbol<'a>) -> Self {
                match symbol.as_str() {
                    $( $text => Self::$name, )*
                    _ => Self::Other(symbol),
                }
            }
        }
    };
}

conditions! {
    /// An unexpected error of the peer itself.
    InternalError "amqp:internal-error",
    /// An entity does not exist.
    NotFound "amqp:not-found",
    /// The client has no permission.
    UnauthorizedAccess "amqp:unauthorized-access",
    /// Data could not be decoded.
    DecodeError "amqp:decode-error",
    /// The peer exceeded its allocation of a resource.
    ResourceLimitExceeded "amqp:resource-limit-exceeded",
    /// The peer used a frame in a manner that the standard does not permit.
    NotAllowed "amqp:not-allowed",
    /// A frame body has a field with an invalid value.
    InvalidField "amqp:invalid-field",
    /// The functionality is not implemented.
    NotImplemented "amqp:not-implemented",
    /// Another client has exclusive access to the entity.
    ResourceLocked "amqp:resource-locked",
    /// A precondition is not met.
    PreconditionFailed "amqp:precondition-failed",
    /// The entity was deleted.
    ResourceDeleted "amqp:resource-deleted",
    /// The peer sent a frame that its state does not permit.
    IllegalState "amqp:illegal-state",
    /// The frame size that the peer allows is too small.
    FrameSizeTooSmall "amqp:frame-size-too-small",
    /// An operator closed the connection.
    ConnectionForced "amqp:connection:forced",
    /// No frame can be formed from the bytes.
    FramingError "amqp:connection:framing-error",
    /// The container is at another address.
    ConnectionRedirect "amqp:connection:redirect",
    /// The peer sent more transfers than the session's incoming window allows.
    WindowViolation "amqp:session:window-violation",
    /// A frame for a link that was detached with an error.
    ErrantLink "amqp:session:errant-link",
    /// The handle belongs to another link.
    HandleInUse "amqp:session:handle-in-use",
    /// The handle belongs to no link.
    UnattachedHandle "amqp:session:unattached-handle",
    /// An operator detached the link.
    DetachForced "amqp:link:detach-forced",
    /// The peer sent more transfers than the link credit allows.
    TransferLimitExceeded "amqp:link:transfer-limit-exceeded",
    /// A message is larger than the link allows.
    MessageSizeExceeded "amqp:link:message-size-exceeded",
    /// The node is at another address.
    LinkRedirect "amqp:link:redirect",
    /// The link is attached elsewhere.
    Stolen "amqp:link:stolen",
    /// The transaction does not exist.
    TransactionUnknownId "amqp:transaction:unknown-id",
    /// The transaction was rolled back.
    TransactionRollback "amqp:transaction:rollback",
    /// The transaction took too long.
    TransactionTimeout "amqp:transaction:timeout",
}

impl<'a> Decode<'a> for Condition<'a> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(reader.read::<Symbol<'a>>()?.into())
    }
}

impl Encode for Condition<'_> {
    fn encode<O: Output>(&self, out: &mut O) {
        self.symbol().encode(out);
    }
}

composite! {
    /// Details of an error (section 2.8.14).
    AmqpError<'a> = "error" 0x1d "amqp:error:list" {
        /// The condition.
        condition "condition" required Condition<'a>,
        /// Text for people.
        description "description" optional &'a str,
        /// More about the error.
        info "info" optional Map<'a>,
    }
}

described_field!(AmqpError<'a>, "error");

impl<'a> AmqpError<'a> {
    /// An error with a text and no further information.
    pub fn new(condition: Condition<'a>, description: &'a str) -> Self {
        Self {
            condition,
            description: Some(description),
            info: None,
        }
    }
}
