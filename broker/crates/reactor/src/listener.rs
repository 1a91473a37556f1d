//! Client listeners: one socket per shard on the same port (SO_REUSEPORT), so that the kernel
//! distributes connections.

use mio::net::TcpStream;
use session::ProtocolId;
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// Length of the accept queue; the kernel limits it to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// An address that cannot be bound or listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {error}")]
pub struct BindError {
    /// The address.
    pub address: SocketAddr,
    /// The error of the operating system.
    #[source]
    pub error: io::Error,
}

/// A bound address that does not listen yet: the kernel refuses connections to it.
pub struct BoundAddress {
    address: SocketAddr,
    socket: Socket,
}

impl BoundAddress {
    /// The address, with the port that the kernel chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn listen(self) -> Result<std::net::TcpListener, BindError> {
        let address = self.address;
        let wrap = |error| BindError { address, error };
        // Lets a restarted node bind the port while connections accepted here linger in TIME_WAIT.
        // Set only now, because an address with this option does not appear to be in use when
        // another process probes it.
        self.socket.set_reuse_address(true).map_err(wrap)?;
        self.socket.listen(BACKLOG).map_err(wrap)?;
        Ok(self.socket.into())
    }
}

/// Binds an address. Call it once per shard with the same address; for port 0, use the port of the
/// first call for the others.
pub fn bind(address: SocketAddr) -> Result<BoundAddress, BindError> {
    bind_socket(address).map_err(|error| BindError { address, error })
}

fn bind_socket(address: SocketAddr) -> io::Result<BoundAddress> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_port(true)?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        // One socket for IPv4 and IPv6.
        socket.set_only_v6(false)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    let bound = socket.local_addr()?.as_socket();
    Ok(BoundAddress {
        address: bound.unwrap_or(address),
        socket,
    })
}

/// A client listener: its address, TLS and protocol.
pub struct ClientListener {
    /// The bound address.
    pub socket: BoundAddress,
    /// None: no TLS.
    pub tls: Option<Arc<tls::ServerTls>>,
    /// The protocol of its clients.
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
    pub tls: Option<Arc<tls::ServerTls>>,
    pub protocol: ProtocolId,
    /// The bound address until the listener opens for the first time.
    pub bound: Option<BoundAddress>,
    pub socket: Option<mio::net::TcpListener>,
    /// The accept queue may not be empty.
    pub ready: bool,
    /// Accepted connections that wait for the admission rate. They wait here and not in the
    /// kernel's backlog, because the kernel silently drops clients that do not fit there, and these
    /// retry after one, two, four and eight seconds.
    pub waiting: VecDeque<(TcpStream, SocketAddr)>,
}

impl Listener {
    pub(crate) fn of(listener: ClientListener) -> Listener {
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
