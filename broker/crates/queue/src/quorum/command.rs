//! The commands in the log of a quorum queue.
//!
//! ```text
//! version u8 | tag u8 | ...
//! batch:  wall clock (ms) u64 | runs: session (3 x u64) | first request number varint | count u32 | request bodies
//! others: the fields of the variant of `Command`
//! ```
//! A run has consecutive requests of one session. The message of a publish is a `u32` length and the container: the offset
//! of that length is all that the state machine remembers of the place of a message.

use crate::codec::{RangeList, VERSION, check_version};
use crate::{
    ConsumerId, DeadIncarnation, QueueSettings, QuorumFeatures, Request, RequestBody, SessionId,
};
use bytes::{BufMut, Bytes, BytesMut};
use env::{NodeId, WallTime};
use wire::{
    DecodeCause, Decoded, Reader, Varint, Wire, get_quorum_settings, put_quorum_settings,
    put_varint, wire_enum,
};

/// Most requests in one command.
pub const MAX_BATCH_REQUESTS: usize = 4096;
/// No request is added to a command that has this many bytes.
pub const MAX_BATCH_BYTES: usize = 1 << 20;

/// The name of the format in errors.
const FORMAT: &str = "quorum queue command";
/// The tag of a batch of requests. [`Command`] has the others.
const BATCH: u8 = 1;
/// Version, tag, wall clock.
const BATCH_HEADER: usize = 10;
/// The tag of a request body precedes its fields.
const TAG_LEN: usize = 1;

/// A command that is not a batch of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// The wall clock of the leader, so that a message expires at the same entry on all members.
    Time(WallTime),
    Settings(QueueSettings),
    GoneNode(DeadIncarnation),
    NodeSuspected(NodeId),
    NodeTrusted(NodeId),
    GoneSession(SessionId),
    /// Settings of a queue that has features. The features are enabled from this entry on, for good.
    Configure(Configuration),
    /// The oldest unsettled delivery of a consumer is older than its timeout. `up_to`: the last such delivery. The
    /// leader proposes it only if the cluster has the feature flag.
    ConsumerTimedOut {
        session: SessionId,
        consumer: ConsumerId,
        up_to: u64,
    },
    /// Ready messages, as inclusive ranges of their numbers, that satisfy the filter of a consumer. The consumer gets those
    /// that are still ready, as far as it has room.
    Assign {
        session: SessionId,
        consumer: ConsumerId,
        messages: Vec<(u64, u64)>,
        /// The request of the drain that ends then: no other message satisfied the filter.
        drained: Option<u64>,
    },
    /// Dead-lettered messages, as inclusive ranges of their numbers, that all target queues have confirmed.
    PassedOn(Vec<(u64, u64)>),
}

wire_enum!(Command, "a command of a quorum queue" {
    2 = Time(wall: WallTime),
    3 = Settings(settings: QueueSettings),
    4 = GoneNode(incarnation: DeadIncarnation),
    5 = NodeSuspected(node: NodeId),
    6 = NodeTrusted(node: NodeId),
    7 = GoneSession(session: SessionId),
    8 = PassedOn(ranges: Vec<(u64, u64)> as RangeList),
    9 = Configure(configuration: Configuration),
    10 = ConsumerTimedOut { session: SessionId, consumer: ConsumerId, up_to: u64 as Varint },
    11 = Assign {
        session: SessionId,
        consumer: ConsumerId,
        messages: Vec<(u64, u64)> as RangeList,
        drained: Option<u64> as Varint,
    },
});

/// The features and the settings of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    pub features: QuorumFeatures,
    pub settings: QueueSettings,
}

/// The features decide which settings follow.
impl Wire for Configuration {
    const MIN_LEN: usize = QuorumFeatures::MIN_LEN + QueueSettings::MIN_LEN;

    fn put(&self, out: &mut BytesMut) {
        let Configuration { features, settings } = self;
        features.put(out);
        settings.put(out);
        put_quorum_settings(&settings.quorum, *features, out);
    }

    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        let features = from.get()?;
        let mut settings: QueueSettings = from.get()?;
        settings.quorum = get_quorum_settings(from, features)?;
        Ok(Configuration { features, settings })
    }
}

impl Command {
    /// The log entry of the command.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(VERSION);
        self.put(&mut out);
        out.freeze()
    }
}

