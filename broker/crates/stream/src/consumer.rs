//! The session's side of an AMQP consumer of a stream: reads chunks with a cursor, and delivers their messages one by one.
//!
//! It belongs to the session, not to the leader, so that it survives a change of leader without a gap or a repeated
//! delivery. Settled deliveries only give credit: nothing is ever requeued.

use crate::entry;
use bytes::Bytes;
use env::planted::{self, Bug};
use env::{NodeId, Time, WallTime};
use message::Value;
use queue::cursor::{
    CursorClient, CursorEvent, CursorNotice, CursorSend, CursorSpec, CursorStart, MessageBatch,
};
use queue::{ConsumerId, ConsumerSpec, Delivery, FLOW_WINDOW, FlowMode, Name, QueueReply};
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;
use stream_log::{ChunkHeader, Entries, EntryBody, HEADER_BYTES, SubBatchMessages};

/// Chunks that are read ahead for one consumer.
const READ_AHEAD: u64 = 2;
/// Wait before a cursor is attached again, the first time.
const RETRY_FIRST: Duration = Duration::from_millis(100);
/// Longest wait before a cursor is attached again. After that, to another replica: this one may not exist any more.
const RETRY_MOST: Duration = Duration::from_secs(2);
/// Interval of asking a replica on another node for its position while nothing arrives.
const PROBE_EVERY: Duration = Duration::from_secs(30);

/// Work that a consumer leaves to its host.
#[derive(Clone, Debug, PartialEq)]
pub enum ConsumerOutput {
    /// Send a request to a replica.
    Send(CursorSend),
    /// Messages for the client.
    Deliver(Vec<Delivery>),
    /// The answer to a change of the credit.
    Credited {
        /// The id of the last delivery.
        last: u64,
        /// The rest of the credit was discarded.
        drained: bool,
    },
    /// The consumer has ended: the stream was deleted, for example.
    Cancelled,
}

/// A chunk that is being delivered.
#[derive(Debug)]
struct OpenBatch {
    bytes: Bytes,
    /// The entries that are left.
    header: ChunkHeader,
    /// The position of the next entry.
    at: usize,
    /// Messages to skip: below the first one that is wanted.
    first: u64,
    received: WallTime,
    /// The sub-batch that is being delivered: position of its next message, messages left, and the next offset.
    sub_batch: Option<(usize, u16, u64)>,
}

/// See the module.
#[derive(Debug)]
pub struct StreamConsumer {
    queue: Name,
    node: NodeId,
    cursor: CursorClient,
    /// The node that the last request went to.
    replica: Option<NodeId>,
    /// The offset that the next batch follows, once the cursor has a position.
    position: Option<u64>,
    flow_mode: FlowMode,
    prefetch: usize,
    /// The last delivery that the credit allows.
    up_to: u64,
    last: u64,
    unsettled: BTreeSet<u64>,
    /// Deliveries that the client was not sent yet, as far as known: id and bytes.
    in_flight: VecDeque<(u64, u64)>,
    in_flight_bytes: u64,
    batches: VecDeque<OpenBatch>,
    drains: bool,
    /// The position when the replica was asked last whether there is more.
    probed: Option<u64>,
    has_ended: bool,
    retry: Duration,
    retry_at: Option<Time>,
    probe_at: Option<Time>,
}

/// Checks the properties of a consumer of a stream, as RabbitMQ does, and returns the position at which it starts.
///
/// # Errors
///
/// The refusal for the client.
pub fn consumer_rules(
    spec: &ConsumerSpec,
    label: &str,
    now: WallTime,
) -> Result<CursorStart, QueueReply> {
    let refused = |code, text| Err(QueueReply::Refused { code, text });
    if spec.flow_mode == FlowMode::Prefetch {
        if spec.prefetch == 0 {
            let text = format!("consumer prefetch count is not set for stream {label}");
            return refused(406, text);
        }
        if spec.no_ack {
            let text = format!("automatic acknowledgement not supported by stream {label}");
            return refused(540, text);
        }
    }
    if spec.exclusive {
        let text = format!("exclusive consumers are not supported by stream {label}");
        return refused(540, text);
    }
    match start_of(spec.arguments.get("x-stream-offset"), now) {
        Some(start) => Ok(start),
        None => refused(
            406,
            format!(
                "invalid argument 'x-stream-offset' for {label}: it must be first, last, next, an offset, a timestamp or \
                 an interval such as 1h"
            ),
        ),
    }
}

