use bytes::{Bytes, BytesMut};
use codec_amqp10::{
    AmqpError, Attach, Begin, Condition, DeliveryState, Detach, Disposition, Encode, End, Flow,
    Multiple, PerformativeKind, Reader, ReceiverSettleMode, Role, SenderSettleMode, Transfer,
    encode_frame, encode_transfer_frame,
};
use smallvec::SmallVec;

use crate::deliveries::Deliveries;
use crate::link::{
    Attaching, EarlyFlow, INITIAL_DELIVERY_COUNT, Identity, Link, Unfinished, receiver_limits,
};
use crate::serial::remote_window;
use crate::{
    AttachReply, Attached, Cause, CommandError, Config, CreditState, Event, Fault,
    IncomingDelivery, LinkId, LinkState, OutgoingDelivery, Payload, PendingAttach, SendError,
    Serial, SessionId, SettledDelivery, ShortBytes,
};

/// Transfer id of the first transfer of a session. Arbitrary (section 2.5.6), and close to the wrap.
const INITIAL_OUTGOING_ID: Serial = Serial(u32::MAX - 3);
/// Our own window: transfers are limited by the peer's window and by the output (section 2.5.6 leaves the value to us).
const OUTGOING_WINDOW: u32 = u32::MAX;
/// Ranges of accepted deliveries that are collected before they are written.
const MAX_RANGES: usize = 64;

/// The parts of the connection that a session uses.
pub(crate) struct Io<'c> {
    pub(crate) out: &'c mut BytesMut,
    /// Bytes of earlier output that the transport still has to send.
    pub(crate) backlog: usize,
    pub(crate) config: &'c Config,
    /// The largest frame that may be sent.
    pub(crate) max_frame_size: usize,
    /// Bytes of all messages of the connection whose last transfer has not come.
    pub(crate) unfinished_size: &'c mut usize,
    /// The generation of the last link or session.
    pub(crate) generation: &'c mut u32,
}

impl Io<'_> {
    /// Appends a frame, unless the peer would not accept its size.
    pub(crate) fn write(&mut self, channel: u16, body: &impl Encode) -> Result<(), CommandError> {
        let start = self.out.len();
        encode_frame(self.out, channel, body);
        if self.out.len() - start > self.max_frame_size {
            self.out.truncate(start);
            return Err(CommandError::FrameTooLarge);
        }
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.backlog + self.out.len() >= self.config.output_limit
    }

    pub(crate) fn next_generation(&mut self) -> u32 {
        *self.generation = self.generation.wrapping_add(1);
        *self.generation
    }
}

/// Appends a frame of a few numbers, which fits in every frame size.
fn write_small(io: &mut Io<'_>, channel: u16, body: &impl Encode) {
    let written = io.write(channel, body);
    debug_assert!(written.is_ok(), "the frame fits in the smallest frame size");
}

/// An error with its description and information left out if the frame would be too large with them.
fn write_error(
    io: &mut Io<'_>,
    channel: u16,
    error: Option<&AmqpError<'_>>,
    write: impl Fn(&mut Io<'_>, u16, Option<AmqpError<'_>>) -> Result<(), CommandError>,
) {
    if write(io, channel, error.cloned()).is_ok() {
        return;
    }
    let short = error.map(|error| AmqpError {
        condition: match error.condition {
            Condition::Other(_) => Condition::InternalError,
            standard => standard,
        },
        description: error.description.map(crate::error::shortened),
        info: None,
    });
    let written = write(io, channel, short);
    debug_assert!(
        written.is_ok(),
        "a shortened error fits in the smallest frame size"
    );
}

fn write_detach(
    io: &mut Io<'_>,
    channel: u16,
    handle: u32,
    closed: bool,
    error: Option<&AmqpError<'_>>,
) {
    write_error(io, channel, error, |io, channel, error| {
        io.write(
            channel,
            &Detach {
                handle,
                closed,
                error,
            },
        )
    });
}

pub(crate) fn write_end(io: &mut Io<'_>, channel: u16, error: Option<&AmqpError<'_>>) {
    write_error(io, channel, error, |io, channel, error| {
        io.write(channel, &End { error })
    });
}

/// The state of a session (section 2.5.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Our begin is sent; the peer's is awaited.
    Beginning,
    /// Both began.
    Mapped,
    /// Our end is sent; frames are discarded until the peer's end.
    Ending,
}

/// A delivery that the peer sent and that is not settled.
#[derive(Debug)]
struct Incoming {
    link: LinkId,
    /// The peer settled first, so that no disposition is to be sent.
    is_settled: bool,
    /// The outcome was sent; the peer settles next (receiver settle mode second).
    is_answered: bool,
}

/// A delivery that the engine sent and that is not settled.
#[derive(Debug)]
struct Outgoing {
    link: LinkId,
    token: u64,
}

/// A message of which some transfers wait for the peer's window or for the output.
#[derive(Debug)]
struct PartialSend {
    link: LinkId,
    id: Serial,
    parts: SmallVec<[Bytes; 3]>,
    sent: usize,
}

/// The result of a frame.
pub(crate) enum Handled<'a> {
    Nothing,
    Event(Event<'a>),
    /// The frame has to be read again after this event.
    Again(Event<'a>),
}

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) phase: Phase,
    pub(crate) remote_channel: Option<u16>,
    next_incoming_id: Serial,
    incoming_window: u32,
    /// Transfers that may still come because the peer did not know that the window was closed.
    window_margin: u32,
    next_outgoing_id: Serial,
    remote_incoming_window: u32,
    remote_outgoing_window: u32,
    remote_handle_max: u32,
    next_delivery_id: Serial,
    last_incoming_delivery: Option<Serial>,
    /// By own handle.
    links: Vec<Option<Link>>,
    /// The peer's handles in order, with ours.
    handles: Vec<(u32, u16)>,
    incoming: Deliveries<Incoming>,
    outgoing: Deliveries<Outgoing>,
    partial: Option<Box<PartialSend>>,
    /// Accepted deliveries of which the peer was not told.
    accepted: SmallVec<[(Serial, Serial); 4]>,
    is_blocked: bool,
    is_credit_due: bool,
    /// The broker was refused for a closed window.
    is_window_awaited: bool,
    /// The broker has to be told that the window opened.
    pub(crate) has_window_opened: bool,
}

