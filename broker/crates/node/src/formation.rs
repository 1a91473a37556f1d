//! The decision of a node without a cluster: wait, form or join. One pure function, and its truth
//! table.
//!
//! A second cluster is impossible because every configured node must be seen at the same time, none
//! of them may belong to a cluster, all must agree on the list of nodes, and only the one with the
//! smallest name may form. A node that lost its directory meets peers that are members, so it
//! joins; a node that reaches no peer waits.
//!
//! | # | what is seen of the configured peers                         | decision                            |
//! |---|--------------------------------------------------------------|-------------------------------------|
//! | 1 | members of two different clusters                            | Wait (somebody must decide)         |
//! | 2 | a member of a cluster, whatever else                         | Join                                |
//! | 3 | one that does not answer                                     | Wait                                |
//! | 4 | fewer or more nodes than the cluster's initial size          | Wait                                |
//! | 5 | this node is not among them                                  | Wait (it may only join)             |
//! | 6 | one with another list of peers                               | Wait (configuration differs)        |
//! | 7 | two of the same name, or of the same id                      | Wait (configuration is wrong)       |
//! | 8 | all without a cluster, one with a smaller name               | Wait (that one forms)               |
//! | 9 | all without a cluster, this node's name is the smallest      | Form                                |

use crate::identity::Founder;
use env::NodeId;
use metadata::Name;

/// A configured peer as currently seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerView {
    /// No link; the configured address.
    Silent {
        /// host:port.
        address: String,
    },
    /// This node itself.
    ThisNode,
    /// Reachable, and not a member of any cluster.
    Unclustered {
        /// The node.
        founder: Founder,
        /// Fingerprint of its list of peers.
        peers_hash: u64,
        /// Feature flags that it supports.
        features: Vec<Name>,
    },
    /// A member of a cluster.
    Member {
        /// Number of the cluster.
        cluster: u64,
    },
}

/// Input of [`decide_formation`].
#[derive(Clone, Debug)]
pub struct FormationInput {
    /// This node.
    pub me: Founder,
    /// A hash of the configured peers.
    pub peers_hash: u64,
    /// Feature flags that this node supports.
    pub features: Vec<Name>,
    /// Number of nodes that form the cluster.
    pub initial_size: usize,
    /// All configured peers, including this node if it is among them.
    pub peers: Vec<PeerView>,
}

/// The next step of a node without a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FormationDecision {
    /// No step is possible yet.
    Wait {
        /// The reason, for the log.
        why: String,
    },
    /// Form a cluster of these nodes, sorted by name, with the feature flags that all of them
    /// support.
    Form {
        /// The nodes.
        founders: Vec<Founder>,
        /// The feature flags.
        features: Vec<Name>,
    },
    /// Join this cluster.
    Join {
        /// Number of the cluster.
        cluster: u64,
    },
}

fn wait(why: impl Into<String>) -> FormationDecision {
    FormationDecision::Wait { why: why.into() }
}

/// Implements the table above; rows are evaluated in order.
pub fn decide_formation(view: &FormationInput) -> FormationDecision {
    let mut members = view.peers.iter().filter_map(|p| match p {
        PeerView::Member { cluster } => Some(*cluster),
        _ => None,
    });
    if let Some(cluster) = members.next() {
        if members.any(|other| other != cluster) {
            return wait("configured peers belong to different clusters");
        }
        return FormationDecision::Join { cluster };
    }
    let silent: Vec<&str> = view
        .peers
        .iter()
        .filter_map(|p| match p {
            PeerView::Silent { address } => Some(address.as_str()),
            _ => None,
        })
        .collect();
    if !silent.is_empty() {
        return wait(format!("no answer yet from {}", silent.join(", ")));
    }
    if view.peers.len() != view.initial_size {
        let (seen, size) = (view.peers.len(), view.initial_size);
        return wait(format!("{seen} of {size} nodes seen"));
    }
    if !view.peers.contains(&PeerView::ThisNode) {
        return wait(
            "this node is not among cluster.peers and can only join a cluster that exists",
        );
    }
    form_or_wait(view)
}

