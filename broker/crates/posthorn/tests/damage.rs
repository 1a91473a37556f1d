//! The program after its files were damaged, and to clients who are wrong.
#![forbid(unsafe_code)]

mod client;
mod program;

use client::Client;
use program::{Result, Scratch, Serving, address, serve, stderr};
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// A node alone with confirmed messages, killed.
fn killed_with_messages(scratch: &Path, count: u64) -> Result<PathBuf> {
    let (dir, ready) = (scratch.join("data"), scratch.join("ready"));
    let mut node = Serving(serve(&dir, &ready).stderr(Stdio::null()).spawn()?);
    let mut publisher = Client::publisher(&address(&ready, "amqp")?)?;
    publisher.declare("orders", "quorum")?;
    // One by one, so that no record holds more than one of them.
    for _ in 0..count {
        publisher.publish_all("orders", 1, 500)?;
    }
    node.0.kill()?;
    node.0.wait()?;
    std::fs::remove_file(&ready)?;
    Ok(dir)
}

/// The newest file of the log and how much of it is written; the rest is zeros.
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

fn flip(path: &Path, offset: u64) -> Result<()> {
    let byte = std::fs::read(path)?[usize::try_from(offset)?] ^ 0x10;
    let mut file = File::options().write(true).open(path)?;
    file.seek(SeekFrom::Start(offset))?;
    Ok(file.write_all(&[byte])?)
}

/// Starts the node again, expects the log line and all messages but the newest, which may be what was cut.
fn recovers_all_but_the_newest(scratch: &Path, dir: &Path, count: u64) -> Result<()> {
    let (ready, log) = (scratch.join("ready"), scratch.join("log"));
    let _node = Serving(serve(dir, &ready).stderr(File::create(&log)?).spawn()?);
    let mut consumer = Client::open(&address(&ready, "amqp")?, "guest", "guest", "/")?;
    consumer.consume("orders", &(1..count).collect())?;
    let log = std::fs::read_to_string(&log)?;
    let torn = log.lines().find(|l| l.contains("wal.torn_tail"));
    let torn = torn.ok_or("the log says nothing of it")?;
    assert!(torn.contains(".wal") && torn.contains("offset="), "{torn}");
    Ok(())
}

#[test]
fn a_torn_last_record_is_given_up_and_told() -> Result<()> {
    let scratch = Scratch::new("torn")?;
    let dir = killed_with_messages(&scratch.0, 50)?;
    let (file, last) = newest_log(&dir)?;
    flip(&file, last)?;
    recovers_all_but_the_newest(&scratch.0, &dir, 50)
}

#[test]
fn a_log_that_is_cut_off_in_its_last_record_recovers() -> Result<()> {
    let scratch = Scratch::new("cut")?;
    let dir = killed_with_messages(&scratch.0, 50)?;
    let (file, last) = newest_log(&dir)?;
    File::options().write(true).open(file)?.set_len(last)?;
    recovers_all_but_the_newest(&scratch.0, &dir, 50)
}

#[test]
fn damage_in_the_middle_of_the_log_is_refused_and_nothing_is_touched() -> Result<()> {
    let scratch = Scratch::new("middle")?;
    let dir = killed_with_messages(&scratch.0, 50)?;
    let (file, last) = newest_log(&dir)?;
    flip(&file, last / 2)?;
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

#[test]
fn wrong_credentials_and_vhosts_are_refused_with_their_codes() -> Result<()> {
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
