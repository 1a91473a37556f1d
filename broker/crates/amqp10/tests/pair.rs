//! Two engines, a client and a server, with a simulated transport that cuts the bytes anywhere. Neither may ever find an error in what
//! the other sends, windows and credit hold at every step, and at the end everything was delivered and settled once.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::support::{attach_body, config};
use amqp10::{
    AttachReply, Cause, ClientSasl, Config, Connection, Event, LinkId, LinkState, OpenReply,
    OutgoingDelivery, SaslDecision, SessionId, SessionState,
};
use bytes::{Bytes, BytesMut};
use codec_amqp10::{DeliveryState, Outcome, Role};
use proptest::prelude::*;

struct Side {
    connection: Connection,
    /// Bytes on the way to this side.
    pipe: VecDeque<u8>,
    input: Vec<u8>,
    out: BytesMut,
    session: Option<SessionId>,
    /// The link on which this side sends.
    sender: Option<LinkId>,
    /// The link on which this side receives.
    receiver: Option<LinkId>,
    sent: u64,
    received: u64,
    /// Received deliveries that this side did not settle.
    unsettled: VecDeque<u32>,
    /// Outcomes by token.
    outcomes: BTreeMap<u64, bool>,
    /// Outcomes that this side gave, in the order of delivery.
    given: Vec<bool>,
    wants_drain: bool,
    drains: (u32, u32),
}

impl Side {
    fn new(config: Config) -> Self {
        let mut out = BytesMut::new();
        Self {
            connection: Connection::new(Arc::new(config), 0, &mut out),
            pipe: VecDeque::new(),
            input: Vec::new(),
            out,
            session: None,
            sender: None,
            receiver: None,
            sent: 0,
            received: 0,
            unsettled: VecDeque::new(),
            outcomes: BTreeMap::new(),
            given: Vec::new(),
            wants_drain: false,
            drains: (0, 0),
        }
    }

    /// Reads what arrived.
    fn poll(&mut self) {
        let all = std::mem::take(&mut self.input);
        let mut input = &all[..];
        while let Some(event) = self.connection.poll(&mut input, 0, &mut self.out) {
            self.answer(event);
        }
        self.input = input.to_vec();
    }

    fn answer(&mut self, event: Event<'_>) {
        let out = &mut self.out;
        match event {
            Event::SaslInit { pending, .. } => {
                self.connection
                    .answer_sasl(pending, SaslDecision::Accept, out)
            }
            Event::OpenRequested { pending, .. } => {
                self.connection
                    .accept_open(pending, OpenReply::default(), out)
                    .expect("an open");
            }
            Event::Opened { .. } => {
                self.connection.begin_session(out).expect("a free channel");
            }
            Event::SessionBegun { session, begin } => {
                self.session = Some(session);
                if begin.remote_channel.is_some() {
                    let up = attach_body(0, "up", Role::Sender);
                    self.sender = Some(
                        self.connection
                            .attach(session, &up, None, out)
                            .expect("a free handle"),
                    );
                    let down = attach_body(0, "down", Role::Receiver);
                    self.receiver = Some(
                        self.connection
                            .attach(session, &down, Some(0), out)
                            .expect("a free handle"),
                    );
                }
            }
            Event::AttachRequested { attach, pending } => {
                let reply = AttachReply {
                    source: attach.source,
                    target: attach.target,
                    ..AttachReply::default()
                };
                let link = self
                    .connection
                    .accept_attach(pending, &reply, out)
                    .expect("an attaching link")
                    .link;
                match attach.role {
                    Role::Sender => self.receiver = Some(link),
                    Role::Receiver => self.sender = Some(link),
                }
            }
            Event::LinkAttached { .. }
            | Event::AvailableChanged { .. }
            | Event::WindowOpened { .. } => {}
            Event::CreditChanged { state, .. } => self.wants_drain = state.drain,
            Event::Drained { .. } => self.drains.1 += 1,
            Event::MessageReceived { link, delivery } => {
                assert_eq!(Some(link), self.receiver);
                let payload = delivery.payload.as_ref();
                assert_eq!(payload, message(self.received), "message {}", self.received);
                self.received += 1;
                self.unsettled.push_back(delivery.id);
            }
            Event::Disposition {
                settled,
                state,
                deliveries,
                ..
            } => {
                assert!(settled);
                let is_accepted = state == Some(DeliveryState::Outcome(Outcome::Accepted));
                for delivery in deliveries {
                    let earlier = self.outcomes.insert(delivery.token, is_accepted);
                    assert_eq!(earlier, None, "message {} is settled twice", delivery.token);
                }
            }
            Event::LinkDetached {
                cause: Cause::Fault(fault),
                ..
            }
            | Event::SessionEnded {
                cause: Cause::Fault(fault),
                ..
            }
            | Event::Closed {
                cause: Cause::Fault(fault),
            } => panic!("{fault}"),
            other => panic!("{other:?}"),
        }
    }

