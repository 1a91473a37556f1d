//! A client that speaks MQTT 5.0 to a node.

use super::Cluster;
use super::MQTT;
use bytes::BytesMut;
use codec_mqtt::{
    Ack, AckKind, Connect, Packet, Properties, Publish, Qos, ReasonCode, RepeatedProperties,
    SubAck, Subscribe, SubscribeOptions, SubscriptionFilters, Unsubscribe, UnsubscribeFilters,
    Version, Will, parse_frame, put_user_property,
};
use session_mqtt::MqttShard;
use shard::{ConnectionKey, ShardDriver};
use topics::MqttRouter;

pub struct MqttClient {
    at: usize,
    key: ConnectionKey,
    input: BytesMut,
    got: BytesMut,
    /// Payloads that came, with their packet identifier and DUP.
    ids: Vec<(String, u16, bool)>,
}

impl Cluster {
    fn routers(&self) -> impl Iterator<Item = &MqttRouter> {
        let states = self.nodes.iter().map(|n| n.shard.state().service_states());
        states.filter_map(|s| Some(&s.get::<MqttShard>()?.router))
    }

    /// Nodes that hold a client id of the vhost `/`.
    pub fn holders(&self, client_id: &str) -> usize {
        self.routers()
            .filter(|router| router.holds("/", client_id))
            .count()
    }

    /// How many wills nodes keep for each other.
    pub fn wills_kept(&self) -> usize {
        self.routers().map(|router| router.counts().wills).sum()
    }
}

/// Clients that connect, perhaps subscribe, and then do nothing; and a socket for each that takes everything at once.
pub struct Crowd {
    at: usize,
    keys: Vec<ConnectionKey>,
    input: BytesMut,
    heard: usize,
}

/// So many do something before anything is settled.
const TOGETHER: usize = 64;

impl Crowd {
    pub fn new(at: usize) -> Crowd {
        Crowd {
            at,
            keys: Vec::new(),
            input: BytesMut::new(),
            heard: 0,
        }
    }

    /// Clean sessions of 3.1.1, until there are so many.
    pub fn grow(&mut self, cluster: &mut Cluster, count: usize) {
        for number in self.keys.len()..count {
            let key = cluster.connect(self.at, MQTT);
            self.keys.push(key);
            let connect = Connect {
                version: Version::V311,
                clean_start: true,
                keep_alive: 60,
                properties: Properties::default(),
                client_id: &format!("c{number}"),
                will: None,
                user_name: Some("guest"),
                password: Some(b"guest"),
            };
            self.send(cluster, key, &Packet::Connect(connect));
            if number % TOGETHER == 0 {
                cluster.settle();
            }
        }
        cluster.settle();
    }

    /// A subscription of QoS 1 each, of those from the given number on.
    pub fn subscribe(
        &mut self,
        cluster: &mut Cluster,
        from: usize,
        filter: impl Fn(usize) -> String,
    ) {
        for number in from..self.keys.len() {
            let mut raw = BytesMut::new();
            let options = SubscribeOptions {
                qos: Qos::AtLeastOnce,
                ..SubscribeOptions::default()
            };
            SubscriptionFilters::put(&mut raw, &filter(number), options);
            let subscribe = Subscribe {
                packet_id: 1,
                properties: Properties::default(),
                filters: SubscriptionFilters::new(&raw, Version::V311),
            };
            self.send(cluster, self.keys[number], &Packet::Subscribe(subscribe));
        }
        cluster.settle();
    }

    fn send(&mut self, cluster: &mut Cluster, key: ConnectionKey, packet: &Packet<'_>) {
        self.input.clear();
        packet.encode(Version::V311, &mut self.input);
        cluster.receive(self.at, key, &mut self.input);
        self.take(cluster, key);
    }

    /// The socket of one of them takes what there is.
    pub fn hear(&mut self, cluster: &mut Cluster, number: usize) {
        self.take(cluster, self.keys[number]);
    }

    fn take(&mut self, cluster: &mut Cluster, key: ConnectionKey) {
        let shard = &mut cluster.nodes[self.at].shard;
        if let Some((outbox, _)) = shard.outbox(key) {
            let len = outbox.len();
            if len > 0 {
                outbox.pieces();
                outbox.consume(len);
                self.heard += len;
                shard.drained(key);
            }
        }
    }

    /// Bytes that all of them got since this was asked last.
    pub fn heard(&mut self, cluster: &mut Cluster) -> usize {
        for number in 0..self.keys.len() {
            self.hear(cluster, number);
        }
        std::mem::take(&mut self.heard)
    }
}

