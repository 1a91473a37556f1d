//! A node with the metadata group alone: the work of shard 0 without sessions and queues.

use super::kept_commands::KeptCommands;
use crate::process::{Action, Process};
use crate::world::Start;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use consensus::{
    GroupId, GroupStatus, Host, HostConfig, HostLimits, HostOutput, JobId, JobResult, Membership,
    MembershipChange, ProposeError, RaftHost, ReadError, WalToken,
};
use env::{Incarnation, NodeId, Time, WallTime};
use metadata::{Change, Tree};
use std::collections::BTreeSet;
use std::sync::Arc;

const GROUP: GroupId = GroupId(0);
/// Digests are compared at multiples of this index.
const DIGEST_PERIOD: u64 = 16;

/// A change that a client requests.
#[derive(Clone, Debug)]
pub struct Request {
    /// The client's own number of the request. A retry has the same number.
    pub number: u64,
    /// The change of the tree.
    pub change: Change,
}

/// The answer to a client's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The change was applied at this index, whether the tree accepted or refused it.
    Applied {
        /// Number of the request.
        number: u64,
        /// Log index of the change.
        index: u64,
    },
    /// This node cannot accept the change now.
    Rejected {
        /// Number of the request.
        number: u64,
        /// The leader, if this node knows it.
        leader: Option<NodeId>,
    },
}

/// An observation for the oracle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A command was applied.
    Applied {
        /// Log index of the command.
        index: u64,
        /// The client that sent it.
        client: u64,
        /// The client's number of the request.
        number: u64,
        /// Hash of the command.
        hash: u32,
        /// Digest of the tree after the command, at multiples of `DIGEST_PERIOD`.
        digest: Option<u64>,
    },
    /// The tree was replaced by a checkpoint.
    Restored {
        /// Log index of the checkpoint.
        index: u64,
        /// Index of the last change in the restored tree.
        tree: u64,
    },
    /// This node leads in this term.
    Leads {
        /// The term.
        term: u64,
    },
    /// The membership that this node uses from now on.
    Members {
        /// Members with a vote.
        voters: Vec<NodeId>,
        /// Members without a vote.
        learners: Vec<NodeId>,
    },
}

/// The process of the scenario `metadata`.
pub struct Replica {
    host: Host,
    tree: Tree,
    commands: KeptCommands,
    /// Random number that selects the command to read after the outputs of the host are handled.
    read_due: Option<u32>,
    applied: u64,
    /// (client, number) of each change that was proposed here and is not applied yet.
    proposed: BTreeSet<(u64, u64)>,
    outputs: Vec<HostOutput>,
    actions: Vec<Action<Replica>>,
}

impl Replica {
    /// Starts the node with these founding voters.
    pub fn start(start: Start, voters: &[NodeId]) -> Result<Replica, String> {
        let config = HostConfig {
            node: start.node,
            incarnation: start.incarnation,
            shards: 1,
            shard: 0,
            seed: start.seed,
            limits: limits(),
        };
        let disk = Arc::new(start.disk);
        let mut host =
            Host::new(config, disk, start.recovered.groups).map_err(|error| error.to_string())?;
        host.create(
            GROUP,
            &Membership {
                voters: voters.to_vec(),
                learners: Vec::new(),
            },
        );
        Ok(Replica {
            host,
            tree: Tree::default(),
            commands: KeptCommands::default(),
            read_due: None,
            applied: 0,
            proposed: BTreeSet::new(),
            outputs: Vec::new(),
            actions: Vec::new(),
        })
    }

    /// The metadata tree of this node.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Raft status of the metadata group on this node.
    pub fn status(&self) -> Option<GroupStatus> {
        self.host.status(GROUP)
    }

    /// Requests a membership change from the leader. The operator repeats a refused request.
    pub fn change_members(&mut self, change: MembershipChange) {
        let _ = self.host.change_membership(GROUP, change);
    }

    /// Continues without members that never return. The operator repeats a refused request.
    pub fn recover_majority(&mut self, lost: &[NodeId]) {
        let _ = self.host.recover_majority(GROUP, lost);
    }

    fn snapshot(&self) -> Bytes {
        let mut out = BytesMut::new();
        self.commands.encode(&mut out);
        out.put_slice(&self.tree.snapshot());
        out.freeze()
    }

    fn restore(&mut self, index: u64, state: &Bytes) -> Result<(), String> {
        let mut rest = &state[..];
        self.commands =
            KeptCommands::decode(&mut rest).ok_or("checkpoint: the kept commands are truncated")?;
        let tree = state.slice(state.len() - rest.len()..);
        self.tree = Tree::restore(&tree).map_err(|e| format!("checkpoint: {e:?}"))?;
        self.applied = index;
        Ok(())
    }

    /// Reads a kept command and compares its checksum.
    fn read_kept_command(&self, chance: u32) -> Result<(), String> {
        let Some((index, hash)) = self.commands.sample(chance) else {
            return Ok(());
        };
        let command = self.host.read(GROUP, index).map_err(|e| match e {
            ReadError::Gone => format!("live entry {index} is gone"),
            damaged => damaged.to_string(),
        })?;
        if crc32fast::hash(&command) != hash {
            return Err(format!("live entry {index} reads as something else"));
        }
        Ok(())
    }

