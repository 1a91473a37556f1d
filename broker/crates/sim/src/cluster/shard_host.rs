//! A shard in its node: its inbox and its client connections, as the reactor provides them.

use super::byte_stream::{ByteStream, StreamPiece};
use super::node::{Node, Reply};
use crate::process::Action;
use bytes::{Bytes, BytesMut};
use consensus::{JobId, JobResult, WalToken};
use control::ControlRequest;
use env::{Incarnation, NodeId, Time};
use metadata::NodeRecord;
use metadata::features::VersionFacts;
use session::SessionState;
use session::{ConnectionInfo, ProtocolId};
use shard::{ConnectionKey, LocalMessage, Shard, ShardDriver};
use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};

/// Input for a shard's next turn.
pub(super) enum Inbound {
    Local(u16, LocalMessage),
    Durable(WalToken),
    WalRolled(u64),
    JobDone(JobId, JobResult),
    /// Arrives before the next item. Shard 0 only.
    PeerProgram(NodeId, VersionFacts),
    PeerUp(NodeId, Incarnation, u16),
    PeerDown(NodeId),
    PeerFrame(NodeId, Bytes),
    Join(NodeRecord),
    Control(ControlRequest),
    ShutDown,
}

struct Connection {
    client: u64,
    number: u64,
    stream: ByteStream,
    /// Bytes that were read and not yet consumed by the session.
    partial: BytesMut,
    session_state: SessionState,
    /// A pause has ended, so the remaining bytes must be read.
    must_resume: bool,
    sent: u64,
    /// The node's side is closed. Further bytes of the client are discarded.
    is_ended: bool,
}

pub(super) struct ShardHost {
    pub shard: Shard,
    pub listening: bool,
    /// Whether the shard needs a turn even if its inbox is empty.
    pub due: bool,
    /// In order of arrival.
    inbox: VecDeque<Inbound>,
    /// Frames of other shards in the order in which they were sent, with their arrival times.
    delayed: VecDeque<(Time, Inbound)>,
    connections: BTreeMap<usize, Connection>,
    keys: BTreeMap<u64, usize>,
    dirty_connections: VecDeque<usize>,
}

impl ShardHost {
    pub(super) fn new(shard: Shard) -> ShardHost {
        ShardHost {
            shard,
            listening: false,
            due: true,
            inbox: VecDeque::new(),
            delayed: VecDeque::new(),
            connections: BTreeMap::new(),
            keys: BTreeMap::new(),
            dirty_connections: VecDeque::new(),
        }
    }

    pub(super) fn put(&mut self, item: Inbound) {
        self.inbox.push_back(item);
        self.due = true;
    }

    /// Adds an item that arrives at `at`, or after the last one that was added.
    pub(super) fn put_delayed(&mut self, at: Time, item: Inbound) {
        let last = self.delayed.back().map_or(Time::ZERO, |(time, _)| *time);
        self.delayed.push_back((at.max(last), item));
    }

    /// Tokens become durable in order, so the newest one covers the others, as with the log thread.
    pub(super) fn durable(&mut self, token: WalToken) {
        if let Some(Inbound::Durable(last)) = self.inbox.back_mut() {
            *last = token;
        } else {
            self.put(Inbound::Durable(token));
        }
    }

    pub(super) fn wake_at(&self) -> Option<Time> {
        let delayed = self.delayed.front().map(|(at, _)| *at);
        let due = self.due.then_some(Time::ZERO);
        [self.shard.wake_at(), delayed, due]
            .into_iter()
            .flatten()
            .min()
    }

    pub(super) fn wants_turn(&self, now: Time) -> bool {
        self.due || self.delayed.front().is_some_and(|(at, _)| *at <= now)
    }

    pub(super) fn process_inbox(&mut self, now: Time) {
        while let Some((_, item)) = self.delayed.pop_front_if(|(at, _)| *at <= now) {
            self.inbox.push_back(item);
        }
        while let Some(item) = self.inbox.pop_front() {
            self.process(item);
        }
    }

    fn process(&mut self, item: Inbound) {
        let shard = &mut self.shard;
        match item {
            Inbound::Local(from, message) => shard.shard_message(from, message),
            Inbound::Durable(token) => shard.durable(token),
            Inbound::WalRolled(file) => shard.wal_rolled(file),
            Inbound::JobDone(id, result) => shard.job_done(id, result),
            Inbound::PeerProgram(node, program) => shard.peer_program(node, Some(program)),
            Inbound::PeerUp(node, incarnation, shards) => shard.peer_up(node, incarnation, shards),
            Inbound::PeerDown(node) => shard.peer_down(node),
            Inbound::PeerFrame(from, frame) => shard.peer_frame(from, frame),
            Inbound::Join(node) => shard.join_requested(node),
            Inbound::Control(request) => shard.control(request),
            Inbound::ShutDown => shard.shut_down(),
        }
    }

