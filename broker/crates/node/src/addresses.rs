//! Listener addresses, and the name and address under which other nodes reach this one.

use crate::config::{Config, Listen};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

/// Why a listener cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// The socket cannot be bound.
    #[error("cannot listen on {address} for {what}: {error}")]
    Bind {
        /// The listener.
        what: &'static str,
        /// The address.
        address: SocketAddr,
        /// The cause.
        #[source]
        error: io::Error,
    },
    /// The host has no name that other nodes could use.
    #[error("the host's name is unknown ({0}): set cluster.node and cluster.advertised_host")]
    NoHostName(String),
    /// A listener between nodes is without TLS and not on loopback.
    #[error(
        "without cluster.auth.* nodes may talk over loopback only, and {0} is not; set cluster.auth.cacertfile, certfile and keyfile"
    )]
    Plain(String),
}

/// Resolves a listener's address; None if it is disabled.
pub fn resolve(listen: Listen) -> Option<SocketAddr> {
    match listen {
        Listen::None => None,
        Listen::At(address) => Some(address),
        Listen::Any(port) => {
            let v6 = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port);
            let v4 = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port);
            // Without IPv6, not even an ephemeral port can be bound.
            let has_ipv6 = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).is_ok();
            Some(if has_ipv6 { v6 } else { v4 })
        }
    }
}

/// Binds a listener for a single thread.
pub fn bind_exclusive(
    what: &'static str,
    listen: Listen,
) -> Result<Option<TcpListener>, AddressError> {
    let Some(address) = resolve(listen) else {
        return Ok(None);
    };
    let bind = |address| {
        TcpListener::bind(address).map_err(|error| AddressError::Bind {
            what,
            address,
            error,
        })
    };
    bind(address).map(Some)
}

/// Binds the same address once per shard. The port is bound exclusively first: otherwise sharing it
/// with another process would go unnoticed.
pub fn bind_shared(
    what: &'static str,
    listen: Listen,
    shards: u16,
) -> Result<Vec<reactor::BoundAddress>, AddressError> {
    let Some(mut address) = resolve(listen) else {
        return Ok(Vec::new());
    };
    drop(bind_exclusive(what, Listen::At(address))?);
    let mut listeners = Vec::new();
    for _ in 0..shards {
        let bound = reactor::bind(address).map_err(|e| AddressError::Bind {
            what,
            address,
            error: e.error,
        })?;
        address = bound.address();
        listeners.push(bound);
    }
    Ok(listeners)
}

/// The host name as known to the kernel.
pub fn host_name() -> Result<String, AddressError> {
    let unknown = |what: &str| AddressError::NoHostName(what.to_owned());
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map_err(|e| unknown(&e.to_string()))?;
    let name = name.trim();
    let is_valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if name.is_empty() || name.len() > 253 || !name.chars().all(is_valid) {
        return Err(unknown(
            "it contains characters that are invalid in a host name",
        ));
    }
    Ok(name.to_ascii_lowercase())
}

/// The node's name in the cluster.
pub fn node_name(config: &Config) -> Result<String, AddressError> {
    if config.cluster.node.is_empty() {
        return host_name();
    }
    Ok(config.cluster.node.clone())
}

/// The host under which others reach a listener of this node.
pub fn advertised_host(config: &Config, bound: Option<SocketAddr>) -> Result<String, AddressError> {
    match bound {
        _ if !config.cluster.advertised_host.is_empty() => {
            Ok(config.cluster.advertised_host.clone())
        }
        Some(address) if !address.ip().is_unspecified() => Ok(address.ip().to_string()),
        Some(_) => host_name(),
        None => Ok(Ipv4Addr::LOCALHOST.to_string()),
    }
}

/// The host:port under which other nodes reach this one.
pub fn advertised(config: &Config, bound: Option<SocketAddr>) -> Result<String, AddressError> {
    let host = advertised_host(config, bound)?;
    let port = bound.map_or(0, |a| a.port());
    if host.contains(':') {
        return Ok(format!("[{host}]:{port}"));
    }
    Ok(format!("{host}:{port}"))
}

/// Refuses links between nodes that others on the network could read or forge.
pub fn check_plain(config: &Config) -> Result<(), AddressError> {
    let cluster = &config.cluster;
    if cluster.auth.is_some() {
        return Ok(());
    }
    match cluster.listener {
        Listen::None => {}
        Listen::At(address) if address.ip().to_canonical().is_loopback() => {}
        Listen::At(address) => {
            return Err(AddressError::Plain(format!("cluster.listener {address}")));
        }
        Listen::Any(port) => {
            let all = format!("cluster.listener {port} (all interfaces)");
            return Err(AddressError::Plain(all));
        }
    }
    for peer in &cluster.peers {
        let loopback = match peer.host.parse::<IpAddr>() {
            Ok(ip) => ip.to_canonical().is_loopback(),
            Err(_) => peer.host == "localhost",
        };
        if !loopback {
            return Err(AddressError::Plain(format!("peer {peer}")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ConfigSources, load};

    fn config(flags: &[&str]) -> Result<Config, String> {
        let flags = flags.iter().map(|f| (*f).to_owned()).collect();
        let sources = ConfigSources {
            flags,
            ..ConfigSources::default()
        };
        load(&sources).map_err(|e| e.to_string())
    }

    #[test]
    fn links_without_tls_are_restricted_to_loopback() -> Result<(), String> {
        for good in [
            &[][..],
            &[
                "cluster.listener=127.0.0.1:1",
                "cluster.peers=localhost:1,127.0.0.2:2,[::1]:3",
            ],
            &[
                "cluster.listener=1",
                "cluster.auth.cacertfile=a",
                "cluster.auth.certfile=b",
                "cluster.auth.keyfile=c",
            ],
        ] {
            assert!(check_plain(&config(good)?).is_ok(), "{good:?}");
        }
        for bad in [
            &["cluster.listener=25672"][..],
            &["cluster.listener=10.0.0.1:25672"],
            &[
                "cluster.listener=127.0.0.1:1",
                "cluster.peers=localhost:1,c-1.nodes:1",
            ],
        ] {
            assert!(check_plain(&config(bad)?).is_err(), "{bad:?}");
        }
        Ok(())
    }

    #[test]
    fn port_in_use_is_reported() -> Result<(), Box<dyn std::error::Error>> {
        let shared = bind_shared("amqp", Listen::loopback(0), 3)?;
        assert_eq!(shared.len(), 3);
        let port = shared[0].address().port();
        assert!(shared.iter().all(|l| l.address().port() == port));
        let second = bind_shared("amqp", Listen::loopback(port), 1);
        assert!(second.is_err_and(|e| e.to_string().contains("amqp")));
        Ok(())
    }
}
