//! Membership changes of real processes: replicas move, files are deleted, and nodes leave the
//! cluster for good.

use crate::client::Client;
use crate::nodes::Nodes;
use crate::program::{Result, eventually};
use serde_json::{Value as Json, json};
use std::path::Path;

fn groups_in(dir: &Path) -> usize {
    let listed = std::fs::read_dir(dir.join("departed"));
    listed.map_or(0, |files| files.count())
}

#[test]
fn replicas_move_and_a_lost_node_is_forgotten() -> Result<()> {
    let mut nodes = Nodes::start("membership", 4)?;
    let mut client = Client::publisher(&nodes.address(0, "amqp")?)?;
    client.declare("q", "quorum")?;
    for _ in 0..200 {
        client.publish("q", 500)?;
    }
    client.until_true(|c| c.confirmed.len() == 200)?;
    let shown = eventually("a queue with a leader", || {
        nodes.queue("q").filter(|q| q["leader"].is_string())
    })?;
    assert_eq!(shown["leader"], "n0", "where the client is");
    let members = shown["members"].as_array().ok_or("no members")?;
    let names = ["n0", "n1", "n2", "n3"];
    let is_member = |n: &&&str| members.iter().any(|m| m == **n);
    let spare = names.iter().find(|n| !is_member(n)).ok_or("no spare")?;
    let old = names.iter().filter(is_member).nth(1).ok_or("no second")?;
    let third = names.iter().filter(is_member).nth(2).ok_or("no third")?;

    // Replaces one member by another during traffic. The old replica is deleted, and a tombstone
    // remains.
    let path = "/api/queues/quorum/%2F/q/replicas/replace";
    let (status, why) = nodes.ask(0, "POST", path, &json!({"node": old, "with": spare}))?;
    assert_eq!(status, 202, "{why}");
    for _ in 0..200 {
        client.publish("q", 500)?;
    }
    client.until_true(|c| c.confirmed.len() == 400)?;
    let mut want = ["n0", spare, third];
    want.sort_unstable();
    nodes.until_members("q", &want)?;
    let at = |name: &str| names.iter().position(|n| *n == name).unwrap_or(0);
    let old_at = at(old);
    eventually("a replica that is gone", || {
        (groups_in(&nodes.dir(old_at)) == 1).then_some(())
    })?;

    // The node restarts without the replica and becomes ready.
    nodes.kill(old_at)?;
    nodes.run(old_at)?;
    nodes.address(old_at, "amqp")?;

    // A member is lost: its replica is rebuilt on the fourth node, then it is forgotten.
    let dead = at(third);
    nodes.kill(dead)?;
    let forget = format!("/api/nodes/n{dead}");
    eventually("a dead node that is forgotten", || {
        let (status, _) = nodes.ask(0, "DELETE", &forget, &Json::Null).ok()?;
        (status == 204).then_some(())
    })?;
    let mut want = ["n0", spare, old];
    want.sort_unstable();
    nodes.until_members("q", &want)?;

    // It cannot rejoin with its old identity.
    nodes.run(dead)?;
    nodes.until_removed(dead)?;

    // It can join as a new node.
    std::fs::remove_dir_all(nodes.dir(dead))?;
    nodes.run(dead)?;
    nodes.address(dead, "amqp")?;
    eventually("its zone", || {
        let (_, shown) = nodes.ask(0, "GET", &forget, &Json::Null).ok()?;
        (shown["running"] == true && shown["zone"] == format!("z{dead}")).then_some(())
    })?;
    // Another node knows where clients reach it.
    let amqp = nodes.address(dead, "amqp")?;
    eventually("its client addresses", || {
        let (_, shown) = nodes.ask(0, "GET", &forget, &Json::Null).ok()?;
        let is_amqp = |address: &Json| {
            let port = amqp.rsplit_once(':').map(|(_, port)| port.to_owned());
            address["protocol"] == "amqp"
                && address["tls"] == false
                && address["host"] == "127.0.0.1"
                && Some(address["port"].to_string()) == port
        };
        let addresses = shown["client_addresses"].as_array()?;
        addresses.iter().any(is_amqp).then_some(())
    })?;
    let all = eventually("all messages", || {
        nodes.queue("q").filter(|q| q["messages"] == 400)
    });
    all.map(|_| ())
}

#[test]
fn cluster_shrinks_from_three_nodes_to_one_at_runtime() -> Result<()> {
    let mut nodes = Nodes::start("to-one", 3)?;
    let mut client = Client::publisher(&nodes.address(0, "amqp")?)?;
    client.declare("q", "quorum")?;
    for _ in 0..200 {
        client.publish("q", 500)?;
    }
    client.until_true(|c| c.confirmed.len() == 200)?;
    for (at, left) in [(2, &["n0", "n1"][..]), (1, &["n0"])] {
        let forget = format!("/api/nodes/n{at}");
        let (status, why) = nodes.ask(0, "DELETE", &forget, &Json::Null)?;
        assert_eq!(status, 400, "{why}");
        assert!(why.to_string().contains("is running"), "{why}");
        nodes.drain(at)?;
        // 202 while its replica, then its vote moves; once it is forgotten the path does not exist.
        eventually("a running node that is forgotten", || {
            let (status, _) = nodes.ask(0, "DELETE", &forget, &Json::Null).ok()?;
            matches!(status, 204 | 404).then_some(())
        })?;
        nodes.until_removed(at)?;
        nodes.until_members("q", left)?;
    }
    // No other node is needed: not for messages, metadata changes or a restart.
    client.declare("r", "quorum")?;
    for _ in 0..200 {
        client.publish("q", 500)?;
    }
    client.until_true(|c| c.confirmed.len() == 400)?;
    drop(client);
    nodes.kill(0)?;
    nodes.run(0)?;
    nodes.address(0, "amqp")?;
    eventually("all messages", || {
        nodes.queue("q").filter(|q| q["messages"] == 400)
    })?;
    // The removed nodes cannot form a cluster from their old state.
    nodes.run(1)?;
    nodes.until_removed(1)?;
    let (_, known) = nodes.ask(0, "GET", "/api/nodes", &Json::Null)?;
    assert_eq!(known.as_array().map(Vec::len), Some(1), "{known}");
    Ok(())
}
