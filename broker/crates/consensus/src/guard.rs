//! What raft-rs must not be shown. It panics on messages that no honest member sends, so each is looked at first.

use crate::store::LogStore;
use raft::eraftpb::{Message, MessageType};
use raft::{ProgressState, RawNode, StateRole};

/// Why a message was dropped; for the counters and the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused(pub &'static str);

/// Checks a message from a peer, and repairs what has one harmless meaning.
pub fn check(raw: &RawNode<LogStore>, m: &mut Message) -> Result<(), Refused> {
    match m.get_msg_type() {
        MessageType::MsgAppend => check_append(raw, m),
        MessageType::MsgHeartbeat => check_heartbeat(raw, m),
        MessageType::MsgAppendResponse => check_append_response(raw, m),
        MessageType::MsgTimeoutNow => check_timeout_now(raw, m),
        MessageType::MsgRequestVote | MessageType::MsgRequestPreVote => check_vote_request(raw, m),
        MessageType::MsgHeartbeatResponse
        | MessageType::MsgRequestVoteResponse
        | MessageType::MsgRequestPreVoteResponse => Ok(()),
        _ => Err(Refused("kind that does not travel")),
    }
}

fn from_second_leader(raw: &RawNode<LogStore>, m: &Message) -> bool {
    let known = raw.raft.leader_id;
    m.term == raw.raft.term && known != 0 && known != m.from
}

fn check_append(raw: &RawNode<LogStore>, m: &Message) -> Result<(), Refused> {
    if from_second_leader(raw, m) {
        return Err(Refused("append of a second leader in one term"));
    }
    let mut term = m.log_term;
    for (n, e) in m.entries.iter().enumerate() {
        if e.index != m.index + 1 + n as u64 {
            return Err(Refused("append with a gap"));
        }
        if e.term < term || e.term > m.term {
            return Err(Refused("append with terms out of order"));
        }
        term = e.term;
    }
    Ok(())
}

fn check_heartbeat(raw: &RawNode<LogStore>, m: &mut Message) -> Result<(), Refused> {
    if from_second_leader(raw, m) {
        return Err(Refused("heartbeat of a second leader in one term"));
    }
    // A leader tells a follower no more than what the two share; if it is wrong about that, its next append
    // finds out.
    m.commit = m.commit.min(raw.raft.raft_log.last_index());
    Ok(())
}

fn check_append_response(raw: &RawNode<LogStore>, m: &Message) -> Result<(), Refused> {
    if m.term != raw.raft.term || raw.raft.state != StateRole::Leader {
        return Ok(());
    }
    if m.index > raw.raft.raft_log.last_index() {
        return Err(Refused("answer about entries that do not exist"));
    }
    if !m.reject {
        return Ok(());
    }
    let Some(progress) = raw.raft.prs().get(m.from) else {
        return Err(Refused("answer of a stranger"));
    };
    // raft-rs 0.7.0 sends a follower in probing state back below what it has acknowledged (fixed after 0.7.0,
    // #557): a late or repeated rejection must not move its next index to or below its match index.
    if progress.state == ProgressState::Probe && m.index <= progress.matched {
        return Err(Refused("rejection of what was acknowledged"));
    }
    Ok(())
}

fn check_timeout_now(raw: &RawNode<LogStore>, m: &Message) -> Result<(), Refused> {
    if m.term < raw.raft.term || from_second_leader(raw, m) {
        return Err(Refused("call to an election by who does not lead"));
    }
    Ok(())
}

fn check_vote_request(raw: &RawNode<LogStore>, m: &Message) -> Result<(), Refused> {
    // A group of one wins by itself, at once, and nobody else may have a say about its term.
    let voters = raw.raft.prs().conf().voters();
    if voters.ids().len() == 1 && voters.contains(raw.raft.id) && m.from != raw.raft.id {
        return Err(Refused("vote in a group of one"));
    }
    Ok(())
}
