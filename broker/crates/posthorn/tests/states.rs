//! Flow control and blocking of a connection, as reported by the HTTP API and the command line.

use crate::client::Client;
use crate::nodes::Nodes;
use crate::program::{Result, eventually, posthorn};
use serde_json::Value as Json;

/// States of all connections in order, from node 0's HTTP API.
fn states(nodes: &Nodes) -> Option<Vec<String>> {
    let asked = nodes.ask(0, "GET", "/api/connections", &Json::Null);
    let (200, shown) = asked.ok()? else {
        return None;
    };
    let states = shown.as_array()?.iter();
    let states = states.map(|c| c["state"].as_str().map(str::to_owned));
    let mut states = states.collect::<Option<Vec<_>>>()?;
    states.sort_unstable();
    Some(states)
}

fn until(nodes: &Nodes, want: &[&str]) -> Result<()> {
    eventually(&format!("{want:?}"), || {
        (states(nodes)? == want).then_some(())
    })
}

fn ctl(nodes: &Nodes, words: &[&str]) -> Result<String> {
    let url = format!("http://{}", nodes.address(0, "management")?);
    let mut command = posthorn();
    command.args(["ctl", "--url", &url]).args(words);
    let output = command.output()?;
    assert!(
        output.status.success(),
        "{}",
        crate::program::stderr(&output)
    );
    Ok(String::from_utf8(output.stdout)?)
}

/// Like [`states`], from the command line.
fn listed(nodes: &Nodes) -> Result<Vec<String>> {
    let told = ctl(nodes, &["list_connections", "-s", "state"])?;
    let mut states: Vec<String> = told.lines().map(str::to_owned).collect();
    states.sort_unstable();
    Ok(states)
}

/// The queue cannot accept more than the messages in flight, because it has lost its quorum.
#[test]
fn publisher_of_a_slow_queue_is_in_flow() -> Result<()> {
    let mut nodes = Nodes::start("flow", 3)?;
    let mut client = Client::publisher(&nodes.address(0, "amqp")?)?;
    client.declare("q", "quorum")?;
    client.publish_all("q", 1, 10)?;
    until(&nodes, &["running"])?;
    nodes.kill(1)?;
    nodes.kill(2)?;
    let mut failed = None;
    eventually("flow", || {
        if let Err(error) = client.publish("q", 256 << 10) {
            failed.get_or_insert(error);
        }
        (failed.is_some() || states(&nodes)? == ["flow"]).then_some(())
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    assert_eq!(listed(&nodes)?, ["flow"]);
    nodes.run(1)?;
    nodes.run(2)?;
    client.until_true(|c| c.unconfirmed() == 0)?;
    assert_eq!(client.refused.len(), 0);
    until(&nodes, &["running"])?;
    assert_eq!(listed(&nodes)?, ["running"]);
    Ok(())
}

/// The alarm is on one node, the publisher on another.
#[test]
fn alarm_blocks_publishers_and_is_visible_on_other_nodes() -> Result<()> {
    let nodes = Nodes::start("alarm", 2)?;
    let mut publisher = Client::publisher(&nodes.address(1, "amqp")?)?;
    let mut other = Client::publisher(&nodes.address(0, "amqp")?)?;
    publisher.declare("q", "classic")?;
    ctl(&nodes, &["set_vm_memory_high_watermark", "0.0001"])?;
    until(&nodes, &["blocking", "blocking"])?;
    assert_eq!(listed(&nodes)?, ["blocking", "blocking"]);
    publisher.publish("q", 10)?;
    publisher.until_true(|c| c.blocked.is_some())?;
    assert_eq!(publisher.blocked.as_deref(), Some("low on memory"));
    until(&nodes, &["blocked", "blocking"])?;
    assert_eq!(listed(&nodes)?, ["blocked", "blocking"]);
    ctl(&nodes, &["set_vm_memory_high_watermark", "0.9"])?;
    publisher.until_true(|c| c.unconfirmed() == 0 && c.blocked.is_none())?;
    // A connection that does not publish is not notified.
    other.publish_all("q", 1, 10)?;
    assert_eq!(other.blocked, None);
    until(&nodes, &["running", "running"])
}
