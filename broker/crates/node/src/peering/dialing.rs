//! Whom to dial and when.

use super::{Action, EXPAND_EVERY, EXPAND_SELDOM, LinkId, Peering, TargetId};
use crate::config::PeerAddress;
use crate::wire::Hello;
use env::{NodeId, Rng, Time};
use metadata::NodeRecord;
use std::net::SocketAddr;
use std::time::Duration;

/// First and longest pause between two attempts; in between it doubles.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// How soon a target that led to this node itself, or that has another link, is looked at again.
const RECHECK: Duration = Duration::from_secs(1);
const RECHECK_SELF: Duration = Duration::from_secs(30);

/// How long the driver may take to answer a dial before it counts as failed.
const DIAL_TIMEOUT: Duration = Duration::from_secs(20);

/// Targets at the most, whatever DNS or the metadata tree say.
const MAX_TARGETS: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// In `cluster.peers`.
    Configured,
    /// An address of the DNS name in `cluster.peers`.
    Expanded,
    /// From the metadata tree.
    Known,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TargetState {
    Waiting { until: Time },
    Dialing { since: Time },
    Linked(LinkId),
}

pub(super) struct Target {
    pub address: PeerAddress,
    pub origin: Origin,
    pub state: TargetState,
    /// Who was there last.
    pub node: Option<NodeId>,
    attempt: u32,
}

impl Target {
    /// Whether it is one of those that form the cluster.
    pub fn counts(&self) -> bool {
        self.origin != Origin::Known
    }

    pub fn due(&self) -> Option<Time> {
        match self.state {
            TargetState::Waiting { until } => Some(until),
            TargetState::Dialing { since } => Some(since + DIAL_TIMEOUT),
            TargetState::Linked(_) => None,
        }
    }
}

impl Peering {
    pub(super) fn add_target(&mut self, address: PeerAddress, origin: Origin) {
        if self.targets.len() >= MAX_TARGETS || self.targets.values().any(|t| t.address == address)
        {
            return;
        }
        self.next_target += 1;
        let target = Target {
            address,
            origin,
            state: TargetState::Waiting { until: self.now },
            node: None,
            attempt: 0,
        };
        self.targets.insert(TargetId(self.next_target), target);
    }

    /// The nodes of the cluster as the metadata tree has them: those that are not configured are dialled too.
    pub fn set_nodes(&mut self, nodes: &[NodeRecord]) {
        let addresses: Vec<PeerAddress> = nodes
            .iter()
            .filter(|n| n.id != self.config.node)
            .filter_map(|n| PeerAddress::parse(&n.address))
            .collect();
        self.targets.retain(|_, t| {
            t.origin != Origin::Known
                || addresses.contains(&t.address)
                || !matches!(t.state, TargetState::Waiting { .. })
        });
        for address in addresses {
            self.add_target(address, Origin::Known);
        }
    }

    /// All addresses of the DNS name of the peers; empty when the look-up failed.
    pub fn expanded(&mut self, addresses: &[SocketAddr]) {
        let again = if self.config.cluster.is_none() {
            EXPAND_EVERY
        } else {
            EXPAND_SELDOM
        };
        if let Some((_, at)) = &mut self.expand {
            *at = Some(self.now + again);
        }
        if addresses.is_empty() {
            return;
        }
        self.expanded_once = true;
        let found: Vec<PeerAddress> = addresses
            .iter()
            .map(|a| PeerAddress {
                host: a.ip().to_string(),
                port: a.port(),
            })
            .collect();
        // What the name no longer resolves to is gone, but for nodes that still answer.
        self.targets.retain(|_, t| {
            t.origin != Origin::Expanded
                || found.contains(&t.address)
                || matches!(t.state, TargetState::Linked(_))
        });
        for address in found {
            self.add_target(address, Origin::Expanded);
        }
    }

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
        // Half fixed, half random: nodes that lost each other at the same time do not stay in step.
        let half = pause / 2;
        let spread = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX);
        let jitter = Duration::from_nanos(self.rng.below(spread));
        target.state = TargetState::Waiting {
            until: self.now + half + jitter,
        };
    }

    pub(super) fn dial_due(&mut self) {
        let now = self.now;
        let me = self.config.node;
        for (id, target) in &mut self.targets {
            match target.state {
                TargetState::Waiting { until } if until <= now => {}
                TargetState::Dialing { since } if now >= since + DIAL_TIMEOUT => {}
                _ => continue,
            }
            let linked = target
                .node
                .and_then(|n| self.peers.get(&n))
                .is_some_and(|p| p.link.is_some());
            let myself =
                target.node == Some(me) || target.address.to_string() == self.config.address;
            if linked || myself {
                let pause = if myself { RECHECK_SELF } else { RECHECK };
                target.state = TargetState::Waiting { until: now + pause };
                target.node = if myself { Some(me) } else { target.node };
                continue;
            }
            target.state = TargetState::Dialing { since: now };
            self.actions.push_back(Action::Dial {
                target: *id,
                address: target.address.clone(),
            });
        }
        if let Some((address, at)) = &mut self.expand
            && at.is_some_and(|at| at <= now)
        {
            *at = None;
            self.actions.push_back(Action::Expand(address.clone()));
        }
    }

    /// Remembers which target a node is at: the one that was dialled, or the one it says it is reached under.
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
