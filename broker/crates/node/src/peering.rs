//! Links to other nodes, sans-I/O: which nodes to dial, which of two links to keep, which peers are
//! up, and cluster formation.
//!
//! The driver (`links`, or a test) owns sockets and time; it calls in and performs [`PeeringAction`]s.
//!
//! Both nodes of a pair may dial. Of two links, the one dialed by the node with the lower ID is
//! kept; a link of a newer incarnation replaces one of an older incarnation. A peer is up once both
//! sides have sent HELLO with the same cluster, and down after [`PeeringConfig::timeout`] of
//! silence, or [`LOST_GRACE`] after its link broke. A repeated [`PeeringAction::Up`] means that the link
//! was replaced: frames in flight may be lost.
//!
//! Both sides send their version and the feature flags that their cluster has enabled. A node whose
//! version does not support one of those flags gets no link: both sides refuse it before it takes
//! part in anything.

mod dialing;
mod flags;
mod shard_counts;

use crate::config::PeerAddress;
use crate::formation::{FormationDecision, FormationInput, PeerView, decide_formation};
use crate::identity::{ClusterRecord, Founder, id_text, random_nonzero};
use crate::wire::{Frame, Hello};
use dialing::{DialState, DialTarget};
use env::{Incarnation, NodeId, SeededRng, Time};
use metadata::features::{Version, VersionFacts};
use metadata::{Name, NodeRecord};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Time limit for establishing a connection, and for a link to send HELLO.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a peer with a broken link may take to reconnect before it counts as down.
pub const LOST_GRACE: Duration = Duration::from_secs(1);

/// Maximum number of accepted links without HELLO.
pub const MAX_UNIDENTIFIED_LINKS: usize = 64;

/// Maximum number of accepted links: a holder of a certificate could open any number under
/// different names.
pub const MAX_LINKS: usize = 2048;

/// Interval of DNS lookups of a name of several nodes, while this node has no cluster and while it
/// has one.
const EXPAND_INTERVAL: Duration = Duration::from_secs(2);
const EXPAND_INTERVAL_IN_CLUSTER: Duration = Duration::from_secs(30);

/// A connection of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

/// An address to dial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetId(pub u64);

/// Configuration of the links between nodes.
#[derive(Clone, Debug)]
pub struct PeeringConfig {
    /// Name of the cluster.
    pub cluster_name: String,
    /// The id of this node.
    pub node: NodeId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// Its name.
    pub name: String,
    /// host:port under which other nodes reach this one.
    pub address: String,
    /// The cluster that the node belongs to, if any.
    pub cluster: Option<ClusterRecord>,
    /// Configured addresses of other nodes.
    pub peers: Vec<PeerAddress>,
    /// 0: the number of `peers`. Otherwise `peers` may be a single DNS name of all nodes.
    pub initial_size: usize,
    /// Interval between heartbeats.
    pub heartbeat: Duration,
    /// Silence after which a link counts as broken.
    pub timeout: Duration,
    /// Number of shards of this node.
    pub shards: u16,
    /// The version of this node.
    pub version: Version,
    /// Seed of random delays.
    pub seed: u64,
}

/// An action for the owner of the peering.
#[derive(Clone, Debug, PartialEq)]
pub enum PeeringAction {
    /// Resolve the host and connect, then call [`Peering::dialled`] or [`Peering::dial_failed`].
    Dial {
        /// Number for the answer.
        target: TargetId,
        /// The address.
        address: PeerAddress,
    },
    /// Resolve all addresses of this name, then call [`Peering::expanded`].
    Expand(PeerAddress),
    /// Send a frame.
    Send {
        /// The link.
        link: LinkId,
        /// The frame.
        frame: Frame,
    },
    /// Send queued frames, then close. The peering has already removed the link.
    Close {
        /// The link.
        link: LinkId,
    },
    /// The version of an established peer, sent before it is up.
    PeerVersion {
        /// The peer.
        node: NodeId,
        /// Its version; None if it did not state one.
        version: Option<VersionFacts>,
    },
    /// A peer can be reached.
    Up {
        /// The peer.
        node: NodeId,
        /// Its incarnation.
        incarnation: Incarnation,
        /// Number of shards of this incarnation.
        shards: u16,
    },
    /// A peer cannot be reached any more.
    Down {
        /// The peer.
        node: NodeId,
    },
    /// A peer was established. The metadata tree knows whether it is new to the cluster.
    Join(NodeRecord),
    /// Store this durably, then call [`Peering::adopted`].
    Adopt(ClusterRecord),
    /// Store this durably: the cluster's feature flags in the record have changed.
    Store(ClusterRecord),
    /// This node must stop, for this reason.
    End(String),
}

