//! Quotas of stored bytes (`max-stored-bytes` of virtual hosts): while the queues of a virtual host store more than its quota, its
//! publishers are blocked, as by an alarm. Each shard measures the queues that it leads and announces the sums to all others; each
//! decides by the numbers it knows. See `docs/decisions/0027-quotas.md`.

pub(crate) mod frame;

use crate::context::Context;
use crate::frame::Frame;
use crate::peers::Peers;
use control::StoredBytesFacts;
use env::{NodeId, Time};
use frame::{MAX_VHOSTS, StoredBytesFrame};
use metadata::{MAX_STORED_BYTES, Name, Tree};
use std::collections::BTreeMap;
use std::time::Duration;

/// A shard measures its queues at most this often.
const INTERVAL: Duration = Duration::from_millis(200);
/// A shard announces a change of more than the quota divided by this.
const PRECISION: u64 = 256;
/// Virtual hosts remembered of one other shard; what it announces of more is not counted.
const MAX_NAMES: usize = 100_000;

/// The text for `connection.blocked`.
pub(crate) const BLOCKED: &str = "stored bytes of the virtual host at their limit";

/// A virtual host with a quota.
#[derive(Debug, Default)]
struct Quota {
    bytes: u64,
    /// What the queues that this shard leads store.
    here: u64,
    /// The number that other shards know of this one. `None`: they know none, or one from before a change of the quota.
    announced: Option<u64>,
    is_exceeded: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct StoredBytesQuotas {
    quotas: BTreeMap<Name, Quota>,
    /// What other shards store, by shard, in virtual hosts with a quota.
    elsewhere: BTreeMap<(NodeId, u16), BTreeMap<Name, u64>>,
    /// When the queues are to be measured. `None`: there is no quota.
    measure_at: Option<Time>,
    /// A virtual host has come to its quota, or is below it again, since [`Self::take_changes`].
    has_changed: bool,
}

impl StoredBytesQuotas {
    /// The quota of a virtual host may have changed.
    pub(crate) fn refresh(&mut self, now: Time, tree: &Tree, vhost: &Name) {
        let limit = tree.vhost(vhost).and_then(|v| v.limit(MAX_STORED_BYTES));
        match limit {
            Some(bytes) => {
                let quota = self.quotas.entry(vhost.clone()).or_default();
                quota.bytes = bytes;
                // Others may know an old number or none.
                quota.announced = None;
                self.measure_at = Some(now);
            }
            None => {
                if let Some(quota) = self.quotas.remove(vhost) {
                    self.has_changed |= quota.is_exceeded;
                    self.measure_at = Some(now);
                }
            }
        }
    }

    /// The tree was replaced.
    pub(crate) fn refresh_all(&mut self, now: Time, tree: &Tree) {
        let mut names: Vec<Name> = self.quotas.keys().cloned().collect();
        names.extend(tree.vhosts().into_iter().map(|vhost| vhost.name.clone()));
        for name in names {
            self.refresh(now, tree, &name);
        }
    }

    /// The virtual host is gone.
    pub(crate) fn forget(&mut self, vhost: &str) {
        if let Some(quota) = self.quotas.remove(vhost) {
            self.has_changed |= quota.is_exceeded;
        }
        for known in self.elsewhere.values_mut() {
            known.remove(vhost);
        }
    }

    /// The node is gone, or out of reach; or it is back, and announces its numbers anew.
    pub(crate) fn forget_node(&mut self, node: NodeId) {
        self.elsewhere.retain(|(known, _), _| *known != node);
        self.decide_all();
    }

    pub(crate) fn wake_at(&self) -> Option<Time> {
        self.measure_at
    }

    /// Returns true if the queues are to be measured now.
    #[inline]
    pub(crate) fn is_due(&self, now: Time) -> bool {
        self.measure_at.is_some_and(|at| at <= now)
    }

    /// Compares the quotas with new measurements of the queues that this shard leads, and announces sums that changed.
    /// `stored`: the virtual host of each queue, and its bytes.
    pub(crate) fn measured<'a>(
        &mut self,
        ctx: &mut Context,
        peers: &Peers,
        stored: impl Iterator<Item = (&'a Name, u64)>,
    ) {
        for quota in self.quotas.values_mut() {
            quota.here = 0;
        }
        for (vhost, bytes) in stored {
            if let Some(quota) = self.quotas.get_mut(vhost) {
                quota.here = quota.here.saturating_add(bytes);
            }
        }
        self.measure_at = (!self.quotas.is_empty()).then(|| ctx.now() + INTERVAL);
        self.decide_all();
        let mut changed = Vec::new();
        for (vhost, quota) in &mut self.quotas {
            let step = quota.bytes / PRECISION;
            let is_known = |known: u64| match quota.here {
                0 => known == 0,
                here => known.abs_diff(here) <= step,
            };
            if !quota.announced.is_some_and(is_known) {
                quota.announced = Some(quota.here);
                changed.push((vhost.clone(), quota.here));
            }
        }
        let me = ctx.node();
        for frame in frames(ctx.shard(), &changed) {
            ctx.send_to_other_shards(&frame);
            for (peer, shards) in peers.shards_up(me) {
                ctx.send_to_shards_of_peer(peer, shards, &frame);
            }
        }
    }

    /// Announces all numbers to the shards of a node that knows none.
    pub(crate) fn send_to(&self, ctx: &mut Context, (node, shards): (NodeId, u16)) {
        let known = |(vhost, quota): (&Name, &Quota)| Some((vhost.clone(), quota.announced?));
        let all: Vec<(Name, u64)> = self.quotas.iter().filter_map(known).collect();
        for frame in frames(ctx.shard(), &all) {
            ctx.send_to_shards_of_peer(node, shards, &frame);
        }
    }

