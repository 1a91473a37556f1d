//! A client of one LDAP server with the operations that logins need (RFC 4511). It trusts no length and no count of the
//! server.

use super::ber::{
    self, BOOLEAN, ENUMERATED, Elements, INTEGER, MAX_LENGTH_BYTES, OCTET_STRING, SEQUENCE,
    constructed, element, number,
};
use env::{Clock, Time};
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use rustls_pki_types::ServerName;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;

/// Most bytes of one response.
pub(crate) const MAX_RESPONSE_BYTES: usize = 64 * 1024;
/// Most bytes of all responses to one login.
pub(crate) const MAX_LOGIN_BYTES: usize = 1 << 20;
/// Longest distinguished name of an entry in bytes.
const MAX_DN: usize = 4096;
/// Most characters of a server's text that are logged.
const MAX_DIAGNOSTIC: usize = 200;
/// Most addresses of a server that are tried.
const MAX_ADDRESSES: usize = 8;

const BIND_REQUEST: u8 = 0x60;
const BIND_RESPONSE: u8 = 0x61;
const UNBIND_REQUEST: u8 = 0x42;
const SEARCH_REQUEST: u8 = 0x63;
const SEARCH_ENTRY: u8 = 0x64;
const SEARCH_DONE: u8 = 0x65;
const SEARCH_REFERENCE: u8 = 0x73;
const EXTENDED_REQUEST: u8 = 0x77;
const EXTENDED_RESPONSE: u8 = 0x78;
const SIMPLE_PASSWORD: u8 = 0x80;
const REQUEST_NAME: u8 = 0x80;
const FILTER_OR: u8 = 0xa1;
const FILTER_EQUALITY: u8 = 0xa3;
/// RFC 4511, section 4.14.1.
const START_TLS: &[u8] = b"1.3.6.1.4.1.1466.20037";
/// Selects no attributes (RFC 4511, section 4.5.1.8).
const NO_ATTRIBUTES: &[u8] = b"1.1";

const SUCCESS: u32 = 0;
const SIZE_LIMIT_EXCEEDED: u32 = 4;
const REFERRAL: u32 = 10;
const NO_SUCH_OBJECT: u32 = 32;
const INVALID_CREDENTIALS: u32 = 49;
const BUSY: u32 = 51;
const UNAVAILABLE: u32 = 52;

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LdapError {
    /// The server cannot be used. Another one may be.
    Server(String),
    /// The server refused the password of a bind.
    Credentials(String),
    /// The server refused an operation.
    Refused(String),
}

fn server_error(what: &str) -> impl Fn(io::Error) -> LdapError {
    move |error| match error.kind() {
        // Which of the two a socket reports depends on the platform.
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => LdapError::Server(format!(
            "{what}: no answer within `auth_ldap.timeout`; check that the server is up"
        )),
        _ => LdapError::Server(format!("{what}: {error}")),
    }
}

fn malformed() -> LdapError {
    let why = "the answer is not LDAP; check that `auth_ldap.port` is the port of an LDAP server, and that \
               `auth_ldap.use_ssl` fits the port";
    LdapError::Server(why.to_owned())
}

/// The connection part of the settings, for one server.
pub(crate) struct ServerAddress<'s> {
    pub(crate) host: &'s str,
    pub(crate) port: u16,
}

/// How a connection is protected.
#[derive(Clone)]
pub(crate) enum Protection {
    /// Nothing is encrypted.
    None,
    /// TLS from the first byte.
    Tls(Arc<ClientConfig>),
    /// TLS after a request on the connection.
    StartTls(Arc<ClientConfig>),
}

/// A socket whose reads and writes end at a time.
struct DeadlineSocket {
    socket: TcpStream,
    clock: Arc<dyn Clock + Send + Sync>,
    deadline: Time,
}

impl DeadlineSocket {
    fn remaining(&self) -> io::Result<Duration> {
        let remaining = self.deadline.since(self.clock.now());
        match remaining.is_zero() {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => Ok(remaining),
        }
    }
}

impl Read for DeadlineSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(self.remaining()?))?;
        self.socket.read(buffer)
    }
}

impl Write for DeadlineSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(self.remaining()?))?;
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

enum Transport {
    Plain(DeadlineSocket),
    Tls(Box<StreamOwned<ClientConnection, DeadlineSocket>>),
}

