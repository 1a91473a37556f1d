//! An OpenID provider for tests: discovery, a key set, tokens, and answers to requests for tokens.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use rcgen::KeyPair;
use serde_json::{Value as Json, json};
use std::error::Error;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A key that signs tokens with ES256.
pub struct TokenKey {
    id: String,
    pair: KeyPair,
}

impl TokenKey {
    /// Creates a key with this id.
    pub fn new(id: &str) -> Result<TokenKey> {
        Ok(TokenKey {
            id: id.to_owned(),
            pair: KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?,
        })
    }

    /// A signed token with these claims.
    pub fn token(&self, claims: &Json) -> Result<String> {
        self.token_with(Some(&self.id), claims)
    }

    /// As [`TokenKey::token`], with another key id or none.
    pub fn token_with(&self, id: Option<&str>, claims: &Json) -> Result<String> {
        let mut header = Header::new(Algorithm::ES256);
        header.kid = id.map(str::to_owned);
        let key = EncodingKey::from_ec_der(&self.pair.serialize_der());
        Ok(jsonwebtoken::encode(&header, claims, &key)?)
    }

    /// The public key in PEM.
    pub fn pem(&self) -> String {
        self.pair.public_key_pem()
    }

    /// The public key as JSON Web Key.
    pub fn jwk(&self) -> Json {
        let point = self.pair.public_key_raw();
        let (x, y) = point.get(1..).unwrap_or_default().split_at(32);
        json!({
            "kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": self.id,
            "x": URL_SAFE_NO_PAD.encode(x), "y": URL_SAFE_NO_PAD.encode(y),
        })
    }
}

/// The answer of a provider to requests for its keys.
enum KeySetBody {
    Bytes(Vec<u8>),
    /// More bytes than any client reads.
    Endless,
    /// Status 503.
    Unavailable,
}

struct ProviderState {
    keys: KeySetBody,
    fetches: usize,
    /// Status and body of the answer to requests for tokens.
    tokens: (u16, Json),
    /// The forms of these requests.
    forms: Vec<String>,
}

/// A provider on loopback, without TLS. It serves until the process ends.
pub struct OidcProvider {
    address: SocketAddr,
    state: Arc<Mutex<ProviderState>>,
}

impl OidcProvider {
    /// Starts a provider with these keys.
    pub fn start(keys: &[&TokenKey]) -> Result<OidcProvider> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let provider = OidcProvider {
            address: listener.local_addr()?,
            state: Arc::new(Mutex::new(ProviderState {
                keys: KeySetBody::Unavailable,
                fetches: 0,
                tokens: (400, json!({"error": "invalid_request"})),
                forms: Vec::new(),
            })),
        };
        provider.publish(keys);
        let (issuer, state) = (provider.issuer(), provider.state.clone());
        std::thread::Builder::new()
            .name("oidc".to_owned())
            .spawn(move || {
                for socket in listener.incoming().flatten() {
                    // The client may have closed its connection.
                    let _ = answer(socket, &issuer, &state);
                }
            })?;
        Ok(provider)
    }

    fn lock(&self) -> MutexGuard<'_, ProviderState> {
        lock(&self.state)
    }

    /// The URL of the provider.
    pub fn issuer(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Replaces the keys.
    pub fn publish(&self, keys: &[&TokenKey]) {
        let keys: Vec<Json> = keys.iter().map(|key| key.jwk()).collect();
        self.publish_bytes(json!({"keys": keys}).to_string().into_bytes());
    }

    /// Replaces the key set by these bytes.
    pub fn publish_bytes(&self, bytes: Vec<u8>) {
        self.lock().keys = KeySetBody::Bytes(bytes);
    }

    /// Answers with a key set that does not end.
    pub fn publish_endless(&self) {
        self.lock().keys = KeySetBody::Endless;
    }

    /// Answers with an error.
    pub fn break_down(&self) {
        self.lock().keys = KeySetBody::Unavailable;
    }

    /// Answers requests for tokens with this status and body.
    pub fn answer_tokens(&self, status: u16, body: Json) {
        self.lock().tokens = (status, body);
    }

    /// The forms of all requests for tokens.
    pub fn token_requests(&self) -> Vec<String> {
        self.lock().forms.clone()
    }

    /// The number of requests for keys.
    pub fn fetches(&self) -> usize {
        self.lock().fetches
    }
}

fn lock(state: &Mutex<ProviderState>) -> MutexGuard<'_, ProviderState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn answer(
    mut socket: TcpStream,
    issuer: &str,
    state: &Mutex<ProviderState>,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(socket.try_clone()?);
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let (mut line, mut length) = (String::new(), 0);
    while reader.read_line(&mut line)? > 2 {
        let header = line.to_ascii_lowercase();
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or_default();
        }
        line.clear();
    }
    let mut form = String::new();
    reader.take(length).read_to_string(&mut form)?;
    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
    let body = match path.as_str() {
        "/.well-known/openid-configuration" => {
            let configuration = json!({
                "issuer": issuer,
                "jwks_uri": format!("{issuer}/keys"),
                "authorization_endpoint": format!("{issuer}/authorize"),
                "token_endpoint": format!("{issuer}/token"),
            });
            Some(configuration.to_string().into_bytes())
        }
        "/token" => {
            let mut state = lock(state);
            state.forms.push(form);
            let (status, body) = (state.tokens.0, state.tokens.1.to_string());
            let length = body.len();
            return write!(
                socket,
                "HTTP/1.1 {status} x\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
            );
        }
        "/keys" => {
            let mut state = lock(state);
            state.fetches += 1;
            match &state.keys {
                KeySetBody::Bytes(bytes) => Some(bytes.clone()),
                KeySetBody::Unavailable => None,
                KeySetBody::Endless => {
                    drop(state);
                    socket.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{\"keys\":[")?;
                    let spaces = vec![b' '; 64 * 1024];
                    loop {
                        socket.write_all(&spaces)?;
                    }
                }
            }
        }
        _ => None,
    };
    let (status, body) = match body {
        Some(body) => ("200 OK", body),
        None => ("503 Service Unavailable", Vec::new()),
    };
    let length = body.len();
    write!(
        socket,
        "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    )?;
    socket.write_all(&body)
}
