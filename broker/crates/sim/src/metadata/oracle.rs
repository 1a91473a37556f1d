//! The rules.
//!
//! - Every node applies the same commands at the same indexes, in order, none left out, none twice in one life.
//! - What a client was told is applied is applied there, for ever; later requests of it lie behind.
//! - At most one leader in a term.
//! - Trees after the same index are the same.
//! - Nobody is a member who was not asked to be one, and nobody votes before that was asked for.

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
pub struct Oracle {
    /// What was applied at each index by whoever was first.
    log: BTreeMap<u64, Command>,
    /// A checkpoint covers all up to here: no other command can turn up at or below it.
    covered: u64,
    digests: BTreeMap<u64, u64>,
    /// How far each node is in its present life.
    applied: BTreeMap<NodeId, u64>,
    leaders: BTreeMap<u64, NodeId>,
    /// By client: index of its last request that was answered.
    answered: BTreeMap<u64, u64>,
    answers: u64,
    /// Who may be a member, and who may vote.
    invited: BTreeSet<NodeId>,
    promoted: BTreeSet<NodeId>,
}

impl Oracle {
    /// The first members, or one that was asked to become one.
    pub fn invited(&mut self, node: NodeId) {
        self.invited.insert(node);
    }

    /// From here on it may vote.
    pub fn promoted(&mut self, node: NodeId) {
        self.promoted.insert(node);
    }

    /// The node is gone for good.
    pub fn gone(&mut self, node: NodeId) {
        self.applied.remove(&node);
    }

    fn members(&self, voters: &[NodeId], learners: &[NodeId]) -> Result<(), String> {
        let early = voters.iter().find(|n| !self.promoted.contains(n));
        if let Some(node) = early {
            return Err(format!("node {} votes and was never promoted", node.0));
        }
        match learners.iter().find(|n| !self.invited.contains(n)) {
            Some(node) => Err(format!("node {} learns and was never asked to", node.0)),
            None => Ok(()),
        }
    }

    /// A new life has applied nothing.
    pub fn started(&mut self, node: NodeId) {
        self.applied.insert(node, 0);
    }

    pub fn note(&mut self, node: NodeId, note: &Note) -> Result<(), String> {
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
                self.digest(node, *index, *digest)
            }
            Note::Members { voters, learners } => self.members(voters, learners),
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
        let before = self.applied.insert(node, index).unwrap_or(0);
        if index <= before {
            return Err(format!("node {} applies {index} after {before}", node.0));
        }
        if let Some((missed, _)) = self.log.range(before + 1..index).next() {
            return Err(format!("node {} left out {missed}", node.0));
        }
        match self.log.get(&index) {
            Some(known) if *known == command => Ok(()),
            Some(known) => Err(format!(
                "node {} applies {command:?} at {index}, another node applied {known:?} there",
                node.0
            )),
            None => {
                let closed = self.newest().max(self.covered);
                if index <= closed {
                    return Err(format!(
                        "node {} applies {index}, which a node that is at {closed} left out",
                        node.0
                    ));
                }
                self.log.insert(index, command);
                Ok(())
            }
        }
    }

    fn restore(&mut self, node: NodeId, index: u64, tree: u64) -> Result<(), String> {
        let before = self.applied.insert(node, index).unwrap_or(0);
        if index < before {
            return Err(format!(
                "node {} goes back from {before} to {index}",
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
        // It may be above the newest command: Raft's own entries lie between.
        self.covered = self.covered.max(index);
        Ok(())
    }

    fn digest(&mut self, node: NodeId, index: u64, digest: Option<u64>) -> Result<(), String> {
        let Some(digest) = digest else {
            return Ok(());
        };
        if *self.digests.entry(index).or_insert(digest) != digest {
            return Err(format!("node {} has another tree after {index}", node.0));
        }
        Ok(())
    }

    /// A client was told.
    pub fn answered(&mut self, client: u64, number: u64, index: u64) -> Result<(), String> {
        let known = self.log.get(&index);
        if known.is_none_or(|c| (c.client, c.number) != (client, number)) {
            return Err(format!(
                "client {client} was told that {number} is applied at {index}; there is {known:?}"
            ));
        }
        let before = self.answered.insert(client, index).unwrap_or(0);
        if index <= before {
            return Err(format!(
                "client {client}: its {number} is at {index}, before what was answered at {before}"
            ));
        }
        self.answers += 1;
        Ok(())
    }

    /// The last index that any node has applied.
    pub fn newest(&self) -> u64 {
        self.log.last_key_value().map_or(0, |(index, _)| *index)
    }

    /// Whether every one of these nodes has applied all.
    pub fn all_caught_up(&self, nodes: &[NodeId]) -> bool {
        let newest = self.newest();
        nodes
            .iter()
            .all(|n| self.applied.get(n).is_some_and(|at| *at >= newest))
    }

    pub fn answers(&self) -> u64 {
        self.answers
    }

    pub fn terms(&self) -> u64 {
        self.leaders.len() as u64
    }

    /// How far each node is, for a message.
    pub fn progress(&self) -> String {
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
    fn what_holds_is_accepted() {
        let notes = [
            (A, Note::Leads { term: 3 }),
            (A, applied(2, 1, None)),
            (A, applied(5, 2, Some(9))),
            (B, restored(3, 2)),
            (B, applied(5, 2, Some(9))),
            (A, Note::Leads { term: 3 }),
        ];
        let mut oracle = oracle(&notes).expect("fine");
        oracle.answered(7, 1, 2).expect("fine");
        oracle.answered(7, 2, 5).expect("fine");
        assert!(oracle.all_caught_up(&[A, B]));
        assert_eq!((oracle.answers(), oracle.terms()), (2, 1));
        oracle.started(B);
        assert!(!oracle.all_caught_up(&[A, B]));
        oracle
            .note(B, &applied(2, 1, None))
            .expect("a new life starts over");
    }

    #[test]
    fn nobody_votes_uninvited() {
        let members = |voters: &[NodeId], learners: &[NodeId]| Note::Members {
            voters: voters.to_vec(),
            learners: learners.to_vec(),
        };
        let mut oracle = Oracle::default();
        oracle.invited(A);
        oracle.promoted(A);
        oracle.note(A, &members(&[A], &[])).expect("the first");
        oracle.note(A, &members(&[A], &[B])).expect_err("not asked");
        oracle.invited(B);
        oracle.note(A, &members(&[A], &[B])).expect("asked");
        oracle.note(A, &members(&[A, B], &[])).expect_err("learner");
        oracle.promoted(B);
        oracle.note(A, &members(&[A, B], &[])).expect("promoted");
    }

    #[test]
    fn each_rule_can_be_broken() {
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
            oracle(&[(A, applied(2, 1, None)), (A, applied(3, 1, None))]).expect("fine");
        oracle.answered(7, 1, 4).expect_err("nothing is there");
        oracle
            .answered(7, 9, 3)
            .expect_err("something else is there");
        oracle.answered(7, 1, 3).expect("fine");
        oracle.answered(7, 1, 2).expect_err("went back");
    }
}
