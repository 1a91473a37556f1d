//! Who the other side of a TLS connection is.

/// What TLS says about a connection and its client; for SASL EXTERNAL and for listings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsPeer {
    /// `tlsv1.2` or `tlsv1.3`.
    pub protocol: &'static str,
    /// The cipher suite by its registered name.
    pub cipher: &'static str,
    /// The subject of the client's certificate (RFC 4514), which has been verified. None: it showed none.
    pub subject: Option<Box<str>>,
    /// The user that the certificate names. None: it names nobody in the place that is looked at.
    pub name: Option<Box<str>>,
}
