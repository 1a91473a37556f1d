//! Encodings of [`QueueMessage`] and its parts.

use crate::cursor::{StreamBatch, StreamRequest};
use crate::{
    Annotations, BrowsePosition, ConsumerFilter, ConsumerId, ConsumerSpec, DeadIncarnation,
    DeliveryProgress, EpochConsumer, FlowMode, Modification, Name, PositionedGet, QueueMessage,
    Request, RequestBody, ResumeConsumer, SessionEpoch, SessionId, Settlement, SettlementOutcome,
};
use bytes::{Bytes, BytesMut};
use env::{Incarnation, NodeId};
use message::{Message, Table};
use wire::{
    DecodeCause, Decoded, Encoding, Reader, Varint, Wire, put_bytes, put_varint, wire_enum,
    wire_newtype, wire_struct,
};

wire_enum!(QueueMessage, "a message to a queue" {
    1 = Request(request: Request),
    2 = Resume(resume: ResumeConsumer),
    3 = Received(progress: DeliveryProgress),
});
wire_struct!(Request {
    session: SessionId,
    seq: u64 as Varint,
    body: RequestBody,
});
wire_struct!(ResumeConsumer {
    session: SessionId,
    consumer: ConsumerId,
    next: u64 as Varint,
});
wire_struct!(DeliveryProgress {
    session: SessionId,
    consumer: ConsumerId,
    up_to: u64 as Varint,
});

// The state machine of a quorum queue refers to a published message by the offset of its length in the log entry: the
// message follows the tag.
wire_enum!(RequestBody, "a queue request" {
    1 = Publish(message: Message),
    2 = Consume { consumer: ConsumerId, spec: ConsumerSpec },
    3 = Cancel { consumer: ConsumerId },
    4 = Settle { consumer: ConsumerId, outcome: SettlementOutcome, ids: Vec<(u64, u64)> as RangeList },
    5 = Get { consumer: ConsumerId, no_ack: bool },
    6 = Recover { consumer: ConsumerId },
    7 = Purge,
    8 = Stat,
    9 = Delete { if_unused: bool, if_empty: bool },
    10 = Close,
    11 = CancelAndRequeue { consumer: ConsumerId },
    12 = TakeOver(epoch_consumer: Box<EpochConsumer>),
    13 = Credit { consumer: ConsumerId, up_to: u64 as Varint, drain: bool },
    14 = CreditOneWay { consumer: ConsumerId, up_to: u64 as Varint },
    15 = Modify { consumer: ConsumerId, ids: Vec<(u64, u64)> as RangeList, modification: Box<Modification> },
    16 = PublishBatch(batch: StreamBatch),
    17 = Stream(request: StreamRequest),
    18 = GetAt(get: Box<PositionedGet>),
});

wire_struct!(PositionedGet {
    consumer: ConsumerId,
    no_ack: bool,
    at: BrowsePosition,
});
wire_struct!(BrowsePosition {
    level: u8,
    number: u64 as Varint,
    segment: u64 as Varint,
    offset: u64 as Varint,
});

wire_newtype!(ConsumerId(u32 as Varint));
/// How a consumer is served: its flow mode, and whether a filter follows its other properties.
enum ServiceMode {
    Prefetch,
    Credit,
    FilteredCredit,
}

wire_enum!(ServiceMode, "a flow mode" { 0 = Prefetch, 1 = Credit, 2 = FilteredCredit });

impl Wire for ConsumerSpec {
    const MIN_LEN: usize = Name::MIN_LEN
        + ServiceMode::MIN_LEN
        + 3 * MIN_VARINT_LEN
        + 2 * bool::MIN_LEN
        + Table::MIN_LEN;

