//! AMQP 1.0: the outcomes of publishes that queues confirm in one turn.

use crate::cluster::Cluster;
use crate::cluster::amqp10::Amqp10Client;
use bytes::BytesMut;
use codec_amqp10::{
    AnyTarget, Attach, Begin, DeliveryState, Disposition, Multiple, PerformativeKind, Reader,
    ReceiverSettleMode, Role, SenderSettleMode, Source, Target, Transfer, Value, encode_frame,
    encode_transfer_frame, parse_frame,
};
use std::time::Duration;

const FRAME_MAX: u32 = 131_072;
/// A durable message with an empty body.
const MESSAGE: &[u8] = b"\x00\x53\x70\xc0\x02\x01\x41\x00\x53\x75\xa0\x00";

/// Begins a session and attaches a link to a queue.
fn attach(frames: &mut BytesMut, queue: &str) {
    let begin = Begin {
        remote_channel: None,
        next_outgoing_id: 0,
        incoming_window: 100,
        outgoing_window: 100,
        handle_max: u32::MAX,
        offered_capabilities: Multiple::NONE,
        desired_capabilities: Multiple::NONE,
        properties: None,
    };
    encode_frame(frames, 0, &begin);
    let target = Target {
        address: Some(Value::String(queue)),
        ..Target::default()
    };
    let attach = Attach {
        name: "sender",
        handle: 0,
        role: Role::Sender,
        snd_settle_mode: SenderSettleMode::Unsettled,
        rcv_settle_mode: ReceiverSettleMode::First,
        source: Some(Source::default()),
        target: Some(AnyTarget::Target(target)),
        unsettled: None,
        incomplete_unsettled: false,
        initial_delivery_count: Some(0),
        max_message_size: None,
        offered_capabilities: Multiple::NONE,
        desired_capabilities: Multiple::NONE,
        properties: None,
    };
    encode_frame(frames, 0, &attach);
}

/// The ranges of accepted deliveries, one for each disposition.
fn accepted(client: &Amqp10Client, cluster: &mut Cluster) -> Vec<(u32, u32)> {
    let (mut got, mut ranges) = (Vec::new(), Vec::new());
    client.take_raw(cluster, |piece| got.extend_from_slice(piece));
    let mut rest = &got[..];
    while let Some(frame) = parse_frame(rest, FRAME_MAX).expect("good frames") {
        rest = &rest[frame.size..];
        let mut reader = Reader::new(frame.body);
        let kind = PerformativeKind::read(&mut reader).expect("a performative");
        if kind == PerformativeKind::Disposition {
            let outcome = Disposition::read_body(&mut reader).expect("a disposition");
            assert_eq!(outcome.state, Some(DeliveryState::ACCEPTED));
            ranges.push((outcome.first, outcome.last.unwrap_or(outcome.first)));
        }
    }
    ranges
}

#[test]
fn publishes_that_are_confirmed_in_one_turn_have_one_disposition() {
    for kind in ["classic", "quorum"] {
        let mut cluster = Cluster::new(1);
        let mut declarer = cluster.client(0);
        let arguments = [("x-queue-type", message::Value::from(kind))];
        declarer.declare(&mut cluster, "q", &arguments);
        let mut client = Amqp10Client::open(&mut cluster, 0);
        let mut frames = BytesMut::new();
        attach(&mut frames, "/queues/q");
        client.send_raw(&mut cluster, &frames);
        frames.clear();
        for id in 0..10u32 {
            let tag = id.to_be_bytes();
            let mut transfer = Transfer {
                handle: 0,
                delivery_id: Some(id),
                delivery_tag: Some(&tag),
                message_format: Some(0),
                ..Transfer::default()
            };
            encode_transfer_frame(
                &mut frames,
                0,
                &mut transfer,
                &[MESSAGE],
                0,
                FRAME_MAX as usize,
            );
        }
        client.send_raw(&mut cluster, &frames);
        cluster.pass(Duration::from_secs(1));
        assert_eq!(accepted(&client, &mut cluster), [(0, 9)], "{kind}");
    }
}
