//! Connection admission of HTTP listeners, with eviction when the limit is reached.
//!
//! A connection is protected while it carries a request of an authenticated client (or, on
//! listeners without authentication, any complete request). All other connections are idle; the one
//! that has been idle longest is evicted to admit a new connection.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// One address may hold 1/`ADDRESS_DIVISOR` of all connections.
const ADDRESS_DIVISOR: usize = 2;

/// Prefix length that identifies an IPv6 client: one host usually controls a whole /64.
const IPV6_NETWORK: u32 = 64;

/// Limits the connections of all listeners that share it. Cloning increments a reference count.
#[derive(Clone)]
pub struct Gate(Arc<GateState>);

struct GateState {
    limit: usize,
    address_limit: usize,
    open: Mutex<OpenConnections>,
    /// Notified when a connection ends or becomes idle.
    changed: Notify,
}

#[derive(Default)]
struct OpenConnections {
    /// Sequence number of the next connection or idle period.
    sequence: u64,
    connections: BTreeMap<u64, GateEntry>,
}

struct GateEntry {
    address: IpAddr,
    /// Sequence number at which the connection became idle; None: it is protected.
    idle_since: Option<u64>,
    evict: Arc<Notify>,
}

impl OpenConnections {
    fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    /// Evicts the connection that has been idle longest, of one address or of all. Returns false if
    /// none is idle.
    fn evict(&mut self, of: Option<IpAddr>) -> bool {
        let candidates = self.connections.iter();
        let candidates = candidates.filter(|(_, entry)| of.is_none_or(|a| a == entry.address));
        let idle_since = candidates.filter_map(|(id, entry)| Some((entry.idle_since?, *id)));
        let Some((_, id)) = idle_since.min() else {
            return false;
        };
        if let Some(entry) = self.connections.remove(&id) {
            entry.evict.notify_one();
        }
        true
    }
}

impl Gate {
    /// Creates a gate for `limit` connections, at least one.
    pub fn new(limit: usize) -> Gate {
        let limit = limit.max(1);
        Gate(Arc::new(GateState {
            limit,
            address_limit: limit.div_ceil(ADDRESS_DIVISOR),
            open: Mutex::default(),
            changed: Notify::new(),
        }))
    }

    /// Admits a connection, evicting an idle one if the limit is reached. Returns None if the
    /// address has reached its share with protected connections. Waits while all connections are
    /// protected.
    pub(crate) async fn admit(&self, from: IpAddr) -> Option<ConnectionPermit> {
        let address = network(from);
        loop {
            let mut changed = pin!(self.0.changed.notified());
            // Registers before checking, so that no notification is missed.
            changed.as_mut().enable();
            {
                let mut open = self.0.open();
                let permits = open.connections.values();
                let permits = permits.filter(|entry| entry.address == address).count();
                if permits >= self.0.address_limit && self.0.limit > 1 && !open.evict(Some(address))
                {
                    return None;
                }
                if open.connections.len() < self.0.limit || open.evict(None) {
                    return Some(self.insert(&mut open, address));
                }
            }
            changed.await;
        }
    }

    fn insert(&self, open: &mut OpenConnections, address: IpAddr) -> ConnectionPermit {
        let (id, evict) = (open.next_sequence(), Arc::new(Notify::new()));
        let entry = GateEntry {
            address,
            idle_since: Some(id),
            evict: evict.clone(),
        };
        open.connections.insert(id, entry);
        ConnectionPermit {
            gate: self.clone(),
            id,
            evict,
        }
    }
}

impl GateState {
    fn open(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gate({} connections)", self.0.limit)
    }
}

/// An admitted connection. Dropping it frees its slot.
pub(crate) struct ConnectionPermit {
    gate: Gate,
    id: u64,
    evict: Arc<Notify>,
}

impl ConnectionPermit {
    /// Resolves when the connection is evicted.
    pub(crate) async fn evicted(&self) {
        self.evict.notified().await;
    }

    /// Protects the connection from eviction until [`ConnectionPermit::set_idle`].
    pub(crate) fn protect(&self) {
        if let Some(entry) = self.gate.0.open().connections.get_mut(&self.id) {
            entry.idle_since = None;
        }
    }

    /// Marks the connection as idle from now on.
    pub(crate) fn set_idle(&self) {
        let mut open = self.gate.0.open();
        let next_sequence = open.next_sequence();
        if let Some(entry) = open.connections.get_mut(&self.id) {
            entry.idle_since = Some(next_sequence);
            drop(open);
            self.gate.0.changed.notify_waiters();
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.gate.0.open().connections.remove(&self.id);
        self.gate.0.changed.notify_waiters();
    }
}

/// The address by which connections are counted: a /64 network for IPv6.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let bits = v6.to_bits() >> IPV6_NETWORK << IPV6_NETWORK;
            IpAddr::V6(Ipv6Addr::from_bits(bits))
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(n: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, n])
    }

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(test);
    }

    fn is_open(gate: &Gate, permit: &ConnectionPermit) -> bool {
        gate.0.open().connections.contains_key(&permit.id)
    }

    #[test]
    fn new_connection_evicts_longest_idle_connection() {
        run(async {
            let gate = Gate::new(4);
            let mut permits = Vec::new();
            for n in 0..4 {
                permits.push(gate.admit(from(n)).await.unwrap());
            }
            permits[0].protect();
            let newcomer = gate.admit(from(9)).await.unwrap();
            let open: Vec<bool> = permits
                .iter()
                .map(|permit| is_open(&gate, permit))
                .collect();
            assert_eq!(open, [true, false, true, true]);
            permits[1].evicted().await;
            // Dropping an evicted permit does not free another connection's slot.
            drop(permits.remove(1));
            assert_eq!(gate.0.open().connections.len(), 4);
            assert!(is_open(&gate, &newcomer));
        });
    }

    #[test]
    fn one_address_cannot_hold_more_than_its_share() {
        run(async {
            let gate = Gate::new(4);
            let other = gate.admit(from(2)).await.unwrap();
            let first = gate.admit(from(1)).await.unwrap();
            let second = gate.admit(from(1)).await.unwrap();
            let third = gate.admit(from(1)).await.unwrap();
            assert!(!is_open(&gate, &first) && is_open(&gate, &second));
            second.protect();
            third.protect();
            assert!(gate.admit(from(1)).await.is_none());
            assert!(is_open(&gate, &other), "others keep theirs");
            assert!(gate.admit(from(3)).await.is_some());
        });
    }

    #[test]
    fn ipv6_addresses_of_one_network_share_a_limit() {
        let of = |text: &str| network(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), from(1));
    }

    #[test]
    fn new_connection_waits_while_all_connections_are_protected() {
        run(async {
            let gate = Gate::new(1);
            let protected = gate.admit(from(1)).await.unwrap();
            protected.protect();
            let mut newcomer = pin!(gate.admit(from(2)));
            let is_pending = std::future::poll_fn(|cx| {
                std::task::Poll::Ready(newcomer.as_mut().poll(cx).is_pending())
            });
            assert!(is_pending.await);
            protected.set_idle();
            assert!(newcomer.await.is_some());
            assert!(!is_open(&gate, &protected));
        });
    }
}
