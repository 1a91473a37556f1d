//! Client listeners: one socket per shard on the same port (SO_REUSEPORT), so that the kernel spreads connections.

use mio::net::TcpStream;
use session::ProtocolId;
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// Connections that wait for `accept`; the kernel caps it by `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {error}")]
pub struct BindError {
    pub address: SocketAddr,
    #[source]
    pub error: io::Error,
}

/// An address that is taken and not listened on yet: the kernel refuses connections to it.
pub struct BoundAddress {
    address: SocketAddr,
    socket: Socket,
}

impl BoundAddress {
    /// With the port that the kernel chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn listen(self) -> Result<std::net::TcpListener, BindError> {
        let address = self.address;
        let wrap = |error| BindError { address, error };
        // What a later life needs of the connections accepted here: to take the port while they linger. Not before: an
        // address that may be used again does not look taken to whoever probes it.
        self.socket.set_reuse_address(true).map_err(wrap)?;
        self.socket.listen(BACKLOG).map_err(wrap)?;
        Ok(self.socket.into())
    }
}

/// Takes an address. Call once per shard with the same one; with port 0 use the first one's port for the others.
pub fn bind(address: SocketAddr) -> Result<BoundAddress, BindError> {
    take(address).map_err(|error| BindError { address, error })
}

fn take(address: SocketAddr) -> io::Result<BoundAddress> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_port(true)?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        // One socket for both families.
        socket.set_only_v6(false)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    let taken = socket.local_addr()?.as_socket();
    Ok(BoundAddress {
        address: taken.unwrap_or(address),
        socket,
    })
}

/// Where clients connect to, and how they speak there.
pub struct ClientListener {
    pub socket: BoundAddress,
    /// None: without TLS.
    pub tls: Option<Arc<tls::Server>>,
    pub protocol: ProtocolId,
}

impl From<BoundAddress> for ClientListener {
    fn from(socket: BoundAddress) -> ClientListener {
        ClientListener {
            socket,
            tls: None,
            protocol: ProtocolId::default(),
        }
    }
}

/// A listener of one shard, open or closed.
pub(crate) struct Listener {
    pub address: SocketAddr,
    pub tls: Option<Arc<tls::Server>>,
    pub protocol: ProtocolId,
    /// Until it opens for the first time.
    pub bound: Option<BoundAddress>,
    pub socket: Option<mio::net::TcpListener>,
    /// The last look did not empty the backlog.
    pub ready: bool,
    /// Accepted, and to be let in when the pace allows. Here, not in the backlog: whom the kernel has no room for is told nothing,
    /// and comes again after one, two, four, eight seconds.
    pub waiting: VecDeque<(TcpStream, SocketAddr)>,
}

impl Listener {
    pub fn of(listener: ClientListener) -> Listener {
        Listener {
            address: listener.socket.address,
            tls: listener.tls,
            protocol: listener.protocol,
            bound: Some(listener.socket),
            socket: None,
            ready: false,
            waiting: VecDeque::new(),
        }
    }
}
