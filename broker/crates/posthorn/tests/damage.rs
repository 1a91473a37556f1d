//! Starting nodes whose files were damaged, and rejection of invalid clients.

use crate::client::Client;
use crate::nodes::Nodes;
use crate::program::{Result, Scratch, Serving, address, eventually, serve, stderr};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Starts a single node, publishes confirmed messages and kills the node.
fn killed_with_messages(scratch: &Path, count: u64) -> Result<PathBuf> {
    let (dir, ready) = (scratch.join("data"), scratch.join("ready"));
    let mut node = Serving(serve(&dir, &ready).stderr(Stdio::null()).spawn()?);
    let mut publisher = Client::publisher(&address(&ready, "amqp")?)?;
    publisher.declare("orders", "quorum")?;
    // Published individually, so that no log record holds more than one message.
    for _ in 0..count {
        publisher.publish_all("orders", 1, 500)?;
    }
    node.0.kill()?;
    node.0.wait()?;
    std::fs::remove_file(&ready)?;
    Ok(dir)
}

/// The newest log file and the length of its written part; the rest is zeros.
fn newest_log(dir: &Path) -> Result<(PathBuf, u64)> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir.join("wal"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "wal") {
            files.push(path);
        }
    }
    let newest = files.into_iter().max().ok_or("no log")?;
    let bytes = std::fs::read(&newest)?;
    let last = bytes.iter().rposition(|b| *b != 0).ok_or("nothing in it")?;
    Ok((newest, last as u64))
}

fn flip_bit(path: &Path, offset: u64) -> Result<()> {
    let byte = std::fs::read(path)?[usize::try_from(offset)?] ^ 0x10;
    let mut file = File::options().write(true).open(path)?;
    file.seek(SeekFrom::Start(offset))?;
    Ok(file.write_all(&[byte])?)
}

/// The end of the last record of a log file. Each record is preceded by a header with its length
/// minus 20 bytes.
fn end_of_records(file: &Path) -> Result<u64> {
    let bytes = std::fs::read(file)?;
    let mut at = 4096;
    while let Some(length) = bytes.get(at..).and_then(|b| b.first_chunk()) {
        match u32::from_le_bytes(*length) {
            0 => break,
            length => at += 20 + usize::try_from(length)?,
        }
    }
    Ok(u64::try_from(at)?)
}

/// A torn write of a killed process: nothing in it was acknowledged.
#[test]
fn torn_tail_is_truncated_and_logged() -> Result<()> {
    let scratch = Scratch::new("torn")?;
    let dir = killed_with_messages(&scratch.0, 50)?;
    let (file, _) = newest_log(&dir)?;
    let end = end_of_records(&file)?;
    let mut log = File::options().write(true).open(&file)?;
    log.seek(SeekFrom::Start(end))?;
    log.write_all(&[0x5a; 700])?;
    drop(log);
    let (ready, log) = (scratch.0.join("ready"), scratch.0.join("log"));
    let _node = Serving(serve(&dir, &ready).stderr(File::create(&log)?).spawn()?);
    let mut consumer = Client::open(&address(&ready, "amqp")?, "guest", "guest", "/")?;
    consumer.consume("orders", &(1..=50).collect())?;
    let log = std::fs::read_to_string(&log)?;
    let torn = log.lines().find(|l| l.contains("wal.torn_tail"));
    let torn = torn.ok_or("the log says nothing of it")?;
    assert!(torn.contains(".wal") && torn.contains("offset="), "{torn}");
    Ok(())
}

#[test]
fn damaged_newest_acknowledged_record_prevents_start() -> Result<()> {
    let scratch = Scratch::new("newest")?;
    let dir = killed_with_messages(&scratch.0, 50)?;
    let (file, last) = newest_log(&dir)?;
    flip_bit(&file, last)?;
    assert_start_is_refused(
        &scratch.0,
        &dir,
        &["is damaged at byte ", "records that followed were durable"],
    )
}

