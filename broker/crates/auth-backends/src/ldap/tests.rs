//! Logins at a small directory in this process, and at hostile servers.

use super::ber::{
    ENUMERATED, Elements, INTEGER, OCTET_STRING, SEQUENCE, constructed, element, number,
};
use super::client::{MAX_LOGIN_BYTES, MAX_RESPONSE_BYTES};
use super::*;
use crate::{BackendEntry, BackendKind, BackendSettings};
use authority::Authority;
use env::real::RealClock;
use proptest::prelude::*;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

const PEOPLE: &str = "ou=people,dc=example,dc=com";
const SERVICE: &str = "cn=service,dc=example,dc=com";

/// Entries with one attribute each, and accounts.
#[derive(Clone, Default)]
struct Directory {
    accounts: Vec<(String, String)>,
    entries: Vec<(String, String, String)>,
    /// The requests, in words.
    requests: Arc<Mutex<Vec<String>>>,
    tls: Option<Arc<ServerConfig>>,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn result(id: u32, tag: u8, code: u32) -> Vec<u8> {
    let texts = [element(OCTET_STRING, b""), element(OCTET_STRING, b"why")];
    let content = [number(ENUMERATED, code), texts.concat()].concat();
    constructed(SEQUENCE, &[&number(INTEGER, id), &element(tag, &content)])
}

fn entry(id: u32, dn: &str) -> Vec<u8> {
    let content = [element(OCTET_STRING, dn.as_bytes()), element(SEQUENCE, b"")];
    let content = element(0x64, &content.concat());
    constructed(SEQUENCE, &[&number(INTEGER, id), &content])
}

impl Directory {
    fn with(accounts: &[(&str, &str)], entries: &[(&str, &str, &str)]) -> Directory {
        let owned = |text: &&str| (*text).to_owned();
        Directory {
            accounts: accounts
                .iter()
                .map(|(dn, password)| (owned(dn), owned(password)))
                .collect(),
            entries: entries
                .iter()
                .map(|(dn, name, value)| (owned(dn), owned(name), owned(value)))
                .collect(),
            ..Directory::default()
        }
    }

    fn start(&self) -> u16 {
        let directory = self.clone();
        serve(move |mut socket| {
            // The client may close the connection at any time.
            let _ = directory.answer(&mut socket);
        })
    }

    fn answer(&self, socket: &mut TcpStream) -> std::io::Result<()> {
        if self.answer_until_tls(socket)? {
            let config = self.tls.clone().unwrap();
            let connection = ServerConnection::new(config).unwrap();
            let mut stream = StreamOwned::new(connection, socket.try_clone()?);
            self.answer_until_tls(&mut stream)?;
        }
        Ok(())
    }

    /// Returns true if the client wants TLS.
    fn answer_until_tls(&self, stream: &mut (impl Read + Write)) -> std::io::Result<bool> {
        loop {
            let message = read_message(stream)?;
            let mut elements = Elements(&message);
            let id = elements.read_number(INTEGER).unwrap();
            let (tag, content) = elements.next().unwrap();
            let (words, answer) = match tag {
                0x60 => self.bind(id, content),
                0x63 => self.search(id, content),
                0x77 => (
                    "starttls".to_owned(),
                    result(id, 0x78, if self.tls.is_some() { 0 } else { 2 }),
                ),
                // An unbind has no answer, and comes after the login is answered.
                _ => continue,
            };
            self.requests.lock().unwrap().push(words);
            stream.write_all(&answer)?;
            stream.flush()?;
            if tag == 0x77 && self.tls.is_some() {
                return Ok(true);
            }
        }
    }

    fn bind(&self, id: u32, content: &[u8]) -> (String, Vec<u8>) {
        let mut elements = Elements(content);
        assert_eq!(elements.read_number(INTEGER), Some(3));
        let dn = text(elements.read(OCTET_STRING).unwrap());
        let password = text(elements.read(0x80).unwrap());
        let is_right = (dn.is_empty() && password.is_empty())
            || self.accounts.contains(&(dn.clone(), password));
        let code = if is_right { 0 } else { 49 };
        (format!("bind {dn}"), result(id, 0x61, code))
    }

