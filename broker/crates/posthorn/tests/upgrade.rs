//! Real processes of this version and of the next one: a cluster upgrades node by node and refuses to downgrade.
#![forbid(unsafe_code)]

mod client;
mod nodes;
mod program;

use client::Client;
use nodes::Nodes;
use program::{Result, Scratch, Serving, address, eventually, serve, wait_for};
use serde_json::{Value as Json, json};
use std::ffi::OsString;
use std::fs::File;
use std::process::{Command, ExitCode, Stdio};

/// The arguments of [`next_program`], one a line.
const ARGUMENTS: &str = "NEXT_PROGRAM";

/// What the next version knows and this one does not.
const FLAG: &str = "next_release";

/// No test: the program of the next version, in a process that a test below has started.
#[test]
#[ignore = "it is started by the tests of this file"]
fn next_program() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else {
        return;
    };
    let code = posthorn::run(arguments.lines().map(OsString::from), posthorn::NEXT);
    std::process::exit(if code == ExitCode::SUCCESS { 0 } else { 1 });
}

/// What `command` does, done by the next version.
fn next(command: &Command) -> Result<Command> {
    let mut lines = vec!["posthorn"];
    for argument in command.get_args() {
        lines.push(argument.to_str().ok_or("not UTF-8")?);
    }
    let mut next = Command::new(std::env::current_exe()?);
    next.args(["next_program", "--exact", "--ignored", "--nocapture"]);
    next.env_clear().env(ARGUMENTS, lines.join("\n"));
    next.stdin(Stdio::null()).stdout(Stdio::null());
    Ok(next)
}

/// What this version says of itself when it meets the flag.
fn refusal() -> String {
    format!(
        "version {} does not know the feature flag(s) '{FLAG}'",
        posthorn::PROGRAM.version
    )
}

/// How a node shows the flag: its state and who does not know it.
fn shown(nodes: &Nodes, at: usize) -> Option<(String, Vec<String>)> {
    let (_, flags) = nodes
        .ask(at, "GET", "/api/feature-flags", &Json::Null)
        .ok()?;
    let flag = flags.as_array()?.iter().find(|f| f["name"] == FLAG)?;
    let lacking = flag["not_known_by"].as_array()?.iter();
    let lacking = lacking.filter_map(|n| Some(n.as_str()?.to_owned()));
    Some((flag["state"].as_str()?.to_owned(), lacking.collect()))
}

fn until_shown(nodes: &Nodes, at: usize, state: &str, lacking: &[&str]) -> Result<()> {
    eventually("a flag as it is known to all", || {
        let (found, by) = shown(nodes, at)?;
        (found == state && by == lacking).then_some(())
    })
}

fn enable(nodes: &Nodes, at: usize) -> Result<(u16, String)> {
    let path = format!("/api/feature-flags/{FLAG}/enable");
    let (status, body) = nodes.ask(at, "PUT", &path, &json!({}))?;
    Ok((status, body.to_string()))
}

#[test]
fn a_cluster_goes_to_the_next_version_node_by_node_and_not_back() -> Result<()> {
    let mut nodes = Nodes::start("upgrade", 3)?;
    let mut total = 0;
    let mut publish = |nodes: &Nodes, at: usize| -> Result<u64> {
        let mut client = Client::publisher(&nodes.address(at, "amqp")?)?;
        client.declare("q", "quorum")?;
        client.publish_all("q", 50, 500)?;
        total += 50;
        Ok(total)
    };
    publish(&nodes, 0)?;
    assert_eq!(shown(&nodes, 0), None, "nobody knows it");
    assert_eq!(enable(&nodes, 0)?.0, 400);

    for (at, lacking) in [(2, &["n0", "n1"][..]), (1, &["n0"]), (0, &[])] {
        nodes.kill(at)?;
        nodes.run_as(at, next)?;
        nodes.address(at, "amqp")?;
        publish(&nodes, at)?;
        for asked in 0..3 {
            let state = if lacking.is_empty() {
                "disabled"
            } else {
                "unavailable"
            };
            until_shown(&nodes, asked, state, lacking)?;
            if !lacking.is_empty() {
                let (status, why) = enable(&nodes, asked)?;
                let named = format!("is not supported by node(s) {}:", lacking.join(", "));
                assert!(status == 400 && why.contains(&named), "{status} {why}");
            }
        }
    }

    // One that is down may come back as anything.
    nodes.kill(1)?;
    until_shown(&nodes, 0, "unavailable", &["n1"])?;
    let (status, why) = enable(&nodes, 0)?;
    assert!(
        status == 400 && why.contains("node(s) n1:"),
        "{status} {why}"
    );
    nodes.run_as(1, next)?;
    nodes.address(1, "amqp")?;
    for asked in 0..3 {
        until_shown(&nodes, asked, "disabled", &[])?;
    }
    let (status, why) = enable(&nodes, 1)?;
    assert_eq!(status, 204, "{why}");
    for asked in 0..3 {
        until_shown(&nodes, asked, "enabled", &[])?;
    }

    // This version gets no further than the door, and the others go on.
    nodes.kill(2)?;
    nodes.run(2)?;
    nodes.until_ended(2, &refusal())?;
    let total = publish(&nodes, 0)?;
    // It has lost nothing by that.
    nodes.run_as(2, next)?;
    nodes.address(2, "amqp")?;
    eventually("all messages", || {
        let queue = nodes.queue("q")?;
        let online = queue["online"].as_array()?.len();
        (queue["messages"] == total && online == 3).then_some(())
    })
}

/// A node alone has nobody to tell it: it finds the flag in its own log.
#[test]
fn this_version_does_not_serve_what_the_next_one_has_written() -> Result<()> {
    let scratch = Scratch::new("next-alone")?;
    let (dir, ready, log) = (
        scratch.0.join("data"),
        scratch.0.join("ready"),
        scratch.0.join("log"),
    );
    let command = serve(&dir, &ready);
    let start =
        || -> Result<Serving> { Ok(Serving(next(&command)?.stderr(Stdio::null()).spawn()?)) };
    let node = start()?;
    let mut publisher = Client::publisher(&address(&ready, "amqp")?)?;
    publisher.declare("q", "quorum")?;
    publisher.publish_all("q", 20, 500)?;
    drop(node);
    std::fs::remove_file(&ready)?;

    let mut older = serve(&dir, &ready);
    let mut older = Serving(older.stderr(File::create(&log)?).spawn()?);
    let ended = eventually("an end", || older.0.try_wait().ok().flatten())?;
    assert_eq!(ended.code(), Some(1));
    let said = std::fs::read_to_string(&log)?;
    assert!(said.contains(&refusal()), "{said}");
    assert!(!ready.exists(), "it never served");

    let _node = start()?;
    wait_for(&ready)?;
    let mut client = Client::open(&address(&ready, "amqp")?, "guest", "guest", "/")?;
    client.consume("q", &(1..=20).collect())?;
    Ok(())
}
