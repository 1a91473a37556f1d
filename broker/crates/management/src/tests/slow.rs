//! Clients that take their time: each has its place for so long and no longer.

use super::*;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

#[test]
fn silent_connections_end_and_their_number_is_bounded() {
    let server = Server::start_with(|config| {
        config.max_connections = 1;
        config.idle_timeout = Duration::from_millis(300);
    });
    let mut silent = TcpStream::connect(server.address).unwrap();
    let mut waiting = TcpStream::connect(server.address).unwrap();
    waiting
        .write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .unwrap();
    // The first is closed for its silence, and only then the second gets its answer.
    let mut rest = Vec::new();
    let _ = silent.read_to_end(&mut rest);
    assert!(rest.is_empty());
    let mut answer = String::new();
    waiting.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// One place, and requests that may take a moment only.
fn hurried() -> Server {
    Server::start_with(|config| {
        config.max_connections = 1;
        config.idle_timeout = Duration::from_secs(600);
        config.request_timeout = Duration::from_millis(200);
        config.head_timeout = Duration::from_millis(200);
    })
}

/// Sends this, and then a byte now and then, until the server ends it; what it said.
fn trickle(server: &Server, beginning: &str) -> String {
    let mut slow = TcpStream::connect(server.address).unwrap();
    // The pause between two bytes.
    let pause = Duration::from_millis(20);
    slow.set_read_timeout(Some(pause)).unwrap();
    slow.write_all(beginning.as_bytes()).unwrap();
    let mut said = Vec::new();
    for _ in 0..10_000 {
        let sent = slow.write_all(b" ");
        let mut part = [0; 1024];
        match slow.read(&mut part) {
            Ok(0) => return String::from_utf8(said).unwrap(),
            Ok(read) => said.extend_from_slice(&part[..read]),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock && sent.is_ok() => {}
            Err(_) => return String::from_utf8(said).unwrap(),
        }
    }
    panic!("it was never ended");
}

#[test]
fn a_request_that_trickles_in_ends() {
    let server = hurried();
    let said = trickle(&server, "GET /livez HTTP/1.1\r\nX-Slow: ");
    assert_eq!(said, "");
    // Its place is free for others.
    assert_eq!(server.ask_as(None, "GET", "/livez", None).status, 200);
}

#[test]
fn a_body_that_trickles_in_ends() {
    let server = hurried();
    let login = base64::engine::general_purpose::STANDARD.encode("guest:guest");
    let head = format!(
        "PUT /api/vhosts/slow HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {login}\r\nContent-Length: 200000\r\n\r\n"
    );
    let said = trickle(&server, &head);
    assert!(said.starts_with("HTTP/1.1 503"), "{said}");
    assert!(said.contains("the request took too long"), "{said}");
    assert_eq!(server.ask_as(None, "GET", "/livez", None).status, 200);
    assert_eq!(server.ask("GET", "/api/vhosts/slow", None).status, 404);
}

#[test]
fn an_answer_that_nobody_takes_ends() {
    let server = hurried();
    {
        let mut fake = server.fake.lock().unwrap();
        // Many times what the system keeps for a connection.
        (0..20_000)
            .for_each(|at| fake.declare(&format!("a-queue-with-a-name-of-some-length-{at:05}")));
    }
    let mut slow = TcpStream::connect(server.metrics).unwrap();
    slow.write_all(b"GET /metrics/per-object HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    let mut beginning = [0; 12];
    slow.read_exact(&mut beginning).unwrap();
    assert_eq!(&beginning, b"HTTP/1.1 200");
    // There is one place: whoever comes next has it when the first has lost it.
    let config = ureq::Agent::config_builder().timeout_global(Some(Duration::from_secs(60)));
    let next = config.build().new_agent();
    let url = format!("http://{}/metrics", server.metrics);
    assert_eq!(next.get(url).call().unwrap().status(), 200);
    drop(slow);
}

#[test]
fn a_head_of_more_than_its_limit_is_refused() {
    let server = Server::start();
    let mut client = TcpStream::connect(server.address).unwrap();
    let line = format!("X-Filler: {}\r\n", "x".repeat(1000));
    client
        .write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n")
        .unwrap();
    for _ in 0..=crate::MAX_HEAD / line.len() {
        // An error: it has been refused by now.
        if client.write_all(line.as_bytes()).is_err() {
            break;
        }
    }
    let mut answer = [0; 12];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 431");
}

#[test]
fn connections_without_a_request_make_room_for_one_with_a_request() {
    const LIMIT: usize = 8;
    let server = Server::start_with(|config| {
        config.max_connections = LIMIT;
        config.idle_timeout = Duration::from_secs(600);
        config.head_timeout = Duration::from_secs(600);
    });
    let held: Vec<TcpStream> = (0..LIMIT * 4)
        .map(|_| {
            let mut client = TcpStream::connect(server.address).unwrap();
            client
                .write_all(b"GET /livez HTTP/1.1\r\nX-Half: ")
                .unwrap();
            client
        })
        .collect();
    assert_eq!(server.ask("GET", "/api/whoami", None).status, 200);
    // The oldest was the first to go.
    let mut rest = Vec::new();
    let _ = (&held[0]).read_to_end(&mut rest);
    assert!(rest.is_empty());
}
