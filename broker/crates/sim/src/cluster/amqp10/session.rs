//! The client's end of a session: windows, links and deliveries (sections 2.5 and 2.6).

use super::Amqp10Queue;
use super::filters::PartFilter;
use super::management::{MANAGEMENT, declaration, pair_properties, read_status};
use super::message::{self, ANNOTATION};
use super::oracle::{Amqp10Oracle, ReceiverOutcome};
use super::publisher::{PartialMessage, Publisher};
use super::receiver::{PartialDelivery, Receiver, distance};
use super::wire::{Wire, is_client_fault};
use codec_amqp10::{
    AnyTarget, Attach, Begin, DeliveryState, Detach, Disposition, End, Flow, Map, Modified,
    Multiple, Outcome, Performative, Reader, ReceiverSettleMode, Role, SenderSettleMode, Source,
    Symbol, Target, Transfer, Value, map,
};
use env::Time;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Begins of number ranges, close to their wrap.
const FIRST_OUTGOING_ID: u32 = u32::MAX - 20;
const FIRST_DELIVERY_ID: u32 = u32::MAX - 5;
const FIRST_DELIVERY_COUNT: u32 = u32::MAX - 2;
/// More deliveries than any disposition concerns.
const LARGEST_RANGE: i64 = 10_000;
/// The distribution mode of a receiver that browses.
const COPY: Symbol<'static> = Symbol::from_static("copy");
/// Deliveries that a receiver of the management node grants.
const RESPONSE_CREDIT: u32 = 1;

/// The parts of a run that a session needs.
pub(super) struct Context<'a> {
    pub now: Time,
    pub oracle: &'a mut Amqp10Oracle,
    pub wire: &'a mut Wire,
    /// Messages that the client publishes again, because it does not know their outcome.
    pub repeats: &'a mut VecDeque<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SessionPhase {
    Beginning,
    Mapped,
    Ending,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkPhase {
    Attaching,
    Attached,
    /// The broker attached it without a terminus, and detaches it next.
    Refused,
    Detaching,
}

pub(super) enum LinkEnd {
    Publisher(Publisher),
    Receiver(Receiver),
}

pub(super) struct ClientLink {
    name: String,
    phase: LinkPhase,
    pub end: LinkEnd,
}

impl ClientLink {
    pub(super) fn is_attached(&self) -> bool {
        self.phase == LinkPhase::Attached
    }

    fn role(&self) -> Role {
        match self.end {
            LinkEnd::Publisher(_) => Role::Sender,
            LinkEnd::Receiver(_) => Role::Receiver,
        }
    }

    fn plan(&self) -> LinkPlan {
        match &self.end {
            LinkEnd::Publisher(publisher) => match publisher.queue {
                Some(queue) => LinkPlan::Publish(queue, publisher.mode),
                None => LinkPlan::Requests,
            },
            LinkEnd::Receiver(receiver) => match (receiver.queue, receiver.settles_second) {
                (Some(queue), _) if receiver.browses => LinkPlan::Browse(queue, receiver.filter),
                (Some(queue), true) => {
                    LinkPlan::Receive(queue, ReceiverSettleMode::Second, receiver.filter)
                }
                (Some(queue), false) => {
                    LinkPlan::Receive(queue, ReceiverSettleMode::First, receiver.filter)
                }
                (None, _) => LinkPlan::Responses,
            },
        }
    }
}

/// The purpose of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkPlan {
    Requests,
    Responses,
    Publish(Amqp10Queue, SenderSettleMode),
    Receive(Amqp10Queue, ReceiverSettleMode, Option<PartFilter>),
    Browse(Amqp10Queue, Option<PartFilter>),
}

/// A delivery that came and that the client has not settled.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldDelivery {
    handle: u32,
    receiver: u64,
    pub queue: Amqp10Queue,
    pub number: u64,
    pub settles_second: bool,
}

impl HeldDelivery {
    pub(super) fn is_of(&self, handle: u32) -> bool {
        self.handle == handle
    }
}

/// A publish without an outcome.
struct UnsettledPublish {
    handle: u32,
    queue: Amqp10Queue,
    number: u64,
    at: Time,
}

/// The result of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionEvent {
    Begun,
    Ended,
    /// The broker has answered a detach. The link was attached for this.
    Detached(LinkPlan),
    /// The broker has ended the link or the session.
    Lost,
    /// The management node has answered with this status.
    Responded(u16),
}

