//! A node with TLS: clients with passwords and certificates, certificate rotation, and invalid
//! files at the start.

use crate::client::{Client, connect};
use crate::program::{
    Result, Scratch, Serving, address, eventually, posthorn, serve_arguments, stderr, wait_for,
};
use authority::{Authority, Fixture};
use rustls::pki_types::ServerName;
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection, StreamOwned};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::thread::JoinHandle;

/// A node with only TLS listeners.
struct Node {
    _process: Serving,
    ready: PathBuf,
    log: PathBuf,
}

impl Node {
    fn start(scratch: &Scratch, fixture: &Fixture, settings: &[&str]) -> Result<Node> {
        let ready = scratch.0.join("ready");
        let log = scratch.0.join("log");
        let mut command = posthorn();
        serve_arguments(&mut command, &scratch.0.join("data"), &ready);
        with_tls(&mut command, fixture, settings);
        let process = Serving(command.stderr(File::create(&log)?).spawn()?);
        wait_for(&ready)?;
        Ok(Node {
            _process: process,
            ready,
            log,
        })
    }

    fn secure(
        &self,
        config: &Arc<ClientConfig>,
    ) -> Result<StreamOwned<ClientConnection, TcpStream>> {
        self.secure_to("amqp/ssl", config)
    }

    fn secure_to(
        &self,
        listener: &str,
        config: &Arc<ClientConfig>,
    ) -> Result<StreamOwned<ClientConnection, TcpStream>> {
        let name = ServerName::try_from("localhost")?;
        let connection = ClientConnection::new(config.clone(), name)?;
        let socket = connect(&address(&self.ready, listener)?)?;
        Ok(StreamOwned::new(connection, socket))
    }

    fn open(&self, config: ClientConfig, mechanism: &str, response: &[u8]) -> Result<Client> {
        Client::over(self.secure(&Arc::new(config))?, mechanism, response, "/")
    }

    /// The certificate that the node presents now.
    fn presented_certificate(&self, fixture: &Fixture) -> Result<Vec<u8>> {
        let mut stream = self.secure(&Arc::new(fixture.client(None)?))?;
        stream.write_all(b"AMQP\0\0\x09\x01")?;
        stream.read_exact(&mut [0; 8])?;
        let shown = stream.conn.peer_certificates().unwrap_or_default();
        Ok(shown.first().ok_or("no certificate")?.to_vec())
    }

    fn control(&self, arguments: &[&str]) -> Result<()> {
        let management = address(&self.ready, "management")?;
        let output = posthorn()
            .args(["ctl", "--url"])
            .arg(format!("http://{management}"))
            .args(arguments)
            .output()?;
        match output.status.success() {
            true => Ok(()),
            false => Err(stderr(&output).into()),
        }
    }

    fn wait_for_event(&self, event: &str) -> Result<()> {
        eventually(event, || {
            let log = fs::read_to_string(&self.log).ok()?;
            log.contains(event).then_some(())
        })
    }
}

fn with_tls(command: &mut Command, fixture: &Fixture, settings: &[&str]) {
    let file = |name: &str| fixture.path(name).display().to_string();
    for setting in [
        "listeners.tcp=none".to_owned(),
        "listeners.ssl.default=127.0.0.1:0".to_owned(),
        format!("ssl_options.cacertfile={}", file("ca.pem")),
        format!("ssl_options.certfile={}", file("cert.pem")),
        format!("ssl_options.keyfile={}", file("key.pem")),
    ] {
        command.arg("--set").arg(setting);
    }
    for setting in settings {
        command.arg("--set").arg(setting);
    }
}

