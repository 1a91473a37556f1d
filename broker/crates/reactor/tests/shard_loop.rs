//! The event loop with a line driver: sockets, partial frames, pauses, slow readers, closing, rings
//! and shutdown.

use crate::lines::{Harness, connect, read_flood, read_line};
use reactor::{LoopConfig, LoopReport, ShardMessage};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

type Result = std::result::Result<(), Box<dyn std::error::Error>>;

#[test]
fn partial_frames_are_buffered() -> Result {
    let node = Harness::start(LoopConfig::default())?;
    let mut clients: Vec<TcpStream> = (0..20)
        .map(|_| connect(&node))
        .collect::<std::io::Result<_>>()?;
    for (i, client) in clients.iter_mut().enumerate() {
        client.write_all(format!("hello {i}\nsecond").as_bytes())?;
        assert_eq!(read_line(client)?, format!("hello {i}"));
    }
    for client in &mut clients {
        client.write_all(b" half\n")?;
        assert_eq!(read_line(client)?, "second half");
    }
    Ok(())
}

#[test]
fn frame_larger_than_a_read_arrives_complete() -> Result {
    let node = Harness::start(LoopConfig::default())?;
    let mut client = connect(&node)?;
    let long = "x".repeat(500_000);
    client.write_all(long.as_bytes())?;
    client.write_all(b"\n")?;
    assert_eq!(read_line(&mut client)?, long);
    Ok(())
}

#[test]
fn turn_limits_the_bytes_read_from_all_clients() -> Result {
    let config = LoopConfig {
        bytes_per_turn: 100_000,
        ..LoopConfig::default()
    };
    let node = Harness::start(config)?;
    let mut first = connect(&node)?;
    let mut others: Vec<TcpStream> = (0..20)
        .map(|_| connect(&node))
        .collect::<std::io::Result<_>>()?;
    node.wait_for_connections(21)?;
    first.write_all(b"hold\n")?;
    let lines = format!("{}\n", "x".repeat(999)).repeat(50);
    for client in &mut others {
        client.write_all(lines.as_bytes())?;
    }
    node.release.send(())?;
    for client in &mut others {
        for _ in 0..50 {
            assert_eq!(read_line(client)?.len(), 999);
        }
    }
    // The last connection served in a turn may exceed the limit.
    let max = node.max_received.load(std::sync::atomic::Ordering::SeqCst);
    assert!(max <= 150_000, "{max}");
    Ok(())
}

#[test]
fn oversized_frame_closes_only_its_connection() -> Result {
    let config = LoopConfig {
        max_partial: 100_000,
        ..LoopConfig::default()
    };
    let node = Harness::start(config)?;
    let mut good = connect(&node)?;
    let mut bad = connect(&node)?;
    // The write may fail, because the other side closes during it.
    let _ = bad.write_all(&vec![b'x'; 1_000_000]);
    let mut rest = Vec::new();
    match bad.read_to_end(&mut rest) {
        Ok(_) => assert!(rest.is_empty()),
        Err(e) => assert_eq!(e.kind(), ErrorKind::ConnectionReset),
    }
    good.write_all(b"still here\n")?;
    assert_eq!(read_line(&mut good)?, "still here");
    Ok(())
}

#[test]
fn paused_connections_are_not_read_until_resumed() -> Result {
    let node = Harness::start(LoopConfig::default())?;
    let mut paused = connect(&node)?;
    let mut other = connect(&node)?;
    // The frames after the pause are in the same read and must be processed after the resume.
    paused.write_all(b"pause\nafter 1\nafter 2\n")?;
    assert_eq!(read_line(&mut paused)?, "paused");
    paused.write_all(b"after 3\n")?;
    other.write_all(b"count\n")?;
    assert_eq!(read_line(&mut other)?, "0");
    other.write_all(b"resume\n")?;
    assert_eq!(read_line(&mut other)?, "resumed");
    for i in 1..=3 {
        assert_eq!(read_line(&mut paused)?, format!("after {i}"));
    }
    Ok(())
}

#[test]
fn slow_reader_receives_all_output_in_order() -> Result {
    let node = Harness::start(LoopConfig::default())?;
    let mut client = connect(&node)?;
    // 64 MiB exceed the kernel's buffers. The driver produces them in pieces as the socket drains.
    client.write_all(b"flood 64\n")?;
    read_flood(&mut client, 64)?;
    client.write_all(b"done\n")?;
    assert_eq!(read_line(&mut client)?, "done");
    Ok(())
}

#[test]
fn last_output_arrives_before_the_close() -> Result {
    let node = Harness::start(LoopConfig::default())?;
    let mut client = connect(&node)?;
    // Input after the close is never read. Without lingering, the reset for it would destroy the
    // reply.
    let mut input = b"close\n".to_vec();
    input.extend(vec![b'y'; 200_000]);
    client.write_all(&input)?;
    let mut rest = String::new();
    client.read_to_string(&mut rest)?;
    assert_eq!(rest, "closing\n");
    drop(client);
    node.wait_for_connections(0)?;
    Ok(())
}