struct PeeringLink {
    dialled: Option<TargetId>,
    hello: Option<Hello>,
    since: Time,
    last_activity: Time,
    established: bool,
}

struct PeerConnection {
    incarnation: Incarnation,
    link: Option<LinkId>,
    /// When the last link broke.
    lost: Time,
    up: bool,
}

/// All links of a node to others, as a state machine.
pub struct Peering {
    config: PeeringConfig,
    peers_hash: u64,
    rng: SeededRng,
    links: BTreeMap<LinkId, PeeringLink>,
    peers: BTreeMap<NodeId, PeerConnection>,
    targets: BTreeMap<TargetId, DialTarget>,
    next_target: u64,
    /// The DNS name of several nodes and the time of its next lookup; None while a lookup is
    /// pending.
    expand: Option<(PeerAddress, Option<Time>)>,
    expanded_once: bool,
    adopting: bool,
    stopped: bool,
    /// Feature flags of this node's cluster; None: not known yet.
    enabled: Option<Vec<Name>>,
    why: String,
    next_heartbeat: Time,
    actions: VecDeque<PeeringAction>,
    now: Time,
}

impl Peering {
    /// Without links yet.
    pub fn new(config: PeeringConfig) -> Peering {
        let configured = config.peers.clone();
        let mut this = Peering {
            peers_hash: peers_hash(&config.peers, config.initial_size),
            rng: SeededRng::new(config.seed),
            links: BTreeMap::new(),
            peers: BTreeMap::new(),
            targets: BTreeMap::new(),
            next_target: 0,
            expand: None,
            expanded_once: false,
            adopting: false,
            stopped: false,
            enabled: None,
            why: "starting".to_owned(),
            next_heartbeat: Time::ZERO,
            actions: VecDeque::new(),
            now: Time::ZERO,
            config,
        };
        let has_initial_size = this.config.initial_size > 1;
        match configured.as_slice() {
            [one] if has_initial_size => this.expand = Some((one.clone(), Some(Time::ZERO))),
            _ => {
                for address in configured {
                    this.add_target(address, dialing::TargetOrigin::Configured);
                }
            }
        }
        this
    }

    /// The next action.
    pub fn poll(&mut self) -> Option<PeeringAction> {
        self.actions.pop_front()
    }

    /// The reason why this node has no cluster; None if it has one.
    pub fn waiting(&self) -> Option<&str> {
        self.config.cluster.is_none().then_some(self.why.as_str())
    }

    /// The link to this node; None if it is not up.
    pub fn link_of(&self, node: NodeId) -> Option<LinkId> {
        let link = self.peers.get(&node)?.link?;
        self.links.get(&link).filter(|l| l.established)?;
        Some(link)
    }

    /// The peer of a link that may send data.
    pub fn established(&self, link: LinkId) -> Option<NodeId> {
        let link = self.links.get(&link).filter(|l| l.established)?;
        link.hello.as_ref().map(|h| h.node)
    }

    /// Returns true if the peer has sent its HELLO, so that full-size frames are allowed.
    pub fn identified(&self, link: LinkId) -> bool {
        self.links.get(&link).is_some_and(|l| l.hello.is_some())
    }

    /// The next time at which [`Peering::tick`] must be called.
    pub fn wake_at(&self) -> Time {
        let targets = self.targets.values().filter_map(DialTarget::due);
        let expand = self.expand.as_ref().and_then(|(_, at)| *at);
        let lost = self
            .peers
            .values()
            .filter(|p| p.up && p.link.is_none())
            .map(|p| p.lost + LOST_GRACE);
        targets
            .chain(expand)
            .chain(lost)
            .chain([self.next_heartbeat])
            .min()
            .unwrap_or(self.next_heartbeat)
    }