    fn search(&self, id: u32, content: &[u8]) -> (String, Vec<u8>) {
        let mut elements = Elements(content);
        let base = text(elements.read(OCTET_STRING).unwrap());
        let is_subtree = elements.read_number(ENUMERATED) == Some(2);
        for tag in [ENUMERATED, INTEGER, INTEGER, 0x01] {
            elements.read(tag).unwrap();
        }
        let (tag, filter) = elements.next().unwrap();
        let mut wanted = Vec::new();
        let mut filters = Elements(filter);
        let mut read = |content: &[u8]| {
            let mut pair = Elements(content);
            let attribute = text(pair.read(OCTET_STRING).unwrap());
            wanted.push((attribute, text(pair.read(OCTET_STRING).unwrap())));
        };
        match tag {
            0xa3 => read(filter),
            _ => {
                while let Some(content) = filters.read(0xa3) {
                    read(content);
                }
            }
        }
        let matching = self.entries.iter().filter(|(dn, attribute, value)| {
            let is_below = *dn == base || (is_subtree && dn.ends_with(&base));
            is_below && wanted.contains(&(attribute.clone(), value.clone()))
        });
        let mut answer: Vec<u8> = matching.flat_map(|(dn, _, _)| entry(id, dn)).collect();
        answer.extend(result(id, 0x65, 0));
        (format!("search {base}"), answer)
    }

    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.requests.lock().unwrap())
    }
}

fn read_message(stream: &mut impl Read) -> std::io::Result<Vec<u8>> {
    let mut header = [0; 2];
    stream.read_exact(&mut header)?;
    let mut length = vec![header[1]];
    length.resize(super::ber::length_bytes(header[1]).unwrap(), 0);
    stream.read_exact(&mut length[1..])?;
    let (length, _) = super::ber::decode_length(&length).unwrap();
    let mut message = vec![0; length];
    stream.read_exact(&mut message)?;
    Ok(message)
}

/// Serves connections on threads until the process ends, and returns the port.
fn serve(answer: impl Fn(TcpStream) + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            let answer = answer.clone();
            std::thread::spawn(move || answer(socket));
        }
    });
    port
}

fn closed_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

fn settings(port: u16) -> LdapSettings {
    LdapSettings {
        servers: [(1, "127.0.0.1".to_owned())].into(),
        port,
        timeout: Duration::from_secs(5),
        user_dn_pattern: format!("cn=${{username}},{PEOPLE}"),
        ..LdapSettings::default()
    }
}

fn group(dn: &str, tags: &str, scopes: &str) -> LdapGroup {
    LdapGroup {
        dn: dn.to_owned(),
        tags: tags.to_owned(),
        scopes: scopes.to_owned(),
    }
}

fn log_in(settings: &LdapSettings, user: &str, password: &str) -> Result<AcceptedLogin, String> {
    let clock = Arc::new(RealClock::new());
    let checker = LdapChecker::new(settings, clock).unwrap();
    checker.check(user, password.as_bytes())
}

fn alice() -> String {
    format!("cn=alice,{PEOPLE}")
}

#[test]
fn password_is_checked_by_a_bind_and_an_empty_one_never() {
    let directory = Directory::with(&[(&alice(), "right")], &[]);
    let settings = settings(directory.start());
    assert!(log_in(&settings, "alice", "right").is_ok());
    assert_eq!(directory.requests(), [format!("bind {}", alice())]);
    let why = log_in(&settings, "alice", "wrong").unwrap_err();
    assert!(
        why.contains("the user name or the password is wrong")
            && why.contains("invalidCredentials (why)"),
        "{why}"
    );
    directory.requests();
    let why = log_in(&settings, "alice", "").unwrap_err();
    assert!(why.contains("the password is empty"), "{why}");
    assert_eq!(directory.requests(), [""; 0], "the server is not asked");
}

