//! Encoding of the whole tree, in an order that depends only on its content, and decoding.

use super::{DecodeError, Decoded, Reader, Wire};
use crate::tree::VhostRecord;
use crate::{BindingRecord, ExchangeRecord, Name, PolicyRecord, QueueRecord, QueueType, Tree};
use bytes::{BufMut as _, Bytes, BytesMut};
use std::sync::Arc;

/// Written if there are lost queues, which this version added. Older versions in the cluster read version 5.
const VERSION: u8 = 6;
/// Written if a node has got queues and nothing newer is in the tree.
const FIFTH: u8 = 5;
/// Written if a vhost is traced and nothing newer is in the tree.
const FOURTH: u8 = 4;
/// Written if messages are retained and nothing newer is in the tree.
const THIRD: u8 = 3;
/// This version added everything after the contents of the vhosts.
const SECOND: u8 = 2;
/// Can still be read.
const FIRST: u8 = 1;

impl Wire for VhostRecord {
    fn put(&self, out: &mut BytesMut) {
        self.name.put(out);
        self.description.put(out);
        self.tags.put(out);
    }
    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        Ok(VhostRecord {
            name: from.get()?,
            description: from.get()?,
            tags: from.get()?,
            ..VhostRecord::default()
        })
    }
}

/// The settings of a vhost that the encoding of [`VhostRecord`] does not contain.
struct Settings {
    kind: Option<QueueType>,
    limits: Vec<(Name, i64)>,
    protected: bool,
}

impl Wire for Settings {
    fn put(&self, out: &mut BytesMut) {
        self.kind.put(out);
        self.limits.put(out);
        self.protected.put(out);
    }
    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        Ok(Settings {
            kind: from.get()?,
            limits: from.get()?,
            protected: from.get()?,
        })
    }
}

impl<T: Wire> Wire for Arc<T> {
    fn put(&self, out: &mut BytesMut) {
        T::put(self, out);
    }
    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        T::get(from).map(Arc::new)
    }
}

/// Writes a count and then the items.
fn put_all<'a, T: Wire + 'a>(out: &mut BytesMut, items: Vec<&'a T>) {
    out.put_u32(items.len() as u32);
    for item in items {
        item.put(out);
    }
}

impl Tree {
    /// Encodes the tree for a Raft snapshot. Equal trees give equal bytes.
    pub fn snapshot(&self) -> Bytes {
        let mut out = BytesMut::new();
        let has_retained = self.all_retained().next().is_some();
        let version = match (self.placed.is_empty(), self.traces, has_retained) {
            _ if !self.lost.is_empty() => VERSION,
            (false, _, _) => FIFTH,
            (true, true, _) => FOURTH,
            (true, false, true) => THIRD,
            (true, false, false) => SECOND,
        };
        out.put_u8(version);
        self.applied.put(&mut out);
        self.cluster.put(&mut out);
        put_all(&mut out, self.nodes().collect());
        let ended: Vec<_> = self.ended.iter().map(|(n, i)| (*n, *i)).collect();
        ended.put(&mut out);
        put_all(&mut out, self.users().collect());
        put_all(&mut out, self.vhosts());
        put_all(&mut out, self.permissions().collect());
        put_all(&mut out, self.topic_permissions().collect());
        for vhost in self.vhosts() {
            put_all(&mut out, self.policies_of(&vhost.name).collect());
            put_all(&mut out, self.exchanges(&vhost.name));
            put_all(&mut out, self.queues(&vhost.name));
            put_all(&mut out, self.bindings(&vhost.name));
        }
        for vhost in self.vhosts() {
            let settings = Settings {
                kind: vhost.default_queue_type,
                limits: vhost.limits.clone(),
                protected: vhost.protected,
            };
            settings.put(&mut out);
        }
        let globals = self.globals.iter().map(|(n, v)| (n.clone(), v.clone()));
        globals.collect::<Vec<_>>().put(&mut out);
        let features: Vec<Name> = self.features.iter().cloned().collect();
        features.put(&mut out);
        let zones: Vec<_> = self.zones.iter().map(|(n, z)| (*n, z.clone())).collect();
        zones.put(&mut out);
        let forgotten: Vec<_> = self.forgotten.iter().map(|(n, i)| (*n, *i)).collect();
        forgotten.put(&mut out);
        if version >= THIRD {
            let all = self.all_retained();
            let owned = all.map(|(v, t, m)| (v.clone(), (t.clone(), m.clone())));
            owned.collect::<Vec<_>>().put(&mut out);
        }
        if version >= FOURTH {
            let traced = self.vhosts().into_iter().filter(|v| v.traced);
            let names: Vec<Name> = traced.map(|v| v.name.clone()).collect();
            names.put(&mut out);
        }
        if version >= FIFTH {
            let placed: Vec<_> = self.placed.iter().map(|(n, i)| (*n, *i)).collect();
            placed.put(&mut out);
        }
        if version >= VERSION {
            let lost: Vec<_> = self.lost_queues().map(|(q, n)| (q, n.clone())).collect();
            lost.put(&mut out);
        }
        out.freeze()
    }