    /// Another shard announces what it stores.
    pub(crate) fn hear(&mut self, from: NodeId, frame: StoredBytesFrame) {
        let known = self.elsewhere.entry((from, frame.shard)).or_default();
        for (vhost, bytes) in frame.vhosts {
            if bytes == 0 {
                known.remove(&vhost);
            } else if known.len() < MAX_NAMES || known.contains_key(&vhost) {
                known.insert(vhost, bytes);
            }
        }
        self.decide_all();
    }

    /// Compares all virtual hosts with their quotas.
    fn decide_all(&mut self) {
        for (vhost, quota) in &mut self.quotas {
            let stored = sum(quota.here, &self.elsewhere, vhost);
            let is_exceeded = stored >= quota.bytes;
            if is_exceeded == quota.is_exceeded {
                continue;
            }
            quota.is_exceeded = is_exceeded;
            self.has_changed = true;
            let limit = quota.bytes;
            match is_exceeded {
                true => {
                    tracing::warn!(
                        event = "vhost_publishers_blocked",
                        vhost = &**vhost,
                        stored,
                        limit
                    );
                }
                false => {
                    tracing::info!(
                        event = "vhost_publishers_unblocked",
                        vhost = &**vhost,
                        stored,
                        limit
                    );
                }
            }
        }
    }

    /// Returns true if a virtual host has come to its quota, or is below it again, since the last call.
    #[inline]
    pub(crate) fn take_changes(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    /// The virtual hosts with a quota, and what they store.
    pub(crate) fn facts(&self) -> BTreeMap<String, StoredBytesFacts> {
        let facts = |(vhost, quota): (&Name, &Quota)| {
            let facts = StoredBytesFacts {
                stored: sum(quota.here, &self.elsewhere, vhost),
                limit: quota.bytes,
                is_blocked: quota.is_exceeded,
            };
            (vhost.to_string(), facts)
        };
        self.quotas.iter().map(facts).collect()
    }

    /// Why the publishers of a virtual host are blocked.
    pub(crate) fn blocked(&self, vhost: &str) -> Option<&'static str> {
        self.quotas.get(vhost)?.is_exceeded.then_some(BLOCKED)
    }
}

/// Bytes that the queues of a virtual host store: `here`, and in all other shards.
fn sum(here: u64, elsewhere: &BTreeMap<(NodeId, u16), BTreeMap<Name, u64>>, vhost: &str) -> u64 {
    let elsewhere = elsewhere.values().filter_map(|known| known.get(vhost));
    elsewhere.fold(here, |sum, bytes| sum.saturating_add(*bytes))
}

fn frames(shard: u16, vhosts: &[(Name, u64)]) -> Vec<Frame> {
    let frame = |part: &[(Name, u64)]| {
        Frame::StoredBytes(StoredBytesFrame {
            shard,
            vhosts: part.to_vec(),
        })
    };
    vhosts.chunks(MAX_VHOSTS).map(frame).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// Quotas with a virtual host "v" that may store 1000 bytes.
    fn quotas() -> StoredBytesQuotas {
        let quota = Quota {
            bytes: 1000,
            ..Quota::default()
        };
        StoredBytesQuotas {
            quotas: BTreeMap::from([("v".into(), quota)]),
            ..StoredBytesQuotas::default()
        }
    }

    fn frame(shard: u16, vhosts: &[(&str, u64)]) -> StoredBytesFrame {
        let vhosts = vhosts
            .iter()
            .map(|(name, bytes)| (Arc::from(*name), *bytes));
        StoredBytesFrame {
            shard,
            vhosts: vhosts.collect(),
        }
    }

    #[test]
    fn publishers_are_blocked_by_what_all_shards_store_together() {
        let mut quotas = quotas();
        let (a, b) = (NodeId(1), NodeId(2));
        quotas.hear(a, frame(0, &[("v", 400), ("w", 5000)]));
        quotas.hear(a, frame(1, &[("v", 300)]));
        assert_eq!((quotas.take_changes(), quotas.blocked("v")), (false, None));
        quotas.hear(b, frame(0, &[("v", 300)]));
        assert_eq!(
            (quotas.take_changes(), quotas.blocked("v")),
            (true, Some(BLOCKED))
        );
        assert_eq!(quotas.blocked("w"), None, "it has no quota");
        quotas.hear(a, frame(1, &[("v", 0)]));
        assert_eq!((quotas.take_changes(), quotas.blocked("v")), (true, None));
        quotas.hear(a, frame(1, &[("v", u64::MAX)]));
        assert_eq!(quotas.blocked("v"), Some(BLOCKED));
        quotas.forget_node(a);
        assert_eq!((quotas.take_changes(), quotas.blocked("v")), (true, None));
    }

    #[test]
    fn virtual_host_that_is_gone_blocks_nobody() {
        let mut quotas = quotas();
        quotas.hear(NodeId(1), frame(0, &[("v", 1000)]));
        assert_eq!(
            (quotas.take_changes(), quotas.blocked("v")),
            (true, Some(BLOCKED))
        );
        quotas.forget("v");
        assert_eq!((quotas.take_changes(), quotas.blocked("v")), (true, None));
        assert!(quotas.elsewhere.values().all(BTreeMap::is_empty));
    }

    #[test]
    fn no_more_names_are_remembered_than_the_limit() {
        let mut quotas = quotas();
        for n in 0..MAX_NAMES as u64 + 5 {
            quotas.hear(NodeId(1), frame(0, &[(&n.to_string(), 1)]));
        }
        assert_eq!(quotas.elsewhere[&(NodeId(1), 0)].len(), MAX_NAMES);
    }
}
