//! A client that speaks MQTT 5.0 to a node.

use super::Cluster;
use bytes::BytesMut;
use codec_mqtt::{
    Connect, Filters, Packet, Properties, Publish, Qos, Subscribe, SubscribeOptions, Version, Will,
    parse_frame,
};
use shard::{ClientProtocol, ConnectionKey, ShardDriver};

pub struct MqttClient {
    at: usize,
    key: ConnectionKey,
    input: BytesMut,
    got: BytesMut,
}

impl Cluster {
    /// Nodes that hold a client id of the vhost `/`.
    pub fn holders(&self, client_id: &str) -> usize {
        let hubs = self.nodes.iter().map(|node| &node.shard.core().topics);
        hubs.filter(|hub| hub.holds("/", client_id)).count()
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
        let mut client = MqttClient {
            at,
            key: cluster.connect(at, ClientProtocol::Mqtt),
            input: BytesMut::new(),
            got: BytesMut::new(),
        };
        let connect = Connect {
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
        };
        client.send(cluster, &Packet::Connect(connect));
        client
    }

    pub fn send(&mut self, cluster: &mut Cluster, packet: &Packet<'_>) {
        packet.encode(Version::V5, &mut self.input);
        let shard = &mut cluster.nodes[self.at].shard;
        shard.received(self.key, &mut self.input);
        cluster.settle();
    }

    pub fn subscribe(&mut self, cluster: &mut Cluster, filter: &str, qos: Qos) {
        let mut raw = BytesMut::new();
        let options = SubscribeOptions {
            qos,
            ..SubscribeOptions::default()
        };
        Filters::put(&mut raw, filter, options);
        let subscribe = Subscribe {
            packet_id: 1,
            properties: Properties::default(),
            filters: Filters::new(&raw, Version::V5),
        };
        self.send(cluster, &Packet::Subscribe(subscribe));
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
        cluster.settle();
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
                    format!("{} {payload} q{} {users:?}", p.topic, p.qos as u8)
                }
                Ok(Packet::ConnAck(p)) => format!("CONNACK {:?} {}", p.reason, p.session_present),
                Ok(Packet::Ack(p)) => format!("{:?} {:?}", p.kind, p.reason),
                Ok(Packet::Disconnect(p)) => format!("DISCONNECT {:?}", p.reason),
                Ok(_) => format!("{:?}", frame.kind),
                Err(error) => panic!("{error}"),
            });
        }
        said
    }
}
