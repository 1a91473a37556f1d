//! Validation of peer messages before raft-rs sees them: raft-rs panics on messages that no correct member
//! sends.

use crate::entry::Position;
use crate::store::LogStore;
use raft::eraftpb::{Message, MessageType};
use raft::{ProgressState, RawNode, StateRole};

/// Why a message was dropped; for the counters and the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RefusedMessage(pub &'static str);

/// Checks a message from a peer, and corrects a commit index that exceeds this log.
pub(crate) fn check(raw: &RawNode<LogStore>, m: &mut Message) -> Result<(), RefusedMessage> {
    match m.get_msg_type() {
        MessageType::MsgAppend => check_append(raw, m),
        MessageType::MsgHeartbeat => check_heartbeat(raw, m),
        MessageType::MsgAppendResponse => check_append_response(raw, m),
        MessageType::MsgTimeoutNow => check_timeout_now(raw, m),
        MessageType::MsgRequestVote | MessageType::MsgRequestPreVote => check_vote_request(raw, m),
        MessageType::MsgHeartbeatResponse
        | MessageType::MsgRequestVoteResponse
        | MessageType::MsgRequestPreVoteResponse => Ok(()),
        _ => Err(RefusedMessage("message type is never sent between nodes")),
    }
}

/// A replica that was deleted and created again grants no vote to a candidate with a shorter log than its
/// predecessor had.
pub(crate) fn check_floor(floor: Option<Position>, m: &Message) -> Result<(), RefusedMessage> {
    let is_vote_request = matches!(
        m.get_msg_type(),
        MessageType::MsgRequestVote | MessageType::MsgRequestPreVote
    );
    match floor {
        Some(floor) if is_vote_request && (m.log_term, m.index) < (floor.term, floor.index) => Err(
            RefusedMessage("candidate's log ends before the log of the deleted replica"),
        ),
        _ => Ok(()),
    }
}

fn from_second_leader(raw: &RawNode<LogStore>, m: &Message) -> bool {
    let known = raw.raft.leader_id;
    m.term == raw.raft.term && known != 0 && known != m.from
}

fn check_append(raw: &RawNode<LogStore>, m: &Message) -> Result<(), RefusedMessage> {
    if from_second_leader(raw, m) {
        return Err(RefusedMessage(
            "append from a second leader in the same term",
        ));
    }
    // raft-rs reports term 0 for a missing entry, so an append must not ask for term 0.
    if (m.log_term == 0) != (m.index == 0) {
        return Err(RefusedMessage(
            "append with an inconsistent previous index and term",
        ));
    }
    let mut term = m.log_term.max(1);
    for (n, e) in m.entries.iter().enumerate() {
        if e.index != m.index + 1 + n as u64 {
            return Err(RefusedMessage("append with a gap in its indexes"));
        }
        if e.term < term || e.term > m.term {
            return Err(RefusedMessage("append with terms out of order"));
        }
        term = e.term;
    }
    Ok(())
}

fn check_heartbeat(raw: &RawNode<LogStore>, m: &mut Message) -> Result<(), RefusedMessage> {
    if from_second_leader(raw, m) {
        return Err(RefusedMessage(
            "heartbeat from a second leader in the same term",
        ));
    }
    // A leader sends a follower at most the match index as commit index. If it is wrong about that, its next
    // append finds out.
    m.commit = m.commit.min(raw.raft.raft_log.last_index());
    Ok(())
}

fn check_append_response(raw: &RawNode<LogStore>, m: &Message) -> Result<(), RefusedMessage> {
    if m.term != raw.raft.term || raw.raft.state != StateRole::Leader {
        return Ok(());
    }
    if m.index > raw.raft.raft_log.last_index() {
        return Err(RefusedMessage(
            "append response for entries that do not exist",
        ));
    }
    if !m.reject {
        return Ok(());
    }
    let Some(progress) = raw.raft.prs().get(m.from) else {
        return Err(RefusedMessage(
            "append response from a node that is not a member",
        ));
    };
    // raft-rs 0.7.0 moves the next index of a probing follower below what the follower has acknowledged
    // (fixed after 0.7.0, #557). A late or repeated rejection must not move the next index to or below the
    // match index.
    if progress.state == ProgressState::Probe && m.index <= progress.matched {
        return Err(RefusedMessage("rejection of an acknowledged entry"));
    }
    Ok(())
}

fn check_timeout_now(raw: &RawNode<LogStore>, m: &Message) -> Result<(), RefusedMessage> {
    if m.term < raw.raft.term || from_second_leader(raw, m) {
        return Err(RefusedMessage(
            "timeout-now from a node that is not the leader",
        ));
    }
    // It would win at once, which raft-rs does not allow before its log is durable.
    if is_alone(raw) {
        return Err(RefusedMessage("timeout-now in a group of one"));
    }
    Ok(())
}

fn is_alone(raw: &RawNode<LogStore>) -> bool {
    let voters = raw.raft.prs().conf().voters();
    voters.ids().len() == 1 && voters.contains(raw.raft.id)
}

