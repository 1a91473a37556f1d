//! A certificate authority for tests, with certificate files and TLS clients, and an OpenID provider. Only
//! tests depend on this crate.
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

mod fixture;
mod oidc;
mod password_server;

pub use fixture::{Fixture, provider};
pub use oidc::{OidcProvider, TokenKey};
pub use password_server::PasswordServer;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, Error, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyPair,
};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Signs certificates for servers and clients.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A certificate and its private key.
pub struct Issued {
    /// The certificate in PEM form.
    pub certificate: String,
    /// The private key in PEM form (PKCS#8).
    pub key: String,
}

fn distinguished_name(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}

impl Authority {
    /// Creates an authority with a new key and a self-signed certificate.
    pub fn new(common_name: &str) -> Result<Authority, Error> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(Vec::<String>::new())?;
        params.distinguished_name = distinguished_name(common_name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key)?.pem();
        let issuer = Issuer::new(params, key);
        Ok(Authority { issuer, pem })
    }

    /// The authority's own certificate in PEM form.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Issues a certificate for servers and clients; `names` are DNS names or addresses.
    pub fn issue(&self, common_name: &str, names: &[&str]) -> Result<Issued, Error> {
        self.issue_with(common_name, names, None)
    }

    /// Like [`Authority::issue`], with the end of the validity as time since 1970.
    pub fn issue_until(
        &self,
        common_name: &str,
        names: &[&str],
        expiry: Duration,
    ) -> Result<Issued, Error> {
        self.issue_with(common_name, names, Some(expiry))
    }

    fn issue_with(
        &self,
        common_name: &str,
        names: &[&str],
        expiry: Option<Duration>,
    ) -> Result<Issued, Error> {
        let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name = distinguished_name(common_name);
        if let Some(expiry) = expiry {
            params.not_after = rcgen::date_time_ymd(1970, 1, 1) + expiry;
        }
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Issued {
            certificate,
            key: key.serialize_pem(),
        })
    }
}

/// A temporary directory that is removed when dropped.
pub struct Dir(PathBuf);

impl Dir {
    /// `name` must be unique among the tests of a process.
    pub fn new(name: &str) -> io::Result<Dir> {
        let name = format!("posthorn-tls-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path)?;
        Ok(Dir(path))
    }

    /// The path of a file in this directory, which need not exist.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file, replacing an existing one, and returns its path.
    pub fn write(&self, name: &str, text: &str) -> io::Result<PathBuf> {
        let path = self.path(name);
        std::fs::write(&path, text)?;
        Ok(path)
    }
}

impl AsRef<Path> for Dir {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        // A leftover stays in the directory for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
