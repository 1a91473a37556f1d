//! A scripted peer in front of an engine, with a broker that does what the script says.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::collections::BTreeMap;
use std::sync::Arc;

use amqp10::{
    AttachReply, Attached, Cause, Config, Connection, Event, LinkId, OpenReply, OutgoingDelivery,
    PendingAttach, SaslDecision, SessionId,
};
use bytes::{Bytes, BytesMut};
use codec_amqp10::{
    AmqpError, AnyTarget, Attach, Begin, Close, Condition, DeliveryState, Detach, Disposition,
    Encode, End, Flow, FrameKind, Multiple, Open, Outcome, Performative, ProtocolHeader,
    ReceiverSettleMode, Role, SaslFrame, SaslInit, SaslResponse, SenderSettleMode, Source, Symbol,
    Target, Transfer, Value, encode_frame, encode_heartbeat, encode_sasl_frame,
    encode_transfer_frame, parse_frame,
};

/// Limits that are small enough to be reached.
pub fn config() -> Config {
    Config {
        max_frame_size: 512,
        channel_max: 3,
        handle_max: 7,
        idle_timeout: 10_000,
        incoming_window: 8,
        link_credit: 4,
        max_message_size: 1000,
        max_unfinished_size: 1500,
        max_unsettled: 6,
        output_limit: 2048,
        ..Config::server("broker", &["ANONYMOUS", "PLAIN", "TWO-STEP"])
    }
}

pub fn frame(channel: u16, body: &impl Encode) -> Vec<u8> {
    let mut out = Vec::new();
    encode_frame(&mut out, channel, body);
    out
}

pub fn sasl(body: SaslFrame<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    encode_sasl_frame(&mut out, &body);
    out
}

pub fn init(mechanism: &str, response: &[u8]) -> Vec<u8> {
    let mechanism = Symbol::new(mechanism).expect("ASCII");
    sasl(SaslFrame::Init(SaslInit {
        mechanism,
        initial_response: Some(response),
        hostname: None,
    }))
}

pub fn response(response: &[u8]) -> Vec<u8> {
    sasl(SaslFrame::Response(SaslResponse { response }))
}

pub fn heartbeat() -> Vec<u8> {
    let mut out = Vec::new();
    encode_heartbeat(&mut out);
    out
}

pub fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter_map(|c| c.to_digit(16))
        .map(|digit| digit as u8)
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

/// A frame whose body is given in hexadecimal digits.
pub fn raw(channel: u16, body: &str) -> Vec<u8> {
    let body = hex(body);
    let mut out = (body.len() as u32 + 8).to_be_bytes().to_vec();
    out.extend([2, 0]);
    out.extend(channel.to_be_bytes());
    out.extend(body);
    out
}

pub fn open_with(change: impl FnOnce(&mut Open<'static>)) -> Vec<u8> {
    let mut open = Open {
        container_id: "client",
        hostname: None,
        max_frame_size: 512,
        channel_max: u16::MAX,
        idle_time_out: None,
        outgoing_locales: Multiple::NONE,
        incoming_locales: Multiple::NONE,
        offered_capabilities: Multiple::NONE,
        desired_capabilities: Multiple::NONE,
        properties: None,
    };
    change(&mut open);
    frame(0, &open)
}

pub fn open() -> Vec<u8> {
    open_with(|_| {})
}

pub fn begin_with(channel: u16, change: impl FnOnce(&mut Begin<'static>)) -> Vec<u8> {
    let mut begin = Begin {
        remote_channel: None,
        next_outgoing_id: 0,
        incoming_window: 100,
        outgoing_window: 100,
        handle_max: 20,
        offered_capabilities: Multiple::NONE,
        desired_capabilities: Multiple::NONE,
        properties: None,
    };
    change(&mut begin);
    frame(channel, &begin)
}

pub fn begin(channel: u16) -> Vec<u8> {
    begin_with(channel, |_| {})
}

pub fn end(channel: u16) -> Vec<u8> {
    frame(channel, &End { error: None })
}

pub fn close() -> Vec<u8> {
    frame(0, &Close { error: None })
}

pub fn attach_body<'a>(handle: u32, name: &'a str, role: Role) -> Attach<'a> {
    Attach {
        name,
        handle,
        role,
        snd_settle_mode: SenderSettleMode::Mixed,
        rcv_settle_mode: ReceiverSettleMode::First,
        source: Some(Source {
            address: Some(Value::String("s")),
            ..Source::default()
        }),
        target: Some(AnyTarget::Target(Target {
            address: Some(Value::String("t")),
            ..Target::default()
        })),
        unsettled: None,
        incomplete_unsettled: false,
        initial_delivery_count: (role == Role::Sender).then_some(10),
        max_message_size: None,
        offered_capabilities: Multiple::NONE,
        desired_capabilities: Multiple::NONE,
        properties: None,
    }
}

