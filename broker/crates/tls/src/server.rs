//! The TLS configuration of a listener, and the reload of changed files while it serves.

use crate::TlsChannel;
use crate::files::{FileError, FileStamp, certificates, private_key, roots};
use crate::login::{CertificateLoginSource, identify};
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

/// Verification of client certificates (`ssl_options.verify`, `ssl_options.fail_if_no_peer_cert`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientVerification {
    /// No certificate is requested.
    #[default]
    None,
    /// A certificate is requested and must be issued by an authority in `cacertfile`.
    Peer {
        /// Connections without a certificate are refused.
        required: bool,
    },
}

/// Enabled TLS versions (`ssl_options.versions`); at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlsVersions {
    /// TLS 1.2 (RFC 5246).
    pub tls12: bool,
    /// TLS 1.3 (RFC 8446).
    pub tls13: bool,
}

impl Default for TlsVersions {
    fn default() -> TlsVersions {
        TlsVersions {
            tls12: true,
            tls13: true,
        }
    }
}

/// The TLS options of a listener. All files are PEM files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// The authorities for client certificates; required if these are verified.
    pub cacertfile: Option<PathBuf>,
    /// The certificate of this server, followed by intermediate certificates.
    pub certfile: PathBuf,
    /// The private key of the first certificate in `certfile`.
    pub keyfile: PathBuf,
    /// Verification of client certificates.
    pub verify: ClientVerification,
    /// Enabled versions.
    pub versions: TlsVersions,
    /// The part of a client's certificate that becomes the user name.
    pub login_from: CertificateLoginSource,
}

impl TlsOptions {
    fn files(&self) -> impl Iterator<Item = &Path> {
        let authorities = match self.verify {
            ClientVerification::None => None,
            ClientVerification::Peer { .. } => self.cacertfile.as_deref(),
        };
        [self.certfile.as_path(), self.keyfile.as_path()]
            .into_iter()
            .chain(authorities)
    }

    /// The earliest expiry in the certificate chain, in seconds since 1970; `u64::MAX` if unknown.
    fn expires(&self) -> u64 {
        let chain = certificates(&self.certfile).unwrap_or_default();
        let expiries = chain.iter().filter_map(|der| {
            let (_, parsed) = X509Certificate::from_der(der).ok()?;
            // A date before 1970 counts as expired.
            Some(u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or(0))
        });
        expiries.min().unwrap_or(u64::MAX)
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
        let file_error = |error: rustls::Error| match error {
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
            .map_err(file_error)?;
        let builder = match (self.verify, &self.cacertfile) {
            (ClientVerification::Peer { required }, Some(file)) => {
                let roots = Arc::new(roots(file)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
                let verifier = match required {
                    true => verifier.build(),
                    false => verifier.allow_unauthenticated().build(),
                };
                builder.with_client_cert_verifier(verifier.map_err(|e| FileError::new(file, e))?)
            }
            (ClientVerification::Peer { .. }, None) => {
                let why = "cacertfile is required to verify client certificates";
                return Err(FileError::new(&self.certfile, why));
            }
            (ClientVerification::None, _) => builder.with_no_client_auth(),
        };
        let mut config = builder.with_single_cert(chain, key).map_err(file_error)?;
        // No session state is stored on the server: clients return it in a ticket. Clients with
        // certificates get no tickets, so that an expired or revoked authority takes effect with
        // each new connection.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        match self.verify {
            ClientVerification::None => config.ticketer = Ticketer::new().map_err(file_error)?,
            ClientVerification::Peer { .. } => config.send_tls13_tickets = 0,
        }
        Ok(config)
    }
}

/// The TLS configuration of a listener, shared by all accepting threads. A connection keeps the
/// certificates that it began with.
#[derive(Debug)]
pub struct ServerTls {
    config: ArcSwap<ServerConfig>,
    /// The earliest expiry of the certificates in use, in seconds since 1970.
    expires: AtomicU64,
    login_from: CertificateLoginSource,
}

impl ServerTls {
    /// Loads the files. The second value reloads them when they change.
    pub fn load(options: TlsOptions) -> Result<(Arc<ServerTls>, WatchedFiles), FileError> {
        // Taken before the files are read, so that a change in between is detected later.
        let stamp = FileStamp::of(options.files());
        let server = Arc::new(ServerTls {
            config: ArcSwap::from_pointee(options.build()?),
            expires: AtomicU64::new(options.expires()),
            login_from: options.login_from,
        });
        let watched = WatchedFiles {
            server: server.clone(),
            options,
            stamp,
        };
        Ok((server, watched))
    }

    /// Creates the TLS state of a new connection.
    pub fn accept(&self) -> Result<TlsChannel, rustls::Error> {
        TlsChannel::new(self.config.load_full())
    }

    /// The TLS parameters and identity of the client. Complete after the handshake.
    pub fn peer(&self, channel: &TlsChannel) -> TlsPeer {
        let (protocol, cipher) = channel.version_and_cipher();
        let certificate = channel.certificate();
        let identity = certificate.and_then(|der| identify(der, self.login_from));
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

    /// The user name in a verified certificate (DER), according to [`TlsOptions::login_from`].
    pub fn name_of(&self, certificate: &[u8]) -> Option<String> {
        identify(certificate, self.login_from)?.name
    }

    /// The earliest expiry in the certificate chain in use, in seconds since 1970.
    pub fn expires(&self) -> u64 {
        self.expires.load(Ordering::Relaxed)
    }

    /// The current rustls configuration, for users that run TLS themselves.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.config.load_full()
    }
}

/// The files of a [`ServerTls`], checked for changes.
#[derive(Debug)]
pub struct WatchedFiles {
    server: Arc<ServerTls>,
    options: TlsOptions,
    stamp: FileStamp,
}

impl WatchedFiles {
    /// Reloads the files if they have changed; new connections use the new ones. If they cannot be
    /// used, the error is logged once and the old ones stay in use.
    pub fn reload_if_changed(&mut self) {
        let stamp = FileStamp::of(self.options.files());
        if stamp == self.stamp {
            return;
        }
        self.stamp = stamp;
        let certfile = self.options.certfile.display();
        match self.options.build() {
            Ok(config) => {
                tracing::info!(event = "tls.certificates_reloaded", %certfile);
                self.server.config.store(Arc::new(config));
                let expires = self.options.expires();
                self.server.expires.store(expires, Ordering::Relaxed);
            }
            Err(error) => {
                tracing::error!(event = "tls.certificates_unusable", %error, "the previous certificates stay in use");
            }
        }
    }
}
