//! `-n NODE`: scripts name a node, and the operation must not run on another one.

use super::checks::Check;
use super::client::Client;
use super::failure::Failure;
use super::{Command, administration, changes, cluster};
use std::net::IpAddr;

/// Fails if the named node is not in the cluster, or if the operation is about a node and another
/// node answers. Without `-n` no request is sent.
pub(crate) fn check_before(
    client: &Client,
    named: Option<&str>,
    command: &Command,
) -> Result<(), Failure> {
    match named {
        Some(named) if !waits_for_node(command) => check(client, named, command),
        _ => Ok(()),
    }
}

/// The same check after an operation during whose start the node may not answer yet.
pub(crate) fn check_after(
    client: &Client,
    named: Option<&str>,
    command: &Command,
) -> Result<(), Failure> {
    match named {
        Some(named) if waits_for_node(command) => check(client, named, command),
        _ => Ok(()),
    }
}

fn waits_for_node(command: &Command) -> bool {
    matches!(
        command,
        Command::Check(Check::AwaitStartup | Check::AwaitOnlineNodes { .. })
    )
}

/// Returns true if the operation concerns the answering node rather than the cluster.
fn is_about_node(command: &Command) -> bool {
    matches!(
        command,
        Command::Status
            | Command::Health
            | Command::Cluster(cluster::Command::Environment)
            | Command::Check(_)
            | Command::Service(_)
            | Command::Maintenance { .. }
            | Command::SetMemoryWatermark { .. }
            | Command::SetDiskFreeLimit { .. }
            | Command::SetLogLevel { .. }
            | Command::ListLogLevels
            | Command::Administration(administration::Administration::Listeners)
    )
}

fn check(client: &Client, named: &str, command: &Command) -> Result<(), Failure> {
    let answering = changes::local_node(client)?;
    if is_name_of(named, &answering, &client.host()) {
        return Ok(());
    }
    let nodes = client.get(&["nodes"])?;
    let nodes = nodes.as_array().into_iter().flatten();
    let names: Vec<&str> = nodes.filter_map(|n| n["name"].as_str()).collect();
    let is_known = names.iter().any(|name| is_name_of(named, name, name));
    if is_known && !is_about_node(command) {
        return Ok(());
    }
    Err(Failure::WrongNode {
        named: named.to_owned(),
        answering,
        nodes: names.join(", "),
        is_known,
    })
}

/// A node `orders-0` on `host` is named by `orders-0`, `rabbit@orders-0`, `rabbit@host` and
/// `rabbit`; on a loopback address also by `rabbit@localhost`.
fn is_name_of(named: &str, node: &str, host: &str) -> bool {
    if named == node {
        return true;
    }
    let Some(rest) = named.strip_prefix("rabbit") else {
        return false;
    };
    let Some(named_host) = rest.strip_prefix('@') else {
        return rest.is_empty();
    };
    let is_loopback = host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    named_host == node || named_host == host || (is_loopback && named_host == "localhost")
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn nodes_are_identified_by_own_and_rabbitmq_names() {
        for named in [
            "a-0",
            "rabbit@a-0",
            "rabbit@127.0.0.1",
            "rabbit@localhost",
            "rabbit",
        ] {
            assert!(is_name_of(named, "a-0", "127.0.0.1"), "{named}");
        }
        for named in ["a-1", "rabbit@a-1", "rabbits", "rabbit@", ""] {
            assert!(!is_name_of(named, "a-0", "127.0.0.1"), "{named}");
        }
        assert!(!is_name_of("rabbit@localhost", "a-0", "a.example"));
        assert!(is_name_of("rabbit@a.example", "a-0", "a.example"));
    }
}
