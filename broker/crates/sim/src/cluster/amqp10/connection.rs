//! A connection of an AMQP 1.0 client: its sessions, and the declaration of its queue.

use super::Amqp10Queue;
use super::oracle::Amqp10Oracle;
use super::session::{ClientSession, Context, LinkEnd, LinkPlan, SessionEvent};
use super::wire::{Wire, WireInput, decode, is_client_fault};
use crate::cluster::client::ProtocolEndpoint;
use bytes::Bytes;
use codec_amqp10::{Close, Performative};
use env::Time;
use std::collections::{BTreeMap, VecDeque};

/// Choices of a client for one connection.
pub(super) struct ConnectionPlan {
    pub queue: Amqp10Queue,
    /// The links of each session.
    pub sessions: Vec<Vec<LinkPlan>>,
    /// The largest frame that the client accepts, and that it sends at first.
    pub frame_size: u32,
    /// Transfers that a session accepts at first.
    pub window: u32,
    /// Everything up to the open is sent without waiting for answers.
    pub is_pipelined: bool,
}

pub(super) struct Connection {
    plan: ConnectionPlan,
    pub wire: Wire,
    pub sessions: Vec<ClientSession>,
    /// Sessions by the broker's channels.
    channels: BTreeMap<u16, usize>,
    has_requested: bool,
    /// The queue is there, and the links are attached to it.
    pub is_declared: bool,
}

/// The state of a client that is not of one connection.
pub(super) struct ClientState<'a> {
    pub now: Time,
    pub oracle: &'a mut Amqp10Oracle,
    pub repeats: &'a mut VecDeque<u64>,
}

impl ProtocolEndpoint for Connection {
    fn take(&mut self) -> Option<Bytes> {
        let output = &mut self.wire.output;
        (!output.is_empty()).then(|| output.split().freeze())
    }
}

impl Connection {
    pub(super) fn new(plan: ConnectionPlan) -> Connection {
        Connection {
            wire: Wire::new(plan.frame_size, plan.is_pipelined),
            plan,
            sessions: Vec::new(),
            channels: BTreeMap::new(),
            has_requested: false,
            is_declared: false,
        }
    }