#[test]
fn special_characters_of_user_names_do_not_change_names_and_filters() {
    let name = "*()\\,+\"=#";
    let dn = format!("cn=*()\\5c\\2c\\2b\\22\\3d#,{PEOPLE}");
    let directory = Directory::with(&[(&dn, "p")], &[(&dn, "uid", name)]);
    let mut settings = settings(directory.start());
    assert!(log_in(&settings, name, "p").is_ok());
    settings.user_dn_pattern = USERNAME.to_owned();
    settings.dn_lookup_attribute = "uid".to_owned();
    settings.dn_lookup_base = PEOPLE.to_owned();
    settings.dn_lookup_bind.mode = Some(LdapBindMode::Anonymous);
    assert!(log_in(&settings, name, "p").is_ok());
    let why = log_in(&settings, "*", "p").unwrap_err();
    assert!(why.contains("no entry below"), "{why}");
}

#[test]
fn user_is_looked_up_as_nobody_as_an_account_or_as_itself() {
    let directory = Directory::with(
        &[(&alice(), "p"), (SERVICE, "s"), ("alice@example.com", "p")],
        &[
            (&alice(), "mail", "alice"),
            ("cn=twin,dc=b", "mail", "alice"),
        ],
    );
    let mut settings = settings(directory.start());
    settings.user_dn_pattern = USERNAME.to_owned();
    settings.dn_lookup_attribute = "mail".to_owned();
    settings.dn_lookup_base = PEOPLE.to_owned();
    let search = format!("search {PEOPLE}");
    let bind = format!("bind {}", alice());

    settings.dn_lookup_bind.mode = Some(LdapBindMode::Anonymous);
    assert!(log_in(&settings, "alice", "p").is_ok());
    assert!(log_in(&settings, "alice", "wrong").is_err());
    let asked = [&search, &bind].map(String::clone);
    assert_eq!(directory.requests(), [&asked[..], &asked].concat());

    settings.dn_lookup_bind = LdapBindSettings {
        mode: None,
        user_dn: SERVICE.to_owned(),
        password: "s".to_owned(),
    };
    assert!(log_in(&settings, "alice", "p").is_ok());
    let bind_service = format!("bind {SERVICE}");
    assert_eq!(directory.requests(), [bind_service, search.clone(), bind]);
    settings.dn_lookup_bind.password = "secret".to_owned();
    let why = log_in(&settings, "alice", "p").unwrap_err();
    assert!(
        why.contains("check `auth_ldap.dn_lookup_bind.user_dn`") && !why.contains("secret"),
        "{why}"
    );
    assert!(!format!("{settings:?}").contains("secret"));
    directory.requests();

    settings.dn_lookup_bind = LdapBindSettings::default();
    settings.user_bind_pattern = "${username}@example.com".to_owned();
    assert!(log_in(&settings, "alice", "p").is_ok());
    assert_eq!(directory.requests(), ["bind alice@example.com", &search]);

    settings.dn_lookup_base = String::new();
    let why = log_in(&settings, "alice", "p").unwrap_err();
    assert!(why.contains("several entries"), "{why}");
}

