use crate::Millis;

/// Settings of a connection.
#[derive(Clone, Debug)]
pub struct Config {
    /// The id of this container.
    pub container_id: Box<str>,
    /// Client or server.
    pub peer: Peer,
    /// The largest frame that is accepted, in bytes.
    pub max_frame_size: u32,
    /// The largest frame of the SASL layer. Section 5.3.1 says 512; tokens as passwords are larger.
    pub sasl_max_frame_size: u32,
    /// The highest channel; one less than the number of sessions.
    pub channel_max: u16,
    /// The highest handle that a peer may use; one less than the number of links of a session.
    pub handle_max: u16,
    /// The connection is closed if nothing is received for this time. 0: never. The peer is told half of it (section 2.4.5).
    pub idle_timeout: Millis,
    /// The time from the first byte to the end of the open handshake.
    pub handshake_timeout: Millis,
    /// The time that the peer has to answer a close.
    pub close_timeout: Millis,
    /// Transfers that a session accepts before it renews its window.
    pub incoming_window: u32,
    /// Credit of a receiving link.
    pub link_credit: u32,
    /// The largest message that is accepted, in bytes.
    pub max_message_size: u64,
    /// Bytes of all messages of the connection whose last transfer has not come.
    pub max_unfinished_size: usize,
    /// Deliveries of a session that the peer did not settle.
    pub max_unsettled: usize,
    /// Bytes of output above which nothing more is sent until [`crate::Connection::flush`] finds less.
    pub output_limit: usize,
}

impl Config {
    /// The defaults of RabbitMQ for a server with these SASL mechanisms.
    pub fn server(container_id: &str, mechanisms: &[&str]) -> Self {
        Self {
            container_id: container_id.into(),
            peer: Peer::Server {
                mechanisms: mechanisms.iter().map(|&name| name.into()).collect(),
                requires_sasl: true,
            },
            max_frame_size: 128 * 1024,
            sasl_max_frame_size: 8192,
            channel_max: 63,
            handle_max: 255,
            idle_timeout: 60_000,
            handshake_timeout: 10_000,
            close_timeout: 5_000,
            incoming_window: 400,
            link_credit: 170,
            max_message_size: 16 * 1024 * 1024,
            max_unfinished_size: 32 * 1024 * 1024,
            max_unsettled: 65_536,
            output_limit: 1024 * 1024,
        }
    }

    /// A client, with the other settings of a server.
    pub fn client(container_id: &str, hostname: Option<&str>, sasl: Option<ClientSasl>) -> Self {
        Self {
            peer: Peer::Client {
                hostname: hostname.map(Into::into),
                sasl,
            },
            ..Self::server(container_id, &[])
        }
    }
}

/// The part of a connection.
#[derive(Clone, Debug)]
pub enum Peer {
    /// Accepts connections.
    Server {
        /// SASL mechanisms in order of preference.
        mechanisms: Vec<Box<str>>,
        /// Refuses connections without a SASL layer.
        requires_sasl: bool,
    },
    /// Opens connections.
    Client {
        /// The host name of the open frame.
        hostname: Option<Box<str>>,
        /// Credentials. None: no SASL layer.
        sasl: Option<ClientSasl>,
    },
}

/// A SASL exchange of one step.
#[derive(Clone)]
pub struct ClientSasl {
    /// The mechanism's name.
    pub mechanism: Box<str>,
    /// Its only message.
    pub initial_response: Box<[u8]>,
}

impl std::fmt::Debug for ClientSasl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The response has a password.
        f.debug_struct("ClientSasl")
            .field("mechanism", &self.mechanism)
            .finish_non_exhaustive()
    }
}