impl Session {
    fn new(id: SessionId, is_blocked: bool, config: &Config) -> Self {
        Self {
            id,
            phase: Phase::Beginning,
            remote_channel: None,
            next_incoming_id: Serial(0),
            incoming_window: if is_blocked {
                0
            } else {
                config.incoming_window
            },
            window_margin: 0,
            next_outgoing_id: INITIAL_OUTGOING_ID,
            remote_incoming_window: 0,
            remote_outgoing_window: 0,
            remote_handle_max: 0,
            next_delivery_id: Serial(0),
            last_incoming_delivery: None,
            links: Vec::new(),
            handles: Vec::new(),
            incoming: Deliveries::default(),
            outgoing: Deliveries::default(),
            partial: None,
            accepted: SmallVec::new(),
            is_blocked,
            is_credit_due: false,
            is_window_awaited: false,
            has_window_opened: false,
        }
    }

    /// Begins a session.
    pub(crate) fn begin(id: SessionId, is_blocked: bool, io: &mut Io<'_>) -> Self {
        let session = Self::new(id, is_blocked, io.config);
        session.write_begin(None, io);
        session
    }

    /// Answers the peer's begin.
    pub(crate) fn answer(
        id: SessionId,
        remote_channel: u16,
        begin: &Begin<'_>,
        is_blocked: bool,
        io: &mut Io<'_>,
    ) -> Self {
        let mut session = Self::new(id, is_blocked, io.config);
        session.map(remote_channel, begin);
        session.write_begin(Some(remote_channel), io);
        session
    }

    /// Takes over the peer's begin.
    pub(crate) fn map(&mut self, remote_channel: u16, begin: &Begin<'_>) {
        debug_assert_eq!(self.phase, Phase::Beginning);
        self.phase = Phase::Mapped;
        self.remote_channel = Some(remote_channel);
        self.next_incoming_id = Serial(begin.next_outgoing_id);
        self.remote_incoming_window = begin.incoming_window;
        self.remote_outgoing_window = begin.outgoing_window;
        self.remote_handle_max = begin.handle_max;
    }

    fn write_begin(&self, remote_channel: Option<u16>, io: &mut Io<'_>) {
        let begin = Begin {
            remote_channel,
            next_outgoing_id: self.next_outgoing_id.0,
            incoming_window: self.incoming_window,
            outgoing_window: OUTGOING_WINDOW,
            handle_max: u32::from(io.config.handle_max),
            offered_capabilities: Multiple::NONE,
            desired_capabilities: Multiple::NONE,
            properties: None,
        };
        write_small(io, self.id.channel, &begin);
    }

    pub(crate) fn state(&self) -> SessionState {
        SessionState {
            session: self.id,
            next_incoming_id: self.next_incoming_id,
            incoming_window: self.incoming_window,
            next_outgoing_id: self.next_outgoing_id,
            remote_incoming_window: self.remote_incoming_window,
            remote_outgoing_window: self.remote_outgoing_window,
            unsettled_incoming: self.incoming.len(),
            unsettled_outgoing: self.outgoing.len(),
            links: self
                .links
                .iter()
                .flatten()
                .filter_map(LinkState::of)
                .collect(),
        }
    }

