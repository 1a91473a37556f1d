//! Membership changes of real processes: replicas move, files are deleted, and nodes leave the
//! cluster for good.

use crate::client::Client;
use crate::nodes::Nodes;
use crate::program::{Result, eventually, posthorn};
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

/// The arguments of the commands for a lost majority in docs/how-to/membership.md.
fn recovery_commands() -> Result<[Vec<String>; 2]> {
    let page = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../docs/how-to/membership.md"
    );
    let text = std::fs::read_to_string(page)?;
    let commands = text.lines().filter_map(|line| {
        let line = line.strip_prefix("       ")?.strip_prefix("posthorn ")?;
        Some(line.split_whitespace().map(str::to_owned).collect())
    });
    let commands: Vec<Vec<String>> = commands.collect();
    let found = commands.len();
    let two = <[Vec<String>; 2]>::try_from(commands);
    two.map_err(|_| format!("the page has {found} commands, not 2").into())
}

#[test]
fn last_node_continues_after_the_others_are_lost_for_good() -> Result<()> {
    let mut nodes = Nodes::start("majority", 3)?;
    let mut client = Client::publisher(&nodes.address(0, "amqp")?)?;
    client.declare("q", "quorum")?;
    client.publish_all("q", 200, 500)?;
    client.declare("log", "stream")?;
    client.publish_all("log", 20, 500)?;
    for queue in ["q", "log"] {
        nodes.until_members(queue, &["n0", "n1", "n2"])?;
    }
    drop(client);
    nodes.kill(1)?;
    nodes.kill(2)?;

    // A node that has just left may return.
    let path = "/api/recovery/majority";
    let lost = json!({"lost": ["n1", "n2"]});
    eventually("a refusal of lost nodes that may return", || {
        let (status, why) = nodes.ask(0, "POST", path, &lost).ok()?;
        let is_early = why.to_string().contains("may only be slow or restart");
        (status == 503 && is_early).then_some(())
    })?;
    let (status, why) = nodes.ask(0, "POST", path, &json!({"lost": ["n0"]}))?;
    assert_eq!(status, 400, "{why}");
    assert!(why.to_string().contains("answers this request"), "{why}");

    let url = format!("http://{}", nodes.address(0, "management")?);
    let [explain, recover] = recovery_commands()?;
    let output = |words: &[String]| posthorn().env("POSTHORN_URL", &url).args(words).output();
    let explained = output(&explain)?;
    let told = String::from_utf8(explained.stdout)?;
    assert_eq!(explained.status.code(), Some(1), "{told}");
    assert!(told.contains("Lost nodes: n1, n2"), "{told}");
    assert!(told.contains("Nodes that run: n0"), "{told}");

    let output = output(&recover)?;
    let (told, progress) = (
        String::from_utf8(output.stdout)?,
        String::from_utf8(output.stderr)?,
    );
    assert!(output.status.success(), "{told}\n{progress}");
    for part in [
        "The metadata continue on node 'n0'",
        "1 of 3 copies were compared",
        "Node 'n1' is removed",
        "Node 'n2' is removed",
    ] {
        assert!(progress.contains(part), "{part}: {progress}");
    }
    for queue in [" q ", " log "] {
        let row = told.lines().find(|line| line.contains(queue));
        assert!(row.is_some_and(|r| r.contains("recovered")), "{told}");
    }

    // The messages are there, and nothing needs the lost nodes: also not after a restart.
    for (count, declared) in [(200, "r"), (250, "s")] {
        eventually("all messages", || {
            nodes.queue("q").filter(|q| q["messages"] == count)
        })?;
        nodes.until_members("q", &["n0"])?;
        let mut client = Client::publisher(&nodes.address(0, "amqp")?)?;
        client.publish_all("q", 50, 500)?;
        client.publish_all("log", 10, 500)?;
        client.declare(declared, "quorum")?;
        client.publish_all(declared, 1, 500)?;
        drop(client);
        nodes.kill(0)?;
        nodes.run(0)?;
        nodes.address(0, "amqp")?;
    }

    // A lost node that returns ends, and says why. With an empty data directory it joins as a new node.
    nodes.run(1)?;
    nodes.until_removed(1)?;
    std::fs::remove_dir_all(nodes.dir(1))?;
    nodes.run(1)?;
    nodes.address(1, "amqp")?;
    eventually("two nodes", || {
        let (_, known) = nodes.ask(0, "GET", "/api/nodes", &Json::Null).ok()?;
        (known.as_array()?.len() == 2).then_some(())
    })?;
    let path = "/api/queues/quorum/replicas/on/n1/grow";
    let (status, grown) = nodes.ask(0, "POST", path, &json!({"strategy": "all"}))?;
    assert_eq!(status, 200, "{grown}");
    nodes.until_members("q", &["n0", "n1"])
}
