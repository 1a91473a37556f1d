use super::*;
use crate::limits;
use bytes::Bytes;

fn retain(topic: &str, message: Option<usize>) -> Change {
    Change::Retain {
        vhost: name("/"),
        topic: name(topic),
        message: message.map(|len| Bytes::from(vec![7; len])),
    }
}

#[test]
fn topic_has_one_retained_message_and_snapshots_contain_all() {
    let mut log = Log::new();
    assert_eq!(log.ok(retain("a", Some(3))), ChangeResult::Changed);
    let events = log.tree.events().to_vec();
    let (vhost, topic) = (name("/"), name("a"));
    assert_eq!(events, [TreeEvent::Retained { vhost, topic }]);
    log.ok(retain("a", Some(5)));
    log.ok(retain("b", Some(1)));
    let restored = Tree::restore(&log.tree.snapshot()).unwrap();
    assert_eq!(restored.digest(), log.tree.digest());
    assert_eq!(restored.retained("/", "a").map(Bytes::len), Some(5));
    assert_eq!(log.ok(retain("a", None)), ChangeResult::Changed);
    assert_eq!(log.ok(retain("a", None)), ChangeResult::Unchanged);
    assert_eq!(log.tree.all_retained().count(), 1);
    for topic in ["c", "d"] {
        log.ok(retain(topic, Some(1)));
    }
    let after = |topic: Option<&str>| -> Vec<String> {
        let found = log.tree.retained_after("/", topic);
        found.map(|(topic, _)| topic.to_string()).collect()
    };
    assert_eq!(after(None), ["b", "c", "d"]);
    assert_eq!(after(Some("b")), ["c", "d"]);
    assert_eq!(after(Some("bb")), ["c", "d"]);
    assert_eq!(log.tree.retained_after("none", None).count(), 0);
    let decoded = Change::decode(&retain("a", Some(2)).encode());
    assert_eq!(decoded, Ok(retain("a", Some(2))));
}

#[test]
fn retained_messages_are_bounded() {
    let mut log = Log::new();
    let max = limits::RETAINED_BYTES;
    assert!(matches!(
        log.refused(retain("a", Some(max + 1))),
        ChangeError::Invalid(_)
    ));
    let capacity = limits::RETAINED_TOTAL_BYTES / (max + 4);
    let mut tree = log.tree;
    for n in 0..capacity {
        tree.apply(100, &retain(&format!("t{n:03}"), Some(max)))
            .unwrap();
    }
    let over_limit = tree.apply(101, &retain("more", Some(max)));
    assert!(
        matches!(over_limit, Err(ChangeError::PreconditionFailed(_))),
        "{over_limit:?}"
    );
    // Replacing a retained message needs no more room.
    tree.apply(102, &retain("t000", Some(max))).unwrap();
    tree.apply(103, &Change::DeleteVhost { name: name("/") })
        .unwrap();
    assert_eq!(tree.all_retained().count(), 0);
    assert!(tree.apply(104, &retain("a", Some(1))).is_err());
}
