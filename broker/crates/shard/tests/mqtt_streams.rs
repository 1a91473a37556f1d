//! MQTT clients that read streams.

use crate::cluster::Cluster;
use crate::cluster::mqtt::MqttClient;
use codec_amqp091::Method;
use codec_mqtt::{AckKind, Properties, Qos};
use message::Value;
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

/// Seconds for which the sessions of some clients are kept.
const KEPT: u32 = 3600;

fn declare_stream(c: &mut Cluster, name: &str, key: &str) {
    let mut admin = c.client(0);
    admin.declare(c, name, &[("x-queue-type", Value::from("stream"))]);
    admin.bind(c, name, "amq.topic", key, &[]);
}

/// A client, and the packets that came and were not looked at.
struct Reader {
    client: MqttClient,
    said: VecDeque<String>,
}

impl Reader {
    fn new(c: &mut Cluster, at: usize, client_id: &str, expiry: u32) -> Reader {
        let mut reader = Reader::of(MqttClient::new(c, at, client_id, expiry, None));
        let answer = reader.next(c);
        assert!(answer.starts_with("CONNACK Success"), "{answer}");
        reader
    }

    fn of(client: MqttClient) -> Reader {
        Reader {
            client,
            said: VecDeque::new(),
        }
    }

    fn next(&mut self, c: &mut Cluster) -> String {
        c.until("a packet", |c| {
            self.said.extend(self.client.said(c));
            self.said.pop_front()
        })
    }

    /// Everything that comes within a second.
    fn rest(&mut self, c: &mut Cluster) -> Vec<String> {
        c.pass(Duration::from_secs(1));
        self.said.extend(self.client.said(c));
        self.said.drain(..).collect()
    }

    /// Publishes to `rooms/N/heat` with QoS 1.
    fn publish(&mut self, c: &mut Cluster, numbers: Range<u32>) {
        for number in numbers {
            let (topic, payload) = (format!("rooms/{number}/heat"), number.to_string());
            let nothing = Properties::default();
            self.client
                .publish(c, &topic, Qos::AtLeastOnce, payload.as_bytes(), nothing);
            assert_eq!(self.next(c), "PubAck Success");
        }
    }

    /// Asks for a stream and returns SUBACK.
    fn request(
        &mut self,
        c: &mut Cluster,
        filter: &str,
        qos: Qos,
        properties: &[(&str, &str)],
    ) -> String {
        self.client.subscribe_with(c, filter, qos, properties);
        self.next(c)
    }

    fn replay(&mut self, c: &mut Cluster, qos: Qos, offset: &str) {
        let answer = self.request(c, "rooms/+/heat", qos, &[("x-stream-offset", offset)]);
        assert_eq!(answer, "SubAck");
    }

    fn acknowledge(&mut self, c: &mut Cluster, number: u32) {
        let id = self.client.packet_id_of(&number.to_string());
        self.client.answer(c, AckKind::PubAck, id);
    }