#[test]
fn groups_have_tags_and_scopes() {
    let directory = Directory::with(
        &[(&alice(), "p")],
        &[
            ("cn=ops,ou=groups", "member", &alice()),
            ("cn=dev,ou=groups", "uniqueMember", &alice()),
            ("cn=all,ou=groups", "member", "cn=dev,ou=groups"),
            ("cn=dev,ou=groups", "member", "cn=all,ou=groups"),
        ],
    );
    let mut settings = settings(directory.start());
    settings.groups = [
        (
            "ops".to_owned(),
            group("cn=ops,ou=groups", "administrator, monitoring", ""),
        ),
        (
            "dev".to_owned(),
            group("cn=dev,ou=groups", "monitoring", "read:*/* write:orders/*"),
        ),
        (
            "all".to_owned(),
            group("cn=all,ou=groups", "", "read:*/all"),
        ),
        (
            "none".to_owned(),
            group("cn=none,ou=groups", "other", "configure:*/*"),
        ),
    ]
    .into();
    let scopes = |texts: &[&str]| {
        let scopes = texts.iter().map(|text| Scope::parse(text).unwrap());
        IdentityPermissions::Scopes(scopes.collect())
    };
    let login = log_in(&settings, "alice", "p").unwrap();
    assert_eq!(login.tags, ["administrator".into(), "monitoring".into()]);
    assert_eq!(login.permissions, scopes(&["read:*/*", "write:orders/*"]));
    // The two groups contain each other.
    settings.group_lookup_base = "ou=groups".to_owned();
    let login = log_in(&settings, "alice", "p").unwrap();
    let expected = scopes(&["read:*/all", "read:*/*", "write:orders/*"]);
    assert_eq!(login.permissions, expected);
    directory.requests();
    settings.other_bind.mode = Some(LdapBindMode::Anonymous);
    assert!(log_in(&settings, "alice", "p").is_ok());
    assert_eq!(
        directory.requests()[..2],
        [format!("bind {}", alice()), "bind ".to_owned()]
    );
}

#[test]
fn groups_of_a_user_are_bounded() {
    let many: Vec<String> = (0..=MAX_NESTED_GROUPS)
        .map(|n| format!("cn={n},ou=groups"))
        .collect();
    let mut directory = Directory::with(&[(&alice(), "p")], &[]);
    let entries = many
        .iter()
        .map(|dn| (dn.clone(), "member".to_owned(), alice()));
    directory.entries = entries.collect();
    let mut settings = settings(directory.start());
    settings.group_lookup_base = "ou=groups".to_owned();
    settings.groups = [("g".to_owned(), group("cn=1,ou=groups", "", ""))].into();
    let why = log_in(&settings, "alice", "p").unwrap_err();
    assert!(why.contains("more than 256 groups"), "{why}");
    settings.group_lookup_base.clear();
    assert!(log_in(&settings, "alice", "p").is_ok());
}

#[test]
fn next_server_is_asked_when_one_is_down_or_busy() {
    let directory = Directory::with(&[(&alice(), "p")], &[]);
    let port = directory.start();
    let mut settings = settings(port);
    // Nothing listens at this port of the second address.
    settings.servers = [(1, "127.0.0.2".to_owned()), (2, "127.0.0.1".to_owned())].into();
    settings.allow_plaintext = true;
    assert!(log_in(&settings, "alice", "p").is_ok());
    settings.port = closed_port();
    let why = log_in(&settings, "alice", "secret").unwrap_err();
    for part in [
        "127.0.0.1:",
        "127.0.0.2:",
        "refused",
        "check `auth_ldap.servers`",
    ] {
        assert!(why.contains(part), "{part}: {why}");
    }
    assert!(!why.contains("secret"));

    let busy = serve(|mut socket| {
        let _ = read_message(&mut socket);
        let _ = socket.write_all(&result(1, 0x61, 51));
    });
    let why = log_in(&self::settings(busy), "alice", "p").unwrap_err();
    assert!(
        why.contains("no server can check") && why.contains("busy"),
        "{why}"
    );
}

#[test]
fn failed_server_is_asked_last_for_a_while() {
    let directory = Directory::with(&[(&alice(), "p")], &[]);
    let mut settings = settings(directory.start());
    settings.servers = [(1, "127.0.0.2".to_owned()), (2, "127.0.0.1".to_owned())].into();
    let checker = LdapChecker::new(&settings, Arc::new(RealClock::new())).unwrap();
    let hosts = || -> Vec<String> {
        let ordered = checker.ordered_servers();
        ordered.iter().map(|server| server.host.clone()).collect()
    };
    assert_eq!(hosts(), ["127.0.0.2", "127.0.0.1"]);
    assert!(checker.check("alice", b"p").is_ok());
    assert_eq!(hosts(), ["127.0.0.1", "127.0.0.2"]);
    checker.note_success(&checker.servers[0]);
    assert_eq!(hosts(), ["127.0.0.2", "127.0.0.1"]);
}

