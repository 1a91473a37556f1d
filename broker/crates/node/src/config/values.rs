//! Parsers of values.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

/// The address of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listen {
    /// Disabled.
    None,
    /// All interfaces, with both address families if available.
    Any(u16),
    /// One address.
    At(SocketAddr),
}

impl Listen {
    /// This port on 127.0.0.1.
    pub fn loopback(port: u16) -> Listen {
        Listen::At(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port))
    }

    /// The port; None if there is no listener.
    pub fn port(self) -> Option<u16> {
        match self {
            Listen::None => None,
            Listen::Any(port) => Some(port),
            Listen::At(address) => Some(address.port()),
        }
    }

    pub(super) fn parse(text: &str) -> Option<Listen> {
        if text == "none" {
            return Some(Listen::None);
        }
        if let Ok(port) = text.parse() {
            return Some(Listen::Any(port));
        }
        if let Ok(address) = text.parse() {
            return Some(Listen::At(address));
        }
        let port = text.strip_prefix("localhost:")?.parse().ok()?;
        Some(Listen::loopback(port))
    }
}

/// host:port of another node's inter-node listener; the host is a name or an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerAddress {
    /// Host name or IP address.
    pub host: String,
    /// Port number.
    pub port: u16,
}

/// Port of peers that are configured without one.
pub(super) const DEFAULT_PEER_PORT: u16 = 25672;

/// Maximum length of a DNS name.
const MAX_HOST: usize = 253;

impl PeerAddress {
    /// Parses an address that has a port.
    pub fn parse_with_port(text: &str) -> Option<PeerAddress> {
        let has_port = match text.rsplit_once(']') {
            Some((_, port)) => port.starts_with(':'),
            None => text.contains(':'),
        };
        has_port.then(|| PeerAddress::parse(text)).flatten()
    }

    /// Parses `host:port`; None if the text is neither a name nor an address with a port.
    pub fn parse(text: &str) -> Option<PeerAddress> {
        let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, "")) => (host, DEFAULT_PEER_PORT),
            Some((host, port)) => (host, port.strip_prefix(':')?.parse().ok()?),
            None => match text.split_once(':') {
                Some((host, port)) => (host, port.parse().ok()?),
                None => (text, DEFAULT_PEER_PORT),
            },
        };
        let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
        let good =
            !host.is_empty() && host.len() <= MAX_HOST && port != 0 && host.chars().all(known);
        good.then(|| PeerAddress {
            host: host.to_ascii_lowercase(),
            port,
        })
    }
}

impl std::fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Parses bytes: a number, optionally with one of RabbitMQ's units (kB, MB, GB by 1000; KiB, MiB,
/// GiB by 1024).
pub fn parse_bytes(text: &str) -> Option<u64> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(digits)?;
    let number: u64 = number.parse().ok()?;
    let factor = match unit.trim() {
        "" | "B" => 1,
        "k" | "K" | "kiB" | "KiB" => 1 << 10,
        "M" | "MiB" => 1 << 20,
        "G" | "GiB" => 1 << 30,
        "T" | "TiB" => 1 << 40,
        "kB" | "KB" => 1000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        _ => return None,
    };
    number.checked_mul(factor)
}

/// Parses milliseconds.
pub(super) fn parse_ms(text: &str, min: u64, max: u64) -> Option<Duration> {
    let ms: u64 = text.parse().ok()?;
    (min..=max).contains(&ms).then(|| Duration::from_millis(ms))
}

pub(super) fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "true" | "on" => Some(true),
        "false" | "off" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listen_addresses_are_parsed() {
        assert_eq!(Listen::parse("5672"), Some(Listen::Any(5672)));
        assert_eq!(
            Listen::parse("127.0.0.1:5672"),
            Some(Listen::loopback(5672))
        );
        assert_eq!(Listen::parse("localhost:1"), Some(Listen::loopback(1)));
        assert!(matches!(Listen::parse("[::1]:5672"), Some(Listen::At(a)) if a.is_ipv6()));
        assert_eq!(Listen::parse("none"), Some(Listen::None));
        for bad in ["", "70000", "example.org:1", "127.0.0.1", "-1"] {
            assert_eq!(Listen::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn peer_addresses_are_parsed() {
        let plain = PeerAddress::parse("c-0.C-nodes.ns.svc");
        assert_eq!(
            plain.map(|p| p.to_string()).as_deref(),
            Some("c-0.c-nodes.ns.svc:25672")
        );
        let six = PeerAddress::parse("[::1]:7");
        assert_eq!(six.map(|p| p.to_string()).as_deref(), Some("[::1]:7"));
        for bad in ["", ":1", "a:0", "a:b", "a b:1", "[::1", "a/b"] {
            assert_eq!(PeerAddress::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn byte_sizes_are_parsed() {
        assert_eq!(parse_bytes("50MB"), Some(50_000_000));
        assert_eq!(parse_bytes("1GiB"), Some(1 << 30));
        assert_eq!(parse_bytes("12"), Some(12));
        for bad in ["", "MB", "1.5GB", "99999999999TB", "1 parsec", "-1"] {
            assert_eq!(parse_bytes(bad), None, "{bad}");
        }
    }
}
