//! The opening handshake (section 4.2).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use httparse::{EMPTY_HEADER, Header, Request, Status};
use sha1::{Digest, Sha1};

/// Maximum size of a request in bytes.
pub const MAX_REQUEST: usize = 16 << 10;

/// Maximum number of header fields of a request.
const MAX_FIELDS: usize = 100;

/// The GUID that is hashed with the client's key (section 1.3).
const MAGIC: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Length of the client's key in bytes.
const KEY: usize = 16;

/// The endpoint that the server offers.
#[derive(Clone, Copy, Debug)]
pub struct EndpointOffer<'a> {
    /// The only path, with the leading `/`.
    pub path: &'a str,
    /// Supported subprotocols in order of preference. The client must support one of them.
    pub protocols: &'a [&'a str],
    /// Allowed origins of web pages (header field Origin). Empty: all.
    pub origins: &'a [String],
}

/// The reason for refusing a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeRefusal {
    /// Not parseable as an HTTP/1.1 request.
    #[error("not an HTTP/1.1 request")]
    Malformed,
    /// Only GET can be upgraded.
    #[error("method must be GET")]
    Method,
    /// The path is not that of the listener.
    #[error("unknown path")]
    Path,
    /// The fields Upgrade and Connection do not ask for WebSocket.
    #[error("the fields Upgrade and Connection must request websocket")]
    NoUpgrade,
    /// The field Sec-WebSocket-Version is not 13.
    #[error("Sec-WebSocket-Version must be 13")]
    Version,
    /// The field Sec-WebSocket-Key is absent or malformed.
    #[error("Sec-WebSocket-Key must be 16 bytes in base64")]
    Key,
    /// HTTP/1.1 requires the field Host.
    #[error("the field Host is required")]
    Host,
    /// No subprotocol of the client is one of [`EndpointOffer::protocols`].
    #[error("Sec-WebSocket-Protocol contains no supported subprotocol")]
    Protocol,
    /// The field Origin is not in [`EndpointOffer::origins`].
    #[error("the origin is not allowed")]
    Origin,
    /// The request is longer than [`MAX_REQUEST`], or has too many fields.
    #[error("request is too large")]
    TooLarge,
}

impl HandshakeRefusal {
    /// The complete HTTP response.
    pub fn response(self) -> String {
        let (status, field) = match self {
            HandshakeRefusal::Method => ("405 Method Not Allowed", "Allow: GET\r\n"),
            HandshakeRefusal::Path => ("404 Not Found", ""),
            HandshakeRefusal::NoUpgrade => (
                "426 Upgrade Required",
                "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
            ),
            // Section 4.4
            HandshakeRefusal::Version => ("426 Upgrade Required", "Sec-WebSocket-Version: 13\r\n"),
            HandshakeRefusal::Origin => ("403 Forbidden", ""),
            HandshakeRefusal::TooLarge => ("431 Request Header Fields Too Large", ""),
            HandshakeRefusal::Malformed
            | HandshakeRefusal::Key
            | HandshakeRefusal::Host
            | HandshakeRefusal::Protocol => ("400 Bad Request", ""),
        };
        let text = self.to_string();
        let length = text.len() + 1;
        format!(
            "HTTP/1.1 {status}\r\n{field}Connection: close\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n\r\n{text}\n"
        )
    }
}

/// A granted request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandshakeResponse {
    /// Length of the request in bytes.
    pub read: usize,
    /// The complete response. Frames follow it.
    pub response: String,
}

/// Handles the input received so far. Returns None if the request is incomplete.
pub fn answer(
    input: &[u8],
    offer: &EndpointOffer<'_>,
) -> Result<Option<HandshakeResponse>, HandshakeRefusal> {
    let mut fields = [EMPTY_HEADER; MAX_FIELDS];
    let mut request = Request::new(&mut fields);
    let read = match request.parse(input) {
        Ok(Status::Complete(read)) if read <= MAX_REQUEST => read,
        Ok(Status::Partial) if input.len() < MAX_REQUEST => return Ok(None),
        Ok(_) | Err(httparse::Error::TooManyHeaders) => return Err(HandshakeRefusal::TooLarge),
        Err(_) => return Err(HandshakeRefusal::Malformed),
    };
    let response = respond(&request, offer)?;
    Ok(Some(HandshakeResponse { read, response }))
}

/// Checks the request in the order of section 4.2.1 and builds the response (section 4.2.2).
fn respond(
    request: &Request<'_, '_>,
    offer: &EndpointOffer<'_>,
) -> Result<String, HandshakeRefusal> {
    if request.method != Some("GET") {
        return Err(HandshakeRefusal::Method);
    }
    if request.version != Some(1) {
        return Err(HandshakeRefusal::Malformed);
    }
    let target = request.path.unwrap_or_default();
    if target.split('?').next() != Some(offer.path) {
        return Err(HandshakeRefusal::Path);
    }
    let fields = &*request.headers;
    if values(fields, "host").next().is_none() {
        return Err(HandshakeRefusal::Host);
    }
    let requests =
        |name, wanted: &str| tokens(fields, name).any(|t| t.eq_ignore_ascii_case(wanted));
    if !requests("upgrade", "websocket") || !requests("connection", "upgrade") {
        return Err(HandshakeRefusal::NoUpgrade);
    }
    let key = single_value(fields, "sec-websocket-key").ok_or(HandshakeRefusal::Key)?;
    if STANDARD.decode(key).map(|key| key.len()) != Ok(KEY) {
        return Err(HandshakeRefusal::Key);
    }
    if single_value(fields, "sec-websocket-version") != Some("13") {
        return Err(HandshakeRefusal::Version);
    }
    let is_allowed = |origin: &str| offer.origins.iter().any(|o| o.eq_ignore_ascii_case(origin));
    // Only browsers send Origin.
    if !offer.origins.is_empty() && !values(fields, "origin").all(is_allowed) {
        return Err(HandshakeRefusal::Origin);
    }
    let is_requested =
        |supported: &&&str| tokens(fields, "sec-websocket-protocol").any(|p| p == **supported);
    let protocol = offer.protocols.iter().find(is_requested);
    let protocol = protocol.ok_or(HandshakeRefusal::Protocol)?;
    let accept = accept(key);
    Ok(format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: {protocol}\r\n\r\n"
    ))
}

/// Computes Sec-WebSocket-Accept (section 4.2.2, 5.4).
fn accept(key: &str) -> String {
    let mut hash = Sha1::new();
    hash.update(key.as_bytes());
    hash.update(MAGIC);
    STANDARD.encode(hash.finalize())
}

/// The values of all header fields with this name. Values that are not text are ignored.
fn values<'a>(fields: &'a [Header<'a>], name: &'a str) -> impl Iterator<Item = &'a str> {
    let all = fields
        .iter()
        .filter(move |f| f.name.eq_ignore_ascii_case(name));
    all.filter_map(|f| std::str::from_utf8(f.value).ok())
        .map(str::trim)
}

/// The elements of comma-separated values.
fn tokens<'a>(fields: &'a [Header<'a>], name: &'a str) -> impl Iterator<Item = &'a str> {
    values(fields, name)
        .flat_map(|value| value.split(','))
        .map(str::trim)
}

/// The value of a header field that must occur exactly once (section 11.3.1).
fn single_value<'a>(fields: &'a [Header<'a>], name: &'a str) -> Option<&'a str> {
    let mut all = values(fields, name);
    all.next().filter(|_| all.next().is_none())
}
