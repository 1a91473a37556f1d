//! The router as sessions see it.

use codec_mqtt::{Properties, Qos, matches};
use conversion::mqtt::EnvelopeBuilder;
use env::{Time, WallTime};
use message::Message;
use proptest::prelude::*;
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use topics::{
    ClaimOutcome, Delivery, MqttRouter, ParkedSession, Publisher, RetainedLimitReached,
    RouterLimits, RouterOutput, SessionRelease, SubscriberId, Subscription, Will,
};

fn message(topic: &str, payload: &[u8]) -> Message {
    EnvelopeBuilder {
        qos: Qos::AtLeastOnce,
        retain: false,
        topic,
        properties: &Properties::default(),
        exchange: "amq.topic",
        key: "",
        received: WallTime(0),
    }
    .build(payload)
    .unwrap()
}

fn will(topic: &str) -> Will {
    Will {
        topic: topic.into(),
        message: message(topic, b"gone"),
        retain: false,
    }
}

/// A parked session that collects the messages delivered to it.
#[derive(Clone, Default)]
struct CollectingSession(Arc<Mutex<Vec<Delivery>>>);

impl ParkedSession for CollectingSession {
    fn deliver(&mut self, delivery: Delivery) -> bool {
        self.0.lock().unwrap().push(delivery);
        true
    }
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

fn connect(router: &mut MqttRouter, client: &str, session: u64) -> SubscriberId {
    match router.claim("/", client, session, false) {
        ClaimOutcome::Granted { subscriber, .. } => subscriber,
        ClaimOutcome::Wait => panic!("another session holds the client id"),
    }
}

/// Claims the id of a known client; returns its previous state.
fn reconnect(
    router: &mut MqttRouter,
    client: &str,
    session: u64,
) -> (SubscriberId, SessionRelease) {
    match router.claim("/", client, session, false) {
        ClaimOutcome::Granted {
            subscriber,
            previous,
            ..
        } => (subscriber, previous),
        ClaimOutcome::Wait => panic!("another session holds the client id"),
    }
}

fn has_no_state(claim: ClaimOutcome) -> bool {
    matches!(claim, ClaimOutcome::Granted { previous, .. } if previous.state.is_none())
}

fn published_by(client: SubscriberId) -> Publisher {
    Publisher {
        subscriber: Some(client),
        ..Publisher::default()
    }
}

/// Returns the number of receivers.
fn publish(router: &mut MqttRouter, vhost: &str, topic: &str) -> usize {
    let nobody = Publisher::default();
    let message = message(topic, b"x");
    router
        .publish(vhost, topic, &message, nobody, &mut Vec::new())
        .receivers
}

fn at(qos: Qos) -> Subscription {
    Subscription {
        qos,
        ..Subscription::default()
    }
}

fn outputs(router: &mut MqttRouter) -> Vec<String> {
    let mut all = Vec::new();
    while let Some(output) = router.take() {
        all.push(match output {
            RouterOutput::Deliver { session, delivery } => {
                let ids: Vec<u32> = delivery.hits.iter().map(|h| h.identifier).collect();
                format!("{session} gets {ids:?}")
            }
            RouterOutput::TakenOver { session } => format!("{session} leaves"),
            RouterOutput::ClaimAgain { session } => format!("{session} again"),
            RouterOutput::Will { vhost, will } => format!("will {vhost} {}", will.topic),
            other => format!("{other:?}"),
        });
    }
    all
}

fn at_seconds(n: u64) -> Time {
    Time::ZERO + Duration::from_secs(n)
}

#[test]
fn newest_connection_takes_over_client_id() {
    let mut router = MqttRouter::new(RouterLimits::default());
    let first = connect(&mut router, "c", 1);
    assert!(matches!(
        router.claim("/", "c", 2, false),
        ClaimOutcome::Wait
    ));
    assert!(matches!(
        router.claim("/", "c", 3, false),
        ClaimOutcome::Wait
    ));
    assert_eq!(outputs(&mut router), ["1 leaves", "2 leaves"]);
    router.withdraw("/", "c", 2);
    let collected = CollectingSession::default();
    router.leave(
        first,
        SessionRelease {
            state: Some(Box::new(collected)),
            ..SessionRelease::default()
        },
    );
    assert_eq!(outputs(&mut router), ["3 again"]);
    let ClaimOutcome::Granted {
        subscriber,
        previous,
        ..
    } = router.claim("/", "c", 3, false)
    else {
        panic!("no session holds the client id");
    };
    assert_eq!(subscriber, first);
    assert!(
        previous
            .state
            .is_some_and(|s| s.into_any().is::<CollectingSession>())
    );
    // The same id in another vhost is another client.
    assert!(has_no_state(router.claim("other", "c", 4, false)));
}

#[test]
fn withdrawn_claim_is_not_woken() {
    let mut router = MqttRouter::new(RouterLimits::default());
    let first = connect(&mut router, "c", 1);
    assert!(matches!(
        router.claim("/", "c", 2, false),
        ClaimOutcome::Wait
    ));
    router.withdraw("/", "c", 2);
    router.leave(first, SessionRelease::default());
    assert_eq!(outputs(&mut router), ["1 leaves"]);
    assert_eq!(router.counts().connected, 0);
}

#[test]
fn parked_session_collects_messages_until_it_expires() {
    let mut router = MqttRouter::new(RouterLimits::default());
    let subscriber = connect(&mut router, "c", 1);
    assert!(!router.subscribe(subscriber, "a/#", at(Qos::AtLeastOnce)));
    let collected = CollectingSession::default();
    let leave = SessionRelease {
        state: Some(Box::new(collected.clone())),
        until: Some(at_seconds(60)),
        will: Some((at_seconds(10), will("w"))),
        ..SessionRelease::default()
    };
    router.leave(subscriber, leave);
    assert_eq!(publish(&mut router, "/", "a/b"), 1);
    assert_eq!(collected.0.lock().unwrap().len(), 1);
    assert_eq!(router.wake_at(), Some(at_seconds(10)));
    router.tick(at_seconds(9));
    assert_eq!(outputs(&mut router), [""; 0]);
    router.tick(at_seconds(10));
    assert_eq!(outputs(&mut router), ["will / w"]);
    assert_eq!(router.wake_at(), Some(at_seconds(60)));
    assert_eq!(router.counts().parked, 1);
    router.tick(at_seconds(60));
    assert_eq!(
        (router.counts().parked, router.counts().subscriptions),
        (0, 0)
    );
    assert_eq!(publish(&mut router, "/", "a/b"), 0);
    assert_eq!(router.wake_at(), None);
}

#[test]
fn undelivered_messages_are_parked_when_client_leaves() {
    let mut router = MqttRouter::new(RouterLimits::default());
    let subscriber = connect(&mut router, "c", 1);
    let other = connect(&mut router, "d", 2);
    for id in [subscriber, other] {
        router.subscribe(id, "a", at(Qos::AtLeastOnce));
    }
    publish(&mut router, "/", "a");
    let collected = CollectingSession::default();
    let leave = SessionRelease {
        state: Some(Box::new(collected.clone())),
        ..SessionRelease::default()
    };
    router.leave(subscriber, leave);
    assert_eq!(collected.0.lock().unwrap().len(), 1);
    assert_eq!(outputs(&mut router), ["2 gets [0]"]);
}

#[test]
fn will_is_published_at_session_end_and_cancelled_by_reconnect() {
    let mut router = MqttRouter::new(RouterLimits::default());
    let away = || SessionRelease {
        state: Some(Box::new(CollectingSession::default())),
        until: Some(at_seconds(5)),
        will: Some((at_seconds(10), will("w"))),
        ..SessionRelease::default()
    };
    // The session expires before the will delay.
    let subscriber = connect(&mut router, "c", 1);
    router.leave(subscriber, away());
    router.tick(at_seconds(5));
    assert_eq!(outputs(&mut router), ["will / w"]);
    // The client comes back in time.
    let subscriber = connect(&mut router, "c", 2);
    router.leave(subscriber, away());
    let (subscriber, previous) = reconnect(&mut router, "c", 3);
    router.session_resumed(subscriber, previous.will);
    router.tick(at_seconds(100));
    assert_eq!(outputs(&mut router), [""; 0]);
    // A clean start ends the old session.
    router.leave(subscriber, away());
    assert!(has_no_state(router.claim("/", "c", 4, true)));
    assert_eq!(outputs(&mut router), ["will / w"]);
    // Without a session the will is published at once.
    let subscriber = connect(&mut router, "d", 5);
    router.leave(
        subscriber,
        SessionRelease {
            will: Some((at_seconds(10), will("v"))),
            ..SessionRelease::default()
        },
    );
    assert_eq!(outputs(&mut router), ["will / v"]);
}

#[test]
fn rejected_connection_keeps_previous_session_and_will() {
    // Only a connection that resumes the session cancels the will [MQTT-3.1.3-9]; this one was
    // rejected.
    let mut router = MqttRouter::new(RouterLimits::default());
    let subscriber = connect(&mut router, "c", 1);
    let away = SessionRelease {
        state: Some(Box::new(CollectingSession::default())),
        until: Some(at_seconds(20)),
        will: Some((at_seconds(10), will("w"))),
        ..SessionRelease::default()
    };
    router.leave(subscriber, away);
    for session in 2..4 {
        let (again, previous) = reconnect(&mut router, "c", session);
        assert_eq!((again, previous.until), (subscriber, Some(at_seconds(20))));
        assert!(previous.state.is_some());
        router.leave(again, previous);
        assert_eq!(outputs(&mut router), [""; 0]);
    }
    router.tick(at_seconds(10));
    assert_eq!(outputs(&mut router), ["will / w"]);
    router.tick(at_seconds(20));
    assert!(!router.holds("/", "c"));
    assert_eq!(outputs(&mut router), [""; 0]);
}

#[test]
fn delivery_lists_all_matching_subscriptions() {
    let mut router = MqttRouter::new(RouterLimits::default());
    let subscriber = connect(&mut router, "c", 1);
    for (filter, identifier) in [("a/+", 7), ("a/#", 8), ("b", 9)] {
        router.subscribe(
            subscriber,
            filter,
            Subscription {
                identifier,
                ..at(Qos::AtMostOnce)
            },
        );
    }
    assert_eq!(publish(&mut router, "/", "a/b"), 1);
    assert_eq!(outputs(&mut router), ["1 gets [7, 8]"]);
    // The subscription is replaced, not added.
    assert!(router.subscribe(
        subscriber,
        "a/+",
        Subscription {
            identifier: 5,
            ..at(Qos::AtMostOnce)
        }
    ));
    publish(&mut router, "/", "a/b");
    assert_eq!(outputs(&mut router), ["1 gets [5, 8]"]);
    assert!(router.unsubscribe(subscriber, "a/#"));
    assert!(!router.unsubscribe(subscriber, "a/#"));
    publish(&mut router, "/", "a/b");
    assert_eq!(outputs(&mut router), ["1 gets [5]"]);
    assert_eq!(publish(&mut router, "other", "a/b"), 0);
}

#[test]
fn no_local_excludes_only_the_publisher() {
    let mut router = MqttRouter::new(RouterLimits::default());
    let one = connect(&mut router, "c", 1);
    let two = connect(&mut router, "d", 2);
    let no_local = Subscription {
        no_local: true,
        ..Subscription::default()
    };
    router.subscribe(one, "a", no_local);
    router.subscribe(two, "a", no_local);
    assert_eq!(
        router
            .publish(
                "/",
                "a",
                &message("a", b""),
                published_by(one),
                &mut Vec::new()
            )
            .receivers,
        1
    );
    assert_eq!(outputs(&mut router), ["2 gets [0]"]);
}

#[test]
fn shared_subscription_rotates_and_prefers_connected_members() {
    let mut router = MqttRouter::new(RouterLimits::default());
    let ids: Vec<SubscriberId> = (1..=3)
        .map(|n| connect(&mut router, &format!("c{n}"), n))
        .collect();
    for &id in &ids {
        router.subscribe(id, "$share/g/a/+", Subscription::default());
    }
    let publish = |router: &mut MqttRouter| {
        assert_eq!(publish(router, "/", "a/b"), 1);
        outputs(router).concat()
    };
    // Like Mosquitto, in the order in which they joined.
    let turns: Vec<String> = (0..3).map(|_| publish(&mut router)).collect();
    assert_eq!(turns, ["1 gets [0]", "2 gets [0]", "3 gets [0]"]);
    let collected = CollectingSession::default();
    router.leave(
        ids[0],
        SessionRelease {
            state: Some(Box::new(collected.clone())),
            ..SessionRelease::default()
        },
    );
    router.leave(ids[1], SessionRelease::default());
    for _ in 0..3 {
        assert_eq!(publish(&mut router), "3 gets [0]");
    }
    // No member is connected: the message waits for a disconnected one.
    router.leave(ids[2], SessionRelease::default());
    assert_eq!(publish(&mut router), "");
    assert_eq!(collected.0.lock().unwrap().len(), 1);
}

#[test]
fn retained_messages_reach_later_subscribers_and_are_limited() {
    let limits = RouterLimits {
        retained_messages: 2,
        ..RouterLimits::default()
    };
    let mut router = MqttRouter::new(limits);
    for topic in ["a/1", "a/2", "a/1"] {
        assert_eq!(
            router.retain("/", topic, Some(message(topic, b"x"))),
            Ok(())
        );
    }
    assert_eq!(
        router.retain("/", "a/3", Some(message("a/3", b"x"))),
        Err(RetainedLimitReached)
    );
    let subscriber = connect(&mut router, "c", 1);
    let subscription = Subscription {
        identifier: 4,
        ..Subscription::default()
    };
    router.subscribe(subscriber, "a/#", subscription);
    let mut found = Vec::new();
    assert!(router.retained_for(
        subscriber,
        ("a/#", subscription),
        WallTime(0),
        9,
        &mut found
    ));
    let ids: Vec<u32> = found.iter().map(|d| d.hits[0].identifier).collect();
    assert_eq!((ids, found[0].retained), (vec![4, 4], true));
    assert!(!router.retained_for(
        subscriber,
        ("a/#", subscription),
        WallTime(0),
        3,
        &mut found
    ));
    assert_eq!(found.len(), 3);
    assert_eq!(router.retain("/", "a/1", None), Ok(()));
    assert_eq!(router.counts().retained, 1);
    router.remove_vhost("/");
    assert_eq!(router.counts().retained, 0);
}

#[test]
fn router_delivers_only_messages_outside_the_client_queue() {
    let mut router = MqttRouter::new(RouterLimits::default());
    let one = connect(&mut router, "one", 1);
    router.use_queue(one, 7);
    router.subscribe(one, "a", at(Qos::AtLeastOnce));
    router.subscribe(one, "b", at(Qos::AtMostOnce));
    router.subscribe(one, "$share/g/c", at(Qos::AtLeastOnce));
    let publish = |router: &mut MqttRouter, topic| {
        let mut queues = Vec::new();
        let outcome = router.publish(
            "/",
            topic,
            &message(topic, b""),
            Publisher::default(),
            &mut queues,
        );
        (outcome.receivers, queues, outputs(router))
    };
    assert_eq!(
        publish(&mut router, "a"),
        (0, vec![], vec![]),
        "the exchange routes it to the queue"
    );
    assert_eq!(publish(&mut router, "b").2, ["1 gets [0]"]);
    assert_eq!(publish(&mut router, "c"), (0, vec![7], vec![]));
    // The client is disconnected, and its queue is announced again as after a restart.
    router.leave(one, SessionRelease::default());
    assert_eq!(publish(&mut router, "c").1, [0; 0]);
    router.add_queue_member(("/", "one"), 7, "$share/g/c", at(Qos::AtLeastOnce));
    assert_eq!(publish(&mut router, "c").1, [7]);
    router.remove_queue_member(("/", "one"), "$share/g/c");
    assert_eq!(publish(&mut router, "c").1, [0; 0]);
    router.add_queue_member(("/", "one"), 7, "$share/g/c", at(Qos::AtLeastOnce));
    router.queue_deleting(7);
    assert!(router.is_queue_deleting(7));
    router.queue_deleted("/", "one", 7);
    assert!(!router.is_queue_deleting(7) && !router.has_subscribers("/"));
    assert_eq!(router.counts().parked, 0);
}

#[test]
fn parked_sessions_are_limited() {
    let mut router = MqttRouter::new(RouterLimits {
        parked: 1,
        ..RouterLimits::default()
    });
    for client in ["a", "b"] {
        let subscriber = connect(&mut router, client, 1);
        router.leave(
            subscriber,
            SessionRelease {
                state: Some(Box::new(CollectingSession::default())),
                ..SessionRelease::default()
            },
        );
    }
    assert_eq!((router.counts().parked, router.counts().connected), (1, 0));
}

fn qos_of(identifier: u32) -> Qos {
    [Qos::AtMostOnce, Qos::AtLeastOnce][identifier as usize % 3 / 2]
}

proptest! {
    /// Few filters are compared one by one, many are looked up in the trie.
    #[test]
    fn matching_finds_own_subscriptions_of_client(
        filters in proptest::collection::btree_set("(\\$share/[gh]/)?([ab$]|\\+)(/([ab]|\\+)?){0,2}(/#)?", 1..80),
        topics in proptest::collection::vec("[ab$](/[ab]?){0,3}", 1..8),
    ) {
        let mut router = MqttRouter::new(RouterLimits::default());
        let subscriber = connect(&mut router, "c", 1);
        let other = connect(&mut router, "d", 2);
        for (n, filter) in filters.iter().enumerate() {
            let identifier = n as u32 + 1;
            let qos = qos_of(identifier);
            router.subscribe(subscriber, filter, Subscription { identifier, qos, ..Subscription::default() });
            router.subscribe(other, filter, Subscription::default());
        }
        for topic in &topics {
            let named = |shared: bool| -> Vec<u32> {
                let all = filters.iter().zip(1..);
                all.filter(|(filter, _)| match codec_mqtt::shared(filter) {
                    Ok(Some(s)) => shared && matches(s.filter, topic),
                    _ => !shared && matches(filter, topic),
                }).map(|(_, n)| n).collect()
            };
            let mut expected = named(false);
            if expected.iter().all(|n| qos_of(*n) == Qos::AtMostOnce) {
                let shared = named(true);
                if !shared.is_empty() {
                    expected = shared;
                }
            }
            expected.sort_unstable();
            let mut found = Vec::new();
            router.matching(subscriber, topic, &mut found);
            let mut actual: Vec<u32> = found.iter().map(|s| s.identifier).collect();
            actual.sort_unstable();
            prop_assert_eq!(actual, expected, "{}", topic);
        }
    }

    /// Compares routing with a list of subscriptions and the definition of matching.
    #[test]
    fn routing_matches_a_plain_list(
        steps in proptest::collection::vec((0u64..3, any::<bool>(), "([ab$*]|\\+)(/([a*]|\\+)?){0,2}(/#)?|#"), 1..30),
        topics in proptest::collection::vec("[ab$*](/[a*]?){0,3}", 1..8),
    ) {
        let mut router = MqttRouter::new(RouterLimits::default());
        let ids: Vec<SubscriberId> = (0..3).map(|n| connect(&mut router, &n.to_string(), n)).collect();
        let mut model: BTreeMap<(u64, String), ()> = BTreeMap::new();
        for (client, add, filter) in steps {
            let key = (client, filter.clone());
            if add {
                let existed = router.subscribe(ids[client as usize], &filter, Subscription::default());
                prop_assert_eq!(existed, model.insert(key, ()).is_some());
            } else {
                let existed = router.unsubscribe(ids[client as usize], &filter);
                prop_assert_eq!(existed, model.remove(&key).is_some());
            }
        }
        for topic in &topics {
            let mut expected: BTreeMap<u64, usize> = BTreeMap::new();
            for (client, _) in model.keys().filter(|(_, filter)| matches(filter, topic)) {
                *expected.entry(*client).or_default() += 1;
            }
            prop_assert_eq!(router.publish("/", topic, &message(topic, b""), Publisher::default(), &mut Vec::new()).receivers, expected.len());
            let mut actual: BTreeMap<u64, usize> = BTreeMap::new();
            while let Some(output) = router.take() {
                if let RouterOutput::Deliver { session, delivery } = output {
                    prop_assert!(actual.insert(session, delivery.hits.len()).is_none());
                }
            }
            prop_assert_eq!(&actual, &expected, "{}", topic);
        }
        for id in ids {
            router.leave(id, SessionRelease::default());
        }
        prop_assert!(!router.has_subscribers("/"));
    }
}

/// The outputs about `$SYS` topics: session, payload and the retained flag, or the request for
/// values.
fn sys_outputs(router: &mut MqttRouter) -> Vec<String> {
    let mut all = Vec::new();
    while let Some(output) = router.take() {
        all.push(match output {
            RouterOutput::Deliver { session, delivery } => {
                let text = String::from_utf8_lossy(delivery.message.body()).into_owned();
                let retained = if delivery.retained { " retained" } else { "" };
                format!("{session} {text}{retained}")
            }
            other => format!("{other:?}"),
        });
    }
    all
}

fn set_values(router: &mut MqttRouter, now: u64, uptime: &str) {
    let values = [
        ("$SYS/broker/version", "v1".to_owned()),
        ("$SYS/broker/uptime", uptime.to_owned()),
    ];
    router.set_sys_topics((at_seconds(now), WallTime(0)), "amq.topic", values);
}

fn subscribe_sys(router: &mut MqttRouter, subscriber: SubscriberId, filter: &str) -> usize {
    router.subscribe(subscriber, filter, at(Qos::AtLeastOnce));
    let mut found = Vec::new();
    assert!(router.retained_for(
        subscriber,
        (filter, Subscription::default()),
        WallTime(0),
        100,
        &mut found
    ));
    found.len()
}

#[test]
fn sys_topics_are_published_only_while_subscribed() {
    let mut router = MqttRouter::new(RouterLimits::default());
    router.set_sys_topic_interval(Some(Duration::from_secs(10)));
    let (a, b) = (connect(&mut router, "a", 1), connect(&mut router, "b", 2));
    for filter in ["#", "+/broker/uptime", "$SYSTEM/#"] {
        assert_eq!(subscribe_sys(&mut router, a, filter), 0);
    }
    router.tick(at_seconds(100));
    assert_eq!((sys_outputs(&mut router), router.wake_at()), (vec![], None));
    // The first subscription waits until there are values, as does one that arrives in the
    // meantime.
    assert_eq!(subscribe_sys(&mut router, a, "$SYS/#"), 0);
    assert_eq!(subscribe_sys(&mut router, b, "$SYS/broker/uptime"), 0);
    assert_eq!(sys_outputs(&mut router), ["SysTopicsDue"]);
    set_values(&mut router, 100, "0 seconds");
    let all = [
        "1 0 seconds retained",
        "1 v1 retained",
        "2 0 seconds retained",
    ];
    assert_eq!(sys_outputs(&mut router), all);
    // After the interval, only changed values are sent.
    assert_eq!(router.wake_at(), Some(at_seconds(110)));
    router.tick(at_seconds(109));
    assert_eq!(sys_outputs(&mut router), [""; 0]);
    router.tick(at_seconds(110));
    router.tick(at_seconds(111));
    assert_eq!(sys_outputs(&mut router), ["SysTopicsDue"]);
    set_values(&mut router, 111, "11 seconds");
    assert_eq!(sys_outputs(&mut router), ["1 11 seconds", "2 11 seconds"]);
    // A later subscription gets the latest values.
    assert_eq!(subscribe_sys(&mut router, b, "$SYS/broker/+"), 2);
    // Without a subscriber, nothing is published and the values are dropped.
    assert!(router.unsubscribe(a, "$SYS/#"));
    router.leave(b, SessionRelease::default());
    assert_eq!(router.wake_at(), None);
    router.tick(at_seconds(1000));
    set_values(&mut router, 1000, "late");
    assert_eq!(sys_outputs(&mut router), [""; 0]);
    assert_eq!(subscribe_sys(&mut router, a, "$SYS/broker/version"), 0);
    assert_eq!(sys_outputs(&mut router), ["SysTopicsDue"]);
}

#[test]
fn sys_topics_are_sent_to_connected_clients_if_enabled() {
    let mut router = MqttRouter::new(RouterLimits::default());
    let a = connect(&mut router, "a", 1);
    assert_eq!(subscribe_sys(&mut router, a, "$SYS/#"), 0);
    assert_eq!((sys_outputs(&mut router), router.wake_at()), (vec![], None));
    let mut router = MqttRouter::new(RouterLimits::default());
    router.set_sys_topic_interval(Some(Duration::from_secs(10)));
    let a = connect(&mut router, "a", 1);
    subscribe_sys(&mut router, a, "$SYS/#");
    assert_eq!(sys_outputs(&mut router), ["SysTopicsDue"]);
    set_values(&mut router, 0, "0 seconds");
    sys_outputs(&mut router);
    let away = SessionRelease {
        state: Some(Box::new(CollectingSession::default())),
        ..SessionRelease::default()
    };
    router.leave(a, away);
    assert_eq!(router.wake_at(), None);
    // After reconnecting, the client receives only updates, as it had the retained values before.
    assert_eq!(connect(&mut router, "a", 3), a);
    router.tick(at_seconds(20));
    assert_eq!(sys_outputs(&mut router), ["SysTopicsDue"]);
    set_values(&mut router, 20, "20 seconds");
    set_values(&mut router, 30, "30 seconds");
    assert_eq!(sys_outputs(&mut router), ["3 30 seconds"]);
    assert_eq!((router.counts().peak, router.counts().expired), (1, 0));
}
