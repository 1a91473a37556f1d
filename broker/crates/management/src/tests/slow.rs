//! Slow clients: each keeps its connection only for a limited time.

use super::*;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

#[test]
fn idle_connections_are_closed_and_bounded() {
    let server = Server::start_with(|config| {
        config.max_connections = 1;
        config.idle_timeout = Duration::from_millis(300);
    });
    let mut idle = TcpStream::connect(server.address).unwrap();
    let mut waiting = TcpStream::connect(server.address).unwrap();
    waiting
        .write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .unwrap();
    // The second request is answered only after the first connection was closed as idle.
    let mut rest = Vec::new();
    let _ = idle.read_to_end(&mut rest);
    assert!(rest.is_empty());
    let mut answer = String::new();
    waiting.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// Starts a server with one connection and short timeouts.
fn server_with_short_timeouts() -> Server {
    Server::start_with(|config| {
        config.max_connections = 1;
        config.idle_timeout = Duration::from_secs(600);
        config.request_timeout = Duration::from_millis(200);
        config.head_timeout = Duration::from_millis(200);
    })
}

/// Sends `first_bytes`, then single bytes, until the server closes the connection. Returns the
/// response.
fn trickle(server: &Server, first_bytes: &str) -> String {
    let mut slow = TcpStream::connect(server.address).unwrap();
    // The pause between two bytes.
    let pause = Duration::from_millis(20);
    slow.set_read_timeout(Some(pause)).unwrap();
    slow.write_all(first_bytes.as_bytes()).unwrap();
    let mut response = Vec::new();
    for _ in 0..10_000 {
        let sent = slow.write_all(b" ");
        let mut part = [0; 1024];
        match slow.read(&mut part) {
            Ok(0) => return String::from_utf8(response).unwrap(),
            Ok(read) => response.extend_from_slice(&part[..read]),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock && sent.is_ok() => {}
            Err(_) => return String::from_utf8(response).unwrap(),
        }
    }
    panic!("the server did not close the connection");
}

#[test]
fn slow_request_head_times_out() {
    let server = server_with_short_timeouts();
    let response = trickle(&server, "GET /livez HTTP/1.1\r\nX-Slow: ");
    assert_eq!(response, "");
    // Its connection slot is free again.
    assert_eq!(server.ask_as(None, "GET", "/livez", None).status, 200);
}

#[test]
fn slow_request_body_times_out() {
    let server = server_with_short_timeouts();
    let login = base64::engine::general_purpose::STANDARD.encode("guest:guest");
    let head = format!(
        "PUT /api/vhosts/slow HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {login}\r\nContent-Length: 200000\r\n\r\n"
    );
    let response = trickle(&server, &head);
    assert!(response.starts_with("HTTP/1.1 503"), "{response}");
    assert!(response.contains("the request took too long"), "{response}");
    assert_eq!(server.ask_as(None, "GET", "/livez", None).status, 200);
    assert_eq!(server.ask("GET", "/api/vhosts/slow", None).status, 404);
}

#[test]
fn unread_response_times_out() {
    let server = server_with_short_timeouts();
    {
        let mut fake = server.fake.lock().unwrap();
        // Many times the socket buffer size.
        (0..20_000)
            .for_each(|at| fake.declare(&format!("a-queue-with-a-name-of-some-length-{at:05}")));
    }
    let mut slow = TcpStream::connect(server.metrics).unwrap();
    slow.write_all(b"GET /metrics/per-object HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    let mut first_bytes = [0; 12];
    slow.read_exact(&mut first_bytes).unwrap();
    assert_eq!(&first_bytes, b"HTTP/1.1 200");
    // There is only one slot: the next client is served once the slow one lost it.
    let config = ureq::Agent::config_builder().timeout_global(Some(Duration::from_secs(60)));
    let next = config.build().new_agent();
    let url = format!("http://{}/metrics", server.metrics);
    assert_eq!(next.get(url).call().unwrap().status(), 200);
    drop(slow);
}

#[test]
fn oversized_request_head_is_refused() {
    let server = Server::start();
    let mut client = TcpStream::connect(server.address).unwrap();
    let line = format!("X-Filler: {}\r\n", "x".repeat(1000));
    client
        .write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n")
        .unwrap();
    for _ in 0..=crate::MAX_HEAD / line.len() {
        // An error means that the server has already refused the head.
        if client.write_all(line.as_bytes()).is_err() {
            break;
        }
    }
    let mut answer = [0; 12];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 431");
}

#[test]
fn idle_connections_are_evicted_for_new_requests() {
    const LIMIT: usize = 8;
    let server = Server::start_with(|config| {
        config.max_connections = LIMIT;
        config.idle_timeout = Duration::from_secs(600);
        config.head_timeout = Duration::from_secs(600);
    });
    let idle_clients: Vec<TcpStream> = (0..LIMIT * 4)
        .map(|_| {
            let mut client = TcpStream::connect(server.address).unwrap();
            client
                .write_all(b"GET /livez HTTP/1.1\r\nX-Half: ")
                .unwrap();
            client
        })
        .collect();
    assert_eq!(server.ask("GET", "/api/whoami", None).status, 200);
    // The oldest connection was evicted first.
    let mut rest = Vec::new();
    let _ = (&idle_clients[0]).read_to_end(&mut rest);
    assert!(rest.is_empty());
}
