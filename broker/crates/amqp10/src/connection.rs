use std::sync::Arc;

use bytes::BytesMut;
use codec_amqp10::{
    AmqpError, Attach, Begin, Close, Condition, DeliveryState, End, Frame, FrameKind,
    MIN_MAX_FRAME_SIZE, Map, Multiple, Open, PerformativeKind, Reader, encode_frame,
    encode_heartbeat, parse_frame,
};

use crate::handshake::{Handshake, Step};
use crate::session::{Io, Phase as SessionPhase, Placed, Session, write_end};
use crate::{
    AttachReply, Attached, Cause, CommandError, Config, Event, Fault, Level, LinkId, MessagePart,
    Millis, OutgoingDeliveryOf, Peer, PendingAttach, PendingOpen, PendingSasl, SaslDecision,
    SendError, Serial, SessionId, SessionState,
};

/// The shortest idle timeout of a peer that is kept. Shorter ones are refused, as RabbitMQ does (section 2.4.5).
const MIN_REMOTE_IDLE_TIMEOUT: u32 = 1000;

/// The answer to an open.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenReply<'a> {
    /// Extensions that the server supports.
    pub offered_capabilities: Multiple<'a>,
    /// Connection properties.
    pub properties: Option<Map<'a>>,
}

/// A connection (section 2.4).
#[derive(Debug)]
pub struct Connection {
    config: Arc<Config>,
    phase: Phase,
    now: Millis,
    last_received: Millis,
    last_sent: Millis,
    /// Input that was seen and not read, so that new bytes are noticed.
    unread: usize,
    /// When the current phase times out, if it does.
    phase_deadline: Option<Millis>,
    /// An error that ended the connection outside of `poll`. Boxed, because few connections have one.
    pending_close: Option<Box<Fault>>,
    generation: u32,
    is_blocked: bool,
    window_opened: Option<SessionId>,
    /// Bytes of earlier output that the transport still has to send.
    backlog: usize,
}

/// The phase of a connection (section 2.4.7), each with the state that only it has.
#[derive(Debug)]
enum Phase {
    Handshake(Handshake),
    Opening(Opening),
    Running(Running),
    /// Our close is sent.
    Closing,
    Closed,
}

/// The exchange of open frames.
#[derive(Debug)]
struct Opening {
    /// The client's parameters while the broker decides.
    deciding: Option<Negotiated>,
    /// Our open is sent.
    is_sent: bool,
}

/// The parameters that both sides agreed on.
#[derive(Clone, Copy, Debug)]
struct Negotiated {
    /// The largest frame that is sent.
    max_frame_size: usize,
    channel_max: u16,
    /// The time without output after which a heartbeat is sent; 0: never.
    heartbeat_interval: Millis,
}

impl Negotiated {
    fn new(open: &Open<'_>, config: &Config) -> Result<Self, Fault> {
        if open.max_frame_size < MIN_MAX_FRAME_SIZE {
            return Err(Fault::connection(
                Condition::FrameSizeTooSmall,
                format_args!(
                    "open: field 'max-frame-size': {} is below {MIN_MAX_FRAME_SIZE}",
                    open.max_frame_size
                ),
            ));
        }
        let idle = open.idle_time_out.unwrap_or(0);
        if (1..MIN_REMOTE_IDLE_TIMEOUT).contains(&idle) {
            return Err(Fault::connection(
                Condition::NotAllowed,
                format_args!(
                    "open: field 'idle-time-out': {idle} ms is below {MIN_REMOTE_IDLE_TIMEOUT} ms"
                ),
            ));
        }
        Ok(Self {
            max_frame_size: open
                .max_frame_size
                .min(config.max_frame_size.max(MIN_MAX_FRAME_SIZE))
                as usize,
            channel_max: open.channel_max.min(config.channel_max),
            heartbeat_interval: Millis::from(idle / 2),
        })
    }
}

/// An open connection.
#[derive(Debug)]
struct Running {
    negotiated: Negotiated,
    /// By own channel.
    sessions: Vec<Option<Box<Session>>>,
    /// Own channels by the peer's.
    channels: Vec<Option<u16>>,
    unfinished_size: usize,
}

impl Running {
    fn new(negotiated: Negotiated) -> Self {
        Self {
            negotiated,
            sessions: Vec::new(),
            channels: Vec::new(),
            unfinished_size: 0,
        }
    }

    fn free_channel(&self) -> Result<u16, CommandError> {
        let free = self
            .sessions
            .iter()
            .position(Option::is_none)
            .unwrap_or(self.sessions.len());
        match u16::try_from(free) {
            Ok(channel) if channel <= self.negotiated.channel_max => Ok(channel),
            _ => Err(CommandError::LimitReached),
        }
    }

