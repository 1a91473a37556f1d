//! Validates a requested change of a queue's members and computes the result. Pure.

use crate::placement::{Candidate, MAX_REPLICAS, replaced};
use control::{MemberChange, QueueFacts};
use env::NodeId;
use metadata::{ChangeError, QueueRecord};

/// A queue as it is when it is decided.
pub(super) struct CurrentMembers<'a> {
    pub record: &'a QueueRecord,
    /// None: nobody told anything about it.
    pub facts: Option<&'a QueueFacts>,
    pub candidates: &'a [Candidate<'a>],
    /// Nodes that can be reached, in maintenance or not.
    pub up: &'a dyn Fn(NodeId) -> bool,
    pub name: &'a dyn Fn(NodeId) -> String,
}

/// The members that the queue is to have. Those it has: nothing is to be done.
pub(super) fn resized(
    change: MemberChange,
    now: &CurrentMembers<'_>,
) -> Result<Vec<NodeId>, ChangeError> {
    if !now.record.kind.is_replicated() {
        return Err(ChangeError::Invalid(format!(
            "{} is no quorum queue: it lives on one node",
            now.label()
        )));
    }
    let members = &now.record.members;
    match change {
        MemberChange::Add(node) if members.contains(&node) => Ok(members.clone()),
        MemberChange::Add(node) => {
            now.can_take(node)?;
            if members.len() >= MAX_REPLICAS as usize {
                return Err(ChangeError::PreconditionFailed(format!(
                    "{} has {} members, and {MAX_REPLICAS} are allowed",
                    now.label(),
                    members.len()
                )));
            }
            now.has_leader()?;
            Ok(members.iter().copied().chain([node]).collect())
        }
        MemberChange::Remove(node) | MemberChange::Evacuate(node) if !members.contains(&node) => {
            Ok(members.clone())
        }
        MemberChange::Remove(node) => now.without(node),
        MemberChange::Replace { old, .. } if !members.contains(&old) => {
            Err(ChangeError::PreconditionFailed(format!(
                "node '{}' is no member of {}",
                (now.name)(old),
                now.label()
            )))
        }
        MemberChange::Replace { old, new } => {
            now.can_take(new)?;
            if members.contains(&new) {
                return Err(ChangeError::PreconditionFailed(format!(
                    "node '{}' is a member of {} already",
                    (now.name)(new),
                    now.label()
                )));
            }
            now.has_leader()?;
            let swapped = |m: &NodeId| if *m == old { new } else { *m };
            Ok(members.iter().map(swapped).collect())
        }
        MemberChange::Evacuate(node) => {
            let elsewhere = replaced(members, |m| m == node, now.candidates, false);
            if elsewhere.len() < members.len() {
                return now.without(node);
            }
            now.has_leader()?;
            Ok(elsewhere)
        }
    }
}