    /// Reads the fields of a frame and handles them.
    #[inline]
    pub(crate) fn handle<'a>(
        &mut self,
        kind: PerformativeKind,
        reader: &mut Reader<'a>,
        io: &mut Io<'_>,
    ) -> Result<Handled<'a>, Fault> {
        match kind {
            PerformativeKind::Transfer => {
                let transfer = Transfer::read_body(reader).map_err(Fault::decode)?;
                self.on_transfer(transfer, reader.rest(), io)
            }
            PerformativeKind::Disposition => {
                let disposition = Disposition::read_body(reader).map_err(Fault::decode)?;
                self.on_disposition(disposition)
            }
            PerformativeKind::Flow => {
                let flow = Flow::read_body(reader).map_err(Fault::decode)?;
                self.on_flow(&flow, io)
            }
            PerformativeKind::Attach => {
                let attach = Attach::read_body(reader).map_err(Fault::decode)?;
                self.on_attach(attach, io)
            }
            PerformativeKind::Detach => {
                let detach = Detach::read_body(reader).map_err(Fault::decode)?;
                Ok(self.on_detach(detach, io))
            }
            PerformativeKind::Open
            | PerformativeKind::Begin
            | PerformativeKind::End
            | PerformativeKind::Close => {
                debug_assert!(false, "the connection handles these");
                Ok(Handled::Nothing)
            }
        }
    }

    fn find(&self, remote_handle: u32) -> Option<u16> {
        // A session has few links, so the first comparison usually decides.
        let at = self
            .handles
            .binary_search_by_key(&remote_handle, |(remote, _)| *remote)
            .ok()?;
        Some(self.handles[at].1)
    }

    fn link_mut(&mut self, id: LinkId) -> Result<&mut Link, CommandError> {
        match self.links.get_mut(usize::from(id.handle)) {
            Some(Some(link)) if link.id() == id => Ok(link),
            _ => Err(CommandError::Gone),
        }
    }

    fn unattached(handle: u32, frame: &str) -> Fault {
        Fault::session(
            Condition::UnattachedHandle,
            format_args!("{frame}: handle {handle} is not attached"),
        )
    }

    /// Detaches a link because of an error of the peer.
    fn fail_link(&mut self, handle: u16, fault: Fault, io: &mut Io<'_>) -> Event<'static> {
        let link = self.start_detach(handle, true, Some(&fault.to_error()), io);
        Event::LinkDetached {
            link,
            closed: true,
            cause: Cause::Fault(fault),
        }
    }

    /// Sends a detach and forgets everything of the link but its handle.
    fn start_detach(
        &mut self,
        handle: u16,
        closed: bool,
        error: Option<&AmqpError<'_>>,
        io: &mut Io<'_>,
    ) -> LinkId {
        self.write_dispositions(io);
        let slot = self.links[usize::from(handle)].take();
        let id = slot.as_ref().map(Link::id);
        debug_assert!(id.is_some(), "the caller found the link");
        let id = id.unwrap_or(LinkId {
            channel: self.id.channel,
            handle,
            generation: 0,
        });
        self.forget_deliveries(id, slot.as_ref(), io);
        if let Some(Link::Attaching(link)) = &slot
            && !link.is_ours
        {
            // The peer learns our handle from the attach (section 2.6.3).
            write_small_attach(io, link);
        }
        write_detach(io, self.id.channel, id.handle(), closed, error);
        self.links[usize::from(handle)] = Some(Link::Detaching(id));
        id
    }

    /// Removes the deliveries and buffers of a link.
    fn forget_deliveries(&mut self, id: LinkId, link: Option<&Link>, io: &mut Io<'_>) {
        if let Some(Link::Receiver(link)) = link
            && let Some(unfinished) = &link.unfinished
        {
            *io.unfinished_size -= unfinished.payload.len();
        }
        if self
            .partial
            .as_ref()
            .is_some_and(|partial| partial.link == id)
        {
            self.partial = None;
        }
        self.incoming.retain(|delivery| delivery.link != id);
        self.outgoing.retain(|delivery| delivery.link != id);
    }

    /// Removes all links and deliveries, and returns their bytes to the connection's limits.
    pub(crate) fn clear(&mut self, io: &mut Io<'_>) {
        for link in self.links.drain(..).flatten() {
            if let Link::Receiver(link) = &link
                && let Some(unfinished) = &link.unfinished
            {
                *io.unfinished_size -= unfinished.payload.len();
            }
        }
        self.handles = Vec::new();
        self.links = Vec::new();
        self.incoming = Deliveries::default();
        self.outgoing = Deliveries::default();
        self.partial = None;
        self.accepted.clear();
        self.has_window_opened = false;
    }

    // Attach and detach (sections 2.6.3 to 2.6.6).

    fn on_attach<'a>(&mut self, attach: Attach<'a>, io: &mut Io<'_>) -> Result<Handled<'a>, Fault> {
        if attach.handle > u32::from(io.config.handle_max) {
            return Err(Fault::connection(
                Condition::FramingError,
                format_args!(
                    "attach: handle {} is above handle-max {}",
                    attach.handle, io.config.handle_max
                ),
            ));
        }
        if self.find(attach.handle).is_some() {
            return Err(Fault::session(
                Condition::HandleInUse,
                format_args!("attach: handle {} is in use", attach.handle),
            ));
        }
        let delivery_count = match (attach.role, attach.initial_delivery_count) {
            (Role::Sender, None) => {
                return Err(Fault::session(
                    Condition::InvalidField,
                    "attach: field 'initial-delivery-count': missing, and mandatory from a sender",
                ));
            }
            (_, count) => Serial(count.unwrap_or(0)),
        };
        let role = attach.role.opposite();
        let named = self.links.iter().position(|link| {
            link.as_ref().and_then(Link::name_and_role) == Some((attach.name, role))
        });
        if let Some(handle) = named {
            let is_answer =
                matches!(&self.links[handle], Some(Link::Attaching(link)) if link.is_ours);
            if is_answer {
                return Ok(self.on_attach_answer(handle as u16, attach, delivery_count, io));
            }
            // The peer attached the link again: the earlier attachment ends (section 2.6.1).
            let fault = Fault::link(
                Condition::Stolen,
                format_args!("link '{}' was attached again", attach.name),
            );
            return Ok(Handled::Again(self.fail_link(handle as u16, fault, io)));
        }
        let handle = self.free_handle().map_err(|_| {
            Fault::session(
                Condition::ResourceLimitExceeded,
                format_args!(
                    "more links than handle-max {} allows",
                    self.remote_handle_max
                ),
            )
        })?;
        let id = LinkId {
            channel: self.id.channel,
            handle,
            generation: io.next_generation(),
        };
        let link = Attaching {
            identity: Identity {
                id,
                remote_handle: attach.handle,
                name: attach.name.into(),
            },
            role,
            is_ours: false,
            snd_settle_mode: attach.snd_settle_mode,
            rcv_settle_mode: attach.rcv_settle_mode,
            remote_delivery_count: delivery_count,
            remote_max_message_size: attach.max_message_size.unwrap_or(0),
            early_flow: None,
            link_credit: 0,
            max_message_size: 0,
        };
        self.links[usize::from(handle)] = Some(Link::Attaching(link));
        self.insert_handle(attach.handle, handle);
        if attach.incomplete_unsettled || attach.unsettled.is_some_and(|map| !map.is_empty()) {
            let error = AmqpError::new(Condition::NotImplemented, "link recovery is not supported");
            self.start_detach(handle, true, Some(&error), io);
            return Ok(Handled::Nothing);
        }
        Ok(Handled::Event(Event::AttachRequested {
            attach: Box::new(attach),
            pending: PendingAttach { link: id },
        }))
    }

    fn on_attach_answer<'a>(
        &mut self,
        handle: u16,
        attach: Attach<'a>,
        delivery_count: Serial,
        io: &mut Io<'_>,
    ) -> Handled<'a> {
        let Some(Link::Attaching(mut link)) = self.links[usize::from(handle)].take() else {
            debug_assert!(false, "the caller found an attaching link");
            return Handled::Nothing;
        };
        let id = link.identity.id;
        link.identity.remote_handle = attach.handle;
        link.snd_settle_mode = attach.snd_settle_mode;
        link.rcv_settle_mode = attach.rcv_settle_mode;
        link.remote_delivery_count = delivery_count;
        link.remote_max_message_size = attach.max_message_size.unwrap_or(0);
        self.insert_handle(attach.handle, handle);
        let attached = match link.role {
            Role::Sender => Link::Sender(link.into_sender().0),
            Role::Receiver => Link::Receiver(link.into_receiver()),
        };
        let grants = matches!(&attached, Link::Receiver(link) if link.credit > 0);
        self.links[usize::from(handle)] = Some(attached);
        if grants {
            self.write_link_flow(handle, false, io);
        }
        Handled::Event(Event::LinkAttached {
            link: id,
            attach: Box::new(attach),
        })
    }

    fn free_handle(&mut self) -> Result<u16, CommandError> {
        let free = self
            .links
            .iter()
            .position(Option::is_none)
            .unwrap_or(self.links.len());
        let handle = u16::try_from(free).map_err(|_| CommandError::LimitReached)?;
        if u32::from(handle) > self.remote_handle_max {
            return Err(CommandError::LimitReached);
        }
        if free == self.links.len() {
            self.links.push(None);
        }
        Ok(handle)
    }

    fn insert_handle(&mut self, remote: u32, own: u16) {
        let at = self.handles.partition_point(|(other, _)| *other < remote);
        debug_assert!(
            self.handles
                .get(at)
                .is_none_or(|(other, _)| *other != remote)
        );
        self.handles.insert(at, (remote, own));
    }

    fn on_detach<'a>(&mut self, detach: Detach<'a>, io: &mut Io<'_>) -> Handled<'a> {
        // Detaches may cross, and a client may answer ours twice. Nothing is to be done for a handle without a link.
        let Some(handle) = self.find(detach.handle) else {
            return Handled::Nothing;
        };
        self.handles.retain(|(remote, _)| *remote != detach.handle);
        let Some(link) = self.links[usize::from(handle)].take() else {
            debug_assert!(false, "a handle has its link");
            return Handled::Nothing;
        };
        let id = link.id();
        if matches!(link, Link::Detaching(_)) {
            return Handled::Nothing;
        }
        self.write_dispositions(io);
        self.forget_deliveries(id, Some(&link), io);
        if let Link::Attaching(link) = &link {
            write_small_attach(io, link);
        }
        write_detach(io, self.id.channel, id.handle(), detach.closed, None);
        Handled::Event(Event::LinkDetached {
            link: id,
            closed: detach.closed,
            cause: Cause::Peer(detach.error),
        })
    }

    /// Attaches a link that the engine starts.
    pub(crate) fn attach(
        &mut self,
        attach: &Attach<'_>,
        link_credit: Option<u32>,
        io: &mut Io<'_>,
    ) -> Result<LinkId, CommandError> {
        if self.phase != Phase::Mapped {
            return Err(CommandError::WrongState);
        }
        let handle = self.free_handle()?;
        let id = LinkId {
            channel: self.id.channel,
            handle,
            generation: io.next_generation(),
        };
        let (link_credit, max_message_size) =
            receiver_limits(io.config, link_credit, attach.max_message_size);
        let is_sender = attach.role == Role::Sender;
        let attach = Attach {
            handle: id.handle(),
            initial_delivery_count: is_sender.then_some(INITIAL_DELIVERY_COUNT.0),
            max_message_size: if is_sender {
                attach.max_message_size
            } else {
                Some(max_message_size)
            },
            ..attach.clone()
        };
        io.write(self.id.channel, &attach)?;
        self.links[usize::from(handle)] = Some(Link::Attaching(Attaching {
            identity: Identity {
                id,
                remote_handle: 0,
                name: attach.name.into(),
            },
            role: attach.role,
            is_ours: true,
            snd_settle_mode: attach.snd_settle_mode,
            rcv_settle_mode: attach.rcv_settle_mode,
            remote_delivery_count: Serial(0),
            remote_max_message_size: 0,
            early_flow: None,
            link_credit,
            max_message_size,
        }));
        Ok(id)
    }

    pub(crate) fn accept_attach(
        &mut self,
        id: LinkId,
        reply: &AttachReply<'_>,
        io: &mut Io<'_>,
    ) -> Result<Attached, CommandError> {
        let Link::Attaching(link) = self.link_mut(id)? else {
            return Err(CommandError::Gone);
        };
        debug_assert!(!link.is_ours, "a pending attach is the peer's");
        let role = link.role;
        match role {
            Role::Sender => {
                if let Some(mode) = reply.snd_settle_mode {
                    link.snd_settle_mode = mode;
                }
            }
            Role::Receiver => {
                link.rcv_settle_mode = reply.rcv_settle_mode.unwrap_or(ReceiverSettleMode::First);
                (link.link_credit, link.max_message_size) =
                    receiver_limits(io.config, reply.link_credit, reply.max_message_size);
            }
        }
        let attach = Attach {
            name: &link.identity.name,
            handle: id.handle(),
            role,
            snd_settle_mode: link.snd_settle_mode,
            rcv_settle_mode: link.rcv_settle_mode,
            source: reply.source.clone(),
            target: reply.target.clone(),
            unsettled: None,
            incomplete_unsettled: false,
            initial_delivery_count: (role == Role::Sender).then_some(INITIAL_DELIVERY_COUNT.0),
            max_message_size: match role {
                Role::Receiver => Some(link.max_message_size),
                Role::Sender => Some(link.remote_max_message_size).filter(|size| *size > 0),
            },
            offered_capabilities: reply.offered_capabilities,
            desired_capabilities: Multiple::NONE,
            properties: reply.properties,
        };
        io.write(id.channel, &attach)?;
        let slot = &mut self.links[usize::from(id.handle)];
        let Some(Link::Attaching(link)) = slot.take() else {
            debug_assert!(false, "the link was found above");
            return Err(CommandError::Gone);
        };
        let mut credit = None;
        match role {
            Role::Sender => {
                let (link, state) = link.into_sender();
                credit = state;
                *slot = Some(Link::Sender(link));
            }
            Role::Receiver => {
                let link = link.into_receiver();
                let grants = link.credit > 0;
                *slot = Some(Link::Receiver(link));
                if grants {
                    self.write_link_flow(id.handle, false, io);
                }
            }
        }
        Ok(Attached { link: id, credit })
    }

    /// Refuses or ends a link.
    pub(crate) fn detach(
        &mut self,
        id: LinkId,
        closed: bool,
        error: Option<&AmqpError<'_>>,
        io: &mut Io<'_>,
    ) -> Result<(), CommandError> {
        if matches!(self.link_mut(id)?, Link::Detaching(_)) {
            return Err(CommandError::Gone);
        }
        if let Link::Attaching(link) = self.link_mut(id)?
            && link.is_ours
        {
            // The peer's handle is not known before its attach.
            return Err(CommandError::WrongState);
        }
        self.start_detach(id.handle, closed, error, io);
        Ok(())
    }

    // Flow (sections 2.5.6 and 2.6.7).

    fn flow(&self) -> Flow<'static> {
        Flow {
            next_incoming_id: Some(self.next_incoming_id.0),
            incoming_window: self.incoming_window,
            next_outgoing_id: self.next_outgoing_id.0,
            outgoing_window: OUTGOING_WINDOW,
            handle: None,
            delivery_count: None,
            link_credit: None,
            available: None,
            drain: false,
            echo: false,
            properties: None,
        }
    }

    fn write_link_flow(&self, handle: u16, echo: bool, io: &mut Io<'_>) {
        let mut flow = self.flow();
        flow.echo = echo;
        match &self.links[usize::from(handle)] {
            Some(Link::Sender(link)) => link.fill(&mut flow),
            Some(Link::Receiver(link)) => link.fill(&mut flow),
            _ => return,
        }
        write_small(io, self.id.channel, &flow);
    }

    fn on_flow<'a>(&mut self, flow: &Flow<'a>, io: &mut Io<'_>) -> Result<Handled<'a>, Fault> {
        let next_incoming = flow.next_incoming_id.map_or(INITIAL_OUTGOING_ID, Serial);
        if next_incoming.since(self.next_outgoing_id) > 0 {
            return Err(Fault::session(
                Condition::WindowViolation,
                format_args!(
                    "flow: field 'next-incoming-id': {} leads next-outgoing-id {}",
                    next_incoming.0, self.next_outgoing_id.0
                ),
            ));
        }
        self.remote_incoming_window =
            remote_window(next_incoming, flow.incoming_window, self.next_outgoing_id);
        self.next_incoming_id = Serial(flow.next_outgoing_id);
        self.remote_outgoing_window = flow.outgoing_window;
        let handled = match flow.handle {
            Some(remote) => {
                let handle = self
                    .find(remote)
                    .ok_or_else(|| Self::unattached(remote, "flow"))?;
                self.on_link_flow(handle, flow, io)
            }
            None if flow.echo => {
                write_small(io, self.id.channel, &self.flow());
                Handled::Nothing
            }
            None => Handled::Nothing,
        };
        self.continue_partial(io);
        if self.is_window_awaited && self.remote_incoming_window > 0 && self.partial.is_none() {
            self.is_window_awaited = false;
            self.has_window_opened = true;
        }
        Ok(handled)
    }

    fn on_link_flow<'a>(&mut self, handle: u16, flow: &Flow<'_>, io: &mut Io<'_>) -> Handled<'a> {
        let count = flow.delivery_count.map(Serial);
        match &mut self.links[usize::from(handle)] {
            Some(Link::Sender(link)) => {
                let state = match flow.link_credit {
                    Some(credit) => link.set_credit(count, credit, flow.drain, flow.echo),
                    None if flow.echo => CreditState {
                        credit: link.credit,
                        drain: link.drain,
                        echo: true,
                    },
                    None => return Handled::Nothing,
                };
                Handled::Event(Event::CreditChanged {
                    link: link.identity.id,
                    state,
                })
            }
            Some(Link::Receiver(link)) => {
                if let Some(count) = count
                    && let Err(fault) = link.follow_sender(count)
                {
                    return Handled::Event(self.fail_link(handle, fault, io));
                }
                self.is_credit_due = true;
                let id = link.identity.id;
                let is_drained = link.drain && flow.drain && link.credit == 0;
                link.drain &= !is_drained;
                let changed = flow
                    .available
                    .filter(|available| *available != link.available);
                link.available = changed.unwrap_or(link.available);
                if flow.echo {
                    self.write_link_flow(handle, false, io);
                }
                match changed {
                    _ if is_drained => Handled::Event(Event::Drained { link: id }),
                    Some(available) => Handled::Event(Event::AvailableChanged {
                        link: id,
                        available,
                    }),
                    None => Handled::Nothing,
                }
            }
            Some(Link::Attaching(link)) => {
                if let (Role::Sender, Some(credit)) = (link.role, flow.link_credit) {
                    link.early_flow = Some(EarlyFlow {
                        delivery_count: count,
                        credit,
                        drain: flow.drain,
                        echo: flow.echo,
                    });
                }
                Handled::Nothing
            }
            Some(Link::Detaching(_)) | None => Handled::Nothing,
        }
    }

    pub(crate) fn grant_credit(
        &mut self,
        id: LinkId,
        credit: u32,
        drain: bool,
        io: &mut Io<'_>,
    ) -> Result<(), CommandError> {
        let Link::Receiver(link) = self.link_mut(id)? else {
            return Err(CommandError::WrongState);
        };
        link.set_credit(credit, drain);
        self.write_link_flow(id.handle, false, io);
        Ok(())
    }

    /// Stops the renewal of a receiving link's credit, or resumes it.
    pub(crate) fn withhold_credit(
        &mut self,
        id: LinkId,
        is_withheld: bool,
    ) -> Result<(), CommandError> {
        let Link::Receiver(link) = self.link_mut(id)? else {
            return Err(CommandError::WrongState);
        };
        link.is_withheld = is_withheld;
        self.is_credit_due |= !is_withheld;
        Ok(())
    }

    pub(crate) fn set_available(&mut self, id: LinkId, available: u32) -> Result<(), CommandError> {
        let Link::Sender(link) = self.link_mut(id)? else {
            return Err(CommandError::WrongState);
        };
        link.available = available;
        Ok(())
    }

    pub(crate) fn report_flow(
        &mut self,
        id: LinkId,
        echo: bool,
        io: &mut Io<'_>,
    ) -> Result<(), CommandError> {
        match self.link_mut(id)? {
            Link::Sender(_) | Link::Receiver(_) => {
                self.write_link_flow(id.handle, echo, io);
                Ok(())
            }
            Link::Attaching(_) | Link::Detaching(_) => Err(CommandError::WrongState),
        }
    }

    pub(crate) fn drained(&mut self, id: LinkId, io: &mut Io<'_>) -> Result<(), CommandError> {
        let is_sending = self
            .partial
            .as_ref()
            .is_some_and(|partial| partial.link == id);
        let Link::Sender(link) = self.link_mut(id)? else {
            return Err(CommandError::WrongState);
        };
        if !link.drain {
            return Ok(());
        }
        if is_sending {
            // The flow must not overtake the transfers of the same link.
            link.is_drain_due = true;
            return Ok(());
        }
        link.use_up_credit();
        self.write_link_flow(id.handle, false, io);
        if let Link::Sender(link) = self.link_mut(id)? {
            link.drain = false;
        }
        Ok(())
    }

    /// Closes the incoming window, or opens it.
    pub(crate) fn block(&mut self, is_blocked: bool, io: &mut Io<'_>) {
        if self.is_blocked == is_blocked || self.phase == Phase::Ending {
            self.is_blocked = is_blocked;
            return;
        }
        self.is_blocked = is_blocked;
        if is_blocked {
            self.window_margin = self.incoming_window;
            self.incoming_window = 0;
        } else {
            self.incoming_window = io.config.incoming_window;
            self.window_margin = 0;
        }
        if self.phase == Phase::Mapped {
            write_small(io, self.id.channel, &self.flow());
        }
    }

    // Incoming transfers (sections 2.6.12 to 2.6.14).

    /// Counts a transfer in the session's windows.
    fn count_transfer(&mut self, io: &mut Io<'_>) -> Result<(), Fault> {
        match (
            self.incoming_window.checked_sub(1),
            self.window_margin.checked_sub(1),
        ) {
            (Some(window), _) => self.incoming_window = window,
            (None, Some(margin)) => self.window_margin = margin,
            (None, None) => {
                return Err(Fault::session(
                    Condition::WindowViolation,
                    "a transfer beyond the incoming window",
                ));
            }
        }
        self.next_incoming_id = self.next_incoming_id.next();
        self.remote_outgoing_window = self.remote_outgoing_window.saturating_sub(1);
        if !self.is_blocked && self.incoming_window <= io.config.incoming_window / 2 {
            self.incoming_window = io.config.incoming_window;
            write_small(io, self.id.channel, &self.flow());
        }
        debug_assert!(self.incoming_window <= io.config.incoming_window);
        Ok(())
    }

    fn on_transfer<'a>(
        &mut self,
        transfer: Transfer<'a>,
        payload: &'a [u8],
        io: &mut Io<'_>,
    ) -> Result<Handled<'a>, Fault> {
        self.count_transfer(io)?;
        let handle = self
            .find(transfer.handle)
            .ok_or_else(|| Self::unattached(transfer.handle, "transfer"))?;
        match &self.links[usize::from(handle)] {
            Some(Link::Receiver(_)) => {}
            Some(Link::Attaching(link)) if link.role == Role::Receiver => {
                let fault = Fault::link(
                    Condition::TransferLimitExceeded,
                    format_args!("link '{}' has no credit for a transfer", link.identity.name),
                );
                return Ok(Handled::Event(self.fail_link(handle, fault, io)));
            }
            Some(Link::Detaching(_)) => return Ok(Handled::Nothing),
            _ => {
                return Err(Fault::session(
                    Condition::NotAllowed,
                    format_args!("transfer: handle {} is a receiver's", transfer.handle),
                ));
            }
        }
        match self.receive(handle, &transfer, payload, io) {
            Ok(Some(event)) => Ok(Handled::Event(event)),
            Ok(None) => Ok(Handled::Nothing),
            Err(fault) if fault.level == crate::Level::Link => {
                Ok(Handled::Event(self.fail_link(handle, fault, io)))
            }
            Err(fault) => Err(fault),
        }
    }

    /// Takes a transfer of an attached receiving link.
    fn receive<'a>(
        &mut self,
        handle: u16,
        transfer: &Transfer<'a>,
        payload: &'a [u8],
        io: &mut Io<'_>,
    ) -> Result<Option<Event<'a>>, Fault> {
        let Some(Link::Receiver(link)) = &mut self.links[usize::from(handle)] else {
            return Ok(None);
        };
        let id = link.identity.id;
        let settled = link.check_modes(transfer)?;
        if transfer.resume {
            return Err(Fault::link(
                Condition::NotImplemented,
                "transfer: field 'resume': link recovery is not supported",
            ));
        }
        let transaction = match &transfer.state {
            Some(DeliveryState::Transactional(state)) => {
                Some(ShortBytes::new(state.txn_id).ok_or_else(|| {
                    Fault::link(
                        Condition::TransactionUnknownId,
                        "transfer: no transaction has an id of more than 32 bytes",
                    )
                })?)
            }
            _ => None,
        };
        let Some(mut unfinished) = link.unfinished.take() else {
            return self.receive_first(handle, transfer, settled, transaction, payload, io);
        };
        let held = unfinished.payload.len();
        let appended = if transfer.aborted {
            Ok(())
        } else {
            crate::link::ReceiverLink::check_continuation(&unfinished, transfer).and_then(|()| {
                check_size(held, payload.len(), link.max_message_size)?;
                check_unfinished(*io.unfinished_size, payload.len(), transfer.more, io.config)
            })
        };
        if let Err(fault) = appended {
            link.unfinished = Some(unfinished);
            return Err(fault);
        }
        if transfer.aborted {
            *io.unfinished_size -= held;
            link.unsettled -= 1;
            self.incoming.take(unfinished.id);
            self.is_credit_due = true;
            return Ok(None);
        }
        unfinished.settled |= settled;
        unfinished.transaction = transaction.or(unfinished.transaction);
        unfinished.payload.extend_from_slice(payload);
        if transfer.more {
            *io.unfinished_size += payload.len();
            link.unfinished = Some(unfinished);
            return Ok(None);
        }
        *io.unfinished_size -= held;
        if unfinished.settled
            && let Some(incoming) = self.incoming.get_mut(unfinished.id)
        {
            incoming.is_settled = true;
        }
        let unfinished = *unfinished;
        Ok(Some(Event::MessageReceived {
            link: id,
            delivery: IncomingDelivery {
                id: unfinished.id.0,
                tag: unfinished.tag,
                message_format: unfinished.message_format,
                settled: unfinished.settled,
                transaction: unfinished.transaction,
                payload: Payload::Collected(unfinished.payload),
            },
        }))
    }

    fn receive_first<'a>(
        &mut self,
        handle: u16,
        transfer: &Transfer<'a>,
        settled: bool,
        transaction: Option<ShortBytes>,
        payload: &'a [u8],
        io: &mut Io<'_>,
    ) -> Result<Option<Event<'a>>, Fault> {
        let Some(Link::Receiver(link)) = &mut self.links[usize::from(handle)] else {
            return Ok(None);
        };
        let missing = |field: &str| {
            format!("transfer: field '{field}': missing in the first transfer of a delivery")
        };
        let Some(id) = transfer.delivery_id.map(Serial) else {
            return Err(Fault::session(
                Condition::InvalidField,
                missing("delivery-id"),
            ));
        };
        if self
            .last_incoming_delivery
            .is_some_and(|last| id.since(last) <= 0)
            || !self.incoming.can_push(id)
        {
            return Err(Fault::session(
                Condition::InvalidField,
                format_args!(
                    "transfer: field 'delivery-id': {} is not after earlier ones",
                    id.0
                ),
            ));
        }
        let Some(tag) = transfer.delivery_tag.and_then(ShortBytes::new) else {
            return Err(Fault::link(
                Condition::InvalidField,
                missing("delivery-tag"),
            ));
        };
        link.use_credit()?;
        check_size(0, payload.len(), link.max_message_size)?;
        check_unfinished(*io.unfinished_size, payload.len(), transfer.more, io.config)?;
        self.last_incoming_delivery = Some(id);
        if transfer.aborted {
            self.is_credit_due = true;
            return Ok(None);
        }
        let link_id = link.identity.id;
        link.unsettled += 1;
        self.incoming.push(
            id,
            Incoming {
                link: link_id,
                is_settled: settled,
                is_answered: false,
            },
        );
        let message_format = transfer.message_format.unwrap_or(0);
        if transfer.more {
            *io.unfinished_size += payload.len();
            link.unfinished = Some(Box::new(Unfinished {
                id,
                tag,
                message_format,
                settled,
                transaction,
                payload: payload.to_vec(),
            }));
            return Ok(None);
        }
        Ok(Some(Event::MessageReceived {
            link: link_id,
            delivery: IncomingDelivery {
                id: id.0,
                tag,
                message_format,
                settled,
                transaction,
                payload: Payload::Frame(payload),
            },
        }))
    }

    // Settlement (section 2.6.12).

    fn on_disposition<'a>(&mut self, disposition: Disposition<'a>) -> Result<Handled<'a>, Fault> {
        let Disposition {
            role,
            first,
            last,
            settled,
            state,
            ..
        } = disposition;
        let first = Serial(first);
        let last = last.map_or(first, Serial);
        if last.since(first) < 0 {
            return Err(Fault::session(
                Condition::InvalidField,
                format_args!(
                    "disposition: field 'last': {} is before {}",
                    last.0, first.0
                ),
            ));
        }
        if role == Role::Sender {
            if settled {
                self.settled_by_sender(first, last);
            }
            return Ok(Handled::Nothing);
        }
        if !settled && !state.as_ref().is_some_and(DeliveryState::is_terminal) {
            return Ok(Handled::Nothing);
        }
        let mut deliveries = SmallVec::new();
        self.outgoing.visit_range(first, last, |id, delivery| {
            deliveries.push(SettledDelivery {
                link: delivery.link,
                id: id.0,
                token: delivery.token,
            });
            settled
        });
        if deliveries.is_empty() {
            return Ok(Handled::Nothing);
        }
        Ok(Handled::Event(Event::Disposition {
            session: self.id,
            role,
            state,
            settled,
            deliveries,
        }))
    }

    /// The peer settled deliveries that it sent: it gave up their outcome, or answers ours in receiver settle mode second.
    fn settled_by_sender(&mut self, first: Serial, last: Serial) {
        let links = &mut self.links;
        self.incoming.visit_range(first, last, |_, delivery| {
            delivery.is_settled = true;
            if delivery.is_answered
                && let Some(Some(Link::Receiver(link))) =
                    links.get_mut(usize::from(delivery.link.handle))
            {
                link.unsettled -= 1;
            }
            delivery.is_answered
        });
        self.is_credit_due = true;
    }

    pub(crate) fn settle_received(
        &mut self,
        link: LinkId,
        id: Serial,
        state: &DeliveryState<'_>,
        io: &mut Io<'_>,
    ) -> Result<(), CommandError> {
        let Link::Receiver(receiver) = self.link_mut(link)? else {
            return Err(CommandError::WrongState);
        };
        if receiver
            .unfinished
            .as_ref()
            .is_some_and(|unfinished| unfinished.id == id)
        {
            return Err(CommandError::WrongState);
        }
        let is_second = receiver.rcv_settle_mode == ReceiverSettleMode::Second;
        let delivery = self
            .incoming
            .get_mut(id)
            .filter(|delivery| delivery.link == link);
        let delivery = delivery.ok_or(CommandError::Gone)?;
        if delivery.is_answered {
            return Err(CommandError::Gone);
        }
        let is_settled = delivery.is_settled;
        if is_second && !is_settled {
            delivery.is_answered = true;
            self.write_disposition(Role::Receiver, id, id, false, state, io);
            return Ok(());
        }
        self.incoming.take(id);
        if let Link::Receiver(receiver) = self.link_mut(link)? {
            receiver.unsettled -= 1;
        }
        self.is_credit_due = true;
        if is_settled {
            return Ok(());
        }
        if *state != DeliveryState::ACCEPTED {
            self.write_disposition(Role::Receiver, id, id, true, state, io);
            return Ok(());
        }
        match self.accepted.last_mut() {
            Some((_, last)) if last.next() == id => *last = id,
            Some((first, _)) if id.next() == *first => *first = id,
            _ => self.accepted.push((id, id)),
        }
        if self.accepted.len() > MAX_RANGES {
            self.write_dispositions(io);
        }
        Ok(())
    }

    /// Settles deliveries that the engine sent, after the peer told their outcome unsettled.
    pub(crate) fn settle_sent(
        &mut self,
        first: Serial,
        last: Serial,
        state: &DeliveryState<'_>,
        io: &mut Io<'_>,
    ) {
        let mut any = false;
        self.outgoing.visit_range(first, last, |_, _| {
            any = true;
            true
        });
        if any {
            self.write_disposition(Role::Sender, first, last, true, state, io);
        }
    }

    fn write_disposition(
        &self,
        role: Role,
        first: Serial,
        last: Serial,
        settled: bool,
        state: &DeliveryState<'_>,
        io: &mut Io<'_>,
    ) {
        use codec_amqp10::Outcome;
        let mut disposition = Disposition {
            role,
            first: first.0,
            last: Some(last.0).filter(|last| *last != first.0),
            settled,
            state: Some(state.clone()),
            batchable: false,
        };
        if io.write(self.id.channel, &disposition).is_ok() {
            return;
        }
        // Details that do not fit in a frame are left out; the kind of the outcome stays.
        disposition.state = Some(match state {
            DeliveryState::Outcome(Outcome::Rejected(_)) => {
                DeliveryState::Outcome(Outcome::Rejected(None))
            }
            DeliveryState::Outcome(Outcome::Modified(modified)) => {
                DeliveryState::Outcome(Outcome::Modified(codec_amqp10::Modified {
                    message_annotations: None,
                    ..modified.clone()
                }))
            }
            _ => DeliveryState::RELEASED,
        });
        write_small(io, self.id.channel, &disposition);
    }

    /// Tells the peer of accepted deliveries, in as few ranges as there are.
    fn write_dispositions(&mut self, io: &mut Io<'_>) {
        let mut ranges = std::mem::take(&mut self.accepted);
        let Some(&(base, _)) = ranges.first() else {
            return;
        };
        ranges.sort_unstable_by_key(|(first, _)| first.since(base));
        let mut pending = ranges[0];
        for &(first, last) in &ranges[1..] {
            if pending.1.next() == first {
                pending.1 = last;
            } else {
                debug_assert!(pending.1 < first, "a delivery is accepted once");
                self.write_disposition(
                    Role::Receiver,
                    pending.0,
                    pending.1,
                    true,
                    &DeliveryState::ACCEPTED,
                    io,
                );
                pending = (first, last);
            }
        }
        self.write_disposition(
            Role::Receiver,
            pending.0,
            pending.1,
            true,
            &DeliveryState::ACCEPTED,
            io,
        );
    }

    // Outgoing transfers.

    /// Checks that a delivery can be sent now.
    pub(crate) fn check_send(
        &mut self,
        id: LinkId,
        settled: bool,
        io: &Io<'_>,
    ) -> Result<(), SendError> {
        let Link::Sender(link) = self.link_mut(id)? else {
            return Err(CommandError::WrongState.into());
        };
        if link.credit == 0 {
            return Err(SendError::NoCredit);
        }
        if io.is_full() {
            return Err(SendError::OutputFull);
        }
        if self.remote_incoming_window == 0 || self.partial.is_some() {
            self.is_window_awaited = true;
            return Err(SendError::WindowClosed);
        }
        if !settled && self.outgoing.len() >= io.config.max_unsettled {
            return Err(SendError::TooManyUnsettled);
        }
        Ok(())
    }

    pub(crate) fn send(
        &mut self,
        id: LinkId,
        delivery: &OutgoingDelivery<'_>,
        io: &mut Io<'_>,
    ) -> Result<u32, SendError> {
        let Link::Sender(link) = self.link_mut(id)? else {
            return Err(CommandError::WrongState.into());
        };
        if delivery.tag.len() > codec_amqp10::MAX_DELIVERY_TAG_SIZE {
            return Err(CommandError::WrongState.into());
        }
        let size: usize = delivery.parts.iter().map(Bytes::len).sum();
        if size as u64 > link.max_message_size {
            return Err(SendError::MessageTooLarge {
                max: link.max_message_size,
            });
        }
        let settled = match link.snd_settle_mode {
            SenderSettleMode::Settled => true,
            SenderSettleMode::Unsettled => false,
            SenderSettleMode::Mixed => delivery.settled,
        };
        self.check_send(id, settled, io)?;
        let Link::Sender(link) = self.link_mut(id)? else {
            return Err(CommandError::WrongState.into());
        };
        link.use_credit();
        let delivery_id = self.next_delivery_id;
        self.next_delivery_id = delivery_id.next();
        if !settled {
            self.outgoing.push(
                delivery_id,
                Outgoing {
                    link: id,
                    token: delivery.token,
                },
            );
        }
        let mut transfer = Transfer {
            handle: id.handle(),
            delivery_id: Some(delivery_id.0),
            delivery_tag: Some(delivery.tag),
            message_format: Some(delivery.message_format),
            settled: Some(settled),
            ..Transfer::default()
        };
        let sent = encode_transfer_frame(
            io.out,
            self.id.channel,
            &mut transfer,
            delivery.parts,
            0,
            io.max_frame_size,
        );
        self.count_sent();
        if transfer.more {
            let mut partial = PartialSend {
                link: id,
                id: delivery_id,
                parts: SmallVec::new(),
                sent,
            };
            partial.parts.extend(delivery.parts.iter().cloned());
            self.partial = Some(Box::new(partial));
            self.continue_partial(io);
        }
        Ok(delivery_id.0)
    }

    fn count_sent(&mut self) {
        assert!(
            self.remote_incoming_window > 0,
            "a transfer is sent within the peer's window only"
        );
        self.remote_incoming_window -= 1;
        self.next_outgoing_id = self.next_outgoing_id.next();
    }

    /// Sends more of a message that waits for the window or the output.
    fn continue_partial(&mut self, io: &mut Io<'_>) {
        let Some(mut partial) = self.partial.take() else {
            return;
        };
        while self.remote_incoming_window > 0 && !io.is_full() {
            let mut transfer = Transfer {
                handle: partial.link.handle(),
                delivery_id: Some(partial.id.0),
                ..Transfer::default()
            };
            partial.sent += encode_transfer_frame(
                io.out,
                self.id.channel,
                &mut transfer,
                &partial.parts,
                partial.sent,
                io.max_frame_size,
            );
            self.count_sent();
            if !transfer.more {
                let link = partial.link;
                if let Ok(Link::Sender(sender)) = self.link_mut(link)
                    && std::mem::take(&mut sender.is_drain_due)
                {
                    let drained = self.drained(link, io);
                    debug_assert!(drained.is_ok(), "the link was found above");
                }
                return;
            }
        }
        self.partial = Some(partial);
    }

    /// Writes collected dispositions, renewed credit, and the rest of a message.
    pub(crate) fn flush(&mut self, io: &mut Io<'_>) {
        self.write_dispositions(io);
        if std::mem::take(&mut self.is_credit_due) {
            for handle in 0..self.links.len() {
                if let Some(Link::Receiver(link)) = &mut self.links[handle]
                    && link.renew_credit()
                {
                    self.write_link_flow(handle as u16, false, io);
                }
            }
        }
        self.continue_partial(io);
    }
}

