//! A node that runs out of file descriptors.

use crate::client::Client;
use crate::program::{Result, Scratch, Serving, address, eventually, serve_arguments};
use std::fs::File;
use std::net::TcpStream;
use std::process::{Command, Stdio};

/// New clients wait, the log is still written, and waiting clients are served later.
#[test]
fn accepting_pauses_without_descriptors_and_resumes() -> Result<()> {
    let scratch = Scratch::new("descriptors")?;
    let (dir, ready, log) = (
        scratch.0.join("data"),
        scratch.0.join("ready"),
        scratch.0.join("log"),
    );
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 240 && exec \"$0\" \"$@\""]);
    command.arg(env!("CARGO_BIN_EXE_posthorn"));
    serve_arguments(&mut command, &dir, &ready);
    command.args(["--set", "wal.file_size=1MiB"]);
    command.stdin(Stdio::null()).stderr(File::create(&log)?);
    let mut node = Serving(command.spawn()?);
    let amqp = address(&ready, "amqp")?;
    let mut publisher = Client::publisher(&amqp)?;
    publisher.declare("orders", "quorum")?;
    // More than half of the descriptors, which is the share of clients if there are few.
    let crowd = (0..150).map(|_| TcpStream::connect(&amqp));
    let crowd = crowd.collect::<std::io::Result<Vec<_>>>()?;
    let said = |event: &str| -> usize {
        let log = std::fs::read_to_string(&log).unwrap_or_default();
        log.lines().filter(|l| l.contains(event)).count()
    };
    eventually("the log line", || {
        (said("listener.accept_rests") > 0).then_some(())
    })?;
    // Files are opened meanwhile.
    publisher.publish_all("orders", 40, 100_000)?;
    assert!(said("wal.rolled") > 0);
    drop(crowd);
    let mut consumer = Client::open(&amqp, "guest", "guest", "/")?;
    consumer.consume("orders", &publisher.confirmed.clone())?;
    assert!(node.0.try_wait()?.is_none());
    Ok(())
}
