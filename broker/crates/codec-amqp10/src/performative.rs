use crate::composite::read_descriptor;
use crate::value::code;
use crate::{
    AmqpError, AnyTarget, Decode, DecodeError, DeliveryState, Encode, MAX_DELIVERY_TAG_SIZE, Map,
    Multiple, Output, Reader, Reason, Source,
};

/// The role of a link endpoint (section 2.8.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Sends messages.
    Sender,
    /// Receives messages.
    Receiver,
}

impl Role {
    /// The role of the other end.
    pub fn opposite(self) -> Self {
        match self {
            Self::Sender => Self::Receiver,
            Self::Receiver => Self::Sender,
        }
    }
}

impl<'a> Decode<'a> for Role {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(if reader.read()? {
            Self::Receiver
        } else {
            Self::Sender
        })
    }
}

impl Encode for Role {
    #[inline]
    fn encode<O: Output>(&self, out: &mut O) {
        (*self == Self::Receiver).encode(out);
    }
}

macro_rules! settle_mode {
    ($(#[$attribute:meta])* $name:ident $title:literal { $( $(#[$variant_attribute:meta])* $variant:ident = $code:literal ),* $(,)? }) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $( $(#[$variant_attribute])* $variant = $code, )*
        }

        impl<'a> Decode<'a> for $name {
            #[inline]
            fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
                match reader.read::<u8>()? {
                    $( $code => Ok(Self::$variant), )*
                    other => Err(Reason::OutOfRange { of: $title, value: u64::from(other) }.into()),
                }
            }
        }

        impl Encode for $name {
            #[inline]
            fn encode<O: Output>(&self, out: &mut O) {
                (*self as u8).encode(out);
            }
        }
    };
}

settle_mode! {
    /// How the sender settles its deliveries (section 2.8.2).
    SenderSettleMode "sender-settle-mode" {
        /// All deliveries are sent unsettled.
        Unsettled = 0,
        /// All deliveries are sent settled.
        Settled = 1,
        /// Each delivery says for itself.
        Mixed = 2,
    }
}

settle_mode! {
    /// When the receiver settles deliveries (section 2.8.3).
    ReceiverSettleMode "receiver-settle-mode" {
        /// With the outcome.
        First = 0,
        /// After the sender settled.
        Second = 1,
    }
}

composite! {
    /// Negotiates connection parameters (section 2.7.1).
    Open<'a> = "open" 0x10 "amqp:open:list" {
        /// The id of the source container.
        container_id "container-id" required &'a str,
        /// The target host; RabbitMQ's clients name the virtual host.
        hostname "hostname" optional &'a str,
        /// The largest frame that the sender of this frame accepts.
        max_frame_size "max-frame-size" default u32 = u32::MAX,
        /// The highest channel number.
        channel_max "channel-max" default u16 = u16::MAX,
        /// Milliseconds without a frame after which the sender of this frame closes the connection.
        idle_time_out "idle-time-out" optional u32,
        /// Languages of texts, in order of preference.
        outgoing_locales "outgoing-locales" multiple Multiple<'a>,
        /// Languages of texts from the peer.
        incoming_locales "incoming-locales" multiple Multiple<'a>,
        /// Extensions that the sender of this frame supports.
        offered_capabilities "offered-capabilities" multiple Multiple<'a>,
        /// Extensions that it may use if the peer supports them.
        desired_capabilities "desired-capabilities" multiple Multiple<'a>,
        /// Connection properties.
        properties "properties" optional Map<'a>,
    }
}

composite! {
    /// Begins a session on a channel (section 2.7.2).
    Begin<'a> = "begin" 0x11 "amqp:begin:list" {
        /// The peer's channel, if the peer began the session.
        remote_channel "remote-channel" optional u16,
        /// The transfer id of the next transfer that the sender of this frame sends.
        next_outgoing_id "next-outgoing-id" required u32,
        /// Transfers that it can receive now.
        incoming_window "incoming-window" required u32,
        /// Transfers that it may send.
        outgoing_window "outgoing-window" required u32,
        /// The highest handle that the peer may use.
        handle_max "handle-max" default u32 = u32::MAX,
        /// Extensions that the sender of this frame supports.
        offered_capabilities "offered-capabilities" multiple Multiple<'a>,
        /// Extensions that it may use if the peer supports them.
        desired_capabilities "desired-capabilities" multiple Multiple<'a>,
        /// Session properties.
        properties "properties" optional Map<'a>,
    }
}

