//! Server certificate files, and rustls clients that trust them.

use crate::{Authority, Dir};
use rustls::client::WebPkiServerVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ALL_VERSIONS, ClientConfig, RootCertStore, SupportedProtocolVersion};
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// An authority, and a directory with `ca.pem`, `cert.pem` and `key.pem` of a server called `localhost`.
pub struct Fixture {
    /// The authority that signed the server's certificate.
    pub authority: Authority,
    /// The directory with the files; dropping the fixture removes it.
    pub dir: Dir,
}

impl Fixture {
    /// `test` must be unique among the tests of a process.
    pub fn new(test: &str) -> Result<Fixture> {
        let fixture = Fixture {
            authority: Authority::new("Test Authority")?,
            dir: Dir::new(test)?,
        };
        fixture.dir.write("ca.pem", fixture.authority.pem())?;
        fixture.issue_server()?;
        Ok(fixture)
    }

    /// The path of a file in the directory.
    pub fn path(&self, file: &str) -> PathBuf {
        self.dir.path(file)
    }

    /// Writes a new certificate and key to the server's files.
    pub fn issue_server(&self) -> Result<()> {
        let issued = self
            .authority
            .issue("server", &["localhost", "127.0.0.1"])?;
        self.dir.write("cert.pem", &issued.certificate)?;
        self.dir.write("key.pem", &issued.key)?;
        Ok(())
    }

    /// A client that trusts the authority. `identity`: the authority and common name of the client's
    /// certificate.
    pub fn client(&self, identity: Option<(&Authority, &str)>) -> Result<ClientConfig> {
        self.client_of(ALL_VERSIONS, identity)
    }

    /// As [`Fixture::client`], but only with these protocol versions.
    pub fn client_of(
        &self,
        versions: &[&'static SupportedProtocolVersion],
        identity: Option<(&Authority, &str)>,
    ) -> Result<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(certificate(self.authority.pem())?)?;
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build()?;
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(versions)?
            .with_webpki_verifier(verifier);
        let Some((authority, name)) = identity else {
            return Ok(builder.with_no_client_auth());
        };
        let issued = authority.issue(name, &[])?;
        let chain = vec![certificate(&issued.certificate)?];
        let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes())?;
        Ok(builder.with_client_auth_cert(chain, key)?)
    }
}

fn certificate(pem: &str) -> Result<CertificateDer<'static>> {
    Ok(CertificateDer::from_pem_slice(pem.as_bytes())?)
}

/// The cryptography provider of the broker: aws-lc-rs.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}
