//! The leaders of all streams of the cluster. Clients of the stream protocol ask any node for them, so each shard knows
//! them all: a leader tells every shard of every node, and those of a node that comes up.

use crate::FixedState;
use env::NodeId;
use hashbrown::HashMap;
use metadata::QueueId;

/// The latest leaders that were heard of.
#[derive(Debug, Default)]
pub(crate) struct StreamLeaders {
    /// By stream: the term and its leader.
    known: HashMap<QueueId, (u64, NodeId), FixedState>,
}

impl StreamLeaders {
    /// A node leads a stream in this term. Returns true if that is news.
    pub(crate) fn heard(&mut self, queue: QueueId, term: u64, leader: NodeId) -> bool {
        let news = (term, leader);
        let known = self.known.entry(queue).or_default();
        let is_news = known.0 < term || (known.0 == term && known.1 != leader);
        if is_news {
            *known = news;
        }
        is_news
    }

    /// The leader of a stream. It may have stopped.
    pub(crate) fn leader_of(&self, queue: QueueId) -> Option<NodeId> {
        self.known.get(&queue).map(|(_, leader)| *leader)
    }

    /// The stream is deleted.
    pub(crate) fn forget(&mut self, queue: QueueId) {
        self.known.remove(&queue);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leader_of_the_latest_term_is_known() {
        let mut leaders = StreamLeaders::default();
        let queue = QueueId(7);
        assert_eq!(leaders.leader_of(queue), None);
        assert!(leaders.heard(queue, 3, NodeId(1)));
        assert!(!leaders.heard(queue, 3, NodeId(1)));
        assert!(!leaders.heard(queue, 2, NodeId(2)), "of an earlier term");
        assert_eq!(leaders.leader_of(queue), Some(NodeId(1)));
        assert!(leaders.heard(queue, 4, NodeId(2)));
        assert_eq!(leaders.leader_of(queue), Some(NodeId(2)));
        leaders.forget(queue);
        assert_eq!(leaders.leader_of(queue), None);
    }
}