/// Sends bytes after the first request, and keeps the connection open.
fn hostile(answer: Vec<u8>) -> u16 {
    serve(move |mut socket| {
        let _ = read_message(&mut socket);
        let _ = socket.write_all(&answer);
        // Until the client closes the connection.
        let _ = socket.read(&mut [0]);
    })
}

#[test]
fn hostile_answers_refuse_the_login() {
    let too_long = [&[0x30, 0x84, 0x7f, 0xff, 0xff, 0xff][..], &[0; 100]].concat();
    let nested = [0x30, 0x82, 0x20, 0x00].repeat(5000);
    for (answer, part) in [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), "is not LDAP"),
        (too_long, "has 2147483647 bytes"),
        (vec![0x30, 0x80, 0, 0], "is not LDAP"),
        (nested, "is not LDAP"),
        (vec![0x30, 0], "is not LDAP"),
        (result(7, 0x61, 0), "is not LDAP"),
        (result(1, 0x65, 0), "is not LDAP"),
        (result(0, 0x78, 52), "disconnection"),
        (result(1, 0x61, 10), "a referral, which is not followed"),
        (result(1, 0x61, 14), "result 14"),
    ] {
        let port = hostile(answer);
        let why = log_in(&settings(port), "alice", "secret").unwrap_err();
        assert!(
            why.contains(part) && !why.contains("secret"),
            "{part}: {why}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn arbitrary_answers_do_not_panic(content in proptest::collection::vec(any::<u8>(), 0..100), tag in any::<u8>()) {
        let message = [number(INTEGER, 1), element(tag, &content)].concat();
        for answer in [element(SEQUENCE, &message), element(SEQUENCE, &content), content.clone()] {
            let port = serve(move |mut socket| {
                let _ = read_message(&mut socket);
                let _ = socket.write_all(&answer);
            });
            // A bind that succeeds has a result code of zero.
            let _ = log_in(&settings(port), "alice", "p");
        }
    }
}

#[test]
fn silent_and_slow_servers_are_given_up() {
    let silent = hostile(Vec::new());
    // One byte at a time, each within the timeout of a read.
    let slow = serve(|mut socket| {
        let (wake, waiting) = std::sync::mpsc::channel::<()>();
        let message = result(1, 0x61, 0);
        for byte in message {
            let _ = waiting.recv_timeout(Duration::from_millis(100));
            if socket.write_all(&[byte]).is_err() {
                break;
            }
        }
        drop(wake);
    });
    for port in [silent, slow] {
        let mut settings = settings(port);
        settings.timeout = Duration::from_millis(300);
        let began = RealClock::new();
        let why = log_in(&settings, "alice", "p").unwrap_err();
        assert!(
            why.contains("no answer within `auth_ldap.timeout`"),
            "{why}"
        );
        assert!(began.now().since(Time::ZERO) < Duration::from_secs(5));
    }
}

#[test]
fn searches_with_endless_or_huge_entries_are_given_up() {
    let huge = entry(2, &"x".repeat(MAX_RESPONSE_BYTES));
    let long_name = entry(2, &"x".repeat(5000));
    let endless = entry(2, "cn=x").repeat(MAX_LOGIN_BYTES / 10);
    for (entries, part) in [
        (huge, "at most 65536 are read"),
        (long_name, "is not LDAP"),
        (endless, "more than 1048576 bytes in all"),
    ] {
        let port = serve(move |mut socket| {
            let _ = read_message(&mut socket);
            let _ = socket.write_all(&result(1, 0x61, 0));
            let _ = read_message(&mut socket);
            let _ = socket.write_all(&entries);
            let _ = socket.read(&mut [0]);
        });
        let mut settings = settings(port);
        settings.dn_lookup_attribute = "uid".to_owned();
        settings.dn_lookup_base = PEOPLE.to_owned();
        let why = log_in(&settings, "alice", "p").unwrap_err();
        assert!(why.contains(part), "{part}: {why}");
    }
}