/// Answers an attach that is refused or withdrawn: without the terminus of the peer's own side (section 2.6.3).
fn write_small_attach(io: &mut Io<'_>, link: &Attaching) {
    let is_sender = link.role == Role::Sender;
    let attach = Attach {
        name: &link.identity.name,
        handle: link.identity.id.handle(),
        role: link.role,
        snd_settle_mode: link.snd_settle_mode,
        rcv_settle_mode: link.rcv_settle_mode,
        source: None,
        target: None,
        unsettled: None,
        incomplete_unsettled: false,
        initial_delivery_count: is_sender.then_some(INITIAL_DELIVERY_COUNT.0),
        max_message_size: None,
        offered_capabilities: Multiple::NONE,
        desired_capabilities: Multiple::NONE,
        properties: None,
    };
    // The peer sent the name in a frame of the size that we accept, which may be above the size that it accepts. The detach then
    // comes without an attach, which is the most that can be said.
    let _ = io.write(link.identity.id.channel, &attach);
}

fn check_size(held: usize, more: usize, max: u64) -> Result<(), Fault> {
    if held as u64 + more as u64 > max {
        return Err(Fault::link(
            Condition::MessageSizeExceeded,
            format_args!("the message is larger than the link's limit of {max} bytes"),
        ));
    }
    Ok(())
}

fn check_unfinished(held: usize, more: usize, is_kept: bool, config: &Config) -> Result<(), Fault> {
    if is_kept && held + more > config.max_unfinished_size {
        return Err(Fault::link(
            Condition::ResourceLimitExceeded,
            format_args!(
                "unfinished messages of the connection are larger than {} bytes",
                config.max_unfinished_size
            ),
        ));
    }
    Ok(())
}

/// The state of a session, for people and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionState {
    /// The session.
    pub session: SessionId,
    /// The transfer id that is expected next.
    pub next_incoming_id: Serial,
    /// Transfers that may come.
    pub incoming_window: u32,
    /// The transfer id of the next transfer that is sent.
    pub next_outgoing_id: Serial,
    /// Transfers that the peer accepts.
    pub remote_incoming_window: u32,
    /// Transfers that the peer may send by its own account.
    pub remote_outgoing_window: u32,
    /// Received deliveries that are not settled.
    pub unsettled_incoming: usize,
    /// Sent deliveries that are not settled.
    pub unsettled_outgoing: usize,
    /// The attached links.
    pub links: Vec<LinkState>,
}
