//! Keys that verify the signatures of tokens: from PEM files and from JSON Web Key Sets (RFC 7517).

use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, SubjectPublicKeyInfoDer};
use serde::Deserialize;
use std::collections::BTreeMap;
use x509_parser::prelude::{FromDer as _, SubjectPublicKeyInfo, X509Certificate};

/// Most keys of a provider. Further ones are ignored.
pub const MAX_KEYS: usize = 256;
/// Longest id of a key in bytes; keys with a longer one are ignored.
pub const MAX_KEY_ID: usize = 1024;

/// A public key.
#[derive(Clone)]
pub(crate) struct VerificationKey {
    pub(crate) key: DecodingKey,
    /// The only algorithms with which it may be used.
    algorithms: Vec<Algorithm>,
}

impl VerificationKey {
    fn new(key: DecodingKey) -> VerificationKey {
        let algorithms = key.family().algorithms().to_vec();
        VerificationKey { key, algorithms }
    }

    /// Reads a public key or a certificate.
    pub(crate) fn from_pem(pem: &[u8]) -> Result<VerificationKey, String> {
        if let Ok(der) = SubjectPublicKeyInfoDer::from_pem_slice(pem) {
            let (_, key) = SubjectPublicKeyInfo::from_der(der.as_ref())
                .map_err(|error| format!("the public key cannot be read: {error}"))?;
            return VerificationKey::from_info(&key);
        }
        let der = CertificateDer::from_pem_slice(pem)
            .map_err(|_| "neither a PUBLIC KEY nor a CERTIFICATE in PEM".to_owned())?;
        let (_, certificate) = X509Certificate::from_der(&der)
            .map_err(|error| format!("the certificate cannot be read: {error}"))?;
        VerificationKey::from_info(certificate.public_key())
    }

    fn from_info(info: &SubjectPublicKeyInfo<'_>) -> Result<VerificationKey, String> {
        let bytes = &info.subject_public_key.data;
        let key = match info.algorithm.algorithm.to_id_string().as_str() {
            "1.2.840.113549.1.1.1" => DecodingKey::from_rsa_der(bytes),
            "1.2.840.10045.2.1" => DecodingKey::from_ec_der(bytes),
            "1.3.101.112" => DecodingKey::from_ed_der(bytes),
            other => return Err(format!("the key has the unsupported algorithm {other}")),
        };
        Ok(VerificationKey::new(key))
    }

    /// None: the key is not for signatures, is no public key, or has an unknown type.
    fn from_jwk(jwk: &Jwk) -> Option<VerificationKey> {
        use jsonwebtoken::jwk::PublicKeyUse;
        let common = &jwk.common;
        if !matches!(common.public_key_use, None | Some(PublicKeyUse::Signature)) {
            return None;
        }
        let mut key = VerificationKey::new(DecodingKey::from_jwk(jwk).ok()?);
        // Anybody can read a key set, so a shared secret in it proves nothing.
        if key.key.family() == AlgorithmFamily::Hmac {
            return None;
        }
        if let Some(only) = common.key_algorithm {
            let only: Algorithm = only.to_string().parse().ok()?;
            key.algorithms.retain(|algorithm| *algorithm == only);
        }
        (!key.algorithms.is_empty()).then_some(key)
    }

    pub(crate) fn allows(&self, algorithm: Algorithm) -> bool {
        self.algorithms.contains(&algorithm)
    }
}

/// Keys by their ids.
#[derive(Clone, Default)]
pub(crate) struct KeySet {
    by_id: BTreeMap<Box<str>, VerificationKey>,
}

#[derive(Deserialize)]
struct JsonKeySet {
    keys: Vec<serde_json::Value>,
}

impl KeySet {
    /// Reads a JSON Web Key Set. Keys that cannot be used are left out (RFC 7517, section 5).
    pub(crate) fn from_json(json: &[u8]) -> Result<KeySet, String> {
        let set: JsonKeySet =
            serde_json::from_slice(json).map_err(|error| format!("no JSON key set: {error}"))?;
        let mut keys = KeySet::default();
        for value in set.keys {
            if keys.by_id.len() >= MAX_KEYS {
                break;
            }
            let Ok(jwk) = serde_json::from_value::<Jwk>(value) else {
                continue;
            };
            let id = jwk.common.key_id.clone().unwrap_or_default();
            if id.len() > MAX_KEY_ID {
                continue;
            }
            if let Some(key) = VerificationKey::from_jwk(&jwk) {
                keys.by_id.insert(id.into(), key);
            }
        }
        Ok(keys)
    }

    pub(crate) fn insert(&mut self, id: &str, key: VerificationKey) {
        self.by_id.insert(id.into(), key);
    }

    pub(crate) fn get(&self, id: &str) -> Option<&VerificationKey> {
        self.by_id.get(id)
    }

    /// The only key, for tokens that name none.
    pub(crate) fn only(&self) -> Option<&VerificationKey> {
        let mut keys = self.by_id.values();
        keys.next().filter(|_| self.by_id.len() == 1)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }
}

impl KeySet {
    /// Adds the keys of another set, which take precedence.
    pub(crate) fn extend(&mut self, other: KeySet) {
        self.by_id.extend(other.by_id);
    }
}
