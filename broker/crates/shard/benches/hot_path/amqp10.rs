//! The same for AMQP 1.0: a sender and a receiver with a connection each. They send the frames of go-amqp, on which RabbitMQ's Go
//! client is based: lists with sizes of four bytes, delivery tags of eight bytes, a disposition for each delivery, and a flow when
//! half of the credit is used. Qpid JMS settles each delivery with its own disposition, too.

use crate::cluster::Cluster;
use crate::cluster::amqp10::Amqp10Client;
use bytes::BytesMut;
use codec_amqp10::{
    AnyTarget, Attach, Begin, DeliveryState, Disposition, Flow, Multiple, PerformativeKind, Reader,
    ReceiverSettleMode, Role, SenderSettleMode, Source, Target, Transfer, Value, encode_frame,
    parse_frame,
};
use std::time::Duration;

const FRAME_MAX: u32 = 131_072;
/// The queue's address.
const QUEUE: &str = "/queues/q";
/// The receiver's credit, the default of RabbitMQ's Go client.
const CREDIT: u32 = 256;
/// Transfers that a session of the clients accepts.
const WINDOW: u32 = 5000;

/// A transfer of a durable message. The id of the delivery is also the last part of its tag.
const TRANSFER: &[u8] = b"\x00\x00\x00\x45\x02\x00\x00\x00\
    \x00\x53\x14\xd0\x00\x00\x00\x15\x00\x00\x00\x04\x43\x70\0\0\0\0\xa0\x08\0\0\0\0\0\0\0\0\x43\
    \x00\x53\x70\xd0\x00\x00\x00\x07\x00\x00\x00\x02\x41\x50\x00\
    \x00\x53\x75\xa0\x0c\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07";
const TRANSFER_ID: usize = 22;
const TRANSFER_TAG: usize = 32;

/// A disposition that accepts one delivery.
const DISPOSITION: &[u8] = b"\x00\x00\x00\x20\x02\x00\x00\x00\
    \x00\x53\x15\xd0\x00\x00\x00\x10\x00\x00\x00\x05\x41\x70\0\0\0\0\x40\x41\x00\x53\x24\x45";
const DISPOSITION_ID: usize = 22;

pub struct Pair {
    cluster: Cluster,
    sender: Amqp10Client,
    receiver: Amqp10Client,
    batch: u32,
    /// The frames that a client sends, and the frames that it gets.
    frames: BytesMut,
    got: BytesMut,
    sent: u32,
    accepted: u32,
    /// The delivery count up to which the sender has credit.
    allowed: u32,
    delivered: u32,
    /// The transfer id of the first delivery to the receiver.
    first_transfer: u32,
    /// The receiver's credit after its last delivery.
    credit: u32,
}

impl Pair {
    pub fn new(queue_type: &str, batch: u64) -> Pair {
        let mut cluster = crate::node(1);
        let kind = message::Value::from(queue_type);
        let mut declarer = cluster.client(0);
        declarer.declare(&mut cluster, "q", &[("x-queue-type", kind)]);
        let sender = Amqp10Client::open(&mut cluster, 0);
        let receiver = Amqp10Client::open(&mut cluster, 0);
        let mut pair = Pair {
            cluster,
            sender,
            receiver,
            batch: u32::try_from(batch).expect("a small batch"),
            frames: BytesMut::new(),
            got: BytesMut::new(),
            sent: 0,
            accepted: 0,
            allowed: 0,
            delivered: 0,
            first_transfer: 0,
            credit: 0,
        };
        attach(&mut pair.frames, Role::Sender);
        pair.sender.send_raw(&mut pair.cluster, &pair.frames);
        pair.hear_sender();
        pair.frames.clear();
        attach(&mut pair.frames, Role::Receiver);
        pair.receiver.send_raw(&mut pair.cluster, &pair.frames);
        pair.settle_deliveries();
        pair
    }

    /// Until so many messages have been sent and accepted, delivered and accepted again.
    pub fn run(&mut self, count: u64) {
        let end = self.sent + u32::try_from(count).expect("a small count");
        while self.sent < end {
            self.transfer();
            for turns in 0.. {
                self.hear_sender();
                self.settle_deliveries();
                if self.accepted == self.sent && self.delivered == self.sent {
                    break;
                }
                assert!(turns < 1000, "{} of {}", self.delivered, self.sent);
                self.cluster.pass(Duration::from_millis(10));
            }
        }
    }

    fn transfer(&mut self) {
        self.frames.clear();
        for _ in 0..self.batch {
            assert!(self.sent < self.allowed, "a batch is sent on credit");
            let start = self.frames.len();
            self.frames.extend_from_slice(TRANSFER);
            let id = self.sent.to_be_bytes();
            self.frames[start + TRANSFER_ID..][..4].copy_from_slice(&id);
            self.frames[start + TRANSFER_TAG..][..4].copy_from_slice(&id);
            self.sent += 1;
        }
        self.sender.send_raw(&mut self.cluster, &self.frames);
    }

