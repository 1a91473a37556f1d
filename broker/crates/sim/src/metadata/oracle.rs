//! The rules of the scenario `metadata`.
//!
//! - Every node applies the same commands at the same indexes in order. It skips none, and applies none twice in one
//!   incarnation.
//! - A command that a client was told is applied at an index is applied there on every node. Later requests of the
//!   client have higher indexes.
//! - A term has at most one leader.
//! - Trees are equal after the same index.
//! - A node is a member only after that was requested, and votes only after its promotion was requested.

use super::replica::Note;
use env::NodeId;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Command {
    client: u64,
    number: u64,
    hash: u32,
}

#[derive(Debug, Default)]
pub(super) struct Oracle {
    /// The command at each index, as the first node applied it.
    log: BTreeMap<u64, Command>,
    /// A checkpoint covers all indexes up to this one, so no new command can appear at or below it.
    covered: u64,
    digests: BTreeMap<u64, u64>,
    /// Last index that each node applied in its current incarnation.
    applied: BTreeMap<NodeId, u64>,
    leaders: BTreeMap<u64, NodeId>,
    /// Index of the last answered request of each client.
    answered_indexes: BTreeMap<u64, u64>,
    answers: u64,
    /// Nodes that may be members, and nodes that may vote.
    allowed_members: BTreeSet<NodeId>,
    allowed_voters: BTreeSet<NodeId>,
}

impl Oracle {
    /// Allows a node to be a member. Called for the founders and for each requested member.
    pub(super) fn allow_member(&mut self, node: NodeId) {
        self.allowed_members.insert(node);
    }

    /// Allows a node to vote.
    pub(super) fn allow_vote(&mut self, node: NodeId) {
        self.allowed_voters.insert(node);
    }

    /// Last index that a node has applied in its current incarnation.
    pub(super) fn applied_by(&self, node: NodeId) -> u64 {
        self.applied.get(&node).copied().unwrap_or(0)
    }

