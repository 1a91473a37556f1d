//! Mutual TLS between nodes: both sides present a certificate of the cluster's own authority.
//!
//! The authority of `cacertfile` signs only nodes, so a valid chain proves that the peer is a node.
//! Certificate names are not checked: in Kubernetes addresses change, and a node may be dialed by
//! any of its names.

use crate::config::AuthFiles;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, ServerConfig, SignatureScheme,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use std::path::Path;
use std::sync::Arc;
use tls::{FileError, FileStamp};

/// The files of `cluster.auth` are unusable.
#[derive(Debug, thiserror::Error)]
#[error("cluster.auth: {0}")]
pub struct TlsError(#[from] FileError);

fn bad(file: &Path, what: impl ToString) -> TlsError {
    TlsError(FileError::new(file, what))
}

/// TLS configurations of both sides, and a stamp of the files they were loaded from.
pub struct LinkTls {
    files: AuthFiles,
    stamp: FileStamp,
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

impl LinkTls {
    /// Reads certificates and key.
    pub fn load(files: &AuthFiles) -> Result<LinkTls, TlsError> {
        // Taken before the files are read, so that a concurrent change is noticed at the next
        // refresh.
        let stamp = stamp(files);
        let (server, client) = configs(files)?;
        Ok(LinkTls {
            files: files.clone(),
            stamp,
            server,
            client,
        })
    }

    /// Loads changed files for future links. Keeps the current configuration if the new files are
    /// unusable.
    pub fn refresh(&mut self) {
        let stamp = stamp(&self.files);
        if stamp == self.stamp {
            return;
        }
        self.stamp = stamp;
        match configs(&self.files) {
            Ok((server, client)) => {
                tracing::info!(event = "cluster.certificates_reloaded");
                (self.server, self.client) = (server, client);
            }
            // Files are replaced one by one: the next refresh notices when all of them are
            // complete.
            Err(error) => tracing::error!(event = "cluster.certificates_unusable", %error),
        }
    }

    /// The server side of a new connection.
    pub fn accept(&self) -> Result<rustls::Connection, rustls::Error> {
        rustls::ServerConnection::new(self.server.clone()).map(Into::into)
    }

    /// The client side of a new connection to this host.
    pub fn dial(&self, host: &str) -> Result<rustls::Connection, rustls::Error> {
        let name = ServerName::try_from(host.to_owned())
            .or_else(|_| ServerName::try_from("node"))
            .map_err(|e| rustls::Error::General(e.to_string()))?;
        rustls::ClientConnection::new(self.client.clone(), name).map(Into::into)
    }
}

fn stamp(files: &AuthFiles) -> FileStamp {
    FileStamp::of([
        files.cacertfile.as_path(),
        files.certfile.as_path(),
        files.keyfile.as_path(),
    ])
}

fn configs(files: &AuthFiles) -> Result<(Arc<ServerConfig>, Arc<ClientConfig>), TlsError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let roots = Arc::new(tls::roots(&files.cacertfile)?);
    let chain = tls::certificates(&files.certfile)?;
    let key = tls::private_key(&files.keyfile)?;

    let clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
        .build()
        .map_err(|e| bad(&files.cacertfile, e))?;
    let versions = &[&rustls::version::TLS13];
    let server = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)
        .map_err(|e| bad(&files.certfile, e))?
        .with_client_cert_verifier(clients)
        .with_single_cert(chain.clone(), key.clone_key())
        .map_err(|e| bad(&files.certfile, e))?;

    let chain_only = ChainVerifier(
        WebPkiServerVerifier::builder_with_provider(roots, provider.clone())
            .build()
            .map_err(|e| bad(&files.cacertfile, e))?,
    );
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .map_err(|e| bad(&files.certfile, e))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(chain_only))
        .with_client_auth_cert(chain, key)
        .map_err(|e| bad(&files.certfile, e))?;
    client.resumption = rustls::client::Resumption::disabled();
    Ok((Arc::new(server), Arc::new(client)))
}

