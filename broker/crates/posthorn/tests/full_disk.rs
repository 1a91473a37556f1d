//! A node on a disk that is full: a small tmpfs in a private mount namespace.

use crate::client::Client;
use crate::program::{Result, Scratch, Serving, address, eventually, serve_arguments};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

const MIB: u64 = 1 << 20;

/// A file system that is visible only in its mount namespace. It is unmounted when its holder
/// process ends.
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

    /// The path of the file system as seen from this process.
    fn view(&self) -> PathBuf {
        let path = self.path.to_string_lossy();
        PathBuf::from(format!("/proc/{}/root{path}", self.holder.id()))
    }

    /// Free space in bytes.
    fn free(&self) -> Result<u64> {
        let output = Command::new("stat")
            .args(["--file-system", "--format", "%a %S"])
            .arg(self.view())
            .output()?;
        let text = String::from_utf8(output.stdout)?;
        let (blocks, size) = text.trim().split_once(' ').ok_or("no size")?;
        Ok(blocks.parse::<u64>()? * size.parse::<u64>()?)
    }

    /// Creates a file of another process, with this size or until the disk is full.
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

    fn log_line(&self, event: &str) -> Option<String> {
        let log = std::fs::read_to_string(&self.log).ok()?;
        log.lines().find(|l| l.contains(event)).map(str::to_owned)
    }

    /// Asserts that an event was logged with the path of the disk.
    fn assert_logged(&self, event: &str) -> Result<()> {
        let line = eventually(event, || self.log_line(event))?;
        let disk = self.disk.path.display().to_string();
        assert!(line.contains(&disk), "{line}");
        Ok(())
    }

    fn assert_running(&mut self) -> Result<()> {
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

/// Publishes until the connection is blocked. Unconfirmed messages may be confirmed later.
fn publish_until_blocked(client: &mut Client, queue: &str, size: usize, limit: u64) -> Result<()> {
    while client.blocked.is_none() {
        assert!(client.sent < limit, "never blocked");
        client.publish(queue, size)?;
        client.until_true(|c| c.blocked.is_some() || c.unconfirmed() < 4)?;
    }
    Ok(())
}

fn assert_small_operations_succeed(address: &str) -> Result<()> {
    let mut client = Client::open(address, "guest", "guest", "/")?;
    client.declare("other", "quorum")?;
    client.delete("other")
}

/// The broker's own messages fill the disk: publishers are blocked until consumers free space.
#[test]
fn publishers_are_blocked_while_messages_fill_the_disk() -> Result<()> {
    let set = ["wal.file_size=8MiB", "disk_free_limit.absolute=1MB"];
    let mut node = Node::start("fills", 112 * MIB, &set)?;
    let mut publisher = Client::publisher(&node.amqp)?;
    publisher.declare("orders", "quorum")?;
    publish_until_blocked(&mut publisher, "orders", 60_000, 4_000)?;
    assert!(publisher.sent > 500, "{} fit", publisher.sent);
    assert_eq!(publisher.blocked.as_deref(), Some("low on disk"));
    node.assert_logged("wal.disk_short")?;
    node.assert_running()?;
    assert_small_operations_succeed(&node.amqp)?;

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
    node.assert_running()
}

/// A classic queue writes more between two timed checks than the disk has left: the bytes that it writes are counted, so
/// its publishers are blocked in time.
#[test]
fn classic_queue_leaves_the_configured_space_free() -> Result<()> {
    const LIMIT: u64 = 64 * MIB;
    let set = ["wal.file_size=8MiB", "disk_free_limit.absolute=64MiB"];
    let mut node = Node::start("classic", 320 * MIB, &set)?;
    let mut publisher = Client::publisher(&node.amqp)?;
    publisher.declare("notes", "classic")?;
    publish_until_blocked(&mut publisher, "notes", 1_000_000, 1_000)?;
    assert_eq!(publisher.blocked.as_deref(), Some("low on disk"));
    // The node stops reading at the limit; a few messages may still be on their way.
    let free = node.disk.free()?;
    assert!(free > LIMIT - 16 * MIB, "{free} bytes are left");
    assert!(publisher.refused.is_empty());
    node.assert_running()
}

/// Another process takes the last byte. No confirmed message is lost.
#[test]
fn confirmed_messages_survive_a_disk_filled_by_another_process() -> Result<()> {
    let mut node = Node::start("filled", 128 * MIB, &["wal.file_size=8MiB"])?;
    let mut publisher = Client::publisher(&node.amqp)?;
    for (queue, kind) in [("orders", "quorum"), ("notes", "classic")] {
        publisher.declare(queue, kind)?;
    }
    publisher.publish_all("orders", 300, 2_000)?;
    let filler = node.disk.fill(u64::MAX)?;
    publish_until_blocked(&mut publisher, "orders", 2_000, 100_000)?;
    node.assert_logged("wal.disk_short")?;
    assert_small_operations_succeed(&node.amqp)?;
    let confirmed = publisher.confirmed.clone();
    let mut consumer = Client::open(&node.amqp, "guest", "guest", "/")?;
    let came = consumer.consume("orders", &confirmed)?;
    assert!(came.is_superset(&confirmed));
    consumer.delete("notes")?;
    node.assert_running()?;

    std::fs::remove_file(filler)?;
    publisher.until_true(|c| c.blocked.is_none())?;
    publisher.until_true(|c| c.unconfirmed() == 0)?;
    publisher.publish_all("orders", 100, 2_000)?;
    let rest = publisher.confirmed.difference(&came).copied().collect();
    consumer.consume("orders", &rest)?;
    assert!(publisher.refused.is_empty());
    node.assert_running()
}

/// The alarm is raised at the configured limit, long before the disk is full, and cleared with its
/// cause.
#[test]
fn disk_alarm_is_raised_at_the_configured_limit() -> Result<()> {
    let set = ["disk_free_limit.absolute=100MB"];
    let mut node = Node::start("alarm", 160 * MIB, &set)?;
    let mut publisher = Client::publisher(&node.amqp)?;
    publisher.declare("orders", "classic")?;
    publisher.publish_all("orders", 50, 100)?;
    let filler = node.disk.fill(80 * MIB)?;
    publish_until_blocked(&mut publisher, "orders", 100, 1_000_000)?;
    assert_eq!(publisher.blocked.as_deref(), Some("low on disk"));
    assert_eq!(node.log_line("wal.disk_short"), None);
    let mut consumer = Client::open(&node.amqp, "guest", "guest", "/")?;
    let confirmed = publisher.confirmed.clone();
    let came = consumer.consume("orders", &confirmed)?;
    std::fs::remove_file(filler)?;
    publisher.until_true(|c| c.blocked.is_none() && c.unconfirmed() == 0)?;
    let rest = publisher.confirmed.difference(&came).copied().collect();
    consumer.consume("orders", &rest)?;
    node.assert_running()
}
