mod flow;
mod links;
mod receiving;
mod sending;
mod settling;

use bytes::{Bytes, BytesMut};
use codec_amqp10::{
    AmqpError, Attach, Begin, Condition, Detach, Disposition, Encode, End, Flow, Multiple,
    PerformativeKind, Reader, Transfer, encode_frame,
};
use smallvec::SmallVec;

use crate::deliveries::Deliveries;
use crate::link::Link;
use crate::{Cause, CommandError, Config, Event, Fault, LinkId, LinkState, Serial, SessionId};

use links::write_small_attach;

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

/// The result of a frame that few peers send often.
pub(crate) enum Handled<'a> {
    Nothing,
    Event(Event<'a>),
    /// The frame has to be read again after this event.
    Again(Event<'a>),
}

/// The result of a frame whose event is in the place that the connection gave. An event is large, and each function that returns
/// it would move it.
pub(crate) enum Placed {
    Nothing,
    Event,
    /// The frame has to be read again after the event.
    Again,
}

impl<'a> Handled<'a> {
    fn place(self, event: &mut Option<Event<'a>>) -> Placed {
        let (found, placed) = match self {
            Self::Nothing => return Placed::Nothing,
            Self::Event(found) => (found, Placed::Event),
            Self::Again(found) => (found, Placed::Again),
        };
        *event = Some(found);
        placed
    }
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
    accepted: SmallVec<[(Serial, Serial); 2]>,
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

    /// Reads the fields of a frame and handles them. An event is put into `event`.
    #[inline]
    pub(crate) fn handle<'a>(
        &mut self,
        kind: PerformativeKind,
        reader: &mut Reader<'a>,
        io: &mut Io<'_>,
        event: &mut Option<Event<'a>>,
    ) -> Result<Placed, Fault> {
        match kind {
            PerformativeKind::Transfer => {
                let transfer = Transfer::read_body(reader).map_err(Fault::decode)?;
                self.on_transfer(&transfer, reader.rest(), io, event)
            }
            PerformativeKind::Disposition => {
                let disposition = Disposition::read_body(reader).map_err(Fault::decode)?;
                self.on_disposition(disposition, event)
            }
            PerformativeKind::Flow => {
                let flow = Flow::read_body(reader).map_err(Fault::decode)?;
                Ok(self.on_flow(&flow, io)?.place(event))
            }
            PerformativeKind::Attach => {
                let attach = Attach::read_body(reader).map_err(Fault::decode)?;
                Ok(self.on_attach(attach, io)?.place(event))
            }
            PerformativeKind::Detach => {
                let detach = Detach::read_body(reader).map_err(Fault::decode)?;
                Ok(self.on_detach(detach, io).place(event))
            }
            PerformativeKind::Open
            | PerformativeKind::Begin
            | PerformativeKind::End
            | PerformativeKind::Close => {
                debug_assert!(false, "the connection handles these");
                Ok(Placed::Nothing)
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
