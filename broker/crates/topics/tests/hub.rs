//! The hub as sessions see it.

use codec_mqtt::{Properties, Qos, matches};
use env::{Time, WallTime};
use message::Message;
use proptest::prelude::*;
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use topics::{
    ClaimOutcome, Delivery, EnvelopeBuilder, MqttRouter, ParkedSession, Publisher,
    RetainedLimitReached, RouterLimits, RouterOutput, SessionRelease, SubscriberId, Subscription,
    Will,
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

/// What was delivered to a client that is away.
#[derive(Clone, Default)]
struct Basket(Arc<Mutex<Vec<Delivery>>>);

impl ParkedSession for Basket {
    fn deliver(&mut self, delivery: Delivery) -> bool {
        self.0.lock().unwrap().push(delivery);
        true
    }
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

fn enter(router: &mut MqttRouter, client: &str, session: u64) -> SubscriberId {
    match router.claim("/", client, session, false) {
        ClaimOutcome::Granted { subscriber, .. } => subscriber,
        ClaimOutcome::Wait => panic!("somebody has it"),
    }
}

/// A client that was here before, and what it had left.
fn find(router: &mut MqttRouter, client: &str, session: u64) -> (SubscriberId, SessionRelease) {
    match router.claim("/", client, session, false) {
        ClaimOutcome::Granted {
            subscriber, left, ..
        } => (subscriber, left),
        ClaimOutcome::Wait => panic!("somebody has it"),
    }
}

fn is_new(claim: ClaimOutcome) -> bool {
    matches!(claim, ClaimOutcome::Granted { left, .. } if left.state.is_none())
}

fn by(client: SubscriberId) -> Publisher {
    Publisher {
        subscriber: Some(client),
        ..Publisher::default()
    }
}

/// How many get it.
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

fn said(router: &mut MqttRouter) -> Vec<String> {
    let mut all = Vec::new();
    while let Some(output) = router.take() {
        all.push(match output {
            RouterOutput::Deliver { session, delivery } => {
                let ids: Vec<u32> = delivery.hits.iter().map(|h| h.identifier).collect();
                format!("{session} gets {ids:?}")
            }
            RouterOutput::TakenOver { session } => format!("{session} leaves"),
            RouterOutput::Free { session } => format!("{session} again"),
            RouterOutput::Will { vhost, will } => format!("will {vhost} {}", will.topic),
            other => format!("{other:?}"),
        });
    }
    all
}

fn seconds(n: u64) -> Time {
    Time::ZERO + Duration::from_secs(n)
}

#[test]
fn the_last_to_come_has_the_client_id() {
    let mut router = MqttRouter::new(RouterLimits::default());
    let first = enter(&mut router, "c", 1);
    assert!(matches!(
        router.claim("/", "c", 2, false),
        ClaimOutcome::Wait
    ));
    assert!(matches!(
        router.claim("/", "c", 3, false),
        ClaimOutcome::Wait
    ));
    assert_eq!(said(&mut router), ["1 leaves", "2 leaves"]);
    router.withdraw("/", "c", 2);
    let basket = Basket::default();
    router.leave(
        first,
        SessionRelease {
            state: Some(Box::new(basket)),
            ..SessionRelease::default()
        },
    );
    assert_eq!(said(&mut router), ["3 again"]);
    let ClaimOutcome::Granted {
        subscriber, left, ..
    } = router.claim("/", "c", 3, false)
    else {
        panic!("nobody has it");
    };
    assert_eq!(subscriber, first);
    assert!(left.state.is_some_and(|s| s.into_any().is::<Basket>()));
    // In another vhost it is another client.
    assert!(is_new(router.claim("other", "c", 4, false)));
}

#[test]
fn who_gave_up_waiting_is_not_called() {
    let mut router = MqttRouter::new(RouterLimits::default());
    let first = enter(&mut router, "c", 1);
    assert!(matches!(
        router.claim("/", "c", 2, false),
        ClaimOutcome::Wait
    ));
    router.withdraw("/", "c", 2);
    router.leave(first, SessionRelease::default());
    assert_eq!(said(&mut router), ["1 leaves"]);
    assert_eq!(router.counts().connected, 0);
}

#[test]
fn a_session_that_is_away_goes_on_collecting_until_its_time_is_over() {
    let mut router = MqttRouter::new(RouterLimits::default());
    let who = enter(&mut router, "c", 1);
    assert!(!router.subscribe(who, "a/#", at(Qos::AtLeastOnce)));
    let basket = Basket::default();
    let leave = SessionRelease {
        state: Some(Box::new(basket.clone())),
        until: Some(seconds(60)),
        will: Some((seconds(10), will("w"))),
        ..SessionRelease::default()
    };
    router.leave(who, leave);
    assert_eq!(publish(&mut router, "/", "a/b"), 1);
    assert_eq!(basket.0.lock().unwrap().len(), 1);
    assert_eq!(router.wake_at(), Some(seconds(10)));
    router.tick(seconds(9));
    assert_eq!(said(&mut router), [""; 0]);
    router.tick(seconds(10));
    assert_eq!(said(&mut router), ["will / w"]);
    assert_eq!(router.wake_at(), Some(seconds(60)));
    assert_eq!(router.counts().parked, 1);
    router.tick(seconds(60));
    assert_eq!(
        (router.counts().parked, router.counts().subscriptions),
        (0, 0)
    );
    assert_eq!(publish(&mut router, "/", "a/b"), 0);
    assert_eq!(router.wake_at(), None);
}

#[test]
fn what_was_on_its_way_when_a_client_left_waits_for_it() {
    let mut router = MqttRouter::new(RouterLimits::default());
    let who = enter(&mut router, "c", 1);
    let other = enter(&mut router, "d", 2);
    for id in [who, other] {
        router.subscribe(id, "a", at(Qos::AtLeastOnce));
    }
    publish(&mut router, "/", "a");
    let basket = Basket::default();
    let leave = SessionRelease {
        state: Some(Box::new(basket.clone())),
        ..SessionRelease::default()
    };
    router.leave(who, leave);
    assert_eq!(basket.0.lock().unwrap().len(), 1);
    assert_eq!(said(&mut router), ["2 gets [0]"]);
}

#[test]
fn a_will_is_published_when_the_session_ends_first_and_not_when_the_client_is_back() {
    let mut router = MqttRouter::new(RouterLimits::default());
    let away = || SessionRelease {
        state: Some(Box::new(Basket::default())),
        until: Some(seconds(5)),
        will: Some((seconds(10), will("w"))),
        ..SessionRelease::default()
    };
    // The session's end comes first.
    let who = enter(&mut router, "c", 1);
    router.leave(who, away());
    router.tick(seconds(5));
    assert_eq!(said(&mut router), ["will / w"]);
    // Back in time.
    let who = enter(&mut router, "c", 2);
    router.leave(who, away());
    let (who, left) = find(&mut router, "c", 3);
    router.came_back(who, left.will);
    router.tick(seconds(100));
    assert_eq!(said(&mut router), [""; 0]);
    // A new session ends the old one.
    router.leave(who, away());
    assert!(is_new(router.claim("/", "c", 4, true)));
    assert_eq!(said(&mut router), ["will / w"]);
    // No session is kept at all: at once.
    let who = enter(&mut router, "d", 5);
    router.leave(
        who,
        SessionRelease {
            will: Some((seconds(10), will("v"))),
            ..SessionRelease::default()
        },
    );
    assert_eq!(said(&mut router), ["will / v"]);
}

#[test]
fn a_connection_that_is_not_let_in_leaves_the_session_and_its_will_as_they_were() {
    // [MQTT-3.1.3-9]: the will is spared by a connection to the session, which it was not.
    let mut router = MqttRouter::new(RouterLimits::default());
    let who = enter(&mut router, "c", 1);
    let away = SessionRelease {
        state: Some(Box::new(Basket::default())),
        until: Some(seconds(20)),
        will: Some((seconds(10), will("w"))),
        ..SessionRelease::default()
    };
    router.leave(who, away);
    for session in 2..4 {
        let (again, left) = find(&mut router, "c", session);
        assert_eq!((again, left.until), (who, Some(seconds(20))));
        assert!(left.state.is_some());
        router.leave(again, left);
        assert_eq!(said(&mut router), [""; 0]);
    }
    router.tick(seconds(10));
    assert_eq!(said(&mut router), ["will / w"]);
    router.tick(seconds(20));
    assert!(!router.holds("/", "c"));
    assert_eq!(said(&mut router), [""; 0]);
}

#[test]
fn one_delivery_names_all_subscriptions_that_match() {
    let mut router = MqttRouter::new(RouterLimits::default());
    let who = enter(&mut router, "c", 1);
    for (filter, identifier) in [("a/+", 7), ("a/#", 8), ("b", 9)] {
        router.subscribe(
            who,
            filter,
            Subscription {
                identifier,
                ..at(Qos::AtMostOnce)
            },
        );
    }
    assert_eq!(publish(&mut router, "/", "a/b"), 1);
    assert_eq!(said(&mut router), ["1 gets [7, 8]"]);
    // Replaced, not added.
    assert!(router.subscribe(
        who,
        "a/+",
        Subscription {
            identifier: 5,
            ..at(Qos::AtMostOnce)
        }
    ));
    publish(&mut router, "/", "a/b");
    assert_eq!(said(&mut router), ["1 gets [5, 8]"]);
    assert!(router.unsubscribe(who, "a/#"));
    assert!(!router.unsubscribe(who, "a/#"));
    publish(&mut router, "/", "a/b");
    assert_eq!(said(&mut router), ["1 gets [5]"]);
    assert_eq!(publish(&mut router, "other", "a/b"), 0);
}

#[test]
fn no_local_is_about_the_publisher() {
    let mut router = MqttRouter::new(RouterLimits::default());
    let one = enter(&mut router, "c", 1);
    let two = enter(&mut router, "d", 2);
    let no_local = Subscription {
        no_local: true,
        ..Subscription::default()
    };
    router.subscribe(one, "a", no_local);
    router.subscribe(two, "a", no_local);
    assert_eq!(
        router
            .publish("/", "a", &message("a", b""), by(one), &mut Vec::new())
            .receivers,
        1
    );
    assert_eq!(said(&mut router), ["2 gets [0]"]);
}

#[test]
fn a_group_takes_turns_and_prefers_who_is_here() {
    let mut router = MqttRouter::new(RouterLimits::default());
    let ids: Vec<SubscriberId> = (1..=3)
        .map(|n| enter(&mut router, &format!("c{n}"), n))
        .collect();
    for &id in &ids {
        router.subscribe(id, "$share/g/a/+", Subscription::default());
    }
    let publish = |router: &mut MqttRouter| {
        assert_eq!(publish(router, "/", "a/b"), 1);
        said(router).concat()
    };
    // As mosquitto: in the order in which they came.
    let turns: Vec<String> = (0..3).map(|_| publish(&mut router)).collect();
    assert_eq!(turns, ["1 gets [0]", "2 gets [0]", "3 gets [0]"]);
    let basket = Basket::default();
    router.leave(
        ids[0],
        SessionRelease {
            state: Some(Box::new(basket.clone())),
            ..SessionRelease::default()
        },
    );
    router.leave(ids[1], SessionRelease::default());
    for _ in 0..3 {
        assert_eq!(publish(&mut router), "3 gets [0]");
    }
    // Nobody is here: it waits for one who comes back.
    router.leave(ids[2], SessionRelease::default());
    assert_eq!(publish(&mut router), "");
    assert_eq!(basket.0.lock().unwrap().len(), 1);
}

#[test]
fn retained_messages_are_for_those_who_come_later_and_have_a_bound() {
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
    let who = enter(&mut router, "c", 1);
    let subscription = Subscription {
        identifier: 4,
        ..Subscription::default()
    };
    router.subscribe(who, "a/#", subscription);
    let mut found = Vec::new();
    assert!(router.retained_for(who, ("a/#", subscription), WallTime(0), 9, &mut found));
    let ids: Vec<u32> = found.iter().map(|d| d.hits[0].identifier).collect();
    assert_eq!((ids, found[0].retained), (vec![4, 4], true));
    assert!(!router.retained_for(who, ("a/#", subscription), WallTime(0), 3, &mut found));
    assert_eq!(found.len(), 3);
    assert_eq!(router.retain("/", "a/1", None), Ok(()));
    assert_eq!(router.counts().retained, 1);
    router.remove_vhost("/");
    assert_eq!(router.counts().retained, 0);
}

#[test]
fn a_client_with_a_queue_gets_the_rest_from_the_hub() {
    let mut router = MqttRouter::new(RouterLimits::default());
    let one = enter(&mut router, "one", 1);
    router.store_in(one, 7);
    router.subscribe(one, "a", at(Qos::AtLeastOnce));
    router.subscribe(one, "b", at(Qos::AtMostOnce));
    router.subscribe(one, "$share/g/c", at(Qos::AtLeastOnce));
    let publish = |router: &mut MqttRouter, topic| {
        let mut queues = Vec::new();
        let heard = router.publish(
            "/",
            topic,
            &message(topic, b""),
            Publisher::default(),
            &mut queues,
        );
        (heard.receivers, queues, said(router))
    };
    assert_eq!(
        publish(&mut router, "a"),
        (0, vec![], vec![]),
        "the exchange's"
    );
    assert_eq!(publish(&mut router, "b").2, ["1 gets [0]"]);
    assert_eq!(publish(&mut router, "c"), (0, vec![7], vec![]));
    // Away, and in another life of the node.
    router.leave(one, SessionRelease::default());
    assert_eq!(publish(&mut router, "c").1, [0; 0]);
    router.adopt(("/", "one"), 7, "$share/g/c", at(Qos::AtLeastOnce));
    assert_eq!(publish(&mut router, "c").1, [7]);
    router.disown(("/", "one"), "$share/g/c");
    assert_eq!(publish(&mut router, "c").1, [0; 0]);
    router.adopt(("/", "one"), 7, "$share/g/c", at(Qos::AtLeastOnce));
    router.queue_ends(7);
    assert!(router.is_ending(7));
    router.queue_gone("/", "one", 7);
    assert!(!router.is_ending(7) && !router.is_listening("/"));
    assert_eq!(router.counts().parked, 0);
}

#[test]
fn as_many_sessions_are_kept_as_may_be() {
    let mut router = MqttRouter::new(RouterLimits {
        parked: 1,
        ..RouterLimits::default()
    });
    for client in ["a", "b"] {
        let who = enter(&mut router, client, 1);
        router.leave(
            who,
            SessionRelease {
                state: Some(Box::new(Basket::default())),
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
    /// Few filters are compared one by one, many are looked up.
    #[test]
    fn a_clients_own_filters_are_found(
        filters in proptest::collection::btree_set("(\\$share/[gh]/)?([ab$]|\\+)(/([ab]|\\+)?){0,2}(/#)?", 1..80),
        topics in proptest::collection::vec("[ab$](/[ab]?){0,3}", 1..8),
    ) {
        let mut router = MqttRouter::new(RouterLimits::default());
        let who = enter(&mut router, "c", 1);
        let other = enter(&mut router, "d", 2);
        for (n, filter) in filters.iter().enumerate() {
            let identifier = n as u32 + 1;
            let qos = qos_of(identifier);
            router.subscribe(who, filter, Subscription { identifier, qos, ..Subscription::default() });
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
            let mut want = named(false);
            if want.iter().all(|n| qos_of(*n) == Qos::AtMostOnce) {
                let shared = named(true);
                if !shared.is_empty() {
                    want = shared;
                }
            }
            want.sort_unstable();
            let mut found = Vec::new();
            router.matching(who, topic, &mut found);
            let mut got: Vec<u32> = found.iter().map(|s| s.identifier).collect();
            got.sort_unstable();
            prop_assert_eq!(got, want, "{}", topic);
        }
    }

    /// Against a list of subscriptions and the definition of matching.
    #[test]
    fn it_agrees_with_a_plain_list(
        steps in proptest::collection::vec((0u64..3, any::<bool>(), "([ab$*]|\\+)(/([a*]|\\+)?){0,2}(/#)?|#"), 1..30),
        topics in proptest::collection::vec("[ab$*](/[a*]?){0,3}", 1..8),
    ) {
        let mut router = MqttRouter::new(RouterLimits::default());
        let ids: Vec<SubscriberId> = (0..3).map(|n| enter(&mut router, &n.to_string(), n)).collect();
        let mut model: BTreeMap<(u64, String), ()> = BTreeMap::new();
        for (client, add, filter) in steps {
            let key = (client, filter.clone());
            if add {
                let was = router.subscribe(ids[client as usize], &filter, Subscription::default());
                prop_assert_eq!(was, model.insert(key, ()).is_some());
            } else {
                let was = router.unsubscribe(ids[client as usize], &filter);
                prop_assert_eq!(was, model.remove(&key).is_some());
            }
        }
        for topic in &topics {
            let mut want: BTreeMap<u64, usize> = BTreeMap::new();
            for (client, _) in model.keys().filter(|(_, filter)| matches(filter, topic)) {
                *want.entry(*client).or_default() += 1;
            }
            prop_assert_eq!(router.publish("/", topic, &message(topic, b""), Publisher::default(), &mut Vec::new()).receivers, want.len());
            let mut got: BTreeMap<u64, usize> = BTreeMap::new();
            while let Some(output) = router.take() {
                if let RouterOutput::Deliver { session, delivery } = output {
                    prop_assert!(got.insert(session, delivery.hits.len()).is_none());
                }
            }
            prop_assert_eq!(&got, &want, "{}", topic);
        }
        for id in ids {
            router.leave(id, SessionRelease::default());
        }
        prop_assert!(!router.is_listening("/"));
    }
}

/// What clients hear of the server's own topics: session, payload and whether it counts as retained; that it is asked for figures.
fn heard(router: &mut MqttRouter) -> Vec<String> {
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

fn tell(router: &mut MqttRouter, now: u64, uptime: &str) {
    let figures = [
        ("$SYS/broker/version", "v1".to_owned()),
        ("$SYS/broker/uptime", uptime.to_owned()),
    ];
    router.say_figures((seconds(now), WallTime(0)), "amq.topic", figures);
}

fn ask(router: &mut MqttRouter, who: SubscriberId, filter: &str) -> usize {
    router.subscribe(who, filter, at(Qos::AtLeastOnce));
    let mut found = Vec::new();
    assert!(router.retained_for(
        who,
        (filter, Subscription::default()),
        WallTime(0),
        100,
        &mut found
    ));
    found.len()
}

#[test]
fn the_servers_own_topics_are_told_to_those_who_ask_and_cost_nothing_otherwise() {
    let mut router = MqttRouter::new(RouterLimits::default());
    router.set_server_interval(Some(Duration::from_secs(10)));
    let (a, b) = (enter(&mut router, "a", 1), enter(&mut router, "b", 2));
    for filter in ["#", "+/broker/uptime", "$SYSTEM/#"] {
        assert_eq!(ask(&mut router, a, filter), 0);
    }
    router.tick(seconds(100));
    assert_eq!((heard(&mut router), router.wake_at()), (vec![], None));
    // The first has to wait until there is something to say, who comes meanwhile too.
    assert_eq!(ask(&mut router, a, "$SYS/#"), 0);
    assert_eq!(ask(&mut router, b, "$SYS/broker/uptime"), 0);
    assert_eq!(heard(&mut router), ["Figures"]);
    tell(&mut router, 100, "0 seconds");
    let all = [
        "1 0 seconds retained",
        "1 v1 retained",
        "2 0 seconds retained",
    ];
    assert_eq!(heard(&mut router), all);
    // Now and then what has changed.
    assert_eq!(router.wake_at(), Some(seconds(110)));
    router.tick(seconds(109));
    assert_eq!(heard(&mut router), [""; 0]);
    router.tick(seconds(110));
    router.tick(seconds(111));
    assert_eq!(heard(&mut router), ["Figures"]);
    tell(&mut router, 111, "11 seconds");
    assert_eq!(heard(&mut router), ["1 11 seconds", "2 11 seconds"]);
    // Who comes later finds what was said last.
    assert_eq!(ask(&mut router, b, "$SYS/broker/+"), 2);
    // Nobody is left: nothing is said, and what was said is forgotten.
    assert!(router.unsubscribe(a, "$SYS/#"));
    router.leave(b, SessionRelease::default());
    assert_eq!(router.wake_at(), None);
    router.tick(seconds(1000));
    tell(&mut router, 1000, "late");
    assert_eq!(heard(&mut router), [""; 0]);
    assert_eq!(ask(&mut router, a, "$SYS/broker/version"), 0);
    assert_eq!(heard(&mut router), ["Figures"]);
}

#[test]
fn the_servers_own_topics_are_for_clients_that_are_here_and_only_if_wanted() {
    let mut router = MqttRouter::new(RouterLimits::default());
    let a = enter(&mut router, "a", 1);
    assert_eq!(ask(&mut router, a, "$SYS/#"), 0);
    assert_eq!((heard(&mut router), router.wake_at()), (vec![], None));
    let mut router = MqttRouter::new(RouterLimits::default());
    router.set_server_interval(Some(Duration::from_secs(10)));
    let a = enter(&mut router, "a", 1);
    ask(&mut router, a, "$SYS/#");
    assert_eq!(heard(&mut router), ["Figures"]);
    tell(&mut router, 0, "0 seconds");
    heard(&mut router);
    let away = SessionRelease {
        state: Some(Box::new(Basket::default())),
        ..SessionRelease::default()
    };
    router.leave(a, away);
    assert_eq!(router.wake_at(), None);
    // It comes back: it has had what is retained, and hears of what is new.
    assert_eq!(enter(&mut router, "a", 3), a);
    router.tick(seconds(20));
    assert_eq!(heard(&mut router), ["Figures"]);
    tell(&mut router, 20, "20 seconds");
    tell(&mut router, 30, "30 seconds");
    assert_eq!(heard(&mut router), ["3 30 seconds"]);
    assert_eq!((router.counts().most, router.counts().expired), (1, 0));
}