#[test]
fn clients_log_in_by_certificate_or_by_password() -> Result<()> {
    let (scratch, fixture) = (Scratch::new("tls-login")?, Fixture::new("tls-login")?);
    let settings = [
        "ssl_options.verify=verify_peer",
        "auth_mechanisms.1=EXTERNAL",
        "auth_mechanisms.2=PLAIN",
        "ssl_cert_login_from=common_name",
    ];
    let node = Node::start(&scratch, &fixture, &settings)?;
    assert!(address(&node.ready, "amqp").is_err(), "no plain listener");
    node.control(&["add_user", "client-7", "unused"])?;
    node.control(&["set_permissions", "client-7", ".*", ".*", ".*"])?;
    let presented_certificate = |name| fixture.client(Some((&fixture.authority, name)));

    let mut by_certificate = node.open(presented_certificate("client-7")?, "EXTERNAL", b"")?;
    by_certificate.declare("q", "quorum")?;
    let select = codec_amqp091::Method::ConfirmSelect { no_wait: false };
    by_certificate.ask(&select, "confirm.select-ok")?;
    // Bodies smaller than a TLS record, and larger than several.
    by_certificate.publish_all("q", 20, 100)?;
    by_certificate.publish_all("q", 3, 300_000)?;
    let mut by_password = node.open(fixture.client(None)?, "PLAIN", b"\0guest\0guest")?;
    let wanted: BTreeSet<u64> = (1..=23).collect();
    assert_eq!(by_password.consume("q", &wanted)?, wanted);

    let refused = "403 ACCESS_REFUSED - Login was refused using authentication mechanism";
    for (config, mechanism, response) in [
        (presented_certificate("nobody")?, "EXTERNAL", &b""[..]),
        (fixture.client(None)?, "EXTERNAL", b""),
        (
            presented_certificate("client-7")?,
            "PLAIN",
            b"\0client-7\0wrong",
        ),
    ] {
        let error = node.open(config, mechanism, response).err();
        let error = error.ok_or("let in")?.to_string();
        assert!(error.starts_with(refused), "{error}");
    }
    let other = Authority::new("Another Authority")?;
    let foreign = fixture.client(Some((&other, "client-7")))?;
    assert!(node.open(foreign, "EXTERNAL", b"").is_err());
    node.wait_for_event("connection.tls_failed")?;

    // Without TLS on a TLS port: an alert, then the connection closes.
    let mut plain = connect(&address(&node.ready, "amqp/ssl")?)?;
    plain.write_all(b"AMQP\0\0\x09\x01")?;
    let mut heard = Vec::new();
    plain.read_to_end(&mut heard)?;
    assert_eq!(heard.first(), Some(&21));
    Ok(())
}

#[test]
fn mqtt_clients_log_in_by_certificate() -> Result<()> {
    let (scratch, fixture) = (Scratch::new("tls-mqtt")?, Fixture::new("tls-mqtt")?);
    let settings = [
        "mqtt.listeners.ssl.default=127.0.0.1:0",
        "mqtt.allow_anonymous=false",
        "mqtt.ssl_cert_login=true",
        "ssl_options.verify=verify_peer",
        "ssl_cert_login_from=common_name",
    ];
    let node = Node::start(&scratch, &fixture, &settings)?;
    node.control(&["add_user", "client-7", "unused"])?;
    node.control(&["set_permissions", "client-7", ".*", ".*", ".*"])?;
    for (authority, name, code) in [
        (Some(&fixture.authority), "client-7", 0),
        (Some(&fixture.authority), "nobody", 4),
        (None, "", 4),
    ] {
        let config = Arc::new(fixture.client(authority.map(|a| (a, name)))?);
        let mut stream = node.secure_to("mqtt/ssl", &config)?;
        stream.write_all(b"\x10\x0d\0\x04MQTT\x04\x02\0\0\0\x01c")?;
        let mut answer = [0; 4];
        stream.read_exact(&mut answer)?;
        assert_eq!(answer, [0x20, 2, 0, code], "{name}");
    }
    node.wait_for_event("MQTT login refused")?;
    Ok(())
}

