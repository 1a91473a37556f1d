//! Consumers of AMQP over a cursor.

use super::*;
use crate::{ConsumerOutput, StreamConsumer, consumer_rules};
use message::{Table, Value};
use queue::cursor::{CursorRequest, CursorSend, CursorSource, CursorStart};
use queue::{ConsumerId, ConsumerSpec, FLOW_WINDOW, FlowMode, QueueReply};

fn spec(offset: Value) -> ConsumerSpec {
    ConsumerSpec {
        tag: "t".into(),
        channel: 1,
        flow_mode: FlowMode::Prefetch,
        prefetch: 3,
        no_ack: false,
        exclusive: false,
        priority: 0,
        arguments: Table(vec![("x-stream-offset".into(), offset)]),
        filter: None,
    }
}

/// A consumer of the replica, whose outputs are carried out.
struct Client {
    one: Single,
    consumer: StreamConsumer,
    /// Ids of deliveries.
    got: Vec<u64>,
    credited: Vec<(u64, bool)>,
}

impl Client {
    fn new(one: Single, spec: &ConsumerSpec) -> Client {
        let (mut client, out) = Client::unattached(one, spec);
        client.carry_out(out);
        client
    }

    /// A consumer whose first request is not carried out yet.
    fn unattached(one: Single, spec: &ConsumerSpec) -> (Client, Vec<ConsumerOutput>) {
        let start = consumer_rules(spec, LABEL, WallTime(0)).expect("valid");
        let mut out = Vec::new();
        let nodes = (NodeId(1), vec![NodeId(1)]);
        let now = one.at().now;
        let id = ConsumerId(1);
        let consumer = StreamConsumer::new(id, spec, start, "s".into(), nodes, now, &mut out);
        let client = Client {
            one,
            consumer,
            got: Vec::new(),
            credited: Vec::new(),
        };
        (client, out)
    }

    fn carry_out(&mut self, mut outputs: Vec<ConsumerOutput>) {
        let mut events = Vec::new();
        loop {
            for output in std::mem::take(&mut outputs) {
                match output {
                    ConsumerOutput::Send(send) => {
                        let replica = &mut self.one.replica;
                        replica.handle(session(9), send.request, &mut events);
                    }
                    ConsumerOutput::Deliver(deliveries) => {
                        self.got.extend(deliveries.iter().map(|d| d.id));
                    }
                    ConsumerOutput::Credited { last, drained } => {
                        self.credited.push((last, drained));
                    }
                    ConsumerOutput::Cancelled => panic!("cancelled"),
                }
            }
            for _ in 0..4 {
                while self.one.replica.send_batches(1 << 20, &mut events) {}
                self.one.work();
            }
            if events.is_empty() {
                return;
            }
            let now = self.one.at().now;
            for addressed in std::mem::take(&mut events) {
                self.consumer.event(now, addressed.event, &mut outputs);
            }
        }
    }

    fn with(&mut self, f: impl FnOnce(&mut StreamConsumer, &mut Vec<ConsumerOutput>)) {
        let mut outputs = Vec::new();
        f(&mut self.consumer, &mut outputs);
        self.carry_out(outputs);
    }
}

fn published(count: u64) -> Single {
    let mut one = Single::new(LogConfig::default());
    for seq in 1..=count {
        one.request(session(1), seq, RequestBody::Publish(message(b"m")));
        one.work();
    }
    one
}

#[test]
fn prefetch_limits_deliveries_and_settling_gives_credit() {
    let mut client = Client::new(published(10), &spec("first".into()));
    assert_eq!(client.got, vec![1, 2, 3]);
    client.with(|consumer, out| consumer.settle(&[(1, 2)], out));
    assert_eq!(client.got, vec![1, 2, 3, 4, 5]);
    // Settling again gives nothing.
    client.with(|consumer, out| consumer.settle(&[(1, 2)], out));
    assert_eq!(client.got.len(), 5);
    client.with(|consumer, out| consumer.settle(&[(1, u64::MAX)], out));
    client.with(|consumer, out| consumer.settle(&[(1, u64::MAX)], out));
    client.with(|consumer, out| consumer.settle(&[(1, u64::MAX)], out));
    assert_eq!(client.got, (1..=10).collect::<Vec<u64>>());
}

#[test]
fn credit_limits_deliveries_and_drain_discards_the_rest() {
    let mut client = Client::new(published(10), &with_credit(Value::I64(4)));
    assert_eq!(client.got, Vec::<u64>::new());
    client.with(|consumer, out| consumer.set_credit(2, true, false, out));
    assert_eq!(
        (client.got.len(), &client.credited[..]),
        (2, &[(2, false)][..])
    );
    client.with(|consumer, out| consumer.set_credit(100, true, true, out));
    // Messages 4 to 9.
    assert_eq!(client.got, vec![1, 2, 3, 4, 5, 6]);
    assert_eq!(client.credited, vec![(2, false), (6, true)]);
}

fn with_credit(offset: Value) -> ConsumerSpec {
    ConsumerSpec {
        flow_mode: FlowMode::Credit,
        prefetch: 0,
        ..spec(offset)
    }
}