    fn hear_sender(&mut self) {
        let got = &mut self.got;
        self.sender
            .take_raw(&mut self.cluster, |piece| got.extend_from_slice(piece));
        let (accepted, allowed) = (&mut self.accepted, &mut self.allowed);
        performatives(got, |kind, fields| match kind {
            PerformativeKind::Disposition => {
                let disposition = Disposition::read_body(fields).expect("a disposition");
                assert!(disposition.settled, "{disposition:?}");
                assert_eq!(disposition.state, Some(DeliveryState::ACCEPTED));
                assert_eq!(disposition.first, *accepted, "outcomes are in order");
                *accepted = disposition.last.unwrap_or(disposition.first) + 1;
            }
            PerformativeKind::Flow => {
                let flow = Flow::read_body(fields).expect("a flow");
                if let (Some(count), Some(credit)) = (flow.delivery_count, flow.link_credit) {
                    *allowed = count + credit;
                }
            }
            PerformativeKind::Begin | PerformativeKind::Attach => {}
            other => panic!("{other:?}"),
        });
    }

    /// Accepts the deliveries that have come, and renews the credit if half of it is used.
    fn settle_deliveries(&mut self) {
        let got = &mut self.got;
        self.receiver
            .take_raw(&mut self.cluster, |piece| got.extend_from_slice(piece));
        self.frames.clear();
        let frames = &mut self.frames;
        let before = self.delivered;
        let (delivered, first) = (&mut self.delivered, &mut self.first_transfer);
        performatives(got, |kind, fields| match kind {
            PerformativeKind::Transfer => {
                let transfer = Transfer::read_body(fields).expect("a transfer");
                let id = transfer.delivery_id.expect("a whole message");
                assert_eq!(id, *delivered, "deliveries are numbered");
                *delivered += 1;
                let start = frames.len();
                frames.extend_from_slice(DISPOSITION);
                frames[start + DISPOSITION_ID..][..4].copy_from_slice(&id.to_be_bytes());
            }
            PerformativeKind::Begin => {
                let begin = Begin::read_body(fields).expect("a begin");
                *first = begin.next_outgoing_id;
            }
            PerformativeKind::Attach | PerformativeKind::Flow => {}
            other => panic!("{other:?}"),
        });
        self.credit -= self.delivered - before;
        if self.credit <= CREDIT / 2 {
            self.credit = CREDIT;
            let flow = Flow {
                next_incoming_id: Some(self.first_transfer.wrapping_add(self.delivered)),
                incoming_window: WINDOW,
                next_outgoing_id: 0,
                outgoing_window: WINDOW,
                handle: Some(0),
                delivery_count: Some(self.delivered),
                link_credit: Some(CREDIT),
                available: None,
                drain: false,
                echo: false,
                properties: None,
            };
            encode_frame(frames, 0, &flow);
        }
        if !self.frames.is_empty() {
            self.receiver.send_raw(&mut self.cluster, &self.frames);
        }
    }
}

/// Encodes the beginning of a session and the attach of its link.
fn attach(frames: &mut BytesMut, role: Role) {
    let begin = Begin {
        remote_channel: None,
        next_outgoing_id: 0,
        incoming_window: WINDOW,
        outgoing_window: WINDOW,
        handle_max: u32::MAX,
        offered_capabilities: Multiple::NONE,
        desired_capabilities: Multiple::NONE,
        properties: None,
    };
    encode_frame(frames, 0, &begin);
    let address = |of: Role| (of == role).then_some(Value::String(QUEUE));
    let source = Source {
        address: address(Role::Receiver),
        ..Source::default()
    };
    let target = Target {
        address: address(Role::Sender),
        ..Target::default()
    };
    let attach = Attach {
        name: "7f3c5a52-35ed-4dc1-a8fd-bd7d0f2d2a3f",
        handle: 0,
        role,
        snd_settle_mode: SenderSettleMode::Unsettled,
        rcv_settle_mode: ReceiverSettleMode::First,
        source: Some(source),
        target: Some(AnyTarget::Target(target)),
        unsettled: None,
        incomplete_unsettled: false,
        initial_delivery_count: (role == Role::Sender).then_some(0),
        max_message_size: None,
        offered_capabilities: Multiple::NONE,
        desired_capabilities: Multiple::NONE,
        properties: None,
    };
    encode_frame(frames, 0, &attach);
}

/// Calls `each` with the kind of each frame and a reader of its fields.
fn performatives(got: &mut BytesMut, mut each: impl FnMut(PerformativeKind, &mut Reader<'_>)) {
    let mut done = 0;
    while let Some(frame) = parse_frame(&got[done..], FRAME_MAX).expect("good frames") {
        done += frame.size;
        let mut reader = Reader::new(frame.body);
        let kind = PerformativeKind::read(&mut reader).expect("a performative");
        each(kind, &mut reader);
    }
    assert_eq!(done, got.len(), "whole frames");
    got.clear();
}