pub(super) struct ClientSession {
    channel: u16,
    phase: SessionPhase,
    next_incoming_id: u32,
    /// Transfers with this id and later ones may not be sent.
    incoming_limit: u32,
    next_outgoing_id: u32,
    outgoing_limit: u32,
    next_delivery_id: u32,
    last_incoming_delivery: Option<u32>,
    /// By the client's handle.
    links: Vec<Option<ClientLink>>,
    /// The client's handles by those of the broker.
    remote_handles: BTreeMap<u32, u32>,
    held: BTreeMap<u32, HeldDelivery>,
    /// Handles of deliveries whose outcome the client has told and that the broker has to settle.
    told: BTreeMap<u32, u32>,
    unsettled: BTreeMap<u32, UnsettledPublish>,
    /// Publishes of detached links. An outcome may have been sent before the broker knew of the detach.
    abandoned: BTreeSet<u32>,
}

impl ClientSession {
    /// Begins a session that accepts this number of transfers.
    pub(super) fn begin(channel: u16, window: u32, wire: &mut Wire) -> ClientSession {
        let begin = Begin {
            remote_channel: None,
            next_outgoing_id: FIRST_OUTGOING_ID,
            incoming_window: window,
            outgoing_window: u32::MAX,
            handle_max: 255,
            offered_capabilities: Multiple::NONE,
            desired_capabilities: Multiple::NONE,
            properties: None,
        };
        wire.send(channel, &begin);
        ClientSession {
            channel,
            phase: SessionPhase::Beginning,
            next_incoming_id: 0,
            incoming_limit: window,
            next_outgoing_id: FIRST_OUTGOING_ID,
            outgoing_limit: FIRST_OUTGOING_ID,
            next_delivery_id: FIRST_DELIVERY_ID,
            last_incoming_delivery: None,
            links: Vec::new(),
            remote_handles: BTreeMap::new(),
            held: BTreeMap::new(),
            told: BTreeMap::new(),
            unsettled: BTreeMap::new(),
            abandoned: BTreeSet::new(),
        }
    }

    pub(super) fn is_mapped(&self) -> bool {
        self.phase == SessionPhase::Mapped
    }

    pub(super) fn links(&self) -> impl Iterator<Item = (u32, &ClientLink)> {
        let links = (0..).zip(&self.links);
        links.filter_map(|(handle, link)| Some((handle, link.as_ref()?)))
    }

    pub(super) fn link(&self, handle: u32) -> Option<&ClientLink> {
        self.links.get(handle as usize)?.as_ref()
    }

    fn link_mut(&mut self, handle: u32) -> Option<&mut ClientLink> {
        self.links.get_mut(handle as usize)?.as_mut()
    }

    /// Transfers that the broker may still send.
    pub(super) fn window_left(&self) -> i64 {
        distance(self.next_incoming_id, self.incoming_limit).max(0)
    }

    pub(super) fn held(&self) -> impl Iterator<Item = (u32, HeldDelivery)> {
        self.held.iter().map(|(id, held)| (*id, *held))
    }

    pub(super) fn unsettled_publishes(&self) -> usize {
        self.unsettled.len()
    }

    /// Deliveries that the broker has to settle.
    pub(super) fn told(&self) -> usize {
        self.told.len()
    }

    /// Whether a delivery between these ids is not complete.
    pub(super) fn has_partial_between(&self, first: u32, last: u32) -> bool {
        self.links().any(|(_, link)| match &link.end {
            LinkEnd::Receiver(Receiver {
                partial: Some(partial),
                ..
            }) => (first..=last).contains(&partial.id),
            _ => false,
        })
    }

    // Commands.

    /// Attaches a link in a free place.
    pub(super) fn attach(&mut self, plan: LinkPlan, cx: &mut Context<'_>) {
        let free = self.links.iter().position(Option::is_none);
        let handle = free.unwrap_or(self.links.len());
        let number = cx.oracle.next_link();
        let name = match plan {
            LinkPlan::Requests | LinkPlan::Responses => MANAGEMENT.to_owned(),
            LinkPlan::Publish(..) | LinkPlan::Receive(..) | LinkPlan::Browse(..) => {
                format!("link-{handle}")
            }
        };
        let end = match plan {
            LinkPlan::Requests => LinkEnd::Publisher(Publisher::new(
                None,
                number,
                SenderSettleMode::Settled,
                FIRST_DELIVERY_COUNT,
            )),
            LinkPlan::Publish(queue, mode) => LinkEnd::Publisher(Publisher::new(
                Some(queue),
                number,
                mode,
                FIRST_DELIVERY_COUNT,
            )),
            LinkPlan::Responses => LinkEnd::Receiver(Receiver::new(None, number, false)),
            LinkPlan::Receive(queue, mode, filter) => {
                let settles_second = mode == ReceiverSettleMode::Second;
                if let Some(filter) = filter {
                    let receivers = &mut cx.oracle.filtered_receivers;
                    receivers.attach(number, queue, filter.part);
                }
                let mut receiver = Receiver::new(Some(queue), number, settles_second);
                receiver.filter = filter;
                LinkEnd::Receiver(receiver)
            }
            LinkPlan::Browse(queue, filter) => {
                cx.oracle.browsers.attach(number, cx.now);
                let mut receiver = Receiver::new(Some(queue), number, false);
                (receiver.filter, receiver.browses) = (filter, true);
                LinkEnd::Receiver(receiver)
            }
        };
        let link = ClientLink {
            name,
            phase: LinkPhase::Attaching,
            end,
        };
        self.write_attach(handle as u32, &link, cx.wire);
        match self.links.get_mut(handle) {
            Some(slot) => *slot = Some(link),
            None => self.links.push(Some(link)),
        }
    }

