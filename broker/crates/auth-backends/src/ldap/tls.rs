//! TLS to LDAP servers.

use super::LdapSettings;
use crate::provider::{read_certificates, read_pem};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use std::sync::Arc;

/// Reads the files of the settings. Errors name the key.
pub(crate) fn client_config(settings: &LdapSettings) -> Result<Arc<ClientConfig>, String> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS cannot be used: {error}"))?;
    let builder = match settings.verify_peer {
        false => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AcceptAll(provider))),
        true => {
            let mut roots = RootCertStore::empty();
            match &settings.cacertfile {
                None => {
                    let found = rustls_native_certs::load_native_certs();
                    roots.add_parsable_certificates(found.certs);
                }
                Some(file) => {
                    let key = "`auth_ldap.ssl_options.cacertfile`";
                    let found =
                        read_certificates(file).map_err(|error| format!("{key}: {error}"))?;
                    for certificate in found {
                        roots
                            .add(certificate)
                            .map_err(|error| format!("{key}: {}: {error}", file.display()))?;
                    }
                }
            }
            builder.with_root_certificates(roots)
        }
    };
    let (Some(certfile), Some(keyfile)) = (&settings.certfile, &settings.keyfile) else {
        return Ok(Arc::new(builder.with_no_client_auth()));
    };
    let certificates = read_certificates(certfile)
        .map_err(|error| format!("`auth_ldap.ssl_options.certfile`: {error}"))?;
    let named = |error: String| format!("`auth_ldap.ssl_options.keyfile`: {error}");
    let key = PrivateKeyDer::from_pem_slice(&read_pem(keyfile).map_err(named)?)
        .map_err(|error| named(format!("{}: {error}", keyfile.display())))?;
    builder
        .with_client_auth_cert(certificates, key)
        .map(Arc::new)
        .map_err(|error| named(error.to_string()))
}

/// Accepts every certificate, for `verify_none`.
#[derive(Debug)]
struct AcceptAll(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAll {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