    pub(super) fn accept(&mut self, client: u64, number: u64, protocol: ProtocolId) {
        let free_key = (0..).find(|k| !self.connections.contains_key(k));
        let key = free_key.unwrap_or_default();
        let peer = SocketAddr::from((Ipv4Addr::new(10, 0, 0, 1), (number % 60_000) as u16));
        let local = SocketAddr::from((Ipv4Addr::new(10, 0, 0, 2), 5672));
        let info = ConnectionInfo {
            protocol,
            peer,
            local,
            tls: None,
        };
        self.keys.insert(number, key);
        self.connections.insert(
            key,
            Connection {
                client,
                number,
                stream: ByteStream::default(),
                partial: BytesMut::new(),
                session_state: SessionState::Open,
                must_resume: false,
                sent: 0,
                is_ended: false,
            },
        );
        self.shard.connected(ConnectionKey(key), info);
        self.due = true;
    }

    /// Returns false if the connection does not exist.
    pub(super) fn receive_piece(
        &mut self,
        connection: u64,
        number: u64,
        piece: &StreamPiece,
    ) -> bool {
        let key = self.keys.get(&connection);
        let Some(connection) = key.and_then(|k| self.connections.get_mut(k)) else {
            return false;
        };
        connection.stream.put(number, piece.clone());
        self.due = true;
        true
    }

    /// Reads from all connections that are not paused.
    pub(super) fn serve(&mut self) {
        let keys: Vec<usize> = self.connections.keys().copied().collect();
        for key in keys {
            self.serve_one(key);
        }
    }

    fn serve_one(&mut self, key: usize) {
        while let Some(connection) = self.connections.get_mut(&key) {
            if connection.session_state == SessionState::Paused {
                return;
            }
            if !std::mem::take(&mut connection.must_resume) {
                match connection.stream.take() {
                    Some(StreamPiece::Bytes(bytes)) => connection.partial.extend_from_slice(&bytes),
                    Some(StreamPiece::End) => return self.close(key),
                    None => return,
                }
            }
            if connection.session_state == SessionState::Closing {
                connection.partial.clear();
                continue;
            }
            let mut input = std::mem::take(&mut connection.partial);
            let session_state = self.shard.received(ConnectionKey(key), &mut input);
            if let Some(connection) = self.connections.get_mut(&key) {
                connection.partial = input;
            }
            self.set_session_state(key, session_state);
        }
    }

    fn set_session_state(&mut self, key: usize, session_state: SessionState) {
        let Some(connection) = self.connections.get_mut(&key) else {
            return;
        };
        let before = std::mem::replace(&mut connection.session_state, session_state);
        match session_state {
            SessionState::Closing if before != SessionState::Closing => {
                self.mark_dirty(ConnectionKey(key))
            }
            SessionState::Open if before == SessionState::Paused => {
                connection.must_resume = true;
                self.due = true;
            }
            _ => {}
        }
    }

    pub(super) fn mark_dirty(&mut self, key: ConnectionKey) {
        self.dirty_connections.push_back(key.0);
    }

    /// Writes pending bytes to clients. Returns true if there were any.
    pub(super) fn flush(&mut self, actions: &mut Vec<Action<Node>>) -> bool {
        let has_dirty = !self.dirty_connections.is_empty();
        while let Some(key) = self.dirty_connections.pop_front() {
            self.flush_one(key, actions);
        }
        has_dirty
    }

    fn flush_one(&mut self, key: usize, actions: &mut Vec<Action<Node>>) {
        let Some(connection) = self.connections.get_mut(&key).filter(|c| !c.is_ended) else {
            return;
        };
        let Some((outbox, _)) = self.shard.outbox(ConnectionKey(key)) else {
            return self.close(key);
        };
        let mut bytes = BytesMut::with_capacity(outbox.len());
        outbox
            .pieces()
            .iter()
            .for_each(|p| bytes.extend_from_slice(p));
        outbox.consume(bytes.len());
        if !bytes.is_empty() {
            connection.send(StreamPiece::Bytes(bytes.freeze()), actions);
            self.shard.drained(ConnectionKey(key));
        }
        let Some((outbox, session_state)) = self.shard.outbox(ConnectionKey(key)) else {
            return self.close(key);
        };
        let has_more = !outbox.is_empty();
        self.set_session_state(key, session_state);
        if has_more {
            self.mark_dirty(ConnectionKey(key));
        } else if session_state == SessionState::Closing
            && let Some(connection) = self.connections.get_mut(&key)
        {
            connection.is_ended = true;
            connection.send(StreamPiece::End, actions);
        }
    }

    fn close(&mut self, key: usize) {
        if let Some(connection) = self.connections.remove(&key) {
            self.keys.remove(&connection.number);
            self.shard.gone(ConnectionKey(key));
        }
    }
}

impl Connection {
    fn send(&mut self, piece: StreamPiece, actions: &mut Vec<Action<Node>>) {
        let number = self.sent;
        self.sent += 1;
        actions.push(Action::Reply {
            client: self.client,
            reply: Reply::Piece {
                connection: self.number,
                number,
                piece,
            },
        });
    }
}
