//! Encoded packets decode to the same packets in all versions that have them, and arbitrary bytes
//! never panic.

use bytes::BytesMut;
use codec_mqtt::{
    Ack, AckKind, Auth, ConnAck, Connect, DecodeError, Disconnect, ForwardedPublish, MAX_PACKET,
    Packet, Properties, PropertyLocation, Publish, Qos, ReasonCode, RepeatedProperties,
    RetainHandling, SubAck, Subscribe, SubscribeOptions, SubscriptionFilters, UnsubAck,
    Unsubscribe, UnsubscribeFilters, Version, Will, parse_frame, put_subscription_identifier,
    put_user_property,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use std::num::{NonZeroU16, NonZeroU32};

/// Owned values of properties.
#[derive(Clone, Debug, Default)]
struct Words {
    text: Option<String>,
    data: Option<Vec<u8>>,
    number: Option<u32>,
    flag: Option<bool>,
    users: Vec<(String, String)>,
    identifiers: Vec<u32>,
}

fn words() -> impl Strategy<Value = Words> {
    (
        option::of("[a-zé]{0,200}"),
        option::of(vec(any::<u8>(), 0..40)),
        any::<Option<u32>>(),
        any::<Option<bool>>(),
        vec(("[a-zé]{0,9}", "[ -~]{0,30}"), 0..4),
        vec(1u32..=268_435_455, 0..4),
    )
        .prop_map(|(text, data, number, flag, users, identifiers)| Words {
            text,
            data,
            number,
            flag,
            users,
            identifiers,
        })
}

impl Words {
    fn repeated(&self, identifiers: usize) -> BytesMut {
        let mut out = BytesMut::new();
        for (name, value) in &self.users {
            put_user_property(&mut out, name, value);
        }
        for &id in self.identifiers.iter().take(identifiers) {
            put_subscription_identifier(&mut out, id);
        }
        out
    }

    /// All properties that a packet of this kind may have.
    fn properties<'a>(&'a self, place: PropertyLocation, repeated: &'a [u8]) -> Properties<'a> {
        let text = self.text.as_deref();
        let data = self.data.as_deref();
        let (number, flag) = (self.number, self.flag);
        let small = number.map(|n| n as u16);
        let mut p = Properties {
            repeated: RepeatedProperties(repeated),
            ..Properties::default()
        };
        if matches!(place, PropertyLocation::Publish | PropertyLocation::Will) {
            p.payload_format = flag;
            p.message_expiry = number;
            p.content_type = text;
            p.response_topic = text.filter(|t| !t.is_empty());
            p.correlation_data = data;
        }
        match place {
            PropertyLocation::Publish => p.topic_alias = small.filter(|&n| n > 0),
            PropertyLocation::Will => p.will_delay = number,
            PropertyLocation::Connect => {
                p.session_expiry = number;
                p.request_problem_information = flag;
                p.request_response_information = flag;
            }
            PropertyLocation::ConnAck => {
                p.session_expiry = number;
                p.assigned_client_id = text;
                p.server_keep_alive = small;
                p.response_information = text;
                p.maximum_qos = flag;
                p.retain_available = flag;
                p.wildcard_subscription_available = flag;
                p.subscription_identifier_available = flag;
                p.shared_subscription_available = flag;
            }
            PropertyLocation::Disconnect => p.session_expiry = number,
            _ => {}
        }
        if matches!(place, PropertyLocation::Connect | PropertyLocation::ConnAck) {
            p.receive_maximum = small.and_then(NonZeroU16::new);
            p.topic_alias_maximum = small;
            p.maximum_packet_size = number.and_then(NonZeroU32::new);
        }
        if matches!(
            place,
            PropertyLocation::Connect | PropertyLocation::ConnAck | PropertyLocation::Auth
        ) {
            p.authentication_method = text;
            p.authentication_data = data.filter(|_| text.is_some());
        }
        if matches!(
            place,
            PropertyLocation::ConnAck | PropertyLocation::Disconnect
        ) {
            p.server_reference = text;
        }
        if matches!(
            place,
            PropertyLocation::ConnAck
                | PropertyLocation::Ack
                | PropertyLocation::Disconnect
                | PropertyLocation::Auth
        ) {
            p.reason_string = text;
        }
        p
    }
}

fn versions() -> impl Strategy<Value = Version> {
    prop_oneof![Just(Version::V31), Just(Version::V311), Just(Version::V5)]
}

fn qos_levels() -> impl Strategy<Value = Qos> {
    (0u8..3).prop_map(|bits| Qos::from_bits(bits).unwrap())
}

/// Encodes a packet, checks that it is found only when complete, and decodes it.
fn check_roundtrip(packet: &Packet<'_>, version: Version) -> Result<(), TestCaseError> {
    let mut out = BytesMut::new();
    packet.encode(version, &mut out);
    let frame = parse_frame(&out, MAX_PACKET).unwrap().unwrap();
    prop_assert_eq!(frame.wire_len(), out.len());
    prop_assert_eq!(Packet::decode(&frame, version), Ok(*packet));
    for cut in (0..out.len()).step_by(1 + out.len() / 40) {
        prop_assert_eq!(parse_frame(&out[..cut], MAX_PACKET), Ok(None));
    }
    let too_large = parse_frame(&out, out.len() - 1);
    prop_assert!(
        matches!(too_large, Err(DecodeError::TooLarge { .. })),
        "taken"
    );
    Ok(())
}

proptest! {
    #[test]
    fn connect_round_trips(
        version in versions(), clean_start: bool, keep_alive: u16, client_id in "[a-z0-9]{0,40}", words in words(),
        will in option::of((qos_levels(), any::<bool>(), "[a-z/]{1,20}", vec(any::<u8>(), 0..300))),
        user in option::of("[a-z]{0,9}"), password in option::of(vec(any::<u8>(), 0..9)),
    ) {
        let repeated = words.repeated(0);
        let of = |place| match version {
            Version::V5 => words.properties(place, &repeated),
            _ => Properties::default(),
        };
        let packet = Connect {
            version, clean_start, keep_alive, client_id: &client_id,
            properties: of(PropertyLocation::Connect),
            will: will.as_ref().map(|(qos, retain, topic, payload)| Will {
                qos: *qos, retain: *retain, topic, payload, properties: of(PropertyLocation::Will),
            }),
            user_name: user.as_deref(),
            password: password.as_deref().filter(|_| version.is_5() || user.is_some()),
        };
        check_roundtrip(&Packet::Connect(packet), version)?;
    }

    #[test]
    fn publish_round_trips(
        version in versions(), qos in qos_levels(), dup: bool, retain: bool, topic in "[a-zé/]{1,300}", packet_id in 1u16..,
        words in words(), payload in vec(any::<u8>(), 0..400),
    ) {
        let repeated = words.repeated(9);
        let properties = match version {
            Version::V5 => words.properties(PropertyLocation::Publish, &repeated),
            _ => Properties::default(),
        };
        let none = qos == Qos::AtMostOnce;
        let packet = Publish {
            dup: dup && !none, qos, retain, topic: &topic, packet_id: if none { 0 } else { packet_id }, properties,
            payload: &payload,
        };
        check_roundtrip(&Packet::Publish(packet), version)?;

        // The same when it is forwarded to a subscriber.
        let mut kept = BytesMut::new();
        properties.put_kept(&mut kept);
        let forward = ForwardedPublish {
            dup: packet.dup, qos, retain, topic: topic.as_bytes(), packet_id: packet.packet_id,
            message_expiry: properties.message_expiry, alias: properties.topic_alias,
            subscription_identifiers: &words.identifiers, kept: &kept,
        };
        let mut out = BytesMut::new();
        forward.encode_head(version, payload.len(), &mut out);
        out.extend_from_slice(&payload);
        prop_assert_eq!(out.len(), forward.wire_len(version, payload.len()));
        let frame = parse_frame(&out, MAX_PACKET).unwrap().unwrap();
        prop_assert_eq!(frame.wire_len(), out.len());
        prop_assert_eq!(Packet::decode(&frame, version), Ok(Packet::Publish(packet)));
    }

    #[test]
    fn other_packets_roundtrip(
        version in versions(), packet_id in 1u16.., words in words(), session_present: bool,
        codes in vec(0u8..3, 1..50), filters in vec(("[a-z/+#$]{0,20}", 0u8..3, any::<[bool; 2]>(), 0u8..3), 1..9),
    ) {
        let repeated = words.repeated(0);
        let single = words.repeated(1);
        let of = |place| match version {
            Version::V5 => words.properties(place, if place == PropertyLocation::Subscribe { &single } else { &repeated }),
            _ => Properties::default(),
        };
        let five = version.is_5();
        let told = |reason: ReasonCode| if five { reason } else { ReasonCode::Success };
        let not_311 = Version::V31 == version;
        check_roundtrip(&Packet::ConnAck(ConnAck {
            session_present: session_present && !not_311, reason: ReasonCode::NotAuthorized, properties: of(PropertyLocation::ConnAck),
        }), version)?;
        for (kind, reason) in [
            (AckKind::PubAck, ReasonCode::NoMatchingSubscribers), (AckKind::PubRec, ReasonCode::Success),
            (AckKind::PubRel, ReasonCode::PacketIdentifierNotFound), (AckKind::PubComp, ReasonCode::Success),
        ] {
            let ack = Ack { kind, packet_id, reason: told(reason), properties: of(PropertyLocation::Ack) };
            check_roundtrip(&Packet::Ack(ack), version)?;
            check_roundtrip(&Packet::Ack(Ack::new(kind, packet_id, told(reason))), version)?;
        }
        let mut raw = BytesMut::new();
        let mut names = BytesMut::new();
        let mut expected = Vec::new();
        for (filter, qos, [no_local, retain_as_published], handling) in &filters {
            let options = SubscribeOptions {
                qos: Qos::from_bits(*qos).unwrap(), no_local: *no_local && five && !filter.starts_with("$share"),
                retain_as_published: *retain_as_published && five,
                retain_handling: match (handling, five) {
                    (1, true) => RetainHandling::SendIfNew,
                    (2, true) => RetainHandling::DoNotSend,
                    _ => RetainHandling::Send,
                },
            };
            SubscriptionFilters::put(&mut raw, filter, options);
            UnsubscribeFilters::put(&mut names, filter);
            expected.push((filter.as_str(), options));
        }
        let subscribe = Subscribe { packet_id, properties: of(PropertyLocation::Subscribe), filters: SubscriptionFilters::new(&raw, version) };
        prop_assert_eq!(subscribe.filters.iter().collect::<Vec<_>>(), expected.clone());
        check_roundtrip(&Packet::Subscribe(subscribe), version)?;
        let unsubscribe = Unsubscribe { packet_id, properties: of(PropertyLocation::Unsubscribe), filters: UnsubscribeFilters::new(&names) };
        prop_assert!(unsubscribe.filters.iter().eq(expected.iter().map(|(filter, _)| *filter)));
        check_roundtrip(&Packet::Unsubscribe(unsubscribe), version)?;
        check_roundtrip(&Packet::SubAck(SubAck { packet_id, properties: of(PropertyLocation::Ack), reasons: &codes }), version)?;
        let reasons = if five { &codes[..] } else { &[] };
        check_roundtrip(&Packet::UnsubAck(UnsubAck { packet_id, properties: of(PropertyLocation::Ack), reasons }), version)?;
        check_roundtrip(&Packet::PingReq, version)?;
        check_roundtrip(&Packet::PingResp, version)?;
        check_roundtrip(&Packet::Disconnect(Disconnect { reason: told(ReasonCode::SessionTakenOver), properties: of(PropertyLocation::Disconnect) }), version)?;
        if five {
            check_roundtrip(&Packet::Auth(Auth { reason: ReasonCode::ContinueAuthentication, properties: of(PropertyLocation::Auth) }), version)?;
        }
    }

    #[test]
    fn decode_never_panics(raw in vec(any::<u8>(), 0..300), version in versions()) {
        let _ = Properties::decode(&raw, PropertyLocation::Publish);
        if let Ok(Some(frame)) = parse_frame(&raw, 4096) {
            prop_assert!(frame.wire_len() <= raw.len());
            let _ = Packet::decode(&frame, version);
        }
    }

    /// Random bytes after a valid header: each decoded packet can be encoded again and decodes to
    /// the same packet.
    #[test]
    fn decoded_random_packets_roundtrip(
        kind in 1u8..16, low in 0u8..16, body in vec(prop_oneof![3 => 0u8..8, 1 => any::<u8>()], 0..60), version in versions(),
    ) {
        let low = match kind { 3 => low, 6 | 8 | 10 => 2, _ => 0 };
        let mut raw = vec![kind << 4 | low, body.len() as u8];
        raw.extend(&body);
        let frame = parse_frame(&raw, 4096).unwrap().unwrap();
        if let Ok(packet) = Packet::decode(&frame, version) {
            let version = match &packet { Packet::Connect(c) => c.version, _ => version };
            let mut out = BytesMut::new();
            packet.encode(version, &mut out);
            let frame = parse_frame(&out, 4096).unwrap().unwrap();
            prop_assert_eq!(Packet::decode(&frame, version), Ok(packet));
        }
    }

    /// A packet with one damaged byte is rejected or is another valid packet.
    #[test]
    fn flipped_byte_never_panics(at: prop::sample::Index, with in 1u8.., words in words(), version in versions()) {
        let repeated = words.repeated(1);
        let connect = Connect {
            version, clean_start: true, keep_alive: 9, client_id: "c",
            properties: words.properties(PropertyLocation::Connect, &[]),
            will: Some(Will { qos: Qos::AtLeastOnce, retain: true, topic: "a/b", payload: b"gone", properties: words.properties(PropertyLocation::Will, &repeated[..0]) }),
            user_name: Some("u"), password: Some(b"p"),
        };
        let mut out = BytesMut::new();
        connect.encode(&mut out);
        let at = at.index(out.len());
        out[at] ^= with;
        if let Ok(Some(frame)) = parse_frame(&out, 4096) {
            let _ = Packet::decode(&frame, version);
        }
    }
}