fn connect_packet<'a>(client_id: &'a str, expiry: u32, will: Option<Will<'a>>) -> Connect<'a> {
    Connect {
        version: Version::V5,
        clean_start: false,
        keep_alive: 0,
        properties: Properties {
            session_expiry: Some(expiry),
            ..Properties::default()
        },
        client_id,
        will,
        user_name: Some("guest"),
        password: Some(b"guest"),
    }
}

impl MqttClient {
    /// Connected under that client id, with its session kept for that many seconds.
    pub fn new(
        cluster: &mut Cluster,
        at: usize,
        client_id: &str,
        expiry: u32,
        will: Option<Will<'_>>,
    ) -> MqttClient {
        MqttClient::with(cluster, at, connect_packet(client_id, expiry, will))
    }

    pub fn with(cluster: &mut Cluster, at: usize, connect: Connect<'_>) -> MqttClient {
        let mut client = MqttClient::unconnected(cluster, at);
        client.send(cluster, &Packet::Connect(connect));
        client
    }

    /// CONNECT has been read, and nothing that follows from it has happened.
    pub fn begin(cluster: &mut Cluster, at: usize, client_id: &str, expiry: u32) -> MqttClient {
        let mut client = MqttClient::unconnected(cluster, at);
        let connect = Packet::Connect(connect_packet(client_id, expiry, None));
        client.begin_send(cluster, &connect);
        client
    }

    fn unconnected(cluster: &mut Cluster, at: usize) -> MqttClient {
        MqttClient {
            at,
            key: cluster.connect(at, MQTT),
            input: BytesMut::new(),
            got: BytesMut::new(),
            ids: Vec::new(),
        }
    }

    /// As [`MqttClient::send`]; nothing that follows from it has happened.
    pub fn begin_send(&mut self, cluster: &mut Cluster, packet: &Packet<'_>) {
        packet.encode(Version::V5, &mut self.input);
        cluster.nodes[self.at]
            .shard
            .received(self.key, &mut self.input);
    }

    pub fn send(&mut self, cluster: &mut Cluster, packet: &Packet<'_>) {
        packet.encode(Version::V5, &mut self.input);
        self.push(cluster);
    }

    /// Packets as they are on the wire.
    pub fn send_raw(&mut self, cluster: &mut Cluster, packets: &[u8]) {
        self.input.extend_from_slice(packets);
        self.push(cluster);
    }

    fn push(&mut self, cluster: &mut Cluster) {
        cluster.receive(self.at, self.key, &mut self.input);
        cluster.settle();
    }

    /// Writes a packet into the buffer of the socket. [`MqttClient::be_read`] passes it to the node.
    pub fn write(&mut self, packet: &Packet<'_>) {
        packet.encode(Version::V5, &mut self.input);
    }

    /// Bytes that the node has not taken from the socket.
    pub fn unread(&self) -> usize {
        self.input.len()
    }

    /// The node reads the socket, unless the connection is paused.
    pub fn be_read(&mut self, cluster: &mut Cluster) {
        let outbox = cluster.nodes[self.at].shard.outbox(self.key);
        if !self.input.is_empty()
            && outbox.is_some_and(|(_, state)| state == session::SessionState::Open)
        {
            self.push(cluster);
        }
    }

    /// What has come, in pieces as they would be written to a socket.
    pub fn take_raw(&self, cluster: &mut Cluster, each: impl FnMut(&[u8])) {
        cluster.take_raw(self.at, self.key, each);
    }

    pub fn is_closing(&self, cluster: &mut Cluster) -> bool {
        cluster.is_closing(self.at, self.key)
    }

    /// Bytes that wait for the socket.
    pub fn waiting(&self, cluster: &mut Cluster) -> usize {
        let outbox = cluster.nodes[self.at].shard.outbox(self.key);
        outbox.map_or(0, |(outbox, _)| outbox.len())
    }

    /// The socket takes a few of them, and then no more.
    pub fn stop_reading(&self, cluster: &mut Cluster) {
        cluster.take_some(self.at, self.key, 10);
    }

    /// Bytes for the socket that it takes at once.
    pub fn read(&self, cluster: &mut Cluster) -> usize {
        let bytes = self.waiting(cluster);
        cluster.take_some(self.at, self.key, bytes);
        bytes
    }

    pub fn subscribe(&mut self, cluster: &mut Cluster, filter: &str, qos: Qos) {
        self.subscribe_with(cluster, filter, qos, &[]);
    }

