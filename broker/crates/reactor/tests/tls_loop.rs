//! The event loop with TLS: a line driver, and clients that use rustls.

use crate::lines::{Harness, connect, read_flood, read_line};
use authority::Fixture;
use reactor::{LoopConfig, LoopReport, ShardMessage};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, HandshakeKind, StreamOwned};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use tls::{ClientVerification, ServerTls, TlsOptions};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
type Client = StreamOwned<ClientConnection, TcpStream>;

fn options(fixture: &Fixture) -> TlsOptions {
    TlsOptions {
        certfile: fixture.path("cert.pem"),
        keyfile: fixture.path("key.pem"),
        ..TlsOptions::default()
    }
}

fn start(fixture: &Fixture, config: LoopConfig) -> Result<Harness> {
    let (server, _) = ServerTls::load(options(fixture))?;
    Ok(Harness::listening(config, Some(server))?)
}

fn client(node: &Harness, config: &Arc<ClientConfig>) -> Result<Client> {
    let name = ServerName::try_from("localhost")?;
    let connection = ClientConnection::new(config.clone(), name)?;
    Ok(StreamOwned::new(connection, connect(node)?))
}

#[test]
fn both_tls_versions_transfer_data() -> Result<()> {
    let fixture = Fixture::new("loop-lines")?;
    let node = start(&fixture, LoopConfig::default())?;
    for version in rustls::ALL_VERSIONS {
        let config = Arc::new(fixture.client_of(&[version], None)?);
        let mut clients = Vec::new();
        for i in 0..10 {
            let mut one = client(&node, &config)?;
            one.write_all(format!("hello {i}\nsecond").as_bytes())?;
            assert_eq!(read_line(&mut one)?, format!("hello {i}"));
            clients.push(one);
        }
        for one in &mut clients {
            one.write_all(b" half\n")?;
            assert_eq!(read_line(one)?, "second half");
        }
        node.wait_for_connections(10)?;
        drop(clients);
        node.wait_for_connections(0)?;
    }
    Ok(())
}

