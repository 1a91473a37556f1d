//! Replicas of wills in cases that need a restarted node or very large wills.

use codec_mqtt::{Properties, Qos};
use conversion::mqtt::EnvelopeBuilder;
use env::{Incarnation, NodeId, Time, WallTime};
use std::time::Duration;
use topics::{ClaimOutcome, MqttRouter, RouterAddress, RouterOutput, SubscriberId, Will};

fn address(node: u64, incarnation: u64) -> RouterAddress {
    RouterAddress {
        node: NodeId(node),
        incarnation: Incarnation(incarnation),
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

/// Delivers all messages about wills from one router to the other.
fn deliver_wills(from: &mut MqttRouter, at: RouterAddress, to: &mut MqttRouter) {
    while let Some((_, messages)) = from.next_will_messages() {
        to.handle_will_messages(at, messages);
    }
}

/// Connects a client: this router owns the id, or the other router grants it.
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
        while let Some((_, messages)) = at.next_claim_messages() {
            owner.handle_claim_messages(me, messages);
        }
        while let Some((_, messages)) = owner.next_claim_messages() {
            at.handle_claim_messages(other, messages);
        }
    }
    panic!("{client} is not granted its client id");
}

fn count_published_wills(router: &mut MqttRouter, at: Time) -> usize {
    router.set_time(at, WallTime(0));
    router.tick(at);
    let all = std::iter::from_fn(|| router.take());
    all.filter(|output| matches!(output, RouterOutput::Will { .. }))
        .count()
}

fn at_seconds(seconds: u64) -> Time {
    Time::ZERO + Duration::from_secs(seconds)
}

/// If the client has reconnected to the restarted node, with a new will, the old will is not
/// published.
#[test]
fn will_is_not_published_when_client_reconnects_to_restarted_node() {
    for (reconnects, expected) in [(true, 0), (false, 1)] {
        let (first, replica_address) = (address(1, 1), address(2, 1));
        let mut replica_router = router(replica_address, first);
        let mut node = router(first, replica_address);
        let subscriber = connect(&mut node, first, &mut replica_router, replica_address, "c");
        node.replicate_will(subscriber, &will(b"old"), 0);
        deliver_wills(&mut node, first, &mut replica_router);
        assert_eq!(replica_router.counts().wills, 1);

        replica_router.node_down(NodeId(1));
        replica_router.set_routers(replica_address, vec![]);
        assert_eq!(count_published_wills(&mut replica_router, at_seconds(2)), 0);
        let second = address(1, 2);
        replica_router.forget_routers(NodeId(1), Some(second.incarnation));
        replica_router.set_routers(replica_address, vec![second]);
        let mut node = router(second, replica_address);
        if reconnects {
            let subscriber = connect(&mut node, second, &mut replica_router, replica_address, "c");
            node.replicate_will(subscriber, &will(b"new"), 0);
            deliver_wills(&mut node, second, &mut replica_router);
        }
        assert_eq!(
            count_published_wills(&mut replica_router, at_seconds(20)),
            expected
        );
        assert_eq!(replica_router.counts().wills, usize::from(reconnects));
    }
}

#[test]
fn will_replicas_are_limited_to_64_mib_and_rejected_ones_counted() {
    let (local, remote) = (address(1, 1), address(2, 1));
    let mut replica_router = router(remote, local);
    let mut node = router(local, remote);
    let large = will(&vec![7; 1 << 20]);
    let mut clients = Vec::new();
    for number in 0..70 {
        let client = format!("c{number}");
        let subscriber = connect(&mut node, local, &mut replica_router, remote, &client);
        node.replicate_will(subscriber, &large, 0);
        clients.push(subscriber);
        deliver_wills(&mut node, local, &mut replica_router);
    }
    let counts = replica_router.counts();
    assert_eq!((counts.wills, counts.wills_not_kept), (63, 7));
    // Ending a session frees memory.
    node.leave(clients[0], topics::SessionRelease::default());
    let subscriber = connect(&mut node, local, &mut replica_router, remote, "late");
    node.replicate_will(subscriber, &large, 0);
    deliver_wills(&mut node, local, &mut replica_router);
    let counts = replica_router.counts();
    assert_eq!((counts.wills, counts.wills_not_kept), (63, 7));
}

const LOCAL: RouterAddress = RouterAddress {
    node: NodeId(1),
    incarnation: Incarnation(1),
    shard: 0,
};
const REMOTE: RouterAddress = RouterAddress {
    node: NodeId(2),
    ..LOCAL
};

/// A router, the router with the replica of its client's will, and the client.
fn with_replica() -> (MqttRouter, MqttRouter, SubscriberId) {
    let (mut node, mut replica_router) = (router(LOCAL, REMOTE), router(REMOTE, LOCAL));
    let subscriber = connect(&mut node, LOCAL, &mut replica_router, REMOTE, "c");
    node.replicate_will(subscriber, &will(b"x"), 0);
    deliver_wills(&mut node, LOCAL, &mut replica_router);
    (node, replica_router, subscriber)
}

/// The replica router reconnects and requests all wills.
fn request_wills(replica_router: &mut MqttRouter, node: &mut MqttRouter) {
    replica_router.set_routers(REMOTE, vec![]);
    replica_router.set_routers(REMOTE, vec![LOCAL]);
    while let Some((_, messages)) = replica_router.next_claim_messages() {
        node.handle_claim_messages(REMOTE, messages);
    }
}

/// A router that has lost its replicas requests them and receives them.
#[test]
fn requested_wills_are_sent_again() {
    let (mut node, mut replica_router, subscriber) = with_replica();
    replica_router.forget_routers(NodeId(1), Some(Incarnation(1)));
    assert_eq!(replica_router.counts().wills, 0);
    request_wills(&mut replica_router, &mut node);
    node.tick(at_seconds(1));
    let requests = std::iter::from_fn(|| node.take());
    let requests = requests.filter(|o| matches!(o, RouterOutput::ReplicateWill { session: 1 }));
    assert_eq!(requests.count(), 1);
    node.replicate_will(subscriber, &will(b"x"), 0);
    deliver_wills(&mut node, LOCAL, &mut replica_router);
    assert_eq!(replica_router.counts().wills, 1);
}

/// The client may disconnect between the request and the answer.
#[test]
fn will_of_disconnected_client_is_not_replicated_on_request() {
    let (mut node, mut replica_router, subscriber) = with_replica();
    request_wills(&mut replica_router, &mut node);
    node.leave(subscriber, topics::SessionRelease::default());
    deliver_wills(&mut node, LOCAL, &mut replica_router);
    assert_eq!(replica_router.counts().wills, 0);
}
