//! Buffer of the outputs, log records and frames that groups produce during one turn.

use crate::codec::{self, Transfer};
use crate::{GroupId, HostConfig, HostOutput, shard_of};
use bytes::{BufMut, Bytes, BytesMut};
use env::NodeId;
use env::planted::{self, Bug};
use raft::eraftpb::Message;
use std::collections::BTreeMap;
use wal::{Record, RecordBody};

/// An action to take once a batch of the log is durable.
#[derive(Debug)]
pub(crate) enum PendingAction {
    /// raft-rs may rely on everything that it handed out up to `number`; then `messages` are sent.
    Ready {
        group: GroupId,
        epoch: u64,
        number: u64,
        /// The commit index recorded with it.
        commit: u64,
        messages: Vec<Message>,
    },
    /// The commit index is durable.
    Commit {
        group: GroupId,
        epoch: u64,
        commit: u64,
    },
    /// Everything still needed from this log file is durable in a newer one.
    Relogged { file: u64 },
    /// The deletion of the group is durable; its files can be deleted.
    Deleted { group: GroupId },
}

#[derive(Debug, Default)]
pub(crate) struct OutputBuffer {
    pub out: Vec<HostOutput>,
    pub records: Vec<Record>,
    pub waiting: Vec<PendingAction>,
    /// Elections that replicas here have won since the process started.
    pub elections_won: u64,
    /// By receiving node and shard.
    frames: BTreeMap<(NodeId, u16), BytesMut>,
    /// Peers with another number of shards than this node. On every other peer, the shard with the index of
    /// this one has the same groups.
    other_shards: BTreeMap<NodeId, u16>,
    shards: u16,
    shard: u16,
    max_frame_bytes: usize,
}

impl OutputBuffer {
    pub(crate) fn new(config: &HostConfig) -> OutputBuffer {
        OutputBuffer {
            shards: config.shards,
            shard: config.shard,
            max_frame_bytes: config.limits.max_frame_bytes,
            ..OutputBuffer::default()
        }
    }

    pub(crate) fn record(&mut self, group: GroupId, body: RecordBody) {
        self.records.push(Record { group, body });
    }

    /// A peer has started with this number of shards.
    pub(crate) fn set_peer_shards(&mut self, node: NodeId, shards: u16) {
        if shards == self.shards {
            self.other_shards.remove(&node);
        } else {
            self.other_shards.insert(node, shards);
        }
    }

    /// The shard of a peer that has the group.
    fn receiver(&self, to: NodeId, group: GroupId) -> (NodeId, u16) {
        let shard = match self.other_shards.get(&to) {
            Some(shards) if !planted::is(Bug::SenderShardIndex) => shard_of(group.0, *shards),
            _ => self.shard,
        };
        (to, shard)
    }

    fn frame(&mut self, to: (NodeId, u16)) -> &mut BytesMut {
        let frame = self.frames.entry(to).or_default();
        if frame.is_empty() {
            frame.put_u8(codec::VERSION);
        }
        frame
    }

    /// Closes a receiver's frame if it is full.
    fn flush_full_frame(&mut self, to: (NodeId, u16)) {
        let full = self
            .frames
            .get_mut(&to)
            .filter(|f| f.len() >= self.max_frame_bytes);
        if let Some(frame) = full {
            let frame = std::mem::take(frame).freeze();
            let (to, shard) = to;
            self.out.push(HostOutput::Send { to, shard, frame });
        }
    }

    pub(crate) fn send(&mut self, group: GroupId, messages: Vec<Message>) {
        for m in messages {
            let to = self.receiver(NodeId(m.to), group);
            codec::encode_raft(self.frame(to), group, &m);
            self.flush_full_frame(to);
        }
    }

    pub(crate) fn send_sleep(&mut self, to: NodeId, group: GroupId, term: u64, commit: u64) {
        let to = self.receiver(to, group);
        codec::encode_sleep(self.frame(to), group, term, commit);
        self.flush_full_frame(to);
    }

    pub(crate) fn send_transfer(&mut self, to: NodeId, group: GroupId, transfer: &Transfer) {
        let to = self.receiver(to, group);
        codec::encode_transfer(self.frame(to), group, transfer);
        self.flush_full_frame(to);
    }

    /// Closes all frames.
    pub(crate) fn close_frames(&mut self) {
        if self.frames.is_empty() {
            return;
        }
        for ((to, shard), frame) in &mut self.frames {
            if frame.len() > 1 {
                let frame: Bytes = std::mem::take(frame).freeze();
                self.out.push(HostOutput::Send {
                    to: *to,
                    shard: *shard,
                    frame,
                });
            }
        }
        self.frames.clear();
    }
}