/// Each byte is sent in its own segment, starting with the ClientHello.
#[test]
fn input_may_arrive_byte_by_byte() -> Result<()> {
    let fixture = Fixture::new("loop-bytes")?;
    let node = start(&fixture, LoopConfig::default())?;
    let config = Arc::new(fixture.client(None)?);
    let name = ServerName::try_from("localhost")?;
    let mut connection = ClientConnection::new(config, name)?;
    let mut socket = connect(&node)?;
    socket.set_nodelay(true)?;
    connection.writer().write_all(b"slowly\n")?;
    let mut received = Vec::new();
    while received != b"slowly\n" {
        let mut wire = Vec::new();
        while connection.wants_write() {
            connection.write_tls(&mut wire)?;
        }
        for byte in wire {
            socket.write_all(&[byte])?;
        }
        connection.read_tls(&mut socket)?;
        connection.process_new_packets()?;
        match connection.reader().read_to_end(&mut received) {
            Ok(_) => return Err("unexpected end of stream".into()),
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Clients that send a part of a record and then nothing.
#[test]
fn incomplete_handshakes_are_limited_by_the_memory_budget() -> Result<()> {
    const CLIENTS: usize = 40;
    let fixture = Fixture::new("loop-unfinished")?;
    let node = start(&fixture, LoopConfig::default())?;
    // A handshake record of 16 KiB that starts with a ClientHello; 8 KiB of it are sent.
    let mut part = vec![0x16, 3, 1, 0x40, 0, 1, 0, 0x3f, 0xfc, 3, 3];
    part.resize(8 << 10, 0);
    let mut sockets = Vec::new();
    for _ in 0..CLIENTS {
        let mut socket = connect(&node)?;
        // The connection may be closed before the write completes.
        let _ = socket.write_all(&part);
        socket.set_nonblocking(true)?;
        sockets.push(socket);
    }
    let allowed = crate::lines::HANDSHAKES / part.len();
    let mut config = fixture.client(None)?;
    config.resumption = rustls::client::Resumption::disabled();
    let config = Arc::new(config);
    let (mut closed, mut attempts) = (0, 0);
    while closed < CLIENTS - allowed && attempts < 1000 {
        attempts += 1;
        // A well-behaved client is served meanwhile; its handshake is short.
        let mut honest = client(&node, &config)?;
        honest.write_all(b"hello\n")?;
        assert_eq!(read_line(&mut honest)?, "hello");
        closed = 0;
        for socket in &mut sockets {
            let read = socket.read(&mut [0; 64]);
            let is_open = matches!(&read, Err(e) if e.kind() == ErrorKind::WouldBlock);
            closed += usize::from(!is_open);
        }
    }
    assert_eq!(closed, CLIENTS - allowed, "only as many as necessary");
    Ok(())
}

#[test]
fn slow_reader_receives_all_output_in_order() -> Result<()> {
    let fixture = Fixture::new("loop-flood")?;
    let node = start(&fixture, LoopConfig::default())?;
    let mut one = client(&node, &Arc::new(fixture.client(None)?))?;
    // More than the kernel's buffers take, so encrypted output stays unsent.
    one.write_all(b"flood 24\n")?;
    read_flood(&mut one, 24)?;
    one.write_all(b"done\n")?;
    assert_eq!(read_line(&mut one)?, "done");
    Ok(())
}

#[test]
fn large_frames_and_pauses_work_with_tls() -> Result<()> {
    let fixture = Fixture::new("loop-pauses")?;
    let node = start(&fixture, LoopConfig::default())?;
    let config = Arc::new(fixture.client(None)?);
    let mut one = client(&node, &config)?;
    let long = "x".repeat(500_000);
    one.write_all(format!("{long}\n").as_bytes())?;
    assert_eq!(read_line(&mut one)?, long);

    let mut other = client(&node, &config)?;
    one.write_all(b"pause\nafter 1\nafter 2\n")?;
    assert_eq!(read_line(&mut one)?, "paused");
    one.write_all(b"after 3\n")?;
    other.write_all(b"count\n")?;
    assert_eq!(read_line(&mut other)?, "0");
    other.write_all(b"resume\n")?;
    assert_eq!(read_line(&mut other)?, "resumed");
    for i in 1..=3 {
        assert_eq!(read_line(&mut one)?, format!("after {i}"));
    }
    Ok(())
}

/// rustls reports a missing close_notify as an error, which must not occur here.
#[test]
fn last_output_is_followed_by_close_notify() -> Result<()> {
    let fixture = Fixture::new("loop-last")?;
    let node = start(&fixture, LoopConfig::default())?;
    let config = Arc::new(fixture.client(None)?);
    let mut one = client(&node, &config)?;
    one.write_all(b"close\nand more that nobody reads\n")?;
    let mut rest = String::new();
    one.read_to_string(&mut rest)?;
    assert_eq!(rest, "closing\n");

    let mut one = client(&node, &config)?;
    one.write_all(b"hi\n")?;
    assert_eq!(read_line(&mut one)?, "hi");
    node.mailbox.post(ShardMessage::ShutDown)?;
    let mut rest = String::new();
    one.read_to_string(&mut rest)?;
    assert_eq!(rest, "shutdown\n");
    assert_eq!(node.reports.recv()?, LoopReport::Drained);
    Ok(())
}

#[test]
fn client_may_close_with_or_without_close_notify() -> Result<()> {
    let fixture = Fixture::new("loop-ends")?;
    let node = start(&fixture, LoopConfig::default())?;
    let config = Arc::new(fixture.client(None)?);
    for notify in [true, false] {
        let mut one = client(&node, &config)?;
        one.write_all(b"x\n")?;
        assert_eq!(read_line(&mut one)?, "x");
        node.wait_for_connections(1)?;
        match notify {
            // The socket stays open: close_notify alone ends the connection.
            true => {
                one.conn.send_close_notify();
                one.flush()?;
            }
            false => one.sock.shutdown(Shutdown::Write)?,
        }
        node.wait_for_connections(0)?;
        // The server answers with close_notify.
        let mut rest = Vec::new();
        one.read_to_end(&mut rest)?;
        assert!(rest.is_empty());
    }
    Ok(())
}

#[test]
fn plain_text_client_receives_an_alert() -> Result<()> {
    let fixture = Fixture::new("loop-plain")?;
    let node = start(&fixture, LoopConfig::default())?;
    let mut plain = connect(&node)?;
    plain.write_all(b"AMQP\0\0\x09\x01")?;
    let mut received = Vec::new();
    plain.read_to_end(&mut received)?;
    assert_eq!(received.first(), Some(&21), "an alert: {received:?}");
    // Other clients are served, and the driver does not know the failed connection.
    let mut one = client(&node, &Arc::new(fixture.client(None)?))?;
    one.write_all(b"x\n")?;
    assert_eq!(read_line(&mut one)?, "x");
    node.wait_for_connections(1)?;
    Ok(())
}

#[test]
fn modified_record_ends_the_connection() -> Result<()> {
    let fixture = Fixture::new("loop-changed")?;
    let node = start(&fixture, LoopConfig::default())?;
    let mut one = client(&node, &Arc::new(fixture.client(None)?))?;
    one.write_all(b"x\n")?;
    assert_eq!(read_line(&mut one)?, "x");
    one.conn.writer().write_all(b"close\n")?;
    let mut wire = Vec::new();
    one.conn.write_tls(&mut wire)?;
    *wire.last_mut().ok_or("empty")? ^= 1;
    one.sock.write_all(&wire)?;
    let error = one
        .read(&mut [0; 8])
        .err()
        .ok_or("the record was accepted")?;
    assert!(error.to_string().contains("BadRecordMac"), "{error}");
    node.wait_for_connections(0)?;
    Ok(())
}

#[test]
fn handshake_timeout_closes_the_connection() -> Result<()> {
    let fixture = Fixture::new("loop-stall")?;
    let config = LoopConfig {
        tls_handshake: Duration::from_millis(50),
        ..LoopConfig::default()
    };
    let node = start(&fixture, config)?;
    for opening in [&b""[..], &[22, 3, 1, 2, 0, 1]] {
        let mut stalled = connect(&node)?;
        stalled.write_all(opening)?;
        let mut received = Vec::new();
        stalled.read_to_end(&mut received)?;
        assert!(received.is_empty());
    }
    Ok(())
}

/// More handshakes than one turn takes: all complete, and paused listeners resume.
#[test]
fn mass_handshakes_all_complete() -> Result<()> {
    let fixture = Fixture::new("loop-storm")?;
    let node = start(&fixture, LoopConfig::default())?;
    let config = Arc::new(fixture.client(None)?);
    let mut clients: Vec<Client> = Vec::new();
    for _ in 0..100 {
        let mut one = client(&node, &config)?;
        // Only the ClientHello, so that all handshakes overlap.
        one.conn.write_tls(&mut one.sock)?;
        clients.push(one);
    }
    for one in &mut clients {
        one.write_all(b"me too\n")?;
        assert_eq!(read_line(one)?, "me too");
    }
    node.wait_for_connections(100)?;
    Ok(())
}

#[test]
fn sessions_resume_until_the_certificate_changes() -> Result<()> {
    let fixture = Fixture::new("loop-resume")?;
    let (server, mut watched) = ServerTls::load(options(&fixture))?;
    let node = Harness::listening(LoopConfig::default(), Some(server))?;
    let config = Arc::new(fixture.client(None)?);
    let mut kinds = Vec::new();
    for round in 0..3 {
        if round == 2 {
            fixture.issue_server()?;
            watched.reload_if_changed();
        }
        let mut one = client(&node, &config)?;
        one.write_all(b"x\n")?;
        assert_eq!(read_line(&mut one)?, "x");
        kinds.push(one.conn.handshake_kind());
    }
    let expected = [
        HandshakeKind::Full,
        HandshakeKind::Resumed,
        // Tickets are invalidated with the certificate.
        HandshakeKind::Full,
    ];
    assert_eq!(kinds, expected.map(Some));
    Ok(())
}

#[test]
fn missing_client_certificate_is_reported() -> Result<()> {
    let fixture = Fixture::new("loop-required")?;
    let options = TlsOptions {
        cacertfile: Some(fixture.path("ca.pem")),
        verify: ClientVerification::Peer { required: true },
        ..options(&fixture)
    };
    let (server, _) = ServerTls::load(options)?;
    let node = Harness::listening(LoopConfig::default(), Some(server))?;
    let mut without = client(&node, &Arc::new(fixture.client(None)?))?;
    let outcome = without
        .write_all(b"x\n")
        .and_then(|()| without.read(&mut [0; 8]));
    let error = outcome.err().ok_or("served")?;
    assert!(error.to_string().contains("CertificateRequired"), "{error}");
    let with_certificate = fixture.client(Some((&fixture.authority, "me")))?;
    let mut with = client(&node, &Arc::new(with_certificate))?;
    with.write_all(b"x\n")?;
    assert_eq!(read_line(&mut with)?, "x");
    Ok(())
}
