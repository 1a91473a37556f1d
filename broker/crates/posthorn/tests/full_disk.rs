//! The program on a disk that is really full: a small tmpfs in a mount namespace of its own.
#![forbid(unsafe_code)]

mod client;
mod program;

use client::Client;
use program::{Result, Scratch, Serving, address, eventually, serve_arguments};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

const MIB: u64 = 1 << 20;

/// A file system that only processes in its namespace see under its path. It goes with its holder.
struct SmallDisk {
    holder: Child,
    path: PathBuf,
}

impl SmallDisk {
    fn mount(path: PathBuf, bytes: u64) -> Result<SmallDisk> {
        std::fs::create_dir_all(&path)?;
        let mut holder = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c"])
            .arg("mount -t tmpfs -o size=$1 tmpfs \"$0\" && echo mounted && exec cat")
            .arg(&path)
            .arg(bytes.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(holder.stdout.take().ok_or("no pipe")?).read_line(&mut line)?;
        if line.trim() != "mounted" {
            let mut why = String::new();
            let _ = holder.kill();
            holder
                .stderr
                .take()
                .ok_or("no pipe")?
                .read_to_string(&mut why)?;
            holder.wait()?;
            return Err(format!(
                "this test mounts a small tmpfs in a mount namespace of its own, for which it must be root and have \
                 util-linux; it cannot: {why}"
            )
            .into());
        }
        Ok(SmallDisk { holder, path })
    }

    /// Where this process sees it.
    fn view(&self) -> PathBuf {
        let path = self.path.to_string_lossy();
        PathBuf::from(format!("/proc/{}/root{path}", self.holder.id()))
    }

    /// Somebody else's file, as large as this or as there is space.
    fn fill(&self, bytes: u64) -> Result<PathBuf> {
        let path = self.view().join("somebody-elses");
        let mut file = File::create(&path)?;
        let block = vec![1; 64 << 10];
        for _ in 0..bytes.div_ceil(block.len() as u64) {
            if file.write_all(&block).is_err() {
                break;
            }
        }
        Ok(path)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

struct Node {
    process: Serving,
    log: PathBuf,
    amqp: String,
    disk: SmallDisk,
    _scratch: Scratch,
}

impl Node {
    fn start(name: &str, bytes: u64, set: &[&str]) -> Result<Node> {
        let scratch = Scratch::new(name)?;
        let disk = SmallDisk::mount(scratch.0.join("disk"), bytes)?;
        let (ready, log) = (scratch.0.join("ready"), scratch.0.join("log"));
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--mount=/proc/{}/ns/mnt", disk.holder.id()))
            .arg(env!("CARGO_BIN_EXE_posthorn"));
        serve_arguments(&mut command, &disk.path, &ready);
        for key in set {
            command.arg("--set").arg(key);
        }
        let process = command.stdin(Stdio::null()).stderr(File::create(&log)?);
        let process = Serving(process.spawn()?);
        Ok(Node {
            process,
            log,
            amqp: address(&ready, "amqp")?,
            disk,
            _scratch: scratch,
        })
    }

    fn said(&self, event: &str) -> Option<String> {
        let log = std::fs::read_to_string(&self.log).ok()?;
        log.lines().find(|l| l.contains(event)).map(str::to_owned)
    }

    /// The log line names the disk.
    fn has_told(&self, event: &str) -> Result<()> {
        let line = eventually(event, || self.said(event))?;
        let disk = self.disk.path.display().to_string();
        assert!(line.contains(&disk), "{line}");
        Ok(())
    }

    fn lives(&mut self) -> Result<()> {
        match self.process.0.try_wait()? {
            None => Ok(()),
            Some(status) => Err(format!(
                "the node has ended: {status}\n{}",
                std::fs::read_to_string(&self.log)?
            )
            .into()),
        }
    }
}

/// Publishes until told to stop. What is then not confirmed may be confirmed later.
fn publish_until_blocked(client: &mut Client, queue: &str, size: usize, limit: u64) -> Result<()> {
    while client.blocked.is_none() {
        assert!(client.sent < limit, "never blocked");
        client.publish(queue, size)?;
        client.until_true(|c| c.blocked.is_some() || c.unconfirmed() < 4)?;
    }
    Ok(())
}

fn small_things_go_on(address: &str) -> Result<()> {
    let mut client = Client::open(address, "guest", "guest", "/")?;
    client.declare("other", "quorum")?;
    client.delete("other")
}

/// The broker's own messages fill the disk. Publishers wait; who consumes gives the space back, and they go on.
#[test]
fn messages_fill_the_disk() -> Result<()> {
    let set = ["wal.file_size=8MiB", "disk_free_limit.absolute=1MB"];
    let mut node = Node::start("fills", 112 * MIB, &set)?;
    let mut publisher = Client::publisher(&node.amqp)?;
    publisher.declare("orders", "quorum")?;
    publish_until_blocked(&mut publisher, "orders", 60_000, 4_000)?;
    assert!(publisher.sent > 500, "{} fit", publisher.sent);
    assert_eq!(publisher.blocked.as_deref(), Some("low on disk"));
    node.has_told("wal.disk_short")?;
    node.lives()?;
    small_things_go_on(&node.amqp)?;

    let mut consumer = Client::open(&node.amqp, "guest", "guest", "/")?;
    let confirmed = publisher.confirmed.clone();
    let came = consumer.consume("orders", &confirmed)?;
    assert!(came.is_superset(&confirmed));
    publisher.until_true(|c| c.blocked.is_none())?;
    publisher.until_true(|c| c.unconfirmed() == 0)?;
    publisher.publish_all("orders", 20, 60_000)?;
    let rest: std::collections::BTreeSet<u64> =
        publisher.confirmed.difference(&came).copied().collect();
    assert!(rest.len() >= 20 && publisher.refused.is_empty());
    assert!(consumer.consume("orders", &rest)?.is_superset(&rest));
    node.lives()
}

/// Somebody else takes the last byte. Nothing that was confirmed is lost, before or after.
#[test]
fn somebody_else_fills_the_disk() -> Result<()> {
    let mut node = Node::start("filled", 128 * MIB, &["wal.file_size=8MiB"])?;
    let mut publisher = Client::publisher(&node.amqp)?;
    for (queue, kind) in [("orders", "quorum"), ("notes", "classic")] {
        publisher.declare(queue, kind)?;
    }
    publisher.publish_all("orders", 300, 2_000)?;
    let filler = node.disk.fill(u64::MAX)?;
    publish_until_blocked(&mut publisher, "orders", 2_000, 100_000)?;
    node.has_told("wal.disk_short")?;
    small_things_go_on(&node.amqp)?;
    let confirmed = publisher.confirmed.clone();
    let mut consumer = Client::open(&node.amqp, "guest", "guest", "/")?;
    let came = consumer.consume("orders", &confirmed)?;
    assert!(came.is_superset(&confirmed));
    consumer.delete("notes")?;
    node.lives()?;

    std::fs::remove_file(filler)?;
    publisher.until_true(|c| c.blocked.is_none())?;
    publisher.until_true(|c| c.unconfirmed() == 0)?;
    publisher.publish_all("orders", 100, 2_000)?;
    let rest = publisher.confirmed.difference(&came).copied().collect();
    consumer.consume("orders", &rest)?;
    assert!(publisher.refused.is_empty());
    node.lives()
}

/// The alarm comes long before the disk is full, at the configured bound, and goes with its cause.
#[test]
fn the_alarm_comes_at_the_configured_bound() -> Result<()> {
    let set = ["disk_free_limit.absolute=100MB"];
    let mut node = Node::start("alarm", 160 * MIB, &set)?;
    let mut publisher = Client::publisher(&node.amqp)?;
    publisher.declare("orders", "classic")?;
    publisher.publish_all("orders", 50, 100)?;
    let filler = node.disk.fill(80 * MIB)?;
    publish_until_blocked(&mut publisher, "orders", 100, 1_000_000)?;
    assert_eq!(publisher.blocked.as_deref(), Some("low on disk"));
    assert_eq!(node.said("wal.disk_short"), None);
    let mut consumer = Client::open(&node.amqp, "guest", "guest", "/")?;
    let confirmed = publisher.confirmed.clone();
    let came = consumer.consume("orders", &confirmed)?;
    std::fs::remove_file(filler)?;
    publisher.until_true(|c| c.blocked.is_none() && c.unconfirmed() == 0)?;
    let rest = publisher.confirmed.difference(&came).copied().collect();
    consumer.consume("orders", &rest)?;
    node.lives()
}