impl Transport {
    fn encrypt(
        self,
        config: &Arc<ClientConfig>,
        name: &ServerName<'static>,
    ) -> Result<Transport, LdapError> {
        let Transport::Plain(mut socket) = self else {
            return Ok(self);
        };
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::InvalidData => LdapError::Server(format!(
                "TLS: {error}; check `auth_ldap.ssl_options.cacertfile`, the name in the server's certificate, and that \
                 `auth_ldap.port` is a port with TLS"
            )),
            _ => server_error("TLS")(error),
        };
        let connection = ClientConnection::new(config.clone(), name.clone());
        let mut connection = connection.map_err(|error| failed(io::Error::other(error)))?;
        while connection.is_handshaking() {
            connection.complete_io(&mut socket).map_err(failed)?;
        }
        Ok(Transport::Tls(Box::new(StreamOwned::new(
            connection, socket,
        ))))
    }

    fn read_exact(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        match self {
            Transport::Plain(socket) => socket.read_exact(buffer),
            Transport::Tls(stream) => stream.read_exact(buffer),
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Transport::Plain(socket) => socket.write_all(bytes),
            Transport::Tls(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
        }
    }
}

/// A part of the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SearchScope {
    /// The entry itself.
    Entry,
    /// The entry and everything below it.
    Subtree,
}

/// Matches entries of which an attribute has a value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Equality<'q> {
    pub(crate) attribute: &'q str,
    pub(crate) value: &'q str,
}

/// A search for the names of entries.
#[derive(Clone, Debug)]
pub(crate) struct SearchQuery<'q> {
    pub(crate) base: &'q str,
    pub(crate) scope: SearchScope,
    /// One of these must match.
    pub(crate) any: &'q [Equality<'q>],
    /// Most entries.
    pub(crate) limit: usize,
}

/// The result of a search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FoundEntries {
    /// The distinguished names of the entries.
    pub(crate) dns: Vec<String>,
    /// There are more entries than the limit.
    pub(crate) has_more: bool,
}

struct OperationResult {
    code: u32,
    diagnostic: String,
}

impl OperationResult {
    fn parse(content: &[u8]) -> Option<OperationResult> {
        let mut elements = Elements(content);
        let code = elements.read_number(ENUMERATED)?;
        let _matched_dn = elements.read(OCTET_STRING)?;
        let text = String::from_utf8_lossy(elements.read(OCTET_STRING)?).into_owned();
        let printable = text.chars().filter(|c| !c.is_control());
        Some(OperationResult {
            code,
            diagnostic: printable.take(MAX_DIAGNOSTIC).collect(),
        })
    }

    fn describe(&self, operation: &str) -> String {
        let meaning = match self.code {
            REFERRAL => {
                "a referral, which is not followed: name the server that has the entries in `auth_ldap.servers`"
            }
            1 => {
                "operationsError: the server may require another bind, see `auth_ldap.dn_lookup_bind` and \
                  `auth_ldap.other_bind`"
            }
            3 => "timeLimitExceeded",
            8 => {
                "strongerAuthRequired: the server may require `auth_ldap.use_ssl` or `auth_ldap.use_starttls`"
            }
            11 => "adminLimitExceeded",
            13 => "confidentialityRequired: set `auth_ldap.use_ssl` or `auth_ldap.use_starttls`",
            NO_SUCH_OBJECT => "noSuchObject",
            34 => "invalidDNSyntax: check `auth_ldap.user_dn_pattern`",
            48 => "inappropriateAuthentication",
            INVALID_CREDENTIALS => "invalidCredentials",
            50 => "insufficientAccessRights",
            BUSY => "busy",
            UNAVAILABLE => "unavailable",
            53 => "unwillingToPerform",
            _ => "an error",
        };
        let code = self.code;
        match self.diagnostic.is_empty() {
            true => format!("{operation}: the server answers with result {code}, {meaning}"),
            false => {
                let diagnostic = &self.diagnostic;
                format!(
                    "{operation}: the server answers with result {code}, {meaning} ({diagnostic})"
                )
            }
        }
    }

    fn check(&self, operation: &str) -> Result<(), LdapError> {
        match self.code {
            SUCCESS => Ok(()),
            BUSY | UNAVAILABLE => Err(LdapError::Server(self.describe(operation))),
            INVALID_CREDENTIALS => Err(LdapError::Credentials(self.describe(operation))),
            _ => Err(LdapError::Refused(self.describe(operation))),
        }
    }
}

/// A connection to a server.
pub(crate) struct LdapConnection {
    /// None: a handshake has failed.
    transport: Option<Transport>,
    last_id: u32,
    /// Bytes that the server may still send.
    allowance: usize,
}