    fn insert(&mut self, session: Session) {
        let at = usize::from(session.id.channel);
        if self.sessions.len() <= at {
            self.sessions.resize_with(at + 1, || None);
        }
        debug_assert!(self.sessions[at].is_none());
        self.sessions[at] = Some(Box::new(session));
    }

    fn map_channel(&mut self, remote: u16, own: u16) {
        let at = usize::from(remote);
        if self.channels.len() <= at {
            self.channels.resize(at + 1, None);
        }
        debug_assert!(self.channels[at].is_none());
        self.channels[at] = Some(own);
    }

    /// Our channel of a session that the peer addresses.
    #[inline]
    fn find(&self, remote: u16) -> Option<u16> {
        self.channels.get(usize::from(remote)).copied().flatten()
    }
}

/// The session on one of our channels, and the parts of the connection that it uses.
macro_rules! with_session {
    ($self:ident, $running:ident, $out:ident, $channel:expr) => {
        (
            $running
                .sessions
                .get_mut(usize::from($channel))
                .and_then(Option::as_deref_mut),
            Io {
                out: $out,
                backlog: $self.backlog,
                config: &$self.config,
                max_frame_size: $running.negotiated.max_frame_size,
                unfinished_size: &mut $running.unfinished_size,
                generation: &mut $self.generation,
            },
        )
    };
}

impl Connection {
    /// A new connection. A client writes its first protocol header.
    pub fn new(config: Arc<Config>, now: Millis, out: &mut BytesMut) -> Self {
        let handshake = Handshake::start(&config, out);
        Self {
            phase_deadline: Some(now.saturating_add(config.handshake_timeout)),
            config,
            phase: Phase::Handshake(handshake),
            now,
            last_received: now,
            last_sent: now,
            unread: 0,
            pending_close: None,
            generation: 0,
            is_blocked: false,
            window_opened: None,
            backlog: 0,
        }
    }

