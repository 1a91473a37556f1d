//! A client of AMQP 1.0 that browses queues.

use super::{AMQP10, Cluster};
use amqp10::{Cause, ClientSasl, Config, Connection, Event, LinkId, SessionId};
use bytes::BytesMut;
use codec_amqp10::{
    AnyTarget, Attach, Multiple, ReceiverSettleMode, Role, SenderSettleMode, Source, Symbol,
    Target, Value,
};
use shard::{ConnectionKey, ShardDriver};
use std::collections::VecDeque;
use std::sync::Arc;

/// An event of a browsing link.
#[derive(Clone, Debug, PartialEq)]
pub enum Browsed {
    /// The bytes of the body of a copy: those of its data sections.
    Body(Vec<u8>),
    Drained,
    /// The condition of the error.
    Detached(String),
}

pub struct Browser {
    at: usize,
    key: ConnectionKey,
    engine: Connection,
    session: Option<SessionId>,
    link: Option<LinkId>,
    to_node: BytesMut,
    kept: BytesMut,
    from_node: BytesMut,
    events: VecDeque<Browsed>,
}

impl Browser {
    /// A client of a node whose link browses a queue, without credit.
    pub fn new(cluster: &mut Cluster, at: usize, queue: &str) -> Browser {
        let sasl = ClientSasl {
            mechanism: "PLAIN".into(),
            initial_response: b"\0guest\0guest"[..].into(),
        };
        let config = Config {
            max_message_size: 64 << 20,
            max_unfinished_size: 64 << 20,
            ..Config::client("browser", None, Some(sasl))
        };
        let mut to_node = BytesMut::new();
        let mut browser = Browser {
            at,
            key: cluster.connect(at, AMQP10),
            engine: Connection::new(Arc::new(config), 0, &mut to_node),
            session: None,
            link: None,
            to_node,
            kept: BytesMut::new(),
            from_node: BytesMut::new(),
            events: VecDeque::new(),
        };
        let session = cluster.until("a session", |c| {
            browser.exchange(c);
            browser.session
        });
        let address = format!("/queues/{queue}");
        let attach = Attach {
            name: "browser",
            handle: 0,
            role: Role::Receiver,
            snd_settle_mode: SenderSettleMode::Settled,
            rcv_settle_mode: ReceiverSettleMode::First,
            source: Some(Source {
                address: Some(Value::String(&address)),
                distribution_mode: Some(Symbol::from_static("copy")),
                ..Source::default()
            }),
            target: Some(AnyTarget::Target(Target::default())),
            unsettled: None,
            incomplete_unsettled: false,
            initial_delivery_count: None,
            max_message_size: None,
            offered_capabilities: Multiple::NONE,
            desired_capabilities: Multiple::NONE,
            properties: None,
        };
        let out = &mut browser.to_node;
        let link = browser.engine.attach(session, &attach, Some(0), out);
        browser.link = Some(link.expect("a link"));
        browser.exchange(cluster);
        browser
    }

    /// Grants credit.
    pub fn credit(&mut self, cluster: &mut Cluster, credit: u32, drain: bool) {
        let link = self.link.expect("a link");
        let granted = self
            .engine
            .grant_credit(link, credit, drain, &mut self.to_node);
        granted.expect("an attached link");
        self.exchange(cluster);
    }

    /// The next event, if there is one already.
    pub fn next_now(&mut self, cluster: &mut Cluster) -> Option<Browsed> {
        if self.events.is_empty() {
            self.exchange(cluster);
        }
        self.events.pop_front()
    }

    /// Waits for the next event.
    pub fn next(&mut self, cluster: &mut Cluster) -> Browsed {
        cluster.until("an event of the browser", |c| self.next_now(c))
    }

    /// Waits for so many copies; returns their bodies.
    pub fn bodies(&mut self, cluster: &mut Cluster, count: usize) -> Vec<String> {
        let body = |browsed| match browsed {
            Browsed::Body(body) => String::from_utf8(body).expect("a text"),
            other => panic!("{other:?} instead of a copy"),
        };
        (0..count).map(|_| body(self.next(cluster))).collect()
    }

    /// Drains the link; returns the bodies of the copies.
    pub fn drain(&mut self, cluster: &mut Cluster) -> Vec<String> {
        self.credit(cluster, 100_000, true);
        let mut bodies = Vec::new();
        loop {
            match self.next(cluster) {
                Browsed::Body(body) => bodies.push(String::from_utf8(body).expect("a text")),
                Browsed::Drained => return bodies,
                detached => panic!("{detached:?}"),
            }
        }
    }

    fn exchange(&mut self, cluster: &mut Cluster) {
        loop {
            self.engine.flush(0, &mut self.to_node);
            let has_sent = !self.to_node.is_empty();
            if has_sent {
                self.kept.unsplit(self.to_node.split());
                cluster.receive(self.at, self.key, &mut self.kept);
            }
            cluster.settle();
            let mut read = 0;
            cluster.take_raw(self.at, self.key, |piece| {
                read += piece.len();
                self.from_node.extend_from_slice(piece);
            });
            if read > 0 {
                cluster.nodes[self.at].shard.drained(self.key);
            }
            self.read();
            if read == 0 && !has_sent {
                return;
            }
        }
    }

    fn read(&mut self) {
        let bytes = self.from_node.split();
        let mut rest: &[u8] = &bytes;
        while let Some(event) = self.engine.poll(&mut rest, 0, &mut self.to_node) {
            match event {
                Event::MessageReceived { delivery, .. } => {
                    let body = body(delivery.payload.as_ref());
                    self.events.push_back(Browsed::Body(body));
                }
                Event::Drained { .. } => self.events.push_back(Browsed::Drained),
                Event::LinkDetached { cause, .. } => {
                    let why = match cause {
                        Cause::Peer(Some(error)) => error.condition.symbol().as_str().to_owned(),
                        other => format!("{other:?}"),
                    };
                    self.events.push_back(Browsed::Detached(why));
                }
                Event::Opened { .. } => {
                    let begun = self.engine.begin_session(&mut self.to_node);
                    begun.expect("a session");
                }
                Event::SessionBegun { session, .. } => self.session = Some(session),
                Event::Closed { cause } => panic!("{cause:?}"),
                _ => {}
            }
        }
        self.from_node = BytesMut::from(rest);
    }
}

fn body(message: &[u8]) -> Vec<u8> {
    let sections = codec_amqp10::Sections::parse(message).expect("a message");
    let mut body = Vec::new();
    for part in sections.read_body(message) {
        match part.expect("a section") {
            Value::Binary(bytes) => body.extend_from_slice(bytes),
            other => panic!("{other:?}"),
        }
    }
    body
}
