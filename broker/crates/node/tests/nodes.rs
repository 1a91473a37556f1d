//! Complete nodes in one process: real threads, sockets, files and TLS, with a simple shard driver.

use crate::journal::{RunningNode, SOME_SECONDS, Scratch, eventually, free_ports, start, within};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

type Result = std::result::Result<(), Box<dyn std::error::Error>>;

/// Creates a certificate authority and a node certificate, as `cluster.auth.*` flags.
fn authority(
    dir: &Path,
    name: &str,
) -> std::result::Result<Vec<String>, Box<dyn std::error::Error>> {
    let ca_key = KeyPair::generate()?;
    let mut ca = CertificateParams::new(Vec::<String>::new())?;
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_pem = ca.self_signed(&ca_key)?.pem();
    let issuer = Issuer::new(ca, ca_key);
    let key = KeyPair::generate()?;
    let mut node = CertificateParams::new(vec!["*.nodes.example".to_owned()])?;
    node.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    let pem = node.signed_by(&key, &issuer)?.pem();
    let mut flags = Vec::new();
    for (what, text) in [
        ("cacertfile", ca_pem),
        ("certfile", pem),
        ("keyfile", key.serialize_pem()),
    ] {
        let path = dir.join(format!("{name}-{what}.pem"));
        std::fs::write(&path, text)?;
        flags.push(format!("cluster.auth.{what}={}", path.display()));
    }
    Ok(flags)
}

/// Flags for each of `count` nodes that form a cluster.
fn cluster_flags(count: usize, auth: &[String]) -> std::io::Result<Vec<Vec<String>>> {
    let ports = free_ports(count)?;
    let peers: Vec<String> = ports.iter().map(|p| format!("127.0.0.1:{p}")).collect();
    let each = ports.iter().map(|port| {
        let mut flags = vec![
            format!("cluster.listener=127.0.0.1:{port}"),
            format!("cluster.peers={}", peers.join(",")),
        ];
        flags.extend_from_slice(auth);
        flags
    });
    Ok(each.collect())
}

fn start_all(
    scratch: &Path,
    flags: &[Vec<String>],
) -> std::result::Result<Vec<RunningNode>, String> {
    let each = flags.iter().enumerate();
    each.map(|(i, f)| start(scratch, &format!("n{i}"), f))
        .collect()
}

#[test]
fn single_node_keeps_confirmed_lines_across_restarts() -> Result {
    let scratch = Scratch::new("alone")?;
    let node = start(&scratch.0, "solo", &[])?;
    let mut client = node.client()?;
    assert!(client.ask("who")?.ends_with("founders=1"));
    let index = client.ask("who")?;
    for i in 1..=100 {
        client.send(&format!("put {i}"))?;
    }
    for i in 1..=100 {
        assert_eq!(client.line()?, format!("ok {i}"));
    }
    node.stop()?;
    // Clients were disconnected, and the ports are no longer advertised.
    assert_eq!(client.line()?, "bye");
    assert!(!scratch.0.join("solo.ready").exists());

    let node = start(&scratch.0, "solo", &[])?;
    // The kernel chooses the shard: repeat until it is the one that wrote.
    let found = eventually(|| {
        let mut client = node.client().ok()?;
        (client.ask("who").ok()? == index).then_some(client)
    });
    let mut client = found.ok_or("shard not reached")?;
    assert_eq!(client.ask("next")?, "101");
    node.stop()?;
    Ok(())
}

#[test]
fn shards_exchange_frames() -> Result {
    let scratch = Scratch::new("shards")?;
    let node = start(&scratch.0, "solo", &["shards=4".to_owned()])?;
    let mut speaker = node.client()?;
    let who = speaker.ask("who")?;
    let from = who.split(' ').nth(1).ok_or("no index")?.to_owned();
    assert_eq!(speaker.ask("shards hello")?, "told");
    let heard = eventually(|| {
        let mut other = node.client().ok()?;
        (other.ask("who").ok()? != who).then_some(other)
    });
    let mut other = heard.ok_or("no other shard reached")?;
    other.until("heard", &format!("{from}:hello"))?;
    node.stop()?;
    Ok(())
}

#[test]
fn three_nodes_form_a_cluster_and_survive_a_restart() -> Result {
    let scratch = Scratch::new("three")?;
    let auth = authority(&scratch.0, "ca")?;
    let flags = cluster_flags(3, &auth)?;
    let mut nodes = start_all(&scratch.0, &flags)?;
    let mut clients = Vec::new();
    for node in &nodes {
        let mut client = node.client()?;
        client.until("peers", "2")?;
        assert!(client.ask("who")?.ends_with("founders=3"));
        clients.push(client);
    }
    assert_eq!(clients[0].ask("tell hello")?, "told");
    let group_shard = clients[0].ask("who")?;
    let shard = group_shard.split(' ').nth(1).ok_or("no index")?.to_owned();
    let receiver = eventually(|| {
        let mut client = nodes[1].client().ok()?;
        let index = client.ask("who").ok()?.split(' ').nth(1)?.to_owned();
        (index == shard).then_some(client)
    });
    receiver
        .ok_or("shard not reached")?
        .until("heard", "n0:hello")?;

    nodes.remove(2).stop()?;
    clients[0].until("peers", "1")?;
    clients[1].until("peers", "1")?;
    let back = start(&scratch.0, "n2", &flags[2])?;
    clients[0].until("peers", "2")?;
    back.client()?.until("peers", "2")?;
    back.stop()?;
    for node in nodes {
        node.stop()?;
    }
    Ok(())
}