#[test]
fn http_api_supports_tls() -> Result<()> {
    let (scratch, fixture) = (Scratch::new("tls-http")?, Fixture::new("tls-http")?);
    let settings = [
        "management.ssl.port=127.0.0.1:0",
        "management.tcp.port=none",
        "prometheus.ssl.port=127.0.0.1:0",
        "prometheus.tcp.port=none",
    ];
    let node = Node::start(&scratch, &fixture, &settings)?;
    assert!(address(&node.ready, "management").is_err());
    assert!(address(&node.ready, "prometheus").is_err());
    let config = Arc::new(fixture.client_of(rustls::ALL_VERSIONS, None)?);
    let mut stream = node.secure_to("prometheus/ssl", &config)?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
    let mut page = String::new();
    stream.read_to_string(&mut page)?;
    assert!(page.contains("rabbitmq_build_info"), "{page}");
    let ask = |stream: &mut dyn crate::client::Stream| -> Result<String> {
        // guest:guest
        stream.write_all(
            b"GET /api/whoami HTTP/1.1\r\nhost: localhost\r\nauthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\nconnection: close\r\n\r\n",
        )?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    for version in rustls::ALL_VERSIONS {
        let config = Arc::new(fixture.client_of(&[version], None)?);
        let mut stream = node.secure_to("management/ssl", &config)?;
        let answer = ask(&mut stream)?;
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        assert!(answer.contains("\"name\":\"guest\""), "{answer}");
    }
    // Without TLS the client receives only an alert.
    let mut plain = connect(&address(&node.ready, "management/ssl")?)?;
    let heard = ask(&mut plain).unwrap_or_default();
    assert!(!heard.contains("HTTP"), "{heard}");
    node.wait_for_event("management_tls_failed")?;
    Ok(())
}

/// Runs `posthorn ctl --url https://ADDRESS FILES... ping`. `files` are pairs of option and path.
fn ping(address: &str, files: &[(&str, &Path)]) -> Result<Output> {
    let mut command = posthorn();
    command
        .args(["ctl", "--url"])
        .arg(format!("https://{address}"));
    for (option, file) in files {
        command.arg(option).arg(file);
    }
    Ok(command.arg("ping").output()?)
}

#[test]
fn ctl_uses_https_and_verifies_the_node() -> Result<()> {
    let (scratch, fixture) = (Scratch::new("tls-ctl")?, Fixture::new("tls-ctl")?);
    let settings = [
        "management.ssl.port=127.0.0.1:0",
        "management.tcp.port=none",
    ];
    let node = Node::start(&scratch, &fixture, &settings)?;
    let stranger = Fixture::new("tls-ctl-stranger")?;
    let address = address(&node.ready, "management/ssl")?;
    let trusted = ping(&address, &[("--cacert", &fixture.path("ca.pem"))])?;
    assert!(trusted.status.success(), "{}", stderr(&trusted));
    let untrusted = ping(&address, &[("--cacert", &stranger.path("ca.pem"))])?;
    assert_eq!(untrusted.status.code(), Some(69));
    let text = stderr(&untrusted);
    assert!(
        text.contains("certificate") && text.contains("--cacert"),
        "{text}"
    );
    // A failed handshake affects only its own connection.
    let again = ping(&address, &[("--cacert", &fixture.path("ca.pem"))])?;
    assert!(again.status.success(), "{}", stderr(&again));
    let no_certificate = ping(&address, &[("--cacert", &fixture.path("key.pem"))])?;
    assert_eq!(no_certificate.status.code(), Some(2));
    let text = stderr(&no_certificate);
    assert!(text.contains("key.pem has no certificate"), "{text}");
    Ok(())
}

/// Accepts one TLS connection with a client certificate of the authority, and answers one request
/// with 200.
fn answer_once(listener: TcpListener, fixture: &Fixture) -> Result<JoinHandle<bool>> {
    let roots = Arc::new(tls::roots(&fixture.path("ca.pem"))?);
    let provider = authority::provider();
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone()).build()?;
    let chain = tls::certificates(&fixture.path("cert.pem"))?;
    let key = tls::private_key(&fixture.path("key.pem"))?;
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)?;
    Ok(std::thread::spawn(move || {
        let Ok((socket, _)) = listener.accept() else {
            return false;
        };
        let Ok(connection) = ServerConnection::new(Arc::new(config)) else {
            return false;
        };
        let mut stream = StreamOwned::new(connection, socket);
        let mut request = [0; 4096];
        stream.read(&mut request).is_ok()
            && stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
                .is_ok()
    }))
}