impl LdapConnection {
    /// Connects to the server. Everything on this connection ends at the deadline.
    pub(crate) fn open(
        address: &ServerAddress<'_>,
        (protection, name): (&Protection, &ServerName<'static>),
        (clock, deadline): (&Arc<dyn Clock + Send + Sync>, Time),
    ) -> Result<LdapConnection, LdapError> {
        let socket = connect(address, clock, deadline)?;
        // A missing TCP_NODELAY makes logins slower, not wrong.
        let _ = socket.set_nodelay(true);
        let transport = Transport::Plain(DeadlineSocket {
            socket,
            clock: clock.clone(),
            deadline,
        });
        let mut connection = LdapConnection {
            transport: Some(transport),
            last_id: 0,
            allowance: MAX_LOGIN_BYTES,
        };
        match protection {
            Protection::None => {}
            Protection::Tls(config) => connection.encrypt(config, name)?,
            Protection::StartTls(config) => {
                connection.request_tls()?;
                connection.encrypt(config, name)?;
            }
        }
        Ok(connection)
    }

    fn encrypt(
        &mut self,
        config: &Arc<ClientConfig>,
        name: &ServerName<'static>,
    ) -> Result<(), LdapError> {
        if let Some(transport) = self.transport.take() {
            self.transport = Some(transport.encrypt(config, name)?);
        }
        Ok(())
    }

    /// Bytes that follow the answer without TLS are not taken for a part of the encrypted connection, because nothing
    /// is read ahead.
    fn request_tls(&mut self) -> Result<(), LdapError> {
        let name = element(REQUEST_NAME, START_TLS);
        let id = self.send(&element(EXTENDED_REQUEST, &name))?;
        let result = self.receive_result(id, EXTENDED_RESPONSE)?;
        match result.code {
            SUCCESS => Ok(()),
            _ => Err(LdapError::Server(format!(
                "{}; the server may not support StartTLS",
                result.describe("StartTLS")
            ))),
        }
    }

    /// Authenticates the connection. The password must not be empty: such a bind succeeds without a check on many
    /// servers (RFC 4513, section 5.1.2).
    pub(crate) fn bind(&mut self, name: &str, password: &[u8]) -> Result<(), LdapError> {
        if name.is_empty() || password.is_empty() {
            let why = "bind: the name or the password is empty";
            return Err(LdapError::Refused(why.to_owned()));
        }
        self.simple_bind(name.as_bytes(), password)
    }

    /// Makes the connection anonymous again.
    pub(crate) fn bind_anonymously(&mut self) -> Result<(), LdapError> {
        self.simple_bind(b"", b"")
    }

    fn simple_bind(&mut self, name: &[u8], password: &[u8]) -> Result<(), LdapError> {
        let request = constructed(
            BIND_REQUEST,
            &[
                &number(INTEGER, 3),
                &element(OCTET_STRING, name),
                &element(SIMPLE_PASSWORD, password),
            ],
        );
        let id = self.send(&request)?;
        self.receive_result(id, BIND_RESPONSE)?.check("bind")
    }

    /// Searches the names of entries. A base that does not exist has none.
    pub(crate) fn search(&mut self, query: &SearchQuery<'_>) -> Result<FoundEntries, LdapError> {
        let id = self.send(&encode_search(query))?;
        let mut found = FoundEntries::default();
        loop {
            let (tag, content) = self.receive(id)?;
            match tag {
                SEARCH_ENTRY => {
                    let dn = Elements(&content)
                        .read(OCTET_STRING)
                        .ok_or_else(malformed)?;
                    if found.dns.len() >= query.limit {
                        found.has_more = true;
                        continue;
                    }
                    let dn = std::str::from_utf8(dn).ok().filter(|dn| dn.len() <= MAX_DN);
                    found.dns.push(dn.ok_or_else(malformed)?.to_owned());
                }
                SEARCH_REFERENCE => {}
                SEARCH_DONE => {
                    let result = OperationResult::parse(&content).ok_or_else(malformed)?;
                    match result.code {
                        NO_SUCH_OBJECT => return Ok(FoundEntries::default()),
                        SIZE_LIMIT_EXCEEDED => found.has_more = true,
                        _ => result.check(&format!("search in '{}'", query.base))?,
                    }
                    return Ok(found);
                }
                _ => return Err(malformed()),
            }
        }
    }

    /// Ends the session (RFC 4511, section 4.3).
    pub(crate) fn unbind(mut self) {
        // The server closes the connection anyway.
        let _ = self.send(&element(UNBIND_REQUEST, &[]));
    }

    fn transport(&mut self) -> Result<&mut Transport, LdapError> {
        self.transport.as_mut().ok_or_else(malformed)
    }

    fn send(&mut self, operation: &[u8]) -> Result<u32, LdapError> {
        self.last_id += 1;
        let id = self.last_id;
        let message = constructed(SEQUENCE, &[&number(INTEGER, id), operation]);
        let sent = self.transport()?.write_all(&message);
        sent.map_err(server_error("the request cannot be sent"))?;
        Ok(id)
    }

    fn receive_result(&mut self, id: u32, tag: u8) -> Result<OperationResult, LdapError> {
        let (found, content) = self.receive(id)?;
        if found != tag {
            return Err(malformed());
        }
        OperationResult::parse(&content).ok_or_else(malformed)
    }

    /// Receives a response to the request with this id: its tag and its content.
    fn receive(&mut self, id: u32) -> Result<(u8, Vec<u8>), LdapError> {
        let message = self.receive_message()?;
        let mut elements = Elements(&message);
        let found = elements.read_number(INTEGER).ok_or_else(malformed)?;
        let (tag, content) = elements.next().ok_or_else(malformed)?;
        if found == 0 && tag == EXTENDED_RESPONSE {
            // Notice of disconnection (RFC 4511, section 4.4.1).
            let result = OperationResult::parse(content).ok_or_else(malformed)?;
            return Err(LdapError::Server(result.describe("disconnection")));
        }
        match found == id {
            true => Ok((tag, content.to_vec())),
            false => Err(malformed()),
        }
    }

    /// Receives the content of a message.
    fn receive_message(&mut self) -> Result<Vec<u8>, LdapError> {
        let mut header = [0; 2];
        self.read_exact(&mut header)?;
        let [tag, first] = header;
        if tag != SEQUENCE {
            return Err(malformed());
        }
        let count = ber::length_bytes(first).ok_or_else(malformed)?;
        let mut length = [0; MAX_LENGTH_BYTES];
        length[0] = first;
        let length = length.get_mut(..count).ok_or_else(malformed)?;
        if let Some(rest) = length.get_mut(1..) {
            self.read_exact(rest)?;
        }
        let (length, _) = ber::decode_length(length).ok_or_else(malformed)?;
        if length > MAX_RESPONSE_BYTES {
            return Err(LdapError::Server(format!(
                "an answer has {length} bytes; at most {MAX_RESPONSE_BYTES} are read"
            )));
        }
        self.allowance = self.allowance.checked_sub(length).ok_or_else(|| {
            LdapError::Server(format!(
                "the answers have more than {MAX_LOGIN_BYTES} bytes in all"
            ))
        })?;
        let mut message = vec![0; length];
        self.read_exact(&mut message)?;
        Ok(message)
    }

    fn read_exact(&mut self, buffer: &mut [u8]) -> Result<(), LdapError> {
        let read = self.transport()?.read_exact(buffer);
        read.map_err(server_error("the answer cannot be read"))
    }
}

fn connect(
    address: &ServerAddress<'_>,
    clock: &Arc<dyn Clock + Send + Sync>,
    deadline: Time,
) -> Result<TcpStream, LdapError> {
    let unreachable = |error: io::Error| {
        LdapError::Server(format!(
            "connection: {error}; check `auth_ldap.servers` and `auth_ldap.port`, and that the server is up"
        ))
    };
    let addresses = (address.host, address.port).to_socket_addrs();
    let addresses = addresses.map_err(unreachable)?.take(MAX_ADDRESSES);
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in addresses {
        let remaining = deadline.since(clock.now());
        if remaining.is_zero() {
            last = io::ErrorKind::TimedOut.into();
            break;
        }
        match TcpStream::connect_timeout(&address, remaining) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(unreachable(last))
}

fn encode_search(query: &SearchQuery<'_>) -> Vec<u8> {
    let scope = match query.scope {
        SearchScope::Entry => 0,
        SearchScope::Subtree => 2,
    };
    let equality = |equality: &Equality<'_>| {
        constructed(
            FILTER_EQUALITY,
            &[
                &element(OCTET_STRING, equality.attribute.as_bytes()),
                &element(OCTET_STRING, equality.value.as_bytes()),
            ],
        )
    };
    let filters: Vec<u8> = query.any.iter().flat_map(equality).collect();
    let filter = match query.any.len() {
        1 => filters,
        _ => element(FILTER_OR, &filters),
    };
    // One more than wanted, so that the answer shows that there are more.
    let limit = u32::try_from(query.limit + 1).unwrap_or(u32::MAX);
    constructed(
        SEARCH_REQUEST,
        &[
            &element(OCTET_STRING, query.base.as_bytes()),
            &number(ENUMERATED, scope),
            // Aliases are not followed.
            &number(ENUMERATED, 0),
            &number(INTEGER, limit),
            // No time limit of the server: the connection has one.
            &number(INTEGER, 0),
            // Types of attributes only.
            &element(BOOLEAN, &[0xff]),
            &filter,
            &constructed(SEQUENCE, &[&element(OCTET_STRING, NO_ATTRIBUTES)]),
        ],
    )
}