    /// Receives these messages in order, each once and with a higher offset, acknowledges those of QoS 1, and
    /// returns their offsets.
    fn receive(&mut self, c: &mut Cluster, numbers: Range<u32>, qos: u8) -> Vec<u64> {
        let mut offsets: Vec<u64> = Vec::new();
        for number in numbers {
            let said = self.next(c);
            let start = format!(r#"rooms/{number}/heat {number} q{qos} [("x-stream-offset", ""#);
            let offset = said
                .strip_prefix(&start)
                .and_then(|rest| rest.strip_suffix(r#"")]"#));
            let offset = offset.and_then(|offset| offset.parse().ok());
            let offset = offset.unwrap_or_else(|| panic!("{said} instead of {start}"));
            assert!(offsets.last().is_none_or(|last| *last < offset));
            offsets.push(offset);
            if qos > 0 {
                self.acknowledge(c, number);
            }
        }
        offsets
    }
}

#[test]
fn a_client_replays_a_stream_and_continues_with_new_messages() {
    let mut c = Cluster::new(3);
    declare_stream(&mut c, "s", "rooms.*.heat");
    let mut publisher = Reader::new(&mut c, 0, "publisher", 0);
    publisher.publish(&mut c, 0..30);
    for at in 0..3 {
        let mut reader = Reader::new(&mut c, at, &format!("reader{at}"), 0);
        reader.replay(&mut c, Qos::AtLeastOnce, "first");
        let offsets = reader.receive(&mut c, 0..30, 1);
        let mut late = Reader::new(&mut c, at, &format!("late{at}"), 0);
        let from = offsets[20].to_string();
        late.replay(&mut c, Qos::AtMostOnce, &from);
        late.receive(&mut c, 20..30, 0);
    }
    let mut reader = Reader::new(&mut c, 1, "reader1", 0);
    let mut next = Reader::new(&mut c, 2, "next", 0);
    reader.replay(&mut c, Qos::AtLeastOnce, "first");
    reader.receive(&mut c, 0..30, 1);
    next.replay(&mut c, Qos::AtLeastOnce, "next");
    c.pass(Duration::from_secs(1));
    publisher.publish(&mut c, 30..60);
    reader.receive(&mut c, 30..60, 1);
    next.receive(&mut c, 30..60, 1);
}

#[test]
fn a_stream_gives_no_more_than_the_client_can_hold() {
    let mut c = Cluster::new(1);
    declare_stream(&mut c, "s", "rooms.*.heat");
    let mut publisher = Reader::new(&mut c, 0, "publisher", 0);
    publisher.publish(&mut c, 0..20);
    let connect = codec_mqtt::Connect {
        version: codec_mqtt::Version::V5,
        clean_start: true,
        keep_alive: 0,
        properties: Properties {
            receive_maximum: std::num::NonZeroU16::new(3),
            ..Properties::default()
        },
        client_id: "reader",
        will: None,
        user_name: Some("guest"),
        password: Some(b"guest"),
    };
    let mut reader = Reader::of(MqttClient::with(&mut c, 0, connect));
    reader.next(&mut c);
    reader.replay(&mut c, Qos::AtLeastOnce, "first");
    assert_eq!(reader.rest(&mut c).len(), 3);
    (0..3).for_each(|number| reader.acknowledge(&mut c, number));
    reader.receive(&mut c, 3..20, 1);
}

#[test]
fn a_filter_gets_its_messages_only_and_a_new_position_replaces_the_old_one() {
    let mut c = Cluster::new(1);
    declare_stream(&mut c, "s", "rooms.#");
    let mut admin = c.client(0);
    admin.bind(&mut c, "s", "amq.topic", "rooms.*.heat", &[]);
    let mut publisher = Reader::new(&mut c, 0, "publisher", 0);
    publisher.publish(&mut c, 0..5);
    let (topic, nothing) = ("rooms/1/light", Properties::default());
    publisher
        .client
        .publish(&mut c, topic, Qos::AtLeastOnce, b"on", nothing);
    publisher.next(&mut c);
    publisher.publish(&mut c, 5..8);
    let mut reader = Reader::new(&mut c, 0, "reader", KEPT);
    // An ordinary subscription with the same filter ends.
    reader
        .client
        .subscribe(&mut c, "rooms/+/heat", Qos::AtLeastOnce);
    assert_eq!(reader.next(&mut c), "SubAck");
    reader.replay(&mut c, Qos::AtLeastOnce, "first");
    reader.receive(&mut c, 0..8, 1);
    reader.replay(&mut c, Qos::AtLeastOnce, "first");
    reader.receive(&mut c, 0..8, 1);
    publisher.publish(&mut c, 8..10);
    reader.receive(&mut c, 8..10, 1);
    reader.client.unsubscribe(&mut c, "rooms/+/heat");
    assert_eq!(reader.next(&mut c), "UnsubAck");
    publisher.publish(&mut c, 10..12);
    assert_eq!(reader.rest(&mut c), [""; 0]);
}

#[test]
fn a_stream_subscription_ends_with_its_connection_and_unacknowledged_messages_do_not() {
    let mut c = Cluster::new(1);
    declare_stream(&mut c, "s", "rooms.*.heat");
    let mut publisher = Reader::new(&mut c, 0, "publisher", 0);
    publisher.publish(&mut c, 0..3);
    let mut reader = Reader::new(&mut c, 0, "reader", KEPT);
    reader.replay(&mut c, Qos::AtLeastOnce, "first");
    let got = reader.rest(&mut c);
    assert_eq!(got.len(), 3, "{got:?}");
    reader.client.cut(&mut c);
    publisher.publish(&mut c, 3..5);
    let mut reader = Reader::of(MqttClient::new(&mut c, 0, "reader", KEPT, None));
    assert_eq!(reader.next(&mut c), "CONNACK Success true");
    assert_eq!(reader.rest(&mut c), got, "sent again, and nothing else");
    assert!(reader.client.is_dup("2"));
}

#[test]
fn what_is_no_stream_for_the_filter_is_refused_and_the_connection_stays() {
    let mut c = Cluster::new(1);
    declare_stream(&mut c, "one", "rooms.*.heat");
    declare_stream(&mut c, "two", "rooms.*.light");
    declare_stream(&mut c, "three", "rooms.*.light");
    c.client(0).declare(&mut c, "classic", &[]);
    c.client(0)
        .bind(&mut c, "classic", "amq.topic", "rooms.*.door", &[]);
    let mut publisher = Reader::new(&mut c, 0, "publisher", 0);
    publisher.publish(&mut c, 0..3);
    let mut reader = Reader::new(&mut c, 0, "reader", 0);
    let first = ("x-stream-offset", "first");
    for (filter, properties, reason) in [
        ("rooms/+/heat", &[("x-stream-offset", "soon")][..], "0x83"),
        ("rooms/+/heat", &[("x-stream-offset", "-1")], "0x83"),
        ("$share/g/rooms/+/heat", &[first], "0x83"),
        ("rooms/+/light", &[first], "0x83"),
        ("rooms/1/heat", &[first], "0x8f"),
        ("#", &[first], "0x8f"),
        ("rooms/+/door", &[first], "0x8f"),
        ("rooms/+/heat", &[first, ("x-stream-name", "two")], "0x8f"),
    ] {
        let answer = reader.request(&mut c, filter, Qos::AtLeastOnce, properties);
        assert_eq!(
            answer,
            format!("SubAck {reason}"),
            "{filter} {properties:?}"
        );
    }
    let named = [first, ("x-stream-name", "three")];
    let answer = reader.request(&mut c, "rooms/+/light", Qos::AtLeastOnce, &named);
    assert_eq!(answer, "SubAck");
    reader.replay(&mut c, Qos::AtLeastOnce, "first");
    reader.receive(&mut c, 0..3, 1);
    let mut admin = c.client(0);
    let delete = Method::QueueDelete {
        queue: "one",
        if_unused: false,
        if_empty: false,
        no_wait: false,
    };
    admin.call(&mut c, 1, delete);
    assert_eq!(reader.next(&mut c), "DISCONNECT AdministrativeAction");
}