/// Collects requests for one command.
#[derive(Debug, Default)]
pub struct Batch {
    out: BytesMut,
    requests: usize,
    run: Option<RequestRun>,
}

#[derive(Debug)]
struct RequestRun {
    session: SessionId,
    next: u64,
    count: u32,
    /// The offset of its count.
    at: usize,
}

impl Batch {
    pub fn is_empty(&self) -> bool {
        self.requests == 0
    }

    /// Returns true if the command must be taken before another request is added.
    pub fn is_full(&self) -> bool {
        self.requests >= MAX_BATCH_REQUESTS || self.out.len() >= MAX_BATCH_BYTES
    }

    pub fn push(&mut self, request: &Request) {
        if self.out.is_empty() {
            self.out.put_u8(VERSION);
            self.out.put_u8(BATCH);
            self.out.put_u64(0);
        }
        match &mut self.run {
            Some(run) if run.session == request.session && run.next == request.seq => {}
            _ => self.begin_run(request),
        }
        if let Some(run) = &mut self.run {
            run.next += 1;
            run.count += 1;
        }
        request.body.put(&mut self.out);
        self.requests += 1;
    }

    fn begin_run(&mut self, request: &Request) {
        self.end_run();
        request.session.put(&mut self.out);
        put_varint(&mut self.out, request.seq);
        let at = self.out.len();
        self.out.put_u32(0);
        self.run = Some(RequestRun {
            session: request.session,
            next: request.seq,
            count: 0,
            at,
        });
    }

    fn end_run(&mut self) {
        let Some(run) = self.run.take() else { return };
        if let Some(count) = self.out.get_mut(run.at..run.at + 4) {
            count.copy_from_slice(&run.count.to_be_bytes());
        }
    }

    /// Takes the log entry of all collected requests, with the wall clock of the leader. `None` if there are no requests.
    pub fn take(&mut self, wall: WallTime) -> Option<Bytes> {
        if self.is_empty() {
            return None;
        }
        self.end_run();
        if let Some(at) = self.out.get_mut(2..BATCH_HEADER) {
            at.copy_from_slice(&wall.0.to_be_bytes());
        }
        self.requests = 0;
        Some(self.out.split().freeze())
    }
}

/// A decoded command. The requests of a batch are decoded one by one.
pub(super) enum DecodedCommand<'a> {
    Batch {
        wall: WallTime,
        requests: BatchReader<'a>,
    },
    Other(Command),
}

pub(super) fn decode(command: &Bytes) -> Decoded<DecodedCommand<'_>> {
    let mut from = Reader::shared(FORMAT, command);
    check_version(&mut from, VERSION)?;
    let mut batch = from.clone();
    if batch.u8()? == BATCH {
        let wall = batch.get()?;
        let requests = BatchReader {
            len: command.len(),
            from: batch,
        };
        return Ok(DecodedCommand::Batch { wall, requests });
    }
    let other = from.get()?;
    from.end()?;
    Ok(DecodedCommand::Other(other))
}

/// The node whose reachability a command changes.
pub(super) fn judged(command: &Bytes) -> Option<NodeId> {
    match decode(command).ok()? {
        DecodedCommand::Other(Command::NodeSuspected(node) | Command::NodeTrusted(node)) => {
            Some(node)
        }
        _ => None,
    }
}

/// Reads the runs of a batch.
pub(super) struct BatchReader<'a> {
    /// Bytes of the whole command.
    len: usize,
    from: Reader<'a>,
}

/// The header of a run.
pub(super) struct RunHeader {
    pub session: SessionId,
    /// The number of the first request.
    pub first: u64,
    pub count: u32,
}

impl BatchReader<'_> {
    /// Reads the header of the next run. `None` after the last run.
    pub(super) fn next_run(&mut self) -> Decoded<Option<RunHeader>> {
        if self.from.is_empty() {
            return Ok(None);
        }
        Ok(Some(RunHeader {
            session: self.from.get()?,
            first: self.from.varint()?,
            count: self.from.get()?,
        }))
    }

    /// Reads a request body. Also returns the offset of the first field in the command: that of the message if the
    /// request is a publish.
    pub(super) fn next_request(&mut self) -> Decoded<(RequestBody, u32)> {
        let offset = self.len - self.from.remaining() + TAG_LEN;
        let offset = u32::try_from(offset).map_err(|_| self.from.error(DecodeCause::Limit))?;
        Ok((self.from.get()?, offset))
    }
}
