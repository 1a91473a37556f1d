//! Listing a queue that is longer than its memory, and taking messages out of the middle of it.

use super::tests::{Rig, number, settings};
use crate::{
    BROWSE_PAGE_BYTES, BrowsePage, BrowseRequest, BrowsedMessage, ConsumerId, PositionedGet, Queue,
    QueueEvent, QueueOutput, QueueReply, RequestBody, SettlementOutcome,
};

const COUNT: u64 = 3_000;
/// Two segments and a half of them.
const BODY: usize = 6_000;

fn request(least: u64, most: u64) -> BrowseRequest {
    BrowseRequest {
        from: None,
        least,
        most,
        messages: 100,
        body_bytes: 8,
        body_start: 0,
        state: None,
        unexpired_at: None,
    }
}

fn list(rig: &mut Rig, mut request: BrowseRequest) -> Vec<BrowsedMessage> {
    let mut all = Vec::new();
    loop {
        let BrowsePage { messages, next, .. } = rig.queue.browse(&request).unwrap();
        let bytes: u64 = messages.iter().map(|b| b.body_len).sum();
        assert!(bytes <= (BROWSE_PAGE_BYTES + BODY) as u64, "{bytes}");
        all.extend(messages);
        match next {
            Some(next) => request.from = Some(next),
            None => return all,
        }
    }
}

fn numbers(listed: &[BrowsedMessage]) -> Vec<u64> {
    listed.iter().map(|b| number(&b.message)).collect()
}

/// Takes a message with consumer `consumer`, and returns its number.
fn take(rig: &mut Rig, consumer: u32, at: &BrowsedMessage) -> Option<u64> {
    let get = PositionedGet {
        consumer: ConsumerId(consumer),
        no_ack: false,
        at: at.at,
    };
    let out = rig.request(5, RequestBody::GetAt(Box::new(get)));
    out.events
        .iter()
        .find_map(|addressed| match &addressed.event {
            QueueEvent::Deliver { deliveries, .. } => Some(number(&deliveries[0].message)),
            _ => None,
        })
}

fn settle(rig: &mut Rig, consumer: u32, outcome: SettlementOutcome) -> QueueOutput {
    let body = RequestBody::Settle {
        consumer: ConsumerId(consumer),
        outcome,
        ids: vec![(1, 1)],
    };
    rig.request(5, body)
}

fn long_queue() -> Rig {
    let mut rig = Rig::new(settings());
    for first in (1..=COUNT).step_by(100) {
        rig.publish_together(first..first + 100, true, BODY);
        rig.pass(super::WRITE_AT_LAST);
    }
    rig
}

#[test]
fn long_queue_is_listed_in_order_and_nothing_changes() {
    let mut rig = long_queue();
    let before = (rig.queue.stats(), rig.queue.counters());
    let all = list(&mut rig, request(0, u64::MAX));
    assert_eq!(numbers(&all), (1..=COUNT).collect::<Vec<_>>());
    let from = all[2_000].at.number;
    let some = list(&mut rig, request(from, from + 9));
    assert_eq!(numbers(&some), (2_001..=2_010).collect::<Vec<_>>());
    assert_eq!((rig.queue.stats(), rig.queue.counters()), before);
    let (drained, _) = rig.drain();
    assert_eq!(drained, (1..=COUNT).collect::<Vec<_>>());
}

#[test]
fn message_taken_from_the_middle_is_gone_and_the_others_keep_their_order() {
    let mut rig = long_queue();
    let all = list(&mut rig, request(0, u64::MAX));
    for (consumer, n) in (1..).zip([2_500, 1_500, 700]) {
        assert_eq!(take(&mut rig, consumer, &all[n - 1]), Some(n as u64));
        assert_eq!(take(&mut rig, consumer + 100, &all[n - 1]), None);
    }
    settle(&mut rig, 1, SettlementOutcome::Accepted);
    settle(&mut rig, 2, SettlementOutcome::Released);
    let expected = |n: &u64| ![700, 2_500].contains(n);
    let listed = numbers(&list(&mut rig, request(0, u64::MAX)));
    assert_eq!(
        listed,
        (1..=COUNT).filter(|n| *n != 2_500).collect::<Vec<_>>()
    );
    settle(&mut rig, 3, SettlementOutcome::Accepted);
    // The process is killed after it has recorded the settlements.
    rig.pass(super::WRITE_AT_LAST);
    rig.restart(false);
    assert_eq!(rig.queue.stats().ready, COUNT - 2);
    let all = list(&mut rig, request(0, u64::MAX));
    assert_eq!(
        numbers(&all),
        (1..=COUNT).filter(expected).collect::<Vec<_>>()
    );
    // In segments of an earlier incarnation as well.
    assert_eq!(take(&mut rig, 7, &all[2_000]), Some(2_002));
    settle(&mut rig, 7, SettlementOutcome::Accepted);
    let (drained, faults) = rig.drain();
    let expected = |n: &u64| expected(n) && *n != 2_002;
    assert_eq!(drained, (1..=COUNT).filter(expected).collect::<Vec<_>>());
    assert_eq!(faults, Vec::<String>::new());
    assert_eq!(rig.queue.stats().ready, 0);
}

#[test]
fn message_taken_before_it_is_written_behind_unread_ones_is_not_delivered_twice() {
    let mut rig = long_queue();
    // A pause follows the write of many.
    rig.publish_together(COUNT + 1..COUNT + 101, true, 8);
    rig.publish_together(COUNT + 101..COUNT + 104, true, 8);
    assert!(rig.queue.store.has_unwritten());
    let taken = COUNT + 102;
    let listed = list(&mut rig, request(0, u64::MAX)).swap_remove(taken as usize - 1);
    assert_eq!(take(&mut rig, 1, &listed), Some(taken));
    rig.pass(super::WRITE_AT_LAST);
    assert!(!rig.queue.store.has_unwritten());
    settle(&mut rig, 1, SettlementOutcome::Accepted);
    let expected: Vec<u64> = (1..=COUNT + 103).filter(|n| *n != taken).collect();
    assert_eq!(numbers(&list(&mut rig, request(0, u64::MAX))), expected);
    let (drained, faults) = rig.drain();
    assert_eq!(drained, expected);
    assert_eq!(faults, Vec::<String>::new());
}

#[test]
fn position_that_names_no_ready_message_takes_nothing() {
    let mut rig = long_queue();
    let mut listed = list(&mut rig, request(0, u64::MAX)).swap_remove(2_900);
    let right = listed.at;
    listed.at.offset += 1;
    assert_eq!(take(&mut rig, 1, &listed), None);
    listed.at = right;
    listed.at.number -= 1;
    assert_eq!(take(&mut rig, 2, &listed), None);
    listed.at = right;
    listed.at.segment += 1;
    assert_eq!(take(&mut rig, 3, &listed), None);
    assert_eq!(rig.queue.stats().ready, COUNT);
    listed.at = right;
    rig.request(5, RequestBody::Purge);
    let get = PositionedGet {
        consumer: ConsumerId(4),
        no_ack: false,
        at: listed.at,
    };
    let out = rig.request(5, RequestBody::GetAt(Box::new(get)));
    let is_empty = |event: &QueueEvent| {
        let answer = QueueReply::Empty;
        matches!(event, QueueEvent::Answer { answer: a, .. } if *a == answer)
    };
    assert!(
        out.events
            .iter()
            .any(|addressed| is_empty(&addressed.event))
    );
    assert!(
        rig.queue
            .browse(&request(0, u64::MAX))
            .unwrap()
            .messages
            .is_empty()
    );
}