    fn write_attach(&self, handle: u32, link: &ClientLink, wire: &mut Wire) {
        let (queue, snd_settle_mode, rcv_settle_mode, delivery_count) = match &link.end {
            LinkEnd::Publisher(publisher) => (
                publisher.queue,
                publisher.mode,
                ReceiverSettleMode::First,
                Some(publisher.delivery_count()),
            ),
            LinkEnd::Receiver(receiver) => {
                let settle_mode = match receiver.settles_second {
                    true => ReceiverSettleMode::Second,
                    false => ReceiverSettleMode::First,
                };
                let mode = match receiver.browses {
                    true => SenderSettleMode::Settled,
                    false => SenderSettleMode::Mixed,
                };
                (receiver.queue, mode, settle_mode, None)
            }
        };
        let address = match queue {
            Some(queue) => format!("/queues/{}", queue.name()),
            None => MANAGEMENT.to_owned(),
        };
        let address = Some(Value::String(&address));
        let is_publisher = link.role() == Role::Sender;
        let properties = pair_properties();
        let (filter, browses) = match &link.end {
            LinkEnd::Receiver(receiver) => {
                (receiver.filter.map(PartFilter::encode), receiver.browses)
            }
            LinkEnd::Publisher(_) => (None, false),
        };
        let filter = filter.as_deref().map(|filter| Reader::new(filter).read());
        let attach = Attach {
            name: &link.name,
            handle,
            role: link.role(),
            snd_settle_mode,
            rcv_settle_mode,
            source: Some(Source {
                address: if is_publisher { None } else { address },
                filter: filter.and_then(Result::ok),
                distribution_mode: browses.then_some(COPY),
                ..Source::default()
            }),
            target: Some(AnyTarget::Target(Target {
                address: if is_publisher { address } else { None },
                ..Target::default()
            })),
            unsettled: None,
            incomplete_unsettled: false,
            initial_delivery_count: delivery_count,
            max_message_size: None,
            offered_capabilities: Multiple::NONE,
            desired_capabilities: Multiple::NONE,
            properties: match queue {
                None => Reader::new(&properties).read::<Map<'_>>().ok(),
                Some(_) => None,
            },
        };
        wire.send(self.channel, &attach);
    }

