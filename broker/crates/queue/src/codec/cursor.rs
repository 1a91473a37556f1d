//! Encodings of the requests and answers of streams, and of cursors.

use crate::cursor::{
    CursorEvent, CursorRequest, CursorSpec, CursorStart, MessageBatch, StreamBatch, StreamChunks,
    StreamReply, StreamRequest, StreamStats,
};
use crate::{ConsumerId, Name};
use bytes::Bytes;
use env::WallTime;
use message::Table;
use wire::{Varint, wire_enum, wire_struct};

wire_struct!(StreamBatch {
    producer: Option<Name>,
    version: u16 as Varint,
    count: u32 as Varint,
    entries: Bytes,
});
wire_enum!(StreamRequest, "a request to a stream" {
    1 = StoreOffset { name: Name, offset: u64 as Varint },
    2 = QueryOffset { name: Name },
    3 = QueryPublisher { name: Name },
    4 = ResolveOffset { start: CursorStart },
    5 = Stats,
    6 = ReadChunks { from: u64 as Varint, end: u64 as Varint },
    7 = AppendChunks { at: u64 as Varint, chunks: Vec<Bytes> },
});
wire_enum!(StreamReply, "an answer of a stream" {
    1 = Offset(offset: Option<u64> as Varint),
    2 = PublishingId(id: Option<u64> as Varint),
    3 = Stats(stats: StreamStats),
    4 = Chunks(chunks: StreamChunks),
});
wire_struct!(StreamChunks {
    next: u64 as Varint,
    chunks: Vec<Bytes>,
});
wire_struct!(StreamStats {
    first_offset: Option<u64> as Varint,
    last_chunk: Option<u64> as Varint,
    committed: Option<u64> as Varint,
});
wire_enum!(CursorStart, "the start of a cursor" {
    1 = First,
    2 = Last,
    3 = Next,
    4 = Offset(offset: u64 as Varint),
    5 = Timestamp(time: WallTime),
});
wire_struct!(CursorSpec {
    tag: Name,
    channel: u16 as Varint,
    start: CursorStart,
    arguments: Table,
});
wire_enum!(CursorRequest, "a request of a cursor" {
    1 = Attach { cursor: ConsumerId, attachment: u32 as Varint, spec: CursorSpec, total: u64 as Varint },
    2 = Credit { cursor: ConsumerId, attachment: u32 as Varint, total: u64 as Varint, probe: bool },
    3 = Detach { cursor: ConsumerId },
});
wire_struct!(MessageBatch {
    from: u64 as Varint,
    first: u64 as Varint,
    count: u32 as Varint,
    received: WallTime,
    bytes: Bytes,
});
wire_enum!(CursorEvent, "an event of a cursor" {
    1 = Attached { cursor: ConsumerId, attachment: u32 as Varint, next: u64 as Varint },
    2 = Batch { cursor: ConsumerId, attachment: u32 as Varint, batch: MessageBatch },
    3 = Detached { cursor: ConsumerId, attachment: u32 as Varint },
    4 = Refused { cursor: ConsumerId, attachment: u32 as Varint, text: String },
});