/// Verifies a server's certificate chain, but not its name.
#[derive(Debug)]
struct ChainVerifier(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for ChainVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        // The name is checked last, after chain, validity and key usage.
        match self
            .0
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
        {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{
        BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    };
    use std::path::PathBuf;

    type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

    /// A directory that is deleted with its test.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(test: &str) -> Result<Scratch> {
            let name = format!("posthorn-tls-{}-{test}", std::process::id());
            let dir = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&dir)?;
            Ok(Scratch(dir))
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// Creates an authority and a certificate for `usages`. File names start with `name`.
    fn files(dir: &Scratch, name: &str, usages: &[ExtendedKeyUsagePurpose]) -> Result<AuthFiles> {
        let ca_key = KeyPair::generate()?;
        let mut ca = CertificateParams::new(Vec::<String>::new())?;
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca_pem = ca.self_signed(&ca_key)?.pem();
        let issuer = Issuer::new(ca, ca_key);
        let key = KeyPair::generate()?;
        let mut node = CertificateParams::new(vec!["some.name.example".to_owned()])?;
        node.extended_key_usages = usages.to_vec();
        let pem = node.signed_by(&key, &issuer)?.pem();
        let write = |what: &str, text: &str| -> Result<PathBuf> {
            let path = dir.0.join(format!("{name}-{what}.pem"));
            std::fs::write(&path, text)?;
            Ok(path)
        };
        Ok(AuthFiles {
            cacertfile: write("ca", &ca_pem)?,
            certfile: write("cert", &pem)?,
            keyfile: write("key", &key.serialize_pem())?,
        })
    }

    fn both() -> Vec<ExtendedKeyUsagePurpose> {
        vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ]
    }

    /// Returns true if a handshake between the two succeeds on both sides.
    fn handshake_succeeds(server: &LinkTls, client: &LinkTls) -> Result<bool> {
        let mut server = server.accept()?;
        let mut client = client.dial("c-0.nodes.example")?;
        while server.is_handshaking() || client.is_handshaking() {
            let before = (server.is_handshaking(), client.is_handshaking());
            let mut moved = false;
            for by_client in [true, false] {
                let (from, to) = if by_client {
                    (&mut client, &mut server)
                } else {
                    (&mut server, &mut client)
                };
                let mut bytes = Vec::new();
                while from.wants_write() {
                    from.write_tls(&mut bytes)?;
                }
                moved |= !bytes.is_empty();
                let mut rest = &bytes[..];
                while !rest.is_empty() {
                    to.read_tls(&mut rest)?;
                    if to.process_new_packets().is_err() {
                        return Ok(false);
                    }
                }
            }
            if !moved && before == (server.is_handshaking(), client.is_handshaking()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    #[test]
    fn handshake_requires_the_same_authority() -> Result<()> {
        let dir = Scratch::new("authority")?;
        let good = LinkTls::load(&files(&dir, "good", &both())?)?;
        let other = LinkTls::load(&files(&dir, "other", &both())?)?;
        // The dialed name is in no certificate, which is allowed.
        assert!(handshake_succeeds(&good, &good)?);
        assert!(!handshake_succeeds(&good, &other)?);
        assert!(!handshake_succeeds(&other, &good)?);
        let server_only = files(&dir, "server-only", &[ExtendedKeyUsagePurpose::ServerAuth])?;
        let server_only = LinkTls::load(&server_only)?;
        assert!(
            !handshake_succeeds(&server_only, &server_only)?,
            "clients must also present a certificate"
        );
        Ok(())
    }

    #[test]
    fn certificate_of_another_authority_is_refused_by_both_sides() -> Result<()> {
        let dir = Scratch::new("foreign")?;
        // A node that trusts our authority but is signed by another one must be rejected as client
        // and as server.
        let ours = files(&dir, "ours", &both())?;
        let theirs = files(&dir, "theirs", &both())?;
        let foreign = AuthFiles {
            cacertfile: ours.cacertfile.clone(),
            ..theirs
        };
        let (ours, foreign) = (LinkTls::load(&ours)?, LinkTls::load(&foreign)?);
        assert!(!handshake_succeeds(&ours, &foreign)?);
        assert!(!handshake_succeeds(&foreign, &ours)?);
        Ok(())
    }

    #[test]
    fn refresh_loads_new_files_and_keeps_old_ones_on_error() -> Result<()> {
        let dir = Scratch::new("rotate")?;
        let first = files(&dir, "rotate", &both())?;
        let mut tls = LinkTls::load(&first)?;
        let before = LinkTls::load(&first)?;
        // The same paths under a new authority.
        let again = files(&dir, "rotate", &both())?;
        tls.refresh();
        assert!(handshake_succeeds(&tls, &LinkTls::load(&again)?)?);
        assert!(!handshake_succeeds(&tls, &before)?);
        std::fs::write(&again.certfile, "no certificate")?;
        tls.refresh();
        assert!(
            handshake_succeeds(&tls, &tls)?,
            "the previous files stay in use"
        );
        Ok(())
    }

    #[test]
    fn errors_name_the_file() -> Result<()> {
        let dir = Scratch::new("errors")?;
        let good = files(&dir, "named", &both())?;
        let broken = AuthFiles {
            keyfile: good.cacertfile.clone(),
            ..good
        };
        let error = LinkTls::load(&broken).err().ok_or("loaded")?.to_string();
        assert!(error.contains("named-ca.pem"), "{error}");
        Ok(())
    }
}
