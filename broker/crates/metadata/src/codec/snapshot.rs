//! Snapshots of the tree: its whole content in an order that depends on nothing else.

use crate::tree::VhostRecord;
use crate::{
    BindingRecord, ExchangeRecord, Name, PolicyRecord, QueueRecord, QueueType, Tree, features,
};
use bytes::{Bytes, BytesMut};
use wire::{DecodeCause, Decoded, Reader, Wire, wire_struct};

/// Version of the encoding.
const VERSION: u8 = 1;
/// The name of the format in errors.
const FORMAT: &str = "metadata snapshot";

// Policies, exchanges, queues and bindings of a vhost follow separately.
wire_struct!(VhostRecord {
    name: Name,
    description: Name,
    tags: Vec<Name>,
    default_queue_type: Option<QueueType>,
    limits: Vec<(Name, i64)>,
    protected: bool,
    traced: bool,
});

impl Tree {
    /// Encodes the whole tree. Equal trees give equal bytes.
    pub fn snapshot(&self) -> Bytes {
        let mut out = BytesMut::new();
        VERSION.put(&mut out);
        self.applied.put(&mut out);
        self.cluster.put(&mut out);
        put_all(&mut out, self.nodes());
        let ended: Vec<_> = self.ended.iter().map(|(n, i)| (*n, *i)).collect();
        ended.put(&mut out);
        put_all(&mut out, self.users());
        put_all(&mut out, self.vhosts());
        put_all(&mut out, self.permissions());
        put_all(&mut out, self.topic_permissions());
        for vhost in self.vhosts() {
            put_all(&mut out, self.policies_of(&vhost.name));
            put_all(&mut out, self.exchanges(&vhost.name));
            put_all(&mut out, self.queues(&vhost.name));
            put_all(&mut out, self.bindings(&vhost.name));
        }
        let globals = self.globals.iter().map(|(n, v)| (n.clone(), v.clone()));
        globals.collect::<Vec<_>>().put(&mut out);
        let features: Vec<Name> = self.features.iter().cloned().collect();
        features.put(&mut out);
        let zones: Vec<_> = self.zones.iter().map(|(n, z)| (*n, z.clone())).collect();
        zones.put(&mut out);
        let forgotten: Vec<_> = self.forgotten.iter().map(|(n, i)| (*n, *i)).collect();
        forgotten.put(&mut out);
        let retained = self.all_retained();
        let retained = retained.map(|(v, t, m)| (v.clone(), (t.clone(), m.clone())));
        retained.collect::<Vec<_>>().put(&mut out);
        let placed: Vec<_> = self.placed.iter().map(|(n, i)| (*n, *i)).collect();
        placed.put(&mut out);
        let lost: Vec<_> = self.lost_queues().map(|(q, n)| (q, n.clone())).collect();
        lost.put(&mut out);
        if self.feature_enabled(features::CLIENT_ADDRESSES.name) {
            let addresses = self.client_addresses.iter();
            let addresses = addresses.map(|(node, list)| (*node, list.clone()));
            addresses.collect::<Vec<_>>().put(&mut out);
        }
        out.freeze()
    }

    /// Decodes a tree that [`Tree::snapshot`] encoded.
    pub fn restore(raw: &[u8]) -> Decoded<Tree> {
        let mut from = Reader::new(FORMAT, raw);
        let version = from.u8()?;
        if version != VERSION {
            return Err(from.error(DecodeCause::Version(version)));
        }
        let mut tree = Tree {
            applied: from.get()?,
            cluster: from.get()?,
            ..Tree::default()
        };
        for node in from.get::<Vec<_>>()? {
            tree.insert_node(node);
        }
        tree.ended = from.get::<Vec<_>>()?.into_iter().collect();
        for user in from.get::<Vec<_>>()? {
            tree.insert_user(user);
        }
        let vhosts: Vec<VhostRecord> = from.get()?;
        for vhost in &vhosts {
            tree.insert_vhost(vhost.clone());
        }
        for permission in from.get::<Vec<_>>()? {
            if !tree.insert_permission(permission) {
                return Err(from.error(DecodeCause::Inconsistent("user")));
            }
        }
        for permission in from.get::<Vec<_>>()? {
            if !tree.insert_topic_permission(permission) {
                return Err(from.error(DecodeCause::Inconsistent("user")));
            }
        }
        for vhost in &vhosts {
            restore_vhost(&mut tree, &vhost.name, &mut from)?;
        }
        tree.update_traces();
        tree.globals = from.get::<Vec<_>>()?.into_iter().collect();
        tree.features = from.get::<Vec<_>>()?.into_iter().collect();
        if tree.feature_enabled(features::CONSISTENT_HASH_TREE.name) {
            tree.use_hash_trees();
        }
        tree.zones = from.get::<Vec<_>>()?.into_iter().collect();
        tree.forgotten = from.get::<Vec<_>>()?.into_iter().collect();
        for (vhost, (topic, message)) in from.get::<Vec<(Name, (Name, Bytes))>>()? {
            if !tree.vhost_exists(&vhost) {
                return Err(from.error(DecodeCause::Inconsistent("vhost")));
            }
            tree.retained.set(&vhost, &topic, message);
        }
        tree.placed = from.get::<Vec<_>>()?.into_iter().collect();
        for (queue, node) in from.get::<Vec<(_, Name)>>()? {
            if tree.queue_by_id(queue).is_none() {
                return Err(from.error(DecodeCause::Inconsistent("queue")));
            }
            tree.lost.insert(queue, node);
        }
        if tree.feature_enabled(features::CLIENT_ADDRESSES.name) {
            tree.client_addresses = from.get::<Vec<_>>()?.into_iter().collect();
        }
        from.end()?;
        debug_assert!(tree.member_counts_match_queues());
        tree.events.clear();
        Ok(tree)
    }

    /// A hash of the snapshot, to compare replicas. Encodes the whole tree.
    pub fn digest(&self) -> u64 {
        // FNV-1a: the same on every machine and in every version.
        self.snapshot()
            .iter()
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
            })
    }
}

/// Appends a list whose length is known only at its end.
fn put_all<'a, T: Wire + 'a>(out: &mut BytesMut, items: impl IntoIterator<Item = &'a T>) {
    let items: Vec<&T> = items.into_iter().collect();
    wire::put_list(out, items.into_iter());
}

fn restore_vhost(tree: &mut Tree, vhost: &str, from: &mut Reader<'_>) -> Decoded<()> {
    let policies: Vec<PolicyRecord> = from.get()?;
    let exchanges: Vec<ExchangeRecord> = from.get()?;
    let queues: Vec<QueueRecord> = from.get()?;
    let bindings: Vec<BindingRecord> = from.get()?;
    let belongs = |name: &str| match name == vhost {
        true => Ok(()),
        false => Err(from.error(DecodeCause::Inconsistent("vhost"))),
    };
    for policy in policies {
        belongs(&policy.vhost)?;
        tree.insert_policy(policy);
    }
    for exchange in exchanges {
        belongs(&exchange.vhost)?;
        if !tree.insert_exchange(exchange) {
            return Err(from.error(DecodeCause::Inconsistent("type of exchange")));
        }
    }
    for queue in queues {
        belongs(&queue.vhost)?;
        tree.insert_queue(queue);
    }
    for binding in bindings {
        belongs(&binding.vhost)?;
        if !tree.insert_binding(binding) {
            return Err(from.error(DecodeCause::Inconsistent(
                "source or destination of a binding",
            )));
        }
    }
    Ok(())
}
