//! Which connections an HTTP listener keeps when more come than it may hold.
//!
//! A connection is protected while it carries a request whose sender is known (or, where nobody logs in, any complete
//! request). All others only wait for one, and the one that has waited longest makes room for a newcomer.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// One address may hold this part of all connections.
const ADDRESS_DIVISOR: usize = 2;

/// Bits of an IPv6 address that tell networks apart: one host usually has all addresses of a /64.
const IPV6_NETWORK: u32 = 64;

/// Admits connections to the listeners that share it. Cloning counts a reference.
#[derive(Clone)]
pub struct Gate(Arc<Shared>);

struct Shared {
    limit: usize,
    address_limit: usize,
    open: Mutex<Open>,
    /// A connection ended, or waits for a request again.
    changed: Notify,
}

#[derive(Default)]
struct Open {
    /// For the next connection, and for the next that begins to wait.
    next: u64,
    connections: BTreeMap<u64, Entry>,
}

struct Entry {
    address: IpAddr,
    /// Since when it waits for a request; None: it is protected.
    waiting: Option<u64>,
    shed: Arc<Notify>,
}

impl Open {
    fn stamp(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Removes the connection that has waited longest, of one address or of all. False: none waits.
    fn shed(&mut self, of: Option<IpAddr>) -> bool {
        let candidates = self.connections.iter();
        let candidates = candidates.filter(|(_, entry)| of.is_none_or(|a| a == entry.address));
        let waiting = candidates.filter_map(|(id, entry)| Some((entry.waiting?, *id)));
        let Some((_, id)) = waiting.min() else {
            return false;
        };
        if let Some(entry) = self.connections.remove(&id) {
            entry.shed.notify_one();
        }
        true
    }
}

impl Gate {
    /// For so many connections together, at least one.
    pub fn new(limit: usize) -> Gate {
        let limit = limit.max(1);
        Gate(Arc::new(Shared {
            limit,
            address_limit: limit.div_ceil(ADDRESS_DIVISOR),
            open: Mutex::default(),
            changed: Notify::new(),
        }))
    }

    /// Takes a connection in, and sheds one that waits where there is no room. None: its address holds its share with
    /// requests under way. Waits while all connections carry requests.
    pub(crate) async fn admit(&self, from: IpAddr) -> Option<ConnectionPermit> {
        let address = network(from);
        loop {
            let mut changed = pin!(self.0.changed.notified());
            // Before looking, or a change right after it would be missed.
            changed.as_mut().enable();
            {
                let mut open = self.0.open();
                let held = open.connections.values();
                let held = held.filter(|entry| entry.address == address).count();
                if held >= self.0.address_limit && self.0.limit > 1 && !open.shed(Some(address)) {
                    return None;
                }
                if open.connections.len() < self.0.limit || open.shed(None) {
                    return Some(self.enter(&mut open, address));
                }
            }
            changed.await;
        }
    }

    fn enter(&self, open: &mut Open, address: IpAddr) -> ConnectionPermit {
        let (id, shed) = (open.stamp(), Arc::new(Notify::new()));
        let entry = Entry {
            address,
            waiting: Some(id),
            shed: shed.clone(),
        };
        open.connections.insert(id, entry);
        ConnectionPermit {
            gate: self.clone(),
            id,
            shed,
        }
    }
}

impl Shared {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gate({} connections)", self.0.limit)
    }
}

/// An admitted connection. Dropping it makes room.
pub(crate) struct ConnectionPermit {
    gate: Gate,
    id: u64,
    shed: Arc<Notify>,
}

impl ConnectionPermit {
    /// Resolves when the connection has to make room for another.
    pub(crate) async fn is_shed(&self) {
        self.shed.notified().await;
    }

    /// It is not shed until [`ConnectionPermit::wait`].
    pub(crate) fn protect(&self) {
        if let Some(entry) = self.gate.0.open().connections.get_mut(&self.id) {
            entry.waiting = None;
        }
    }

    /// It waits for a request from now on.
    pub(crate) fn wait(&self) {
        let mut open = self.gate.0.open();
        let stamp = open.stamp();
        if let Some(entry) = open.connections.get_mut(&self.id) {
            entry.waiting = Some(stamp);
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

/// The address as shares count it.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(six) => {
            let bits = six.to_bits() >> IPV6_NETWORK << IPV6_NETWORK;
            IpAddr::V6(Ipv6Addr::from_bits(bits))
        }
        four => four,
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

    fn is_open(gate: &Gate, place: &ConnectionPermit) -> bool {
        gate.0.open().connections.contains_key(&place.id)
    }

    #[test]
    fn newcomer_replaces_the_connection_that_waited_longest() {
        run(async {
            let gate = Gate::new(4);
            let mut held = Vec::new();
            for n in 0..4 {
                held.push(gate.admit(from(n)).await.unwrap());
            }
            held[0].protect();
            let newcomer = gate.admit(from(9)).await.unwrap();
            let open: Vec<bool> = held.iter().map(|place| is_open(&gate, place)).collect();
            assert_eq!(open, [true, false, true, true]);
            held[1].is_shed().await;
            // A place that was shed frees nobody else's when it is dropped.
            drop(held.remove(1));
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
    fn addresses_of_one_ipv6_network_share() {
        let of = |text: &str| network(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), from(1));
    }

    #[test]
    fn newcomer_waits_while_all_connections_carry_requests() {
        run(async {
            let gate = Gate::new(1);
            let busy = gate.admit(from(1)).await.unwrap();
            busy.protect();
            let mut newcomer = pin!(gate.admit(from(2)));
            let early = std::future::poll_fn(|cx| {
                std::task::Poll::Ready(newcomer.as_mut().poll(cx).is_pending())
            });
            assert!(early.await);
            busy.wait();
            assert!(newcomer.await.is_some());
            assert!(!is_open(&gate, &busy));
        });
    }
}