    /// Sends heartbeats, dials, and closes silent links.
    pub fn tick(&mut self, now: Time) {
        self.now = self.now.max(now);
        if self.stopped {
            return;
        }
        self.check_links();
        self.check_peers();
        self.dial_due();
        if self.now >= self.next_heartbeat {
            self.next_heartbeat = self.now + self.config.heartbeat;
            let identified_links = self.links.iter().filter(|(_, l)| l.hello.is_some());
            for (link, _) in identified_links {
                self.actions.push_back(PeeringAction::Send {
                    link: *link,
                    frame: Frame::Heartbeat,
                });
            }
        }
        self.try_form_or_join();
    }

    /// A connection was accepted. Returns false if there are too many links: close it.
    pub fn accepted(&mut self, link: LinkId) -> bool {
        let strangers = self.links.values().filter(|l| l.hello.is_none()).count();
        if strangers >= MAX_UNIDENTIFIED_LINKS || self.links.len() >= MAX_LINKS || self.stopped {
            return false;
        }
        self.open(link, None);
        true
    }

    /// A connection that [`PeeringAction::Dial`] asked for is open.
    pub fn dialled(&mut self, target: TargetId, link: LinkId) {
        if let Some(target) = self.targets.get_mut(&target) {
            target.state = DialState::Linked(link);
        }
        self.open(link, Some(target));
    }

    fn open(&mut self, link: LinkId, dialled: Option<TargetId>) {
        let entry = PeeringLink {
            dialled,
            hello: None,
            since: self.now,
            last_activity: self.now,
            established: false,
        };
        self.links.insert(link, entry);
        self.send_hello(link);
    }

    fn send_hello(&mut self, link: LinkId) {
        let hello = Hello {
            cluster_name: self.config.cluster_name.clone(),
            cluster: self.cluster(),
            node: self.config.node,
            incarnation: self.config.incarnation,
            name: self.config.name.clone(),
            address: self.config.address.clone(),
            peers_hash: self.peers_hash,
            shards: self.config.shards,
            version: Some(self.own_version()),
        };
        let frame = Frame::Hello(hello);
        self.actions.push_back(PeeringAction::Send { link, frame });
    }

    /// The cluster ID; 0: none.
    fn cluster(&self) -> u64 {
        self.config.cluster.as_ref().map_or(0, |c| c.id)
    }

    /// Bytes arrived, or the driver paused reading.
    pub fn note_activity(&mut self, link: LinkId) {
        if let Some(link) = self.links.get_mut(&link) {
            link.last_activity = self.now;
        }
    }

    /// Handles a frame other than data.
    pub fn frame(&mut self, link: LinkId, frame: Frame) {
        match frame {
            Frame::Hello(hello) => self.hello(link, hello),
            Frame::Welcome(record) => self.welcome(link, record),
            Frame::Bye => self.bye(link),
            Frame::Refused(why) => {
                tracing::warn!(event = "peer.refused_us", peer = %self.describe(link), why);
                self.why = format!("refused by {}: {why}", self.describe(link));
                self.drop_link(link);
            }
            Frame::Heartbeat | Frame::Data { .. } => {}
        }
    }