composite! {
    /// Attaches a link to a session (section 2.7.3).
    Attach<'a> = "attach" 0x12 "amqp:attach:list" {
        /// The link's name, unique between two containers and for each direction.
        name "name" required &'a str,
        /// The number of the link in frames of this direction.
        handle "handle" required u32,
        /// The role of the sender of this frame.
        role "role" required Role,
        /// How the sender settles.
        snd_settle_mode "snd-settle-mode" default SenderSettleMode = SenderSettleMode::Mixed,
        /// When the receiver settles.
        rcv_settle_mode "rcv-settle-mode" default ReceiverSettleMode = ReceiverSettleMode::First,
        /// Where messages come from.
        source "source" optional Source<'a>,
        /// Where messages go.
        target "target" optional AnyTarget<'a>,
        /// Unsettled deliveries by their tags.
        unsettled "unsettled" optional Map<'a>,
        /// The map of unsettled deliveries is incomplete.
        incomplete_unsettled "incomplete-unsettled" default bool = false,
        /// The delivery count at the start; mandatory from a sender.
        initial_delivery_count "initial-delivery-count" optional u32,
        /// The largest message that the sender of this frame accepts. 0: no limit.
        max_message_size "max-message-size" optional u64,
        /// Extensions that the sender of this frame supports.
        offered_capabilities "offered-capabilities" multiple Multiple<'a>,
        /// Extensions that it may use if the peer supports them.
        desired_capabilities "desired-capabilities" multiple Multiple<'a>,
        /// Link properties.
        properties "properties" optional Map<'a>,
    }
}

composite! {
    /// The flow state of a session and, with a handle, of a link (section 2.7.4).
    Flow<'a> = "flow" 0x13 "amqp:flow:list" {
        /// The transfer id that the sender of this frame expects next. Null before it knows the peer's begin.
        next_incoming_id "next-incoming-id" optional u32,
        /// Transfers that it can receive now.
        incoming_window "incoming-window" required u32,
        /// The transfer id of its next transfer.
        next_outgoing_id "next-outgoing-id" required u32,
        /// Transfers that it may send.
        outgoing_window "outgoing-window" required u32,
        /// The link. Null: the fields below are null as well.
        handle "handle" optional u32,
        /// The link's delivery count.
        delivery_count "delivery-count" optional u32,
        /// Deliveries that the link's receiver can take.
        link_credit "link-credit" optional u32,
        /// Messages that the link's sender has.
        available "available" optional u32,
        /// The sender has to use up its credit at once.
        drain "drain" default bool = false,
        /// The peer has to answer with its own flow state.
        echo "echo" default bool = false,
        /// Link properties.
        properties "properties" optional Map<'a>,
    }
}

/// The bytes that identify a delivery on its link while it is unsettled (section 2.8.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag<'a>(pub(crate) &'a [u8]);

impl<'a> Decode<'a> for Tag<'a> {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let bytes: &'a [u8] = reader.read()?;
        if bytes.len() > MAX_DELIVERY_TAG_SIZE {
            return Err(Reason::DeliveryTag(bytes.len()).into());
        }
        Ok(Self(bytes))
    }
}

/// Transfers a message or a part of one (section 2.7.5). The payload follows in the frame body.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Transfer<'a> {
    /// The link.
    pub handle: u32,
    /// The delivery. May be null in all transfers of a delivery but the first.
    pub delivery_id: Option<u32>,
    /// The delivery's tag, like the id; at most 32 bytes.
    pub delivery_tag: Option<&'a [u8]>,
    /// The format of the message, like the id.
    pub message_format: Option<u32>,
    /// The sender settled the delivery.
    pub settled: Option<bool>,
    /// More transfers of this delivery follow.
    pub more: bool,
    /// The settle mode of this delivery, if the link allows both.
    pub rcv_settle_mode: Option<ReceiverSettleMode>,
    /// The state at the sender.
    pub state: Option<DeliveryState<'a>>,
    /// Resumes an earlier delivery.
    pub resume: bool,
    /// The sender gave the delivery up.
    pub aborted: bool,
    /// The receiver need not hurry with its disposition.
    pub batchable: bool,
}