    fn flow(&self) -> Flow<'static> {
        Flow {
            next_incoming_id: Some(self.next_incoming_id),
            incoming_window: self.window_left() as u32,
            next_outgoing_id: self.next_outgoing_id,
            outgoing_window: u32::MAX,
            handle: None,
            delivery_count: None,
            link_credit: None,
            available: None,
            drain: false,
            echo: false,
            properties: None,
        }
    }

    /// Accepts at least this number of transfers.
    pub(super) fn open_window(&mut self, window: u32, echo: bool, wire: &mut Wire) {
        let limit = self.next_incoming_id.wrapping_add(window);
        if distance(self.incoming_limit, limit) > 0 {
            self.incoming_limit = limit;
        }
        wire.send(
            self.channel,
            &Flow {
                echo,
                ..self.flow()
            },
        );
    }

    /// Sets the credit of a receiver. Returns false if the receiver cannot be granted this credit now.
    pub(super) fn grant(
        &mut self,
        handle: u32,
        (credit, drain, echo): (u32, bool, bool),
        cx: &mut Context<'_>,
    ) -> bool {
        let mut flow = Flow {
            handle: Some(handle),
            ..self.flow()
        };
        let link = self.link_mut(handle);
        let Some(LinkEnd::Receiver(receiver)) = link.map(|link| &mut link.end) else {
            return false;
        };
        if !receiver.grant(cx.now, credit, drain, echo) {
            return false;
        }
        receiver.fill(&mut flow);
        cx.wire.send(self.channel, &flow);
        true
    }

    /// Whether a publisher can begin a message.
    pub(super) fn may_publish(&self, handle: u32) -> bool {
        match self.link(handle).map(|link| (link.phase, &link.end)) {
            Some((LinkPhase::Attached, LinkEnd::Publisher(publisher))) => {
                publisher.partial.is_none() && publisher.has_credit() && self.may_transfer()
            }
            _ => false,
        }
    }

    pub(super) fn has_partial_message(&self, handle: u32) -> bool {
        match self.link(handle).map(|link| &link.end) {
            Some(LinkEnd::Publisher(publisher)) => publisher.partial.is_some(),
            _ => false,
        }
    }

    /// The window of the broker allows a transfer.
    pub(super) fn may_transfer(&self) -> bool {
        distance(self.next_outgoing_id, self.outgoing_limit) > 0
    }

    /// Begins a message on a link, and sends its first transfer.
    fn begin_message(
        &mut self,
        handle: u32,
        (number, bytes): (Option<u64>, Vec<u8>),
        is_settled: bool,
        frame_size: usize,
        cx: &mut Context<'_>,
    ) {
        debug_assert!(self.may_publish(handle));
        let delivery = self.next_delivery_id;
        self.next_delivery_id = delivery.wrapping_add(1);
        let link = self.link_mut(handle);
        if let Some(LinkEnd::Publisher(publisher)) = link.map(|link| &mut link.end) {
            publisher.use_credit();
            publisher.partial = Some(PartialMessage {
                number,
                delivery,
                bytes,
                sent: 0,
                is_settled,
            });
            self.continue_message(handle, frame_size, cx);
        }
    }

    /// Publishes a message. The rest of a message that does not fit in a frame of this size is sent later.
    pub(super) fn publish(
        &mut self,
        handle: u32,
        number: u64,
        is_settled: bool,
        frame_size: usize,
        cx: &mut Context<'_>,
    ) {
        let link = self.link(handle).map(|link| &link.end);
        let has_part = match link {
            Some(LinkEnd::Publisher(publisher)) => {
                publisher.queue.is_some_and(Amqp10Queue::is_filtered)
            }
            _ => false,
        };
        let message = (Some(number), message::encode(number, has_part));
        self.begin_message(handle, message, is_settled, frame_size, cx);
    }

    /// Sends the next transfer of a message.
    pub(super) fn continue_message(
        &mut self,
        handle: u32,
        frame_size: usize,
        cx: &mut Context<'_>,
    ) {
        if !self.may_transfer() {
            return;
        }
        let channel = self.channel;
        let link = self.link_mut(handle);
        let Some(LinkEnd::Publisher(publisher)) = link.map(|link| &mut link.end) else {
            return;
        };
        let Some(mut partial) = publisher.partial.take() else {
            return;
        };
        let tag = partial.delivery.to_be_bytes();
        let mut transfer = Transfer {
            handle,
            delivery_id: Some(partial.delivery),
            ..Transfer::default()
        };
        if partial.sent == 0 {
            transfer.delivery_tag = Some(&tag);
            transfer.message_format = Some(0);
            transfer.settled = Some(partial.is_settled);
        }
        partial.sent += cx.wire.send_transfer(
            channel,
            &mut transfer,
            &partial.bytes,
            partial.sent,
            frame_size,
        );
        let (queue, link) = (publisher.queue, publisher.number);
        let is_complete = !transfer.more;
        if !is_complete {
            publisher.partial = Some(partial);
        } else if let (Some(queue), Some(number)) = (queue, partial.number) {
            cx.oracle.published(cx.now, queue, number, link);
            if !partial.is_settled {
                let publish = UnsettledPublish {
                    handle,
                    queue,
                    number,
                    at: cx.now,
                };
                self.unsettled.insert(partial.delivery, publish);
            }
        }
        self.next_outgoing_id = self.next_outgoing_id.wrapping_add(1);
    }

    /// Gives up a message of which some transfers were sent. The client publishes it again later.
    pub(super) fn abort_message(&mut self, handle: u32, cx: &mut Context<'_>) {
        if !self.may_transfer() {
            return;
        }
        let channel = self.channel;
        let link = self.link_mut(handle);
        let Some(LinkEnd::Publisher(publisher)) = link.map(|link| &mut link.end) else {
            return;
        };
        if let Some(partial) = publisher.partial.take() {
            let transfer = Transfer {
                handle,
                delivery_id: Some(partial.delivery),
                aborted: true,
                ..Transfer::default()
            };
            cx.wire.send(channel, &transfer);
            cx.repeats.extend(partial.number);
            self.next_outgoing_id = self.next_outgoing_id.wrapping_add(1);
        }
    }

    /// Settles the held deliveries from `first` to `last`. The broker settles those of receiver settle mode second afterwards.
    pub(super) fn settle(
        &mut self,
        (first, last): (u32, u32),
        outcome: ReceiverOutcome,
        settles_second: bool,
        cx: &mut Context<'_>,
    ) {
        let mut annotations = Vec::new();
        let state = delivery_state(outcome, &mut annotations);
        // The default outcome of the source is `released`, so half of these name none.
        let is_default =
            outcome == ReceiverOutcome::Released && !settles_second && first.is_multiple_of(2);
        let disposition = Disposition {
            role: Role::Receiver,
            first,
            last: Some(last).filter(|last| *last != first),
            settled: !settles_second,
            state: (!is_default).then_some(state),
            batchable: false,
        };
        cx.wire.send(self.channel, &disposition);
        let ids: Vec<u32> = self.held.range(first..=last).map(|(id, _)| *id).collect();
        for id in ids {
            let Some(held) = self.held.remove(&id) else {
                continue;
            };
            debug_assert_eq!(held.settles_second, settles_second);
            cx.oracle
                .settled(cx.now, held.queue, held.receiver, held.number, outcome);
            if settles_second {
                self.told.insert(id, held.handle);
            }
        }
    }

    /// Detaches a link. Its unsettled deliveries return to their queues, and its publishes without an outcome are repeated.
    pub(super) fn detach(&mut self, handle: u32, closed: bool, cx: &mut Context<'_>) {
        let detach = Detach {
            handle,
            closed,
            error: None,
        };
        cx.wire.send(self.channel, &detach);
        if let Some(link) = self.link_mut(handle) {
            link.phase = LinkPhase::Detaching;
        }
        self.forget_deliveries(handle, cx);
    }

    pub(super) fn end(&mut self, cx: &mut Context<'_>) {
        cx.wire.send(self.channel, &End { error: None });
        self.phase = SessionPhase::Ending;
        self.lose(cx);
    }

    /// The session or its connection has ended.
    pub(super) fn lose(&mut self, cx: &mut Context<'_>) {
        for handle in 0..self.links.len() as u32 {
            self.forget_deliveries(handle, cx);
        }
        self.links.clear();
    }

    fn forget_deliveries(&mut self, handle: u32, cx: &mut Context<'_>) {
        self.told.retain(|_, link| *link != handle);
        let mut has_returns = false;
        self.held.retain(|_, held| {
            if held.handle == handle {
                cx.oracle
                    .returned(cx.now, held.queue, held.receiver, held.number);
                has_returns = true;
            }
            held.handle != handle
        });
        // In the order of the publishes, across the wrap of the ids.
        let mut unknown: Vec<u32> = self.unsettled.keys().copied().collect();
        unknown.retain(|id| self.unsettled.get(id).is_some_and(|p| p.handle == handle));
        unknown.sort_by_key(|id| distance(FIRST_DELIVERY_ID, *id));
        for id in unknown {
            let publish = self.unsettled.remove(&id);
            self.abandoned.insert(id);
            cx.repeats.extend(publish.map(|publish| publish.number));
        }
        match self.link_mut(handle).map(|link| &mut link.end) {
            Some(LinkEnd::Publisher(publisher)) => {
                let partial = publisher.partial.take();
                cx.repeats
                    .extend(partial.and_then(|partial| partial.number));
            }
            Some(LinkEnd::Receiver(receiver)) => {
                has_returns |= !receiver.is_stopped();
                receiver.partial = None;
                cx.oracle.filtered_receivers.end(receiver.number, cx.now);
                if receiver.queue == Some(Amqp10Queue::SingleActive) && !receiver.browses {
                    cx.oracle
                        .receiver_ended(cx.now, receiver.number, has_returns);
                }
            }
            None => {}
        }
    }

    // Frames of the broker.

    pub(super) fn handle(
        &mut self,
        frame: Performative<'_>,
        payload: &[u8],
        cx: &mut Context<'_>,
    ) -> Result<Option<SessionEvent>, String> {
        if self.phase == SessionPhase::Ending {
            // Sent before the broker knew of the end.
            let has_ended = matches!(frame, Performative::End(_));
            return Ok(has_ended.then_some(SessionEvent::Ended));
        }
        match frame {
            Performative::Begin(begin) => {
                if self.phase != SessionPhase::Beginning {
                    return Err("a second begin".to_owned());
                }
                self.phase = SessionPhase::Mapped;
                self.next_incoming_id = begin.next_outgoing_id;
                self.incoming_limit = begin.next_outgoing_id.wrapping_add(self.incoming_limit);
                self.outgoing_limit = FIRST_OUTGOING_ID.wrapping_add(begin.incoming_window);
                Ok(Some(SessionEvent::Begun))
            }
            Performative::Attach(attach) => self.handle_attach(&attach, cx).map(|()| None),
            Performative::Flow(flow) => self.handle_flow(&flow, cx).map(|()| None),
            Performative::Transfer(transfer) => self.handle_transfer(&transfer, payload, cx),
            Performative::Disposition(disposition) => {
                self.handle_disposition(&disposition, cx).map(|()| None)
            }
            Performative::Detach(detach) => self.handle_detach(&detach, cx).map(Some),
            Performative::End(end) => match end.error {
                Some(error) if is_client_fault(error.condition) => {
                    Err(format!("the broker ended the session: {error:?}"))
                }
                _ => Ok(Some(SessionEvent::Lost)),
            },
            Performative::Open(_) | Performative::Close(_) => {
                Err(format!("{} in a session", frame.kind().name()))
            }
        }
    }

    fn handle_attach(&mut self, attach: &Attach<'_>, cx: &mut Context<'_>) -> Result<(), String> {
        let is_answer =
            |link: &ClientLink| link.name == attach.name && link.role() == attach.role.opposite();
        let mut found = self.links().filter(|(_, link)| is_answer(link));
        let handle = found.next().map(|(handle, _)| handle);
        drop(found);
        let Some(handle) = handle else {
            return Err(format!("the broker attached '{}'", attach.name));
        };
        if self.remote_handles.insert(attach.handle, handle).is_some() {
            return Err(format!("the handle {} is in use", attach.handle));
        }
        let mut grants = false;
        let link = self.link_mut(handle).ok_or("the link was found above")?;
        match (&mut link.end, link.phase) {
            (_, LinkPhase::Detaching) => return Ok(()),
            (_, LinkPhase::Attached | LinkPhase::Refused) => {
                return Err(format!("'{}' was attached twice", link.name));
            }
            (LinkEnd::Publisher(publisher), LinkPhase::Attaching) => {
                if attach.target.is_none() {
                    link.phase = LinkPhase::Refused;
                    return Ok(());
                }
                if attach.rcv_settle_mode != ReceiverSettleMode::First
                    || attach.snd_settle_mode != publisher.mode
                {
                    return Err(format!("other settle modes: {attach:?}"));
                }
            }
            (LinkEnd::Receiver(receiver), LinkPhase::Attaching) => {
                if attach.source.is_none() {
                    link.phase = LinkPhase::Refused;
                    return Ok(());
                }
                let mode = match receiver.queue {
                    Some(_) if !receiver.browses => SenderSettleMode::Unsettled,
                    _ => SenderSettleMode::Settled,
                };
                let is_second = attach.rcv_settle_mode == ReceiverSettleMode::Second;
                if attach.snd_settle_mode != mode || is_second != receiver.settles_second {
                    return Err(format!("other settle modes: {attach:?}"));
                }
                let mode = attach
                    .source
                    .as_ref()
                    .and_then(|source| source.distribution_mode);
                if (mode == Some(COPY)) != receiver.browses && receiver.queue.is_some() {
                    return Err(format!("the mode of '{}' is {mode:?}", link.name));
                }
                let filter = receiver.filter.map(PartFilter::encode);
                let expected = filter.as_deref().map(|filter| Reader::new(filter).read());
                let answered = attach.source.as_ref().and_then(|source| source.filter);
                if answered != expected.and_then(Result::ok) {
                    return Err(format!("the filter of '{}' is {answered:?}", link.name));
                }
                let count = attach.initial_delivery_count;
                receiver.attached(count.ok_or("a sender without initial-delivery-count")?);
                grants = receiver.queue.is_none();
            }
        }
        link.phase = LinkPhase::Attached;
        if grants {
            self.grant(handle, (RESPONSE_CREDIT, false, false), cx);
        }
        Ok(())
    }

    fn handle_flow(&mut self, flow: &Flow<'_>, cx: &mut Context<'_>) -> Result<(), String> {
        if flow.next_outgoing_id != self.next_incoming_id {
            return Err(format!(
                "a flow counts transfers up to {}, {} came",
                flow.next_outgoing_id, self.next_incoming_id
            ));
        }
        let next = flow.next_incoming_id.unwrap_or(FIRST_OUTGOING_ID);
        if distance(next, self.next_outgoing_id) < 0 {
            return Err(format!(
                "a flow counts transfers up to {next}, {} were sent",
                self.next_outgoing_id
            ));
        }
        self.outgoing_limit = next.wrapping_add(flow.incoming_window);
        let Some(remote) = flow.handle else {
            return Ok(());
        };
        let handle = self.find(remote)?;
        let link = self.link_mut(handle).ok_or("the handle has no link")?;
        if link.phase == LinkPhase::Detaching {
            return Ok(());
        }
        match &mut link.end {
            LinkEnd::Publisher(publisher) => match flow.link_credit {
                Some(credit) => publisher.set_credit(flow.delivery_count, credit),
                None => Ok(()),
            },
            LinkEnd::Receiver(receiver) => {
                let (queue, available) = (receiver.queue, flow.available.unwrap_or(0));
                receiver.handle_flow(flow, cx.oracle)?;
                match queue.map(|queue| cx.oracle.sent_to(queue)) {
                    Some(sent) if available as usize > sent => Err(format!(
                        "{available} messages are available, and {sent} were published"
                    )),
                    _ => Ok(()),
                }
            }
        }
    }

    fn find(&self, remote: u32) -> Result<u32, String> {
        let handle = self.remote_handles.get(&remote).copied();
        handle.ok_or_else(|| format!("the handle {remote} is not attached"))
    }

    fn handle_transfer(
        &mut self,
        transfer: &Transfer<'_>,
        payload: &[u8],
        cx: &mut Context<'_>,
    ) -> Result<Option<SessionEvent>, String> {
        if self.window_left() == 0 {
            return Err(format!(
                "transfer {} is beyond the incoming window",
                self.next_incoming_id
            ));
        }
        self.next_incoming_id = self.next_incoming_id.wrapping_add(1);
        let handle = self.find(transfer.handle)?;
        let last = self.last_incoming_delivery;
        let link = self.links.get_mut(handle as usize).and_then(Option::as_mut);
        let link = link.ok_or("the handle has no link")?;
        let LinkEnd::Receiver(receiver) = &mut link.end else {
            return Err(format!("a transfer to the publisher '{}'", link.name));
        };
        if link.phase == LinkPhase::Detaching {
            // Sent before the broker knew of the detach.
            self.last_incoming_delivery = transfer.delivery_id.or(last);
            return Ok(None);
        }
        if receiver.partial.is_none() {
            let id = transfer.delivery_id.ok_or("a delivery without an id")?;
            let tag = transfer.delivery_tag.ok_or("a delivery without a tag")?;
            if last.is_some_and(|last| distance(last, id) <= 0) {
                return Err(format!("delivery {id} comes after {last:?}"));
            }
            let is_settled = transfer.settled.unwrap_or(false);
            if is_settled != (receiver.queue.is_none() || receiver.browses) {
                return Err(format!("delivery {id} is settled: {is_settled}"));
            }
            receiver.begin(id, tag)?;
            self.last_incoming_delivery = Some(id);
        }
        match receiver.append(transfer, payload)? {
            Some(delivery) => self.handle_delivery(handle, &delivery, cx),
            None => Ok(None),
        }
    }

    /// Handles the last transfer of a delivery.
    fn handle_delivery(
        &mut self,
        handle: u32,
        delivery: &PartialDelivery,
        cx: &mut Context<'_>,
    ) -> Result<Option<SessionEvent>, String> {
        let Some(LinkEnd::Receiver(receiver)) = self.link(handle).map(|link| &link.end) else {
            return Ok(None);
        };
        let Some(queue) = receiver.queue else {
            let status = read_status(&delivery.payload)?;
            return Ok(Some(SessionEvent::Responded(status)));
        };
        let read = message::read(&delivery.payload, queue.is_filtered())?;
        if let Some(filter) = receiver.filter {
            cx.oracle.check_filter(queue, read.number, filter)?;
        }
        if receiver.browses {
            let browser = receiver.number;
            cx.oracle.browsed(queue, browser, read.number)?;
            return Ok(None);
        }
        let held = HeldDelivery {
            handle,
            receiver: receiver.number,
            queue,
            number: read.number,
            settles_second: receiver.settles_second,
        };
        cx.oracle.delivered(cx.now, queue, held.receiver, read)?;
        self.held.insert(delivery.id, held);
        Ok(None)
    }

    fn handle_disposition(
        &mut self,
        disposition: &Disposition<'_>,
        cx: &mut Context<'_>,
    ) -> Result<(), String> {
        let first = disposition.first;
        let last = disposition.last.unwrap_or(first);
        let count = distance(first, last);
        if !(0..LARGEST_RANGE).contains(&count) {
            return Err(format!("a disposition from {first} to {last}"));
        }
        let ids = (0..=count as u32).map(|offset| first.wrapping_add(offset));
        if !disposition.settled {
            return Err(format!("the broker did not settle: {disposition:?}"));
        }
        for id in ids {
            match disposition.role {
                Role::Receiver => self.handle_outcome(id, disposition, cx)?,
                Role::Sender => {
                    if self.held.contains_key(&id) {
                        return Err(format!(
                            "the broker settled delivery {id} without an outcome"
                        ));
                    }
                    self.told.remove(&id);
                }
            }
        }
        Ok(())
    }

    /// Handles the outcome of a publish.
    fn handle_outcome(
        &mut self,
        id: u32,
        disposition: &Disposition<'_>,
        cx: &mut Context<'_>,
    ) -> Result<(), String> {
        if self.abandoned.remove(&id) {
            return Ok(());
        }
        let Some(publish) = self.unsettled.remove(&id) else {
            return Err(format!(
                "an outcome of delivery {id}, which has one or was not sent: {disposition:?}"
            ));
        };
        let UnsettledPublish {
            queue, number, at, ..
        } = publish;
        let is_accepted = match &disposition.state {
            Some(DeliveryState::Outcome(Outcome::Accepted)) => true,
            Some(DeliveryState::Outcome(Outcome::Rejected(_) | Outcome::Released)) => false,
            other => return Err(format!("the outcome of message {number} is {other:?}")),
        };
        if !is_accepted && cx.oracle.calm_since(at) {
            return Err(format!(
                "message {number} was not accepted: {disposition:?}"
            ));
        }
        cx.oracle.answered(cx.now, queue, number, is_accepted);
        Ok(())
    }

    fn handle_detach(
        &mut self,
        detach: &Detach<'_>,
        cx: &mut Context<'_>,
    ) -> Result<SessionEvent, String> {
        let handle = self.find(detach.handle)?;
        self.remote_handles.remove(&detach.handle);
        let link = self.link(handle).ok_or("the handle has no link")?;
        if link.phase == LinkPhase::Detaching {
            let plan = link.plan();
            if let Some(slot) = self.links.get_mut(handle as usize) {
                *slot = None;
            }
            return Ok(SessionEvent::Detached(plan));
        }
        match &detach.error {
            Some(error) if !is_client_fault(error.condition) => {
                self.forget_deliveries(handle, cx);
                Ok(SessionEvent::Lost)
            }
            error => Err(format!("the broker detached '{}': {error:?}", link.name)),
        }
    }

    /// Asks the management node to declare the queue.
    pub(super) fn declare(&mut self, queue: Amqp10Queue, frame_size: usize, cx: &mut Context<'_>) {
        let mut links = self.links();
        let requests = links.find(|(_, link)| match &link.end {
            LinkEnd::Publisher(publisher) => publisher.queue.is_none(),
            LinkEnd::Receiver(_) => false,
        });
        let handle = requests.map(|(handle, _)| handle);
        drop(links);
        if let Some(handle) = handle {
            self.begin_message(handle, (None, declaration(queue)), true, frame_size, cx);
        }
    }

    pub(super) fn describe_wait(&self) -> String {
        let links: Vec<String> = self
            .links()
            .map(|(_, link)| match &link.end {
                LinkEnd::Publisher(publisher) => format!(
                    "{} {:?} {}",
                    link.name,
                    link.phase,
                    publisher.partial.is_some()
                ),
                LinkEnd::Receiver(receiver) => {
                    format!(
                        "{} {:?} {}",
                        link.name,
                        link.phase,
                        receiver.describe_wait()
                    )
                }
            })
            .collect();
        format!(
            "{:?}: {} unsettled, {} held, {} told, window {}, {links:?}",
            self.phase,
            self.unsettled.len(),
            self.held.len(),
            self.told.len(),
            self.window_left()
        )
    }
}

/// The state that tells an outcome. `annotations` gets the encoded annotations.
fn delivery_state(outcome: ReceiverOutcome, annotations: &mut Vec<u8>) -> DeliveryState<'_> {
    DeliveryState::Outcome(match outcome {
        ReceiverOutcome::Accepted => Outcome::Accepted,
        ReceiverOutcome::Rejected => Outcome::Rejected(None),
        ReceiverOutcome::Released => Outcome::Released,
        ReceiverOutcome::Modified {
            delivery_failed,
            undeliverable_here,
            value,
        } => {
            let mut table = map(annotations);
            if value > 0 {
                table.push(&Symbol::from_static(ANNOTATION));
                table.push(&value.cast_signed());
            }
            table.finish();
            Outcome::Modified(Modified {
                delivery_failed,
                undeliverable_here,
                message_annotations: match value {
                    0 => None,
                    _ => Reader::new(annotations).read::<Map<'_>>().ok(),
                },
            })
        }
    })
}