#[test]
fn node_without_its_directory_joins_again() -> Result {
    let scratch = Scratch::new("lost")?;
    let auth = authority(&scratch.0, "ca")?;
    let flags = cluster_flags(3, &auth)?;
    let mut nodes = start_all(&scratch.0, &flags)?;
    for node in &nodes {
        node.client()?.until("peers", "2")?;
    }
    nodes.remove(0).stop()?;
    std::fs::remove_dir_all(scratch.0.join("n0"))?;
    let anew = start(&scratch.0, "n0", &flags[0])?;
    let mut client = anew.client()?;
    client.until("peers", "2")?;
    assert!(
        client.ask("who")?.ends_with("founders=0"),
        "it votes no more"
    );
    let asked = eventually(|| {
        let mut client = nodes[0].client().ok()?;
        client.ask("who").ok()?.contains(" 0 ").then_some(client)
    });
    let joined = asked.ok_or("shard 0 not reached")?.ask("joined")?;
    assert!(joined.ends_with("n0"), "{joined}");
    anew.stop()?;
    for node in nodes {
        node.stop()?;
    }
    Ok(())
}

#[test]
fn two_of_three_nodes_wait_for_the_third() -> Result {
    let scratch = Scratch::new("wait")?;
    let flags = cluster_flags(3, &[])?;
    let nodes = start_all(&scratch.0, &flags[..2])?;
    // They listen, so they have started. They can be stopped while they wait.
    for f in &flags[..2] {
        let address = f[0].trim_start_matches("cluster.listener=");
        eventually(|| TcpStream::connect(address).ok()).ok_or("does not listen")?;
    }
    assert!(!nodes.iter().any(RunningNode::is_ready));
    for node in nodes {
        node.stop()?;
    }
    let nodes = start_all(&scratch.0, &flags)?;
    for node in &nodes {
        node.client()?.until("peers", "2")?;
    }
    for node in nodes {
        node.stop()?;
    }
    Ok(())
}

#[test]
fn node_of_another_authority_is_refused() -> Result {
    let scratch = Scratch::new("foreign")?;
    let good = authority(&scratch.0, "good")?;
    let bad = authority(&scratch.0, "bad")?;
    let mut flags = cluster_flags(3, &good)?;
    let ours = start_all(&scratch.0, &flags[..2])?;
    flags[2].truncate(2);
    flags[2].extend(bad);
    let foreign = start(&scratch.0, "n2", &flags[2])?;
    // An admitted node is ready in a tenth of this time.
    assert!(within(SOME_SECONDS, || foreign.is_ready().then_some(())).is_none());
    foreign.stop()?;
    flags[2].truncate(2);
    flags[2].extend(good);
    let ours_again = start(&scratch.0, "n2", &flags[2])?;
    ours_again.client()?.until("peers", "2")?;
    ours_again.stop()?;
    for node in ours {
        node.stop()?;
    }
    Ok(())
}

#[test]
fn hostile_bytes_on_the_cluster_port_are_harmless() -> Result {
    let scratch = Scratch::new("hostile")?;
    let flags = cluster_flags(2, &[])?;
    let nodes = start_all(&scratch.0, &flags)?;
    let mut client = nodes[0].client()?;
    client.until("peers", "1")?;
    let port = flags[0][0]
        .rsplit(':')
        .next()
        .ok_or("no port")?
        .parse::<u16>()?;
    let mut attacks: Vec<Vec<u8>> = vec![
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        b"AMQP\x00\x00\x09\x01".to_vec(),
        vec![0xff; 100_000],
        vec![0; 64],
        vec![5, 0, 0, 0, 1, b'P', b'H', b'N', b'L'],
    ];
    // A data frame, a welcome and a bye without a preceding HELLO.
    attacks.push(vec![
        11, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 4,
    ]);
    for attack in attacks {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        // The node may close the connection during the write.
        let _ = stream.write_all(&attack);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut rest = Vec::new();
        // It sends only its HELLO.
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.len() < 1024);
    }
    assert_eq!(client.ask("peers")?, "1");
    assert_eq!(client.ask("heard")?, "");
    for node in nodes {
        node.stop()?;
    }
    Ok(())
}

#[test]
fn failed_start_reports_its_reason() -> Result {
    let scratch = Scratch::new("refuse")?;
    let open = start(&scratch.0, "open", &["cluster.listener=25672".to_owned()])?;
    let error = open.end().err().ok_or("started")?;
    assert!(error.contains("cluster.auth"), "{error}");

    let first = start(&scratch.0, "same", &[])?;
    first.address()?;
    let second = start(&scratch.0, "same", &[])?;
    let error = second.end().err().ok_or("started")?;
    assert!(error.contains("in use by another process"), "{error}");

    let port = first.address()?.port();
    let taken = start(
        &scratch.0,
        "taken",
        &[format!("listeners.tcp.default=127.0.0.1:{port}")],
    )?;
    let error = taken.end().err().ok_or("started")?;
    assert!(
        error.contains("cannot listen on") && error.contains("amqp"),
        "{error}"
    );
    first.stop()?;

    let missing = vec![
        "cluster.auth.cacertfile=/nonexistent/ca.pem".to_owned(),
        "cluster.auth.certfile=/nonexistent/c.pem".to_owned(),
        "cluster.auth.keyfile=/nonexistent/k.pem".to_owned(),
    ];
    let error = start(&scratch.0, "tls", &missing)?
        .end()
        .err()
        .ok_or("started")?;
    assert!(error.contains("/nonexistent/ca.pem"), "{error}");
    Ok(())
}

#[test]
fn low_disk_raises_the_alarm_on_every_shard() -> Result {
    let scratch = Scratch::new("alarm")?;
    let node = start(
        &scratch.0,
        "solo",
        &["disk_free_limit.absolute=1000000TB".to_owned()],
    )?;
    let mut client = node.client()?;
    client.until("alarms", "disk")?;
    node.stop()?;
    Ok(())
}
