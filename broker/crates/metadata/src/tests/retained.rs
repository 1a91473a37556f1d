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
fn a_topic_has_one_message_and_a_snapshot_has_them_all() {
    let mut log = Log::new();
    assert_eq!(log.ok(retain("a", Some(3))), ChangeResult::Changed);
    let told = log.tree.events().to_vec();
    let (vhost, topic) = (name("/"), name("a"));
    assert_eq!(told, [TreeEvent::Retained { vhost, topic }]);
    log.ok(retain("a", Some(5)));
    log.ok(retain("b", Some(1)));
    let again = Tree::restore(&log.tree.snapshot()).unwrap();
    assert_eq!(again.digest(), log.tree.digest());
    assert_eq!(again.retained("/", "a").map(Bytes::len), Some(5));
    assert_eq!(log.ok(retain("a", None)), ChangeResult::Changed);
    assert_eq!(log.ok(retain("a", None)), ChangeResult::AsBefore);
    assert_eq!(log.tree.all_retained().count(), 1);
    let round = Change::decode(&retain("a", Some(2)).encode());
    assert_eq!(round, Ok(retain("a", Some(2))));
}

#[test]
fn what_is_retained_has_bounds() {
    let mut log = Log::new();
    let most = limits::RETAINED_BYTES;
    assert!(matches!(
        log.refused(retain("a", Some(most + 1))),
        ChangeError::Invalid(_)
    ));
    let fits = limits::RETAINED_TOTAL_BYTES / (most + 4);
    let mut tree = log.tree;
    for n in 0..fits {
        tree.apply(100, &retain(&format!("t{n:03}"), Some(most)))
            .unwrap();
    }
    let full = tree.apply(101, &retain("more", Some(most)));
    assert!(
        matches!(full, Err(ChangeError::PreconditionFailed(_))),
        "{full:?}"
    );
    // In place of another there is room.
    tree.apply(102, &retain("t000", Some(most))).unwrap();
    tree.apply(103, &Change::DeleteVhost { name: name("/") })
        .unwrap();
    assert_eq!(tree.all_retained().count(), 0);
    assert!(tree.apply(104, &retain("a", Some(1))).is_err());
}
