//! Golden frames, round trips, and frames that are malformed.
#![forbid(unsafe_code)]

use bytes::BytesMut;
use codec_stream::{
    Broker, ClientCommand, CommandKey, CommandVersions, CommittedChunk, DecodeError, List,
    NO_LEADER, OffsetSpecification, Property, PublishedBody, PublishedMessage, PublishedMessages,
    PublishingError, Reason, Remainder, ResponseCode, ServerCommand, Statistic, StreamMetadata,
    Trailing, encode_deliver_head, split_frame,
};
use proptest::prelude::*;
use std::fmt::Debug;

fn leak<T: 'static>(items: Vec<T>) -> &'static [T] {
    Box::leak(items.into_boxed_slice())
}

fn list<T: 'static>(items: Vec<T>) -> List<'static, T> {
    List::from(leak(items))
}

fn properties(items: &[(&'static str, &'static str)]) -> List<'static, Property<'static>> {
    let property = |&(key, value): &(&'static str, &'static str)| Property { key, value };
    list(items.iter().map(property).collect())
}

fn published(messages: &[PublishedMessage<'_>]) -> PublishedMessages<'static> {
    PublishedMessages::encode(messages, Box::leak(Box::new(BytesMut::new())))
}

fn message(publishing_id: u64, filter: Option<&'static str>) -> PublishedMessage<'static> {
    PublishedMessage {
        publishing_id,
        filter,
        body: PublishedBody::Message(b"hello"),
    }
}

fn sub_batch(publishing_id: u64, filter: Option<&'static str>) -> PublishedMessage<'static> {
    PublishedMessage {
        publishing_id,
        filter,
        body: PublishedBody::SubBatch {
            compression: 1,
            records: 300,
            uncompressed_len: 70_000,
            data: b"gzip",
        },
    }
}

fn client_samples() -> Vec<ClientCommand<'static>> {
    use ClientCommand::*;
    let correlation_id = 0x0102_0304;
    let stream = "invoices";
    let super_stream = "super";
    let subscribe = |offset, properties| Subscribe {
        correlation_id,
        subscription_id: 7,
        stream,
        offset,
        credit: 10,
        properties: Trailing(properties),
    };
    let filter = [("filter.0", "emea"), ("match-unfiltered", "true")];
    vec![
        DeclarePublisher {
            correlation_id,
            publisher_id: 5,
            reference: "app-1",
            stream,
        },
        Publish {
            publisher_id: 5,
            messages: published(&[message(1, None), sub_batch(2, None)]),
        },
        Publish {
            publisher_id: 5,
            messages: published(&[
                message(3, Some("emea")),
                message(4, None),
                sub_batch(5, Some("x")),
            ]),
        },
        Publish {
            publisher_id: 0,
            messages: published(&[]),
        },
        QueryPublisherSequence {
            correlation_id,
            reference: "app-1",
            stream,
        },
        DeletePublisher {
            correlation_id,
            publisher_id: 255,
        },
        subscribe(OffsetSpecification::First, properties(&[])),
        subscribe(OffsetSpecification::Last, properties(&filter)),
        subscribe(OffsetSpecification::Next, properties(&filter[..1])),
        subscribe(OffsetSpecification::Offset(u64::MAX), properties(&[])),
        subscribe(OffsetSpecification::Timestamp(-1), properties(&filter)),
        Credit {
            subscription_id: 7,
            credit: 65_535,
        },
        StoreOffset {
            reference: "consumer",
            stream,
            offset: 99,
        },
        QueryOffset {
            correlation_id,
            reference: "consumer",
            stream,
        },
        Unsubscribe {
            correlation_id,
            subscription_id: 7,
        },
        Create {
            correlation_id,
            stream,
            arguments: properties(&[("max-age", "1h")]),
        },
        Delete {
            correlation_id,
            stream,
        },
        Metadata {
            correlation_id,
            streams: list(vec!["a", "b"]),
        },
        PeerProperties {
            correlation_id,
            properties: properties(&[("product", "client")]),
        },
        SaslHandshake { correlation_id },
        SaslAuthenticate {
            correlation_id,
            mechanism: "PLAIN",
            data: Some(b"\0user\0password"),
        },
        SaslAuthenticate {
            correlation_id,
            mechanism: "EXTERNAL",
            data: None,
        },
        Tune {
            frame_max: 1 << 20,
            heartbeat: 60,
        },
        Open {
            correlation_id,
            virtual_host: "/",
        },
        Close {
            correlation_id,
            code: ResponseCode::OK,
            reason: "bye",
        },
        CloseResponse {
            correlation_id,
            code: ResponseCode::OK,
        },
        Heartbeat {},
        Route {
            correlation_id,
            routing_key: "key",
            super_stream,
        },
        Partitions {
            correlation_id,
            super_stream,
        },
        ConsumerUpdateResponse {
            correlation_id,
            code: ResponseCode::OK,
            offset: OffsetSpecification::None,
        },
        ConsumerUpdateResponse {
            correlation_id,
            code: ResponseCode::OK,
            offset: OffsetSpecification::Offset(5),
        },
        ExchangeCommandVersions {
            correlation_id,
            commands: list(vec![CommandKey::Deliver.versions()]),
        },
        StreamStats {
            correlation_id,
            stream,
        },
        CreateSuperStream {
            correlation_id,
            super_stream,
            partitions: list(vec!["super-0", "super-1"]),
            binding_keys: list(vec!["0", "1"]),
            arguments: properties(&[("max-length-bytes", "1000")]),
        },
        DeleteSuperStream {
            correlation_id,
            super_stream,
        },
        ResolveOffsetSpec {
            correlation_id,
            stream,
            offset: OffsetSpecification::Timestamp(1_700_000_000_000),
            properties: Trailing(properties(&[])),
        },
    ]
}

fn server_samples() -> Vec<ServerCommand<'static>> {
    use ServerCommand::*;
    let correlation_id = 0x0102_0304;
    let code = ResponseCode::OK;
    let error = |publishing_id, code| PublishingError {
        publishing_id,
        code,
    };
    let broker = |reference, host| Broker {
        reference,
        host,
        port: 5552,
    };
    vec![
        DeclarePublisher {
            correlation_id,
            code: ResponseCode::PRECONDITION_FAILED,
        },
        PublishConfirm {
            publisher_id: 5,
            publishing_ids: list(vec![1, 2, u64::MAX]),
        },
        PublishError {
            publisher_id: 5,
            errors: list(vec![error(8, ResponseCode::PUBLISHER_DOES_NOT_EXIST)]),
        },
        QueryPublisherSequence {
            correlation_id,
            code,
            sequence: 8,
        },
        DeletePublisher {
            correlation_id,
            code: ResponseCode::PUBLISHER_DOES_NOT_EXIST,
        },
        Subscribe {
            correlation_id,
            code: ResponseCode::SUBSCRIPTION_ID_ALREADY_EXISTS,
        },
        Deliver {
            subscription_id: 7,
            committed: CommittedChunk(None),
            chunk: Remainder(b"chunk"),
        },
        Deliver {
            subscription_id: 7,
            committed: CommittedChunk(Some(9)),
            chunk: Remainder(b"chunk"),
        },
        Credit {
            code: ResponseCode::SUBSCRIPTION_ID_DOES_NOT_EXIST,
            subscription_id: 7,
        },
        QueryOffset {
            correlation_id,
            code: ResponseCode::NO_OFFSET,
            offset: 0,
        },
        Unsubscribe {
            correlation_id,
            code: ResponseCode::SUBSCRIPTION_ID_DOES_NOT_EXIST,
        },
        Create {
            correlation_id,
            code: ResponseCode::STREAM_ALREADY_EXISTS,
        },
        Delete {
            correlation_id,
            code: ResponseCode::STREAM_DOES_NOT_EXIST,
        },
        Metadata {
            correlation_id,
            brokers: list(vec![broker(0, "node-0"), broker(1, "node-1")]),
            streams: list(vec![
                StreamMetadata {
                    stream: "a",
                    code,
                    leader: 1,
                    replicas: list(vec![0]),
                },
                StreamMetadata {
                    stream: "b",
                    code: ResponseCode::STREAM_DOES_NOT_EXIST,
                    leader: NO_LEADER,
                    replicas: list(vec![]),
                },
            ]),
        },
        MetadataUpdate {
            code: ResponseCode::STREAM_NOT_AVAILABLE,
            stream: "a",
        },
        PeerProperties {
            correlation_id,
            code,
            properties: properties(&[("version", "4.3.0")]),
        },
        SaslHandshake {
            correlation_id,
            code,
            mechanisms: list(vec!["PLAIN", "EXTERNAL"]),
        },
        SaslAuthenticate {
            correlation_id,
            code: ResponseCode::AUTHENTICATION_FAILURE,
            challenge: Trailing(None),
        },
        SaslAuthenticate {
            correlation_id,
            code: ResponseCode::SASL_CHALLENGE,
            challenge: Trailing(Some(b"challenge")),
        },
        Tune {
            frame_max: 1 << 20,
            heartbeat: 60,
        },
        Open {
            correlation_id,
            code,
            properties: Trailing(properties(&[
                ("advertised_host", "h"),
                ("advertised_port", "5552"),
            ])),
        },
        Open {
            correlation_id,
            code: ResponseCode::VIRTUAL_HOST_ACCESS_FAILURE,
            properties: Trailing(properties(&[])),
        },
        Close {
            correlation_id,
            code: ResponseCode::UNKNOWN_FRAME,
            reason: "unknown frame",
        },
        CloseResponse {
            correlation_id,
            code,
        },
        Heartbeat {},
        Route {
            correlation_id,
            code,
            streams: list(vec!["super-0"]),
        },
        Partitions {
            correlation_id,
            code,
            streams: list(vec!["super-0", "super-1"]),
        },
        ConsumerUpdate {
            correlation_id,
            subscription_id: 7,
            is_active: true,
        },
        ExchangeCommandVersions {
            correlation_id,
            code,
            commands: list(CommandKey::ALL.iter().map(|key| key.versions()).collect()),
        },
        StreamStats {
            correlation_id,
            code,
            statistics: list(vec![Statistic {
                key: "first_chunk_id",
                value: -1,
            }]),
        },
        CreateSuperStream {
            correlation_id,
            code: ResponseCode::ACCESS_REFUSED,
        },
        DeleteSuperStream {
            correlation_id,
            code: ResponseCode::INTERNAL_ERROR,
        },
        ResolveOffsetSpec {
            correlation_id,
            code,
            offset: OffsetSpecification::Offset(77),
        },
    ]
}

fn encode_client(command: &ClientCommand<'_>) -> Vec<u8> {
    let mut out = BytesMut::new();
    command.encode(&mut out);
    out.to_vec()
}

fn encode_server(command: &ServerCommand<'_>) -> Vec<u8> {
    let mut out = BytesMut::new();
    command.encode(&mut out);
    out.to_vec()
}

/// The frame without its size, which must be right.
fn frame(bytes: &[u8]) -> &'static [u8] {
    let bytes = leak(bytes.to_vec());
    let (frame, len) = split_frame(bytes, 0).expect("valid").expect("complete");
    assert_eq!(len, bytes.len());
    frame
}

#[test]
fn golden_frames_are_read_and_written() {
    golden::verify(env!("CARGO_MANIFEST_DIR"), "0.2/client", |files| {
        let name = |command: &ClientCommand<'_>| (command.name(), ClientCommand::NAMES);
        let decode = |bytes: &[u8]| ClientCommand::decode(frame(bytes));
        files.check_enum(&client_samples(), name, encode_client, decode);
    });
    golden::verify(env!("CARGO_MANIFEST_DIR"), "0.2/server", |files| {
        let name = |command: &ServerCommand<'_>| (command.name(), ServerCommand::NAMES);
        let decode = |bytes: &[u8]| ServerCommand::decode(frame(bytes));
        files.check_enum(&server_samples(), name, encode_server, decode);
    });
}

/// Frames that were put together by hand from the protocol's reference.
#[test]
fn frames_have_the_bytes_of_the_reference() {
    use ClientCommand as C;
    use ServerCommand as S;
    let client: [(C<'_>, &[u8]); 6] = [
        (
            C::DeclarePublisher { correlation_id: 9, publisher_id: 1, reference: "r", stream: "st" },
            b"\x00\x01\x00\x01\x00\x00\x00\x09\x01\x00\x01r\x00\x02st",
        ),
        (
            C::Publish { publisher_id: 1, messages: published(&[message(2, None)]) },
            b"\x00\x02\x00\x01\x01\x00\x00\x00\x01\0\0\0\0\0\0\0\x02\x00\x00\x00\x05hello",
        ),
        (
            C::Publish { publisher_id: 1, messages: published(&[message(2, Some("f"))]) },
            b"\x00\x02\x00\x02\x01\x00\x00\x00\x01\0\0\0\0\0\0\0\x02\x00\x01f\x00\x00\x00\x05hello",
        ),
        (
            C::Publish { publisher_id: 1, messages: published(&[sub_batch(2, None)]) },
            b"\x00\x02\x00\x01\x01\x00\x00\x00\x01\0\0\0\0\0\0\0\x02\x90\x01\x2c\x00\x01\x11\x70\x00\x00\x00\x04gzip",
        ),
        (
            C::Subscribe {
                correlation_id: 9,
                subscription_id: 3,
                stream: "s",
                offset: OffsetSpecification::Offset(4),
                credit: 10,
                properties: Trailing(properties(&[("k", "v")])),
            },
            b"\x00\x07\x00\x01\x00\x00\x00\x09\x03\x00\x01s\x00\x04\0\0\0\0\0\0\0\x04\x00\x0a\x00\x00\x00\x01\x00\x01k\x00\x01v",
        ),
        (
            C::ConsumerUpdateResponse {
                correlation_id: 9,
                code: ResponseCode::OK,
                offset: OffsetSpecification::None,
            },
            b"\x80\x1a\x00\x01\x00\x00\x00\x09\x00\x01\x00\x00",
        ),
    ];
    for (command, expected) in client {
        assert_eq!(frame(&encode_client(&command)), expected, "{command:?}");
        assert_eq!(C::decode(expected), Ok(command));
    }
    let replicas = list(vec![0_u16]);
    let code = ResponseCode::OK;
    let server: [(S<'_>, &[u8]); 6] = [
        (
            S::Metadata {
                correlation_id: 9,
                brokers: list(vec![Broker { reference: 1, host: "h", port: 5552 }]),
                streams: list(vec![StreamMetadata { stream: "s", code, leader: 1, replicas }]),
            },
            b"\x80\x0f\x00\x01\x00\x00\x00\x09\x00\x00\x00\x01\x00\x01\x00\x01h\x00\x00\x15\xb0\x00\x00\x00\x01\x00\x01s\x00\x01\x00\x01\x00\x00\x00\x01\x00\x00",
        ),
        (
            S::Deliver { subscription_id: 3, committed: CommittedChunk(Some(4)), chunk: Remainder(b"c") },
            b"\x00\x08\x00\x02\x03\0\0\0\0\0\0\0\x04c",
        ),
        (
            S::Credit { code: ResponseCode::SUBSCRIPTION_ID_DOES_NOT_EXIST, subscription_id: 3 },
            b"\x80\x09\x00\x01\x00\x04\x03",
        ),
        (
            S::ConsumerUpdate { correlation_id: 9, subscription_id: 3, is_active: true },
            b"\x00\x1a\x00\x01\x00\x00\x00\x09\x03\x01",
        ),
        (
            S::StreamStats {
                correlation_id: 9,
                code,
                statistics: list(vec![Statistic { key: "k", value: -2 }]),
            },
            b"\x80\x1c\x00\x01\x00\x00\x00\x09\x00\x01\x00\x00\x00\x01\x00\x01k\xff\xff\xff\xff\xff\xff\xff\xfe",
        ),
        (
            S::ResolveOffsetSpec { correlation_id: 9, code, offset: OffsetSpecification::Offset(5) },
            b"\x80\x1f\x00\x01\x00\x00\x00\x09\x00\x01\x00\x04\0\0\0\0\0\0\0\x05",
        ),
    ];
    for (command, expected) in server {
        assert_eq!(frame(&encode_server(&command)), expected, "{command:?}");
        assert_eq!(S::decode(expected), Ok(command));
    }
}

#[test]
fn published_messages_are_read_in_order() {
    for filter in [None, Some("emea")] {
        let sent = [message(3, filter), sub_batch(4, None)];
        let bytes = encode_client(&ClientCommand::Publish {
            publisher_id: 1,
            messages: published(&sent),
        });
        let decoded = ClientCommand::decode(frame(&bytes)).expect("decodes");
        let ClientCommand::Publish { messages, .. } = decoded else {
            panic!("{decoded:?}");
        };
        assert_eq!((messages.len(), messages.is_empty()), (2, false));
        let received: Result<Vec<_>, _> = messages.iter().collect();
        assert_eq!(received, Ok(sent.to_vec()));
    }
}

#[test]
fn malformed_messages_of_a_publish_are_reported_when_they_are_read() {
    let error = |reason| DecodeError::Field {
        command: CommandKey::Publish,
        field: "message",
        reason,
    };
    let cases: [(&[u8], Reason); 4] = [
        (
            b"\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\x05four",
            Reason::Truncated,
        ),
        (
            b"\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\x04four!",
            Reason::Trailing,
        ),
        (
            b"\0\0\0\x01\0\0\0\0\0\0\0\x01\x90\0\0\0\0\0\x01\0\0\0\x01x",
            Reason::Undefined,
        ),
        (
            b"\0\0\0\x01\0\0\0\0\0\0\0\x01\x90\0\x01\0\0",
            Reason::Truncated,
        ),
    ];
    for (messages, reason) in cases {
        let bytes = [b"\0\x02\0\x01\x09", messages].concat();
        let decoded = ClientCommand::decode(&bytes).expect("the count is possible");
        let ClientCommand::Publish { messages, .. } = decoded else {
            panic!("{decoded:?}");
        };
        let read: Vec<_> = messages.iter().collect();
        assert_eq!(read, [Err(error(reason))]);
    }
    // A count that the frame cannot hold is refused at once.
    let refused =
        ClientCommand::decode(b"\0\x02\0\x01\x09\xff\xff\xff\xff\0\0\0\0\0\0\0\x01\0\0\0\0");
    assert!(matches!(
        refused,
        Err(DecodeError::Field {
            reason: Reason::Truncated,
            ..
        })
    ));
}

#[test]
fn unknown_commands_and_versions_are_refused() {
    let unknown = |key, version| Err(DecodeError::UnknownCommand { key, version });
    assert_eq!(ClientCommand::decode(b"\0\x20\0\x01"), unknown(0x20, 1));
    assert_eq!(ClientCommand::decode(b"\0\0\0\x01"), unknown(0, 1));
    assert_eq!(ClientCommand::decode(b"\0\x20"), unknown(0, 0));
    // Commands of the server are unknown to it.
    assert_eq!(ClientCommand::decode(b"\0\x08\0\x01\x01"), unknown(8, 1));
    assert_eq!(ClientCommand::decode(b"\x80\x15\0\x01"), unknown(0x8015, 1));
    let expected = DecodeError::UnknownCommand { key: 2, version: 1 };
    assert_eq!(ServerCommand::decode(b"\0\x02\0\x01"), Err(expected));
    let version = |command, version| Err(DecodeError::UnknownVersion { command, version });
    assert_eq!(
        ClientCommand::decode(b"\0\x17\0\0"),
        version(CommandKey::Heartbeat, 0)
    );
    assert_eq!(
        ClientCommand::decode(b"\0\x17\0\x02"),
        version(CommandKey::Heartbeat, 2)
    );
    assert_eq!(
        ClientCommand::decode(b"\0\x02\0\x03"),
        version(CommandKey::Publish, 3)
    );
    assert_eq!(
        ClientCommand::decode(b"\0\x17\0\x01"),
        Ok(ClientCommand::Heartbeat {})
    );
    let text = DecodeError::UnknownVersion {
        command: CommandKey::Publish,
        version: 3,
    };
    assert_eq!(text.to_string(), "Publish has no version 3");
}

#[test]
fn consumer_update_may_have_an_offset_behind_every_position() {
    for (number, offset) in [
        (0, OffsetSpecification::None),
        (1, OffsetSpecification::First),
        (3, OffsetSpecification::Next),
    ] {
        let mut frame = b"\x80\x1a\0\x01\0\0\0\x09\0\x01\0".to_vec();
        frame.push(number);
        frame.extend_from_slice(&[0; 8]);
        let expected = ClientCommand::ConsumerUpdateResponse {
            correlation_id: 9,
            code: ResponseCode::OK,
            offset,
        };
        assert_eq!(ClientCommand::decode(&frame), Ok(expected));
    }
}

#[test]
fn malformed_fields_are_named() {
    let cases: [(&[u8], &str, Reason); 10] = [
        (
            b"\x80\x1a\0\x01\0\0\0\x09\0\x01\0\x01\0",
            "offset",
            Reason::Trailing,
        ),
        (
            b"\x80\x1a\0\x01\0\0\0\x09\0\x01\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
            "offset",
            Reason::Trailing,
        ),
        (
            b"\0\x0e\0\x01\0\0\0\x01\0\x02s",
            "stream",
            Reason::Truncated,
        ),
        (
            b"\0\x0e\0\x01\0\0\0\x01\xff\xfes",
            "stream",
            Reason::NegativeLength,
        ),
        (b"\0\x0e\0\x01\0\0\0\x01\0\x01\xff", "stream", Reason::Utf8),
        (
            b"\0\x0e\0\x01\0\0\0\x01\0\x01s!",
            "stream",
            Reason::Trailing,
        ),
        (
            b"\0\x07\0\x01\0\0\0\x01\x03\0\x01s\0\x06\0\x01",
            "offset",
            Reason::Undefined,
        ),
        (
            b"\0\x0f\0\x01\0\0\0\x01\0\x01\0\x01",
            "streams",
            Reason::TooMany,
        ),
        (
            b"\0\x0f\0\x01\0\0\0\x01\0\0\0\x02\0\0\0",
            "streams",
            Reason::Truncated,
        ),
        (
            b"\0\x13\0\x01\0\0\0\x01\0\x01P\xff\xff\xff\xf0",
            "data",
            Reason::NegativeLength,
        ),
    ];
    for (bytes, field, reason) in cases {
        let command = CommandKey::from_number(bytes[1].into()).expect("known");
        let expected = DecodeError::Field {
            command,
            field,
            reason,
        };
        assert_eq!(ClientCommand::decode(bytes), Err(expected), "{bytes:02x?}");
    }
    let undefined = ServerCommand::decode(b"\0\x1a\0\x01\0\0\0\x01\x03\x02");
    assert!(matches!(
        undefined,
        Err(DecodeError::Field {
            field: "is_active",
            reason: Reason::Undefined,
            ..
        })
    ));
}

#[test]
fn null_text_is_empty() {
    let decoded = ClientCommand::decode(b"\0\x01\0\x01\0\0\0\x01\x02\xff\xff\0\x01s");
    let expected = ClientCommand::DeclarePublisher {
        correlation_id: 1,
        publisher_id: 2,
        reference: "",
        stream: "s",
    };
    assert_eq!(decoded, Ok(expected));
}

#[test]
fn long_text_is_truncated_at_a_character() {
    let text = "ä".repeat(20_000);
    let bytes = encode_client(&ClientCommand::Close {
        correlation_id: 1,
        code: ResponseCode::OK,
        reason: &text,
    });
    let decoded = ClientCommand::decode(frame(&bytes)).expect("decodes");
    let ClientCommand::Close { reason, .. } = decoded else {
        panic!("{decoded:?}");
    };
    assert_eq!(reason, "ä".repeat(16_383));
}

#[test]
fn head_of_a_delivery_states_the_size_with_the_chunk() {
    for committed in [CommittedChunk(None), CommittedChunk(Some(5))] {
        let mut out = BytesMut::from(&b"before"[..]);
        encode_deliver_head(3, committed, 5, &mut out).expect("fits");
        out.extend_from_slice(b"chunk");
        let whole = ServerCommand::Deliver {
            subscription_id: 3,
            committed,
            chunk: Remainder(b"chunk"),
        };
        assert_eq!(out[6..], encode_server(&whole));
        let before = out.clone();
        assert!(encode_deliver_head(3, committed, u32::MAX, &mut out).is_err());
        assert_eq!(out, before);
    }
}

#[test]
fn command_keys_are_consistent() {
    for key in CommandKey::ALL {
        assert_eq!(CommandKey::from_number(key.number()), Some(*key));
        let versions = CommandVersions {
            key: key.number(),
            min: 1,
            max: key.max_version(),
        };
        assert_eq!(key.versions(), versions);
    }
    assert_eq!(CommandKey::ALL.len(), 0x1f);
    for number in [0, 0x20, 0x8001, u16::MAX] {
        assert_eq!(CommandKey::from_number(number), None);
    }
}

/// Decodes a changed frame. What is accepted means the same after it is written and read again.
fn check_any<T: PartialEq + Debug>(
    bytes: &[u8],
    decode: impl Fn(&'static [u8]) -> Result<T, DecodeError>,
    encode: impl Fn(&T) -> Vec<u8>,
) {
    if let Ok(command) = decode(leak(bytes.to_vec())) {
        let again = encode(&command);
        assert_eq!(decode(frame(&again)), Ok(command));
    }
}

#[test]
fn changed_and_cut_frames_are_decoded_or_refused() {
    let client = client_samples()
        .iter()
        .map(encode_client)
        .collect::<Vec<_>>();
    let server = server_samples()
        .iter()
        .map(encode_server)
        .collect::<Vec<_>>();
    for bytes in client.iter().chain(&server) {
        let frame = &bytes[4..];
        for at in 0..frame.len() {
            for value in [0, 1, 0x7F, 0x80, 0xFF, frame[at].wrapping_add(1)] {
                let mut changed = frame.to_vec();
                changed[at] = value;
                check_any(&changed, ClientCommand::decode, encode_client);
                check_any(&changed, ServerCommand::decode, encode_server);
            }
            check_any(&frame[..at], ClientCommand::decode, encode_client);
            check_any(&frame[..at], ServerCommand::decode, encode_server);
        }
    }
}

fn text() -> impl Strategy<Value = &'static str> {
    ".{0,12}".prop_map(|text: String| &*Box::leak(text.into_boxed_str()))
}

fn texts() -> impl Strategy<Value = List<'static, &'static str>> {
    prop::collection::vec(text(), 0..5).prop_map(list)
}

fn any_properties() -> impl Strategy<Value = List<'static, Property<'static>>> {
    let property = (text(), text()).prop_map(|(key, value)| Property { key, value });
    prop::collection::vec(property, 0..5).prop_map(list)
}

fn offsets() -> impl Strategy<Value = OffsetSpecification> {
    (0..6, any::<u64>()).prop_map(|(kind, number)| match kind {
        0 => OffsetSpecification::None,
        1 => OffsetSpecification::First,
        2 => OffsetSpecification::Last,
        3 => OffsetSpecification::Next,
        4 => OffsetSpecification::Offset(number),
        _ => OffsetSpecification::Timestamp(number as i64),
    })
}

fn any_messages() -> impl Strategy<Value = PublishedMessages<'static>> {
    let bytes = prop::collection::vec(any::<u8>(), 0..30).prop_map(leak);
    let message = (
        any::<u64>(),
        prop::option::of("[a-z]{1,5}"),
        0_u16..4,
        bytes,
    );
    prop::collection::vec(message, 0..8).prop_map(|messages| {
        let sent = messages
            .into_iter()
            .map(|(publishing_id, filter, records, data)| {
                let filter = filter.map(|filter| &*Box::leak(filter.into_boxed_str()));
                let body = match records {
                    0 => PublishedBody::Message(data),
                    _ => PublishedBody::SubBatch {
                        compression: (publishing_id % 8) as u8,
                        records,
                        uncompressed_len: publishing_id as u32,
                        data,
                    },
                };
                PublishedMessage {
                    publishing_id,
                    filter,
                    body,
                }
            });
        let sent: Vec<PublishedMessage<'_>> = sent.collect();
        let messages = published(&sent);
        let read: Result<Vec<_>, _> = messages.iter().collect();
        assert_eq!(read, Ok(sent));
        messages
    })
}

proptest! {
    /// The fields of all commands of clients that have more than numbers.
    #[test]
    fn client_commands_round_trip(
        (correlation_id, id, number) in any::<(u32, u8, u64)>(),
        (a, b) in (text(), text()),
        (items, more) in (texts(), texts()),
        properties in any_properties(),
        offset in offsets(),
        messages in any_messages(),
        data in prop::option::of(prop::collection::vec(any::<u8>(), 0..20)),
    ) {
        use ClientCommand::*;
        let code = ResponseCode(number as u16);
        let data = data.map(leak);
        for command in [
            DeclarePublisher { correlation_id, publisher_id: id, reference: a, stream: b },
            Publish { publisher_id: id, messages },
            Subscribe {
                correlation_id, subscription_id: id, stream: a, offset, credit: number as u16,
                properties: Trailing(properties),
            },
            Credit { subscription_id: id, credit: number as u16 },
            StoreOffset { reference: a, stream: b, offset: number },
            Create { correlation_id, stream: a, arguments: properties },
            Metadata { correlation_id, streams: items },
            SaslAuthenticate { correlation_id, mechanism: a, data },
            Tune { frame_max: correlation_id, heartbeat: number as u32 },
            Close { correlation_id, code, reason: a },
            ConsumerUpdateResponse { correlation_id, code, offset },
            CreateSuperStream {
                correlation_id, super_stream: a, partitions: items, binding_keys: more, arguments: properties,
            },
            ResolveOffsetSpec { correlation_id, stream: a, offset, properties: Trailing(properties) },
        ] {
            let bytes = encode_client(&command);
            prop_assert_eq!(ClientCommand::decode(frame(&bytes)), Ok(command));
        }
    }

    /// The fields of all commands of the server that have more than numbers.
    #[test]
    fn server_commands_round_trip(
        (correlation_id, id, numbers) in any::<(u32, u8, [u64; 3])>(),
        texts in texts(),
        properties in any_properties(),
        offset in offsets(),
        data in prop::option::of(prop::collection::vec(any::<u8>(), 0..20)),
    ) {
        use ServerCommand::*;
        let code = ResponseCode(numbers[0] as u16);
        let data = data.map(leak);
        let error = |publishing_id: &u64| PublishingError { publishing_id: *publishing_id, code };
        let broker = |host| Broker { reference: id.into(), host, port: correlation_id };
        let stream = |stream| StreamMetadata {
            stream, code, leader: 3, replicas: list(numbers.iter().map(|n| *n as u16).collect()),
        };
        let statistic = |key| Statistic { key, value: numbers[1] as i64 };
        for command in [
            PublishConfirm { publisher_id: id, publishing_ids: list(numbers.to_vec()) },
            PublishError { publisher_id: id, errors: list(numbers.iter().map(error).collect()) },
            Deliver {
                subscription_id: id, committed: CommittedChunk(data.map(|d| d.len() as u64)),
                chunk: Remainder(data.unwrap_or_default()),
            },
            Metadata {
                correlation_id,
                brokers: list(texts.iter().map(broker).collect()),
                streams: list(texts.iter().map(stream).collect()),
            },
            PeerProperties { correlation_id, code, properties },
            SaslHandshake { correlation_id, code, mechanisms: texts },
            SaslAuthenticate { correlation_id, code, challenge: Trailing(data) },
            Open { correlation_id, code, properties: Trailing(properties) },
            Route { correlation_id, code, streams: texts },
            StreamStats { correlation_id, code, statistics: list(texts.iter().map(statistic).collect()) },
            ResolveOffsetSpec { correlation_id, code, offset },
        ] {
            let bytes = encode_server(&command);
            prop_assert_eq!(ServerCommand::decode(frame(&bytes)), Ok(command));
        }
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(
        key in 0_u16..0x21, is_response: bool, version in 0_u16..4,
        rest in prop::collection::vec(prop_oneof![Just(0_u8), Just(1), Just(0xFF), any::<u8>()], 0..60),
    ) {
        let key = if is_response { key | 0x8000 } else { key };
        let bytes = [&key.to_be_bytes()[..], &version.to_be_bytes(), &rest].concat();
        check_any(&bytes, ClientCommand::decode, encode_client);
        check_any(&bytes, ServerCommand::decode, encode_server);
        if let Ok(ClientCommand::Publish { messages, .. }) = ClientCommand::decode(&bytes) {
            prop_assert!(messages.iter().count() <= messages.len());
        }
    }
}