    fn hello(&mut self, link: LinkId, hello: Hello) {
        let Some(known) = self.links.get(&link) else {
            return;
        };
        let changed = known
            .hello
            .as_ref()
            .is_some_and(|h| (h.node, h.incarnation) != (hello.node, hello.incarnation));
        if changed {
            return self.refuse(link, "a link's node cannot change");
        }
        let resized = (known.hello.as_ref()).is_some_and(|h| h.shards != hello.shards);
        if resized {
            return self.refuse(link, "a link's number of shards cannot change");
        }
        // A node that is taken into a cluster says so on its links. It never leaves one.
        let left = known
            .hello
            .as_ref()
            .is_some_and(|h| h.cluster != 0 && h.cluster != hello.cluster);
        if left {
            return self.refuse(link, "a link's cluster cannot change");
        }
        if hello.cluster_name != self.config.cluster_name {
            let why = format!("cluster.name is {} here", self.config.cluster_name);
            return self.refuse(link, &why);
        }
        if hello.node == self.config.node {
            return self.handle_own_id(link, &hello);
        }
        if let Some(why) = self.shard_count_conflict(&hello) {
            self.why.clone_from(&why);
            return self.refuse(link, &why);
        }
        let ours = self.cluster();
        if ours != 0 && hello.cluster != 0 && ours != hello.cluster {
            let why = format!("this node belongs to cluster {}", id_text(ours));
            return self.refuse(link, &why);
        }
        if let Some(why) = self.peer_incompatibility(&hello) {
            return self.refuse(link, &why);
        }
        if let Some(why) = self.own_incompatibility(&hello) {
            return self.refuse_and_stop(link, why);
        }
        self.note_target(link, &hello);
        if !self.keep_link(link, &hello) {
            return self.drop_link(link);
        }
        if let Some(known) = self.links.get_mut(&link) {
            known.hello = Some(hello);
        }
        self.establish(link);
        self.try_form_or_join();
    }

    /// Another process uses this node's ID, or the node dialed itself.
    fn handle_own_id(&mut self, link: LinkId, hello: &Hello) {
        if hello.incarnation != self.config.incarnation {
            tracing::error!(
                event = "peer.same_id",
                address = hello.address,
                "another process runs on a copy of this node's data directory"
            );
        }
        self.note_target(link, hello);
        self.drop_link(link);
        self.try_form_or_join();
    }

    /// Decides between this link and another to the same node. Returns false if the other one is
    /// kept.
    fn keep_link(&mut self, link: LinkId, hello: &Hello) -> bool {
        let me = self.config.node;
        let lower_dialled = |l: &PeeringLink| l.dialled.is_some() == (me < hello.node);
        let new_preferred = self.links.get(&link).is_some_and(lower_dialled);
        let now = self.now;
        let peer = self.peers.entry(hello.node).or_insert(PeerConnection {
            incarnation: hello.incarnation,
            link: None,
            lost: now,
            up: false,
        });
        if hello.incarnation < peer.incarnation {
            return false;
        }
        let newer = hello.incarnation > peer.incarnation;
        let old = peer.link.filter(|l| *l != link);
        if let Some(old) = old {
            let old_preferred = self.links.get(&old).is_some_and(lower_dialled);
            if !newer && old_preferred && !new_preferred {
                return false;
            }
        }
        if newer {
            peer.incarnation = hello.incarnation;
            if std::mem::take(&mut peer.up) {
                self.actions
                    .push_back(PeeringAction::Down { node: hello.node });
            }
        }
        peer.link = Some(link);
        if let Some(old) = old {
            self.close_replaced(old);
        }
        true
    }

    /// Closes a link that was replaced.
    fn close_replaced(&mut self, old: LinkId) {
        if let Some(link) = self.links.remove(&old) {
            self.retry_target(link.dialled);
            self.actions.push_back(PeeringAction::Close { link: old });
        }
    }

    /// Both sides have sent HELLO: welcomes a peer without a cluster, and opens the link for data
    /// between members.
    fn establish(&mut self, link: LinkId) {
        let ours = self.cluster();
        let Some(known) = self.links.get_mut(&link) else {
            return;
        };
        let Some(hello) = known.hello.clone() else {
            return;
        };
        if ours == 0 || known.established {
            return;
        }
        if hello.cluster == 0 {
            return self.send_welcome(link, hello.node);
        }
        known.established = true;
        if let Some(peer) = self.peers.get_mut(&hello.node) {
            peer.up = true;
        }
        tracing::info!(
            event = "peer.up",
            name = hello.name,
            address = hello.address
        );
        self.actions.push_back(PeeringAction::PeerVersion {
            node: hello.node,
            version: hello.version.map(|version| version.facts),
        });
        self.actions.push_back(PeeringAction::Up {
            node: hello.node,
            incarnation: hello.incarnation,
            shards: hello.shards,
        });
        self.actions.push_back(PeeringAction::Join(NodeRecord {
            id: hello.node,
            name: hello.name.as_str().into(),
            address: hello.address.as_str().into(),
            voter: false,
            maintenance: false,
        }));
    }