impl<'a> Transfer<'a> {
    /// The numeric descriptor.
    pub const DESCRIPTOR: u8 = 0x14;
    /// The symbolic descriptor.
    pub const SYMBOL: &'static str = "amqp:transfer:list";

    #[inline]
    pub(crate) fn read_fields(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let mut fields = crate::composite::FieldReader::open(reader, "transfer")?;
        let transfer = Self {
            handle: fields.required("handle")?,
            delivery_id: fields.optional("delivery-id")?,
            delivery_tag: fields.optional::<Tag<'a>>("delivery-tag")?.map(|tag| tag.0),
            message_format: fields.optional("message-format")?,
            settled: fields.optional("settled")?,
            more: fields.optional("more")?.unwrap_or(false),
            rcv_settle_mode: fields.optional("rcv-settle-mode")?,
            state: fields.optional("state")?,
            resume: fields.optional("resume")?.unwrap_or(false),
            aborted: fields.optional("aborted")?.unwrap_or(false),
            batchable: fields.optional("batchable")?.unwrap_or(false),
        };
        fields.finish()?;
        Ok(transfer)
    }
}

impl Transfer<'_> {
    /// Appends the only transfer of a delivery, without null fields to look for and with a tag of at most
    /// [`MAX_DELIVERY_TAG_SIZE`]. Returns false, and appends nothing, for another one.
    #[inline]
    pub(crate) fn encode_plain<O: Output>(&self, out: &mut O) -> bool {
        let Self {
            handle,
            delivery_id: Some(id),
            delivery_tag: Some(tag),
            message_format: Some(format),
            settled: Some(settled),
            more: false,
            rcv_settle_mode: None,
            state: None,
            resume: false,
            aborted: false,
            batchable: false,
        } = self
        else {
            return false;
        };
        debug_assert!(tag.len() <= MAX_DELIVERY_TAG_SIZE, "the list is short");
        crate::writer::descriptor(out, Self::DESCRIPTOR);
        let start = out.position();
        out.put(&[code::LIST8, 0, 5]);
        handle.encode(out);
        id.encode(out);
        tag.encode(out);
        format.encode(out);
        settled.encode(out);
        // The size counts from behind itself.
        let size = out.position() - start - 2;
        out.written(start)[1] = size as u8;
        true
    }
}

impl Encode for Transfer<'_> {
    #[inline]
    fn encode<O: Output>(&self, out: &mut O) {
        use crate::composite::Defaulted;
        crate::writer::descriptor(out, Self::DESCRIPTOR);
        let mut fields = crate::writer::list(out);
        fields.field(&self.handle);
        fields.field(&self.delivery_id);
        fields.field(&self.delivery_tag);
        fields.field(&self.message_format);
        fields.field(&self.settled);
        fields.field(&Defaulted(self.more, false));
        fields.field(&self.rcv_settle_mode);
        fields.field(&self.state);
        fields.field(&Defaulted(self.resume, false));
        fields.field(&Defaulted(self.aborted, false));
        fields.field(&Defaulted(self.batchable, false));
        fields.finish();
    }
}

composite! {
    /// Tells the peer of changed delivery states (section 2.7.6).
    Disposition<'a> = "disposition" 0x15 "amqp:disposition:list" {
        /// The role of the sender of this frame for these deliveries.
        role "role" required Role,
        /// The first delivery.
        first "first" required u32,
        /// The last delivery. Null: the same as the first.
        last "last" optional u32,
        /// The deliveries are settled.
        settled "settled" default bool = false,
        /// The state of all of them.
        state "state" optional DeliveryState<'a>,
        /// The peer need not hurry with its own disposition.
        batchable "batchable" default bool = false,
    }
}

