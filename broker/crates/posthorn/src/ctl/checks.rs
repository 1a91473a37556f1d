//! Health checks for scripts and probes: exit code 0 if healthy, 1 if not, 69 if the node does not
//! answer.

use super::VhostOption;
use super::client::Client;
use super::failure::Failure;
use super::output::{Column, Output};
use serde_json::{Value as Json, json};
use std::cell::Cell;

#[derive(Debug, clap::Subcommand)]
#[command(rename_all = "snake_case")]
pub(crate) enum Check {
    /// Check that the API of the node answers
    Ping,
    /// Check that the node serves clients
    #[command(name = "check_running")]
    Running,
    /// Wait until the node serves clients, at most as long as --timeout
    AwaitStartup,
    /// Wait until at least COUNT nodes of the cluster are up, at most as long as --timeout
    AwaitOnlineNodes {
        /// Number of nodes, at least 1
        #[arg(value_parser = clap::value_parser!(u32).range(1..))]
        count: u32,
    },
    /// Check that no node of the cluster has an alarm
    #[command(name = "check_alarms")]
    Alarms,
    /// Check that this node has no alarm
    #[command(name = "check_local_alarms")]
    LocalAlarms,
    /// Check that the node listens on a port
    #[command(name = "check_port_listener")]
    PortListener { port: u16 },
    /// Check that the node has a listener of a protocol: amqp, http, http/prometheus
    #[command(name = "check_protocol_listener")]
    ProtocolListener { protocol: String },
    /// Check that all virtual hosts can be used
    #[command(name = "check_virtual_hosts")]
    VirtualHosts,
    /// Check that no queue would lose its majority without this node
    #[command(name = "check_if_node_is_quorum_critical")]
    IsQuorumCritical,
    /// Check that all quorum queues have a leader
    #[command(name = "check_for_quorum_queues_without_an_elected_leader")]
    QueuesHaveLeaders {
        /// Regular expression for names of queues; without it, all queues
        pattern: Option<String>,
        #[command(flatten)]
        at: VhostOption,
        /// Check the queues of all virtual hosts
        #[arg(long = "across-all-vhosts")]
        across_all_vhosts: bool,
    },
}

pub(crate) fn perform(client: &Client, output: &Output, check: &Check) -> Result<(), Failure> {
    let api = |check: &str| format!("/api/health/checks/{check}");
    let path = match check {
        Check::Ping => "/livez".to_owned(),
        Check::Running => "/readyz".to_owned(),
        Check::AwaitStartup => return await_startup(client, output),
        Check::AwaitOnlineNodes { count } => return await_online_nodes(client, output, *count),
        Check::Alarms => api("alarms"),
        Check::LocalAlarms => api("local-alarms"),
        Check::PortListener { port } => api(&format!("port-listener/{port}")),
        Check::ProtocolListener { protocol } => {
            let escaped = super::client::path(&["health", "checks", "protocol-listener", protocol]);
            return run_check(client, output, &escaped);
        }
        Check::VirtualHosts => api("virtual-hosts"),
        Check::IsQuorumCritical => api("node-is-quorum-critical"),
        Check::QueuesHaveLeaders {
            pattern,
            at,
            across_all_vhosts,
        } => {
            let mut path = vec!["health", "checks", "quorum-queues-without-elected-leaders"];
            match across_all_vhosts {
                true => path.push("all-vhosts"),
                false => path.extend(["vhost", &at.vhost]),
            }
            if let Some(pattern) = pattern {
                path.extend(["pattern", pattern]);
            }
            super::client::path(&path)
        }
    };
    run_check(client, output, &path)
}

/// One row of `health`.
fn result_row(check: &str, ok: bool, reason: &Json, queues: Vec<Json>) -> Json {
    json!({
        "check": check,
        "result": if ok { "yes" } else { "no" },
        "reason": reason,
        "queues": queues,
    })
}