fn check_vote_request(raw: &RawNode<LogStore>, m: &Message) -> Result<(), RefusedMessage> {
    // The single voter elects itself at once, so no other node may affect its term.
    if is_alone(raw) && m.from != raw.raft.id {
        return Err(RefusedMessage("vote request in a group of one"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::FOUNDING;
    use crate::snapshot::Checkpoint;
    use crate::store::Segments;
    use crate::{GroupId, Membership};
    use env::NodeId;
    use raft::Config;
    use raft::eraftpb::HardState;

    /// Node 1 in term 1, before any election.
    fn follower(voters: &[u64]) -> RawNode<LogStore> {
        let members = Membership {
            voters: voters.iter().copied().map(NodeId).collect(),
            learners: Vec::new(),
        };
        let Position { index, term } = FOUNDING;
        let group = GroupId(1);
        let segments = Segments::new(group, Vec::new());
        let checkpoint = Checkpoint::founding(members);
        let mut store = LogStore::new(group, FOUNDING, checkpoint, segments);
        let mut state = HardState::default();
        (state.term, state.commit) = (term, index);
        store.set_hard_state(state);
        let config = Config {
            id: 1,
            applied: index,
            max_size_per_msg: 1 << 20,
            ..Config::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        RawNode::new(&config, store, &logger).expect("starts")
    }

    /// Node 1 leads nodes 2 and 3 in term 2; nothing has been acknowledged yet.
    fn leader() -> RawNode<LogStore> {
        let mut raw = follower(&[1, 2, 3]);
        raw.campaign().expect("campaigns");
        settle(&mut raw);
        let mut vote = message(MessageType::MsgRequestVoteResponse, 2);
        vote.term = 2;
        raw.step(vote).expect("counts");
        settle(&mut raw);
        assert_eq!(raw.raft.state, StateRole::Leader);
        raw
    }

    fn message(kind: MessageType, from: u64) -> Message {
        let mut m = Message::default();
        m.set_msg_type(kind);
        (m.from, m.to, m.term) = (from, 1, 2);
        m
    }

    /// Makes everything durable at once and drops all messages.
    fn settle(raw: &mut RawNode<LogStore>) {
        while raw.has_ready() {
            let mut ready = raw.ready();
            let entries: Vec<_> = ready.take_entries().into_iter().collect();
            let entries = entries.into_iter().map(crate::entry::from_raft);
            raw.mut_store().append(entries);
            let number = ready.number();
            raw.advance_append_async(ready);
            raw.on_persist_ready(number);
        }
    }

    fn step(raw: &mut RawNode<LogStore>, mut m: Message) -> Result<(), RefusedMessage> {
        check(raw, &mut m)?;
        raw.step(m).expect("from a member");
        settle(raw);
        Ok(())
    }

    fn accepted(from: u64, index: u64) -> Message {
        let mut m = message(MessageType::MsgAppendResponse, from);
        m.index = index;
        m
    }

    fn rejected(from: u64, index: u64, hint: u64, hint_term: u64) -> Message {
        let mut m = accepted(from, index);
        m.reject = true;
        (m.reject_hint, m.log_term) = (hint, hint_term);
        m
    }

    fn assert_next_index_above_match(raw: &RawNode<LogStore>) {
        for (id, p) in raw.raft.prs().iter() {
            assert!(p.next_idx > p.matched, "{id}: {p:?}");
        }
    }

    fn propose(raw: &mut RawNode<LogStore>, count: usize) {
        for _ in 0..count {
            raw.propose(Vec::new(), b"x".to_vec()).expect("leads");
            settle(raw);
        }
    }

    /// raft-rs #557: a follower becomes unreachable, so the leader probes it; then an old rejection arrives.
    #[test]
    fn next_index_stays_above_match_index() {
        let mut raw = leader();
        propose(&mut raw, 10);
        step(&mut raw, accepted(2, 8)).expect("accepted");
        raw.report_unreachable(2);
        settle(&mut raw);
        let progress = raw.raft.prs().get(2).expect("member");
        assert_eq!(progress.state, ProgressState::Probe);
        assert_eq!((progress.matched, progress.next_idx), (8, 9));
        // Sent before it acknowledged 8, or after it lost entries that it had acknowledged.
        let refused = step(&mut raw, rejected(2, 8, 1, 1));
        assert_eq!(
            refused,
            Err(RefusedMessage("rejection of an acknowledged entry"))
        );
        assert_next_index_above_match(&raw);
        // Replication continues where it was.
        step(&mut raw, accepted(2, 12)).expect("accepted");
        assert_next_index_above_match(&raw);
        assert_eq!(raw.raft.raft_log.committed, 12);
    }

    #[test]
    fn arbitrary_responses_keep_next_index_above_match_index() {
        use env::{Rng, SeededRng};
        for seed in 0..300 {
            let mut rng = SeededRng::new(seed);
            let mut raw = leader();
            propose(&mut raw, 20);
            for _ in 0..60 {
                let from = 2 + rng.below(2);
                let index = rng.below(26);
                let m = match rng.below(5) {
                    0 => {
                        raw.report_unreachable(from);
                        continue;
                    }
                    1 | 2 => rejected(from, index, rng.below(26), rng.below(3)),
                    _ => accepted(from, index),
                };
                let _ = step(&mut raw, m);
                assert_next_index_above_match(&raw);
                assert!(raw.raft.raft_log.committed <= raw.raft.raft_log.last_index());
            }
        }
    }

    #[test]
    fn group_of_one_refuses_timeout_now() {
        let alone = follower(&[1]);
        let mut call = message(MessageType::MsgTimeoutNow, 2);
        assert!(check(&alone, &mut call).is_err());
        assert_eq!(check(&follower(&[1, 2]), &mut call), Ok(()));
    }

    #[test]
    fn append_with_inconsistent_previous_entry_is_refused() {
        let raw = leader();
        for (index, log_term) in [(50, 0), (0, 1)] {
            let mut m = message(MessageType::MsgAppend, 2);
            m.term = 3;
            (m.index, m.log_term) = (index, log_term);
            assert!(check(&raw, &mut m).is_err());
        }
    }
}
