//! `posthorn ctl` with real nodes: diagnosis, messages, lists, contexts and reports.

mod backup;
mod bench;
mod contexts;
mod diagnosis;
mod errors;
mod guides;
mod lists;
mod messages;
mod reports;

use crate::nodes::Nodes;
use crate::program::{Result, Scratch, Serving, address, posthorn, serve, wait_for};
use serde_json::Value as Json;
use std::io::Write as _;
use std::process::{Command, Stdio};

/// The result of a command.
struct Outcome {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Outcome {
    /// The standard output of a command that must succeed.
    fn ok(self) -> String {
        assert_eq!(self.code, 0, "{}{}", self.stdout, self.stderr);
        self.stdout
    }

    fn json(&self) -> Result<Json> {
        let parsed = serde_json::from_str(&self.stdout);
        parsed.map_err(|error| format!("{error}: {}{}", self.stdout, self.stderr).into())
    }
}

/// A command with arguments, without the environment of the test.
fn ctl(url: &str, words: &[&str]) -> Command {
    let mut command = posthorn();
    command.args(["ctl", "--url", url]).args(words);
    command
}

fn run(mut command: Command, input: &[u8]) -> Result<Outcome> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    // A process that does not read its input may have closed it.
    let _ = child.stdin.take().ok_or("no input")?.write_all(input);
    let output = child.wait_with_output()?;
    Ok(Outcome {
        code: output.status.code().ok_or("killed")?,
        stdout: String::from_utf8(output.stdout)?,
        stderr: String::from_utf8(output.stderr)?,
    })
}

/// A single node.
struct Single {
    url: String,
    scratch: Scratch,
    _process: Serving,
}

impl Single {
    fn start(name: &str, settings: &[String]) -> Result<Single> {
        let scratch = Scratch::new(name)?;
        let ready = scratch.0.join("ready");
        let mut command = serve(&scratch.0.join("data"), &ready);
        for setting in settings {
            command.arg("--set").arg(setting);
        }
        let log = std::fs::File::create(scratch.0.join("log"))?;
        let process = Serving(command.stderr(log).spawn()?);
        wait_for(&ready)?;
        Ok(Single {
            url: format!("http://{}", address(&ready, "management")?),
            scratch,
            _process: process,
        })
    }

    fn ctl(&self, words: &[&str]) -> Result<Outcome> {
        run(ctl(&self.url, words), b"")
    }
}

/// Runs a command at a node of a cluster.
fn ctl_at(nodes: &Nodes, at: usize, words: &[&str]) -> Result<Outcome> {
    let url = format!("http://{}", nodes.address(at, "management")?);
    run(ctl(&url, words), b"")
}

/// The cells of a table.
fn cells(table: &str) -> Vec<Vec<&str>> {
    let lines = table.lines();
    lines
        .map(|line| line.split_whitespace().collect())
        .collect()
}