    fn send(&mut self) {
        let Some(link) = self.sender else { return };
        let payload = Bytes::from(message(self.sent));
        let cut = payload.len() / 2;
        let delivery = OutgoingDelivery {
            tag: &self.sent.to_be_bytes(),
            message_format: 0,
            settled: false,
            parts: &[payload.slice(..cut), payload.slice(cut..)],
            token: self.sent,
        };
        if self.connection.send(link, &delivery, &mut self.out).is_ok() {
            self.sent += 1;
        }
    }

    fn settle(&mut self, is_accepted: bool, newest: bool) {
        let Some(link) = self.receiver else { return };
        let id = if newest {
            self.unsettled.pop_back()
        } else {
            self.unsettled.pop_front()
        };
        if let Some(id) = id {
            let state = if is_accepted {
                DeliveryState::ACCEPTED
            } else {
                DeliveryState::RELEASED
            };
            self.connection
                .settle_received(link, id, &state, &mut self.out)
                .expect("a delivery");
            self.given.push(is_accepted);
        }
    }

    fn state(&self) -> Option<SessionState> {
        self.connection.sessions().next()
    }

    fn link(&self, id: Option<LinkId>) -> Option<LinkState> {
        self.state()?
            .links
            .into_iter()
            .find(|link| Some(link.link) == id)
    }
}

/// The message with this number, of up to three frames.
fn message(number: u64) -> Vec<u8> {
    (0..number * 131 % 1000)
        .map(|at| (number + at) as u8)
        .collect()
}

struct Pair {
    client: Side,
    server: Side,
}

impl Pair {
    fn new() -> Self {
        let sasl = ClientSasl {
            mechanism: "ANONYMOUS".into(),
            initial_response: Box::new([]),
        };
        let client = Config {
            container_id: "client".into(),
            peer: Config::client("client", None, Some(sasl)).peer,
            ..config()
        };
        Self {
            client: Side::new(client),
            server: Side::new(config()),
        }
    }

    /// Moves at most `count` bytes in one direction.
    fn transport(&mut self, to_server: bool, count: usize) {
        let (from, to) = match to_server {
            true => (&mut self.client, &mut self.server),
            false => (&mut self.server, &mut self.client),
        };
        to.pipe.extend(from.out.split());
        let count = count.min(to.pipe.len());
        to.input.extend(to.pipe.drain(..count));
        to.poll();
        self.check();
    }

    /// Transports everything and flushes, until nothing moves.
    fn settle_down(&mut self) {
        loop {
            self.client.connection.flush(0, &mut self.client.out);
            self.server.connection.flush(0, &mut self.server.out);
            let is_quiet = self.client.out.is_empty()
                && self.server.out.is_empty()
                && self.client.pipe.is_empty()
                && self.server.pipe.is_empty();
            if is_quiet {
                return;
            }
            self.transport(true, usize::MAX);
            self.transport(false, usize::MAX);
        }
    }

    /// The invariants of sections 2.5.6 and 2.6.7 at any time.
    fn check(&self) {
        for (from, to) in [(&self.client, &self.server), (&self.server, &self.client)] {
            let (Some(sending), Some(receiving)) = (from.state(), to.state()) else {
                continue;
            };
            // The receiver has counted no transfer that was not sent.
            let in_flight = sending.next_outgoing_id.since(receiving.next_incoming_id);
            assert!(in_flight >= 0, "{in_flight} transfers in flight");
            // No more are in flight than the largest window.
            assert!(in_flight <= 8, "{in_flight} transfers in flight");
            assert!(
                sending.remote_incoming_window
                    <= 100.max(receiving.incoming_window + in_flight as u32)
            );
            let (Some(sender), Some(receiver)) = (from.link(from.sender), to.link(to.receiver))
            else {
                continue;
            };
            let in_flight = sender.delivery_count.since(receiver.delivery_count);
            assert!(in_flight >= 0, "{in_flight} deliveries in flight");
            assert!(
                sender.credit <= 20,
                "credit is set, not added: {}",
                sender.credit
            );
        }
    }

