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