/// Runs all checks, even if one fails. Quorum-critical queues are reported, because they matter
/// before a stop, but are not a failure.
pub(crate) fn health(client: &Client, output: &Output) -> Result<(), Failure> {
    let critical = "/api/health/checks/node-is-quorum-critical";
    let checks = [
        ("ready", "/readyz"),
        ("no alarms", "/api/health/checks/alarms"),
        ("may be stopped", critical),
    ];
    let mut results = Vec::new();
    let mut healthy = true;
    for (name, path) in checks {
        let response = client.check(path)?;
        let ok = response.status == 200;
        let expected = path == critical && response.body["status"] == "failed";
        healthy &= ok || expected;
        let reason = &response.body["reason"];
        results.push(result_row(name, ok, reason, queue_names(&response.body)));
    }
    let nodes = client.get(&["nodes"])?;
    let down = super::cluster::down(&nodes);
    let reason = match down.as_slice() {
        [] => Json::Null,
        down => json!(format!("down: {}", down.join(", "))),
    };
    healthy &= down.is_empty();
    results.insert(
        1,
        result_row("all nodes up", down.is_empty(), &reason, Vec::new()),
    );
    let columns: &[Column] = &[
        ("check", &["check"]),
        ("result", &["result"]),
        ("reason", &["reason"]),
        ("queues", &["queues"]),
    ];
    output.list(&Json::Array(results), columns)?;
    if healthy {
        Ok(())
    } else {
        Err(Failure::Unhealthy)
    }
}

fn queue_names(answer: &Json) -> Vec<Json> {
    let queues = answer["queues"].as_array().into_iter().flatten();
    queues.map(|q| q["readable_name"].clone()).collect()
}

fn run_check(client: &Client, output: &Output, path: &str) -> Result<(), Failure> {
    let response = client.check(path)?;
    if response.status == 200 {
        output.say("ok");
        return Ok(());
    }
    let columns: &[Column] = &[
        ("check", &["check"]),
        ("reason", &["reason"]),
        ("alarms", &["alarms"]),
        ("missing", &["missing"]),
        ("queues", &["queues"]),
    ];
    let body = &response.body;
    let row = json!({
        "check": path,
        "reason": body["reason"],
        "alarms": body["alarms"],
        "missing": body["missing"],
        "queues": queue_names(body),
    });
    output.list(&Json::Array(vec![row]), columns)?;
    Err(Failure::Unhealthy)
}

/// Polls until the node is ready. Failed requests are retried.
fn await_startup(client: &Client, output: &Output) -> Result<(), Failure> {
    client.until(|| match client.check("/readyz") {
        Ok(response) => response.status == 200,
        Err(_) => false,
    })?;
    output.say("The node serves clients");
    Ok(())
}

/// Polls until at least `count` nodes are up. Requests are retried unless the user is refused.
fn await_online_nodes(client: &Client, output: &Output, count: u32) -> Result<(), Failure> {
    let wanted = count as usize;
    let last = Cell::new(None);
    let waited = client.until(|| {
        let online = client.get(&["nodes"]).map(|nodes| {
            let all = nodes.as_array().map_or(0, Vec::len);
            all - super::cluster::down(&nodes).len()
        });
        let ends = match &online {
            Ok(online) => *online >= wanted,
            Err(failure) => matches!(failure, Failure::NotPermitted { .. }),
        };
        last.set(Some(online));
        ends
    });
    match last.into_inner() {
        Some(Ok(online)) if online >= wanted => {
            output.say(&nodes_up(online));
            Ok(())
        }
        Some(Ok(online)) => Err(Failure::Unfulfilled {
            message: format!("{}, {wanted} needed", nodes_up(online)),
            remedy: "`list_nodes` names the nodes that are down; --timeout sets the longest wait.",
        }),
        Some(Err(failure)) => Err(failure),
        None => waited,
    }
}

fn nodes_up(count: usize) -> String {
    match count {
        1 => "1 node is up".to_owned(),
        count => format!("{count} nodes are up"),
    }
}