fn start_of(argument: Option<&Value>, now: WallTime) -> Option<CursorStart> {
    match argument {
        None => Some(CursorStart::Next),
        // Seconds.
        Some(Value::Timestamp(at)) => {
            Some(CursorStart::Timestamp(WallTime(at.saturating_mul(1000))))
        }
        Some(value) => match value.as_str() {
            Some("first") => Some(CursorStart::First),
            Some("last") => Some(CursorStart::Last),
            Some("next") => Some(CursorStart::Next),
            Some(interval) => {
                let ms = interval_ms(interval)?;
                Some(CursorStart::Timestamp(WallTime(now.0.saturating_sub(ms))))
            }
            None => {
                let offset = u64::try_from(value.as_integer()?).ok()?;
                Some(CursorStart::Offset(offset))
            }
        },
    }
}

/// Milliseconds of an interval such as `7D`: a number and one of Y, M, D, h, m and s.
pub(crate) fn interval_ms(text: &str) -> Option<u64> {
    let unit = text.chars().next_back()?;
    let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
    let seconds = match unit {
        'Y' => 365 * 24 * 3600,
        'M' => 30 * 24 * 3600,
        'D' => 24 * 3600,
        'h' => 3600,
        'm' => 60,
        's' => 1,
        _ => return None,
    };
    number.checked_mul(seconds)?.checked_mul(1000)
}

impl StreamConsumer {
    /// A consumer with properties that [`consumer_rules`] accepted. `replicas` has the nodes of the stream's replicas, the
    /// preferred one first, and `node` is the node of the session. Attaches the cursor.
    ///
    /// # Panics
    ///
    /// If there is no replica.
    pub fn new(
        id: ConsumerId,
        spec: &ConsumerSpec,
        start: CursorStart,
        queue: Name,
        (node, replicas): (NodeId, Vec<NodeId>),
        now: Time,
        out: &mut Vec<ConsumerOutput>,
    ) -> StreamConsumer {
        let cursor_spec = CursorSpec {
            tag: spec.tag.clone(),
            channel: spec.channel,
            start,
            arguments: spec.arguments.clone(),
        };
        let mut consumer = StreamConsumer {
            queue,
            node,
            cursor: CursorClient::new(id, cursor_spec, replicas, READ_AHEAD),
            replica: None,
            position: None,
            flow_mode: spec.flow_mode,
            prefetch: usize::try_from(spec.prefetch).unwrap_or(usize::MAX),
            up_to: match spec.flow_mode {
                FlowMode::Prefetch => u64::MAX,
                FlowMode::Credit => 0,
            },
            last: 0,
            unsettled: BTreeSet::new(),
            in_flight: VecDeque::new(),
            in_flight_bytes: 0,
            batches: VecDeque::new(),
            drains: false,
            probed: None,
            has_ended: false,
            retry: RETRY_FIRST,
            retry_at: None,
            probe_at: None,
        };
        consumer.attach(now, out);
        consumer
    }

    fn attach(&mut self, now: Time, out: &mut Vec<ConsumerOutput>) {
        let send = match self.retry < RETRY_MOST {
            true => self.cursor.attach(),
            false => {
                // The replica may have attached the cursor, and its answer may be lost.
                let detach = self.cursor.detach();
                self.send(detach, out);
                self.cursor.attach_elsewhere()
            }
        };
        self.send(send, out);
        self.retry_at = Some(now + self.retry);
        self.retry = (self.retry * 2).min(RETRY_MOST);
    }

    fn send(&mut self, send: CursorSend, out: &mut Vec<ConsumerOutput>) {
        self.replica = Some(send.to);
        out.push(ConsumerOutput::Send(send));
    }

    /// An event of a replica for this consumer.
    pub fn event(&mut self, now: Time, event: CursorEvent, out: &mut Vec<ConsumerOutput>) {
        if self.has_ended {
            return;
        }
        let was_detached = matches!(event, CursorEvent::Detached { .. });
        let is_answer = matches!(event, CursorEvent::Attached { .. });
        let shows_end =
            matches!(event, CursorEvent::Attached { next, .. } if Some(next) == self.position);
        let mut notices = Vec::new();
        let send = self.cursor.handle(event, &mut notices);
        if self.cursor.is_attached() {
            self.retry = RETRY_FIRST;
            self.retry_at = None;
            let is_remote = self.replica != Some(self.node);
            self.probe_at = is_remote.then(|| now + PROBE_EVERY);
        }
        match send {
            // Not at once: no replica may be able to serve the cursor yet.
            Some(_) if was_detached => self.retry_at = Some(now + self.retry),
            Some(send) => {
                self.send(send, out);
                self.retry_at = Some(now + self.retry);
            }
            None => {}
        }
        for notice in notices {
            match notice {
                CursorNotice::Attached { next } => self.position = Some(next),
                CursorNotice::Batch(batch) => {
                    self.position = Some(batch.next());
                    self.push(&batch);
                }
                CursorNotice::Refused { .. } => {
                    self.has_ended = true;
                    self.retry_at = None;
                    self.probe_at = None;
                    return out.push(ConsumerOutput::Cancelled);
                }
            }
        }
        self.deliver(out);
        if is_answer && self.drains && self.batches.is_empty() {
            // The replica had credit since the question, and has sent nothing: there is nothing. The answer that gives the
            // cursor its first position belongs to no question.
            match shows_end && self.probed == self.position {
                true => self.finish_drain(true, out),
                false => self.ask_for_more(out),
            }
        }
    }

