//! An object store with the S3 API. Its calls block.
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

use bytes::Bytes;
use rusty_s3::actions::ListObjectsV2;
use rusty_s3::{Bucket, Credentials, S3Action, UrlStyle};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use stream_tier::{ObjectStore, StoreError};
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// Longest time for a connection to the store.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time of a call. A part has to be transferred in it.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a signature is valid. The clocks of the node and the store may differ by less.
const SIGNATURE_LIFE: Duration = Duration::from_secs(900);
/// Most bytes of a listing's page.
const MAX_LISTING_BYTES: u64 = 8 << 20;
/// Most bytes of an error text of the store that are logged.
const MAX_ERROR_BYTES: u64 = 1 << 10;
/// Most bytes of the file with the secret.
const MAX_SECRET_BYTES: usize = 4 << 10;

/// The address of a bucket, and the credentials for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct S3Settings {
    /// URL of the S3 API.
    pub endpoint: String,
    /// Bucket, which must exist.
    pub bucket: String,
    /// Region in signatures; empty: `us-east-1`.
    pub region: String,
    /// Access key id.
    pub access_key_id: String,
    /// File that has the secret access key.
    pub secret_access_key_file: PathBuf,
    /// The bucket is part of the host name, not of the path.
    pub virtual_hosts: bool,
}

/// A bucket. See the crate.
pub struct S3Store {
    bucket: Bucket,
    credentials: Credentials,
    agent: ureq::Agent,
}

impl fmt::Debug for S3Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "S3Store({})", self.bucket.name())
    }
}

impl S3Store {
    /// Does not connect.
    ///
    /// # Errors
    ///
    /// A text with the key and the remedy if a setting cannot be used.
    pub fn new(config: &S3Settings) -> Result<S3Store, String> {
        let file = config.secret_access_key_file.display();
        let secret = std::fs::read_to_string(&config.secret_access_key_file)
            .map_err(|e| format!("secret_access_key_file {file} cannot be read: {e}"))?;
        let secret = secret.trim();
        if secret.is_empty() || secret.len() > MAX_SECRET_BYTES {
            return Err(format!(
                "secret_access_key_file {file} must have 1 to {MAX_SECRET_BYTES} bytes"
            ));
        }
        S3Store::with_secret(config, secret)
    }

    /// As [`S3Store::new`], with the secret access key itself instead of its file.
    ///
    /// # Errors
    ///
    /// A text with the key and the remedy if a setting cannot be used.
    pub fn with_secret(config: &S3Settings, secret: &str) -> Result<S3Store, String> {
        let endpoint = config.endpoint.parse();
        let endpoint =
            endpoint.map_err(|e| format!("endpoint '{}' is no URL: {e}", config.endpoint))?;
        let style = match config.virtual_hosts {
            true => UrlStyle::VirtualHost,
            false => UrlStyle::Path,
        };
        let region = match config.region.is_empty() {
            true => "us-east-1".to_owned(),
            false => config.region.clone(),
        };
        let bucket = Bucket::new(endpoint, style, config.bucket.clone(), region)
            .map_err(|e| format!("endpoint and bucket '{}' do not fit: {e}", config.bucket))?;
        let credentials = Credentials::new(config.access_key_id.clone(), secret);
        let is_secure = config.endpoint.starts_with("https://");
        let mut agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .https_only(is_secure)
            .max_redirects(0)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_global(Some(CALL_TIMEOUT));
        if is_secure {
            agent = agent.tls_config(tls_config()?);
        }
        Ok(S3Store {
            bucket,
            credentials,
            agent: agent.build().into(),
        })
    }
}

fn tls_config() -> Result<TlsConfig, String> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        let text = "this machine trusts no certificate authority: install the CA certificates of the operating system";
        return Err(text.to_owned());
    }
    let roots = found.certs.iter();
    let roots: Vec<Certificate<'static>> =
        roots.map(|c| Certificate::from_der(c).to_owned()).collect();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    Ok(TlsConfig::builder()
        .root_certs(RootCerts::Specific(Arc::new(roots)))
        .unversioned_rustls_crypto_provider(provider)
        .build())
}

type Response = ureq::http::Response<ureq::Body>;