pub fn attach_with(
    channel: u16,
    handle: u32,
    name: &'static str,
    role: Role,
    change: impl FnOnce(&mut Attach<'static>),
) -> Vec<u8> {
    let mut attach = attach_body(handle, name, role);
    change(&mut attach);
    frame(channel, &attach)
}

pub fn attach(channel: u16, handle: u32, name: &'static str, role: Role) -> Vec<u8> {
    attach_with(channel, handle, name, role, |_| {})
}

pub fn detach(channel: u16, handle: u32, closed: bool) -> Vec<u8> {
    frame(
        channel,
        &Detach {
            handle,
            closed,
            error: None,
        },
    )
}

pub fn flow_body() -> Flow<'static> {
    Flow {
        next_incoming_id: None,
        incoming_window: 100,
        next_outgoing_id: 0,
        outgoing_window: 100,
        handle: None,
        delivery_count: None,
        link_credit: None,
        available: None,
        drain: false,
        echo: false,
        properties: None,
    }
}

pub fn flow_with(channel: u16, change: impl FnOnce(&mut Flow<'static>)) -> Vec<u8> {
    let mut flow = flow_body();
    change(&mut flow);
    frame(channel, &flow)
}

/// A flow of a receiver that has seen no delivery.
pub fn credit(channel: u16, handle: u32, credit: u32) -> Vec<u8> {
    flow_with(channel, |flow| {
        flow.handle = Some(handle);
        flow.link_credit = Some(credit);
    })
}

pub fn transfer_with(
    channel: u16,
    handle: u32,
    id: u32,
    size: usize,
    change: impl FnOnce(&mut Transfer<'static>),
) -> Vec<u8> {
    let mut transfer = Transfer {
        handle,
        delivery_id: Some(id),
        delivery_tag: Some(b"tag"),
        message_format: Some(0),
        ..Transfer::default()
    };
    change(&mut transfer);
    let more = transfer.more;
    let mut out = Vec::new();
    let payload = vec![b'x'; size];
    if more {
        // The encoder sets `more` itself if payload is left over.
        let start = out.len();
        out.extend([0, 0, 0, 0, 2, 0]);
        out.extend(channel.to_be_bytes());
        transfer.encode(&mut out);
        out.extend(&payload);
        let size = out.len() as u32;
        out[start..start + 4].copy_from_slice(&size.to_be_bytes());
    } else {
        encode_transfer_frame(&mut out, channel, &mut transfer, &[&payload], 0, 1 << 20);
    }
    out
}

pub fn transfer(channel: u16, handle: u32, id: u32, size: usize) -> Vec<u8> {
    transfer_with(channel, handle, id, size, |_| {})
}

/// The first transfer of a delivery, or one that continues it.
pub fn part(channel: u16, handle: u32, id: Option<u32>, size: usize, more: bool) -> Vec<u8> {
    transfer_with(channel, handle, 0, size, |transfer| {
        transfer.delivery_id = id;
        transfer.more = more;
    })
}

pub fn disposition(
    channel: u16,
    role: Role,
    first: u32,
    last: Option<u32>,
    settled: bool,
    state: Option<DeliveryState<'_>>,
) -> Vec<u8> {
    frame(
        channel,
        &Disposition {
            role,
            first,
            last,
            settled,
            state,
            batchable: false,
        },
    )
}

/// The bytes of a client from its first header to two sessions: the first with links `in` (0, to the engine), `out` (1, from the
/// engine) and `other` (2, to the engine); the second with `second` (0, to the engine).
pub fn prelude() -> Vec<u8> {
    [
        ProtocolHeader::SASL.to_bytes().to_vec(),
        init("ANONYMOUS", b""),
        ProtocolHeader::AMQP.to_bytes().to_vec(),
        open(),
        begin(0),
        attach(0, 0, "in", Role::Sender),
        attach(0, 1, "out", Role::Receiver),
        attach(0, 2, "other", Role::Sender),
        begin(1),
        attach(1, 0, "second", Role::Sender),
    ]
    .concat()
}

/// One step of a script.
pub enum Step {
    /// Bytes from the peer.
    In(Vec<u8>),
    /// The broker sends a message of this size on link `out`.
    Send(usize),
    /// The same, settled.
    SendSettled(usize),
    /// The broker settles the delivery with this id, which it received.
    Settle(u32, DeliveryState<'static>),
    /// The broker settles deliveries that it sent.
    SettleSent(u32, u32, DeliveryState<'static>),
    /// The broker has no more messages for `out`.
    Drained,
    /// The broker reports the flow state of the named link.
    Report(&'static str, u32),
    /// The broker grants credit to the peer on the named link.
    Grant(&'static str, u32, bool),
    /// The broker accepts the attach that it left pending.
    AcceptPending,
    /// The broker detaches the named link.
    Detach(&'static str),
    /// The broker ends the session on this channel.
    EndSession(u16),
    /// The broker closes the connection.
    Close,
    /// The broker closes or opens the windows.
    Block(bool),
    /// Time passes.
    Tick(u64),
    /// The output is sent and the turn ends.
    Flush,
}

pub struct Harness {
    pub connection: Connection,
    pub out: BytesMut,
    pub trace: Vec<String>,
    pub input: Vec<u8>,
    pub now: u64,
    sessions: BTreeMap<u16, SessionId>,
    links: BTreeMap<String, LinkId>,
    received_on: BTreeMap<u32, LinkId>,
    pending: Option<PendingAttach>,
    next_token: u64,
    expects_header: bool,
    /// Output above its limit is left where it is.
    pub keeps_output: bool,
    unread_output: usize,
}

impl Harness {
    pub fn new(config: Config) -> Self {
        let mut out = BytesMut::new();
        Self {
            connection: Connection::new(Arc::new(config), 0, &mut out),
            out,
            trace: Vec::new(),
            input: Vec::new(),
            now: 0,
            sessions: BTreeMap::new(),
            links: BTreeMap::new(),
            received_on: BTreeMap::new(),
            pending: None,
            next_token: 100,
            expects_header: true,
            keeps_output: false,
            unread_output: 0,
        }
    }

    /// After the prelude, with an empty trace.
    pub fn running(config: Config) -> Self {
        let mut harness = Self::new(config);
        harness.run(Step::In(prelude()));
        harness.run(Step::Flush);
        assert!(harness.connection.is_running(), "{:#?}", harness.trace);
        assert_eq!(harness.links.len(), 4, "{:#?}", harness.trace);
        harness.trace.clear();
        harness
    }

    pub fn run(&mut self, step: Step) {
        let result: Result<(), String> = match step {
            Step::In(bytes) => {
                self.receive(&bytes);
                Ok(())
            }
            Step::Send(size) => self.send(size, false),
            Step::SendSettled(size) => self.send(size, true),
            Step::Settle(id, state) => {
                let link = self
                    .received_on
                    .get(&id)
                    .copied()
                    .unwrap_or(self.links["in"]);
                self.connection
                    .settle_received(link, id, &state, &mut self.out)
                    .map_err(|error| error.to_string())
            }
            Step::SettleSent(first, last, state) => {
                let session = self.sessions[&0];
                self.connection
                    .settle_sent(session, first, last, &state, &mut self.out)
                    .map_err(|error| error.to_string())
            }
            Step::Drained => self
                .connection
                .drained(self.links["out"], &mut self.out)
                .map_err(|error| error.to_string()),
            Step::Report(link, available) => {
                let link = self.links[link];
                let _ = self.connection.set_available(link, available);
                self.connection
                    .report_flow(link, false, &mut self.out)
                    .map_err(|error| error.to_string())
            }
            Step::Grant(link, credit, drain) => self
                .connection
                .grant_credit(self.links[link], credit, drain, &mut self.out)
                .map_err(|error| error.to_string()),
            Step::AcceptPending => {
                let pending = self.pending.take().expect("a pending attach");
                match self
                    .connection
                    .accept_attach(pending, &AttachReply::default(), &mut self.out)
                {
                    Ok(Attached { credit, .. }) => {
                        if let Some(state) = credit {
                            self.trace.push(format!(
                                "! early credit={} drain={}",
                                state.credit, state.drain
                            ));
                        }
                        Ok(())
                    }
                    Err(error) => Err(error.to_string()),
                }
            }
            Step::Detach(link) => {
                let error = AmqpError::new(Condition::ResourceDeleted, "gone");
                self.connection
                    .detach(self.links[link], true, Some(&error), &mut self.out)
                    .map_err(|error| error.to_string())
            }
            Step::EndSession(channel) => self
                .connection
                .end_session(self.sessions[&channel], None, &mut self.out)
                .map_err(|error| error.to_string()),
            Step::Close => self
                .connection
                .close(None, &mut self.out)
                .map_err(|error| error.to_string()),
            Step::Block(is_blocked) => {
                self.connection.block_publishers(is_blocked, &mut self.out);
                Ok(())
            }
            Step::Tick(passed) => {
                self.now += passed;
                if let Some(event) = self.connection.tick(self.now, &mut self.out) {
                    self.read_output();
                    self.trace.push(format!("! {}", shown(&event)));
                }
                Ok(())
            }
            Step::Flush => {
                if self.keeps_output {
                    self.out.clear();
                    self.unread_output = 0;
                }
                self.connection.flush(self.now, &mut self.out);
                Ok(())
            }
        };
        if let Err(error) = result {
            self.trace.push(format!("! error: {error}"));
        }
        self.read_output();
    }

    fn send(&mut self, size: usize, settled: bool) -> Result<(), String> {
        let token = self.next_token;
        let message = Bytes::from(vec![b'm'; size]);
        let cut = size / 3;
        let parts = [message.slice(..cut), message.slice(cut..)];
        let delivery = OutgoingDelivery {
            tag: &token.to_be_bytes(),
            message_format: 0,
            settled,
            parts: &parts,
            token,
        };
        self.connection
            .send(self.links["out"], &delivery, &mut self.out)
            .map_err(|error| error.to_string())?;
        self.next_token += 1;
        Ok(())
    }

    pub fn receive(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        let all = std::mem::take(&mut self.input);
        let mut input = &all[..];
        while let Some(event) = self.connection.poll(&mut input, self.now, &mut self.out) {
            self.read_output();
            self.trace.push(format!("! {}", shown(&event)));
            self.answer(event);
        }
        self.input = input.to_vec();
    }

    /// The broker's reaction to an event.
    fn answer(&mut self, event: Event<'_>) {
        let out = &mut self.out;
        match event {
            Event::SaslInit {
                mechanism,
                initial_response,
                pending,
                ..
            } => {
                let decision = match (mechanism, initial_response) {
                    ("TWO-STEP", _) => SaslDecision::Challenge(b"more"),
                    ("PLAIN", Some(b"\0user\0bad")) => SaslDecision::Reject,
                    ("PLAIN", Some(b"\0user\0later")) => SaslDecision::TemporaryError,
                    _ => SaslDecision::Accept,
                };
                self.connection.answer_sasl(pending, decision, out);
            }
            Event::SaslResponse { pending, .. } => {
                self.connection
                    .answer_sasl(pending, SaslDecision::Accept, out)
            }
            Event::OpenRequested { open, pending } => {
                if open.hostname == Some("refused") {
                    let error = AmqpError::new(Condition::NotFound, "no such host");
                    self.connection
                        .refuse_open(pending, OpenReply::default(), &error, out);
                } else {
                    self.connection
                        .accept_open(pending, OpenReply::default(), out)
                        .expect("an opening connection");
                }
            }
            Event::SessionBegun { session, .. } => {
                self.sessions.insert(session.channel(), session);
            }
            Event::AttachRequested { attach, pending } => {
                let link = pending.link();
                self.links.insert(attach.name.to_owned(), link);
                if attach.name.starts_with("refused") {
                    let error = AmqpError::new(Condition::NotFound, "no such queue");
                    self.connection
                        .refuse_attach(pending, &error, out)
                        .expect("an attaching link");
                } else if attach.name.starts_with("later") {
                    self.pending = Some(pending);
                } else {
                    let reply = AttachReply {
                        source: attach.source,
                        target: attach.target,
                        rcv_settle_mode: Some(attach.rcv_settle_mode),
                        link_credit: attach.name.starts_with("manual").then_some(0),
                        ..AttachReply::default()
                    };
                    self.connection
                        .accept_attach(pending, &reply, out)
                        .expect("an attaching link");
                }
            }
            Event::MessageReceived { link, delivery } => {
                self.received_on.insert(delivery.id, link);
            }
            _ => {}
        }
        self.read_output();
    }

    fn read_output(&mut self) {
        if self.keeps_output {
            // Complete frames only; the bytes stay.
            let copy = self.out.clone();
            self.unread_output = copy.len() - self.read_frames(&copy[self.unread_output..]);
            return;
        }
        let out = self.out.split();
        let left = self.read_frames(&out);
        assert_eq!(left, 0, "the engine writes whole frames");
    }

    fn read_frames(&mut self, mut out: &[u8]) -> usize {
        while !out.is_empty() {
            if self.expects_header || out.starts_with(b"AMQP") {
                let bytes = out[..8].try_into().expect("eight bytes");
                let header = ProtocolHeader::parse(bytes).expect("a protocol header");
                self.trace.push(format!("header {:?}", header.id));
                self.expects_header = false;
                out = &out[8..];
                continue;
            }
            let frame = parse_frame(out, 512)
                .expect("a frame of at most 512 bytes")
                .expect("a whole frame");
            out = &out[frame.size..];
            let line = match frame.kind {
                FrameKind::Sasl => match SaslFrame::decode(frame.body).expect("a SASL frame") {
                    SaslFrame::Mechanisms(body) => {
                        let names: Vec<_> = body
                            .sasl_server_mechanisms
                            .iter()
                            .map(|name| name.as_str())
                            .collect();
                        format!("mechanisms {}", names.join(" "))
                    }
                    SaslFrame::Challenge(_) => "challenge".into(),
                    SaslFrame::Outcome(body) => format!("outcome {:?}", body.code),
                    other => panic!("{other:?} from a server"),
                },
                FrameKind::Amqp if frame.body.is_empty() => "heartbeat".into(),
                FrameKind::Amqp => {
                    let (body, payload) = Performative::decode(frame.body).expect("a performative");
                    shown_frame(frame.channel, &body, payload.len())
                }
            };
            self.trace.push(line);
        }
        out.len()
    }

    /// Checks that links which the script did not touch still work.
    pub fn probe(&mut self) {
        if !self.connection.is_running() {
            return;
        }
        self.connection.block_publishers(false, &mut self.out);
        self.run(Step::Flush);
        let states: Vec<_> = self.connection.sessions().collect();
        for (name, channel, handle) in [("other", 0, 2), ("second", 1, 0)] {
            let Some(&link) = self.links.get(name) else {
                continue;
            };
            let Some(session) = states
                .iter()
                .find(|session| session.session == self.sessions[&channel])
            else {
                continue;
            };
            let Some(state) = session.links.iter().find(|state| state.link == link) else {
                continue;
            };
            if state.credit == 0 || state.unfinished_size > 0 || session.incoming_window == 0 {
                continue;
            }
            self.trace.clear();
            // Far enough to be after any id of a script.
            self.run(Step::In(transfer(channel, handle, 1 << 20, 1)));
            let expected = format!("message {name}");
            assert!(
                self.trace
                    .iter()
                    .any(|line| line.starts_with("! message") && line.contains("#1048576")),
                "{expected} after the script: {:#?}",
                self.trace
            );
        }
    }
}

fn error(error: Option<&AmqpError<'_>>) -> String {
    error.map_or(String::new(), |error| {
        format!(" {}", error.condition.symbol())
    })
}

fn cause(cause: &Cause<'_>) -> String {
    match cause {
        Cause::Peer(found) => format!("by peer{}", error(found.as_ref())),
        Cause::Fault(fault) => format!("by fault {}", fault.condition.symbol()),
    }
}

fn state(state: &DeliveryState<'_>) -> String {
    match state {
        DeliveryState::Outcome(Outcome::Accepted) => "accepted".into(),
        DeliveryState::Outcome(Outcome::Rejected(found)) => {
            format!("rejected{}", error(found.as_ref()))
        }
        DeliveryState::Outcome(Outcome::Released) => "released".into(),
        DeliveryState::Outcome(Outcome::Modified(_)) => "modified".into(),
        other => format!("{other:?}"),
    }
}

pub fn shown(event: &Event<'_>) -> String {
    match event {
        Event::SaslInit { mechanism, .. } => format!("init {mechanism}"),
        Event::SaslResponse { .. } => "response".into(),
        Event::OpenRequested { open, .. } => format!("open {}", open.container_id),
        Event::Opened { .. } => "opened".into(),
        Event::SessionBegun { session, .. } => format!("begun {}", session.channel()),
        Event::AttachRequested { attach, .. } => format!("attach {}", attach.name),
        Event::LinkAttached { attach, .. } => format!("attached {}", attach.name),
        Event::MessageReceived { link, delivery } => format!(
            "message {}/{} #{} {}B{}",
            link.channel(),
            link.handle(),
            delivery.id,
            delivery.payload.as_ref().len(),
            if delivery.settled { " settled" } else { "" }
        ),
        Event::Disposition {
            settled,
            state: found,
            deliveries,
            ..
        } => format!(
            "disposition{} {} {:?}",
            if *settled { " settled" } else { "" },
            found.as_ref().map_or("none".into(), state),
            deliveries
                .iter()
                .map(|delivery| delivery.token)
                .collect::<Vec<_>>()
        ),
        Event::CreditChanged { link, state } => format!(
            "credit {}/{} {}{}{}",
            link.channel(),
            link.handle(),
            state.credit,
            if state.drain { " drain" } else { "" },
            if state.echo { " echo" } else { "" }
        ),
        Event::AvailableChanged { available, .. } => format!("available {available}"),
        Event::Drained { link } => format!("drained {}/{}", link.channel(), link.handle()),
        Event::WindowOpened { session } => format!("window {}", session.channel()),
        Event::LinkDetached {
            link,
            closed,
            cause: by,
        } => {
            format!(
                "detached {}/{}{} {}",
                link.channel(),
                link.handle(),
                if *closed { " closed" } else { "" },
                cause(by)
            )
        }
        Event::SessionEnded { session, cause: by } => {
            format!("ended {} {}", session.channel(), cause(by))
        }
        Event::Closed { cause: by } => format!("closed {}", cause(by)),
    }
}

fn shown_frame(channel: u16, body: &Performative<'_>, payload: usize) -> String {
    match body {
        Performative::Open(_) => "open".into(),
        Performative::Begin(begin) => format!(
            "begin {channel} remote={:?}",
            begin.remote_channel.unwrap_or(999)
        ),
        Performative::Attach(attach) => format!(
            "attach {channel}/{} {:?} {}{}",
            attach.handle,
            attach.role,
            attach.name,
            if attach.source.is_none() && attach.target.is_none() {
                " null"
            } else {
                ""
            }
        ),
        Performative::Flow(flow) => {
            let mut line = format!(
                "flow {channel} next={} window={}",
                flow.next_incoming_id.unwrap_or(999),
                flow.incoming_window
            );
            if let Some(handle) = flow.handle {
                line += &format!(
                    " h{handle} count={} credit={}",
                    flow.delivery_count.unwrap_or(999),
                    flow.link_credit.unwrap_or(999)
                );
            }
            if let Some(available) = flow.available.filter(|available| *available > 0) {
                line += &format!(" available={available}");
            }
            if flow.drain {
                line += " drain";
            }
            line
        }
        Performative::Transfer(transfer) => format!(
            "transfer {channel}/{} #{} {payload}B{}{}",
            transfer.handle,
            transfer.delivery_id.unwrap_or(999),
            if transfer.settled == Some(true) {
                " settled"
            } else {
                ""
            },
            if transfer.more { " more" } else { "" }
        ),
        Performative::Disposition(disposition) => format!(
            "disposition {channel} {:?} {}-{}{} {}",
            disposition.role,
            disposition.first,
            disposition.last.unwrap_or(disposition.first),
            if disposition.settled { " settled" } else { "" },
            disposition.state.as_ref().map_or("none".into(), state)
        ),
        Performative::Detach(detach) => {
            format!(
                "detach {channel}/{}{}{}",
                detach.handle,
                if detach.closed { " closed" } else { "" },
                error(detach.error.as_ref())
            )
        }
        Performative::End(end) => format!("end {channel}{}", error(end.error.as_ref())),
        Performative::Close(close) => format!("close{}", error(close.error.as_ref())),
    }
}