impl CurrentMembers<'_> {
    fn label(&self) -> String {
        format!(
            "queue '{}' in vhost '{}'",
            self.record.name, self.record.vhost
        )
    }

    /// The leader's view, without which nothing can be changed.
    fn has_leader(&self) -> Result<&QueueFacts, ChangeError> {
        let told = self.facts.filter(|f| f.leader.is_some());
        told.ok_or_else(|| {
            ChangeError::Unavailable(format!(
                "{} has no leader that can be reached: its members cannot be changed now",
                self.label()
            ))
        })
    }

    fn can_take(&self, node: NodeId) -> Result<(), ChangeError> {
        if !self.candidates.iter().any(|c| c.node == node) {
            return Err(ChangeError::NotFound(format!(
                "node '{}' is not in the cluster",
                (self.name)(node)
            )));
        }
        match (self.up)(node) {
            true => Ok(()),
            false => Err(ChangeError::Unavailable(format!(
                "node '{}' is not running",
                (self.name)(node)
            ))),
        }
    }

    fn without(&self, node: NodeId) -> Result<Vec<NodeId>, ChangeError> {
        let left: Vec<NodeId> = self
            .record
            .members
            .iter()
            .copied()
            .filter(|m| *m != node)
            .collect();
        if left.is_empty() {
            return Err(ChangeError::PreconditionFailed(format!(
                "node '{}' holds the last replica of {}",
                (self.name)(node),
                self.label()
            )));
        }
        let facts = self.has_leader()?;
        // Both those that vote now and those that are to: a change may be under way.
        let voters: Vec<NodeId> = facts
            .members
            .iter()
            .copied()
            .filter(|m| *m != node)
            .collect();
        for of in [&left, &voters] {
            let online = of.iter().filter(|n| facts.online.contains(n)).count();
            if !of.is_empty() && online * 2 <= of.len() {
                return Err(ChangeError::PreconditionFailed(format!(
                    "{} would lose its majority: of the {} members that are left {online} are online",
                    self.label(),
                    of.len()
                )));
            }
        }
        Ok(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use message::Table;
    use metadata::QueueId;
    use metadata::QueueType;

    fn ids(list: &[u64]) -> Vec<NodeId> {
        list.iter().map(|n| NodeId(*n)).collect()
    }

    /// Nodes 1 to 5; 5 is down, 4 in maintenance. The answer in short.
    fn asked(
        members: &[u64],
        voters: &[u64],
        online: Option<&[u64]>,
        change: MemberChange,
    ) -> Result<Vec<u64>, String> {
        let record = QueueRecord {
            id: QueueId(7),
            vhost: "/".into(),
            name: "q".into(),
            kind: if members.is_empty() {
                QueueType::Classic
            } else {
                QueueType::Quorum
            },
            durable: true,
            auto_delete: false,
            exclusive: None,
            arguments: Table::default(),
            members: ids(members),
            declared_by: "".into(),
        };
        let facts = QueueFacts {
            id: QueueId(7),
            leader: online.map(|_| NodeId(1)),
            members: ids(voters),
            online: ids(online.unwrap_or_default()),
            ..QueueFacts::default()
        };
        let candidates: Vec<Candidate<'_>> = (1..=5)
            .map(|n| Candidate {
                node: NodeId(n),
                zone: "",
                available: n < 4,
                replicas: 0,
                leaders: 0,
            })
            .collect();
        let now = CurrentMembers {
            record: &record,
            facts: Some(&facts),
            candidates: &candidates,
            up: &|n| n.0 < 5,
            name: &|n| format!("n{}", n.0),
        };
        let told = resized(change, &now).map_err(|e| e.to_string())?;
        Ok(told.into_iter().map(|n| n.0).collect())
    }

    #[test]
    fn what_is_granted() {
        use MemberChange::*;
        let n = NodeId;
        let (all, three) = (Some(&[1, 2, 3][..]), &[1, 2, 3][..]);
        for (what, members, voters, online, change, want) in [
            (
                "one more",
                &[1, 2][..],
                &[1, 2][..],
                all,
                Add(n(3)),
                &[1, 2, 3][..],
            ),
            (
                "also in maintenance",
                &[1, 2],
                &[1, 2],
                all,
                Add(n(4)),
                &[1, 2, 4],
            ),
            ("it is there", three, three, None, Add(n(2)), three),
            ("one less", three, three, all, Remove(n(3)), &[1, 2]),
            ("it is not there", three, three, None, Remove(n(4)), three),
            (
                "a dead one",
                &[1, 2, 5],
                &[1, 2, 5],
                all,
                Remove(n(5)),
                &[1, 2],
            ),
            (
                "one for another",
                &[1, 2, 5],
                &[1, 2, 5],
                all,
                Replace {
                    old: n(5),
                    new: n(3),
                },
                three,
            ),
            (
                "to where there is room",
                &[1, 2],
                &[1, 2],
                all,
                Evacuate(n(1)),
                &[2, 3],
            ),
            ("to nowhere", three, three, all, Evacuate(n(1)), &[2, 3]),
            (
                "nothing there",
                &[1, 2],
                &[1, 2],
                None,
                Evacuate(n(3)),
                &[1, 2],
            ),
        ] {
            let got = asked(members, voters, online, change);
            assert_eq!(got.as_deref(), Ok(want), "{what}");
        }
    }

    #[test]
    fn what_is_refused_and_why() {
        use MemberChange::*;
        let n = NodeId;
        let three = &[1, 2, 3][..];
        let seven = &[1, 2, 3, 6, 7, 8, 9][..];
        for (members, voters, online, change, why) in [
            (&[][..], &[][..], None, Add(n(1)), "is no quorum queue"),
            (three, three, None, Add(n(4)), "has no leader"),
            (
                three,
                three,
                Some(three),
                Add(n(5)),
                "node 'n5' is not running",
            ),
            (
                three,
                three,
                Some(three),
                Add(n(9)),
                "is not in the cluster",
            ),
            (
                seven,
                seven,
                Some(three),
                Add(n(4)),
                "has 7 members, and 7 are allowed",
            ),
            (
                &[1],
                &[1],
                Some(&[1]),
                Remove(n(1)),
                "the last replica of queue 'q' in vhost '/'",
            ),
            (&[1], &[1], Some(&[1]), Evacuate(n(1)), ""),
            (three, three, None, Remove(n(3)), "has no leader"),
            (
                three,
                three,
                Some(&[1, 2]),
                Remove(n(2)),
                "of the 2 members that are left 1 are online",
            ),
            (
                three,
                &[1, 2],
                Some(&[1, 2]),
                Remove(n(2)),
                "would lose its majority",
            ),
            (
                &[1, 2],
                three,
                Some(&[1, 2]),
                Remove(n(2)),
                "would lose its majority",
            ),
            (
                three,
                three,
                Some(three),
                Replace {
                    old: n(4),
                    new: n(1),
                },
                "is no member",
            ),
            (
                three,
                three,
                Some(three),
                Replace {
                    old: n(1),
                    new: n(2),
                },
                "is a member of",
            ),
            (
                three,
                three,
                Some(three),
                Replace {
                    old: n(1),
                    new: n(5),
                },
                "is not running",
            ),
        ] {
            let got = asked(members, voters, online, change);
            match why {
                "" => assert_eq!(got, Ok(vec![2]), "another node takes the last one"),
                why => assert!(
                    got.as_ref().is_err_and(|e| e.contains(why)),
                    "{change:?}: {got:?}, not {why}"
                ),
            }
        }
    }
}
