//! Client listeners: one socket per shard on the same port (SO_REUSEPORT), so that the kernel spreads connections.

use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::SocketAddr;

/// Connections that wait for `accept`; the kernel caps it by `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {error}")]
pub struct BindError {
    pub address: SocketAddr,
    #[source]
    pub error: io::Error,
}

/// Binds and listens. Call once per shard with the same address; with port 0 use the first one's port for the others.
pub fn bind(address: SocketAddr) -> Result<std::net::TcpListener, BindError> {
    listen(address).map_err(|error| BindError { address, error })
}

fn listen(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        // One socket for both families.
        socket.set_only_v6(false)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// A listener of one shard, open or closed.
pub(crate) struct Listener {
    pub address: SocketAddr,
    pub socket: Option<mio::net::TcpListener>,
    /// The last look did not empty the backlog.
    pub ready: bool,
}
