//! Links on which a client browses a queue.

use crate::fake::{BrowsedQueue, Client, Seen, data, link};
use amqp10::{LinkId, SessionId};
use codec_amqp10::{
    AnyTarget, Attach, DeliveryState, Map, Modified, Outcome, Reader, Role, SectionKind,
    SenderSettleMode, Source, Symbol, Target, Value, encode_data_section, encode_described,
    encode_section_descriptor, map,
};
use env::WallTime;
use message::{Message, MessageBuilder, Protocol};
use metadata::features::STREAM_QUEUES;
use metadata::{Change, QueueId, QueueType};
use proptest::prelude::*;
use queue::{BrowsePosition, BrowsedMessage, BrowsedState, RequestBody};
use session::{QueueNotification, Session, SessionState};
use session_amqp10::Amqp10Config;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

/// A message with a data section and the application property `colour`.
fn stored(body: &[u8], colour: &str) -> Message {
    let mut properties = Vec::new();
    encode_section_descriptor(&mut properties, SectionKind::ApplicationProperties);
    let mut entries = map(&mut properties);
    entries.push("colour");
    entries.push(colour);
    entries.finish();
    let mut section = Vec::new();
    encode_data_section(&mut section, body);
    let builder = MessageBuilder {
        protocol: Protocol::Amqp10,
        durable: true,
        priority: None,
        ttl_ms: None,
        received: WallTime(1),
        exchange: "",
        routing_keys: &["q"],
        properties: &properties,
    };
    builder.build(section.len(), [&section[..]]).unwrap()
}

/// Adds a message to a queue; returns its number.
fn add(browsed: &mut BrowsedQueue, level: u8, message: Message) -> u64 {
    browsed.last_number += 1;
    let at = BrowsePosition {
        level,
        number: browsed.last_number,
        ..BrowsePosition::default()
    };
    browsed.messages.push(BrowsedMessage {
        at,
        state: BrowsedState::Ready,
        due_at: None,
        redelivered: false,
        failed: None,
        acquired: 0,
        body_len: message.body_len() as u64,
        body_start: 0,
        message,
    });
    let key = |m: &BrowsedMessage| (Reverse(m.at.level), m.at.number);
    browsed.messages.sort_by_key(key);
    browsed.last_number
}

fn publish(client: &mut Client, queue: QueueId, level: u8, body: &str) -> u64 {
    let browsed = client.broker.browsed.entry(queue).or_default();
    add(browsed, level, stored(body.as_bytes(), "red"))
}

fn publish_all(client: &mut Client, queue: QueueId, bodies: &[&str]) {
    for body in bodies {
        publish(client, queue, 0, body);
    }
}

fn try_browse(client: &mut Client, session: SessionId, source: Source<'_>) -> LinkId {
    try_browse_with(client, session, source, SenderSettleMode::Mixed, None)
}

fn try_browse_with(
    client: &mut Client,
    session: SessionId,
    source: Source<'_>,
    snd_settle_mode: SenderSettleMode,
    max_message_size: Option<u64>,
) -> LinkId {
    let name = format!("browser {}", client.attached.len());
    let attach = Attach {
        source: Some(Source {
            address: Some(Value::String("/queues/q")),
            distribution_mode: Some(Symbol::from_static("copy")),
            ..source
        }),
        target: Some(AnyTarget::Target(Target::default())),
        snd_settle_mode,
        max_message_size,
        ..link(&name, Role::Receiver)
    };
    client.attach(session, &attach)
}

fn browse(client: &mut Client, session: SessionId) -> LinkId {
    let link = try_browse(client, session, Source::default());
    client.expect(Seen::Attached(link));
    link
}

fn open(kind: QueueType) -> (Client, SessionId, QueueId) {
    let (mut client, session) = Client::open();
    let queue = client.declare_type("q", kind);
    (client, session, queue)
}

/// The bodies of the messages that the client has got, which are the only events.
fn bodies(client: &mut Client) -> Vec<String> {
    let seen = std::mem::take(&mut client.seen);
    let body = |seen| match seen {
        Seen::Message { payload, .. } => String::from_utf8(data(&payload)).unwrap(),
        other => panic!("{other:?}"),
    };
    seen.into_iter().map(body).collect()
}

/// Lets time pass.
fn pass(client: &mut Client, time: Duration) {
    client.broker.now = client.broker.now + time;
    client.state = client.session.tick(&mut client.broker, &mut client.out);
    client.pump();
}