    /// Reads frames from the front of `input` until one of them concerns the broker.
    ///
    /// Returns None when a whole frame is missing, or while the broker has a decision pending ([`Connection::is_deciding`]). The
    /// caller keeps the rest of the input, which is at most one frame, and passes it again with more bytes.
    pub fn poll<'a>(
        &mut self,
        input: &mut &'a [u8],
        now: Millis,
        out: &mut BytesMut,
    ) -> Option<Event<'a>> {
        self.now = now;
        if input.len() != self.unread {
            self.last_received = now;
        }
        let before = out.len();
        let mut event = None;
        loop {
            if self.pending_close.is_some() || self.window_opened.is_some() {
                event = self.take_pending();
                break;
            }
            match self.step(input, out, &mut event) {
                Ok(Progress::Nothing) => {}
                Ok(Progress::Blocked | Progress::Event) => break,
                Err(fault) => {
                    self.fail(&fault, out);
                    event = Some(Event::Closed {
                        cause: Cause::Fault(fault),
                    });
                    break;
                }
            }
        }
        self.unread = input.len();
        self.note_output(before, out);
        event
    }

    /// An event that came up outside of `poll`, or with the last frame.
    #[cold]
    fn take_pending<'a>(&mut self) -> Option<Event<'a>> {
        if let Some(fault) = self.pending_close.take() {
            let cause = Cause::Fault(*fault);
            return Some(Event::Closed { cause });
        }
        let session = self.window_opened.take()?;
        Some(Event::WindowOpened { session })
    }

    fn note_output(&mut self, before: usize, out: &BytesMut) {
        if out.len() != before {
            self.last_sent = self.now;
        }
    }

    /// Goes on by one frame. An event is put into `event`.
    #[inline]
    fn step<'a>(
        &mut self,
        input: &mut &'a [u8],
        out: &mut BytesMut,
        event: &mut Option<Event<'a>>,
    ) -> Result<Progress, Fault> {
        match &mut self.phase {
            Phase::Handshake(handshake) => match handshake.step(input, &self.config, out)? {
                Step::Blocked => Ok(Progress::Blocked),
                Step::Progress => Ok(Progress::Nothing),
                Step::Event(found) => {
                    *event = Some(found);
                    Ok(Progress::Event)
                }
                Step::Complete => {
                    let mut opening = Opening {
                        deciding: None,
                        is_sent: false,
                    };
                    if matches!(self.config.peer, Peer::Client { .. }) {
                        write_open(
                            &self.config,
                            self.config.channel_max,
                            OpenReply::default(),
                            out,
                        );
                        opening.is_sent = true;
                    }
                    self.phase = Phase::Opening(opening);
                    Ok(Progress::Nothing)
                }
            },
            Phase::Opening(Opening {
                deciding: Some(_), ..
            }) => Ok(Progress::Blocked),
            Phase::Opening(_) => {
                *event = self.step_opening(input)?;
                Ok(match event {
                    Some(_) => Progress::Event,
                    None => Progress::Blocked,
                })
            }
            Phase::Running(_) => self.step_running(input, out, event),
            Phase::Closing => self.step_closing(input),
            Phase::Closed => {
                *input = &[];
                Ok(Progress::Blocked)
            }
        }
    }

    /// Reads the next frame of the AMQP layer that has a body.
    #[inline]
    fn next_frame<'a>(input: &mut &'a [u8], config: &Config) -> Result<Option<Frame<'a>>, Fault> {
        loop {
            let Some(frame) = parse_frame(input, config.max_frame_size).map_err(Fault::framing)?
            else {
                return Ok(None);
            };
            *input = &input[frame.size..];
            if frame.kind != FrameKind::Amqp {
                return Err(Fault::connection(
                    Condition::FramingError,
                    "a SASL frame in the AMQP layer",
                ));
            }
            if !frame.body.is_empty() {
                return Ok(Some(frame));
            }
        }
    }

    /// Reads the open of the peer. None: it is not there yet.
    fn step_opening<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Event<'a>>, Fault> {
        let Some(frame) = Self::next_frame(input, &self.config)? else {
            return Ok(None);
        };
        let mut reader = Reader::new(frame.body);
        let decode = |error| as_connection_fault(Fault::decode(error));
        match PerformativeKind::read(&mut reader).map_err(decode)? {
            PerformativeKind::Open => {
                let open = Open::read_body(&mut reader).map_err(decode)?;
                let negotiated = Negotiated::new(&open, &self.config)?;
                let Phase::Opening(opening) = &mut self.phase else {
                    debug_assert!(false, "the caller matched the phase");
                    return Ok(None);
                };
                let open = Box::new(open);
                if opening.is_sent {
                    self.phase = Phase::Running(Running::new(negotiated));
                    self.phase_deadline = None;
                    return Ok(Some(Event::Opened { open }));
                }
                opening.deciding = Some(negotiated);
                Ok(Some(Event::OpenRequested {
                    open,
                    pending: PendingOpen(()),
                }))
            }
            other => Err(Fault::connection(
                Condition::IllegalState,
                format_args!("{} before open", other.name()),
            )),
        }
    }

    fn step_closing(&mut self, input: &mut &[u8]) -> Result<Progress, Fault> {
        // Everything up to the peer's close is discarded (section 2.4.7), and so are bytes that form no frame.
        let Ok(Some(frame)) = parse_frame(input, self.config.max_frame_size) else {
            if parse_frame(input, self.config.max_frame_size).is_err() {
                *input = &[];
            }
            return Ok(Progress::Blocked);
        };
        *input = &input[frame.size..];
        let mut reader = Reader::new(frame.body);
        if PerformativeKind::read(&mut reader) == Ok(PerformativeKind::Close) {
            self.phase = Phase::Closed;
            self.phase_deadline = None;
        }
        Ok(Progress::Nothing)
    }

    #[inline]
    fn step_running<'a>(
        &mut self,
        input: &mut &'a [u8],
        out: &mut BytesMut,
        event: &mut Option<Event<'a>>,
    ) -> Result<Progress, Fault> {
        let start = *input;
        let Some(frame) = Self::next_frame(input, &self.config)? else {
            return Ok(Progress::Blocked);
        };
        let Phase::Running(running) = &mut self.phase else {
            debug_assert!(false, "the caller matched the phase");
            return Ok(Progress::Blocked);
        };
        if frame.channel > running.negotiated.channel_max {
            return Err(Fault::connection(
                Condition::FramingError,
                format_args!(
                    "channel {} is above channel-max {}",
                    frame.channel, running.negotiated.channel_max
                ),
            ));
        }
        let mut reader = Reader::new(frame.body);
        let kind = PerformativeKind::read(&mut reader)
            .map_err(|error| as_connection_fault(Fault::decode(error)))?;
        match kind {
            PerformativeKind::Open => {
                return Err(Fault::connection(Condition::IllegalState, "a second open"));
            }
            PerformativeKind::Close => {
                let close = Close::read_body(&mut reader)
                    .map_err(|error| as_connection_fault(Fault::decode(error)))?;
                self.flush_sessions(out);
                encode_frame(out, 0, &Close { error: None });
                self.phase = Phase::Closed;
                self.phase_deadline = None;
                *event = Some(Event::Closed {
                    cause: Cause::Peer(close.error),
                });
                return Ok(Progress::Event);
            }
            PerformativeKind::Begin => {
                let begin = Begin::read_body(&mut reader)
                    .map_err(|error| as_connection_fault(Fault::decode(error)))?;
                *event = self.on_begin(frame.channel, begin, out)?;
                return Ok(match event {
                    Some(_) => Progress::Event,
                    None => Progress::Nothing,
                });
            }
            _ => {}
        }
        let Some(channel) = running.find(frame.channel) else {
            return Err(Fault::connection(
                Condition::IllegalState,
                format_args!(
                    "{} on channel {}, which has no session",
                    kind.name(),
                    frame.channel
                ),
            ));
        };
        let (Some(session), mut io) = with_session!(self, running, out, channel) else {
            debug_assert!(false, "a mapped channel has a session");
            return Ok(Progress::Nothing);
        };
        let id = session.id;
        if kind == PerformativeKind::End {
            let end = End::read_body(&mut reader)
                .map_err(|error| as_connection_fault(Fault::decode(error)))?;
            let was_ending = session.phase == SessionPhase::Ending;
            if !was_ending {
                session.flush(&mut io);
                session.clear(&mut io);
                write_end(&mut io, channel, None);
            }
            running.sessions[usize::from(channel)] = None;
            running.channels[usize::from(frame.channel)] = None;
            if was_ending {
                return Ok(Progress::Nothing);
            }
            *event = Some(Event::SessionEnded {
                session: id,
                cause: Cause::Peer(end.error),
            });
            return Ok(Progress::Event);
        }
        if session.phase == SessionPhase::Ending {
            // Sent before the peer knew of our end.
            return Ok(Progress::Nothing);
        }
        match session.handle(kind, &mut reader, &mut io, event) {
            Ok(placed) => {
                if std::mem::take(&mut session.has_window_opened) {
                    self.window_opened = Some(id);
                }
                Ok(match placed {
                    Placed::Nothing => Progress::Nothing,
                    Placed::Event => Progress::Event,
                    Placed::Again => {
                        *input = start;
                        Progress::Event
                    }
                })
            }
            Err(fault) if fault.level == Level::Session => {
                session.clear(&mut io);
                session.phase = SessionPhase::Ending;
                write_end(&mut io, channel, Some(&fault.to_error()));
                *event = Some(Event::SessionEnded {
                    session: id,
                    cause: Cause::Fault(fault),
                });
                Ok(Progress::Event)
            }
            Err(fault) => Err(fault),
        }
    }

    fn on_begin<'a>(
        &mut self,
        remote: u16,
        begin: Begin<'a>,
        out: &mut BytesMut,
    ) -> Result<Option<Event<'a>>, Fault> {
        let Phase::Running(running) = &mut self.phase else {
            debug_assert!(false, "the caller matched the phase");
            return Ok(None);
        };
        if running.find(remote).is_some() {
            return Err(Fault::connection(
                Condition::IllegalState,
                format_args!("begin on channel {remote}, which has a session"),
            ));
        }
        if let Some(own) = begin.remote_channel {
            let (session, _) = with_session!(self, running, out, own);
            let Some(session) = session.filter(|session| session.phase == SessionPhase::Beginning)
            else {
                return Err(Fault::connection(
                    Condition::InvalidField,
                    format_args!("begin: field 'remote-channel': channel {own} did not begin"),
                ));
            };
            session.map(remote, &begin);
            let id = session.id;
            running.map_channel(remote, own);
            return Ok(Some(Event::SessionBegun {
                session: id,
                begin: Box::new(begin),
            }));
        }
        // The peer's own number, unless a session of ours has it.
        let is_free = running
            .sessions
            .get(usize::from(remote))
            .is_none_or(Option::is_none);
        let own = match is_free {
            true => remote,
            false => running.free_channel().map_err(|_| {
                Fault::connection(
                    Condition::ResourceLimitExceeded,
                    format_args!(
                        "more sessions than channel-max {} allows",
                        running.negotiated.channel_max
                    ),
                )
            })?,
        };
        let (_, mut io) = with_session!(self, running, out, own);
        let id = SessionId {
            channel: own,
            generation: io.next_generation(),
        };
        let session = Session::answer(id, remote, &begin, self.is_blocked, &mut io);
        running.insert(session);
        running.map_channel(remote, own);
        Ok(Some(Event::SessionBegun {
            session: id,
            begin: Box::new(begin),
        }))
    }

    /// Sends a close with the error, if there is a layer for it.
    fn fail(&mut self, fault: &Fault, out: &mut BytesMut) {
        match &mut self.phase {
            Phase::Handshake(_) | Phase::Closing | Phase::Closed => {
                self.phase = Phase::Closed;
                self.phase_deadline = None;
            }
            Phase::Opening(opening) => {
                if !opening.is_sent {
                    write_open(
                        &self.config,
                        self.config.channel_max,
                        OpenReply::default(),
                        out,
                    );
                }
                self.write_close(Some(&fault.to_error()), out);
            }
            Phase::Running(_) => {
                self.flush_sessions(out);
                self.write_close(Some(&fault.to_error()), out);
            }
        }
    }

    fn write_close(&mut self, error: Option<&AmqpError<'_>>, out: &mut BytesMut) {
        let start = out.len();
        encode_frame(
            out,
            0,
            &Close {
                error: error.cloned(),
            },
        );
        if out.len() - start > MIN_MAX_FRAME_SIZE as usize {
            out.truncate(start);
            let short = error.map(|error| AmqpError {
                condition: match error.condition {
                    Condition::Other(_) => Condition::InternalError,
                    standard => standard,
                },
                description: error.description.map(crate::error::shortened),
                info: None,
            });
            encode_frame(out, 0, &Close { error: short });
        }
        self.phase = Phase::Closing;
        self.phase_deadline = Some(self.now.saturating_add(self.config.close_timeout));
    }

    fn flush_sessions(&mut self, out: &mut BytesMut) {
        let Phase::Running(running) = &mut self.phase else {
            return;
        };
        for channel in 0..running.sessions.len() {
            let (session, mut io) = with_session!(self, running, out, channel as u16);
            if let Some(session) = session
                && session.phase == SessionPhase::Mapped
            {
                session.flush(&mut io);
            }
        }
    }

    // Time.

    /// Handles the time. Call it at [`Connection::deadline`] or later.
    pub fn tick(&mut self, now: Millis, out: &mut BytesMut) -> Option<Event<'static>> {
        self.now = now;
        let before = out.len();
        let event = self.tick_at(now, out);
        self.note_output(before, out);
        event
    }

    fn tick_at(&mut self, now: Millis, out: &mut BytesMut) -> Option<Event<'static>> {
        if self.phase_deadline.is_some_and(|deadline| now >= deadline) {
            self.phase_deadline = None;
            let was_closing = matches!(self.phase, Phase::Closing);
            self.phase = Phase::Closed;
            // The end of a close that we started is nothing new to the broker.
            return (!was_closing).then(|| Event::Closed {
                cause: Cause::Fault(Fault::connection(
                    Condition::ResourceLimitExceeded,
                    "the connection was not opened in time",
                )),
            });
        }
        let Phase::Running(running) = &self.phase else {
            return None;
        };
        let interval = running.negotiated.heartbeat_interval;
        let timeout = self.config.idle_timeout;
        if timeout > 0 && now >= self.last_received.saturating_add(timeout) {
            let fault = Fault::connection(
                Condition::ResourceLimitExceeded,
                format_args!("nothing was received for {timeout} ms"),
            );
            self.fail(&fault, out);
            return Some(Event::Closed {
                cause: Cause::Fault(fault),
            });
        }
        if interval > 0 && now >= self.last_sent.saturating_add(interval) {
            encode_heartbeat(out);
        }
        None
    }

    /// States that the peer need not have sent anything until `now`, because it was not read.
    pub fn excuse_silence(&mut self, now: Millis) {
        self.last_received = now;
    }

    /// The next time at which [`Connection::tick`] has something to do.
    pub fn deadline(&self) -> Option<Millis> {
        let Phase::Running(running) = &self.phase else {
            return self.phase_deadline;
        };
        let interval = running.negotiated.heartbeat_interval;
        let heartbeat = (interval > 0).then(|| self.last_sent.saturating_add(interval));
        let timeout = self.config.idle_timeout;
        let idle = (timeout > 0).then(|| self.last_received.saturating_add(timeout));
        heartbeat.into_iter().chain(idle).min()
    }

    // Commands of the handshake.

    /// Answers a SASL message.
    pub fn answer_sasl(
        &mut self,
        _pending: PendingSasl,
        decision: SaslDecision<'_>,
        out: &mut BytesMut,
    ) {
        let Phase::Handshake(handshake) = &mut self.phase else {
            // The handshake timed out meanwhile.
            return;
        };
        if !handshake.answer(decision, out) {
            self.phase = Phase::Closed;
            self.phase_deadline = None;
            self.pending_close = Some(Box::new(Fault::connection(
                Condition::UnauthorizedAccess,
                "SASL authentication failed",
            )));
        }
    }

    /// Accepts an open. Fails if the answer does not fit in the peer's frames; [`Connection::refuse_open`] cannot follow then, and
    /// the connection is closed.
    pub fn accept_open(
        &mut self,
        _pending: PendingOpen,
        reply: OpenReply<'_>,
        out: &mut BytesMut,
    ) -> Result<(), CommandError> {
        let Phase::Opening(Opening {
            deciding: Some(negotiated),
            ..
        }) = &self.phase
        else {
            return Err(CommandError::NotRunning);
        };
        let negotiated = *negotiated;
        write_fitting_open(&self.config, &negotiated, reply, out);
        self.phase = Phase::Running(Running::new(negotiated));
        self.phase_deadline = None;
        self.last_sent = self.now;
        Ok(())
    }

    /// Refuses an open: answers it, because a close must not be the first frame, and closes.
    pub fn refuse_open(
        &mut self,
        _pending: PendingOpen,
        reply: OpenReply<'_>,
        error: &AmqpError<'_>,
        out: &mut BytesMut,
    ) {
        if let Phase::Opening(Opening {
            deciding: Some(negotiated),
            ..
        }) = &self.phase
        {
            write_fitting_open(&self.config, negotiated, reply, out);
            self.write_close(Some(error), out);
        }
    }

    /// Closes the connection.
    pub fn close(
        &mut self,
        error: Option<&AmqpError<'_>>,
        out: &mut BytesMut,
    ) -> Result<(), CommandError> {
        if !matches!(self.phase, Phase::Running(_)) {
            return Err(CommandError::NotRunning);
        }
        self.flush_sessions(out);
        self.write_close(error, out);
        self.last_sent = self.now;
        Ok(())
    }

    // Commands of sessions and links.

    fn session<'s, 'o: 's>(
        &'s mut self,
        id: SessionId,
        out: &'o mut BytesMut,
    ) -> Result<(&'s mut Session, Io<'s>), CommandError> {
        self.last_sent = self.now;
        let Phase::Running(running) = &mut self.phase else {
            return Err(CommandError::NotRunning);
        };
        match with_session!(self, running, out, id.channel) {
            (Some(session), io) if session.id == id && session.phase == SessionPhase::Mapped => {
                Ok((session, io))
            }
            _ => Err(CommandError::Gone),
        }
    }

    #[inline]
    fn session_of<'s, 'o: 's>(
        &'s mut self,
        link: LinkId,
        out: &'o mut BytesMut,
    ) -> Result<(&'s mut Session, Io<'s>), CommandError> {
        self.last_sent = self.now;
        let Phase::Running(running) = &mut self.phase else {
            return Err(CommandError::NotRunning);
        };
        match with_session!(self, running, out, link.channel) {
            (Some(session), io) if session.phase == SessionPhase::Mapped => Ok((session, io)),
            _ => Err(CommandError::Gone),
        }
    }

    /// Begins a session.
    pub fn begin_session(&mut self, out: &mut BytesMut) -> Result<SessionId, CommandError> {
        self.last_sent = self.now;
        let Phase::Running(running) = &mut self.phase else {
            return Err(CommandError::NotRunning);
        };
        let channel = running.free_channel()?;
        let (_, mut io) = with_session!(self, running, out, channel);
        let id = SessionId {
            channel,
            generation: io.next_generation(),
        };
        let session = Session::begin(id, self.is_blocked, &mut io);
        running.insert(session);
        Ok(id)
    }

    /// Ends a session. The engine forgets everything of it.
    pub fn end_session(
        &mut self,
        id: SessionId,
        error: Option<&AmqpError<'_>>,
        out: &mut BytesMut,
    ) -> Result<(), CommandError> {
        let (session, mut io) = self.session(id, out)?;
        session.flush(&mut io);
        session.clear(&mut io);
        session.phase = SessionPhase::Ending;
        write_end(&mut io, id.channel, error);
        if self.window_opened == Some(id) {
            self.window_opened = None;
        }
        Ok(())
    }

    /// Attaches a link. The role is that of the engine; handle and initial delivery count are filled in. `link_credit` is the credit that a
    /// receiving link grants and renews: None for the configured credit, 0 to leave it to [`Connection::grant_credit`].
    pub fn attach(
        &mut self,
        session: SessionId,
        attach: &Attach<'_>,
        link_credit: Option<u32>,
        out: &mut BytesMut,
    ) -> Result<LinkId, CommandError> {
        let (session, mut io) = self.session(session, out)?;
        session.attach(attach, link_credit, &mut io)
    }

    /// Accepts an attach.
    pub fn accept_attach(
        &mut self,
        pending: PendingAttach,
        reply: &AttachReply<'_>,
        out: &mut BytesMut,
    ) -> Result<Attached, CommandError> {
        let (session, mut io) = self.session_of(pending.link, out)?;
        let accepted = session.accept_attach(pending.link, reply, &mut io);
        if accepted == Err(CommandError::FrameTooLarge) {
            let error = AmqpError::new(
                Condition::FrameSizeTooSmall,
                "the attach does not fit in the max-frame-size",
            );
            session.detach(pending.link, true, Some(&error), &mut io)?;
        }
        accepted
    }

    /// Refuses an attach: attaches without a terminus and detaches with the error (section 2.6.3).
    pub fn refuse_attach(
        &mut self,
        pending: PendingAttach,
        error: &AmqpError<'_>,
        out: &mut BytesMut,
    ) -> Result<(), CommandError> {
        let (session, mut io) = self.session_of(pending.link, out)?;
        session.detach(pending.link, true, Some(error), &mut io)
    }

    /// Detaches a link. The engine forgets everything of it.
    pub fn detach(
        &mut self,
        link: LinkId,
        closed: bool,
        error: Option<&AmqpError<'_>>,
        out: &mut BytesMut,
    ) -> Result<(), CommandError> {
        let (session, mut io) = self.session_of(link, out)?;
        session.detach(link, closed, error, &mut io)
    }

    /// Sends a message on a sending link and returns its delivery id. A message that the peer's window or the output has no room
    /// for is continued by later calls of [`Connection::poll`] and [`Connection::flush`].
    #[inline]
    pub fn send<P: MessagePart>(
        &mut self,
        link: LinkId,
        delivery: &OutgoingDeliveryOf<'_, P>,
        out: &mut BytesMut,
    ) -> Result<u32, SendError> {
        let (session, mut io) = self.session_of(link, out)?;
        session.send(link, delivery, &mut io)
    }

    /// Checks that a delivery can be sent now, for brokers that encode messages on demand.
    #[inline]
    pub fn check_send(
        &mut self,
        link: LinkId,
        settled: bool,
        out: &mut BytesMut,
    ) -> Result<(), SendError> {
        let (session, io) = self.session_of(link, out)?;
        session.check_send(link, settled, &io)
    }

    /// Settles a received delivery with a terminal state. Accepted ones are written by [`Connection::flush`], in ranges.
    #[inline]
    pub fn settle_received(
        &mut self,
        link: LinkId,
        id: u32,
        state: &DeliveryState<'_>,
        out: &mut BytesMut,
    ) -> Result<(), CommandError> {
        let (session, mut io) = self.session_of(link, out)?;
        session.settle_received(link, Serial(id), state, &mut io)
    }

    /// Settles sent deliveries whose receiver told their state and left the settlement to the sender.
    pub fn settle_sent(
        &mut self,
        session: SessionId,
        first: u32,
        last: u32,
        state: &DeliveryState<'_>,
        out: &mut BytesMut,
    ) -> Result<(), CommandError> {
        let (session, mut io) = self.session(session, out)?;
        session.settle_sent(Serial(first), Serial(last), state, &mut io);
        Ok(())
    }

    /// Settles the deliveries of a sending link up to and including this token that the peer has not settled.
    pub fn settle_link(
        &mut self,
        link: LinkId,
        up_to: u64,
        state: &DeliveryState<'_>,
        out: &mut BytesMut,
    ) -> Result<(), CommandError> {
        let (session, mut io) = self.session_of(link, out)?;
        session.settle_link(link, up_to, state, &mut io);
        Ok(())
    }

    /// Sets the credit of a receiving link.
    pub fn grant_credit(
        &mut self,
        link: LinkId,
        credit: u32,
        drain: bool,
        out: &mut BytesMut,
    ) -> Result<(), CommandError> {
        let (session, mut io) = self.session_of(link, out)?;
        session.grant_credit(link, credit, drain, &mut io)
    }

    /// Sets the number of messages that a sending link reports as available.
    pub fn set_available(&mut self, link: LinkId, available: u32) -> Result<(), CommandError> {
        let mut nothing = BytesMut::new();
        let (session, _) = self.session_of(link, &mut nothing)?;
        session.set_available(link, available)
    }

    /// Sends the flow state of a link; with `echo` the peer has to answer.
    pub fn report_flow(
        &mut self,
        link: LinkId,
        echo: bool,
        out: &mut BytesMut,
    ) -> Result<(), CommandError> {
        let (session, mut io) = self.session_of(link, out)?;
        session.report_flow(link, echo, &mut io)
    }

    /// Sends the flow state of a sending link with properties of the link's state (section 2.7.4).
    pub fn report_properties(
        &mut self,
        link: LinkId,
        properties: Map<'_>,
        out: &mut BytesMut,
    ) -> Result<(), CommandError> {
        let (session, mut io) = self.session_of(link, out)?;
        session.report_properties(link, properties, &mut io)
    }

    /// Uses up the credit of a sending link whose receiver drains it and for which there are no more messages.
    pub fn drained(&mut self, link: LinkId, out: &mut BytesMut) -> Result<(), CommandError> {
        let (session, mut io) = self.session_of(link, out)?;
        session.drained(link, &mut io)
    }

    /// Stops the renewal of a receiving link's credit, for example while its queue has a backlog, or resumes it.
    pub fn withhold_credit(&mut self, link: LinkId, is_withheld: bool) -> Result<(), CommandError> {
        let mut nothing = BytesMut::new();
        let (session, _) = self.session_of(link, &mut nothing)?;
        session.withhold_credit(link, is_withheld)
    }

    /// Sets the bytes of earlier output that the transport still has to send. They count towards
    /// [`Config::output_limit`].
    pub fn set_backlog(&mut self, bytes: usize) {
        self.backlog = bytes;
    }

    /// Closes the incoming windows of all sessions, or opens them.
    pub fn block_publishers(&mut self, is_blocked: bool, out: &mut BytesMut) {
        self.is_blocked = is_blocked;
        let Phase::Running(running) = &mut self.phase else {
            return;
        };
        for channel in 0..running.sessions.len() {
            let (session, mut io) = with_session!(self, running, out, channel as u16);
            if let Some(session) = session {
                session.block(is_blocked, &mut io);
            }
        }
        self.last_sent = self.now;
    }

    /// Writes collected outcomes, renewed credit, and the rest of messages that waited for room in the output. To be
    /// called at the end of each turn, and when the output was sent.
    pub fn flush(&mut self, now: Millis, out: &mut BytesMut) {
        self.now = now;
        let before = out.len();
        self.flush_sessions(out);
        self.note_output(before, out);
    }

    // State.

    /// Returns true while a decision of the broker is pending, so that no input is read.
    pub fn is_deciding(&self) -> bool {
        match &self.phase {
            Phase::Handshake(handshake) => handshake.is_deciding(),
            Phase::Opening(opening) => opening.deciding.is_some(),
            _ => false,
        }
    }

    /// Returns true between the open and the close.
    pub fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Running(_))
    }

    /// Returns true if nothing more is read or written, so that the transport can be closed once the output is sent.
    pub fn is_closed(&self) -> bool {
        matches!(self.phase, Phase::Closed)
    }

    /// Bytes of messages whose last transfer has not come.
    pub fn unfinished_size(&self) -> usize {
        match &self.phase {
            Phase::Running(running) => running.unfinished_size,
            _ => 0,
        }
    }

    /// The mapped sessions.
    pub fn sessions(&self) -> impl Iterator<Item = SessionState> {
        let sessions = match &self.phase {
            Phase::Running(running) => &running.sessions[..],
            _ => &[],
        };
        sessions
            .iter()
            .flatten()
            .filter(|session| session.phase == SessionPhase::Mapped)
            .map(|session| session.state())
    }
}