    fn welcome(&mut self, link: LinkId, record: ClusterRecord) {
        if self.config.cluster.is_some() || self.adopting {
            return;
        }
        // The member's HELLO had the same cluster ID; only configured peers may admit this node.
        let welcomer_hello = self.links.get(&link).and_then(|l| l.hello.as_ref());
        if welcomer_hello.map(|h| h.cluster) != Some(record.id) {
            return self.refuse(link, "welcome to a cluster other than the sender's own");
        }
        match self.decide() {
            FormationDecision::Join { cluster } if cluster == record.id => self.adopt(record),
            FormationDecision::Wait { why } => self.why = why,
            _ => tracing::warn!(event = "peer.unexpected_welcome", peer = %self.describe(link)),
        }
    }

    fn adopt(&mut self, record: ClusterRecord) {
        self.adopting = true;
        self.actions.push_back(PeeringAction::Adopt(record));
    }

    /// The record is durable: this node belongs to the cluster and informs all peers.
    pub fn adopted(&mut self, record: ClusterRecord) {
        self.adopting = false;
        self.config.cluster = Some(record);
        let identified_links: Vec<LinkId> = self.links.keys().copied().collect();
        for link in identified_links {
            self.send_hello(link);
            let foreign = self
                .links
                .get(&link)
                .and_then(|l| l.hello.as_ref())
                .is_some_and(|h| h.cluster != 0 && h.cluster != self.cluster());
            if foreign {
                self.refuse(link, "this node belongs to another cluster now");
            } else {
                self.establish(link);
            }
        }
    }

    /// Forms or joins a cluster if possible.
    fn try_form_or_join(&mut self) {
        if self.config.cluster.is_some() || self.adopting || self.stopped {
            return;
        }
        match self.decide() {
            FormationDecision::Wait { why } => {
                if why != self.why {
                    tracing::info!(event = "cluster.waiting", why);
                }
                self.why = why;
            }
            FormationDecision::Form { founders, features } => {
                let id = random_nonzero(&mut self.rng);
                tracing::info!(
                    event = "cluster.forming",
                    cluster = id_text(id),
                    nodes = founders.len()
                );
                self.adopt(ClusterRecord {
                    id,
                    founders,
                    features,
                });
            }
            // WELCOME follows.
            FormationDecision::Join { cluster } => {
                self.why = format!("joining cluster {}", id_text(cluster))
            }
        }
    }

    fn decide(&self) -> FormationDecision {
        let configured = self.targets.values().filter(|t| t.is_founder_candidate());
        let mut peers: Vec<PeerView> = configured.map(|t| self.view_of(t)).collect();
        if self.expand.is_some() && !self.expanded_once {
            peers.push(PeerView::Silent {
                address: "the DNS name of the peers".to_owned(),
            });
        }
        let initial_size = match self.config.initial_size {
            0 => self.config.peers.len(),
            size => size,
        };
        decide_formation(&FormationInput {
            me: Founder {
                id: self.config.node,
                name: self.config.name.clone(),
                address: self.config.address.clone(),
            },
            peers_hash: self.peers_hash,
            features: self.config.version.facts().features,
            initial_size,
            peers,
        })
    }

    fn view_of(&self, target: &DialTarget) -> PeerView {
        if target.node == Some(self.config.node)
            || target.address.to_string() == self.config.address
        {
            return PeerView::ThisNode;
        }
        let hello = target
            .node
            .and_then(|node| self.peers.get(&node)?.link)
            .and_then(|link| self.links.get(&link)?.hello.as_ref());
        match hello {
            None => PeerView::Silent {
                address: target.address.to_string(),
            },
            Some(h) if h.cluster != 0 => PeerView::Member { cluster: h.cluster },
            Some(h) => PeerView::Unclustered {
                founder: Founder {
                    id: h.node,
                    name: h.name.clone(),
                    address: h.address.clone(),
                },
                peers_hash: h.peers_hash,
                features: h
                    .version
                    .as_ref()
                    .map_or_else(Vec::new, |t| t.facts.features.clone()),
            },
        }
    }