    /// A session, and the context for its methods.
    pub(super) fn session<'a>(
        &'a mut self,
        at: usize,
        state: &'a mut ClientState<'_>,
    ) -> Option<(&'a mut ClientSession, Context<'a>)> {
        let cx = Context {
            now: state.now,
            oracle: state.oracle,
            wire: &mut self.wire,
            repeats: state.repeats,
        };
        Some((self.sessions.get_mut(at)?, cx))
    }

    /// Processes received bytes. Returns true if the connection is of no more use.
    pub(super) fn receive(
        &mut self,
        bytes: &[u8],
        state: &mut ClientState<'_>,
    ) -> Result<bool, String> {
        self.wire.receive(bytes);
        while let Some(input) = self.wire.next()? {
            let ends = match input {
                WireInput::Refused => true,
                WireInput::Opened => {
                    self.begin_session();
                    false
                }
                WireInput::Frame { channel, body } => self.handle_frame(channel, &body, state)?,
            };
            if ends {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn begin_session(&mut self) {
        let channel = self.sessions.len() as u16;
        let session = ClientSession::begin(channel, self.plan.window, &mut self.wire);
        self.sessions.push(session);
    }

    fn handle_frame(
        &mut self,
        channel: u16,
        body: &[u8],
        state: &mut ClientState<'_>,
    ) -> Result<bool, String> {
        let (frame, payload) = decode(body)?;
        match &frame {
            Performative::Close(close) => {
                self.wire.send(0, &Close { error: None });
                return match &close.error {
                    Some(error) if is_client_fault(error.condition) => {
                        Err(format!("the broker closed the connection: {error:?}"))
                    }
                    _ => Ok(true),
                };
            }
            Performative::Begin(begin) => {
                let own = begin.remote_channel.ok_or("the broker began a session")?;
                if self.channels.insert(channel, own.into()).is_some() {
                    return Err(format!("the broker's channel {channel} is in use"));
                }
            }
            _ => {}
        }
        let at = self.channels.get(&channel).copied();
        let at = at.ok_or_else(|| format!("{frame:?} on channel {channel} without a session"))?;
        if matches!(frame, Performative::End(_)) {
            self.channels.remove(&channel);
        }
        let (session, mut cx) = self
            .session(at, state)
            .ok_or_else(|| format!("no session on channel {at}"))?;
        let handled = session.handle(frame, payload, &mut cx);
        let event = handled.map_err(|error| format!("session {at}: {error}"))?;
        match event {
            Some(event) => self.handle_event(at, event, state),
            None => {
                self.declare_if_ready(state);
                Ok(false)
            }
        }
    }

    fn handle_event(
        &mut self,
        at: usize,
        event: SessionEvent,
        state: &mut ClientState<'_>,
    ) -> Result<bool, String> {
        match event {
            SessionEvent::Lost => return Ok(true),
            SessionEvent::Begun if !self.is_declared => {
                self.attach(at, LinkPlan::Requests, state);
                self.attach(at, LinkPlan::Responses, state);
            }
            SessionEvent::Begun => self.attach_all(at, state),
            SessionEvent::Ended => {
                let window = self.plan.window;
                if let Some(session) = self.sessions.get_mut(at) {
                    *session = ClientSession::begin(at as u16, window, &mut self.wire);
                }
            }
            SessionEvent::Detached(LinkPlan::Requests | LinkPlan::Responses) => {}
            SessionEvent::Detached(plan) => self.attach(at, plan, state),
            SessionEvent::Responded(200 | 201) => {
                self.is_declared = true;
                self.detach_all(at, state);
                self.attach_all(at, state);
                while self.sessions.len() < self.plan.sessions.len() {
                    self.begin_session();
                }
            }
            SessionEvent::Responded(status)
                if matches!(status, 403 | 409) || state.oracle.calm_since(state.now) =>
            {
                return Err(format!("the declaration of the queue failed with {status}"));
            }
            // The queue or the metadata cannot be used now.
            SessionEvent::Responded(_) => return Ok(true),
        }
        Ok(false)
    }

    fn attach(&mut self, at: usize, plan: LinkPlan, state: &mut ClientState<'_>) {
        if let Some((session, mut cx)) = self.session(at, state) {
            session.attach(plan, &mut cx);
        }
    }

    fn attach_all(&mut self, at: usize, state: &mut ClientState<'_>) {
        let plans = self.plan.sessions.get(at).cloned().unwrap_or_default();
        for plan in plans {
            self.attach(at, plan, state);
        }
    }

    fn detach_all(&mut self, at: usize, state: &mut ClientState<'_>) {
        if let Some((session, mut cx)) = self.session(at, state) {
            let attached: Vec<u32> = session.links().map(|(handle, _)| handle).collect();
            for handle in attached {
                session.detach(handle, true, &mut cx);
            }
        }
    }

    /// Requests the declaration once both links to the management node are attached and the broker takes requests.
    fn declare_if_ready(&mut self, state: &mut ClientState<'_>) {
        if self.has_requested {
            return;
        }
        let (queue, frame_size) = (self.plan.queue, self.plan.frame_size as usize);
        let Some((session, mut cx)) = self.session(0, state) else {
            return;
        };
        let is_ready = session.links().count() > 0
            && session
                .links()
                .all(|(handle, link)| match (link.is_attached(), &link.end) {
                    (true, LinkEnd::Publisher(_)) => session.may_publish(handle),
                    (is_attached, _) => is_attached,
                });
        if is_ready {
            session.declare(queue, frame_size, &mut cx);
            self.has_requested = true;
        }
    }

    /// The connection has ended.
    pub(super) fn lose(&mut self, state: &mut ClientState<'_>) {
        for at in 0..self.sessions.len() {
            if let Some((session, mut cx)) = self.session(at, state) {
                session.lose(&mut cx);
            }
        }
    }

    /// Says goodbye.
    pub(super) fn close(&mut self) {
        self.wire.send(0, &Close { error: None });
    }

    /// All sessions and links are there.
    pub(super) fn is_complete(&self) -> bool {
        self.is_declared
            && self.sessions.len() == self.plan.sessions.len()
            && self
                .sessions
                .iter()
                .zip(&self.plan.sessions)
                .all(|(session, plan)| {
                    let attached = session.links().filter(|(_, link)| link.is_attached());
                    session.is_mapped() && attached.count() == plan.len()
                })
    }
}