#[test]
fn each_ready_message_is_shown_once_by_priority_and_age() {
    for kind in [QueueType::Classic, QueueType::Quorum] {
        let (mut client, session, queue) = open(kind);
        for (level, body) in [(0, "c"), (4, "b"), (9, "a"), (4, "b2")] {
            publish(&mut client, queue, level, body);
        }
        let link = browse(&mut client, session);
        let source = client.answer(link).source.unwrap();
        let mode = source.distribution_mode.map(Symbol::as_str);
        assert_eq!(mode, Some("copy"));
        client.credit(link, 10, false);
        assert_eq!(bodies(&mut client), ["a", "b", "b2", "c"]);
        client.credit(link, 10, true);
        client.expect(Seen::Drained(link));
        client.nothing_seen();
        assert!(client.broker.requests.is_empty(), "the queue is not told");
        let counters = &client.broker.message_counters;
        assert_eq!(counters.consumers, 0);
        let deliveries = &counters.deliveries[kind];
        assert_eq!((deliveries.deliver_no_ack, deliveries.deliver), (4, 0));
    }
}

#[test]
fn receiver_of_a_stream_gets_copies_as_before() {
    let (mut client, session) = Client::open();
    client.broker.must(Change::EnableFeature {
        name: STREAM_QUEUES.name.into(),
    });
    let stream = client.declare_type("q", QueueType::Stream);
    browse(&mut client, session);
    let mut requests = client.broker.requests.iter();
    let consumes = |(to, body): &(QueueId, RequestBody)| {
        *to == stream && matches!(body, RequestBody::Consume { .. })
    };
    assert!(requests.any(consumes));
}

#[test]
fn pages_are_requested_for_the_credit_only() {
    let (mut client, session, queue) = open(QueueType::Quorum);
    publish_all(&mut client, queue, &["a", "b", "c", "d"]);
    let link = browse(&mut client, session);
    assert!(client.broker.page_requests.is_empty());
    client.credit(link, 3, false);
    assert_eq!(bodies(&mut client), ["a", "b", "c"]);
    let requested = |client: &Client| -> Vec<u32> {
        let requests = client.broker.page_requests.iter();
        requests.map(|(_, request)| request.messages).collect()
    };
    assert_eq!(requested(&client), [3]);
    pass(&mut client, Duration::from_secs(10));
    assert_eq!(requested(&client), [3], "without credit");
    client.credit(link, 1, true);
    assert_eq!(bodies_and_end(&mut client, link), ["d"]);
    assert_eq!(requested(&client), [3, 1]);
}

/// The bodies of messages before the end of a drain.
fn bodies_and_end(client: &mut Client, link: LinkId) -> Vec<String> {
    assert_eq!(client.seen.pop_back(), Some(Seen::Drained(link)));
    bodies(client)
}

#[test]
fn drain_of_an_empty_queue_ends_at_once() {
    let (mut client, session, _) = open(QueueType::Classic);
    let link = browse(&mut client, session);
    client.credit(link, 5, true);
    client.expect(Seen::Drained(link));
}

#[test]
fn drain_shows_messages_that_were_published_before_it() {
    let (mut client, session, queue) = open(QueueType::Quorum);
    publish_all(&mut client, queue, &["a"]);
    let link = browse(&mut client, session);
    client.broker.hold_pages = true;
    client.credit(link, 5, false);
    // The page that is on its way does not have the second message.
    assert!(client.broker.answer_page());
    let early: Vec<_> = client.broker.notices.drain(..).collect();
    publish_all(&mut client, queue, &["b"]);
    client.credit(link, 5, true);
    client.nothing_seen();
    client.broker.notices.extend(early);
    client.broker.hold_pages = false;
    client.deliver_events();
    client.pump();
    assert_eq!(bodies_and_end(&mut client, link), ["a", "b"]);
}

#[test]
fn messages_that_are_published_later_are_shown_whatever_their_priority() {
    let (mut client, session, queue) = open(QueueType::Quorum);
    publish(&mut client, queue, 4, "a");
    publish(&mut client, queue, 1, "b");
    let link = browse(&mut client, session);
    client.credit(link, 100, false);
    assert_eq!(bodies(&mut client), ["a", "b"]);
    publish(&mut client, queue, 1, "c");
    publish(&mut client, queue, 9, "d");
    client.nothing_seen();
    let due = client.session.wake_at().expect("it looks again");
    let wait = due.since(client.broker.now);
    pass(&mut client, wait);
    assert_eq!(bodies(&mut client), ["d", "c"]);
    // It looks less often while nothing comes.
    let before = client.broker.page_requests.len();
    for _ in 0..100 {
        pass(&mut client, Duration::from_millis(100));
    }
    let requests = client.broker.page_requests.len() - before;
    assert!((10..20).contains(&requests), "{requests}");
}

