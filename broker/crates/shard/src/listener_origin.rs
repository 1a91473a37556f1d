//! Where connections come from, in few bytes for each of them.

use auth::TlsPeer;
use session::{ConnectionInfo, ProtocolId};
use slots::Slab;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// A client's address in 6 bytes. Of IPv6 the zone is left out: it says nothing to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddress {
    /// Of IPv6 its number in [`ListenerOrigins`].
    ip: [u8; 4],
    port: u16,
}

/// What connections through one listener have in common.
#[derive(Debug)]
pub(crate) struct ListenerOrigin {
    pub protocol: ProtocolId,
    pub local: SocketAddr,
    pub tls: Option<Arc<TlsPeer>>,
    /// Of the clients.
    is_v6: bool,
    connections: u32,
}

impl ListenerOrigin {
    fn is_of(&self, info: &ConnectionInfo) -> bool {
        let same_tls = match (&self.tls, &info.tls) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => false,
        };
        same_tls
            && self.protocol == info.protocol
            && self.local == info.local
            && self.is_v6 == info.peer.is_ipv6()
    }
}

/// Those that connections have come through.
#[derive(Default)]
pub struct ListenerOrigins {
    all: Slab<ListenerOrigin>,
    /// Those of them that were used last.
    last: Vec<u32>,
    oldest: usize,
    v6: Slab<[u8; 16]>,
}

/// Listeners, by the addresses that clients reach them at.
const MOST: usize = 16;

impl ListenerOrigins {
    /// One more connection: the number of its entrance, and its client.
    pub fn enter(&mut self, info: &ConnectionInfo) -> (u32, PeerAddress) {
        let listener_origin = self.of(info);
        if let Some(known) = self.all.get_mut(listener_origin as usize) {
            known.connections += 1;
        }
        let ip = match info.peer.ip() {
            IpAddr::V4(v4) => v4.octets(),
            // Fewer than 2^32 addresses fit in any memory.
            IpAddr::V6(v6) => (self.v6.insert(v6.octets()) as u32).to_ne_bytes(),
        };
        let port = info.peer.port();
        (listener_origin, PeerAddress { ip, port })
    }

    fn of(&mut self, info: &ConnectionInfo) -> u32 {
        let is_it = |at: &&u32| self.all.get(**at as usize).is_some_and(|e| e.is_of(info));
        if let Some(known) = self.last.iter().find(is_it) {
            return *known;
        }
        let new = self.all.insert(ListenerOrigin {
            protocol: info.protocol,
            local: info.local,
            tls: info.tls.clone(),
            is_v6: info.peer.is_ipv6(),
            connections: 0,
        }) as u32;
        if self.last.len() < MOST {
            self.last.push(new);
        } else if let Some(place) = self.last.get_mut(self.oldest) {
            *place = new;
            self.oldest = (self.oldest + 1) % MOST;
        }
        new
    }

    /// The connection is gone.
    pub fn leave(&mut self, listener_origin: u32, peer: PeerAddress) {
        let Some(known) = self.all.get_mut(listener_origin as usize) else {
            return;
        };
        known.connections -= 1;
        let (is_v6, unused) = (known.is_v6, known.connections == 0);
        if is_v6 {
            self.v6.remove(u32::from_ne_bytes(peer.ip) as usize);
        }
        if unused {
            self.all.remove(listener_origin as usize);
            self.last.retain(|at| *at != listener_origin);
            self.oldest = 0;
        }
    }
}

/// Where one connection comes from.
#[derive(Clone, Copy)]
pub struct Origin<'a> {
    entrances: Option<&'a ListenerOrigins>,
    listener_origin: u32,
    peer: PeerAddress,
}

impl<'a> Origin<'a> {
    /// The node itself.
    pub const HERE: Origin<'static> = Origin {
        entrances: None,
        listener_origin: 0,
        peer: PeerAddress {
            ip: [127, 0, 0, 1],
            port: 0,
        },
    };

    pub fn new(
        entrances: &'a ListenerOrigins,
        listener_origin: u32,
        peer: PeerAddress,
    ) -> Origin<'a> {
        Origin {
            entrances: Some(entrances),
            listener_origin,
            peer,
        }
    }

    fn listener_origin(&self) -> Option<&ListenerOrigin> {
        self.entrances?.all.get(self.listener_origin as usize)
    }

    pub fn has_tls(&self) -> bool {
        self.listener_origin().is_some_and(|e| e.tls.is_some())
    }

    pub fn local(&self) -> SocketAddr {
        let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        self.listener_origin().map_or(here, |e| e.local)
    }

    pub fn peer(&self) -> SocketAddr {
        let PeerAddress { ip, port } = self.peer;
        let v6 = self
            .entrances
            .filter(|_| self.listener_origin().is_some_and(|e| e.is_v6));
        let Some(entrances) = v6 else {
            return SocketAddr::from((ip, port));
        };
        let v6 = entrances.v6.get(u32::from_ne_bytes(ip) as usize);
        SocketAddr::from((v6.copied().unwrap_or_default(), port))
    }

    /// As connections are called in listings and logs.
    pub fn name(&self) -> String {
        format!("{} -> {}", self.peer(), self.local())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(peer: &str, port: u16, tls: Option<&Arc<TlsPeer>>) -> ConnectionInfo {
        ConnectionInfo {
            protocol: ProtocolId(1),
            peer: peer.parse().expect("an address"),
            local: SocketAddr::from(([10, 0, 0, 2], port)),
            tls: tls.cloned(),
        }
    }

    #[test]
    fn addresses_are_the_same_again() {
        let mut entrances = ListenerOrigins::default();
        let mut inside = Vec::new();
        let peers = [
            "127.0.0.1:1883",
            "[::1]:65535",
            "[::ffff:10.0.0.1]:1",
            "[2001:db8::1]:0",
        ];
        for peer in peers {
            inside.push(entrances.enter(&info(peer, 1883, None)));
        }
        for (text, (listener_origin, peer)) in peers.iter().zip(&inside) {
            let origin = Origin::new(&entrances, *listener_origin, *peer);
            assert_eq!(origin.peer().to_string(), *text);
            assert_eq!(origin.name(), format!("{text} -> 10.0.0.2:1883"));
        }
        assert_eq!((entrances.all.len(), entrances.v6.len()), (2, 3));
        for (listener_origin, peer) in inside {
            entrances.leave(listener_origin, peer);
        }
        assert!(entrances.all.is_empty() && entrances.v6.is_empty());
        assert!(entrances.last.is_empty());
    }

    #[test]
    fn connections_through_one_listener_share_what_they_have_in_common() {
        let mut entrances = ListenerOrigins::default();
        let mut enter = |port: u16, tls: Option<&Arc<TlsPeer>>| {
            entrances.enter(&info("10.0.0.1:5000", port, tls)).0
        };
        let tls = Arc::new(TlsPeer::default());
        let plain = enter(1883, None);
        let sealed = enter(1883, Some(&tls));
        assert_eq!(plain, enter(1883, None));
        assert_eq!(sealed, enter(1883, Some(&tls)));
        let other = Arc::new(TlsPeer::default());
        assert_ne!(sealed, enter(1883, Some(&other)));
        for port in 0..100 {
            enter(port, None);
        }
        assert_eq!((entrances.last.len(), entrances.all.len()), (MOST, 103));
    }
}
