//! One request with OTLP over HTTP, and the meaning of its answer.

use crate::messages::{ExportResponse, RpcStatus};
use prost::Message as _;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use ureq::http::Response;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// Largest file with certificates or headers.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Most bytes of an answer that are read.
const MAX_ANSWER_BYTES: u64 = 64 << 10;
/// Most characters of a collector's text that are logged.
const MAX_TEXT: usize = 200;
/// Longest time that a collector can ask us to wait.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);

/// The collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectorSettings {
    /// URL with http or https; `/v1/traces` and `/v1/metrics` are appended.
    pub endpoint: String,
    /// PEM file of the authorities that sign the collector's certificate. None: those of the operating system.
    pub cacertfile: Option<PathBuf>,
    /// Headers of each request.
    pub headers: Vec<(String, String)>,
    /// File with further headers, `name: value` in each line, which may be secrets.
    pub headers_file: Option<PathBuf>,
    /// Longest time of a request.
    pub timeout: Duration,
}

/// The answer to a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ExportOutcome {
    /// The collector has taken all but `rejected` items; it may say why.
    Accepted { rejected: u64, text: String },
    /// A later attempt may succeed, after this time if the collector names one.
    Later(String, Option<Duration>),
    /// The collector does not want it, now or later.
    Refused(String),
}

pub(crate) struct CollectorClient {
    agent: ureq::Agent,
    url: String,
    headers: Vec<(String, String)>,
}

impl CollectorClient {
    /// Reads the files. `signal`: `traces` or `metrics`.
    pub(crate) fn new(
        settings: &CollectorSettings,
        signal: &str,
    ) -> Result<CollectorClient, String> {
        let is_secure = settings.endpoint.starts_with("https://");
        let mut agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .https_only(is_secure)
            .max_redirects(0)
            .proxy(None)
            .user_agent("posthorn")
            .timeout_global(Some(settings.timeout));
        if is_secure {
            let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
            let roots = roots(settings.cacertfile.as_deref())
                .map_err(|error| format!("`opentelemetry.cacertfile`: {error}"))?;
            let tls = TlsConfig::builder()
                .root_certs(RootCerts::Specific(Arc::new(roots)))
                .unversioned_rustls_crypto_provider(provider);
            agent = agent.tls_config(tls.build());
        }
        let mut headers = settings.headers.clone();
        if let Some(file) = &settings.headers_file {
            let further = read_headers(file)
                .map_err(|error| format!("`opentelemetry.headers_file`: {error}"))?;
            headers.extend(further);
        }
        Ok(CollectorClient {
            agent: agent.build().into(),
            url: format!("{}/v1/{signal}", settings.endpoint.trim_end_matches('/')),
            headers,
        })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Sends a request and waits for its answer.
    pub(crate) fn send(&self, body: &[u8]) -> ExportOutcome {
        let mut request = self
            .agent
            .post(&self.url)
            .header("content-type", "application/x-protobuf");
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        match request.send(body) {
            Ok(answer) => read_answer(answer),
            Err(error) => ExportOutcome::Later(error.to_string(), None),
        }
    }
}

/// The meaning of an answer (OTLP/HTTP Response).
fn read_answer(mut answer: Response<ureq::Body>) -> ExportOutcome {
    let status = answer.status().as_u16();
    let after = answer.headers().get("retry-after");
    let after = after.and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let after = after.map(|seconds| Duration::from_secs(seconds).min(MAX_RETRY_AFTER));
    let body = answer.body_mut().with_config().limit(MAX_ANSWER_BYTES);
    let body = body.read_to_vec().unwrap_or_default();
    if (200..300).contains(&status) {
        let answer = ExportResponse::decode(&*body).unwrap_or_default();
        let partial = answer.partial_success.unwrap_or_default();
        return ExportOutcome::Accepted {
            rejected: u64::try_from(partial.rejected).unwrap_or(0),
            text: printable(&partial.error_message),
        };
    }
    let text = RpcStatus::decode(&*body).unwrap_or_default().message;
    let text = match text.is_empty() {
        true => format!("status {status}"),
        false => format!("status {status}: {}", printable(&text)),
    };
    match status {
        429 | 502 | 503 | 504 => ExportOutcome::Later(text, after),
        _ => ExportOutcome::Refused(text),
    }
}

fn printable(text: &str) -> String {
    let text = text.chars().filter(|c| !c.is_control());
    text.take(MAX_TEXT).collect()
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    let shown = file.display();
    let size = fs::metadata(file).map_err(|error| format!("{shown} cannot be read: {error}"))?;
    if size.len() > MAX_FILE_BYTES {
        return Err(format!("{shown} has more than {MAX_FILE_BYTES} bytes"));
    }
    fs::read(file).map_err(|error| format!("{shown} cannot be read: {error}"))
}

fn roots(cacertfile: Option<&Path>) -> Result<Vec<Certificate<'static>>, String> {
    let Some(file) = cacertfile else {
        let found = rustls_native_certs::load_native_certs();
        let roots = found.certs.iter();
        return Ok(roots.map(|c| Certificate::from_der(c).to_owned()).collect());
    };
    let (pem, shown) = (read(file)?, file.display());
    let found = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|error| format!("{shown} is no PEM file: {error}"))?;
    match found.is_empty() {
        true => Err(format!("{shown} has no certificate")),
        false => Ok(found
            .iter()
            .map(|c| Certificate::from_der(c).to_owned())
            .collect()),
    }
}

/// Returns true for the name and value of a header that can be sent. `content-type`, `content-length` and `host` are ours.
pub fn is_header(name: &str, value: &str) -> bool {
    let is_own = [
        "content-type",
        "content-length",
        "host",
        "transfer-encoding",
    ]
    .iter()
    .any(|own| name.eq_ignore_ascii_case(own));
    !is_own
        && ureq::http::HeaderName::try_from(name).is_ok()
        && ureq::http::HeaderValue::try_from(value).is_ok()
}

/// Errors name the line and never its content.
fn read_headers(file: &Path) -> Result<Vec<(String, String)>, String> {
    let shown = file.display();
    let text = String::from_utf8(read(file)?).map_err(|_| format!("{shown} is not UTF-8"))?;
    let mut headers = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let header = line.split_once(':').map(|(n, v)| (n.trim(), v.trim()));
        match header.filter(|(name, value)| is_header(name, value)) {
            Some((name, value)) => headers.push((name.to_owned(), value.to_owned())),
            None => {
                return Err(format!(
                    "line {number} of {shown} is no header: write `name: value`"
                ));
            }
        }
    }
    Ok(headers)
}
