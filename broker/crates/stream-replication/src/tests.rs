//! The frames between members as version 0.2 writes them.

use crate::{Attachment, LogEnd, MemberMessage};
use bytes::Bytes;

golden::variant_names! {
    fn message_name(MemberMessage) {
        MemberMessage::AskEnd { .. } => "ask-end",
        MemberMessage::End { .. } => "end",
        MemberMessage::Opened { .. } => "opened",
        MemberMessage::Attach { .. } => "attach",
        MemberMessage::Truncate { .. } => "truncate",
        MemberMessage::Reset { .. } => "reset",
        MemberMessage::Attached { .. } => "attached",
        MemberMessage::Chunks { .. } => "chunks",
        MemberMessage::Committed { .. } => "committed",
        MemberMessage::Written { .. } => "written",
    }
}

#[test]
fn messages_of_version_0_2_are_decoded() {
    let epoch = 300;
    let end = LogEnd {
        epoch: 299,
        next: 70_000,
    };
    let attachment = Attachment {
        incarnation: 5,
        number: 2,
    };
    let messages = [
        MemberMessage::AskEnd { epoch },
        MemberMessage::End {
            epoch,
            end,
            intact: true,
        },
        MemberMessage::Opened { epoch },
        MemberMessage::Attach {
            epoch,
            attachment,
            end,
        },
        MemberMessage::Truncate {
            epoch,
            attachment,
            end,
        },
        MemberMessage::Reset {
            epoch,
            attachment,
            start: 60_000,
        },
        MemberMessage::Attached {
            epoch,
            attachment,
            leader_next: 80_000,
        },
        MemberMessage::Chunks {
            epoch,
            attachment,
            first: 70_000,
            committed: 69_000,
        },
        MemberMessage::Committed {
            epoch,
            attachment,
            committed: 69_000,
        },
        MemberMessage::Written {
            epoch,
            attachment,
            next: 70_001,
            committed: 69_000,
        },
    ];
    golden::assert_covers(&messages, message_name);
    golden::verify(env!("CARGO_MANIFEST_DIR"), "0.2/stream-members", |files| {
        for message in &messages {
            assert_eq!(message.epoch(), epoch);
            let encode = |message: &MemberMessage| wire::encode(message).to_vec();
            let decode = |raw: &[u8]| wire::decode("message", &Bytes::copy_from_slice(raw));
            files.check(message_name(message).0, message, encode, decode);
        }
    });
}

const VOTERS: [env::NodeId; 3] = [env::NodeId(1), env::NodeId(2), env::NodeId(3)];

/// A leader of three voters, which the others have attached to, with 10 committed offsets that one of them lacks.
fn leader_with_a_late_follower() -> crate::Member {
    use crate::{EpochTable, LogState, Member, Output};
    use env::{Incarnation, Time};
    let log = LogState {
        epochs: EpochTable::starting_at(0),
        intact: true,
    };
    let mut leader = Member::new(VOTERS[0], Incarnation(1), log);
    leader.set_members(&VOTERS, &[], Time::ZERO);
    leader.set_term(1, Some(VOTERS[0]), Time::ZERO);
    let end = LogEnd { epoch: 0, next: 0 };
    let attachment = Attachment {
        incarnation: 1,
        number: 1,
    };
    for voter in &VOTERS[1..] {
        let answer = MemberMessage::End {
            epoch: 1,
            end,
            intact: true,
        };
        leader.receive(*voter, answer, Time::ZERO);
        let attach = MemberMessage::Attach {
            epoch: 1,
            attachment,
            end,
        };
        leader.receive(*voter, attach, Time::ZERO);
    }
    assert!(leader.voters_have_committed(), "nothing is stored");
    let header = crate::ChunkHeader {
        epoch: 1,
        first: 0,
        next: 10,
    };
    let token = leader.append(header).expect("it writes");
    leader.written(token, 10, Time::ZERO);
    let sends = |output: &Output| matches!(output, Output::SendChunks { .. });
    assert!(leader.poll().iter().any(sends));
    assert!(!leader.voters_have_committed(), "nothing is committed");
    leader.sent_chunks(VOTERS[1], attachment, 10, 100, Time::ZERO);
    let written = MemberMessage::Written {
        epoch: 1,
        attachment,
        next: 10,
        committed: 0,
    };
    leader.receive(VOTERS[1], written, Time::ZERO);
    assert_eq!(leader.committed(), 10);
    leader
}

#[test]
fn voters_may_change_only_while_a_majority_has_what_is_committed() {
    let mut leader = leader_with_a_late_follower();
    let now = env::Time::ZERO;
    assert!(leader.voters_have_committed());
    // A fourth voter without data: the majority is now three, and two have the chunk.
    let new = env::NodeId(4);
    leader.set_members(&[&VOTERS[..], &[new]].concat(), &[], now);
    assert!(!leader.voters_have_committed());
    leader.set_members(&VOTERS, &[new], now);
    assert!(leader.voters_have_committed(), "learners do not count");
    leader.set_term(2, Some(VOTERS[1]), now);
    assert!(!leader.voters_have_committed(), "only the leader knows");
}