    fn handle_output(&mut self, output: HostOutput) -> Result<(), String> {
        match output {
            HostOutput::Append { token, records } => {
                self.actions.push(Action::Append { token, records });
            }
            HostOutput::Send { to, frame, .. } => self.actions.push(Action::Send { to, frame }),
            HostOutput::Job { id, job } => self.actions.push(Action::Job { id, job }),
            HostOutput::WalFree { up_to } => self.actions.push(Action::FreeWal { up_to }),
            HostOutput::Committed { entries, .. } => {
                for entry in entries {
                    self.apply(entry.index, &entry.command)?;
                }
            }
            HostOutput::Restore { index, state, .. } => {
                self.restore(index, &state)?;
                let tree = self.tree.applied();
                self.actions
                    .push(Action::Note(Note::Restored { index, tree }));
            }
            HostOutput::Leadership {
                term, is_leader, ..
            } => {
                if is_leader {
                    self.actions.push(Action::Note(Note::Leads { term }));
                }
            }
            HostOutput::CheckpointDue { group } => {
                let (state, live) = (self.snapshot(), self.commands.live());
                self.host.checkpoint(group, self.applied, state, live);
            }
            HostOutput::Membership { membership, .. } => {
                self.actions.push(Action::Note(Note::Members {
                    voters: membership.voters,
                    learners: membership.learners,
                }));
            }
            HostOutput::Failed { group, error } => {
                return Err(format!("group {group:?}: {error}"));
            }
        }
        Ok(())
    }

    fn apply(&mut self, index: u64, command: &Bytes) -> Result<(), String> {
        let (client, number, change) = decode(command)?;
        // The result may be a refusal. It is the same on every node, as the digest shows.
        let _ = self.tree.apply(index, &change);
        self.applied = index;
        let hash = crc32fast::hash(command);
        self.commands.apply(index, hash);
        if (hash >> 8).is_multiple_of(4) {
            self.read_due = Some(hash >> 10);
        }
        let due = index.is_multiple_of(DIGEST_PERIOD);
        self.actions.push(Action::Note(Note::Applied {
            index,
            client,
            number,
            hash,
            digest: due.then(|| self.tree.digest()),
        }));
        if self.proposed.remove(&(client, number)) {
            let reply = Reply::Applied { number, index };
            self.actions.push(Action::Reply { client, reply });
        }
        Ok(())
    }
}

/// Small limits, so that a short run has checkpoints, segments and transfers.
fn limits() -> HostLimits {
    HostLimits {
        checkpoint_bytes: 16 << 10,
        checkpoint_entries: 60,
        retain_entries: 20,
        max_message_bytes: 4 << 10,
        max_inflight_messages: 8,
        transfer_chunk_bytes: 2 << 10,
        ..HostLimits::default()
    }
}

fn encode(client: u64, request: &Request) -> Bytes {
    let change = request.change.encode();
    let mut out = BytesMut::with_capacity(16 + change.len());
    out.put_u64(client);
    out.put_u64(request.number);
    out.put_slice(&change);
    out.freeze()
}

fn decode(command: &Bytes) -> Result<(u64, u64, Change), String> {
    let mut rest = &command[..];
    if rest.len() < 16 {
        return Err("a committed command is shorter than its header".to_owned());
    }
    let (client, number) = (rest.get_u64(), rest.get_u64());
    let change = Change::decode(rest).map_err(|e| format!("a command does not decode: {e:?}"))?;
    Ok((client, number, change))
}

impl Process for Replica {
    type Request = Request;
    type Reply = Reply;
    type Note = Note;

    fn tick(&mut self, now: Time, _wall: WallTime) {
        self.host.tick(now);
    }

    fn peer_frame(&mut self, from: NodeId, frame: Bytes) {
        self.host.receive(from, frame);
    }

    fn peer_up(&mut self, node: NodeId, incarnation: Incarnation) {
        self.host.peer_up(node, incarnation, 1);
    }

    fn peer_down(&mut self, node: NodeId) {
        self.host.peer_down(node);
    }

    fn durable(&mut self, token: WalToken) {
        self.host.durable(token);
    }

    fn wal_rolled(&mut self, file: u64) {
        self.host.wal_rolled(file);
    }

    fn job_done(&mut self, id: JobId, result: JobResult) {
        self.host.job_done(id, result);
    }

    fn request(&mut self, client: u64, request: Request) {
        let number = request.number;
        let leader = match self.host.propose(GROUP, encode(client, &request)) {
            Ok(()) => {
                self.proposed.insert((client, number));
                return;
            }
            Err(ProposeError::NotLeader { leader }) => leader,
            Err(_) => None,
        };
        let reply = Reply::Rejected { number, leader };
        self.actions.push(Action::Reply { client, reply });
    }

    fn poll(&mut self, out: &mut Vec<Action<Replica>>) {
        let mut outputs = std::mem::take(&mut self.outputs);
        self.host.poll(&mut outputs);
        for output in outputs.drain(..) {
            if let Err(error) = self.handle_output(output) {
                self.actions.push(Action::Fatal(error));
            }
        }
        self.outputs = outputs;
        if let Some(chance) = self.read_due.take()
            && let Err(error) = self.read_kept_command(chance)
        {
            self.actions.push(Action::Fatal(error));
        }
        out.append(&mut self.actions);
    }
}