#[test]
fn message_published_while_a_page_is_read_is_shown_once() {
    let (mut client, session, queue) = open(QueueType::Quorum);
    for n in 0..150 {
        publish(&mut client, queue, 4, &n.to_string());
    }
    let link = browse(&mut client, session);
    client.broker.hold_pages = true;
    client.credit(link, 1_000, false);
    client.broker.answer_page();
    client.pump();
    assert_eq!(bodies(&mut client).len(), 100);
    publish(&mut client, queue, 9, "high");
    publish(&mut client, queue, 0, "low");
    client.broker.hold_pages = false;
    client.broker.answer_page();
    client.pump();
    let later = bodies(&mut client);
    assert_eq!(later.len(), 52);
    assert_eq!(later[50..], ["high", "low"]);
    client.credit(link, 1_000, true);
    client.expect(Seen::Drained(link));
}

#[test]
fn outcomes_do_not_reach_the_queue() {
    let outcomes = [
        DeliveryState::ACCEPTED,
        DeliveryState::RELEASED,
        DeliveryState::Outcome(Outcome::Rejected(None)),
        DeliveryState::Outcome(Outcome::Modified(Modified {
            delivery_failed: true,
            undeliverable_here: true,
            message_annotations: None,
        })),
    ];
    for outcome in outcomes {
        let (mut client, session, queue) = open(QueueType::Quorum);
        publish_all(&mut client, queue, &["a"]);
        let source = Source::default();
        let mode = SenderSettleMode::Unsettled;
        let link = try_browse_with(&mut client, session, source, mode, None);
        client.expect(Seen::Attached(link));
        client.credit(link, 1, false);
        let id = client.expect_message("a");
        client.settle(link, id, &outcome);
        client.detach(link);
        client.end(session);
        assert!(client.broker.requests.is_empty(), "{outcome:?}");
        let acks = client.broker.message_counters.deliveries[QueueType::Quorum].ack;
        assert_eq!(acks, 0);
    }
}

fn filter<'a>(encoded: &'a mut Vec<u8>, filters: &[(&str, &str)]) -> Map<'a> {
    let mut entries = map(encoded);
    for (name, selector) in filters {
        entries.push(&Symbol::new(name).unwrap());
        entries.push_with(|out| {
            encode_described(out, Symbol::new(name).unwrap(), &Value::String(selector));
        });
    }
    entries.finish();
    Reader::new(encoded).read().unwrap()
}

#[test]
fn filters_choose_the_messages_that_are_shown() {
    let (mut client, session, queue) = open(QueueType::Classic);
    for n in 0..250 {
        let colour = if n % 100 == 99 { "blue" } else { "red" };
        let message = stored(n.to_string().as_bytes(), colour);
        let browsed = client.broker.browsed.entry(queue).or_default();
        add(browsed, 0, message);
    }
    let mut encoded = Vec::new();
    let filters = [
        ("apache.org:selector-filter:string", "colour = 'blue'"),
        ("com.example:unknown", "x"),
    ];
    let source = Source {
        filter: Some(filter(&mut encoded, &filters)),
        ..Source::default()
    };
    let link = try_browse(&mut client, session, source);
    client.expect(Seen::Attached(link));
    let answered = client.answer(link).source.unwrap().filter.unwrap();
    assert_eq!(answered.len(), 1, "unknown filters have no effect");
    client.credit(link, 5, true);
    assert_eq!(bodies_and_end(&mut client, link), ["99", "199"]);
}

#[test]
fn no_page_is_requested_while_the_client_does_not_read() {
    let (mut client, session, queue) = open(QueueType::Quorum);
    for n in 0..2_000 {
        publish(&mut client, queue, 0, &n.to_string());
    }
    let link = browse(&mut client, session);
    client.is_deaf = true;
    client.credit(link, 2_000, false);
    // The window of the client's session has 400 transfers.
    let requests = client.broker.page_requests.len();
    assert!((4..=5).contains(&requests), "{requests}");
    let held = client.session.held().unread;
    assert!(held < 100 * 200, "{held}");
    client.is_deaf = false;
    client.pump();
    let all = bodies(&mut client);
    let expected: Vec<String> = (0..2_000).map(|n| n.to_string()).collect();
    assert_eq!(all, expected);
}

