//! Tests of replicas on simulated disks.

mod backup;
mod consumer;
mod entry;
mod single;
mod world;

use crate::{RaftState, ReplicaConfig, StreamEffect, StreamReplica};
use bytes::BytesMut;
use codec_stream::{PublishedBody, PublishedMessage, PublishedMessages};
use env::sim::SimDisk;
use env::{Incarnation, NodeId, Time, WallTime};
use message::{Message, MessageBuilder, Protocol};
use queue::cursor::StreamBatch;
use queue::{
    Queue, QueueId, QueueMessage, QueueOutput, Request, RequestBody, SessionId, Timestamps,
};
use stream_log::LogConfig;

const STREAM: QueueId = QueueId(0xAB);
const LABEL: &str = "queue 's' in vhost '/'";

fn at(ms: u64) -> Timestamps {
    Timestamps {
        now: Time(ms * 1_000_000),
        wall: WallTime(1_000_000 + ms),
    }
}

fn session(number: u64) -> SessionId {
    SessionId {
        node: NodeId(1),
        incarnation: Incarnation(1),
        number,
    }
}

fn config(node: u64, log: LogConfig) -> ReplicaConfig {
    ReplicaConfig {
        stream: STREAM,
        label: LABEL.into(),
        node: NodeId(node),
        incarnation: Incarnation(1),
        machine: b"machine-1".to_vec().into(),
        log,
        founds: true,
        tier: None,
    }
}

/// A message of AMQP 0.9.1 with this body.
fn message(body: &[u8]) -> Message {
    let builder = MessageBuilder {
        protocol: Protocol::Amqp091,
        durable: true,
        priority: None,
        ttl_ms: None,
        received: WallTime(5),
        exchange: "ex",
        routing_keys: &["key"],
        // No property flags.
        properties: &[0, 0],
    };
    builder.build(body.len(), [body]).expect("builds")
}

/// A batch of messages with publishing ids.
fn batch(producer: Option<&str>, messages: &[(u64, &[u8])]) -> StreamBatch {
    let mut buffer = BytesMut::new();
    let published: Vec<PublishedMessage<'_>> = messages
        .iter()
        .map(|(id, body)| PublishedMessage {
            publishing_id: *id,
            filter: None,
            body: PublishedBody::Message(body),
        })
        .collect();
    let count = PublishedMessages::encode(&published, &mut buffer).len();
    StreamBatch {
        producer: producer.map(Into::into),
        version: 1,
        count: count as u32,
        entries: buffer.freeze(),
    }
}

/// One replica alone, whose jobs are done at once.
struct Single {
    disk: SimDisk,
    replica: StreamReplica,
    out: QueueOutput,
    fatal: Vec<String>,
    ms: u64,
}

impl Single {
    fn new(log: LogConfig) -> Single {
        let mut single = Single {
            disk: SimDisk::new(),
            replica: StreamReplica::new(config(1, log), at(0)),
            out: QueueOutput::default(),
            fatal: Vec::new(),
            ms: 0,
        };
        single.lead(1);
        single
    }

    fn at(&self) -> Timestamps {
        at(self.ms)
    }

    fn lead(&mut self, term: u64) {
        let leader = Some(NodeId(1));
        let now = self.at();
        self.replica
            .set_members(now, &[NodeId(1)], &[], &mut self.out);
        self.replica
            .set_raft(now, RaftState { term, leader }, &mut self.out);
        self.work();
    }

    /// The process ends and starts again. `machine` names the run of the machine.
    fn restart(&mut self, term: u64, machine: &[u8], log: LogConfig) {
        let config = ReplicaConfig {
            machine: machine.into(),
            founds: false,
            ..config(1, log)
        };
        self.replica = StreamReplica::new(config, self.at());
        self.out = QueueOutput::default();
        self.lead(term);
    }

    /// Ends the turn and does all jobs.
    fn work(&mut self) {
        let now = self.at();
        self.replica.flush(now, &mut self.out);
        loop {
            let mut worked = false;
            while let Some(effect) = self.replica.poll() {
                worked = true;
                match effect {
                    StreamEffect::Job(job) => {
                        let done = job.run(&self.disk);
                        self.replica.job_done(now, done, &mut self.out);
                    }
                    StreamEffect::Fatal(text) => self.fatal.push(text),
                    StreamEffect::Send { .. } | StreamEffect::TransferLeadership(_) => {}
                }
            }
            self.replica.flush(now, &mut self.out);
            if !worked {
                return;
            }
        }
    }

    fn request(&mut self, session: SessionId, seq: u64, body: RequestBody) {
        let item = QueueMessage::Request(Request { session, seq, body });
        let now = self.at();
        self.replica.step(now, item, &mut self.out);
    }

    /// The events for a session since the last call.
    fn events(&mut self, of: SessionId) -> Vec<queue::QueueEvent> {
        let (own, rest) = std::mem::take(&mut self.out.events)
            .into_iter()
            .partition(|addressed| addressed.session == of);
        self.out.events = rest;
        let own: Vec<queue::AddressedEvent> = own;
        own.into_iter().map(|addressed| addressed.event).collect()
    }
}
