//! Messages between MQTT routers as version 0.2 wrote them.

use bytes::{Bytes, BytesMut};
use env::WallTime;
use message::{Message, MessageBuilder, Protocol};
use topics::{
    ClaimMessage, ClaimVerb, ClientId, ForwardedMessage, ForwardedMessages, InterestCounts,
    InterestKey, PeerMessage, PeerState, RouteChanges, Will, WillMessage,
};

const CRATE: &str = env!("CARGO_MANIFEST_DIR");

golden::variant_names! {
    fn claim_name(ClaimMessage) {
        ClaimMessage { verb: ClaimVerb::Claim { .. }, .. } => "claim",
        ClaimMessage { verb: ClaimVerb::Granted { .. }, .. } => "granted",
        ClaimMessage { verb: ClaimVerb::Lost { .. }, .. } => "lost",
        ClaimMessage { verb: ClaimVerb::Yield { .. }, .. } => "yield",
        ClaimMessage { verb: ClaimVerb::Free { .. }, .. } => "free",
        ClaimMessage { verb: ClaimVerb::Hold { .. }, .. } => "hold",
        ClaimMessage { verb: ClaimVerb::ReportHolds, .. } => "report-holds",
    }
    fn will_name(WillMessage) {
        WillMessage::Keep { .. } => "keep",
        WillMessage::Drop { .. } => "drop",
    }
    fn peer_name(PeerMessage) {
        PeerMessage::State(_) => "state",
        PeerMessage::Changes(_) => "changes",
        PeerMessage::Messages(_) => "messages",
    }
    fn key_name(InterestKey) {
        InterestKey::Filter { .. } => "filter",
        InterestKey::Group { .. } => "group",
        InterestKey::Seat { .. } => "seat",
    }
}

fn client() -> ClientId {
    ClientId {
        vhost: "/".into(),
        client: "sensor é".into(),
    }
}

/// As decoded, so that its Debug text does not depend on the way it was built.
fn message() -> Message {
    let builder = MessageBuilder {
        protocol: Protocol::Mqtt,
        durable: true,
        priority: None,
        ttl_ms: Some(60_000),
        received: WallTime(1_790_000_000_123),
        exchange: "amq.topic",
        routing_keys: &["a.b"],
        properties: b"envelope",
    };
    let built = builder.build(4, [&b"body"[..]]).expect("a message");
    Message::decode(built.to_bytes()).expect("a container")
}

/// The only message of a frame.
fn one<T, E>(decoded: Result<Vec<T>, E>) -> Result<T, Option<E>> {
    match decoded.map_err(Some)?.pop() {
        Some(message) => Ok(message),
        None => Err(None),
    }
}

#[test]
fn claim_messages_of_version_0_2_are_decoded() {
    let handovers = [Bytes::new(), Bytes::from_static(b"handover")];
    let mut verbs = vec![
        ClaimVerb::Claim {
            session: 300,
            clean: false,
        },
        ClaimVerb::Claim {
            session: 300,
            clean: true,
        },
        ClaimVerb::Lost { session: 300 },
        ClaimVerb::Yield {
            stamp: u64::MAX,
            clean: true,
        },
        ClaimVerb::Hold { stamp: 1_000 },
    ];
    for handover in handovers {
        verbs.push(ClaimVerb::Granted {
            session: 300,
            stamp: 1_000,
            handover: handover.clone(),
        });
        verbs.push(ClaimVerb::Free {
            stamp: 1_000,
            handover,
        });
    }
    let about_client = |verb| ClaimMessage { id: client(), verb };
    let mut all: Vec<ClaimMessage> = verbs.into_iter().map(about_client).collect();
    all.push(ClaimMessage {
        id: ClientId::default(),
        verb: ClaimVerb::ReportHolds,
    });
    let encode = |message: &ClaimMessage| {
        let mut out = BytesMut::new();
        message.encode(&mut out);
        out.to_vec()
    };
    let decode = |frame: &[u8]| one(ClaimMessage::decode_all(Bytes::copy_from_slice(frame)));
    golden::verify(CRATE, "0.2/claim", |files| {
        files.check_enum(&all, claim_name, encode, decode);
    });
}

#[test]
fn will_messages_of_version_0_2_are_decoded() {
    let keep = |delay, retain| WillMessage::Keep {
        number: 300,
        id: client(),
        delay,
        will: Will {
            topic: "a/b".into(),
            message: message(),
            retain,
        },
    };
    let all = [
        keep(0, true),
        keep(u32::MAX, false),
        WillMessage::Drop { number: 300 },
    ];
    let encode = |message: &WillMessage| {
        let mut out = BytesMut::new();
        message.encode(&mut out);
        out.to_vec()
    };
    let decode = |frame: &[u8]| one(WillMessage::decode_all(Bytes::copy_from_slice(frame)));
    golden::verify(CRATE, "0.2/will", |files| {
        files.check_enum(&all, will_name, encode, decode);
    });
}

#[test]
fn peer_messages_of_version_0_2_are_decoded() {
    let state = PeerState {
        ask: true,
        again: false,
        newest: 1,
        routes: 2,
        messages: 300,
        plain: 4,
        first: 5,
        lost: 6,
        question: 7,
        until: 8,
        answered: 9,
        applied: u64::MAX,
    };
    let again = PeerState {
        ask: false,
        again: true,
        ..PeerState::default()
    };
    let keys = [
        InterestKey::Filter {
            vhost: "/".into(),
            filter: "a/+/é".into(),
        },
        InterestKey::Group {
            vhost: "v".into(),
            filter: "$share/workers/#".into(),
        },
        InterestKey::Seat { queue: 70_000 },
    ];
    golden::assert_covers(&keys, key_name);
    let counts = InterestCounts {
        stored: 1,
        plain: 2,
        acknowledged: 300,
    };
    let list = keys.into_iter().map(|key| (key, counts)).collect();
    let changes = RouteChanges {
        from: 4,
        to: 5,
        digest: Some(u64::MAX),
        list,
    };
    let without_digest = RouteChanges {
        from: 0,
        to: 300,
        digest: None,
        list: vec![(InterestKey::Seat { queue: 1 }, InterestCounts::default())],
    };
    let forwarded = |numbered, group: Option<&str>| ForwardedMessage {
        numbered,
        group: group.map(Into::into),
        hops: 3,
        vhost: "/".into(),
        message: message(),
    };
    let messages = ForwardedMessages {
        first: 1_000,
        plain: 70_000,
        list: vec![
            forwarded(true, None),
            forwarded(false, None),
            forwarded(true, Some("$share/workers/a/b")),
            forwarded(false, Some("$share/workers/a/b")),
        ],
    };
    let all = [
        PeerMessage::State(state),
        PeerMessage::State(again),
        PeerMessage::Changes(changes),
        PeerMessage::Changes(without_digest),
        PeerMessage::Messages(messages),
    ];
    let encode = |message: &PeerMessage| {
        let mut out = BytesMut::new();
        message.encode(&mut out);
        out.to_vec()
    };
    let decode = |frame: &[u8]| PeerMessage::decode(Bytes::copy_from_slice(frame));
    golden::verify(CRATE, "0.2/peer", |files| {
        files.check_enum(&all, peer_name, encode, decode);
    });
}