#[test]
fn links_of_a_connection_hold_few_pages_at_a_time() {
    let (mut client, session, queue) = open(QueueType::Quorum);
    let body = "x".repeat(1_000);
    for _ in 0..100 {
        publish(&mut client, queue, 0, &body);
    }
    let links: Vec<LinkId> = (0..40).map(|_| browse(&mut client, session)).collect();
    client.broker.hold_pages = true;
    for link in &links {
        client.credit(*link, 100, false);
    }
    assert_eq!(client.broker.page_requests.len(), 16);
    client.is_deaf = true;
    while client.broker.answer_page() {
        client.pump();
    }
    let held = client.session.held().unread;
    assert!((1..16 * 100 * 1_300).contains(&held), "{held}");
    (client.is_deaf, client.broker.hold_pages) = (false, false);
    client.pump();
    for link in &links {
        client.credit(*link, 100, true);
    }
    let seen = std::mem::take(&mut client.seen).into_iter();
    let copies = seen.filter(|seen| matches!(seen, Seen::Message { .. }));
    assert_eq!(copies.count(), 40 * 100);
}

#[test]
fn messages_without_credit_are_not_held_but_read_again() {
    let (mut client, session, queue) = open(QueueType::Quorum);
    publish_all(&mut client, queue, &["a", "b", "c"]);
    let mut encoded = Vec::new();
    let filters = [("apache.org:selector-filter:string", "colour = 'red'")];
    let source = Source {
        filter: Some(filter(&mut encoded, &filters)),
        ..Source::default()
    };
    let link = try_browse(&mut client, session, source);
    client.expect(Seen::Attached(link));
    client.credit(link, 1, false);
    client.expect_message("a");
    assert_eq!(client.session.held().unread, 0);
    // A consumer takes the next one.
    let browsed = client.broker.browsed.get_mut(&queue).unwrap();
    browsed.messages.remove(1);
    publish(&mut client, queue, 9, "d");
    client.credit(link, 5, true);
    assert_eq!(bodies_and_end(&mut client, link), ["c", "d"]);
}

#[test]
fn body_that_comes_in_parts_is_sent_as_one_message() {
    for kind in [QueueType::Classic, QueueType::Quorum] {
        let (mut client, session, queue) = open(kind);
        let long: String = (0..60_000).map(|n: u32| n.to_string()).collect();
        publish_all(&mut client, queue, &["a", &long, "b"]);
        client.broker.browsed.get_mut(&queue).unwrap().body_bytes = 100_000;
        let link = browse(&mut client, session);
        client.credit(link, 5, true);
        assert_eq!(bodies_and_end(&mut client, link), ["a", &long, "b"]);
    }
}

#[test]
fn message_that_leaves_the_queue_before_all_its_parts_are_read_is_left_out() {
    let (mut client, session, queue) = open(QueueType::Quorum);
    let long = "x".repeat(1_000);
    publish_all(&mut client, queue, &[&long, "b"]);
    client.broker.browsed.get_mut(&queue).unwrap().body_bytes = 100;
    let link = browse(&mut client, session);
    client.broker.hold_pages = true;
    client.credit(link, 5, true);
    for _ in 0..3 {
        assert!(client.broker.answer_page());
        client.pump();
    }
    let partial = client.session.held().unread;
    assert!(partial > 300, "{partial}");
    let browsed = client.broker.browsed.get_mut(&queue).unwrap();
    browsed.messages.remove(0);
    client.broker.hold_pages = false;
    client.broker.answer_page();
    client.pump();
    assert_eq!(bodies_and_end(&mut client, link), ["b"]);
    assert_eq!(client.session.held().unread, 0);
}

#[test]
fn message_above_the_limit_of_the_client_detaches_the_link() {
    let (mut client, session, queue) = open(QueueType::Classic);
    publish_all(&mut client, queue, &["a", &"x".repeat(1_000)]);
    let source = Source::default();
    let mode = SenderSettleMode::Mixed;
    let link = try_browse_with(&mut client, session, source, mode, Some(500));
    client.expect(Seen::Attached(link));
    client.credit(link, 5, false);
    client.expect_message("a");
    let condition = "amqp:link:message-size-exceeded";
    client.expect(Seen::Detached(Some(condition.into())));
}