#[test]
fn log_truncated_in_newest_acknowledged_record_prevents_start() -> Result<()> {
    let scratch = Scratch::new("cut")?;
    let dir = killed_with_messages(&scratch.0, 50)?;
    let (file, last) = newest_log(&dir)?;
    File::options().write(true).open(file)?.set_len(last)?;
    assert_start_is_refused(
        &scratch.0,
        &dir,
        &["is damaged at byte ", "records that followed were durable"],
    )
}

#[test]
fn damage_in_the_middle_of_the_log_prevents_start_and_changes_nothing() -> Result<()> {
    let scratch = Scratch::new("middle")?;
    let dir = killed_with_messages(&scratch.0, 50)?;
    let (file, last) = newest_log(&dir)?;
    flip_bit(&file, last / 2)?;
    let before = std::fs::read(&file)?;
    for _ in 0..2 {
        let output = serve(&dir, &scratch.0.join("ready")).output()?;
        assert_eq!(output.status.code(), Some(1));
        let text = stderr(&output);
        let name = file.file_name().ok_or("no name")?.to_string_lossy();
        assert!(
            text.contains(&format!("wal/{name} is damaged at byte ")),
            "{text}"
        );
        assert!(
            text.contains("put a copy of the directory in its place"),
            "{text}"
        );
        assert!(
            text.contains("move the directory away and start the node again"),
            "{text}"
        );
    }
    assert_eq!(std::fs::read(&file)?, before);
    Ok(())
}

/// Asserts that the node refuses to start, repeatedly.
fn assert_start_is_refused(scratch: &Path, dir: &Path, reasons: &[&str]) -> Result<()> {
    for _ in 0..2 {
        let output = serve(dir, &scratch.join("ready")).output()?;
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        for reason in reasons {
            assert!(text.contains(reason), "{reason}: {text}");
        }
    }
    Ok(())
}

/// The missing file may hold many messages: starting without it would lose them silently.
#[test]
fn missing_log_file_prevents_start_despite_a_spare_file() -> Result<()> {
    let scratch = Scratch::new("lost-log")?;
    let dir = killed_with_messages(&scratch.0, 50)?;
    let (file, _) = newest_log(&dir)?;
    std::fs::rename(&file, dir.join("wal/0000000000000000.spare"))?;
    assert_start_is_refused(
        &scratch.0,
        &dir,
        &["`wal/` holds no log file", "joins its cluster anew"],
    )
}

#[test]
fn log_file_truncated_in_the_middle_prevents_start() -> Result<()> {
    let scratch = Scratch::new("short-log")?;
    let dir = killed_with_messages(&scratch.0, 400)?;
    let (file, last) = newest_log(&dir)?;
    File::options().write(true).open(file)?.set_len(last / 2)?;
    let reasons = [
        "records that followed were durable",
        "move the directory away and start the node again",
    ];
    assert_start_is_refused(&scratch.0, &dir, &reasons)
}

/// A small log, so that messages are soon moved to segments.
const SMALL_LOG: &str = "wal.file_size=1MiB";
const MESSAGES: u64 = 150;

/// Publishes more messages than two log files hold.
fn publish_to_segments(amqp: &str) -> Result<()> {
    let mut publisher = Client::publisher(amqp)?;
    publisher.declare("orders", "quorum")?;
    // Published individually, so that no log entry holds more than one message.
    for _ in 0..MESSAGES {
        publisher.publish_all("orders", 1, 12_000)?;
    }
    Ok(())
}

/// Flips a bit in the middle of the first segment below the directory and returns the file's name.
fn damage_a_segment(dir: &Path) -> Result<String> {
    let file = eventually("a segment", || segments(dir).into_iter().next())?;
    flip_bit(&file, std::fs::metadata(&file)?.len() / 2)?;
    let name = file.file_name().ok_or("no name")?;
    Ok(name.to_string_lossy().into_owned())
}

fn segments(dir: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.append(&mut segments(&path));
        } else if path.extension().is_some_and(|e| e == "seg") {
            found.insert(path);
        }
    }
    found
}

