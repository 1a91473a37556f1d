use crate::composite::read_descriptor;
use crate::reader::wrong;
use crate::value::code;
use crate::{
    AmqpError, Decode, DecodeError, Described, Descriptor, Encode, Map, Output, Reader, Reason,
    Value,
};

composite! {
    /// How much of a delivery the receiver has (section 3.4.1). Not terminal.
    Received = "received" 0x23 "amqp:received:list" {
        /// The section in which the transfer is to be resumed.
        section_number "section-number" required u32,
        /// The offset in that section.
        section_offset "section-offset" required u64,
    }
}

composite! {
    /// The message was processed (section 3.4.2).
    Accepted = "accepted" 0x24 "amqp:accepted:list" {}
}

composite! {
    /// The message is invalid and cannot be processed (section 3.4.3).
    Rejected<'a> = "rejected" 0x25 "amqp:rejected:list" {
        /// Why.
        error "error" optional AmqpError<'a>,
    }
}

composite! {
    /// The message was not processed (section 3.4.4).
    Released = "released" 0x26 "amqp:released:list" {}
}

composite! {
    /// The message was changed and not processed (section 3.4.5).
    Modified<'a> = "modified" 0x27 "amqp:modified:list" {
        /// Counts as a failed delivery.
        delivery_failed "delivery-failed" default bool = false,
        /// Must not be delivered to this link again.
        undeliverable_here "undeliverable-here" default bool = false,
        /// Annotations that are added to the message or replace those of it.
        message_annotations "message-annotations" optional Map<'a>,
    }
}

composite! {
    /// A request for a new transaction (section 4.5.2).
    Declare<'a> = "declare" 0x31 "amqp:declare:list" {
        /// A global transaction id, which the standard leaves to extensions.
        global_id "global-id" optional Value<'a>,
    }
}

composite! {
    /// A request to end a transaction (section 4.5.3).
    Discharge<'a> = "discharge" 0x32 "amqp:discharge:list" {
        /// The transaction.
        txn_id "txn-id" required &'a [u8],
        /// Rolls back instead of committing.
        fail "fail" default bool = false,
    }
}

composite! {
    /// The outcome of a declare (section 4.5.5).
    Declared<'a> = "declared" 0x33 "amqp:declared:list" {
        /// The new transaction.
        txn_id "txn-id" required &'a [u8],
    }
}

composite! {
    /// Work that belongs to a transaction (section 4.5.8).
    TransactionalState<'a> = "transactional-state" 0x34 "amqp:transactional-state:list" {
        /// The transaction.
        txn_id "txn-id" required &'a [u8],
        /// The outcome that the delivery has when the transaction commits.
        outcome "outcome" optional Outcome<'a>,
    }
}

described_field!(Declare<'a>, "declare");
described_field!(Discharge<'a>, "discharge");

/// Symbolic descriptors of the delivery states.
const STATES: &[(&str, u8)] = &[
    (Accepted::SYMBOL, Accepted::DESCRIPTOR),
    (Rejected::SYMBOL, Rejected::DESCRIPTOR),
    (Released::SYMBOL, Released::DESCRIPTOR),
    (Modified::SYMBOL, Modified::DESCRIPTOR),
    (Received::SYMBOL, Received::DESCRIPTOR),
    (Declared::SYMBOL, Declared::DESCRIPTOR),
    (TransactionalState::SYMBOL, TransactionalState::DESCRIPTOR),
];

/// A terminal delivery state of section 3.4.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome<'a> {
    /// The message was processed.
    Accepted,
    /// The message is invalid.
    Rejected(Option<AmqpError<'a>>),
    /// The message was not processed.
    Released,
    /// The message was changed and not processed.
    Modified(Modified<'a>),
}

impl<'a> Decode<'a> for Outcome<'a> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        // A transactional state is no outcome. Refusing it before it is read keeps hostile bytes from nesting such states.
        let mut ahead = *reader;
        let descriptor = read_descriptor(&mut ahead, STATES)?;
        if descriptor == u64::from(TransactionalState::DESCRIPTOR) {
            return Err(Reason::UnknownDescriptor(descriptor).into());
        }
        match DeliveryState::decode(reader)? {
            DeliveryState::Outcome(outcome) => Ok(outcome),
            _ => Err(Reason::UnknownDescriptor(descriptor).into()),
        }
    }
}

impl Encode for Outcome<'_> {
    #[inline]
    fn encode<O: Output>(&self, out: &mut O) {
        match self {
            Self::Accepted => Accepted {}.encode(out),
            Self::Rejected(error) => Rejected {
                error: error.clone(),
            }
            .encode(out),
            Self::Released => Released {}.encode(out),
            Self::Modified(modified) => modified.encode(out),
        }
    }
}