/// Rows 6 to 9: all peers are reachable and without a cluster.
fn form_or_wait(view: &FormationInput) -> FormationDecision {
    let mut founders = vec![view.me.clone()];
    let mut common = view.features.clone();
    for peer in &view.peers {
        if let PeerView::Unclustered {
            founder,
            peers_hash,
            features,
        } = peer
        {
            if *peers_hash != view.peers_hash {
                return wait(format!("{} has other cluster.peers", founder.name));
            }
            founders.push(founder.clone());
            common.retain(|flag| features.contains(flag));
        }
    }
    founders.sort_by(|a, b| a.name.cmp(&b.name));
    let mut ids: Vec<NodeId> = founders.iter().map(|f| f.id).collect();
    ids.sort();
    ids.dedup();
    let same_name = founders.windows(2).find_map(|pair| match pair {
        [a, b] if a.name == b.name => Some(a.name.as_str()),
        _ => None,
    });
    if let Some(name) = same_name {
        return wait(format!("two nodes have the name {name}"));
    }
    if ids.len() != view.initial_size {
        return wait("two of cluster.peers lead to the same node");
    }
    match founders.first() {
        Some(first) if first.id == view.me.id => FormationDecision::Form {
            founders,
            features: common,
        },
        Some(first) => wait(format!("{} forms the cluster", first.name)),
        None => wait("no peers"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn founder(id: u64, name: &str) -> Founder {
        Founder {
            id: NodeId(id),
            name: name.to_owned(),
            address: format!("{name}:1"),
        }
    }

    fn fresh(id: u64, name: &str) -> PeerView {
        PeerView::Unclustered {
            founder: founder(id, name),
            peers_hash: 9,
            features: vec!["one".into(), "two".into()],
        }
    }

    fn silent(address: &str) -> PeerView {
        PeerView::Silent {
            address: address.to_owned(),
        }
    }

    fn member(cluster: u64) -> PeerView {
        PeerView::Member { cluster }
    }

    fn seen(me: Founder, peers: Vec<PeerView>) -> FormationDecision {
        decide_formation(&FormationInput {
            me,
            peers_hash: 9,
            features: vec!["two".into(), "three".into()],
            initial_size: 3,
            peers,
        })
    }

    #[test]
    fn formation_follows_the_truth_table() {
        use PeerView::ThisNode;
        let (a, b) = (founder(1, "a"), founder(2, "b"));
        let other_list = PeerView::Unclustered {
            founder: founder(3, "c"),
            peers_hash: 8,
            features: Vec::new(),
        };
        let form = FormationDecision::Form {
            founders: vec![a.clone(), b.clone(), founder(3, "c")],
            features: vec!["two".into()],
        };
        let waits = |why: &str| Err(why.to_owned());
        type FormationCase<'a> = (
            u8,
            &'a Founder,
            Vec<PeerView>,
            Result<FormationDecision, String>,
        );
        let rows: Vec<FormationCase<'_>> = vec![
            (
                1,
                &a,
                vec![ThisNode, member(5), member(6)],
                waits("different clusters"),
            ),
            (
                2,
                &a,
                vec![ThisNode, member(5), silent("c")],
                Ok(FormationDecision::Join { cluster: 5 }),
            ),
            (
                2,
                &a,
                vec![ThisNode, member(5), fresh(3, "c")],
                Ok(FormationDecision::Join { cluster: 5 }),
            ),
            (
                2,
                &a,
                vec![member(5), member(5), member(5)],
                Ok(FormationDecision::Join { cluster: 5 }),
            ),
            (
                3,
                &a,
                vec![ThisNode, fresh(2, "b"), silent("c:1")],
                waits("no answer yet from c:1"),
            ),
            (
                3,
                &a,
                vec![ThisNode, silent("b"), silent("c")],
                waits("no answer yet from b, c"),
            ),
            (4, &a, vec![ThisNode, fresh(2, "b")], waits("2 of 3")),
            (
                4,
                &a,
                vec![ThisNode, fresh(2, "b"), fresh(3, "c"), fresh(4, "d")],
                waits("4 of 3"),
            ),
            (
                5,
                &a,
                vec![fresh(2, "b"), fresh(3, "c"), fresh(4, "d")],
                waits("not among"),
            ),
            (
                6,
                &a,
                vec![ThisNode, fresh(2, "b"), other_list],
                waits("c has other cluster.peers"),
            ),
            (
                7,
                &a,
                vec![ThisNode, fresh(2, "a"), fresh(3, "c")],
                waits("two nodes have the name a"),
            ),
            (
                7,
                &a,
                vec![ThisNode, fresh(2, "b"), fresh(2, "c")],
                waits("the same node"),
            ),
            (
                7,
                &a,
                vec![ThisNode, ThisNode, fresh(2, "b")],
                waits("the same node"),
            ),
            (
                8,
                &b,
                vec![fresh(1, "a"), ThisNode, fresh(3, "c")],
                waits("a forms the cluster"),
            ),
            (
                9,
                &a,
                vec![ThisNode, fresh(2, "b"), fresh(3, "c")],
                Ok(form),
            ),
        ];
        for (row, me, peers, expected) in rows {
            match (seen(me.clone(), peers), expected) {
                (FormationDecision::Wait { why }, Err(part)) => {
                    assert!(why.contains(&part), "row {row}: {why}")
                }
                (decision, Ok(expected)) => assert_eq!(decision, expected, "row {row}"),
                (decision, Err(part)) => {
                    panic!("row {row}: {decision:?} instead of waiting: {part}")
                }
            }
        }
    }

    #[test]
    fn cluster_starts_with_features_that_all_founders_support() {
        let silent_one = PeerView::Unclustered {
            founder: founder(3, "c"),
            peers_hash: 9,
            features: Vec::new(),
        };
        let peers = vec![PeerView::ThisNode, fresh(2, "b"), silent_one];
        let FormationDecision::Form { features, .. } = seen(founder(1, "a"), peers) else {
            panic!("expected Form");
        };
        assert!(features.is_empty());
    }

    proptest! {
        /// Whatever each of three nodes sees of the others, at most one forms a cluster, and none
        /// while any peer is a member or silent.
        #[test]
        fn at_most_one_node_forms_a_cluster(seen_as in proptest::collection::vec(0u8..3, 6)) {
            let names = ["a", "b", "c"];
            let mut forming = 0;
            let mut others = seen_as.into_iter();
            for (i, name) in names.iter().enumerate() {
                let mut peers = Vec::new();
                let mut all_fresh = true;
                for (j, other) in names.iter().enumerate() {
                    if i == j {
                        peers.push(PeerView::ThisNode);
                        continue;
                    }
                    let state = others.next().unwrap_or(0);
                    all_fresh &= state == 2;
                    peers.push(match state {
                        0 => silent(other),
                        1 => member(5),
                        _ => fresh(j as u64 + 1, other),
                    });
                }
                let decision = seen(founder(i as u64 + 1, name), peers);
                let forms = matches!(decision, FormationDecision::Form { .. });
                prop_assert!(!forms || all_fresh);
                forming += usize::from(forms);
            }
            prop_assert!(forming <= 1);
        }
    }
}