/// The others may never come back, or this node may have lost records of its log: it never waits in silence.
#[test]
fn node_that_waits_for_the_others_logs_the_reason() -> Result<()> {
    let mut nodes = Nodes::start("waits", 3)?;
    for at in 0..3 {
        nodes.kill(at)?;
    }
    nodes.run(0)?;
    let line = eventually("node.not_ready", || {
        let log = std::fs::read_to_string(nodes.log(0)).ok()?;
        log.lines()
            .find(|line| line.contains("node.not_ready"))
            .map(str::to_owned)
    })?;
    // Without the others, the node does not know which entries of its log are committed, its own record among them.
    let reasons = ["no leader", "this node is not yet a member of the cluster"];
    let is_named = reasons.iter().any(|reason| line.contains(reason));
    assert!(is_named, "{line}");
    assert!(line.contains("move its data directory away"), "{line}");
    nodes.run(1)?;
    nodes.address(0, "amqp")?;
    Ok(())
}

#[test]
fn single_node_reports_a_damaged_message_and_serves_the_others() -> Result<()> {
    let scratch = Scratch::new("segment")?;
    let (dir, ready) = (scratch.0.join("data"), scratch.0.join("ready"));
    let log = scratch.0.join("log");
    let mut command = serve(&dir, &ready);
    command.arg("--set").arg(SMALL_LOG);
    let mut node = Serving(command.stderr(File::create(&log)?).spawn()?);
    let amqp = address(&ready, "amqp")?;
    publish_to_segments(&amqp)?;
    let damaged = damage_a_segment(&dir)?;
    let mut client = Client::publisher(&amqp)?;
    client.sent = MESSAGES;
    client.publish("orders", 8)?;
    let got = client.consume("orders", &BTreeSet::from([MESSAGES + 1]))?;
    assert_eq!(got.len() as u64, MESSAGES, "all but one");
    assert!(node.0.try_wait()?.is_none(), "it goes on");
    let told = std::fs::read_to_string(&log)?;
    let line = told.lines().find(|l| l.contains("queue_damaged"));
    assert!(line.is_some_and(|l| l.contains(&damaged)), "{told}");
    Ok(())
}

#[test]
fn leader_with_a_damaged_message_stops_and_others_serve_it() -> Result<()> {
    let mut nodes = Nodes::with("segment-of-three", 3, &[SMALL_LOG])?;
    publish_to_segments(&nodes.address(0, "amqp")?)?;
    let leader = nodes
        .queue("orders")
        .and_then(|q| q["leader"].as_str().map(str::to_owned));
    assert_eq!(leader.as_deref(), Some("n0"), "where the client was");
    let damaged = damage_a_segment(&nodes.dir(0))?;
    let mut client = Client::open(&nodes.address(1, "amqp")?, "guest", "guest", "/")?;
    let all: BTreeSet<u64> = (1..=MESSAGES).collect();
    assert_eq!(client.consume("orders", &all)?, all);
    let process = nodes.running[0].as_mut().ok_or("runs")?;
    let ended = eventually("an end", || process.0.try_wait().ok().flatten())?;
    assert_eq!(ended.code(), Some(1));
    let told = std::fs::read_to_string(nodes.log(0))?;
    assert!(told.contains(&damaged), "{told}");
    Ok(())
}

#[test]
fn invalid_credentials_and_vhosts_are_refused_with_reply_codes() -> Result<()> {
    let scratch = Scratch::new("wrong")?;
    let (dir, ready) = (scratch.0.join("data"), scratch.0.join("ready"));
    let _node = Serving(serve(&dir, &ready).stderr(Stdio::null()).spawn()?);
    let amqp = address(&ready, "amqp")?;
    let refused = |user: &str, password: &str, vhost: &str| {
        let error = Client::open(&amqp, user, password, vhost).err();
        error.map(|e| e.to_string()).unwrap_or_default()
    };
    let login = "403 ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the \
                 broker logfile.";
    assert_eq!(refused("guest", "wrong", "/"), login);
    assert_eq!(refused("nobody", "guest", "/"), login);
    assert_eq!(refused("guest", "", "/"), login);
    assert_eq!(
        refused("guest", "guest", "nowhere"),
        "530 NOT_ALLOWED - vhost nowhere not found"
    );
    Client::open(&amqp, "guest", "guest", "/")?;
    Ok(())
}
