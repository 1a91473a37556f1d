//! The opening handshake (section 4.2).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use httparse::{EMPTY_HEADER, Header, Request, Status};
use sha1::{Digest, Sha1};

/// Bytes of a request at most.
pub const MAX_REQUEST: usize = 16 << 10;

/// Header fields of a request at most.
const MAX_FIELDS: usize = 100;

/// What the answer's key is made with (section 1.3).
const MAGIC: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Bytes of the client's key.
const KEY: usize = 16;

/// What the server has to offer.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'a> {
    /// The only path, `/` first.
    pub path: &'a str,
    /// Subprotocols, the best first. The client must know one.
    pub protocols: &'a [&'a str],
    /// Web pages of which may connect (the field Origin); empty: all.
    pub origins: &'a [String],
}

/// The request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Not parseable as an HTTP/1.1 request.
    #[error("this is not a request of HTTP/1.1")]
    Malformed,
    /// Only GET can be upgraded.
    #[error("a method other than GET")]
    Method,
    /// The path is not that of the listener.
    #[error("another path")]
    Path,
    /// The fields Upgrade and Connection do not ask for WebSocket.
    #[error("no upgrade to websocket is asked for")]
    NoUpgrade,
    /// The field Sec-WebSocket-Version is not 13.
    #[error("a version of WebSocket other than 13")]
    Version,
    /// The field Sec-WebSocket-Key is absent or malformed.
    #[error("Sec-WebSocket-Key is not 16 bytes in base64")]
    Key,
    /// HTTP/1.1 requires the field Host.
    #[error("the field Host is missing")]
    Host,
    /// No subprotocol of the client is one of [`Offer::protocols`].
    #[error("none of the subprotocols is known here")]
    Protocol,
    /// The field Origin is not in [`Offer::origins`].
    #[error("pages of this origin may not connect")]
    Origin,
    /// The request is longer than [`MAX_REQUEST`], or has too many fields.
    #[error("a request that is too large")]
    TooLarge,
}

impl Refusal {
    /// The whole response.
    pub fn response(self) -> String {
        let (status, field) = match self {
            Refusal::Method => ("405 Method Not Allowed", "Allow: GET\r\n"),
            Refusal::Path => ("404 Not Found", ""),
            Refusal::NoUpgrade => (
                "426 Upgrade Required",
                "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
            ),
            // Section 4.4
            Refusal::Version => ("426 Upgrade Required", "Sec-WebSocket-Version: 13\r\n"),
            Refusal::Origin => ("403 Forbidden", ""),
            Refusal::TooLarge => ("431 Request Header Fields Too Large", ""),
            Refusal::Malformed | Refusal::Key | Refusal::Host | Refusal::Protocol => {
                ("400 Bad Request", "")
            }
        };
        let text = self.to_string();
        let length = text.len() + 1;
        format!(
            "HTTP/1.1 {status}\r\n{field}Connection: close\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n\r\n{text}\n"
        )
    }
}

/// The request is granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Bytes of the request.
    pub read: usize,
    /// The whole response; frames follow it.
    pub response: String,
}

/// The answer to what has come of a request. None: it has not come wholly.
pub fn answer(input: &[u8], offer: &Offer<'_>) -> Result<Option<Answer>, Refusal> {
    let mut fields = [EMPTY_HEADER; MAX_FIELDS];
    let mut request = Request::new(&mut fields);
    let read = match request.parse(input) {
        Ok(Status::Complete(read)) if read <= MAX_REQUEST => read,
        Ok(Status::Partial) if input.len() < MAX_REQUEST => return Ok(None),
        Ok(_) | Err(httparse::Error::TooManyHeaders) => return Err(Refusal::TooLarge),
        Err(_) => return Err(Refusal::Malformed),
    };
    let response = respond(&request, offer)?;
    Ok(Some(Answer { read, response }))
}

/// Section 4.2.1 in its order, and section 4.2.2.
fn respond(request: &Request<'_, '_>, offer: &Offer<'_>) -> Result<String, Refusal> {
    if request.method != Some("GET") {
        return Err(Refusal::Method);
    }
    if request.version != Some(1) {
        return Err(Refusal::Malformed);
    }
    let target = request.path.unwrap_or_default();
    if target.split('?').next() != Some(offer.path) {
        return Err(Refusal::Path);
    }
    let fields = &*request.headers;
    if values(fields, "host").next().is_none() {
        return Err(Refusal::Host);
    }
    let asks = |name, wanted: &str| tokens(fields, name).any(|t| t.eq_ignore_ascii_case(wanted));
    if !asks("upgrade", "websocket") || !asks("connection", "upgrade") {
        return Err(Refusal::NoUpgrade);
    }
    let key = only(fields, "sec-websocket-key").ok_or(Refusal::Key)?;
    if STANDARD.decode(key).map(|key| key.len()) != Ok(KEY) {
        return Err(Refusal::Key);
    }
    if only(fields, "sec-websocket-version") != Some("13") {
        return Err(Refusal::Version);
    }
    let allowed = |origin: &str| offer.origins.iter().any(|o| o.eq_ignore_ascii_case(origin));
    // Only browsers send it.
    if !offer.origins.is_empty() && !values(fields, "origin").all(allowed) {
        return Err(Refusal::Origin);
    }
    let offered = |known: &&&str| tokens(fields, "sec-websocket-protocol").any(|p| p == **known);
    let protocol = offer.protocols.iter().find(offered);
    let protocol = protocol.ok_or(Refusal::Protocol)?;
    let accept = accept(key);
    Ok(format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: {protocol}\r\n\r\n"
    ))
}

/// Section 4.2.2, 5.4.
fn accept(key: &str) -> String {
    let mut hash = Sha1::new();
    hash.update(key.as_bytes());
    hash.update(MAGIC);
    STANDARD.encode(hash.finalize())
}

/// The values of all fields with this name; those that are not text are passed over.
fn values<'a>(fields: &'a [Header<'a>], name: &'a str) -> impl Iterator<Item = &'a str> {
    let all = fields
        .iter()
        .filter(move |f| f.name.eq_ignore_ascii_case(name));
    all.filter_map(|f| std::str::from_utf8(f.value).ok())
        .map(str::trim)
}

/// The elements of the lists in them.
fn tokens<'a>(fields: &'a [Header<'a>], name: &'a str) -> impl Iterator<Item = &'a str> {
    values(fields, name)
        .flat_map(|value| value.split(','))
        .map(str::trim)
}

/// The value of a field that must be there once (section 11.3.1).
fn only<'a>(fields: &'a [Header<'a>], name: &'a str) -> Option<&'a str> {
    let mut all = values(fields, name);
    all.next().filter(|_| all.next().is_none())
}
