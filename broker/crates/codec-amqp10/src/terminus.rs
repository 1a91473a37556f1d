use crate::composite::read_descriptor;
use crate::{
    Decode, DecodeError, Encode, Map, Multiple, Outcome, Output, Reader, Reason, Symbol, Value,
};

/// The part of a terminus that survives a restart of the container (section 3.5.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    /// Nothing.
    #[default]
    None,
    /// The existence and configuration.
    Configuration,
    /// The unsettled state as well.
    UnsettledState,
}

impl<'a> Decode<'a> for Durability {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match reader.read::<u32>()? {
            0 => Ok(Self::None),
            1 => Ok(Self::Configuration),
            2 => Ok(Self::UnsettledState),
            other => Err(Reason::OutOfRange {
                of: "terminus-durability",
                value: u64::from(other),
            }
            .into()),
        }
    }
}

impl Encode for Durability {
    fn encode<O: Output>(&self, out: &mut O) {
        (*self as u32).encode(out);
    }
}

/// When the timer that ends a terminus starts (section 3.5.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ExpiryPolicy {
    /// When the link is detached.
    LinkDetach,
    /// When the session ends.
    #[default]
    SessionEnd,
    /// When the connection closes.
    ConnectionClose,
    /// Never.
    Never,
}

impl ExpiryPolicy {
    const NAMES: [(&'static str, Self); 4] = [
        ("link-detach", Self::LinkDetach),
        ("session-end", Self::SessionEnd),
        ("connection-close", Self::ConnectionClose),
        ("never", Self::Never),
    ];
}

impl<'a> Decode<'a> for ExpiryPolicy {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let symbol: Symbol<'a> = reader.read()?;
        Self::NAMES
            .iter()
            .find(|(name, _)| *name == symbol.as_str())
            .map(|(_, policy)| *policy)
            .ok_or(Reason::UnknownSymbol("terminus-expiry-policy").into())
    }
}

impl Encode for ExpiryPolicy {
    fn encode<O: Output>(&self, out: &mut O) {
        let name = match self {
            Self::LinkDetach => "link-detach",
            Self::SessionEnd => "session-end",
            Self::ConnectionClose => "connection-close",
            Self::Never => "never",
        };
        Symbol::from_static(name).encode(out);
    }
}

composite! {
    /// The node that messages come from (section 3.5.3).
    #[derive(Default)]
    Source<'a> = "source" 0x28 "amqp:source:list" {
        /// The node's address; a string in this standard.
        address "address" optional Value<'a>,
        /// The part that survives a restart.
        durable "durable" default Durability = Durability::None,
        /// When the source expires.
        expiry_policy "expiry-policy" default ExpiryPolicy = ExpiryPolicy::SessionEnd,
        /// Seconds until it expires.
        timeout "timeout" default u32 = 0,
        /// The peer creates the node and assigns its address.
        dynamic "dynamic" default bool = false,
        /// Properties of the node to be created.
        dynamic_node_properties "dynamic-node-properties" optional Map<'a>,
        /// `move` or `copy`.
        distribution_mode "distribution-mode" optional Symbol<'a>,
        /// Named filters, each a described type.
        filter "filter" optional Map<'a>,
        /// The outcome of deliveries that are settled without a terminal state.
        default_outcome "default-outcome" optional Outcome<'a>,
        /// Outcomes that may be chosen.
        outcomes "outcomes" multiple Multiple<'a>,
        /// Extensions.
        capabilities "capabilities" multiple Multiple<'a>,
    }
}

composite! {
    /// The node that messages go to (section 3.5.4).
    #[derive(Default)]
    Target<'a> = "target" 0x29 "amqp:target:list" {
        /// The node's address; a string in this standard. Null: the anonymous terminus.
        address "address" optional Value<'a>,
        /// The part that survives a restart.
        durable "durable" default Durability = Durability::None,
        /// When the target expires.
        expiry_policy "expiry-policy" default ExpiryPolicy = ExpiryPolicy::SessionEnd,
        /// Seconds until it expires.
        timeout "timeout" default u32 = 0,
        /// The peer creates the node and assigns its address.
        dynamic "dynamic" default bool = false,
        /// Properties of the node to be created.
        dynamic_node_properties "dynamic-node-properties" optional Map<'a>,
        /// Extensions.
        capabilities "capabilities" multiple Multiple<'a>,
    }
}

composite! {
    /// The target of a link that controls transactions (section 4.5.1).
    #[derive(Default)]
    Coordinator<'a> = "coordinator" 0x30 "amqp:coordinator:list" {
        /// For example `amqp:local-transactions`.
        capabilities "capabilities" multiple Multiple<'a>,
    }
}

described_field!(Source<'a>, "source");

/// A target of either kind.
#[derive(Clone, Debug, PartialEq)]
pub enum AnyTarget<'a> {
    /// A node for messages.
    Target(Target<'a>),
    /// The controller of transactions.
    Coordinator(Coordinator<'a>),
}

impl<'a> Decode<'a> for AnyTarget<'a> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        const TARGET: u64 = Target::DESCRIPTOR as u64;
        const COORDINATOR: u64 = Coordinator::DESCRIPTOR as u64;
        let known = [
            (Target::SYMBOL, Target::DESCRIPTOR),
            (Coordinator::SYMBOL, Coordinator::DESCRIPTOR),
        ];
        match read_descriptor(reader, &known).map_err(|error| error.of("target"))? {
            TARGET => Target::read_fields(reader).map(Self::Target),
            COORDINATOR => Coordinator::read_fields(reader).map(Self::Coordinator),
            other => Err(DecodeError::from(Reason::UnknownDescriptor(other)).of("target")),
        }
    }
}

impl Encode for AnyTarget<'_> {
    fn encode<O: Output>(&self, out: &mut O) {
        match self {
            Self::Target(target) => target.encode(out),
            Self::Coordinator(coordinator) => coordinator.encode(out),
        }
    }
}
