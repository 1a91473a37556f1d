//! Identity of the peer of a TLS connection.

/// TLS properties of a connection and identity of its client, for SASL EXTERNAL and for listings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsPeer {
    /// `tlsv1.2` or `tlsv1.3`.
    pub protocol: &'static str,
    /// The cipher suite by its registered name.
    pub cipher: &'static str,
    /// Subject of the client's verified certificate (RFC 4514), or `None` if it presented none.
    pub subject: Option<Box<str>>,
    /// User named by the certificate, or `None` if the configured field names none.
    pub name: Option<Box<str>>,
}