/// The state of a delivery at one of its ends (section 2.5.5). The set is open: states that the standard does not define are kept.
#[derive(Clone, Debug, PartialEq)]
pub enum DeliveryState<'a> {
    /// A terminal state.
    Outcome(Outcome<'a>),
    /// How much the receiver has.
    Received(Received),
    /// A transaction was declared.
    Declared(Declared<'a>),
    /// The outcome takes effect when a transaction commits.
    Transactional(TransactionalState<'a>),
    /// A state that the standard does not define.
    Other(Described<'a>),
}

impl DeliveryState<'_> {
    /// The message was processed.
    pub const ACCEPTED: DeliveryState<'static> = DeliveryState::Outcome(Outcome::Accepted);
    /// The message was not processed.
    pub const RELEASED: DeliveryState<'static> = DeliveryState::Outcome(Outcome::Released);

    /// Returns true if the delivery can reach no other state.
    pub fn is_terminal(&self) -> bool {
        match self {
            Self::Outcome(_) | Self::Declared(_) => true,
            Self::Transactional(state) => state.outcome.is_some(),
            Self::Received(_) | Self::Other(_) => false,
        }
    }
}

impl<'a> Decode<'a> for DeliveryState<'a> {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        // Nearly all states are this one in this encoding.
        let accepted = [
            code::DESCRIBED,
            code::SMALLULONG,
            Accepted::DESCRIPTOR,
            code::LIST0,
        ];
        match reader.skip(accepted) {
            true => Ok(Self::ACCEPTED),
            false => Self::decode_any(reader),
        }
    }
}

impl<'a> DeliveryState<'a> {
    #[inline(never)]
    fn decode_any(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        const ACCEPTED: u64 = Accepted::DESCRIPTOR as u64;
        const REJECTED: u64 = Rejected::DESCRIPTOR as u64;
        const RELEASED: u64 = Released::DESCRIPTOR as u64;
        const MODIFIED: u64 = Modified::DESCRIPTOR as u64;
        const RECEIVED: u64 = Received::DESCRIPTOR as u64;
        const DECLARED: u64 = Declared::DESCRIPTOR as u64;
        const TRANSACTIONAL: u64 = TransactionalState::DESCRIPTOR as u64;

        let start = *reader;
        match reader.byte()? {
            code::DESCRIBED => {}
            other => return wrong("a delivery state", other),
        }
        let code = match reader.read()? {
            Descriptor::Code(code) => code,
            Descriptor::Symbol(symbol) => STATES
                .iter()
                .find(|(name, _)| *name == symbol.as_str())
                .map_or(u64::MAX, |(_, code)| u64::from(*code)),
        };
        Ok(match code {
            ACCEPTED => {
                Accepted::read_fields(reader)?;
                Self::ACCEPTED
            }
            REJECTED => Self::Outcome(Outcome::Rejected(Rejected::read_fields(reader)?.error)),
            RELEASED => {
                Released::read_fields(reader)?;
                Self::RELEASED
            }
            MODIFIED => Self::Outcome(Outcome::Modified(Modified::read_fields(reader)?)),
            RECEIVED => Self::Received(Received::read_fields(reader)?),
            DECLARED => Self::Declared(Declared::read_fields(reader)?),
            TRANSACTIONAL => Self::Transactional(TransactionalState::read_fields(reader)?),
            _ => {
                *reader = start;
                match reader.read()? {
                    Value::Described(described) => Self::Other(described),
                    _ => return wrong("a delivery state", start.peek()?),
                }
            }
        })
    }
}

impl Encode for DeliveryState<'_> {
    #[inline]
    fn encode<O: Output>(&self, out: &mut O) {
        match self {
            Self::Outcome(outcome) => outcome.encode(out),
            Self::Received(state) => state.encode(out),
            Self::Declared(state) => state.encode(out),
            Self::Transactional(state) => state.encode(out),
            Self::Other(described) => described.encode(out),
        }
    }
}