#[test]
fn drain_before_the_cursor_is_attached_is_answered() {
    for (offset, delivered) in [("next", 0), ("first", 3)] {
        let spec = with_credit(offset.into());
        let (mut client, mut out) = Client::unattached(published(3), &spec);
        client.consumer.set_credit(5, true, true, &mut out);
        client.carry_out(out);
        assert_eq!(client.got.len() as u64, delivered, "{offset}");
        assert_eq!(client.credited, vec![(delivered, true)], "{offset}");
    }
}

#[test]
fn drain_continues_when_the_client_has_read_the_window() {
    let window = FLOW_WINDOW.messages.into();
    let total = window + 5;
    let mut client = Client::new(published(total), &with_credit("first".into()));
    client.with(|consumer, out| consumer.set_credit(2 * total, true, true, out));
    assert_eq!(client.got.len() as u64, window);
    assert_eq!(client.credited, Vec::new());
    client.with(|consumer, out| consumer.received(window, out));
    assert_eq!(client.got.len() as u64, total);
    assert_eq!(client.credited, vec![(total, true)]);
}

#[test]
fn arguments_of_consumers_are_checked_as_in_rabbitmq() {
    let wall = WallTime(10_000_000);
    let start = |value: Value| consumer_rules(&spec(value), LABEL, wall);
    assert_eq!(start("first".into()), Ok(CursorStart::First));
    assert_eq!(start("last".into()), Ok(CursorStart::Last));
    assert_eq!(start("next".into()), Ok(CursorStart::Next));
    assert_eq!(start(Value::I64(7)), Ok(CursorStart::Offset(7)));
    let at = |ms| Ok(CursorStart::Timestamp(WallTime(ms)));
    assert_eq!(start(Value::Timestamp(9_000)), at(9_000_000));
    assert_eq!(start("1h".into()), at(6_400_000));
    for invalid in [Value::I64(-1), "soon".into(), "h".into(), "".into()] {
        let refused = start(invalid.clone());
        let is_refused = matches!(refused, Err(QueueReply::Refused { code: 406, .. }));
        assert!(is_refused, "{invalid:?}: {refused:?}");
    }
    let refused = |code, text: String| Err(QueueReply::Refused { code, text });
    let unlimited = ConsumerSpec {
        prefetch: 0,
        ..spec("first".into())
    };
    let text = format!("consumer prefetch count is not set for stream {LABEL}");
    assert_eq!(consumer_rules(&unlimited, LABEL, wall), refused(406, text));
    let automatic = ConsumerSpec {
        no_ack: true,
        ..spec("first".into())
    };
    let text = format!("automatic acknowledgement not supported by stream {LABEL}");
    assert_eq!(consumer_rules(&automatic, LABEL, wall), refused(540, text));
}

#[test]
fn messages_of_sub_batches_are_delivered_one_by_one() {
    let mut one = published(1);
    let mut data = Vec::new();
    for body in [&b"\xffa"[..], b"\xffbc"] {
        data.extend_from_slice(&(body.len() as u32).to_be_bytes());
        data.extend_from_slice(body);
    }
    let entries = [0, 1].map(|compression| PublishedMessage {
        publishing_id: compression.into(),
        filter: None,
        body: PublishedBody::SubBatch {
            compression,
            records: 2,
            uncompressed_len: data.len() as u32,
            data: &data,
        },
    });
    let mut buffer = BytesMut::new();
    PublishedMessages::encode(&entries, &mut buffer);
    let batch = StreamBatch {
        producer: None,
        version: 1,
        count: 2,
        entries: buffer.freeze(),
    };
    one.request(session(1), 2, RequestBody::PublishBatch(batch));
    one.request(session(1), 3, RequestBody::Publish(message(b"end")));
    one.work();
    let spec = ConsumerSpec {
        prefetch: 100,
        ..spec("first".into())
    };
    let client = Client::new(one, &spec);
    // Compressed messages are passed over.
    assert_eq!(client.got, vec![1, 2, 3, 4]);
}

/// A consumer's requests, without its other outputs.
fn requests(out: &mut Vec<ConsumerOutput>) -> Vec<CursorSend> {
    let each = out.drain(..).map(|output| match output {
        ConsumerOutput::Send(send) => send,
        other => panic!("{other:?}"),
    });
    each.collect()
}

#[test]
fn a_consumer_leaves_a_replica_that_does_not_answer() {
    let mut out = Vec::new();
    let mut now = Time(1);
    let mut consumer = StreamConsumer::new(
        ConsumerId(1),
        &spec("first".into()),
        CursorStart::First,
        "s".into(),
        (NodeId(9), vec![NodeId(1), NodeId(2)]),
        now,
        &mut out,
    );
    let mut asked = Vec::new();
    // The replica that is left releases what it may hold for the consumer, should it be there after all.
    let mut left = Vec::new();
    while !asked.contains(&NodeId(2)) {
        assert!(asked.len() < 20, "asked only {asked:?}");
        for send in requests(&mut out) {
            match send.request {
                CursorRequest::Attach { .. } => asked.push(send.to),
                CursorRequest::Detach { .. } => left.push(send.to),
                CursorRequest::Credit { .. } => panic!("{send:?}"),
            }
        }
        now = consumer.wake_at().expect("it asks again");
        consumer.tick(now, &mut out);
    }
    // A request may be lost: the preferred replica is asked more than once.
    assert!(asked.iter().filter(|node| **node == NodeId(1)).count() > 1);
    assert_eq!(left, [NodeId(1)]);
}