    fn push(&mut self, batch: &MessageBatch) {
        let Ok((header, _)) = ChunkHeader::decode(&batch.bytes) else {
            return;
        };
        self.batches.push_back(OpenBatch {
            at: HEADER_BYTES + usize::from(header.filter_len),
            bytes: batch.bytes.clone(),
            header,
            first: batch.first,
            received: batch.received,
            sub_batch: None,
        });
    }

    fn may_deliver(&self) -> bool {
        let has_flow = self.in_flight.len() < FLOW_WINDOW.messages as usize
            && self.in_flight_bytes < FLOW_WINDOW.bytes;
        let has_credit = self.last < self.up_to;
        let is_within = match self.flow_mode {
            FlowMode::Prefetch => {
                let more = usize::from(planted::is(Bug::StreamOverPrefetch));
                self.unsettled.len() < self.prefetch.saturating_add(more)
            }
            FlowMode::Credit => true,
        };
        has_flow && has_credit && is_within && !self.has_ended
    }

    /// Delivers waiting messages, as far as credit and limits allow.
    fn deliver(&mut self, out: &mut Vec<ConsumerOutput>) {
        let mut deliveries = Vec::new();
        let mut finished = 0;
        while self.may_deliver() {
            let Some(batch) = self.batches.front_mut() else {
                break;
            };
            let (first, received) = (batch.first, batch.received);
            let Some((offset, message)) = batch.next_message() else {
                self.batches.pop_front();
                finished += 1;
                continue;
            };
            if offset < first && !planted::is(Bug::StreamChunkFromStart) {
                continue;
            }
            let Some(message) = entry::decode(&message, offset, received, &self.queue) else {
                continue;
            };
            self.last += 1;
            let bytes = message.body_len() as u64;
            self.in_flight.push_back((self.last, bytes));
            self.in_flight_bytes += bytes;
            if self.flow_mode == FlowMode::Prefetch {
                self.unsettled.insert(self.last);
            }
            deliveries.push(Delivery {
                id: self.last,
                redelivered: false,
                attempts: None,
                acquired: 0,
                left: 0,
                message,
                annotations: None,
            });
        }
        if !deliveries.is_empty() {
            out.push(ConsumerOutput::Deliver(deliveries));
        }
        if finished > 0 {
            let send = self.cursor.add_credit(finished);
            // Without an attachment the next one carries the credit.
            if self.cursor.is_attached() {
                self.send(send, out);
            }
        }
        if self.drains && self.last >= self.up_to {
            self.finish_drain(true, out);
        }
    }

    fn finish_drain(&mut self, drained: bool, out: &mut Vec<ConsumerOutput>) {
        self.drains = false;
        if drained {
            self.up_to = self.last;
        }
        let last = self.last;
        out.push(ConsumerOutput::Credited { last, drained });
    }

    /// The client settled deliveries, with any outcome.
    pub fn settle(&mut self, ids: &[(u64, u64)], out: &mut Vec<ConsumerOutput>) {
        for (from, to) in ids {
            if from > to {
                continue;
            }
            let settled: Vec<u64> = self.unsettled.range(from..=to).copied().collect();
            for id in settled {
                self.unsettled.remove(&id);
            }
        }
        if self.flow_mode == FlowMode::Prefetch {
            // The client has received the messages that it settles.
            let oldest = self.unsettled.first().copied().unwrap_or(u64::MAX);
            self.forget_in_flight(oldest.saturating_sub(1));
        }
        self.deliver(out);
    }

    /// Sets the last delivery that the credit allows. With an answer, [`ConsumerOutput::Credited`] follows: at once, or
    /// after everything that is there was delivered if the rest of the credit is to be discarded.
    pub fn set_credit(
        &mut self,
        up_to: u64,
        answers: bool,
        drain: bool,
        out: &mut Vec<ConsumerOutput>,
    ) {
        if self.drains {
            self.finish_drain(false, out);
        }
        self.up_to = up_to;
        self.deliver(out);
        if !answers {
            return;
        }
        if !drain {
            let last = self.last;
            return out.push(ConsumerOutput::Credited {
                last,
                drained: false,
            });
        }
        self.drains = true;
        if self.last >= self.up_to {
            return self.finish_drain(true, out);
        }
        self.ask_for_more(out);
    }