    fn step(&mut self, step: u8, count: usize) {
        match step {
            0..=3 => self.transport(true, count),
            4..=7 => self.transport(false, count),
            8 | 9 => self.client.send(),
            10 | 11 => self.server.send(),
            12 => self.server.settle(!count.is_multiple_of(5), count % 3 == 1),
            13 => self.client.settle(!count.is_multiple_of(5), count % 3 == 1),
            14 => {
                if let Some(link) = self.client.receiver
                    && self.client.link(Some(link)).is_some()
                {
                    let drain = count.is_multiple_of(4);
                    let credit = (count % 20) as u32;
                    self.client
                        .connection
                        .grant_credit(link, credit, drain, &mut self.client.out)
                        .expect("a receiver");
                    self.client.drains.0 += u32::from(drain);
                }
            }
            15 => {
                if self.server.wants_drain
                    && let Some(link) = self.server.sender
                {
                    self.server
                        .connection
                        .drained(link, &mut self.server.out)
                        .expect("a sender");
                }
            }
            16 => self
                .server
                .connection
                .block_publishers(count.is_multiple_of(2), &mut self.server.out),
            17 => self.client.connection.flush(0, &mut self.client.out),
            _ => self.server.connection.flush(0, &mut self.server.out),
        }
        self.check();
    }

    /// Lets both sides finish what is under way.
    fn finish(&mut self) {
        self.server
            .connection
            .block_publishers(false, &mut self.server.out);
        self.settle_down();
        while !self.client.unsettled.is_empty() || !self.server.unsettled.is_empty() {
            self.client.settle(true, false);
            self.server.settle(true, false);
            self.settle_down();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn everything_sent_is_delivered_and_settled_once(steps in prop::collection::vec((0..19u8, 0..700usize), 1..400)) {
        let mut pair = Pair::new();
        pair.settle_down();
        prop_assert!(pair.client.link(pair.client.sender).is_some() && pair.server.link(pair.server.sender).is_some());
        for (step, count) in steps {
            pair.step(step, count);
        }
        pair.finish();
        for (from, to) in [(&pair.client, &pair.server), (&pair.server, &pair.client)] {
            prop_assert_eq!(from.sent, to.received);
            prop_assert_eq!(from.outcomes.len() as u64, from.sent);
            prop_assert_eq!(from.outcomes.values().filter(|accepted| **accepted).count(), to.given.iter().filter(|accepted| **accepted).count());
            let (sending, receiving) = (from.state().expect("a session"), to.state().expect("a session"));
            prop_assert_eq!(sending.next_outgoing_id, receiving.next_incoming_id);
            prop_assert_eq!((sending.unsettled_outgoing, receiving.unsettled_incoming), (0, 0));
            let (sender, receiver) = (from.link(from.sender).expect("a link"), to.link(to.receiver).expect("a link"));
            prop_assert_eq!(sender.delivery_count, receiver.delivery_count);
            prop_assert_eq!(sender.credit, receiver.credit);
        }
    }

    #[test]
    fn the_handshake_completes_in_any_pieces(pieces in prop::collection::vec(1..40usize, 1..20)) {
        let mut pair = Pair::new();
        for count in pieces {
            pair.transport(true, count);
            pair.transport(false, count);
        }
        pair.settle_down();
        prop_assert!(pair.client.link(pair.client.receiver).is_some() && pair.server.link(pair.server.receiver).is_some());
        pair.client.connection.close(None, &mut pair.client.out).expect("a running connection");
        let bytes = pair.client.out.split();
        let mut input = &bytes[..];
        let event = pair.server.connection.poll(&mut input, 0, &mut pair.server.out);
        prop_assert_eq!(event, Some(Event::Closed { cause: Cause::Peer(None) }));
        prop_assert!(pair.server.connection.is_closed());
        let bytes = pair.server.out.split();
        let mut input = &bytes[..];
        prop_assert_eq!(pair.client.connection.poll(&mut input, 0, &mut pair.client.out), None);
        prop_assert!(pair.client.connection.is_closed());
    }
}

#[test]
fn a_drain_is_answered() {
    let mut pair = Pair::new();
    pair.settle_down();
    pair.step(14, 4);
    pair.settle_down();
    assert!(pair.server.wants_drain);
    pair.server.send();
    pair.step(15, 0);
    pair.settle_down();
    assert_eq!((pair.client.received, pair.client.drains), (1, (1, 1)));
    let link = pair.client.link(pair.client.receiver).expect("a link");
    assert_eq!(link.credit, 0);
}