    fn put(&self, out: &mut BytesMut) {
        self.tag.put(out);
        put_varint(out, self.channel.into());
        let mode = match (self.flow_mode, &self.filter) {
            (FlowMode::Prefetch, _) => ServiceMode::Prefetch,
            (FlowMode::Credit, None) => ServiceMode::Credit,
            (FlowMode::Credit, Some(_)) => ServiceMode::FilteredCredit,
        };
        debug_assert!(self.filter.is_none() || self.flow_mode == FlowMode::Credit);
        mode.put(out);
        put_varint(out, self.prefetch.into());
        self.no_ack.put(out);
        self.exclusive.put(out);
        <Varint as Encoding<i32>>::put(&self.priority, out);
        self.arguments.put(out);
        if let (ServiceMode::FilteredCredit, Some(filter)) = (mode, &self.filter) {
            put_bytes(out, filter.as_bytes());
        }
    }

    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        let tag = from.get()?;
        let channel = <Varint as Encoding<u16>>::get(from)?;
        let mode = from.get()?;
        let mut spec = ConsumerSpec {
            tag,
            channel,
            flow_mode: match mode {
                ServiceMode::Prefetch => FlowMode::Prefetch,
                ServiceMode::Credit | ServiceMode::FilteredCredit => FlowMode::Credit,
            },
            prefetch: <Varint as Encoding<u32>>::get(from)?,
            no_ack: from.get()?,
            exclusive: from.get()?,
            priority: <Varint as Encoding<i32>>::get(from)?,
            arguments: from.get()?,
            filter: None,
        };
        if let ServiceMode::FilteredCredit = mode {
            let encoded: Bytes = from.get()?;
            let filter = ConsumerFilter::new(&encoded);
            spec.filter = Some(filter.ok_or(from.error(DecodeCause::Limit))?);
        }
        Ok(spec)
    }
}

/// Bytes of the shortest number.
const MIN_VARINT_LEN: usize = 1;

wire_struct!(EpochConsumer {
    consumer: ConsumerId,
    spec: ConsumerSpec,
    settled: Option<Settlement>,
    epoch: SessionEpoch,
    at: u64 as Varint,
});
wire_enum!(SessionEpoch, "a session epoch" { 0 = New, 1 = Of(first: SessionId) });
wire_struct!(Settlement {
    session: SessionId,
    consumer: ConsumerId,
    ids: Vec<(u64, u64)> as RangeList,
});
wire_enum!(SettlementOutcome, "a settlement outcome" {
    0 = Accepted,
    1 = Requeue,
    2 = Rejected,
    3 = Released,
    4 = Unseen,
});
wire_struct!(Modification {
    delivery_failed: bool,
    undeliverable_here: bool,
    annotations: Annotations,
});
wire_struct!(DeadIncarnation {
    node: NodeId,
    before: Incarnation,
});

impl Wire for Annotations {
    const MIN_LEN: usize = Table::MIN_LEN;

    fn put(&self, out: &mut BytesMut) {
        self.table().put(out);
    }

    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        Annotations::new(from.get()?).map_err(|_| from.error(DecodeCause::Limit))
    }
}

/// Inclusive ranges of ids: the first id of each range and the number of ids after it. A range that ends before it begins
/// contains no id and is not encoded.
pub(crate) enum RangeList {}

/// Bytes of the shortest range.
const MIN_RANGE_LEN: usize = 2;

impl Encoding<Vec<(u64, u64)>> for RangeList {
    fn put(ranges: &Vec<(u64, u64)>, out: &mut BytesMut) {
        let valid = || ranges.iter().filter(|(from, to)| from <= to);
        put_varint(out, valid().count() as u64);
        for (from, to) in valid() {
            put_varint(out, *from);
            put_varint(out, to - from);
        }
    }

    fn get(from: &mut Reader<'_>) -> Decoded<Vec<(u64, u64)>> {
        let count = from.varint_count(MIN_RANGE_LEN)?;
        let mut ranges = Vec::with_capacity(count);
        for _ in 0..count {
            let first = from.varint()?;
            let last = first.checked_add(from.varint()?);
            ranges.push((first, last.ok_or(from.error(DecodeCause::Limit))?));
        }
        Ok(ranges)
    }
}