#[test]
fn ctl_presents_its_client_certificate() -> Result<()> {
    let fixture = Fixture::new("tls-ctl-certificate")?;
    let issued = fixture.authority.issue("operator", &[])?;
    let cert = fixture.dir.write("operator.pem", &issued.certificate)?;
    let key = fixture.dir.write("operator.key", &issued.key)?;
    let ca = fixture.path("ca.pem");
    for (files, code) in [
        (&[("--cacert", ca.as_path())][..], 69),
        (
            &[
                ("--cacert", ca.as_path()),
                ("--cert", &cert),
                ("--key", &key),
            ],
            0,
        ),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        let server = answer_once(listener, &fixture)?;
        let output = ping(&address, files)?;
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        let is_answered = server.join().map_err(|_| "the server ended")?;
        assert_eq!(is_answered, code == 0);
    }
    Ok(())
}

#[test]
fn ctl_logs_in_with_a_certificate_alone() -> Result<()> {
    let (scratch, fixture) = (
        Scratch::new("tls-ctl-operator")?,
        Fixture::new("tls-ctl-operator")?,
    );
    let (node, authority) = with_operator(&scratch, &fixture, &[])?;
    node.control(&["change_password", "guest", "other"])?;
    let issued = authority.issue("operator", &[])?;
    let cert = fixture.dir.write("operator.pem", &issued.certificate)?;
    let key = fixture.dir.write("operator.key", &issued.key)?;
    let address = address(&node.ready, "operator/ssl")?;
    let store = scratch.0.join("backups");
    let backup = |options: &[&str]| {
        let mut command = posthorn();
        command
            .args(["ctl", "--url", &format!("https://{address}")])
            .args([OsStr::new("--cacert"), fixture.path("ca.pem").as_ref()])
            .args([OsStr::new("--cert"), cert.as_ref()])
            .args([OsStr::new("--key"), key.as_ref()])
            .args(options)
            .args(["backup", "create", "--to"])
            .arg(&store);
        command.output()
    };
    // The certificate would do, but a user and a password take precedence.
    let with_password = backup(&[])?;
    assert!(
        stderr(&with_password).contains("refused user 'guest'"),
        "{}",
        stderr(&with_password)
    );
    let alone = backup(&["--certificate-only"])?;
    assert!(alone.status.success(), "{}", stderr(&alone));
    let both = backup(&["--certificate-only", "--user", "guest"])?;
    assert!(
        stderr(&both).contains("cannot be used with"),
        "{}",
        stderr(&both)
    );
    let mut without = posthorn();
    let without = without
        .args(["ctl", "--certificate-only", "ping"])
        .output()?;
    assert!(
        stderr(&without).contains("give --cert and --key"),
        "{}",
        stderr(&without)
    );
    Ok(())
}

/// A response of the HTTP API.
struct HttpResponse {
    status: u16,
    closes: bool,
    body: String,
}

/// Sends a request on a persistent connection. Each of `headers` ends with a line break.
fn request(
    stream: &mut dyn crate::client::Stream,
    line: &str,
    headers: &str,
    body: &str,
) -> Result<HttpResponse> {
    let length = body.len();
    let head = format!("{line} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n");
    stream.write_all(format!("{head}{headers}\r\n{body}").as_bytes())?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.extend(byte);
    }
    let head = String::from_utf8(head)?.to_lowercase();
    let header = |name: &str| head.lines().find_map(|l| l.strip_prefix(name));
    let length = header("content-length: ").map_or(Ok(0), str::parse)?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok(HttpResponse {
        status: head.get(9..12).ok_or("no status")?.parse()?,
        closes: header("connection: ") == Some("close"),
        body: String::from_utf8(body)?,
    })
}

