//! A shard at its place in a node: its inbox and its clients' connections, as the reactor has them.

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
use shard::{ConnectionKey, Shard, ShardDriver};
use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};

/// What waits for a shard's next turn.
pub enum Inbound {
    Frame(u16, Bytes),
    Durable(WalToken),
    WalRolled(u64),
    JobDone(JobId, JobResult),
    /// Before the next; shard 0 only.
    PeerProgram(NodeId, VersionFacts),
    PeerUp(NodeId, Incarnation),
    PeerDown(NodeId),
    PeerFrame(NodeId, Bytes),
    Join(NodeRecord),
    Control(ControlRequest),
    ShutDown,
}

struct Connection {
    client: u64,
    number: u64,
    lane: ByteStream,
    /// Read and not yet taken by the session.
    partial: BytesMut,
    session_state: SessionState,
    /// A pause is over: what it left behind is to be read.
    resume: bool,
    sent: u64,
    /// Our side is closed; the client's last bytes are thrown away.
    ended: bool,
}

pub struct ShardHost {
    pub shard: Shard,
    pub listening: bool,
    /// Wants a turn whatever waits.
    pub due: bool,
    /// In order of arrival; the time keeps back what is not there yet.
    inbox: VecDeque<Inbound>,
    /// From other shards, in the order they were sent.
    later: VecDeque<(Time, Inbound)>,
    connections: BTreeMap<usize, Connection>,
    keys: BTreeMap<u64, usize>,
    dirty: VecDeque<usize>,
}

impl ShardHost {
    pub fn new(shard: Shard) -> ShardHost {
        ShardHost {
            shard,
            listening: false,
            due: true,
            inbox: VecDeque::new(),
            later: VecDeque::new(),
            connections: BTreeMap::new(),
            keys: BTreeMap::new(),
            dirty: VecDeque::new(),
        }
    }

    pub fn put(&mut self, item: Inbound) {
        self.inbox.push_back(item);
        self.due = true;
    }

    /// Never before what was put later earlier.
    pub fn put_later(&mut self, at: Time, item: Inbound) {
        let last = self.later.back().map_or(Time::ZERO, |(t, _)| *t);
        self.later.push_back((at.max(last), item));
    }

    /// Tokens are durable in order: the newest says all, as the log thread has it.
    pub fn durable(&mut self, token: WalToken) {
        if let Some(Inbound::Durable(last)) = self.inbox.back_mut() {
            *last = token;
        } else {
            self.put(Inbound::Durable(token));
        }
    }

    pub fn wake_at(&self) -> Option<Time> {
        let later = self.later.front().map(|(at, _)| *at);
        let due = self.due.then_some(Time::ZERO);
        [self.shard.wake_at(), later, due]
            .into_iter()
            .flatten()
            .min()
    }

    pub fn wants_turn(&self, now: Time) -> bool {
        self.due || self.later.front().is_some_and(|(at, _)| *at <= now)
    }

    pub fn take_inbox(&mut self, now: Time) {
        while let Some((_, item)) = self.later.pop_front_if(|(at, _)| *at <= now) {
            self.inbox.push_back(item);
        }
        while let Some(item) = self.inbox.pop_front() {
            self.inbound(item);
        }
    }

    fn inbound(&mut self, item: Inbound) {
        let shard = &mut self.shard;
        match item {
            Inbound::Frame(from, frame) => shard.shard_frame(from, frame),
            Inbound::Durable(token) => shard.durable(token),
            Inbound::WalRolled(file) => shard.wal_rolled(file),
            Inbound::JobDone(id, result) => shard.job_done(id, result),
            Inbound::PeerProgram(node, program) => shard.peer_program(node, Some(program)),
            Inbound::PeerUp(node, incarnation) => shard.peer_up(node, incarnation),
            Inbound::PeerDown(node) => shard.peer_down(node),
            Inbound::PeerFrame(from, frame) => shard.peer_frame(from, frame),
            Inbound::Join(node) => shard.join_requested(node),
            Inbound::Control(request) => shard.control(request),
            Inbound::ShutDown => shard.shut_down(),
        }
    }

    pub fn accept(&mut self, client: u64, number: u64, protocol: ProtocolId) {
        let free = (0..).find(|k| !self.connections.contains_key(k));
        let key = free.unwrap_or_default();
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
                lane: ByteStream::default(),
                partial: BytesMut::new(),
                session_state: SessionState::Open,
                resume: false,
                sent: 0,
                ended: false,
            },
        );
        self.shard.connected(ConnectionKey(key), info);
        self.due = true;
    }

    /// False: there is no such connection.
    pub fn arrived(&mut self, connection: u64, number: u64, piece: &StreamPiece) -> bool {
        let key = self.keys.get(&connection);
        let Some(known) = key.and_then(|k| self.connections.get_mut(k)) else {
            return false;
        };
        known.lane.put(number, piece.clone());
        self.due = true;
        true
    }

    /// Reads from every connection that may be read.
    pub fn serve(&mut self) {
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
            if !std::mem::take(&mut connection.resume) {
                match connection.lane.take() {
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
            self.stand(key, session_state);
        }
    }

    fn stand(&mut self, key: usize, session_state: SessionState) {
        let Some(connection) = self.connections.get_mut(&key) else {
            return;
        };
        let before = std::mem::replace(&mut connection.session_state, session_state);
        match session_state {
            SessionState::Closing if before != SessionState::Closing => {
                self.mark(ConnectionKey(key))
            }
            SessionState::Open if before == SessionState::Paused => {
                connection.resume = true;
                self.due = true;
            }
            _ => {}
        }
    }

    pub fn mark(&mut self, key: ConnectionKey) {
        self.dirty.push_back(key.0);
    }

    /// Writes what waits for clients; true when there was anything.
    pub fn flush(&mut self, actions: &mut Vec<Action<Node>>) -> bool {
        let any = !self.dirty.is_empty();
        while let Some(key) = self.dirty.pop_front() {
            self.flush_one(key, actions);
        }
        any
    }

    fn flush_one(&mut self, key: usize, actions: &mut Vec<Action<Node>>) {
        let Some(connection) = self.connections.get_mut(&key).filter(|c| !c.ended) else {
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
        let left = !outbox.is_empty();
        self.stand(key, session_state);
        if left {
            self.mark(ConnectionKey(key));
        } else if session_state == SessionState::Closing
            && let Some(connection) = self.connections.get_mut(&key)
        {
            connection.ended = true;
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