    /// Forgets a node that was lost.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.applied.remove(&node);
    }

    fn check_members(&self, voters: &[NodeId], learners: &[NodeId]) -> Result<(), String> {
        let unpromoted = voters.iter().find(|n| !self.allowed_voters.contains(n));
        if let Some(node) = unpromoted {
            return Err(format!("node {} votes and was never promoted", node.0));
        }
        match learners.iter().find(|n| !self.allowed_members.contains(n)) {
            Some(node) => Err(format!("node {} learns and was never asked to", node.0)),
            None => Ok(()),
        }
    }

    /// Resets the applied index: a new incarnation has applied nothing.
    pub(super) fn node_started(&mut self, node: NodeId) {
        self.applied.insert(node, 0);
    }

    pub(super) fn note(&mut self, node: NodeId, note: &Note) -> Result<(), String> {
        match note {
            Note::Applied {
                index,
                client,
                number,
                hash,
                digest,
            } => {
                let command = Command {
                    client: *client,
                    number: *number,
                    hash: *hash,
                };
                self.apply(node, *index, command)?;
                self.check_digest(node, *index, *digest)
            }
            Note::Members { voters, learners } => self.check_members(voters, learners),
            Note::Restored { index, tree } => self.restore(node, *index, *tree),
            Note::Leads { term } => match self.leaders.insert(*term, node) {
                Some(other) if other != node => Err(format!(
                    "nodes {} and {} both lead in term {term}",
                    other.0, node.0
                )),
                _ => Ok(()),
            },
        }
    }

    fn apply(&mut self, node: NodeId, index: u64, command: Command) -> Result<(), String> {
        let previous = self.applied.insert(node, index).unwrap_or(0);
        if index <= previous {
            return Err(format!("node {} applies {index} after {previous}", node.0));
        }
        if let Some((missed, _)) = self.log.range(previous + 1..index).next() {
            return Err(format!("node {} left out {missed}", node.0));
        }
        match self.log.get(&index) {
            Some(known) if *known == command => Ok(()),
            Some(known) => Err(format!(
                "node {} applies {command:?} at {index}, another node applied {known:?} there",
                node.0
            )),
            None => {
                let upper_bound = self.newest().max(self.covered);
                if index <= upper_bound {
                    return Err(format!(
                        "node {} applies {index}, which a node that is at {upper_bound} left out",
                        node.0
                    ));
                }
                self.log.insert(index, command);
                Ok(())
            }
        }
    }

    fn restore(&mut self, node: NodeId, index: u64, tree: u64) -> Result<(), String> {
        let previous = self.applied.insert(node, index).unwrap_or(0);
        if index < previous {
            return Err(format!(
                "node {} goes back from {previous} to {index}",
                node.0
            ));
        }
        let last = self.log.range(..=index).next_back().map_or(0, |(i, _)| *i);
        if last != tree {
            return Err(format!(
                "node {} restores {index} with a tree after {tree}, the last change until there is {last}",
                node.0
            ));
        }
        // The index may be above the newest command, because Raft's own entries lie between.
        self.covered = self.covered.max(index);
        Ok(())
    }

    fn check_digest(
        &mut self,
        node: NodeId,
        index: u64,
        digest: Option<u64>,
    ) -> Result<(), String> {
        let Some(digest) = digest else {
            return Ok(());
        };
        if *self.digests.entry(index).or_insert(digest) != digest {
            return Err(format!("node {} has another tree after {index}", node.0));
        }
        Ok(())
    }

    /// Checks an answer to a client.
    pub(super) fn check_answer(
        &mut self,
        client: u64,
        number: u64,
        index: u64,
    ) -> Result<(), String> {
        let known = self.log.get(&index);
        if known.is_none_or(|c| (c.client, c.number) != (client, number)) {
            return Err(format!(
                "client {client} was told that {number} is applied at {index}; there is {known:?}"
            ));
        }
        let previous = self.answered_indexes.insert(client, index).unwrap_or(0);
        if index <= previous {
            return Err(format!(
                "client {client}: its {number} is at {index}, before what was answered at {previous}"
            ));
        }
        self.answers += 1;
        Ok(())
    }

    /// The last index that a node has applied.
    pub(super) fn newest(&self) -> u64 {
        self.log.last_key_value().map_or(0, |(index, _)| *index)
    }

    /// Whether these nodes have applied every command.
    pub(super) fn all_caught_up(&self, nodes: &[NodeId]) -> bool {
        let newest = self.newest();
        nodes
            .iter()
            .all(|n| self.applied.get(n).is_some_and(|at| *at >= newest))
    }

    pub(super) fn answers(&self) -> u64 {
        self.answers
    }

    pub(super) fn terms(&self) -> u64 {
        self.leaders.len() as u64
    }

    /// Describes the applied index of each node for the text of a violation.
    pub(super) fn progress(&self) -> String {
        format!("newest {}, applied {:?}", self.newest(), self.applied)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);

    fn applied(index: u64, number: u64, digest: Option<u64>) -> Note {
        Note::Applied {
            index,
            client: 7,
            number,
            hash: number as u32,
            digest,
        }
    }

    fn restored(index: u64, tree: u64) -> Note {
        Note::Restored { index, tree }
    }

    fn oracle(notes: &[(NodeId, Note)]) -> Result<Oracle, String> {
        let mut oracle = Oracle::default();
        for (node, note) in notes {
            oracle.note(*node, note)?;
        }
        Ok(oracle)
    }

    #[test]
    fn valid_history_is_accepted() {
        let notes = [
            (A, Note::Leads { term: 3 }),
            (A, applied(2, 1, None)),
            (A, applied(5, 2, Some(9))),
            (B, restored(3, 2)),
            (B, applied(5, 2, Some(9))),
            (A, Note::Leads { term: 3 }),
        ];
        let mut oracle = oracle(&notes).expect("valid");
        oracle.check_answer(7, 1, 2).expect("valid");
        oracle.check_answer(7, 2, 5).expect("valid");
        assert!(oracle.all_caught_up(&[A, B]));
        assert_eq!((oracle.answers(), oracle.terms()), (2, 1));
        oracle.node_started(B);
        assert!(!oracle.all_caught_up(&[A, B]));
        oracle
            .note(B, &applied(2, 1, None))
            .expect("a new incarnation applies from the start");
    }

    #[test]
    fn member_without_request_is_a_violation() {
        let members = |voters: &[NodeId], learners: &[NodeId]| Note::Members {
            voters: voters.to_vec(),
            learners: learners.to_vec(),
        };
        let mut oracle = Oracle::default();
        oracle.allow_member(A);
        oracle.allow_vote(A);
        oracle.note(A, &members(&[A], &[])).expect("the founder");
        oracle
            .note(A, &members(&[A], &[B]))
            .expect_err("not requested");
        oracle.allow_member(B);
        oracle.note(A, &members(&[A], &[B])).expect("requested");
        oracle.note(A, &members(&[A, B], &[])).expect_err("learner");
        oracle.allow_vote(B);
        oracle.note(A, &members(&[A, B], &[])).expect("promoted");
    }

    #[test]
    fn violation_of_each_rule_is_reported() {
        let broken: [&[(NodeId, Note)]; 10] = [
            &[(A, Note::Leads { term: 3 }), (B, Note::Leads { term: 3 })],
            &[(A, applied(2, 1, None)), (A, applied(2, 1, None))],
            &[(A, applied(2, 1, None)), (B, applied(2, 2, None))],
            &[(A, applied(2, 1, None)), (B, applied(3, 2, None))],
            &[(A, applied(3, 2, None)), (B, applied(2, 1, None))],
            &[(A, applied(2, 1, Some(4))), (B, applied(2, 1, Some(5)))],
            &[(A, restored(3, 0)), (B, applied(2, 1, None))],
            &[(A, applied(2, 1, None)), (B, restored(3, 0))],
            &[(A, restored(3, 2))],
            &[
                (A, applied(1, 1, None)),
                (A, applied(2, 2, None)),
                (A, restored(1, 1)),
            ],
        ];
        for notes in broken {
            oracle(notes).expect_err(&format!("{notes:?}"));
        }
        let mut oracle =
            oracle(&[(A, applied(2, 1, None)), (A, applied(3, 1, None))]).expect("valid");
        oracle
            .check_answer(7, 1, 4)
            .expect_err("no command at this index");
        oracle
            .check_answer(7, 9, 3)
            .expect_err("another command at this index");
        oracle.check_answer(7, 1, 3).expect("valid");
        oracle.check_answer(7, 1, 2).expect_err("index decreases");
    }
}
