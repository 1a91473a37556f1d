//! Where a connection came in, and from where: what many have in common once for all of them.

use crate::{ClientProtocol, ConnectionInfo};
use auth::TlsPeer;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

/// A client's address in 19 bytes. Of IPv6 the zone is left out: it says nothing to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Of IPv4 the first four.
    ip: [u8; 16],
    port: u16,
    is_v4: bool,
}

impl Peer {
    pub fn new(address: SocketAddr) -> Peer {
        let mut ip = [0; 16];
        match address.ip() {
            IpAddr::V4(v4) => ip[..4].copy_from_slice(&v4.octets()),
            IpAddr::V6(v6) => ip = v6.octets(),
        }
        Peer {
            ip,
            port: address.port(),
            is_v4: address.is_ipv4(),
        }
    }

    pub fn address(&self) -> SocketAddr {
        let ip = match (self.is_v4, self.ip) {
            (true, [a, b, c, d, ..]) => IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
            (false, ip) => IpAddr::V6(Ipv6Addr::from(ip)),
        };
        SocketAddr::new(ip, self.port)
    }
}

/// What connections through one listener have in common.
#[derive(Debug)]
pub struct Entrance {
    pub protocol: ClientProtocol,
    pub local: SocketAddr,
    pub tls: Option<Arc<TlsPeer>>,
}

impl Entrance {
    fn is_of(&self, info: &ConnectionInfo) -> bool {
        let same_tls = match (&self.tls, &info.tls) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => false,
        };
        same_tls && self.protocol == info.protocol && self.local == info.local
    }
}

/// Those that were used last.
#[derive(Default)]
pub struct Entrances {
    last: Vec<Arc<Entrance>>,
    oldest: usize,
}

/// Listeners, by the addresses that clients reach them at.
const MOST: usize = 16;

impl Entrances {
    pub fn of(&mut self, info: &ConnectionInfo) -> Arc<Entrance> {
        if let Some(known) = self.last.iter().find(|known| known.is_of(info)) {
            return known.clone();
        }
        let new = Arc::new(Entrance {
            protocol: info.protocol,
            local: info.local,
            tls: info.tls.clone(),
        });
        if self.last.len() < MOST {
            self.last.push(new.clone());
        } else if let Some(place) = self.last.get_mut(self.oldest) {
            *place = new.clone();
            self.oldest = (self.oldest + 1) % MOST;
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_the_same_again() {
        for text in [
            "127.0.0.1:1883",
            "[::1]:65535",
            "[::ffff:10.0.0.1]:1",
            "[2001:db8::1]:0",
        ] {
            let address: SocketAddr = text.parse().expect("an address");
            assert_eq!(Peer::new(address).address(), address);
        }
    }

    #[test]
    fn connections_through_one_listener_share_what_they_have_in_common() {
        let mut entrances = Entrances::default();
        let info = |port: u16, tls: Option<&Arc<TlsPeer>>| ConnectionInfo {
            protocol: ClientProtocol::Mqtt,
            peer: SocketAddr::from(([10, 0, 0, 1], 5000)),
            local: SocketAddr::from(([10, 0, 0, 2], port)),
            tls: tls.cloned(),
        };
        let tls = Arc::new(TlsPeer::default());
        let plain = entrances.of(&info(1883, None));
        let sealed = entrances.of(&info(1883, Some(&tls)));
        assert!(Arc::ptr_eq(&plain, &entrances.of(&info(1883, None))));
        assert!(Arc::ptr_eq(&sealed, &entrances.of(&info(1883, Some(&tls)))));
        let other = Arc::new(TlsPeer::default());
        assert!(!Arc::ptr_eq(
            &sealed,
            &entrances.of(&info(1883, Some(&other)))
        ));
        for port in 0..100 {
            entrances.of(&info(port, None));
        }
        assert_eq!(entrances.last.len(), MOST);
    }
}