    /// A subscription with these user properties.
    pub fn subscribe_with(
        &mut self,
        cluster: &mut Cluster,
        filter: &str,
        qos: Qos,
        properties: &[(&str, &str)],
    ) {
        let (mut raw, mut users) = (BytesMut::new(), BytesMut::new());
        let options = SubscribeOptions {
            qos,
            ..SubscribeOptions::default()
        };
        SubscriptionFilters::put(&mut raw, filter, options);
        for (name, value) in properties {
            put_user_property(&mut users, name, value);
        }
        let subscribe = Subscribe {
            packet_id: 1,
            properties: Properties {
                repeated: RepeatedProperties(&users),
                ..Properties::default()
            },
            filters: SubscriptionFilters::new(&raw, Version::V5),
        };
        self.send(cluster, &Packet::Subscribe(subscribe));
    }

    pub fn unsubscribe(&mut self, cluster: &mut Cluster, filter: &str) {
        let mut raw = BytesMut::new();
        UnsubscribeFilters::put(&mut raw, filter);
        let unsubscribe = Unsubscribe {
            packet_id: 2,
            properties: Properties::default(),
            filters: UnsubscribeFilters::new(&raw),
        };
        self.send(cluster, &Packet::Unsubscribe(unsubscribe));
    }

    pub fn publish(
        &mut self,
        cluster: &mut Cluster,
        topic: &str,
        qos: Qos,
        payload: &[u8],
        properties: Properties<'_>,
    ) {
        let publish = Publish {
            dup: false,
            qos,
            retain: false,
            topic,
            packet_id: if qos == Qos::AtMostOnce { 0 } else { 1 },
            properties,
            payload,
        };
        self.send(cluster, &Packet::Publish(publish));
    }

    /// The packet identifier that a message came with last.
    pub fn packet_id_of(&self, payload: &str) -> u16 {
        self.last_of(payload).1
    }

    /// Whether a message had DUP when it came last.
    pub fn is_dup(&self, payload: &str) -> bool {
        self.last_of(payload).2
    }

    fn last_of(&self, payload: &str) -> &(String, u16, bool) {
        let known = self.ids.iter().rev().find(|(known, ..)| known == payload);
        known.expect("it came")
    }

    /// An answer to the message with this packet identifier.
    pub fn answer(&mut self, cluster: &mut Cluster, kind: AckKind, packet_id: u16) {
        let ack = Ack::new(kind, packet_id, ReasonCode::Success);
        self.send(cluster, &Packet::Ack(ack));
    }

    /// A message of QoS 1 that is to be retained.
    pub fn retain(&mut self, cluster: &mut Cluster, topic: &str, payload: &[u8]) {
        let publish = Publish {
            dup: false,
            qos: Qos::AtLeastOnce,
            retain: true,
            topic,
            packet_id: 1,
            properties: Properties::default(),
            payload,
        };
        self.send(cluster, &Packet::Publish(publish));
    }

    /// The socket breaks.
    pub fn cut(self, cluster: &mut Cluster) {
        cluster.nodes[self.at].shard.gone(self.key);
        cluster.settle();
    }

    /// What has come since: of each packet its kind, and of messages what they say.
    pub fn said(&mut self, cluster: &mut Cluster) -> Vec<String> {
        // A takeover waits for two further turns.
        for _ in 0..3 {
            cluster.settle();
        }
        if let Some((outbox, _)) = cluster.nodes[self.at].shard.outbox(self.key) {
            let pieces: Vec<bytes::Bytes> = outbox.pieces().iter().cloned().collect();
            for piece in pieces {
                outbox.consume(piece.len());
                self.got.extend_from_slice(&piece);
            }
        }
        let got = self.got.split();
        let mut said = Vec::new();
        let mut at = 0;
        while let Some(frame) = parse_frame(&got[at..], usize::MAX).expect("a packet") {
            at += frame.wire_len();
            said.push(match Packet::decode(&frame, Version::V5) {
                Ok(Packet::Publish(p)) => {
                    let users: Vec<_> = p.properties.user_properties().collect();
                    let payload = String::from_utf8_lossy(p.payload);
                    self.ids.push((payload.to_string(), p.packet_id, p.dup));
                    format!("{} {payload} q{} {users:?}", p.topic, p.qos as u8)
                }
                Ok(Packet::ConnAck(p)) => format!("CONNACK {:?} {}", p.reason, p.session_present),
                Ok(Packet::Ack(p)) => format!("{:?} {:?}", p.kind, p.reason),
                Ok(Packet::Disconnect(p)) => format!("DISCONNECT {:?}", p.reason),
                Ok(Packet::SubAck(SubAck {
                    reasons: [reason @ 0x80..=0xff, ..],
                    ..
                })) => {
                    format!("SubAck {reason:#04x}")
                }
                Ok(_) => format!("{:?}", frame.kind),
                Err(error) => panic!("{error}"),
            });
        }
        said
    }
}
