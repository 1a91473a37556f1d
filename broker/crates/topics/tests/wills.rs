//! What hubs do with wills of clients of other nodes, where it takes a node that begins anew or very many bytes to see it.
#![forbid(unsafe_code)]

use codec_mqtt::{Properties, Qos};
use env::{Incarnation, NodeId, Time, WallTime};
use std::time::Duration;
use topics::{Claim, EnvelopeBuilder, Hub, Output, Place, SubscriberId, Will};

fn place(node: u64, life: u64) -> Place {
    Place {
        node: NodeId(node),
        incarnation: Incarnation(life),
        shard: 0,
    }
}

fn will(payload: &[u8]) -> Will {
    let message = EnvelopeBuilder {
        qos: Qos::AtLeastOnce,
        retain: false,
        topic: "will",
        properties: &Properties::default(),
        exchange: "amq.topic",
        key: "will",
        received: WallTime(7),
    };
    Will {
        topic: "will".into(),
        message: message.build(payload).expect("a message"),
        retain: false,
    }
}

fn hub(me: Place, other: Place) -> Hub {
    let mut hub = Hub::default();
    hub.set_wills(true);
    hub.set_hubs(me, vec![other]);
    hub
}

/// All that one hub has to say to the other.
fn pass_on(from: &mut Hub, at: Place, to: &mut Hub) {
    while let Some((_, words)) = from.say_wills() {
        to.hear_wills(at, words);
    }
}

/// A client of the hub is connected: it is the owner of the id, or the other hub grants it.
fn connect(at: &mut Hub, me: Place, owner: &mut Hub, other: Place, client: &str) -> SubscriberId {
    for _ in 0..3 {
        if let Claim::Granted { subscriber, .. } = at.claim("/", client, 1, false) {
            return subscriber;
        }
        while let Some((_, words)) = at.say_claims() {
            owner.hear_claims(me, words);
        }
        while let Some((_, words)) = owner.say_claims() {
            at.hear_claims(other, words);
        }
    }
    panic!("{client} is not let in");
}

fn published(hub: &mut Hub, at: Time) -> usize {
    hub.clock(at, WallTime(0));
    hub.tick(at);
    let all = std::iter::from_fn(|| hub.take());
    all.filter(|output| matches!(output, Output::Will { .. }))
        .count()
}

fn after(seconds: u64) -> Time {
    Time::ZERO + Duration::from_secs(seconds)
}

/// A client that is back, with a will again, where a node has begun anew: the old one is not news any more.
#[test]
fn who_comes_back_to_a_node_that_began_anew_is_not_called_dead() {
    for (back, expected) in [(true, 0), (false, 1)] {
        let (first, keeper_at) = (place(1, 1), place(2, 1));
        let mut keeper = hub(keeper_at, first);
        let mut node = hub(first, keeper_at);
        let who = connect(&mut node, first, &mut keeper, keeper_at, "c");
        node.keep_will(who, &will(b"old"), 0);
        pass_on(&mut node, first, &mut keeper);
        assert_eq!(keeper.counts().wills, 1);

        keeper.part(NodeId(1));
        keeper.set_hubs(keeper_at, vec![]);
        assert_eq!(published(&mut keeper, after(2)), 0);
        let second = place(1, 2);
        keeper.forget_hubs(NodeId(1), Some(second.incarnation));
        keeper.set_hubs(keeper_at, vec![second]);
        let mut node = hub(second, keeper_at);
        if back {
            let who = connect(&mut node, second, &mut keeper, keeper_at, "c");
            node.keep_will(who, &will(b"new"), 0);
            pass_on(&mut node, second, &mut keeper);
        }
        assert_eq!(published(&mut keeper, after(20)), expected);
        assert_eq!(keeper.counts().wills, usize::from(back));
    }
}

#[test]
fn a_keeper_has_no_room_for_more_than_64_mib_and_counts_what_is_beyond() {
    let (here, there) = (place(1, 1), place(2, 1));
    let mut keeper = hub(there, here);
    let mut node = hub(here, there);
    let large = will(&vec![7; 1 << 20]);
    let mut clients = Vec::new();
    for number in 0..70 {
        let client = format!("c{number}");
        let who = connect(&mut node, here, &mut keeper, there, &client);
        node.keep_will(who, &large, 0);
        clients.push(who);
        pass_on(&mut node, here, &mut keeper);
    }
    let counts = keeper.counts();
    assert_eq!((counts.wills, counts.wills_not_kept), (63, 7));
    // What ends makes room.
    node.leave(clients[0], topics::Leave::default());
    let who = connect(&mut node, here, &mut keeper, there, "late");
    node.keep_will(who, &large, 0);
    pass_on(&mut node, here, &mut keeper);
    let counts = keeper.counts();
    assert_eq!((counts.wills, counts.wills_not_kept), (63, 7));
}

const HERE: Place = Place {
    node: NodeId(1),
    incarnation: Incarnation(1),
    shard: 0,
};
const THERE: Place = Place {
    node: NodeId(2),
    ..HERE
};

/// A hub, one that keeps a will of its, and the client that has the will.
fn kept() -> (Hub, Hub, SubscriberId) {
    let (mut node, mut keeper) = (hub(HERE, THERE), hub(THERE, HERE));
    let who = connect(&mut node, HERE, &mut keeper, THERE, "c");
    node.keep_will(who, &will(b"x"), 0);
    pass_on(&mut node, HERE, &mut keeper);
    (node, keeper, who)
}

/// The keeper has met the hub again.
fn asks(keeper: &mut Hub, node: &mut Hub) {
    keeper.set_hubs(THERE, vec![]);
    keeper.set_hubs(THERE, vec![HERE]);
    while let Some((_, words)) = keeper.say_claims() {
        node.hear_claims(THERE, words);
    }
}

/// A hub that has lost what it was told asks for everything, and gets it.
#[test]
fn what_a_hub_asks_for_is_told_again() {
    let (mut node, mut keeper, who) = kept();
    keeper.forget_hubs(NodeId(1), Some(Incarnation(1)));
    assert_eq!(keeper.counts().wills, 0);
    asks(&mut keeper, &mut node);
    node.tick(after(1));
    let asked = std::iter::from_fn(|| node.take());
    let asked = asked.filter(|o| matches!(o, Output::TellWill { session: 1 }));
    assert_eq!(asked.count(), 1);
    node.keep_will(who, &will(b"x"), 0);
    pass_on(&mut node, HERE, &mut keeper);
    assert_eq!(keeper.counts().wills, 1);
}

/// Between the question and the answer a client may say goodbye.
#[test]
fn what_was_asked_for_and_is_over_is_not_kept() {
    let (mut node, mut keeper, who) = kept();
    asks(&mut keeper, &mut node);
    node.leave(who, topics::Leave::default());
    pass_on(&mut node, HERE, &mut keeper);
    assert_eq!(keeper.counts().wills, 0);
}
