//! This shard's router among those of the cluster: their addresses, and the frames between them.
//!
//! The first byte of a frame is its kind; integers are big-endian.

use super::state;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use env::planted::{self, Bug};
use env::{Incarnation, NodeId};
use session::{InvalidFrame, ServiceHost, ShardAddress};
use topics::{ClaimMessage, PeerMessage, RouterAddress, WillMessage};

/// Subscriptions and messages.
const TOPICS: u8 = 1;
/// Ownership of client ids.
const CLAIMS: u8 = 2;
/// Replicas of wills.
const WILLS: u8 = 3;

fn router_address(shard: ShardAddress) -> RouterAddress {
    RouterAddress {
        node: shard.node,
        incarnation: shard.incarnation,
        shard: shard.shard,
    }
}

fn shard_address(router: RouterAddress) -> ShardAddress {
    ShardAddress {
        node: router.node,
        incarnation: router.incarnation,
        shard: router.shard,
    }
}

/// All other live routers, in the same order on every node: those of the other shards here, and
/// those of all shards of nodes that are up.
fn other_routers(host: &dyn ServiceHost) -> Vec<RouterAddress> {
    let me = router_address(host.address());
    let others = host.nodes().into_iter();
    let others = others.filter(|other| other.is_up && other.node != me.node);
    let mut nodes: Vec<_> = others
        .map(|other| (other.node, other.incarnation, other.shards))
        .collect();
    nodes.push((me.node, me.incarnation, host.shards()));
    nodes.sort_unstable();
    let all = nodes.into_iter().flat_map(|(node, incarnation, shards)| {
        (0..shards).map(move |shard| RouterAddress {
            node,
            incarnation,
            shard,
        })
    });
    all.filter(|address| *address != me).collect()
}

/// A message between routers: the content of a frame, or passed as a value within a node.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum RouterMessage {
    Topics(PeerMessage),
    Claims(Vec<ClaimMessage>),
    Wills(Vec<WillMessage>),
}

impl RouterMessage {
    fn encode(&self, out: &mut BytesMut) {
        match self {
            RouterMessage::Topics(message) => {
                out.put_u8(TOPICS);
                message.encode(out);
            }
            RouterMessage::Claims(messages) => {
                out.put_u8(CLAIMS);
                messages.iter().for_each(|message| message.encode(out));
            }
            RouterMessage::Wills(messages) => {
                out.put_u8(WILLS);
                messages.iter().for_each(|message| message.encode(out));
            }
        }
    }

    fn decode(mut frame: Bytes) -> Option<RouterMessage> {
        Some(match frame.try_get_u8().ok()? {
            TOPICS => RouterMessage::Topics(PeerMessage::decode(frame).ok()?),
            CLAIMS => RouterMessage::Claims(ClaimMessage::decode_all(frame).ok()?),
            WILLS => RouterMessage::Wills(WillMessage::decode_all(frame).ok()?),
            _ => return None,
        })
    }
}

/// Handles a frame of another router.
pub(super) fn handle_frame(
    host: &mut dyn ServiceHost,
    from: ShardAddress,
    frame: Bytes,
) -> Result<(), InvalidFrame> {
    let message = RouterMessage::decode(frame).ok_or(InvalidFrame)?;
    handle_message(host, from, message);
    Ok(())
}

/// Handles a message of another router.
pub(super) fn handle_message(
    host: &mut dyn ServiceHost,
    from: ShardAddress,
    message: RouterMessage,
) {
    let from = router_address(from);
    if let Some(shard) = state(host) {
        let router = &mut shard.router;
        match message {
            RouterMessage::Topics(message) => router.handle_peer_message(from, message),
            RouterMessage::Claims(messages) => router.handle_claim_messages(from, messages),
            RouterMessage::Wills(messages) => router.handle_will_messages(from, messages),
        }
    }
}

/// Sends what the router has collected for others in a turn.
pub(super) fn flush(host: &mut dyn ServiceHost) {
    while let Some((to, message)) = next_message(host) {
        let (me, to) = (host.address(), shard_address(to));
        match (to.node, to.incarnation) == (me.node, me.incarnation) {
            true => host.pass(to.shard, Box::new(message)),
            false => host.send(to, &mut |out| message.encode(out)),
        }
    }
}

/// The next message for another router. Subscriptions precede wills and client ids.
fn next_message(host: &mut dyn ServiceHost) -> Option<(RouterAddress, RouterMessage)> {
    let router = &mut state(host)?.router;
    if let Some((to, message)) = router.next_peer_message() {
        return Some((to, RouterMessage::Topics(message)));
    }
    if let Some((to, messages)) = router.next_will_messages() {
        return Some((to, RouterMessage::Wills(messages)));
    }
    let (to, messages) = router.next_claim_messages()?;
    Some((to, RouterMessage::Claims(messages)))
}

/// Tells the router which others are live: the ownership of client ids is distributed over them.
fn set_routers(host: &mut dyn ServiceHost, others: Vec<RouterAddress>) {
    let me = router_address(host.address());
    if let Some(shard) = state(host) {
        shard.router.set_routers(me, others);
        shard.router.set_wills(true);
        shard.router.set_handover(true);
    }
}

