//! The state of the cluster: `status`, `cluster_status`, `environment`.

use super::changes::local_node;
use super::client::Client;
use super::failure::Failure;
use super::lists;
use super::output::{Column, Output};
use serde_json::{Value as Json, json};

#[derive(Clone, Copy, Debug, clap::Subcommand)]
#[command(rename_all = "snake_case")]
pub(crate) enum Command {
    /// Show the nodes of the cluster with their state and version, alarms, and the listeners of this node
    #[command(after_help = "Example:\n  posthorn ctl cluster_status --output json")]
    ClusterStatus,
    /// List the settings of this node, each with its value and its source: the default, a line of a file, an environment
    /// variable or the command line
    ///
    /// Passwords are masked. Changes at runtime, such as set_log_level, are not shown.
    #[command(after_help = "Examples:\n  \
        posthorn ctl environment\n  \
        posthorn ctl environment --filter 'source!=default'")]
    Environment,
}

const OVERVIEW: &[Column] = &[
    ("node", &["node"]),
    ("cluster", &["cluster_name"]),
    ("version", &["product_version"]),
    ("queues", &["object_totals", "queues"]),
    ("connections", &["object_totals", "connections"]),
    ("messages", &["queue_totals", "messages"]),
    ("down", &["nodes_down"]),
];

const SETTINGS: &[Column] = &[
    ("key", &["key"]),
    ("value", &["value"]),
    ("source", &["source"]),
];

pub(crate) fn perform(client: &Client, output: &Output, command: Command) -> Result<(), Failure> {
    match command {
        Command::ClusterStatus => cluster_status(client, output),
        Command::Environment => {
            let node = local_node(client)?;
            let settings = client.get(&["nodes", &node, "configuration"])?;
            output.list(&settings, SETTINGS)
        }
    }
}

/// Names of the nodes that are down.
pub(crate) fn down(nodes: &Json) -> Vec<&str> {
    let nodes = nodes.as_array().into_iter().flatten();
    let down = nodes.filter(|node| node["running"] != true);
    down.filter_map(|node| node["name"].as_str()).collect()
}

/// Fails while a node is down.
fn check_down(nodes: &Json) -> Result<(), Failure> {
    match down(nodes).as_slice() {
        [] => Ok(()),
        down => Err(Failure::Unfulfilled {
            message: format!("down: {}", down.join(", ")),
            remedy: "Start the nodes; `doctor` explains the consequences.",
        }),
    }
}

/// Shows the node that answers. Fails while a node of the cluster is down, if the user may see nodes.
pub(crate) fn status(client: &Client, output: &Output) -> Result<(), Failure> {
    let mut overview = client.get(&["overview"])?;
    let nodes = match client.get(&["nodes"]) {
        Err(Failure::NotPermitted { .. }) => json!([]),
        nodes => nodes?,
    };
    overview["nodes_down"] = json!(down(&nodes));
    output.list(&Json::Array(vec![overview]), OVERVIEW)?;
    check_down(&nodes)
}

fn cluster_status(client: &Client, output: &Output) -> Result<(), Failure> {
    let overview = client.get(&["overview"])?;
    let nodes = client.get(&["nodes"])?;
    if !output.is_table() {
        let alarms = client.check("/api/health/checks/alarms")?.body;
        output.json(&json!({
            "cluster_name": overview["cluster_name"],
            "node": overview["node"],
            "nodes": nodes,
            "running_nodes": running(&nodes),
            "down_nodes": down(&nodes),
            "alarms": alarms.get("alarms").unwrap_or(&json!([])),
            "listeners": overview["listeners"],
            "feature_flags": client.get(&["feature-flags"])?,
        }));
        return check_down(&nodes);
    }
    output.text(&format!(
        "Cluster {}\n",
        overview["cluster_name"].as_str().unwrap_or_default()
    ));
    output.list(&nodes, lists::NODES)?;
    output.text(&format!(
        "\nListeners of node {}\n",
        overview["node"].as_str().unwrap_or_default()
    ));
    output.list(&overview["listeners"], lists::LISTENERS)?;
    check_down(&nodes)
}

fn running(nodes: &Json) -> Vec<&str> {
    let nodes = nodes.as_array().into_iter().flatten();
    let running = nodes.filter(|node| node["running"] == true);
    running.filter_map(|node| node["name"].as_str()).collect()
}
