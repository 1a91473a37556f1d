//! Clients that send arbitrary packets in any order: every answer is a valid packet, no message is
//! in flight twice, and the client gets at most Receive Maximum messages at once.

use crate::fake::World;
use codec_mqtt::{AckKind, Qos, ReasonCode, SubscribeOptions, Version};
use proptest::collection::vec;
use proptest::prelude::*;
use session_mqtt::{MqttSettings, SessionLimits};
use std::collections::BTreeSet;
use std::time::Duration;

const FILTERS: [&str; 6] = ["a", "a/#", "+/b", "#", "$share/g/a", "a/+/"];
const TOPICS: [&str; 4] = ["a", "a/b", "$x", "a//"];
const QUOTA: usize = 3;

#[derive(Clone, Debug)]
enum Step {
    Connect {
        clean: bool,
    },
    Publish {
        topic: usize,
        qos: u8,
        id: u16,
        retain: bool,
    },
    Subscribe {
        filter: usize,
        qos: u8,
    },
    Unsubscribe {
        filter: usize,
    },
    Ack {
        kind: u8,
        id: u16,
    },
    Raw(Vec<u8>),
    Cut,
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => any::<bool>().prop_map(|clean| Step::Connect { clean }),
        6 => (0..TOPICS.len(), 0u8..3, 1u16..5, any::<bool>())
            .prop_map(|(topic, qos, id, retain)| Step::Publish { topic, qos, id, retain }),
        3 => (0..FILTERS.len(), 0u8..3).prop_map(|(filter, qos)| Step::Subscribe { filter, qos }),
        1 => (0..FILTERS.len()).prop_map(|filter| Step::Unsubscribe { filter }),
        6 => (0u8..4, 1u16..6).prop_map(|(kind, id)| Step::Ack { kind, id }),
        1 => vec(any::<u8>(), 1..20).prop_map(Step::Raw),
        1 => Just(Step::Cut),
        1 => (1u64..100).prop_map(Step::Wait),
    ]
}

/// A client and the packet identifiers that it must acknowledge.
struct Connection {
    c: usize,
    owes: BTreeSet<u16>,
}

fn enter(w: &mut World, version: Version, name: &'static str, clean: bool) -> Connection {
    let c = w.open(version);
    w.connect(c, |connect| {
        connect.client_id = name;
        connect.clean_start = clean;
        if version.is_5() {
            connect.properties.session_expiry = Some(50);
        }
    });
    let owes = BTreeSet::new();
    Connection { c, owes }
}

/// Reads the output; fails if it is not a packet that servers send.
fn read(w: &mut World, connection: &mut Connection) -> Result<(), TestCaseError> {
    for epoch in w.output(connection.c) {
        let words: Vec<&str> = epoch.split(' ').collect();
        let id = words.iter().find_map(|w| w.strip_prefix('#'));
        if let Some(id) = id
            .and_then(|id| id.parse().ok())
            .filter(|_| words[0] == "PUBLISH")
        {
            prop_assert!(connection.owes.insert(id), "identifier {id} is in use");
        }
        prop_assert!(connection.owes.len() <= QUOTA, "{:?}", connection.owes);
    }
    Ok(())
}

fn act(
    w: &mut World,
    connection: &mut Connection,
    name: &'static str,
    version: Version,
    step: Step,
) {
    let c = connection.c;
    match step {
        Step::Connect { clean } => *connection = enter(w, version, name, clean),
        Step::Publish {
            topic,
            qos,
            id,
            retain,
        } => {
            let qos = Qos::from_bits(qos).unwrap();
            let id = if qos == Qos::AtMostOnce { 0 } else { id };
            w.publish_with(c, TOPICS[topic], qos, id, "x", |p| p.retain = retain);
        }
        Step::Subscribe { filter, qos } => {
            let qos = Qos::from_bits(qos).unwrap();
            let options = SubscribeOptions {
                qos,
                ..SubscribeOptions::default()
            };
            w.subscribe_with(c, FILTERS[filter], options, None);
        }
        Step::Unsubscribe { filter } => w.unsubscribe(c, &[FILTERS[filter]]),
        Step::Ack { kind, id } => {
            let kind = [
                AckKind::PubAck,
                AckKind::PubRec,
                AckKind::PubRel,
                AckKind::PubComp,
            ][usize::from(kind)];
            // PUBREC leaves the identifier in use.
            if matches!(kind, AckKind::PubAck | AckKind::PubComp) {
                connection.owes.remove(&id);
            }
            w.ack(c, kind, id, ReasonCode::Success);
        }
        Step::Raw(raw) => w.send_raw(c, &raw),
        Step::Cut => w.cut(c),
        Step::Wait(seconds) => w.advance(Duration::from_secs(seconds)),
    }
}

proptest! {
    #[test]
    fn any_packet_sequence_is_answered_with_packets(script in vec((0usize..3, steps()), 1..80)) {
        let limits = SessionLimits { prefetch: QUOTA as u16, waiting_messages: 5, ..SessionLimits::default() };
        let mut w = World::new(MqttSettings { limits, ..MqttSettings::default() });
        let names = [("a", Version::V311), ("b", Version::V5), ("c", Version::V5)];
        let mut connections: Vec<Connection> = names.iter().map(|&(name, version)| enter(&mut w, version, name, true)).collect();
        for (who, step) in script {
            let (name, version) = names[who];
            act(&mut w, &mut connections[who], name, version, step);
            for connection in &mut connections {
                read(&mut w, connection)?;
            }
        }
        for connection in &connections {
            w.cut(connection.c);
        }
        w.advance(Duration::from_secs(100_000));
        let left = w.node.router().counts();
        prop_assert_eq!((left.connected, left.parked, left.subscriptions), (0, 0, 0));
    }

    #[test]
    fn any_bytes_are_answered_or_end_the_connection(pieces in vec(vec(any::<u8>(), 0..40), 1..10), connected: bool) {
        let mut w = World::default();
        let c = match connected {
            true => w.client(Version::V5, "c"),
            false => w.open(Version::V5),
        };
        for piece in pieces {
            w.send_raw(c, &piece);
            w.bytes(c);
        }
    }
}