/// The result of a step.
enum Progress {
    Blocked,
    Nothing,
    /// There is an event.
    Event,
}

/// An error in a frame that no session handles.
fn as_connection_fault(fault: Fault) -> Fault {
    Fault {
        level: Level::Connection,
        ..fault
    }
}

/// Writes an answer to an open that fits in the peer's frames.
fn write_fitting_open(
    config: &Config,
    negotiated: &Negotiated,
    reply: OpenReply<'_>,
    out: &mut BytesMut,
) {
    let start = out.len();
    write_open(config, negotiated.channel_max, reply, out);
    if out.len() - start > negotiated.max_frame_size {
        // Properties are for people; the connection works without them.
        out.truncate(start);
        let reply = OpenReply {
            properties: None,
            ..reply
        };
        write_open(config, negotiated.channel_max, reply, out);
    }
}

fn write_open(config: &Config, channel_max: u16, reply: OpenReply<'_>, out: &mut BytesMut) {
    let hostname = match &config.peer {
        Peer::Client { hostname, .. } => hostname.as_deref(),
        Peer::Server { .. } => None,
    };
    // The peer is told half of the timeout (section 2.4.5).
    let idle = u32::try_from(config.idle_timeout / 2).unwrap_or(u32::MAX);
    let open = Open {
        container_id: &config.container_id,
        hostname,
        max_frame_size: config.max_frame_size,
        channel_max,
        idle_time_out: Some(idle).filter(|idle| *idle > 0),
        outgoing_locales: Multiple::NONE,
        incoming_locales: Multiple::NONE,
        offered_capabilities: reply.offered_capabilities,
        desired_capabilities: Multiple::NONE,
        properties: reply.properties,
    };
    encode_frame(out, 0, &open);
}