#[test]
fn starttls_needs_a_trusted_certificate_and_sends_nothing_before() {
    let authority = Authority::new("ca").unwrap();
    let issued = authority.issue("ldap", &["127.0.0.1"]).unwrap();
    let config = ServerConfig::builder_with_provider(authority::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(issued.certificate.as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(issued.key.as_bytes()).unwrap(),
        )
        .unwrap();
    let mut directory = Directory::with(&[(&alice(), "p")], &[]);
    directory.tls = Some(Arc::new(config));
    let dir = authority::Dir::new("ldap-starttls").unwrap();
    let mut settings = settings(directory.start());
    settings.use_starttls = true;
    settings.cacertfile = Some(dir.write("ca.pem", authority.pem()).unwrap());
    assert!(log_in(&settings, "alice", "p").is_ok());
    assert_eq!(
        directory.requests(),
        ["starttls".to_owned(), format!("bind {}", alice())]
    );

    settings.sni = "other.example.com".to_owned();
    let why = log_in(&settings, "alice", "p").unwrap_err();
    assert!(why.contains("auth_ldap.ssl_options.cacertfile"), "{why}");
    settings.sni.clear();
    let other = Authority::new("other").unwrap();
    settings.cacertfile = Some(dir.write("other.pem", other.pem()).unwrap());
    assert!(log_in(&settings, "alice", "p").is_err());
    assert_eq!(directory.requests(), ["starttls", "starttls"]);
    settings.verify_peer = false;
    assert!(log_in(&settings, "alice", "p").is_ok());

    directory.tls = None;
    settings.port = directory.start();
    directory.requests();
    let why = log_in(&settings, "alice", "p").unwrap_err();
    assert!(why.contains("may not support StartTLS"), "{why}");
    assert_eq!(directory.requests(), ["starttls"]);
    settings.cacertfile = Some(dir.path("missing.pem"));
    settings.verify_peer = true;
    let error = LdapChecker::new(&settings, Arc::new(RealClock::new()));
    let error = error.err().unwrap();
    assert!(
        error.starts_with("`auth_ldap.ssl_options.cacertfile`: "),
        "{error}"
    );
}

type Change<'c> = &'c dyn Fn(&mut BackendSettings);

fn check(change: impl Fn(&mut BackendSettings)) -> Vec<String> {
    let entry = |authz| BackendEntry {
        authn: Some(BackendKind::Ldap),
        authz: Some(authz),
    };
    let mut all = BackendSettings {
        entries: [(1, entry(BackendKind::Internal))].into(),
        ldap: settings(389),
        ..BackendSettings::default()
    };
    change(&mut all);
    all.check()
}

#[test]
fn wrong_settings_are_reported_with_their_key() {
    assert_eq!(check(|_| {}), [""; 0]);
    let remote = |s: &mut BackendSettings| {
        s.ldap.servers = [(3, "ldap.example.com".to_owned())].into();
    };
    let cases: [(Change<'_>, &str); 19] = [
        (
            &|s| s.ldap.servers.clear(),
            "`auth_ldap.servers.1` is missing",
        ),
        (
            &remote,
            "`auth_ldap.servers.3`: passwords would be sent to ldap.example.com without TLS",
        ),
        (
            &|s| (s.ldap.use_ssl, s.ldap.use_starttls) = (true, true),
            "exclude each other",
        ),
        (
            &|s| {
                s.ldap
                    .servers
                    .extend((2..20).map(|n| (n, "localhost".to_owned())))
            },
            "more than 8 servers",
        ),
        (
            &|s| s.ldap.certfile = Some("c".into()),
            "`auth_ldap.ssl_options.keyfile`",
        ),
        (
            &|s| s.ldap.user_dn_pattern = "cn=a".to_owned(),
            "`auth_ldap.user_dn_pattern`: ${username} is missing",
        ),
        (
            &|s| s.ldap.user_bind_pattern = "${ad_user}".to_owned(),
            "`auth_ldap.user_bind_pattern`: the only variable",
        ),
        (
            &|s| s.ldap.dn_lookup_base = "dc=a".to_owned(),
            "`auth_ldap.dn_lookup_attribute`",
        ),
        (
            &|s| s.ldap.dn_lookup_bind.user_dn = "cn=a".to_owned(),
            "`auth_ldap.dn_lookup_bind.password`",
        ),
        (
            &|s| s.ldap.other_bind.password = "p".to_owned(),
            "`auth_ldap.other_bind.user_dn`",
        ),
        (
            &|s| {
                s.ldap.other_bind = LdapBindSettings {
                    mode: Some(LdapBindMode::Anonymous),
                    user_dn: "cn=a".to_owned(),
                    password: "p".to_owned(),
                };
            },
            "`auth_ldap.other_bind` contradicts",
        ),
        (
            &|s| {
                s.ldap.user_dn_pattern = USERNAME.to_owned();
                s.ldap.groups = [("g".to_owned(), group("cn=g", "", ""))].into();
            },
            "needs the distinguished names of users",
        ),
        (
            &|s| {
                s.entries
                    .values_mut()
                    .for_each(|e| e.authz = Some(BackendKind::Ldap))
            },
            "there is no group",
        ),
        (
            &|s| {
                s.entries
                    .values_mut()
                    .for_each(|e| e.authn = Some(BackendKind::Internal))
            },
            "",
        ),
        (
            &|s| {
                let entry = s.entries.get_mut(&1).unwrap();
                (entry.authn, entry.authz) = (Some(BackendKind::Internal), Some(BackendKind::Ldap));
            },
            "`auth_backends.1.authz` = ldap needs `auth_backends.1.authn` = ldap",
        ),
        (
            &|s| drop(s.ldap.groups.insert("g".to_owned(), group("", "", ""))),
            "`auth_ldap.groups.g.dn`",
        ),
        (
            &|s| {
                drop(
                    s.ldap
                        .groups
                        .insert("g".to_owned(), group("cn=g", &"x".repeat(256), "")),
                )
            },
            "`auth_ldap.groups.g.tags`",
        ),
        (
            &|s| {
                drop(
                    s.ldap
                        .groups
                        .insert("g".to_owned(), group("cn=g", "", "read:*/* tag:x")),
                )
            },
            "`auth_ldap.groups.g.scopes`: 'tag:x' is no permission",
        ),
        (
            &|s| {
                let many = (0..300).map(|n| (n.to_string(), group("cn=g", "", "")));
                s.ldap.groups = many.collect();
            },
            "more than 256 groups",
        ),
    ];
    for (change, part) in cases {
        let errors = check(change);
        match part {
            "" => assert_eq!(errors, [""; 0]),
            _ => assert!(
                errors.len() == 1 && errors[0].contains(part),
                "{part}: {errors:?}"
            ),
        }
    }
    let encrypted = |s: &mut BackendSettings| {
        remote(s);
        s.ldap.use_starttls = true;
    };
    assert_eq!(check(encrypted), [""; 0]);
    let allowed = |s: &mut BackendSettings| {
        remote(s);
        s.ldap.allow_plaintext = true;
    };
    assert_eq!(check(allowed), [""; 0]);
    for host in ["localhost", "ldap.example.com", "10.0.0.1", "::1"] {
        assert!(is_ldap_host(host), "{host}");
    }
    for host in ["", "ldap://a", "a:389", "a b", "a/b"] {
        assert!(!is_ldap_host(host), "{host}");
    }
}