/// Routers may have come or gone.
fn update_routers(host: &mut dyn ServiceHost) {
    let others = other_routers(host);
    set_routers(host, others);
    update_majority(host);
}

/// The nodes of the cluster, or those that are up, may have changed.
pub(super) fn update_majority(host: &mut dyn ServiceHost) {
    let majority = is_with_majority(host);
    if let Some(shard) = state(host) {
        shard.router.set_majority(majority);
    }
}

/// Returns true if more than half of the nodes that vote on metadata are up, including this one.
fn is_with_majority(host: &dyn ServiceHost) -> bool {
    let me = host.address().node;
    let voters = host.tree().nodes().filter(|node| node.voter);
    let (mut all, mut up) = (0, 0);
    for node in voters {
        all += 1;
        up += usize::from(node.id == me || host.is_up(node.id));
    }
    up * 2 > all
}

/// A node is up: its routers may have missed messages, or belong to a new incarnation.
pub(super) fn node_up(host: &mut dyn ServiceHost, node: NodeId, incarnation: Incarnation) {
    if !planted::is(Bug::DeadHubKept)
        && let Some(shard) = state(host)
    {
        shard.router.forget_routers(node, Some(incarnation));
    }
    // Messages may be lost even if the link was down for too short a time to be noticed: a call
    // without the node tells the router that it was away.
    let mut others = other_routers(host);
    others.retain(|address| address.node != node);
    set_routers(host, others);
    update_routers(host);
    for address in other_routers(host) {
        if address.node == node
            && let Some(shard) = state(host)
        {
            shard.router.router_up(address);
        }
    }
}

/// The link to a node is broken.
pub(super) fn node_down(host: &mut dyn ServiceHost, node: NodeId) {
    if let Some(shard) = state(host) {
        shard.router.node_down(node);
    }
    update_routers(host);
}

/// Nodes may have left the cluster for good.
pub(super) fn forget_removed_nodes(host: &mut dyn ServiceHost) {
    let known = host.nodes().into_iter().map(|node| node.node);
    let removed: Vec<NodeId> = known.filter(|n| host.tree().is_forgotten(*n)).collect();
    for node in removed {
        if let Some(shard) = state(host) {
            shard.router.forget_routers(node, None);
        }
    }
}

/// Routers may have come, or the cluster may have begun to understand their messages.
pub(super) fn meet_routers(host: &mut dyn ServiceHost) {
    for address in other_routers(host) {
        if let Some(shard) = state(host) {
            shard.router.router_up(address);
        }
    }
    update_routers(host);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use topics::PeerState;

    #[test]
    fn message_roundtrips_and_a_cut_frame_is_refused() {
        let state = PeerState {
            ask: true,
            routes: 7,
            ..PeerState::default()
        };
        let message = RouterMessage::Topics(PeerMessage::State(state));
        let mut out = BytesMut::new();
        message.encode(&mut out);
        let frame = out.freeze();
        assert_eq!(RouterMessage::decode(frame.clone()), Some(message));
        for cut in 0..frame.len() {
            assert_eq!(RouterMessage::decode(frame.slice(..cut)), None);
        }
    }

    proptest! {
        #[test]
        fn decode_never_panics(kind in 0u8..5, rest in proptest::collection::vec(any::<u8>(), 0..120)) {
            let mut frame = vec![kind];
            frame.extend(rest);
            let _ = RouterMessage::decode(Bytes::from(frame));
        }
    }

    golden::variant_names! {
        fn message_name(RouterMessage) {
            RouterMessage::Topics(_) => "topics",
            RouterMessage::Claims(_) => "claims",
            RouterMessage::Wills(_) => "wills",
        }
    }

    /// The messages in the frames have golden files in `topics`.
    #[test]
    fn frames_of_version_0_2_are_decoded() {
        let claim = |verb| ClaimMessage {
            id: topics::ClientId {
                vhost: "/".into(),
                client: "client".into(),
            },
            verb,
        };
        let claims = vec![
            claim(topics::ClaimVerb::Lost { session: 300 }),
            claim(topics::ClaimVerb::Hold { stamp: 5 }),
        ];
        let drops = [300, 5].map(|number| WillMessage::Drop { number });
        let all = [
            RouterMessage::Topics(PeerMessage::State(PeerState::default())),
            RouterMessage::Claims(claims),
            RouterMessage::Wills(drops.into()),
        ];
        let encode = |message: &RouterMessage| {
            let mut out = BytesMut::new();
            message.encode(&mut out);
            out.to_vec()
        };
        let decode =
            |frame: &[u8]| RouterMessage::decode(Bytes::copy_from_slice(frame)).ok_or("malformed");
        golden::verify(env!("CARGO_MANIFEST_DIR"), "0.2/router-frames", |files| {
            files.check_enum(&all, message_name, encode, decode);
        });
    }
}