    /// Decodes the output of [`Tree::snapshot`].
    pub fn restore(raw: &[u8]) -> Decoded<Tree> {
        let mut from = Reader::new(raw);
        let version = from.u8()?;
        if !(FIRST..=VERSION).contains(&version) {
            return Err(DecodeError::Version(version));
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
                return Err(DecodeError::Inconsistent("user"));
            }
        }
        for permission in from.get::<Vec<_>>()? {
            if !tree.insert_topic_permission(permission) {
                return Err(DecodeError::Inconsistent("user"));
            }
        }
        for vhost in &vhosts {
            restore_vhost(&mut tree, &vhost.name, &mut from)?;
        }
        if version > FIRST {
            for vhost in &vhosts {
                let settings: Settings = from.get()?;
                let record = tree.vhosts.get_mut(&vhost.name).map(|v| &mut v.record);
                let record = record.ok_or(DecodeError::Inconsistent("vhost"))?;
                let record = Arc::make_mut(record);
                record.default_queue_type = settings.kind;
                record.limits = settings.limits;
                record.protected = settings.protected;
            }
            tree.globals = from.get::<Vec<_>>()?.into_iter().collect();
            tree.features = from.get::<Vec<_>>()?.into_iter().collect();
            tree.zones = from.get::<Vec<_>>()?.into_iter().collect();
            tree.forgotten = from.get::<Vec<_>>()?.into_iter().collect();
        }
        if version > SECOND {
            for (vhost, (topic, message)) in from.get::<Vec<(Name, (Name, Bytes))>>()? {
                if !tree.vhost_exists(&vhost) {
                    return Err(DecodeError::Inconsistent("vhost"));
                }
                tree.retained.set(&vhost, &topic, message);
            }
        }
        if version > THIRD {
            for vhost in from.get::<Vec<Name>>()? {
                let record = tree.vhosts.get_mut(&vhost).map(|v| &mut v.record);
                let record = record.ok_or(DecodeError::Inconsistent("vhost"))?;
                Arc::make_mut(record).traced = true;
            }
            tree.update_traces();
        }
        if version > FOURTH {
            tree.placed = from.get::<Vec<_>>()?.into_iter().collect();
        }
        if version > FIFTH {
            for (queue, node) in from.get::<Vec<(_, Name)>>()? {
                if tree.queue_by_id(queue).is_none() {
                    return Err(DecodeError::Inconsistent("queue"));
                }
                tree.lost.insert(queue, node);
            }
        }
        from.end()?;
        debug_assert!(tree.member_counts_are_right());
        tree.events.clear();
        Ok(tree)
    }

    /// A hash for comparing replicas: equal trees have equal digests. Encodes the whole tree.
    pub fn digest(&self) -> u64 {
        // FNV-1a: the same on every machine and in every version.
        self.snapshot()
            .iter()
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
            })
    }
}

fn restore_vhost(tree: &mut Tree, vhost: &str, from: &mut Reader<'_>) -> Decoded<()> {
    let policies: Vec<PolicyRecord> = from.get()?;
    let exchanges: Vec<ExchangeRecord> = from.get()?;
    let queues: Vec<QueueRecord> = from.get()?;
    let bindings: Vec<BindingRecord> = from.get()?;
    let check_vhost = |name: &str| {
        if name == vhost {
            Ok(())
        } else {
            Err(DecodeError::Inconsistent("vhost"))
        }
    };
    for policy in policies {
        check_vhost(&policy.vhost)?;
        tree.insert_policy(policy);
    }
    for exchange in exchanges {
        check_vhost(&exchange.vhost)?;
        if !tree.insert_exchange(exchange) {
            return Err(DecodeError::Inconsistent("type of exchange"));
        }
    }
    for queue in queues {
        check_vhost(&queue.vhost)?;
        tree.insert_queue(queue);
    }
    for binding in bindings {
        check_vhost(&binding.vhost)?;
        if !tree.insert_binding(binding) {
            return Err(DecodeError::Inconsistent(
                "source or destination of a binding",
            ));
        }
    }
    Ok(())
}