fn unavailable(call: &'static str, key: &str, error: impl ToString) -> StoreError {
    StoreError::Unavailable {
        call,
        key: key.to_owned(),
        error: error.to_string(),
    }
}

/// The response if its status says that the call was done.
fn check(
    call: &'static str,
    key: &str,
    response: Result<Response, ureq::Error>,
) -> Result<Response, StoreError> {
    // The error has no URL, which has a signature.
    let mut response = response.map_err(|error| unavailable(call, key, error))?;
    let key_of = || key.to_owned();
    match response.status().as_u16() {
        200..=299 => Ok(response),
        404 if is_missing_key(&mut response, call) => Err(StoreError::Missing { key: key_of() }),
        412 => Err(StoreError::Exists { key: key_of() }),
        status => {
            let body = response.body_mut().with_config().limit(MAX_ERROR_BYTES);
            let text = body.read_to_string().unwrap_or_default();
            Err(unavailable(call, key, format!("status {status} {text}")))
        }
    }
}

/// A missing bucket has the same status as a missing object, but the objects of a bucket that is gone may return.
fn is_missing_key(response: &mut Response, call: &str) -> bool {
    if call == "list" {
        return false;
    }
    let body = response.body_mut().with_config().limit(MAX_ERROR_BYTES);
    !body
        .read_to_string()
        .unwrap_or_default()
        .contains("NoSuchBucket")
}

impl ObjectStore for S3Store {
    fn create(&self, key: &str, content: Bytes) -> Result<(), StoreError> {
        let action = self.bucket.put_object(Some(&self.credentials), key);
        let url = action.sign(SIGNATURE_LIFE);
        let request = self.agent.put(url.as_str()).header("If-None-Match", "*");
        check("create", key, request.send(&content[..])).map(|_| ())
    }

    fn get(&self, key: &str, limit: u64) -> Result<Bytes, StoreError> {
        let action = self.bucket.get_object(Some(&self.credentials), key);
        let url = action.sign(SIGNATURE_LIFE);
        // Bytes beyond the limit are not transferred.
        let request = self
            .agent
            .get(url.as_str())
            .header("Range", format!("bytes=0-{limit}"));
        let mut response = check("get", key, request.call())?;
        let body = response.body_mut().with_config().limit(limit + 2);
        let bytes = body
            .read_to_vec()
            .map_err(|error| unavailable("get", key, error))?;
        let len = bytes.len().min(
            usize::try_from(limit)
                .unwrap_or(usize::MAX)
                .saturating_add(1),
        );
        Ok(Bytes::from(bytes).slice(..len))
    }

    fn head(&self, key: &str) -> Result<u64, StoreError> {
        let action = self.bucket.head_object(Some(&self.credentials), key);
        let url = action.sign(SIGNATURE_LIFE);
        let response = check("head", key, self.agent.head(url.as_str()).call())?;
        let header = response.headers().get("content-length");
        let len = header.and_then(|value| value.to_str().ok()?.parse().ok());
        len.ok_or_else(|| unavailable("head", key, "the answer has no length"))
    }

    fn list(&self, prefix: &str, after: &str) -> Result<Vec<String>, StoreError> {
        let mut action = self.bucket.list_objects_v2(Some(&self.credentials));
        action.with_prefix(prefix);
        if !after.is_empty() {
            action.with_start_after(after);
        }
        let url = action.sign(SIGNATURE_LIFE);
        let mut response = check("list", prefix, self.agent.get(url.as_str()).call())?;
        let body = response.body_mut().with_config().limit(MAX_LISTING_BYTES);
        let text = body
            .read_to_string()
            .map_err(|error| unavailable("list", prefix, error))?;
        let listing = ListObjectsV2::parse_response(&text)
            .map_err(|error| unavailable("list", prefix, error))?;
        let keys = listing.contents.into_iter().map(|object| object.key);
        let mut keys: Vec<String> = keys.filter(|key| key.as_str() > after).collect();
        keys.sort_unstable();
        Ok(keys)
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        let action = self.bucket.delete_object(Some(&self.credentials), key);
        let url = action.sign(SIGNATURE_LIFE);
        match check("delete", key, self.agent.delete(url.as_str()).call()) {
            Err(StoreError::Missing { .. }) => Ok(()),
            other => other.map(|_| ()),
        }
    }
}

#[cfg(test)]
mod tests;