composite! {
    /// Detaches a link from its session (section 2.7.7).
    Detach<'a> = "detach" 0x16 "amqp:detach:list" {
        /// The link.
        handle "handle" required u32,
        /// The link's terminus is closed as well.
        closed "closed" default bool = false,
        /// Why.
        error "error" optional AmqpError<'a>,
    }
}

composite! {
    /// Ends a session (section 2.7.8).
    End<'a> = "end" 0x17 "amqp:end:list" {
        /// Why.
        error "error" optional AmqpError<'a>,
    }
}

composite! {
    /// Closes a connection (section 2.7.9).
    Close<'a> = "close" 0x18 "amqp:close:list" {
        /// Why.
        error "error" optional AmqpError<'a>,
    }
}

macro_rules! performatives {
    ($( $(#[$attribute:meta])* $name:ident $(<$life:lifetime>)? $title:literal, )*) => {
        /// The type of a frame body.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum PerformativeKind {
            $( $(#[$attribute])* $name, )*
        }

        impl PerformativeKind {
            /// The name in the standard.
            pub fn name(self) -> &'static str {
                match self {
                    $( Self::$name => $title, )*
                }
            }

            /// Reads the descriptor of a frame body and leaves the fields to the functions named `read_…` of [`Reader`].
            #[inline]
            pub fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
                const SYMBOLS: &[(&str, u8)] = &[$( ($name::SYMBOL, $name::DESCRIPTOR), )*];
                let code = read_descriptor(reader, SYMBOLS)?;
                $(
                    if code == u64::from($name::DESCRIPTOR) {
                        return Ok(Self::$name);
                    }
                )*
                Err(Reason::UnknownDescriptor(code).into())
            }
        }

        /// A frame body (section 2.7).
        #[derive(Clone, Debug, PartialEq)]
        #[allow(clippy::large_enum_variant, reason = "the hot path decodes by PerformativeKind")]
        pub enum Performative<'a> {
            $( $(#[$attribute])* $name($name $(<$life>)?), )*
        }

        impl<'a> Performative<'a> {
            /// Reads a frame body. Bytes that follow are the payload, which only a transfer may have.
            pub fn decode(body: &'a [u8]) -> Result<(Self, &'a [u8]), DecodeError> {
                let mut reader = Reader::new(body);
                let performative = match PerformativeKind::read(&mut reader)? {
                    $( PerformativeKind::$name => Self::$name($name::read_body(&mut reader)?), )*
                };
                Ok((performative, reader.rest()))
            }

            /// The type of this frame body.
            pub fn kind(&self) -> PerformativeKind {
                match self {
                    $( Self::$name(_) => PerformativeKind::$name, )*
                }
            }
        }

        impl Encode for Performative<'_> {
            fn encode<O: Output>(&self, out: &mut O) {
                match self {
                    $( Self::$name(body) => body.encode(out), )*
                }
            }
        }

        $(
            impl<'a> $name $(<$life>)? {
                /// Reads the fields that follow the descriptor of the frame body. Only a transfer may leave bytes.
                #[inline]
                pub fn read_body(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
                    let read = Self::read_fields(reader).map_err(|error| error.in_performative($title))?;
                    if Self::DESCRIPTOR != Transfer::DESCRIPTOR && !reader.is_empty() {
                        let left = Reason::TrailingBytes(reader.rest().len());
                        return Err(DecodeError::from(left).in_performative($title));
                    }
                    Ok(read)
                }
            }
        )*
    };
}

performatives! {
    /// Negotiates connection parameters.
    Open<'a> "open",
    /// Begins a session.
    Begin<'a> "begin",
    /// Attaches a link.
    Attach<'a> "attach",
    /// Flow state.
    Flow<'a> "flow",
    /// A message or a part of one.
    Transfer<'a> "transfer",
    /// Delivery states.
    Disposition<'a> "disposition",
    /// Detaches a link.
    Detach<'a> "detach",
    /// Ends a session.
    End<'a> "end",
    /// Closes the connection.
    Close<'a> "close",
}
