//! Processes of this version and of the next one: a cluster upgrades node by node and refuses to
//! downgrade.

use crate::client::Client;
use crate::next_version::next;
use crate::nodes::Nodes;
use crate::program::{Result, Scratch, Serving, address, eventually, serve, wait_for};
use serde_json::{Value as Json, json};
use std::fs::File;
use std::process::Stdio;

/// A feature flag that only the next version supports.
const FLAG: &str = "next_release";

/// The error of this version if the flag is enabled.
fn missing_feature_error() -> String {
    format!(
        "version {} does not know the feature flag(s) '{FLAG}'",
        posthorn::PROGRAM.version
    )
}

/// The state of the flag as shown by a node, and the nodes that do not support it.
fn flag_state(nodes: &Nodes, at: usize) -> Option<(String, Vec<String>)> {
    let (_, flags) = nodes
        .ask(at, "GET", "/api/feature-flags", &Json::Null)
        .ok()?;
    let flag = flags.as_array()?.iter().find(|f| f["name"] == FLAG)?;
    let unsupported_by = flag["not_known_by"].as_array()?.iter();
    let unsupported_by = unsupported_by.filter_map(|n| Some(n.as_str()?.to_owned()));
    Some((flag["state"].as_str()?.to_owned(), unsupported_by.collect()))
}

fn until_shown(nodes: &Nodes, at: usize, state: &str, unsupported_by: &[&str]) -> Result<()> {
    eventually("a flag as it is known to all", || {
        let (found, by) = flag_state(nodes, at)?;
        (found == state && by == unsupported_by).then_some(())
    })
}

fn enable(nodes: &Nodes, at: usize) -> Result<(u16, String)> {
    let path = format!("/api/feature-flags/{FLAG}/enable");
    let (status, body) = nodes.ask(at, "PUT", &path, &json!({}))?;
    Ok((status, body.to_string()))
}

#[test]
fn cluster_upgrades_node_by_node_and_refuses_downgrade() -> Result<()> {
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
    assert_eq!(flag_state(&nodes, 0), None, "nobody knows it");
    assert_eq!(enable(&nodes, 0)?.0, 400);

    for (at, unsupported_by) in [(2, &["n0", "n1"][..]), (1, &["n0"]), (0, &[])] {
        nodes.kill(at)?;
        nodes.run_as(at, next)?;
        nodes.address(at, "amqp")?;
        publish(&nodes, at)?;
        for asked in 0..3 {
            let state = if unsupported_by.is_empty() {
                "disabled"
            } else {
                "unavailable"
            };
            until_shown(&nodes, asked, state, unsupported_by)?;
            if !unsupported_by.is_empty() {
                let (status, why) = enable(&nodes, asked)?;
                let named = format!("is not supported by node(s) {}:", unsupported_by.join(", "));
                assert!(status == 400 && why.contains(&named), "{status} {why}");
            }
        }
    }

    // A node that is down may return with any version.
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

    // This version is refused by its peers, and the others continue.
    nodes.kill(2)?;
    nodes.run(2)?;
    nodes.until_ended(2, &missing_feature_error())?;
    let total = publish(&nodes, 0)?;
    // The node has lost no data.
    nodes.run_as(2, next)?;
    nodes.address(2, "amqp")?;
    eventually("all messages", || {
        let queue = nodes.queue("q")?;
        let online = queue["online"].as_array()?.len();
        (queue["messages"] == total && online == 3).then_some(())
    })
}

/// A single node has no peers that refuse it: it finds the flag in its own log.
#[test]
fn this_version_refuses_data_of_the_next_version() -> Result<()> {
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
    assert!(said.contains(&missing_feature_error()), "{said}");
    assert!(!ready.exists(), "it never served");

    let _node = start()?;
    wait_for(&ready)?;
    let mut client = Client::open(&address(&ready, "amqp")?, "guest", "guest", "/")?;
    client.consume("q", &(1..=20).collect())?;
    Ok(())
}
