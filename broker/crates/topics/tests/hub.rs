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
    Claim, Delivery, EnvelopeBuilder, Hub, Leave, Limits, Output, Parked, Publisher, RetainedFull,
    SubscriberId, Subscription, Will,
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

impl Parked for Basket {
    fn deliver(&mut self, delivery: Delivery) -> bool {
        self.0.lock().unwrap().push(delivery);
        true
    }
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

fn enter(hub: &mut Hub, client: &str, session: u64) -> SubscriberId {
    match hub.claim("/", client, session, false) {
        Claim::Granted { subscriber, .. } => subscriber,
        Claim::Wait => panic!("somebody has it"),
    }
}

/// A client that was here before, and what it had left.
fn find(hub: &mut Hub, client: &str, session: u64) -> (SubscriberId, Leave) {
    match hub.claim("/", client, session, false) {
        Claim::Granted {
            subscriber, left, ..
        } => (subscriber, left),
        Claim::Wait => panic!("somebody has it"),
    }
}

fn is_new(claim: Claim) -> bool {
    matches!(claim, Claim::Granted { left, .. } if left.state.is_none())
}

fn by(client: SubscriberId) -> Publisher {
    Publisher {
        subscriber: Some(client),
        ..Publisher::default()
    }
}

/// How many get it.
fn publish(hub: &mut Hub, vhost: &str, topic: &str) -> usize {
    let nobody = Publisher::default();
    let message = message(topic, b"x");
    hub.publish(vhost, topic, &message, nobody, &mut Vec::new())
        .receivers
}

fn at(qos: Qos) -> Subscription {
    Subscription {
        qos,
        ..Subscription::default()
    }
}

fn said(hub: &mut Hub) -> Vec<String> {
    let mut all = Vec::new();
    while let Some(output) = hub.take() {
        all.push(match output {
            Output::Deliver { session, delivery } => {
                let ids: Vec<u32> = delivery.hits.iter().map(|h| h.identifier).collect();
                format!("{session} gets {ids:?}")
            }
            Output::TakenOver { session } => format!("{session} leaves"),
            Output::Free { session } => format!("{session} again"),
            Output::Will { vhost, will } => format!("will {vhost} {}", will.topic),
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
    let mut hub = Hub::new(Limits::default());
    let first = enter(&mut hub, "c", 1);
    assert!(matches!(hub.claim("/", "c", 2, false), Claim::Wait));
    assert!(matches!(hub.claim("/", "c", 3, false), Claim::Wait));
    assert_eq!(said(&mut hub), ["1 leaves", "2 leaves"]);
    hub.withdraw("/", "c", 2);
    let basket = Basket::default();
    hub.leave(
        first,
        Leave {
            state: Some(Box::new(basket)),
            ..Leave::default()
        },
    );
    assert_eq!(said(&mut hub), ["3 again"]);
    let Claim::Granted {
        subscriber, left, ..
    } = hub.claim("/", "c", 3, false)
    else {
        panic!("nobody has it");
    };
    assert_eq!(subscriber, first);
    assert!(left.state.is_some_and(|s| s.into_any().is::<Basket>()));
    // In another vhost it is another client.
    assert!(is_new(hub.claim("other", "c", 4, false)));
}

#[test]
fn who_gave_up_waiting_is_not_called() {
    let mut hub = Hub::new(Limits::default());
    let first = enter(&mut hub, "c", 1);
    assert!(matches!(hub.claim("/", "c", 2, false), Claim::Wait));
    hub.withdraw("/", "c", 2);
    hub.leave(first, Leave::default());
    assert_eq!(said(&mut hub), ["1 leaves"]);
    assert_eq!(hub.counts().connected, 0);
}

#[test]
fn a_session_that_is_away_goes_on_collecting_until_its_time_is_over() {
    let mut hub = Hub::new(Limits::default());
    let who = enter(&mut hub, "c", 1);
    assert!(!hub.subscribe(who, "a/#", at(Qos::AtLeastOnce)));
    let basket = Basket::default();
    let leave = Leave {
        state: Some(Box::new(basket.clone())),
        until: Some(seconds(60)),
        will: Some((seconds(10), will("w"))),
        ..Leave::default()
    };
    hub.leave(who, leave);
    assert_eq!(publish(&mut hub, "/", "a/b"), 1);
    assert_eq!(basket.0.lock().unwrap().len(), 1);
    assert_eq!(hub.wake_at(), Some(seconds(10)));
    hub.tick(seconds(9));
    assert_eq!(said(&mut hub), [""; 0]);
    hub.tick(seconds(10));
    assert_eq!(said(&mut hub), ["will / w"]);
    assert_eq!(hub.wake_at(), Some(seconds(60)));
    assert_eq!(hub.counts().parked, 1);
    hub.tick(seconds(60));
    assert_eq!((hub.counts().parked, hub.counts().subscriptions), (0, 0));
    assert_eq!(publish(&mut hub, "/", "a/b"), 0);
    assert_eq!(hub.wake_at(), None);
}

#[test]
fn what_was_on_its_way_when_a_client_left_waits_for_it() {
    let mut hub = Hub::new(Limits::default());
    let who = enter(&mut hub, "c", 1);
    let other = enter(&mut hub, "d", 2);
    for id in [who, other] {
        hub.subscribe(id, "a", at(Qos::AtLeastOnce));
    }
    publish(&mut hub, "/", "a");
    let basket = Basket::default();
    let leave = Leave {
        state: Some(Box::new(basket.clone())),
        ..Leave::default()
    };
    hub.leave(who, leave);
    assert_eq!(basket.0.lock().unwrap().len(), 1);
    assert_eq!(said(&mut hub), ["2 gets [0]"]);
}

#[test]
fn a_will_is_published_when_the_session_ends_first_and_not_when_the_client_is_back() {
    let mut hub = Hub::new(Limits::default());
    let away = || Leave {
        state: Some(Box::new(Basket::default())),
        until: Some(seconds(5)),
        will: Some((seconds(10), will("w"))),
        ..Leave::default()
    };
    // The session's end comes first.
    let who = enter(&mut hub, "c", 1);
    hub.leave(who, away());
    hub.tick(seconds(5));
    assert_eq!(said(&mut hub), ["will / w"]);
    // Back in time.
    let who = enter(&mut hub, "c", 2);
    hub.leave(who, away());
    let (who, left) = find(&mut hub, "c", 3);
    hub.came_back(who, left.will);
    hub.tick(seconds(100));
    assert_eq!(said(&mut hub), [""; 0]);
    // A new session ends the old one.
    hub.leave(who, away());
    assert!(is_new(hub.claim("/", "c", 4, true)));
    assert_eq!(said(&mut hub), ["will / w"]);
    // No session is kept at all: at once.
    let who = enter(&mut hub, "d", 5);
    hub.leave(
        who,
        Leave {
            will: Some((seconds(10), will("v"))),
            ..Leave::default()
        },
    );
    assert_eq!(said(&mut hub), ["will / v"]);
}

#[test]
fn a_connection_that_is_not_let_in_leaves_the_session_and_its_will_as_they_were() {
    // [MQTT-3.1.3-9]: the will is spared by a connection to the session, which it was not.
    let mut hub = Hub::new(Limits::default());
    let who = enter(&mut hub, "c", 1);
    let away = Leave {
        state: Some(Box::new(Basket::default())),
        until: Some(seconds(20)),
        will: Some((seconds(10), will("w"))),
        ..Leave::default()
    };
    hub.leave(who, away);
    for session in 2..4 {
        let (again, left) = find(&mut hub, "c", session);
        assert_eq!((again, left.until), (who, Some(seconds(20))));
        assert!(left.state.is_some());
        hub.leave(again, left);
        assert_eq!(said(&mut hub), [""; 0]);
    }
    hub.tick(seconds(10));
    assert_eq!(said(&mut hub), ["will / w"]);
    hub.tick(seconds(20));
    assert!(!hub.holds("/", "c"));
    assert_eq!(said(&mut hub), [""; 0]);
}

#[test]
fn one_delivery_names_all_subscriptions_that_match() {
    let mut hub = Hub::new(Limits::default());
    let who = enter(&mut hub, "c", 1);
    for (filter, identifier) in [("a/+", 7), ("a/#", 8), ("b", 9)] {
        hub.subscribe(
            who,
            filter,
            Subscription {
                identifier,
                ..at(Qos::AtMostOnce)
            },
        );
    }
    assert_eq!(publish(&mut hub, "/", "a/b"), 1);
    assert_eq!(said(&mut hub), ["1 gets [7, 8]"]);
    // Replaced, not added.
    assert!(hub.subscribe(
        who,
        "a/+",
        Subscription {
            identifier: 5,
            ..at(Qos::AtMostOnce)
        }
    ));
    publish(&mut hub, "/", "a/b");
    assert_eq!(said(&mut hub), ["1 gets [5, 8]"]);
    assert!(hub.unsubscribe(who, "a/#"));
    assert!(!hub.unsubscribe(who, "a/#"));
    publish(&mut hub, "/", "a/b");
    assert_eq!(said(&mut hub), ["1 gets [5]"]);
    assert_eq!(publish(&mut hub, "other", "a/b"), 0);
}

#[test]
fn no_local_is_about_the_publisher() {
    let mut hub = Hub::new(Limits::default());
    let one = enter(&mut hub, "c", 1);
    let two = enter(&mut hub, "d", 2);
    let no_local = Subscription {
        no_local: true,
        ..Subscription::default()
    };
    hub.subscribe(one, "a", no_local);
    hub.subscribe(two, "a", no_local);
    assert_eq!(
        hub.publish("/", "a", &message("a", b""), by(one), &mut Vec::new())
            .receivers,
        1
    );
    assert_eq!(said(&mut hub), ["2 gets [0]"]);
}

#[test]
fn a_group_takes_turns_and_prefers_who_is_here() {
    let mut hub = Hub::new(Limits::default());
    let ids: Vec<SubscriberId> = (1..=3)
        .map(|n| enter(&mut hub, &format!("c{n}"), n))
        .collect();
    for &id in &ids {
        hub.subscribe(id, "$share/g/a/+", Subscription::default());
    }
    let publish = |hub: &mut Hub| {
        assert_eq!(publish(hub, "/", "a/b"), 1);
        said(hub).concat()
    };
    // As mosquitto: in the order in which they came.
    let turns: Vec<String> = (0..3).map(|_| publish(&mut hub)).collect();
    assert_eq!(turns, ["1 gets [0]", "2 gets [0]", "3 gets [0]"]);
    let basket = Basket::default();
    hub.leave(
        ids[0],
        Leave {
            state: Some(Box::new(basket.clone())),
            ..Leave::default()
        },
    );
    hub.leave(ids[1], Leave::default());
    for _ in 0..3 {
        assert_eq!(publish(&mut hub), "3 gets [0]");
    }
    // Nobody is here: it waits for one who comes back.
    hub.leave(ids[2], Leave::default());
    assert_eq!(publish(&mut hub), "");
    assert_eq!(basket.0.lock().unwrap().len(), 1);
}

#[test]
fn retained_messages_are_for_those_who_come_later_and_have_a_bound() {
    let limits = Limits {
        retained_messages: 2,
        ..Limits::default()
    };
    let mut hub = Hub::new(limits);
    for topic in ["a/1", "a/2", "a/1"] {
        assert_eq!(hub.retain("/", topic, Some(message(topic, b"x"))), Ok(()));
    }
    assert_eq!(
        hub.retain("/", "a/3", Some(message("a/3", b"x"))),
        Err(RetainedFull)
    );
    let who = enter(&mut hub, "c", 1);
    let subscription = Subscription {
        identifier: 4,
        ..Subscription::default()
    };
    hub.subscribe(who, "a/#", subscription);
    let mut found = Vec::new();
    assert!(hub.retained_for(who, ("a/#", subscription), WallTime(0), 9, &mut found));
    let ids: Vec<u32> = found.iter().map(|d| d.hits[0].identifier).collect();
    assert_eq!((ids, found[0].retained), (vec![4, 4], true));
    assert!(!hub.retained_for(who, ("a/#", subscription), WallTime(0), 3, &mut found));
    assert_eq!(found.len(), 3);
    assert_eq!(hub.retain("/", "a/1", None), Ok(()));
    assert_eq!(hub.counts().retained, 1);
    hub.remove_vhost("/");
    assert_eq!(hub.counts().retained, 0);
}

#[test]
fn a_client_with_a_queue_gets_the_rest_from_the_hub() {
    let mut hub = Hub::new(Limits::default());
    let one = enter(&mut hub, "one", 1);
    hub.store_in(one, 7);
    hub.subscribe(one, "a", at(Qos::AtLeastOnce));
    hub.subscribe(one, "b", at(Qos::AtMostOnce));
    hub.subscribe(one, "$share/g/c", at(Qos::AtLeastOnce));
    let publish = |hub: &mut Hub, topic| {
        let mut queues = Vec::new();
        let heard = hub.publish(
            "/",
            topic,
            &message(topic, b""),
            Publisher::default(),
            &mut queues,
        );
        (heard.receivers, queues, said(hub))
    };
    assert_eq!(
        publish(&mut hub, "a"),
        (0, vec![], vec![]),
        "the exchange's"
    );
    assert_eq!(publish(&mut hub, "b").2, ["1 gets [0]"]);
    assert_eq!(publish(&mut hub, "c"), (0, vec![7], vec![]));
    // Away, and in another life of the node.
    hub.leave(one, Leave::default());
    assert_eq!(publish(&mut hub, "c").1, [0; 0]);
    hub.adopt(("/", "one"), 7, "$share/g/c", at(Qos::AtLeastOnce));
    assert_eq!(publish(&mut hub, "c").1, [7]);
    hub.disown(("/", "one"), "$share/g/c");
    assert_eq!(publish(&mut hub, "c").1, [0; 0]);
    hub.adopt(("/", "one"), 7, "$share/g/c", at(Qos::AtLeastOnce));
    hub.queue_ends(7);
    assert!(hub.is_ending(7));
    hub.queue_gone("/", "one", 7);
    assert!(!hub.is_ending(7) && !hub.is_listening("/"));
    assert_eq!(hub.counts().parked, 0);
}

#[test]
fn as_many_sessions_are_kept_as_may_be() {
    let mut hub = Hub::new(Limits {
        parked: 1,
        ..Limits::default()
    });
    for client in ["a", "b"] {
        let who = enter(&mut hub, client, 1);
        hub.leave(
            who,
            Leave {
                state: Some(Box::new(Basket::default())),
                ..Leave::default()
            },
        );
    }
    assert_eq!((hub.counts().parked, hub.counts().connected), (1, 0));
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
        let mut hub = Hub::new(Limits::default());
        let who = enter(&mut hub, "c", 1);
        let other = enter(&mut hub, "d", 2);
        for (n, filter) in filters.iter().enumerate() {
            let identifier = n as u32 + 1;
            let qos = qos_of(identifier);
            hub.subscribe(who, filter, Subscription { identifier, qos, ..Subscription::default() });
            hub.subscribe(other, filter, Subscription::default());
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
            hub.matching(who, topic, &mut found);
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
        let mut hub = Hub::new(Limits::default());
        let ids: Vec<SubscriberId> = (0..3).map(|n| enter(&mut hub, &n.to_string(), n)).collect();
        let mut model: BTreeMap<(u64, String), ()> = BTreeMap::new();
        for (client, add, filter) in steps {
            let key = (client, filter.clone());
            if add {
                let was = hub.subscribe(ids[client as usize], &filter, Subscription::default());
                prop_assert_eq!(was, model.insert(key, ()).is_some());
            } else {
                let was = hub.unsubscribe(ids[client as usize], &filter);
                prop_assert_eq!(was, model.remove(&key).is_some());
            }
        }
        for topic in &topics {
            let mut want: BTreeMap<u64, usize> = BTreeMap::new();
            for (client, _) in model.keys().filter(|(_, filter)| matches(filter, topic)) {
                *want.entry(*client).or_default() += 1;
            }
            prop_assert_eq!(hub.publish("/", topic, &message(topic, b""), Publisher::default(), &mut Vec::new()).receivers, want.len());
            let mut got: BTreeMap<u64, usize> = BTreeMap::new();
            while let Some(output) = hub.take() {
                if let Output::Deliver { session, delivery } = output {
                    prop_assert!(got.insert(session, delivery.hits.len()).is_none());
                }
            }
            prop_assert_eq!(&got, &want, "{}", topic);
        }
        for id in ids {
            hub.leave(id, Leave::default());
        }
        prop_assert!(!hub.is_listening("/"));
    }
}

/// What clients hear of the server's own topics: session, payload and whether it counts as retained; that it is asked for figures.
fn heard(hub: &mut Hub) -> Vec<String> {
    let mut all = Vec::new();
    while let Some(output) = hub.take() {
        all.push(match output {
            Output::Deliver { session, delivery } => {
                let text = String::from_utf8_lossy(delivery.message.body()).into_owned();
                let retained = if delivery.retained { " retained" } else { "" };
                format!("{session} {text}{retained}")
            }
            other => format!("{other:?}"),
        });
    }
    all
}

fn tell(hub: &mut Hub, now: u64, uptime: &str) {
    let figures = [
        ("$SYS/broker/version", "v1".to_owned()),
        ("$SYS/broker/uptime", uptime.to_owned()),
    ];
    hub.say_figures((seconds(now), WallTime(0)), "amq.topic", figures);
}

fn ask(hub: &mut Hub, who: SubscriberId, filter: &str) -> usize {
    hub.subscribe(who, filter, at(Qos::AtLeastOnce));
    let mut found = Vec::new();
    assert!(hub.retained_for(
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
    let mut hub = Hub::new(Limits::default());
    hub.set_server_interval(Some(Duration::from_secs(10)));
    let (a, b) = (enter(&mut hub, "a", 1), enter(&mut hub, "b", 2));
    for filter in ["#", "+/broker/uptime", "$SYSTEM/#"] {
        assert_eq!(ask(&mut hub, a, filter), 0);
    }
    hub.tick(seconds(100));
    assert_eq!((heard(&mut hub), hub.wake_at()), (vec![], None));
    // The first has to wait until there is something to say, who comes meanwhile too.
    assert_eq!(ask(&mut hub, a, "$SYS/#"), 0);
    assert_eq!(ask(&mut hub, b, "$SYS/broker/uptime"), 0);
    assert_eq!(heard(&mut hub), ["Figures"]);
    tell(&mut hub, 100, "0 seconds");
    let all = [
        "1 0 seconds retained",
        "1 v1 retained",
        "2 0 seconds retained",
    ];
    assert_eq!(heard(&mut hub), all);
    // Now and then what has changed.
    assert_eq!(hub.wake_at(), Some(seconds(110)));
    hub.tick(seconds(109));
    assert_eq!(heard(&mut hub), [""; 0]);
    hub.tick(seconds(110));
    hub.tick(seconds(111));
    assert_eq!(heard(&mut hub), ["Figures"]);
    tell(&mut hub, 111, "11 seconds");
    assert_eq!(heard(&mut hub), ["1 11 seconds", "2 11 seconds"]);
    // Who comes later finds what was said last.
    assert_eq!(ask(&mut hub, b, "$SYS/broker/+"), 2);
    // Nobody is left: nothing is said, and what was said is forgotten.
    assert!(hub.unsubscribe(a, "$SYS/#"));
    hub.leave(b, Leave::default());
    assert_eq!(hub.wake_at(), None);
    hub.tick(seconds(1000));
    tell(&mut hub, 1000, "late");
    assert_eq!(heard(&mut hub), [""; 0]);
    assert_eq!(ask(&mut hub, a, "$SYS/broker/version"), 0);
    assert_eq!(heard(&mut hub), ["Figures"]);
}

#[test]
fn the_servers_own_topics_are_for_clients_that_are_here_and_only_if_wanted() {
    let mut hub = Hub::new(Limits::default());
    let a = enter(&mut hub, "a", 1);
    assert_eq!(ask(&mut hub, a, "$SYS/#"), 0);
    assert_eq!((heard(&mut hub), hub.wake_at()), (vec![], None));
    let mut hub = Hub::new(Limits::default());
    hub.set_server_interval(Some(Duration::from_secs(10)));
    let a = enter(&mut hub, "a", 1);
    ask(&mut hub, a, "$SYS/#");
    assert_eq!(heard(&mut hub), ["Figures"]);
    tell(&mut hub, 0, "0 seconds");
    heard(&mut hub);
    let away = Leave {
        state: Some(Box::new(Basket::default())),
        ..Leave::default()
    };
    hub.leave(a, away);
    assert_eq!(hub.wake_at(), None);
    // It comes back: it has had what is retained, and hears of what is new.
    assert_eq!(enter(&mut hub, "a", 3), a);
    hub.tick(seconds(20));
    assert_eq!(heard(&mut hub), ["Figures"]);
    tell(&mut hub, 20, "20 seconds");
    tell(&mut hub, 30, "30 seconds");
    assert_eq!(heard(&mut hub), ["3 30 seconds"]);
    assert_eq!((hub.counts().most, hub.counts().expired), (1, 0));
}
