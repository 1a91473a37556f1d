//! Dialing: which nodes, and when.

use super::{
    EXPAND_INTERVAL, EXPAND_INTERVAL_IN_CLUSTER, LinkId, Peering, PeeringAction, TargetId,
};
use crate::config::PeerAddress;
use crate::wire::Hello;
use env::{NodeId, Rng, Time};
use metadata::NodeRecord;
use std::net::SocketAddr;
use std::time::Duration;

/// First and maximum pause between two attempts; it doubles in between.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Pause before dialing a target again that is linked already, or that is this node itself.
const RECHECK: Duration = Duration::from_secs(1);
const RECHECK_SELF: Duration = Duration::from_secs(30);

/// How long the driver may take to complete a dial before it counts as failed.
const DIAL_TIMEOUT: Duration = Duration::from_secs(20);

/// Maximum number of targets, whatever DNS or the metadata tree contain.
const MAX_TARGETS: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TargetOrigin {
    /// In `cluster.peers`.
    Configured,
    /// An address of the DNS name in `cluster.peers`.
    Expanded,
    /// From the metadata tree.
    Known,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DialState {
    Waiting { until: Time },
    Dialing { since: Time },
    Linked(LinkId),
}

pub(super) struct DialTarget {
    pub address: PeerAddress,
    pub origin: TargetOrigin,
    pub state: DialState,
    /// The node last reached at this address.
    pub node: Option<NodeId>,
    attempt: u32,
}

impl DialTarget {
    /// Returns true if the target takes part in forming the cluster.
    pub(super) fn is_founder_candidate(&self) -> bool {
        self.origin != TargetOrigin::Known
    }

    pub(super) fn due(&self) -> Option<Time> {
        match self.state {
            DialState::Waiting { until } => Some(until),
            DialState::Dialing { since } => Some(since + DIAL_TIMEOUT),
            DialState::Linked(_) => None,
        }
    }
}

impl Peering {
    pub(super) fn add_target(&mut self, address: PeerAddress, origin: TargetOrigin) {
        if self.targets.len() >= MAX_TARGETS || self.targets.values().any(|t| t.address == address)
        {
            return;
        }
        self.next_target += 1;
        let target = DialTarget {
            address,
            origin,
            state: DialState::Waiting { until: self.now },
            node: None,
            attempt: 0,
        };
        self.targets.insert(TargetId(self.next_target), target);
    }

    /// Sets the nodes of the metadata tree: those that are not configured are dialed, too.
    pub fn set_nodes(&mut self, nodes: &[NodeRecord]) {
        let addresses: Vec<PeerAddress> = nodes
            .iter()
            .filter(|n| n.id != self.config.node)
            .filter_map(|n| PeerAddress::parse(&n.address))
            .collect();
        self.targets.retain(|_, t| {
            t.origin != TargetOrigin::Known
                || addresses.contains(&t.address)
                || !matches!(t.state, DialState::Waiting { .. })
        });
        for address in addresses {
            self.add_target(address, TargetOrigin::Known);
        }
    }

    /// The addresses of the peers' DNS name; empty if the lookup failed.
    pub fn expanded(&mut self, addresses: &[SocketAddr]) {
        let interval = if self.config.cluster.is_none() {
            EXPAND_INTERVAL
        } else {
            EXPAND_INTERVAL_IN_CLUSTER
        };
        if let Some((_, at)) = &mut self.expand {
            *at = Some(self.now + interval);
        }
        if addresses.is_empty() {
            return;
        }
        self.expanded_once = true;
        let resolved: Vec<PeerAddress> = addresses
            .iter()
            .map(|a| PeerAddress {
                host: a.ip().to_string(),
                port: a.port(),
            })
            .collect();
        // Addresses that are no longer in DNS are removed, except for linked nodes.
        self.targets.retain(|_, t| {
            t.origin != TargetOrigin::Expanded
                || resolved.contains(&t.address)
                || matches!(t.state, DialState::Linked(_))
        });
        for address in resolved {
            self.add_target(address, TargetOrigin::Expanded);
        }
    }

    /// A connection that [`PeeringAction::Dial`] asked for failed.
    pub fn dial_failed(&mut self, target: TargetId, why: &str) {
        if let Some(target) = self.targets.get(&target) {
            tracing::debug!(event = "peer.dial_failed", address = %target.address, why);
        }
        self.retry_target(Some(target));
    }

    /// Dials this target again after its pause.
    pub(super) fn retry_target(&mut self, target: Option<TargetId>) {
        let Some(target) = target.and_then(|t| self.targets.get_mut(&t)) else {
            return;
        };
        let pause = RETRY_FIRST
            .saturating_mul(1 << target.attempt.min(10))
            .min(RETRY_MAX);
        target.attempt = target.attempt.saturating_add(1);
        // Half fixed, half random: nodes that lost each other at the same time must not stay in
        // step.
        let half = pause / 2;
        let spread = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX);
        let jitter = Duration::from_nanos(self.rng.below(spread));
        target.state = DialState::Waiting {
            until: self.now + half + jitter,
        };
    }

    pub(super) fn dial_due(&mut self) {
        let now = self.now;
        let me = self.config.node;
        for (id, target) in &mut self.targets {
            match target.state {
                DialState::Waiting { until } if until <= now => {}
                DialState::Dialing { since } if now >= since + DIAL_TIMEOUT => {}
                _ => continue,
            }
            let is_linked = target
                .node
                .and_then(|n| self.peers.get(&n))
                .is_some_and(|p| p.link.is_some());
            let is_this_node =
                target.node == Some(me) || target.address.to_string() == self.config.address;
            if is_linked || is_this_node {
                let pause = if is_this_node { RECHECK_SELF } else { RECHECK };
                target.state = DialState::Waiting { until: now + pause };
                target.node = if is_this_node { Some(me) } else { target.node };
                continue;
            }
            target.state = DialState::Dialing { since: now };
            self.actions.push_back(PeeringAction::Dial {
                target: *id,
                address: target.address.clone(),
            });
        }
        if let Some((address, at)) = &mut self.expand
            && at.is_some_and(|at| at <= now)
        {
            *at = None;
            self.actions
                .push_back(PeeringAction::Expand(address.clone()));
        }
    }

    /// Remembers which node is behind a target: the dialed one, or the one with the address in its
    /// HELLO.
    pub(super) fn note_target(&mut self, link: LinkId, hello: &Hello) {
        let dialled = self.links.get(&link).and_then(|l| l.dialled);
        for (id, target) in &mut self.targets {
            let dialled = dialled == Some(*id);
            if dialled || target.address.to_string() == hello.address {
                target.node = Some(hello.node);
                target.attempt = 0;
            }
        }
    }
}