#[test]
fn connections_above_the_limit_are_closed() -> Result {
    let config = LoopConfig {
        max_connections: Arc::new(AtomicUsize::new(3)),
        ..LoopConfig::default()
    };
    let limit = config.max_connections.clone();
    let node = Harness::start(config)?;
    let mut admitted = Vec::new();
    for _ in 0..3 {
        let mut client = connect(&node)?;
        client.write_all(b"here\n")?;
        assert_eq!(read_line(&mut client)?, "here");
        admitted.push(client);
    }
    let mut refused = connect(&node)?;
    match refused.read(&mut [0; 8]) {
        Ok(n) => assert_eq!(n, 0),
        Err(e) => assert_eq!(e.kind(), ErrorKind::ConnectionReset),
    }
    admitted.pop();
    node.wait_for_connections(2)?;
    let mut next = connect(&node)?;
    next.write_all(b"room\n")?;
    assert_eq!(read_line(&mut next)?, "room");
    limit.store(4, Ordering::Relaxed);
    let mut fourth = connect(&node)?;
    fourth.write_all(b"raised\n")?;
    assert_eq!(read_line(&mut fourth)?, "raised");
    Ok(())
}

#[test]
fn listeners_can_be_closed_and_reopened() -> Result {
    let node = Harness::start(LoopConfig::default())?;
    let mut client = connect(&node)?;
    client.write_all(b"listen off\n")?;
    assert_eq!(read_line(&mut client)?, "off");
    // The reply is written after the effect was carried out.
    assert!(connect(&node).is_err());
    client.write_all(b"listen on\n")?;
    assert_eq!(read_line(&mut client)?, "on");
    let mut second = connect(&node)?;
    second.write_all(b"x\n")?;
    assert_eq!(read_line(&mut second)?, "x");
    Ok(())
}

#[test]
fn small_ring_carries_thousands_of_messages() -> Result {
    let mut node = Harness::start(LoopConfig::default())?;
    let mut client = connect(&node)?;
    client.write_all(b"subscribe\n")?;
    assert_eq!(read_line(&mut client)?, "subscribed");
    let frames = 20_000u32;
    for i in 0..frames {
        let frame = shard::Frame::Raft(bytes::Bytes::from(format!("frame {i}\n")));
        node.ring.send(ShardMessage::Local {
            from: 1,
            message: frame.into(),
        });
        node.ring.flush();
    }
    let mut lines = std::io::BufReader::new(client);
    for i in 0..frames {
        node.ring.flush();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut lines, &mut line)?;
        assert_eq!(line, format!("frame {i}\n"));
    }
    Ok(())
}

#[test]
fn shutdown_notifies_clients_and_is_reported() -> Result {
    let node = Harness::start(LoopConfig::default())?;
    let mut client = connect(&node)?;
    client.write_all(b"hi\n")?;
    assert_eq!(read_line(&mut client)?, "hi");
    node.mailbox.post(ShardMessage::ShutDown)?;
    let mut rest = String::new();
    client.read_to_string(&mut rest)?;
    assert_eq!(rest, "shutdown\n");
    assert_eq!(node.reports.recv()?, LoopReport::Drained);
    node.mailbox.post(ShardMessage::Stop)?;
    node.join();
    Ok(())
}

#[test]
fn fatal_effect_ends_the_loop() -> Result {
    let node = Harness::start(LoopConfig::default())?;
    let mut client = connect(&node)?;
    client.write_all(b"fatal\n")?;
    assert_eq!(
        node.reports.recv()?,
        LoopReport::Fatal("storage failed".to_owned())
    );
    node.join();
    Ok(())
}

/// As when descriptors run out: later clients wait and are served when a connection ends.
#[test]
fn accepting_pauses_at_its_limit_and_resumes() -> Result {
    let config = LoopConfig {
        accept_pause_at: 3,
        ..LoopConfig::default()
    };
    let node = Harness::start(config)?;
    let mut served: Vec<TcpStream> = (0..3)
        .map(|_| connect(&node))
        .collect::<std::io::Result<_>>()?;
    for client in &mut served {
        client.write_all(b"here\n")?;
        assert_eq!(read_line(client)?, "here");
    }
    let mut waiting = connect(&node)?;
    waiting.write_all(b"at last\n")?;
    for client in &mut served {
        client.write_all(b"still here\n")?;
        assert_eq!(read_line(client)?, "still here");
    }
    node.wait_for_connections(3)?;
    served.pop();
    assert_eq!(read_line(&mut waiting)?, "at last");
    Ok(())
}

#[test]
fn mass_reconnect_is_admitted_completely() -> Result {
    let config = LoopConfig {
        accepts_per_second: 200,
        ..LoopConfig::default()
    };
    let node = Harness::start(config)?;
    let mut clients: Vec<TcpStream> = (0..100)
        .map(|_| connect(&node))
        .collect::<std::io::Result<_>>()?;
    for client in &mut clients {
        client.write_all(b"me too\n")?;
    }
    for client in &mut clients {
        assert_eq!(read_line(client)?, "me too");
    }
    Ok(())
}
