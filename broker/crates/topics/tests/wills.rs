//! What hubs do with wills of clients of other nodes, where it takes a node that begins anew or very many bytes to see it.
#![forbid(unsafe_code)]

use codec_mqtt::{Properties, Qos};
use env::{Incarnation, NodeId, Time, WallTime};
use std::time::Duration;
use topics::{
    ClaimOutcome, EnvelopeBuilder, MqttRouter, RouterAddress, RouterOutput, SubscriberId, Will,
};

fn address(node: u64, life: u64) -> RouterAddress {
    RouterAddress {
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

fn router(me: RouterAddress, other: RouterAddress) -> MqttRouter {
    let mut router = MqttRouter::default();
    router.set_wills(true);
    router.set_routers(me, vec![other]);
    router
}

/// All that one hub has to say to the other.
fn pass_on(from: &mut MqttRouter, at: RouterAddress, to: &mut MqttRouter) {
    while let Some((_, peer_messages)) = from.say_wills() {
        to.hear_wills(at, peer_messages);
    }
}

/// A client of the hub is connected: it is the owner of the id, or the other hub grants it.
fn connect(
    at: &mut MqttRouter,
    me: RouterAddress,
    owner: &mut MqttRouter,
    other: RouterAddress,
    client: &str,
) -> SubscriberId {
    for _ in 0..3 {
        if let ClaimOutcome::Granted { subscriber, .. } = at.claim("/", client, 1, false) {
            return subscriber;
        }
        while let Some((_, peer_messages)) = at.say_claims() {
            owner.hear_claims(me, peer_messages);
        }
        while let Some((_, peer_messages)) = owner.say_claims() {
            at.hear_claims(other, peer_messages);
        }
    }
    panic!("{client} is not let in");
}

fn published(router: &mut MqttRouter, at: Time) -> usize {
    router.clock(at, WallTime(0));
    router.tick(at);
    let all = std::iter::from_fn(|| router.take());
    all.filter(|output| matches!(output, RouterOutput::Will { .. }))
        .count()
}

fn after(seconds: u64) -> Time {
    Time::ZERO + Duration::from_secs(seconds)
}

/// A client that is back, with a will again, where a node has begun anew: the old one is not news any more.
#[test]
fn who_comes_back_to_a_node_that_began_anew_is_not_called_dead() {
    for (back, expected) in [(true, 0), (false, 1)] {
        let (first, keeper_at) = (address(1, 1), address(2, 1));
        let mut keeper = router(keeper_at, first);
        let mut node = router(first, keeper_at);
        let who = connect(&mut node, first, &mut keeper, keeper_at, "c");
        node.keep_will(who, &will(b"old"), 0);
        pass_on(&mut node, first, &mut keeper);
        assert_eq!(keeper.counts().wills, 1);

        keeper.part(NodeId(1));
        keeper.set_routers(keeper_at, vec![]);
        assert_eq!(published(&mut keeper, after(2)), 0);
        let second = address(1, 2);
        keeper.forget_routers(NodeId(1), Some(second.incarnation));
        keeper.set_routers(keeper_at, vec![second]);
        let mut node = router(second, keeper_at);
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
    let (here, there) = (address(1, 1), address(2, 1));
    let mut keeper = router(there, here);
    let mut node = router(here, there);
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
    node.leave(clients[0], topics::SessionRelease::default());
    let who = connect(&mut node, here, &mut keeper, there, "late");
    node.keep_will(who, &large, 0);
    pass_on(&mut node, here, &mut keeper);
    let counts = keeper.counts();
    assert_eq!((counts.wills, counts.wills_not_kept), (63, 7));
}

const HERE: RouterAddress = RouterAddress {
    node: NodeId(1),
    incarnation: Incarnation(1),
    shard: 0,
};
const THERE: RouterAddress = RouterAddress {
    node: NodeId(2),
    ..HERE
};

/// A hub, one that keeps a will of its, and the client that has the will.
fn kept() -> (MqttRouter, MqttRouter, SubscriberId) {
    let (mut node, mut keeper) = (router(HERE, THERE), router(THERE, HERE));
    let who = connect(&mut node, HERE, &mut keeper, THERE, "c");
    node.keep_will(who, &will(b"x"), 0);
    pass_on(&mut node, HERE, &mut keeper);
    (node, keeper, who)
}

/// The keeper has met the hub again.
fn asks(keeper: &mut MqttRouter, node: &mut MqttRouter) {
    keeper.set_routers(THERE, vec![]);
    keeper.set_routers(THERE, vec![HERE]);
    while let Some((_, peer_messages)) = keeper.say_claims() {
        node.hear_claims(THERE, peer_messages);
    }
}

/// A hub that has lost what it was told asks for everything, and gets it.
#[test]
fn what_a_hub_asks_for_is_told_again() {
    let (mut node, mut keeper, who) = kept();
    keeper.forget_routers(NodeId(1), Some(Incarnation(1)));
    assert_eq!(keeper.counts().wills, 0);
    asks(&mut keeper, &mut node);
    node.tick(after(1));
    let asked = std::iter::from_fn(|| node.take());
    let asked = asked.filter(|o| matches!(o, RouterOutput::TellWill { session: 1 }));
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
    node.leave(who, topics::SessionRelease::default());
    pass_on(&mut node, HERE, &mut keeper);
    assert_eq!(keeper.counts().wills, 0);
}
