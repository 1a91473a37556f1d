//! Streams: AMQP 0.9.1 clients that publish to them and read them, and the rules for their contents.

mod message;
mod oracle;
mod publisher;
mod reader;
mod replicas;

use super::amqp::AmqpClient;
use super::client::{Client, ClientRole};
use ::message::{Table, Value};
use codec_amqp091::Method;
use env::{Rng, SeededRng};

pub(super) use oracle::StreamOracle;
pub(super) use publisher::StreamPublisher;
pub(super) use reader::StreamReader;
pub(super) use replicas::{are_whole, check_agreement};

/// Publishers of each run with streams.
const PUBLISHERS: u32 = 2;
/// Separates these random numbers from those of the run, so that runs without streams do not depend on them.
const SEED: u64 = 0x5354_5245_414d;

/// A stream of the workload.
#[derive(Clone, Debug)]
pub(super) struct StreamPlan {
    pub name: &'static str,
    /// Maximum size of a segment in bytes.
    segment_bytes: Option<i64>,
    /// Maximum size of the stream in bytes: beyond it, whole segments are deleted.
    max_bytes: Option<i64>,
}

impl StreamPlan {
    /// Whether all messages stay.
    fn keeps_all(&self) -> bool {
        self.max_bytes.is_none()
    }

    fn declare(&self, wire: &mut AmqpClient, channel: u16) {
        let mut arguments = vec![("x-queue-type".into(), Value::String("stream".into()))];
        let limits = [
            ("x-stream-max-segment-size-bytes", self.segment_bytes),
            ("x-max-length-bytes", self.max_bytes),
        ];
        for (name, limit) in limits {
            arguments.extend(limit.map(|limit| (name.into(), Value::I64(limit))));
        }
        let declare = Method::QueueDeclare {
            queue: self.name,
            passive: false,
            durable: true,
            exclusive: false,
            auto_delete: false,
            no_wait: false,
            arguments: Table(arguments),
        };
        wire.send(channel, &declare);
    }
}

/// The streams and their clients. Half of the runs have none.
pub(super) fn plan(seed: u64, nodes: u64) -> (StreamOracle, Vec<Client>) {
    let mut rng = SeededRng::new(seed ^ SEED);
    let mut streams = Vec::new();
    if rng.chance(1, 2) {
        streams.push(StreamPlan {
            name: "log-rolling",
            segment_bytes: Some(1000 + rng.below(4000) as i64),
            max_bytes: None,
        });
        if rng.chance(1, 2) {
            streams.push(StreamPlan {
                name: "log-short",
                segment_bytes: Some(1000 + rng.below(1000) as i64),
                max_bytes: Some(3000 + rng.below(6000) as i64),
            });
        }
        if rng.chance(1, 2) {
            streams.push(StreamPlan {
                name: "log-plain",
                segment_bytes: None,
                max_bytes: None,
            });
        }
    }
    let mut clients = Vec::new();
    if !streams.is_empty() {
        for number in 0..PUBLISHERS {
            clients.push(Client {
                rng: rng.fork(),
                role: ClientRole::StreamPublisher(StreamPublisher::new(number, streams.len())),
                link: None,
                home: None,
            });
        }
        // One reader of each node, so that every replica is compared with the others.
        for node in 0..nodes {
            clients.push(Client {
                rng: rng.fork(),
                role: ClientRole::StreamReader(StreamReader::new(streams.len())),
                link: None,
                home: Some(node),
            });
        }
    }
    (StreamOracle::new(streams), clients)
}