#[test]
fn deletion_of_the_queue_detaches_its_browsers_only() {
    let (mut client, session, queue) = open(QueueType::Classic);
    let other = client.declare("other");
    let link = browse(&mut client, session);
    for removed in [other, queue] {
        let notification = QueueNotification::Removed { queue: removed };
        client.broker.notices.push_back(notification.into());
    }
    client.deliver_events();
    client.pump();
    client.expect(Seen::Detached(Some("amqp:resource-deleted".into())));
    client.nothing_seen();
    let _ = link;
}

#[test]
fn owner_that_does_not_answer_is_asked_again_for_a_while() {
    let (mut client, session, queue) = open(QueueType::Quorum);
    publish_all(&mut client, queue, &["a"]);
    let link = browse(&mut client, session);
    client.broker.page_error = Some("no leader");
    client.credit(link, 5, true);
    pass(&mut client, Duration::from_secs(10));
    client.nothing_seen();
    client.broker.page_error = None;
    pass(&mut client, Duration::from_secs(1));
    assert_eq!(bodies_and_end(&mut client, link), ["a"]);
    client.broker.page_error = Some("no leader");
    client.credit(link, 5, true);
    pass(&mut client, Duration::from_secs(20));
    client.expect(Seen::Detached(Some("amqp:internal-error".into())));
    assert_eq!(client.state, SessionState::Open);
}

#[test]
fn restart_of_its_node_detaches_the_browser_of_a_classic_queue() {
    for kind in [QueueType::Classic, QueueType::Quorum] {
        let (mut client, session, queue) = open(kind);
        publish_all(&mut client, queue, &["a", "b"]);
        let link = browse(&mut client, session);
        client.credit(link, 1, false);
        client.expect_message("a");
        client.broker.browsed.get_mut(&queue).unwrap().incarnation = 2;
        client.credit(link, 1, false);
        match kind.is_replicated() {
            true => drop(client.expect_message("b")),
            false => client.expect(Seen::Detached(Some("amqp:internal-error".into()))),
        }
    }
}

#[test]
fn queue_whose_node_is_down_cannot_be_browsed() {
    let (mut client, session, queue) = open(QueueType::Classic);
    publish_all(&mut client, queue, &["a", "b"]);
    let link = browse(&mut client, session);
    client.credit(link, 1, false);
    client.expect_message("a");
    client.broker.lost_home = Some("one".into());
    client.credit(link, 1, false);
    client.expect(Seen::Detached(Some("amqp:not-found".into())));
    try_browse(&mut client, session, Source::default());
    client.expect_refused("amqp:not-found");
}

#[test]
fn browser_needs_the_permission_of_a_consumer() {
    let (mut client, session) = Client::open_with(Amqp10Config::default(), "small");
    client.declare("q");
    try_browse(&mut client, session, Source::default());
    client.expect(Seen::Ended(Some("amqp:unauthorized-access".into())));
}

#[test]
fn messages_of_other_states_are_not_shown() {
    let (mut client, session, queue) = open(QueueType::Quorum);
    publish_all(&mut client, queue, &["a", "b", "c"]);
    let browsed = client.broker.browsed.get_mut(&queue).unwrap();
    browsed.messages[0].state = BrowsedState::Unacknowledged;
    browsed.messages[1].state = BrowsedState::Delayed;
    let link = browse(&mut client, session);
    client.credit(link, 5, true);
    assert_eq!(bodies_and_end(&mut client, link), ["c"]);
    let (_, request) = client.broker.page_requests[0];
    assert!(request.unexpired_at.is_some());
}

#[derive(Clone, Debug)]
enum Step {
    Publish(u8),
    /// The message at this place leaves the queue.
    Consume(usize),
    Credit(u32, bool),
    Answer,
    Pass,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u8..4).prop_map(Step::Publish),
        1 => (0usize..20).prop_map(Step::Consume),
        3 => (0u32..6, any::<bool>()).prop_map(|(credit, drain)| Step::Credit(credit, drain)),
        4 => Just(Step::Answer),
        2 => Just(Step::Pass),
    ]
}

/// What a client has seen of a queue.
#[derive(Default)]
struct Shown {
    numbers: BTreeSet<u64>,
    /// Levels and numbers in the order in which they were shown.
    order: Vec<(u8, u64)>,
}

impl Shown {
    fn take(&mut self, client: &mut Client) -> bool {
        let mut is_drained = false;
        for seen in std::mem::take(&mut client.seen) {
            match seen {
                Seen::Message { payload, .. } => {
                    let body = String::from_utf8(data(&payload)).unwrap();
                    let (level, number) = body.split_once('-').unwrap();
                    let shown = (level.parse().unwrap(), number.parse().unwrap());
                    assert!(self.numbers.insert(shown.1), "{body} was shown twice");
                    self.order.push(shown);
                }
                Seen::Drained(_) => is_drained = true,
                other => panic!("{other:?}"),
            }
        }
        is_drained
    }
}

