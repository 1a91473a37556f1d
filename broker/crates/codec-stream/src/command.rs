//! The commands that clients and servers send.

use crate::field::{
    Broker, CommandVersions, Field, List, OffsetSpecification, Property, PublishingError, Reader,
    Remainder, ResponseCode, Statistic, StreamMetadata, Trailing,
};
use crate::frame::SIZE_BYTES;
use crate::key::RESPONSE;
use crate::publish::PublishedMessages;
use crate::{CommandKey, DecodeError, Reason};
use bytes::{BufMut, BytesMut};

/// Offset of the first record in the newest committed chunk; only version 2 of a delivery has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommittedChunk(pub Option<u64>);

impl Field<'_> for CommittedChunk {
    fn get(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match from.version {
            1 => Ok(CommittedChunk(None)),
            _ => u64::get(from).map(|offset| CommittedChunk(Some(offset))),
        }
    }

    fn put(&self, out: &mut BytesMut) {
        if let Some(offset) = self.0 {
            offset.put(out);
        }
    }
}

macro_rules! commands {
    (
        $(#[$enum_doc:meta])*
        $name:ident {
            $(
                $(#[$doc:meta])*
                $variant:ident = $key:ident $(+ $bit:ident)? {
                    $($(#[$field_doc:meta])* $field:ident: $type:ty,)*
                }
            )*
        }
    ) => {
        $(#[$enum_doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum $name<'a> {
            $(
                $(#[$doc])*
                $variant { $($(#[$field_doc])* $field: $type,)* },
            )*
        }

        impl<'a> $name<'a> {
            /// Names of all variants.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($variant),)*];

            /// Name of the variant.
            pub fn name(&self) -> &'static str {
                match self {
                    $($name::$variant { .. } => stringify!($variant),)*
                }
            }

            /// The command.
            pub fn key(&self) -> CommandKey {
                match self {
                    $($name::$variant { .. } => CommandKey::$key,)*
                }
            }

            /// Decodes a frame without its size field.
            ///
            /// # Errors
            ///
            /// See [`DecodeError`].
            #[allow(non_upper_case_globals, reason = "constants are named after the variants")]
            pub fn decode(frame: &'a [u8]) -> Result<$name<'a>, DecodeError> {
                $(const $variant: u16 = CommandKey::$key as u16 $(| $bit)?;)*
                let (number, command, mut from) = header(frame)?;
                let decoded = match number {
                    $($variant => {
                        check_version(command, from.version)?;
                        $name::$variant { $($field: from.named(stringify!($field))?,)* }
                    })*
                    key => {
                        let version = from.version;
                        return Err(DecodeError::UnknownCommand { key, version });
                    }
                };
                from.end()?;
                Ok(decoded)
            }

            /// Appends the frame with its size field.
            pub fn encode(&self, out: &mut BytesMut) {
                let start = out.len();
                out.put_u32(0);
                match self {
                    $($name::$variant { $($field,)* } => {
                        out.put_u16(CommandKey::$key as u16 $(| $bit)?);
                        out.put_u16(self.version());
                        $($field.put(out);)*
                    })*
                }
                let size = out.len() - start - SIZE_BYTES;
                let size = u32::try_from(size).unwrap_or(u32::MAX).to_be_bytes();
                out[start..start + SIZE_BYTES].copy_from_slice(&size);
            }
        }
    };
}

/// The number of the key, the command, and a reader of the fields.
fn header(frame: &[u8]) -> Result<(u16, CommandKey, Reader<'_>), DecodeError> {
    let unknown = |key, version| DecodeError::UnknownCommand { key, version };
    let Some(([a, b, c, d], rest)) = frame.split_first_chunk::<4>() else {
        return Err(unknown(0, 0));
    };
    let (number, version) = (u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d]));
    let command = CommandKey::from_number(number & !RESPONSE);
    let command = command.ok_or(unknown(number, version))?;
    let reader = Reader {
        rest,
        command,
        version,
        field: "command",
    };
    Ok((number, command, reader))
}

fn check_version(command: CommandKey, version: u16) -> Result<(), DecodeError> {
    match (1..=command.max_version()).contains(&version) {
        true => Ok(()),
        false => Err(DecodeError::UnknownVersion { command, version }),
    }
}

commands! {
    /// A command that a client sends. Fields that are called `correlation_id` are repeated in the response.
    ClientCommand {
        /// Declares a publisher.
        DeclarePublisher = DeclarePublisher {
            /// Correlation id.
            correlation_id: u32,
            /// Number of the publisher on its connection.
            publisher_id: u8,
            /// Name for deduplication; empty for none.
            reference: &'a str,
            /// Name of the stream.
            stream: &'a str,
        }
        /// Sends messages. There is no response.
        Publish = Publish {
            /// Number of the publisher.
            publisher_id: u8,
            /// The messages.
            messages: PublishedMessages<'a>,
        }
        /// Asks for the newest publishing id of a publisher.
        QueryPublisherSequence = QueryPublisherSequence {
            /// Correlation id.
            correlation_id: u32,
            /// Name of the publisher.
            reference: &'a str,
            /// Name of the stream.
            stream: &'a str,
        }
        /// Deletes a publisher.
        DeletePublisher = DeletePublisher {
            /// Correlation id.
            correlation_id: u32,
            /// Number of the publisher.
            publisher_id: u8,
        }
        /// Starts a consumer.
        Subscribe = Subscribe {
            /// Correlation id.
            correlation_id: u32,
            /// Number of the consumer on its connection.
            subscription_id: u8,
            /// Name of the stream.
            stream: &'a str,
            /// The first message.
            offset: OffsetSpecification,
            /// Chunks that may be delivered.
            credit: u16,
            /// Properties, such as filter values.
            properties: Trailing<List<'a, Property<'a>>>,
        }
        /// Grants credit. There is a response only if it fails.
        Credit = Credit {
            /// Number of the consumer.
            subscription_id: u8,
            /// Further chunks that may be delivered.
            credit: u16,
        }
        /// Stores an offset. There is no response.
        StoreOffset = StoreOffset {
            /// Name under which it is stored.
            reference: &'a str,
            /// Name of the stream.
            stream: &'a str,
            /// The offset.
            offset: u64,
        }
        /// Asks for a stored offset.
        QueryOffset = QueryOffset {
            /// Correlation id.
            correlation_id: u32,
            /// Name under which it is stored.
            reference: &'a str,
            /// Name of the stream.
            stream: &'a str,
        }
        /// Ends a consumer.
        Unsubscribe = Unsubscribe {
            /// Correlation id.
            correlation_id: u32,
            /// Number of the consumer.
            subscription_id: u8,
        }
        /// Creates a stream.
        Create = Create {
            /// Correlation id.
            correlation_id: u32,
            /// Name of the stream.
            stream: &'a str,
            /// Arguments, such as `max-age`.
            arguments: List<'a, Property<'a>>,
        }
        /// Deletes a stream.
        Delete = Delete {
            /// Correlation id.
            correlation_id: u32,
            /// Name of the stream.
            stream: &'a str,
        }
        /// Asks for the nodes of streams.
        Metadata = Metadata {
            /// Correlation id.
            correlation_id: u32,
            /// Names of the streams.
            streams: List<'a, &'a str>,
        }
        /// States the properties of the client.
        PeerProperties = PeerProperties {
            /// Correlation id.
            correlation_id: u32,
            /// The properties.
            properties: List<'a, Property<'a>>,
        }
        /// Asks for the SASL mechanisms.
        SaslHandshake = SaslHandshake {
            /// Correlation id.
            correlation_id: u32,
        }
        /// Authenticates, or renews the credentials of an open connection.
        SaslAuthenticate = SaslAuthenticate {
            /// Correlation id.
            correlation_id: u32,
            /// Name of the mechanism.
            mechanism: &'a str,
            /// Data of the mechanism.
            data: Option<&'a [u8]>,
        }
        /// Answers the server's proposal.
        Tune = Tune {
            /// Maximum frame size in bytes; 0 for no limit.
            frame_max: u32,
            /// Heartbeat interval in seconds; 0 for none.
            heartbeat: u32,
        }
        /// [`ClientCommand::Tune`] as some clients send it, such as RabbitMQ's for Go: with the key of a
        /// response.
        TuneResponse = Tune + RESPONSE {
            /// Maximum frame size in bytes; 0 for no limit.
            frame_max: u32,
            /// Heartbeat interval in seconds; 0 for none.
            heartbeat: u32,
        }
        /// Selects the virtual host.
        Open = Open {
            /// Correlation id.
            correlation_id: u32,
            /// Name of the virtual host.
            virtual_host: &'a str,
        }
        /// Ends the connection.
        Close = Close {
            /// Correlation id.
            correlation_id: u32,
            /// The reason.
            code: ResponseCode,
            /// The reason in words.
            reason: &'a str,
        }
        /// Agrees to the end of the connection.
        CloseResponse = Close + RESPONSE {
            /// Correlation id of the server's request.
            correlation_id: u32,
            /// The result.
            code: ResponseCode,
        }
        /// Shows that the client is alive.
        Heartbeat = Heartbeat {}
        /// Asks for the streams of a routing key in a super stream.
        Route = Route {
            /// Correlation id.
            correlation_id: u32,
            /// The routing key.
            routing_key: &'a str,
            /// Name of the super stream.
            super_stream: &'a str,
        }
        /// Asks for the streams of a super stream.
        Partitions = Partitions {
            /// Correlation id.
            correlation_id: u32,
            /// Name of the super stream.
            super_stream: &'a str,
        }
        /// Answers a [`ServerCommand::ConsumerUpdate`].
        ConsumerUpdateResponse = ConsumerUpdate + RESPONSE {
            /// Correlation id of the server's request.
            correlation_id: u32,
            /// The result.
            code: ResponseCode,
            /// The first message, if the consumer becomes active.
            offset: OffsetSpecification,
        }
        /// States the versions of commands that the client supports.
        ExchangeCommandVersions = ExchangeCommandVersions {
            /// Correlation id.
            correlation_id: u32,
            /// The versions.
            commands: List<'a, CommandVersions>,
        }
        /// Asks for statistics of a stream.
        StreamStats = StreamStats {
            /// Correlation id.
            correlation_id: u32,
            /// Name of the stream.
            stream: &'a str,
        }
        /// Creates a super stream.
        CreateSuperStream = CreateSuperStream {
            /// Correlation id.
            correlation_id: u32,
            /// Name of the super stream.
            super_stream: &'a str,
            /// Names of its streams.
            partitions: List<'a, &'a str>,
            /// Binding key of each stream.
            binding_keys: List<'a, &'a str>,
            /// Arguments of each stream.
            arguments: List<'a, Property<'a>>,
        }
        /// Deletes a super stream.
        DeleteSuperStream = DeleteSuperStream {
            /// Correlation id.
            correlation_id: u32,
            /// Name of the super stream.
            super_stream: &'a str,
        }
        /// Asks for the offset that an offset specification means.
        ResolveOffsetSpec = ResolveOffsetSpec {
            /// Correlation id.
            correlation_id: u32,
            /// Name of the stream.
            stream: &'a str,
            /// The offset specification.
            offset: OffsetSpecification,
            /// Properties, as in a subscription.
            properties: Trailing<List<'a, Property<'a>>>,
        }
    }
}

commands! {
    /// A command that the server sends. Responses repeat the `correlation_id` of their request.
    ServerCommand {
        /// The result of a declaration.
        DeclarePublisher = DeclarePublisher + RESPONSE {
            /// Correlation id.
            correlation_id: u32,
            /// The result.
            code: ResponseCode,
        }
        /// Messages that were stored.
        PublishConfirm = PublishConfirm {
            /// Number of the publisher.
            publisher_id: u8,
            /// Publishing ids of the messages.
            publishing_ids: List<'a, u64>,
        }
        /// Messages that were not stored.
        PublishError = PublishError {
            /// Number of the publisher.
            publisher_id: u8,
            /// The messages.
            errors: List<'a, PublishingError>,
        }
        /// The newest publishing id of a publisher.
        QueryPublisherSequence = QueryPublisherSequence + RESPONSE {
            /// Correlation id.
            correlation_id: u32,
            /// The result.
            code: ResponseCode,
            /// The publishing id; 0 if there is none.
            sequence: u64,
        }
        /// The result of a deletion.
        DeletePublisher = DeletePublisher + RESPONSE {
            /// Correlation id.
            correlation_id: u32,
            /// The result.
            code: ResponseCode,
        }
        /// The result of a subscription.
        Subscribe = Subscribe + RESPONSE {
            /// Correlation id.
            correlation_id: u32,
            /// The result.
            code: ResponseCode,
        }
        /// A chunk for a consumer. [`encode_deliver_head`] writes the frame up to the chunk.
        Deliver = Deliver {
            /// Number of the consumer.
            subscription_id: u8,
            /// The newest committed chunk; version 2.
            committed: CommittedChunk,
            /// The chunk, without Bloom filter and trailer.
            chunk: Remainder<'a>,
        }
        /// Credit for a consumer that does not exist.
        Credit = Credit + RESPONSE {
            /// The result.
            code: ResponseCode,
            /// Number of the consumer.
            subscription_id: u8,
        }
        /// A stored offset.
        QueryOffset = QueryOffset + RESPONSE {
            /// Correlation id.
            correlation_id: u32,
            /// The result.
            code: ResponseCode,
            /// The offset; 0 if there is none.
            offset: u64,
        }
        /// The end of a consumer.
        Unsubscribe = Unsubscribe + RESPONSE {
            /// Correlation id.
            correlation_id: u32,
            /// The result.
            code: ResponseCode,
        }
        /// The result of a creation.
        Create = Create + RESPONSE {
            /// Correlation id.
            correlation_id: u32,
            /// The result.
            code: ResponseCode,
        }
        /// The result of a deletion.
        Delete = Delete + RESPONSE {
            /// Correlation id.
            correlation_id: u32,
            /// The result.
            code: ResponseCode,
        }
        /// The nodes of streams.
        Metadata = Metadata + RESPONSE {
            /// Correlation id.
            correlation_id: u32,
            /// The nodes.
            brokers: List<'a, Broker<'a>>,
            /// The streams.
            streams: List<'a, StreamMetadata<'a>>,
        }
        /// The nodes of a stream changed, or the stream was deleted.
        MetadataUpdate = MetadataUpdate {
            /// The kind of change.
            code: ResponseCode,
            /// Name of the stream.
            stream: &'a str,
        }
        /// The properties of the server.
        PeerProperties = PeerProperties + RESPONSE {
            /// Correlation id.
            correlation_id: u32,
            /// The result.
            code: ResponseCode,
            /// The properties.
            properties: List<'a, Property<'a>>,
        }
        /// The SASL mechanisms.
        SaslHandshake = SaslHandshake + RESPONSE {
            /// Correlation id.
            correlation_id: u32,
            /// The result.
            code: ResponseCode,
            /// Names of the mechanisms.
            mechanisms: List<'a, &'a str>,
        }
        /// The result of an authentication, or a challenge.
        SaslAuthenticate = SaslAuthenticate + RESPONSE {
            /// Correlation id.
            correlation_id: u32,
            /// The result.
            code: ResponseCode,
            /// The challenge, if the code is [`ResponseCode::SASL_CHALLENGE`].
            challenge: Trailing<Option<&'a [u8]>>,
        }
        /// Proposes limits, before the connection is opened.
        Tune = Tune {
            /// Maximum frame size in bytes; 0 for no limit.
            frame_max: u32,
            /// Heartbeat interval in seconds; 0 for none.
            heartbeat: u32,
        }
        /// The result of opening a virtual host.
        Open = Open + RESPONSE {
            /// Correlation id.
            correlation_id: u32,
            /// The result.
            code: ResponseCode,
            /// Properties such as `advertised_host`.
            properties: Trailing<List<'a, Property<'a>>>,
        }
        /// Ends the connection.
        Close = Close {
            /// Correlation id.
            correlation_id: u32,
            /// The reason.
            code: ResponseCode,
            /// The reason in words.
            reason: &'a str,
        }
        /// Agrees to the end of the connection.
        CloseResponse = Close + RESPONSE {
            /// Correlation id.
            correlation_id: u32,
            /// The result.
            code: ResponseCode,
        }
        /// Shows that the server is alive.
        Heartbeat = Heartbeat {}
        /// The streams of a routing key.
        Route = Route + RESPONSE {
            /// Correlation id.
            correlation_id: u32,
            /// The result.
            code: ResponseCode,
            /// Names of the streams.
            streams: List<'a, &'a str>,
        }
        /// The streams of a super stream.
        Partitions = Partitions + RESPONSE {
            /// Correlation id.
            correlation_id: u32,
            /// The result.
            code: ResponseCode,
            /// Names of the streams.
            streams: List<'a, &'a str>,
        }
        /// Activates or deactivates a single active consumer.
        ConsumerUpdate = ConsumerUpdate {
            /// Correlation id.
            correlation_id: u32,
            /// Number of the consumer.
            subscription_id: u8,
            /// The consumer becomes active.
            is_active: bool,
        }
        /// The versions of commands that the server supports.
        ExchangeCommandVersions = ExchangeCommandVersions + RESPONSE {
            /// Correlation id.
            correlation_id: u32,
            /// The result.
            code: ResponseCode,
            /// The versions.
            commands: List<'a, CommandVersions>,
        }
        /// Statistics of a stream.
        StreamStats = StreamStats + RESPONSE {
            /// Correlation id.
            correlation_id: u32,
            /// The result.
            code: ResponseCode,
            /// The statistics.
            statistics: List<'a, Statistic<'a>>,
        }
        /// The result of a creation.
        CreateSuperStream = CreateSuperStream + RESPONSE {
            /// Correlation id.
            correlation_id: u32,
            /// The result.
            code: ResponseCode,
        }
        /// The result of a deletion.
        DeleteSuperStream = DeleteSuperStream + RESPONSE {
            /// Correlation id.
            correlation_id: u32,
            /// The result.
            code: ResponseCode,
        }
        /// The offset that an offset specification means.
        ResolveOffsetSpec = ResolveOffsetSpec + RESPONSE {
            /// Correlation id.
            correlation_id: u32,
            /// The result.
            code: ResponseCode,
            /// The offset.
            offset: OffsetSpecification,
        }
    }
}

impl ClientCommand<'_> {
    /// Version of the command.
    pub fn version(&self) -> u16 {
        match self {
            ClientCommand::Publish { messages, .. } => messages.version(),
            _ => 1,
        }
    }
}

impl ServerCommand<'_> {
    /// Version of the command.
    pub fn version(&self) -> u16 {
        match self {
            ServerCommand::Deliver {
                committed: CommittedChunk(Some(_)),
                ..
            } => 2,
            _ => 1,
        }
    }
}

/// Appends a delivery up to its chunk, which has `chunk_len` bytes and follows in another way, such as `sendfile`.
///
/// # Errors
///
/// If the frame would be larger than its size field can state. `out` is unchanged.
pub fn encode_deliver_head(
    subscription_id: u8,
    committed: CommittedChunk,
    chunk_len: u32,
    out: &mut BytesMut,
) -> Result<(), DecodeError> {
    let start = out.len();
    let command = ServerCommand::Deliver {
        subscription_id,
        committed,
        chunk: Remainder(&[]),
    };
    command.encode(out);
    let head = (out.len() - start - SIZE_BYTES) as u32;
    let Some(size) = head.checked_add(chunk_len) else {
        out.truncate(start);
        return Err(DecodeError::Field {
            command: CommandKey::Deliver,
            field: "chunk",
            reason: Reason::TooMany,
        });
    };
    out[start..start + SIZE_BYTES].copy_from_slice(&size.to_be_bytes());
    Ok(())
}