/// A node with an operator listener, and the operator's certificate authority.
fn with_operator(
    scratch: &Scratch,
    fixture: &Fixture,
    settings: &[&str],
) -> Result<(Node, Authority)> {
    let authority = Authority::new("Operator Authority")?;
    let file = fixture.dir.write("operator-ca.pem", authority.pem())?;
    let cacertfile = format!("operator.ssl.cacertfile={}", file.display());
    let own = ["operator.ssl.port=127.0.0.1:0", &cacertfile];
    let settings = [&own[..], settings].concat();
    Ok((Node::start(scratch, fixture, &settings)?, authority))
}

const JSON: &str = "content-type: application/json\r\n";

#[test]
fn operator_with_a_certificate_cannot_be_locked_out() -> Result<()> {
    let (scratch, fixture) = (Scratch::new("tls-operator")?, Fixture::new("tls-operator")?);
    let (node, authority) = with_operator(&scratch, &fixture, &[])?;
    // A user with the operator's name exists, and the password of the initial user was changed.
    node.control(&["add_user", "operator", "secret"])?;
    node.control(&["change_password", "guest", "other"])?;
    let config = Arc::new(fixture.client(Some((&authority, "operator")))?);
    let mut stream = node.secure_to("operator/ssl", &config)?;
    let mut ask = |line: &str, headers: &str, body: &str| request(&mut stream, line, headers, body);
    for _ in 0..2 {
        let me = ask("GET /api/whoami", "", "")?;
        assert_eq!(me.status, 200, "{}", me.body);
        let me: serde_json::Value = serde_json::from_str(&me.body)?;
        assert_eq!(
            (&me["name"], &me["tags"]),
            (&"operator".into(), &serde_json::json!(["administrator"]))
        );
    }
    // Operations that require a user to have permissions in the vhost.
    for (line, body, status) in [
        ("PUT /api/queues/%2F/q", "{}", 201),
        ("PUT /api/exchanges/%2F/e", r#"{"type": "topic"}"#, 201),
        (
            "POST /api/bindings/%2F/e/e/q/q",
            r##"{"routing_key": "#"}"##,
            201,
        ),
        (
            "POST /api/exchanges/%2F/e/publish",
            r#"{"routing_key": "a.b", "payload": "p", "payload_encoding": "string", "properties": {}}"#,
            200,
        ),
        ("PUT /api/vhosts/v", "{}", 201),
        ("PUT /api/queues/v/q", "{}", 201),
        ("DELETE /api/vhosts/v", "", 204),
        ("DELETE /api/queues/%2F/q", "", 204),
        ("DELETE /api/users/operator", "", 204),
        (
            "PUT /api/users/guest",
            r#"{"password": "guest", "tags": "administrator"}"#,
            204,
        ),
    ] {
        let answer = ask(line, JSON, body)?;
        assert_eq!(answer.status, status, "{line}: {}", answer.body);
    }
    let users = ask("GET /api/users", "", "")?;
    assert!(!users.body.contains("operator"), "{}", users.body);
    let rights = ask("GET /api/permissions", "", "")?;
    assert!(!rights.body.contains("operator"), "{}", rights.body);
    node.control(&["list_queues"])?;

    // A browser with the certificate also sends it for pages of other sites.
    let foreign = "origin: https://evil.example\r\n";
    for (headers, status) in [
        (foreign, 403),
        ("sec-fetch-site: cross-site\r\n", 403),
        ("origin: https://localhost\r\n", 204),
    ] {
        let headers = format!("{JSON}{headers}");
        let answer = ask(
            "PUT /api/users/guest",
            &headers,
            r#"{"password": "guest", "tags": "administrator"}"#,
        )?;
        assert_eq!(answer.status, status, "{headers}: {}", answer.body);
    }
    // An Authorization header takes precedence over the certificate: guest:wrong, operator:secret.
    for encoded in ["Z3Vlc3Q6d3Jvbmc=", "b3BlcmF0b3I6c2VjcmV0"] {
        let header = format!("authorization: Basic {encoded}\r\n");
        assert_eq!(ask("GET /api/whoami", &header, "")?.status, 401);
    }
    assert_eq!(
        ask("GET /api/whoami", "authorization: \u{e9}\r\n", "")?.status,
        401
    );
    assert_eq!(ask("GET /api/whoami", "", "")?.status, 200);
    node.wait_for_event("operator.request")?;
    Ok(())
}

#[test]
fn only_the_operators_certificate_grants_operator_access() -> Result<()> {
    let (scratch, fixture) = (Scratch::new("tls-intruder")?, Fixture::new("tls-intruder")?);
    let settings = [
        "management.ssl.port=127.0.0.1:0",
        "ssl_options.verify=verify_peer",
        "auth_mechanisms.1=EXTERNAL",
        "auth_mechanisms.2=PLAIN",
        "ssl_cert_login_from=common_name",
    ];
    let (node, authority) = with_operator(&scratch, &fixture, &settings)?;
    let ask = |listener: &str, presented_certificate: Option<(&Authority, &str)>| -> Result<u16> {
        let config = Arc::new(fixture.client(presented_certificate)?);
        let mut stream = node.secure_to(listener, &config)?;
        Ok(request(&mut stream, "GET /api/whoami", "", "")?.status)
    };
    assert_eq!(ask("operator/ssl", Some((&authority, "operator")))?, 200);
    assert_eq!(ask("operator/ssl", Some((&authority, "intruder")))?, 401);
    assert!(ask("operator/ssl", Some((&fixture.authority, "operator"))).is_err());
    assert!(ask("operator/ssl", None).is_err());
    assert_eq!(ask("management/ssl", Some((&authority, "operator")))?, 401);
    // The operator is not a user of client protocols.
    let external = fixture.client(Some((&fixture.authority, "operator")))?;
    assert!(node.open(external, "EXTERNAL", b"").is_err());
    let foreign = fixture.client(Some((&authority, "operator")))?;
    assert!(node.open(foreign, "EXTERNAL", b"").is_err());
    for response in [&b"\0operator\0"[..], b"\0operator\0operator"] {
        assert!(node.open(fixture.client(None)?, "PLAIN", response).is_err());
    }
    Ok(())
}

#[test]
fn operators_authority_is_replaced_while_the_node_runs() -> Result<()> {
    let (scratch, fixture) = (Scratch::new("tls-rollover")?, Fixture::new("tls-rollover")?);
    let (node, old) = with_operator(&scratch, &fixture, &[])?;
    let new = Authority::new("Next Operator Authority")?;
    let trust = |pem: String| -> Result<()> {
        // Replaced atomically, so that no partial file can be read.
        let next = fixture.dir.write("next.pem", &pem)?;
        Ok(fs::rename(next, fixture.path("operator-ca.pem"))?)
    };
    let ask = |authority: &Authority| -> Result<u16> {
        let config = Arc::new(fixture.client(Some((authority, "operator")))?);
        let mut stream = node.secure_to("operator/ssl", &config)?;
        Ok(request(&mut stream, "GET /api/whoami", "", "")?.status)
    };
    let config = Arc::new(fixture.client(Some((&old, "operator")))?);
    let mut kept = node.secure_to("operator/ssl", &config)?;
    let first = request(&mut kept, "GET /api/whoami", "", "")?;
    assert_eq!((first.status, first.closes), (200, false));
    assert!(ask(&new).is_err());
    trust(format!("{}{}", old.pem(), new.pem()))?;
    eventually("trust in the new authority", || {
        ask(&new).ok().filter(|s| *s == 200)
    })?;
    assert_eq!(ask(&old)?, 200);
    trust(new.pem().to_owned())?;
    eventually("the end of the old authority", || ask(&old).err())?;
    assert_eq!(ask(&new)?, 200);
    let last = request(&mut kept, "GET /api/whoami", "", "")?;
    assert!(last.closes, "a connection of the old authority goes on");
    assert!(request(&mut kept, "GET /api/whoami", "", "").is_err());
    Ok(())
}

/// Certificate files as the kubelet updates them: links through a directory that is replaced
/// atomically.
#[test]
fn certificates_are_rotated_while_clients_are_served() -> Result<()> {
    let (scratch, fixture) = (Scratch::new("tls-swap")?, Fixture::new("tls-swap")?);
    let version = |name: &str| -> Result<()> {
        let to = fixture.path(name);
        fs::create_dir(&to)?;
        for file in ["cert.pem", "key.pem"] {
            fs::rename(fixture.path(file), to.join(file))?;
        }
        Ok(())
    };
    version("v1")?;
    fixture.issue_server()?;
    version("v2")?;
    swap_link(&fixture.path("data"), "v1")?;
    for file in ["cert.pem", "key.pem"] {
        std::os::unix::fs::symlink(Path::new("data").join(file), fixture.path(file))?;
    }
    let node = Node::start(&scratch, &fixture, &[])?;
    let mut client = node.open(fixture.client(None)?, "PLAIN", b"\0guest\0guest")?;
    client.declare("q", "classic")?;
    let first = node.presented_certificate(&fixture)?;
    swap_link(&fixture.path("data"), "v2")?;
    let second = eventually("a new certificate", || {
        node.presented_certificate(&fixture)
            .ok()
            .filter(|shown| *shown != first)
    })?;
    node.wait_for_event("tls.certificates_reloaded")?;
    client.declare("q", "classic")?;

    fs::write(fixture.path("v2/cert.pem"), "no certificate")?;
    node.wait_for_event("tls.certificates_unusable")?;
    assert_eq!(node.presented_certificate(&fixture)?, second);
    Ok(())
}

fn swap_link(link: &Path, to: &str) -> Result<()> {
    let new = link.with_extension("new");
    std::os::unix::fs::symlink(to, &new)?;
    Ok(fs::rename(new, link)?)
}

#[test]
fn unusable_certificate_files_are_named_at_start() -> Result<()> {
    let (scratch, fixture) = (Scratch::new("tls-refused")?, Fixture::new("tls-refused")?);
    let missing = fixture.path("nowhere.pem").display().to_string();
    let ca = fixture.path("ca.pem").display().to_string();
    for (setting, code, wanted) in [
        (
            format!("ssl_options.certfile={missing}"),
            1,
            "ssl_options, management.ssl, prometheus.ssl or operator.ssl: {}/nowhere.pem: No such file",
        ),
        (
            format!("ssl_options.keyfile={ca}"),
            1,
            "ssl_options, management.ssl, prometheus.ssl or operator.ssl: {}/ca.pem: ",
        ),
        (
            format!("ssl_options.certfile={ca}"),
            1,
            "ssl_options, management.ssl, prometheus.ssl or operator.ssl: {}/key.pem: not the key of the certificate in {}/ca.pem",
        ),
        (
            "ssl_options.fail_if_no_peer_cert=true".to_owned(),
            2,
            "`ssl_options.fail_if_no_peer_cert = true` needs `ssl_options.verify = verify_peer`",
        ),
    ] {
        let mut command = posthorn();
        serve_arguments(
            &mut command,
            &scratch.0.join("data"),
            &scratch.0.join("ready"),
        );
        with_tls(&mut command, &fixture, &[&setting]);
        let output = command.output()?;
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{text}");
        let dir = fixture.dir.as_ref().display().to_string();
        let wanted = wanted.replace("{}", &dir);
        assert!(text.contains(&wanted), "{wanted}: {text}");
    }
    Ok(())
}
