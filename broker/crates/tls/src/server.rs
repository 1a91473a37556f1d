//! What a listener's TLS is made of, and taking new files into use while connections come.

use crate::Channel;
use crate::files::{FileError, Stamp, certificates, private_key, roots};
use crate::login::{LoginFrom, identify};
use arc_swap::ArcSwap;
use auth::TlsPeer;
use rustls::crypto::aws_lc_rs::{Ticketer, default_provider};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ServerConfig, SupportedProtocolVersion};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use x509_parser::asn1_rs::FromDer as _;
use x509_parser::certificate::X509Certificate;

/// Whether clients show certificates (`ssl_options.verify`, `ssl_options.fail_if_no_peer_cert`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// They are not asked for one.
    #[default]
    None,
    /// One that is shown must be of an authority in `cacertfile`.
    Peer {
        /// Without one there is no connection.
        required: bool,
    },
}

/// Which versions of TLS are spoken (`ssl_options.versions`); at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// TLS 1.2 (RFC 5246).
    pub tls12: bool,
    /// TLS 1.3 (RFC 8446).
    pub tls13: bool,
}

impl Default for Versions {
    fn default() -> Versions {
        Versions {
            tls12: true,
            tls13: true,
        }
    }
}

/// Everything about a listener's TLS. PEM files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The authorities of clients' certificates; needed when they are verified.
    pub cacertfile: Option<PathBuf>,
    /// This server's certificate, then the intermediate ones.
    pub certfile: PathBuf,
    /// The private key of the first certificate in `certfile`.
    pub keyfile: PathBuf,
    /// Whether clients must present a certificate.
    pub verify: Verify,
    /// Accepted versions.
    pub versions: Versions,
    /// The part of a client's certificate that becomes the user name.
    pub login_from: LoginFrom,
}

impl Options {
    fn files(&self) -> impl Iterator<Item = &Path> {
        let authorities = match self.verify {
            Verify::None => None,
            Verify::Peer { .. } => self.cacertfile.as_deref(),
        };
        [self.certfile.as_path(), self.keyfile.as_path()]
            .into_iter()
            .chain(authorities)
    }

    /// When the first certificate of the chain ends, in seconds since 1970; the end of time when none says.
    fn expires(&self) -> u64 {
        let chain = certificates(&self.certfile).unwrap_or_default();
        let ends = chain.iter().filter_map(|der| {
            let (_, parsed) = X509Certificate::from_der(der).ok()?;
            // One from before 1970 has long ended.
            Some(u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or(0))
        });
        ends.min().unwrap_or(u64::MAX)
    }

    fn build(&self) -> Result<ServerConfig, FileError> {
        let provider = Arc::new(default_provider());
        let mut versions: Vec<&SupportedProtocolVersion> = Vec::new();
        if self.versions.tls12 {
            versions.push(&rustls::version::TLS12);
        }
        if self.versions.tls13 {
            versions.push(&rustls::version::TLS13);
        }
        let chain = certificates(&self.certfile)?;
        let key = private_key(&self.keyfile)?;
        let wrong = |error: rustls::Error| match error {
            rustls::Error::InconsistentKeys(_) => FileError::new(
                &self.keyfile,
                format_args!(
                    "not the key of the certificate in {}",
                    self.certfile.display()
                ),
            ),
            error => FileError::new(&self.certfile, error),
        };
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&versions)
            .map_err(wrong)?;
        let builder = match (self.verify, &self.cacertfile) {
            (Verify::Peer { required }, Some(file)) => {
                let roots = Arc::new(roots(file)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
                let verifier = match required {
                    true => verifier.build(),
                    false => verifier.allow_unauthenticated().build(),
                };
                builder.with_client_cert_verifier(verifier.map_err(|e| FileError::new(file, e))?)
            }
            (Verify::Peer { .. }, None) => {
                let why = "clients' certificates cannot be verified without an authority";
                return Err(FileError::new(&self.certfile, why));
            }
            (Verify::None, _) => builder.with_no_client_auth(),
        };
        let mut config = builder.with_single_cert(chain, key).map_err(wrong)?;
        // Nothing about a client is kept here: it brings its session back in a ticket. Who shows a certificate is
        // verified each time, so that one that has expired, or whose authority is gone, ends with its connection.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        match self.verify {
            Verify::None => config.ticketer = Ticketer::new().map_err(wrong)?,
            Verify::Peer { .. } => config.send_tls13_tickets = 0,
        }
        Ok(config)
    }
}

/// The TLS of a listener, for all threads that accept. Connections keep the certificates they began with.
#[derive(Debug)]
pub struct Server {
    config: ArcSwap<ServerConfig>,
    /// Of the certificates in use, the first that ends: seconds since 1970.
    expires: AtomicU64,
    login_from: LoginFrom,
}

impl Server {
    /// The other value looks after the files.
    pub fn load(options: Options) -> Result<(Arc<Server>, Watched), FileError> {
        // Before they are read: a change in between shows at the next look.
        let seen = Stamp::of(options.files());
        let server = Arc::new(Server {
            config: ArcSwap::from_pointee(options.build()?),
            expires: AtomicU64::new(options.expires()),
            login_from: options.login_from,
        });
        let watched = Watched {
            server: server.clone(),
            options,
            seen,
        };
        Ok((server, watched))
    }

    /// For a connection that begins now.
    pub fn accept(&self) -> Result<Channel, rustls::Error> {
        Channel::new(self.config.load_full())
    }

    /// What is known after the handshake.
    pub fn peer(&self, channel: &Channel) -> TlsPeer {
        let (protocol, cipher) = channel.terms();
        let shown = channel.certificate();
        let identity = shown.and_then(|der| identify(der, self.login_from));
        let (subject, name) = match identity {
            Some(identity) => (Some(identity.subject), identity.name),
            None => (None, None),
        };
        TlsPeer {
            protocol,
            cipher,
            subject: subject.map(Into::into),
            name: name.map(Into::into),
        }
    }

    /// The name that a verified certificate (DER) gives its holder, by [`Options::login_from`].
    pub fn name_of(&self, certificate: &[u8]) -> Option<String> {
        identify(certificate, self.login_from)?.name
    }

    /// When the first certificate of the chain in use ends, in seconds since 1970.
    pub fn expires(&self) -> u64 {
        self.expires.load(Ordering::Relaxed)
    }

    /// For those who drive TLS themselves.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.config.load_full()
    }
}

/// The files of a [`Server`].
#[derive(Debug)]
pub struct Watched {
    server: Arc<Server>,
    options: Options,
    seen: Stamp,
}

impl Watched {
    /// Takes files that have changed into use, for connections from now on. What cannot be used is logged once and leaves
    /// everything as it is.
    pub fn look(&mut self) {
        let seen = Stamp::of(self.options.files());
        if seen == self.seen {
            return;
        }
        self.seen = seen;
        let certfile = self.options.certfile.display();
        match self.options.build() {
            Ok(config) => {
                tracing::info!(event = "tls.certificates_reloaded", %certfile);
                self.server.config.store(Arc::new(config));
                let expires = self.options.expires();
                self.server.expires.store(expires, Ordering::Relaxed);
            }
            Err(error) => {
                tracing::error!(event = "tls.certificates_unusable", %error, "the old ones stay in use");
            }
        }
    }
}