proptest! {
    #[test]
    fn each_message_is_shown_at_most_once_and_a_drain_leaves_none(steps in prop::collection::vec(step(), 1..80), filters in any::<bool>()) {
        let (mut client, session, queue) = open(QueueType::Quorum);
        let mut encoded = Vec::new();
        let selector = [("apache.org:selector-filter:string", "colour = 'red'")];
        let source = Source {
            filter: filters.then(|| filter(&mut encoded, &selector)),
            ..Source::default()
        };
        let link = try_browse(&mut client, session, source);
        client.expect(Seen::Attached(link));
        // Every third message has another colour.
        let is_wanted = |number: u64| !filters || !number.is_multiple_of(3);
        client.broker.hold_pages = true;
        let mut shown = Shown::default();
        let mut credit = 0;
        let mut drains_since = None;
        let publish = |client: &mut Client, level: u8| {
            let browsed = client.broker.browsed.entry(queue).or_default();
            let number = browsed.last_number + 1;
            let body = format!("{level}-{number}");
            let colour = if number.is_multiple_of(3) { "blue" } else { "red" };
            add(browsed, level, stored(body.as_bytes(), colour));
        };
        for step in steps {
            let before = shown.numbers.len();
            match step {
                Step::Publish(level) => publish(&mut client, level),
                Step::Consume(at) => {
                    let browsed = client.broker.browsed.entry(queue).or_default();
                    if at < browsed.messages.len() {
                        browsed.messages.remove(at);
                    }
                }
                // A client that drains waits for the answer before it grants other credit.
                Step::Credit(more, drain) if drains_since.is_none() => {
                    credit = more;
                    let last = client.broker.browsed.entry(queue).or_default().last_number;
                    drains_since = (drain && more > 0).then_some(last);
                    client.credit(link, more, drain);
                }
                Step::Credit(..) => {}
                Step::Answer => {
                    client.broker.answer_page();
                    client.pump();
                }
                Step::Pass => pass(&mut client, Duration::from_millis(500)),
            }
            let is_drained = shown.take(&mut client);
            let new = shown.numbers.len() - before;
            prop_assert!(new <= credit as usize, "{new} messages for a credit of {credit}");
            credit -= new as u32;
            if is_drained {
                if let Some(last) = drains_since.take() && credit > 0 {
                    let ready = &client.broker.browsed[&queue].messages;
                    let left = ready.iter().find(|m| {
                        m.at.number <= last && is_wanted(m.at.number) && !shown.numbers.contains(&m.at.number)
                    });
                    prop_assert!(left.is_none(), "{left:?}");
                }
                credit = 0;
            }
        }
        // Whatever happened: a client that goes on sees everything that is there.
        client.broker.hold_pages = false;
        while client.broker.answer_page() {
            client.pump();
        }
        client.credit(link, 1_000, true);
        shown.take(&mut client);
        let ready = &client.broker.browsed.entry(queue).or_default().messages;
        prop_assert!(shown.numbers.iter().all(|number| is_wanted(*number)));
        let unseen = ready.iter().find(|m| is_wanted(m.at.number) && !shown.numbers.contains(&m.at.number));
        prop_assert!(unseen.is_none(), "{unseen:?}");
        prop_assert!(client.broker.requests.is_empty());
    }

    #[test]
    fn messages_that_are_there_at_first_come_in_the_order_of_the_queue(levels in prop::collection::vec(0u8..4, 0..40), credit in 1u32..7) {
        let (mut client, session, queue) = open(QueueType::Classic);
        let mut expected = Vec::new();
        for (number, level) in (1u64..).zip(levels) {
            let browsed = client.broker.browsed.entry(queue).or_default();
            let body = format!("{level}-{number}");
            add(browsed, level, stored(body.as_bytes(), "red"));
            expected.push((level, number));
        }
        expected.sort_by_key(|(level, number)| (Reverse(*level), *number));
        let link = browse(&mut client, session);
        let mut shown = Shown::default();
        let mut is_drained = false;
        for _ in 0..=expected.len() {
            client.credit(link, credit, true);
            is_drained |= shown.take(&mut client);
        }
        prop_assert!(is_drained);
        prop_assert_eq!(shown.order, expected);
    }
}
