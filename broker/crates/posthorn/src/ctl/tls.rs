//! TLS configuration for the management API: trusted authorities and the client certificate.

use super::contexts::Context;
use super::failure::Failure;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

/// TLS files, all in PEM format.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct TlsFiles {
    /// Certificates of the authorities that may have signed the node's certificate [default: $POSTHORN_CACERT, else the trust store of this machine]
    #[arg(long, global = true, value_name = "FILE")]
    pub(super) cacert: Option<PathBuf>,
    /// Client certificate to present to the node
    #[arg(long, global = true, value_name = "FILE", requires = "key")]
    pub(super) cert: Option<PathBuf>,
    /// Private key of that certificate
    #[arg(long, global = true, value_name = "FILE", requires = "cert")]
    pub(super) key: Option<PathBuf>,
}

impl TlsFiles {
    /// Takes missing files from a context.
    pub(super) fn or(self, context: &Context) -> TlsFiles {
        let (cert, key) = match self.cert {
            Some(_) => (self.cert, self.key),
            None => (context.cert.clone(), context.key.clone()),
        };
        TlsFiles {
            cacert: self.cacert.or_else(|| context.cacert.clone()),
            cert,
            key,
        }
    }
}

/// Reads the files. The node's certificate is always verified.
pub(crate) fn config(files: &TlsFiles) -> Result<TlsConfig, Failure> {
    let roots = shared(&roots(files)?);
    let client_certificate = match (&files.cert, &files.key) {
        (Some(cert), Some(key)) => Some(ClientCert::new_with_certs(
            &shared(&certificates(cert)?),
            private_key(key)?,
        )),
        _ => None,
    };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    Ok(TlsConfig::builder()
        .root_certs(RootCerts::new_with_certs(&roots))
        .client_cert(client_certificate)
        .unversioned_rustls_crypto_provider(provider)
        .build())
}

/// Reads the files for a connection of another protocol. The node's certificate is always verified.
pub(crate) fn client_config(files: &TlsFiles) -> Result<Arc<rustls::ClientConfig>, Failure> {
    let mut store = rustls::RootCertStore::empty();
    store.add_parsable_certificates(roots(files)?);
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let unusable = |error: rustls::Error| Failure::Usage(format!("TLS cannot be used: {error}"));
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_root_certificates(store);
    let config = match (&files.cert, &files.key) {
        (Some(cert), Some(key)) => {
            let read = PrivateKeyDer::from_pem_file(key).map_err(|e| cannot_read(key, &e))?;
            config.with_client_auth_cert(certificates(cert)?, read)
        }
        _ => Ok(config.with_no_client_auth()),
    };
    Ok(Arc::new(config.map_err(unusable)?))
}

/// The trusted authorities.
fn roots(files: &TlsFiles) -> Result<Vec<CertificateDer<'static>>, Failure> {
    match &files.cacert {
        Some(file) => certificates(file),
        None => match std::env::var_os("POSTHORN_CACERT") {
            Some(file) => certificates(Path::new(&file)),
            None => machine_roots(),
        },
    }
}

fn shared(certificates: &[CertificateDer<'static>]) -> Vec<Certificate<'static>> {
    certificates
        .iter()
        .map(|c| Certificate::from_der(c).to_owned())
        .collect()
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    let found: Vec<CertificateDer<'static>> = read.map_err(|e| cannot_read(file, &e))?;
    if found.is_empty() {
        return Err(Failure::Usage(format!(
            "the file {} has no certificate: it must have at least one PEM block CERTIFICATE",
            file.display()
        )));
    }
    Ok(found)
}

fn private_key(file: &Path) -> Result<PrivateKey<'static>, Failure> {
    let text = std::fs::read(file).map_err(|e| cannot_read(file, &e))?;
    PrivateKey::from_pem(&text).map_err(|e| cannot_read(file, &e))
}

fn cannot_read(file: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::Usage(format!(
        "the file {} cannot be read: {error}",
        file.display()
    ))
}

fn machine_roots() -> Result<Vec<CertificateDer<'static>>, Failure> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        return Err(Failure::Usage(
            "this machine trusts no certificate authority: name one with --cacert FILE".to_owned(),
        ));
    }
    Ok(found.certs)
}