    /// Asks the replica for its position. The replica sends its waiting batches before the answer.
    fn ask_for_more(&mut self, out: &mut Vec<ConsumerOutput>) {
        self.probed = self.position;
        if self.cursor.is_attached() {
            let send = self.cursor.probe();
            self.send(send, out);
        }
    }

    /// The client was sent all deliveries up to this one.
    pub fn received(&mut self, up_to: u64, out: &mut Vec<ConsumerOutput>) {
        self.forget_in_flight(up_to);
        self.deliver(out);
        // An answer that came while batches waited for the client did not show the end.
        if self.drains && self.batches.is_empty() {
            self.ask_for_more(out);
        }
    }

    fn forget_in_flight(&mut self, up_to: u64) {
        while let Some((id, bytes)) = self.in_flight.front().copied() {
            if id > up_to {
                break;
            }
            self.in_flight.pop_front();
            self.in_flight_bytes -= bytes;
        }
    }

    /// The replicas have changed, the preferred one first.
    pub fn set_replicas(
        &mut self,
        replicas: Vec<NodeId>,
        now: Time,
        out: &mut Vec<ConsumerOutput>,
    ) {
        if replicas.is_empty() || self.has_ended {
            return;
        }
        if let Some(send) = self.cursor.set_replicas(replicas) {
            self.send(send, out);
            self.retry_at = Some(now + self.retry);
        }
    }

    /// The node cannot be reached.
    pub fn node_lost(&mut self, node: NodeId, now: Time, out: &mut Vec<ConsumerOutput>) {
        if self.has_ended {
            return;
        }
        if let Some(send) = self.cursor.node_lost(node) {
            self.send(send, out);
            self.retry_at = Some(now + self.retry);
        }
    }

    /// The connection to a node was interrupted: events in flight may be lost.
    pub fn node_restored(&mut self, node: NodeId, out: &mut Vec<ConsumerOutput>) {
        if self.replica == Some(node) && self.cursor.is_attached() && !self.has_ended {
            let send = self.cursor.probe();
            self.send(send, out);
        }
    }

    /// Ends the consumer.
    pub fn cancel(&mut self, out: &mut Vec<ConsumerOutput>) {
        if !std::mem::replace(&mut self.has_ended, true) {
            let send = self.cursor.detach();
            self.send(send, out);
        }
    }

    /// When to call [`StreamConsumer::tick`].
    pub fn wake_at(&self) -> Option<Time> {
        match (self.retry_at, self.probe_at) {
            _ if self.has_ended => None,
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Repeats requests without an answer.
    pub fn tick(&mut self, now: Time, out: &mut Vec<ConsumerOutput>) {
        if self.has_ended {
            return;
        }
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            if !self.cursor.is_attached() {
                self.attach(now, out);
            }
        }
        if self.probe_at.is_some_and(|at| at <= now) {
            self.probe_at = Some(now + PROBE_EVERY);
            if self.cursor.is_attached() {
                let send = self.cursor.probe();
                self.send(send, out);
            }
        }
    }
}

impl OpenBatch {
    /// The next message with its offset. Compressed sub-batches are passed over, as in RabbitMQ.
    fn next_message(&mut self) -> Option<(u64, Bytes)> {
        loop {
            if let Some((at, left, offset)) = self.sub_batch {
                let rest = self.bytes.get(at..)?;
                let message = SubBatchMessages::new(rest, left).next();
                self.sub_batch = None;
                // A publisher can send anything in a sub-batch: the rest of a damaged one is passed over.
                if let Some(Ok(message)) = message {
                    let message = self.bytes.slice_ref(message);
                    let at = at + 4 + message.len();
                    self.sub_batch = (left > 1).then_some((at, left - 1, offset + 1));
                    return Some((offset, message));
                }
                continue;
            }
            let rest = self.bytes.get(self.at..)?;
            let entry = Entries::new(&self.header, rest).next()?.ok()?;
            self.header.entries -= 1;
            match entry.body {
                EntryBody::Message(message) => {
                    let message = self.bytes.slice_ref(message);
                    self.at += 4 + message.len();
                    self.header.first_offset = entry.offset + 1;
                    return Some((entry.offset, message));
                }
                EntryBody::SubBatch(batch) => {
                    let start = self.at + 11;
                    self.at = start + batch.data.len();
                    self.header.first_offset = entry.offset + u64::from(batch.records);
                    if batch.compression == 0 {
                        self.sub_batch = Some((start, batch.records, entry.offset));
                    }
                }
            }
        }
    }
}