    fn refuse(&mut self, link: LinkId, why: &str) {
        tracing::warn!(event = "peer.refused", peer = %self.describe(link), why);
        let frame = Frame::Refused(why.to_owned());
        self.actions.push_back(PeeringAction::Send { link, frame });
        self.drop_link(link);
    }

    fn describe(&self, link: LinkId) -> String {
        let Some(link) = self.links.get(&link) else {
            return "unknown".to_owned();
        };
        let target = link.dialled.and_then(|t| self.targets.get(&t));
        match (&link.hello, target) {
            (Some(hello), _) => format!("{} ({})", hello.name, hello.address),
            (None, Some(target)) => target.address.to_string(),
            (None, None) => "an unidentified peer".to_owned(),
        }
    }

    fn bye(&mut self, link: LinkId) {
        let node = self.established(link);
        self.drop_link(link);
        if let Some(node) = node {
            self.down(node, "it stops");
        }
    }

    /// Closes and removes a link.
    fn drop_link(&mut self, link: LinkId) {
        self.actions.push_back(PeeringAction::Close { link });
        self.closed(link);
    }

    /// The connection was closed by either side.
    pub fn closed(&mut self, link: LinkId) {
        let Some(removed) = self.links.remove(&link) else {
            return;
        };
        self.retry_target(removed.dialled);
        let now = self.now;
        if let Some(peer) = removed.hello.and_then(|h| self.peers.get_mut(&h.node))
            && peer.link == Some(link)
        {
            peer.link = None;
            peer.lost = now;
        }
    }

    fn check_links(&mut self) {
        let (now, timeout) = (self.now, self.config.timeout);
        let is_expired = |l: &PeeringLink| match l.hello {
            None => now >= l.since + HANDSHAKE_TIMEOUT,
            Some(_) => now >= l.last_activity + timeout,
        };
        let is_expired: Vec<LinkId> = self
            .links
            .iter()
            .filter(|(_, l)| is_expired(l))
            .map(|(id, _)| *id)
            .collect();
        for link in is_expired {
            let node = self.established(link);
            self.drop_link(link);
            if let Some(node) = node {
                self.down(node, "silent");
            }
        }
    }

    fn check_peers(&mut self) {
        let now = self.now;
        let lost: Vec<NodeId> = self
            .peers
            .iter()
            .filter(|(_, p)| p.up && p.link.is_none() && now >= p.lost + LOST_GRACE)
            .map(|(node, _)| *node)
            .collect();
        for node in lost {
            self.down(node, "link lost");
        }
        // Peers that were never up are not remembered.
        self.peers.retain(|_, p| p.up || p.link.is_some());
    }

    fn down(&mut self, node: NodeId, why: &str) {
        if let Some(peer) = self.peers.get_mut(&node)
            && std::mem::take(&mut peer.up)
        {
            tracing::warn!(event = "peer.down", node = id_text(node.0), why);
            self.actions.push_back(PeeringAction::Down { node });
        }
    }

    /// Says BYE on all links; no more dialing.
    pub fn stop(&mut self) {
        self.stopped = true;
        let links: Vec<LinkId> = self.links.keys().copied().collect();
        for link in links {
            let frame = Frame::Bye;
            self.actions.push_back(PeeringAction::Send { link, frame });
            self.drop_link(link);
        }
    }
}

/// Fingerprint of a list of peers, independent of its order.
fn peers_hash(peers: &[PeerAddress], initial_size: usize) -> u64 {
    let mut sorted: Vec<String> = peers.iter().map(ToString::to_string).collect();
    sorted.sort();
    // FNV-1a; any stable function works.
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let size = initial_size.to_string();
    for byte in sorted.join(",").bytes().chain(*b"/").chain(size.bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash
}

#[cfg(test)]
mod tests;
