//! Replicas, leaders and nodes that leave; RabbitMQ's words (`rabbitmq-queues`) where it has them.

use super::At;
use super::client::{Answered, Client, Failure};
use super::output::{Column, Output};
use serde_json::{Value as Json, json};

#[derive(Debug, clap::Subcommand)]
#[command(rename_all = "snake_case")]
pub enum Command {
    /// Add a replica of each matching quorum queue to a node that has none of it
    Grow {
        node: String,
        /// all, or even: only queues with an even number of members
        #[arg(default_value = "all")]
        strategy: String,
        #[command(flatten)]
        of: Matching,
    },
    /// Remove the replicas of quorum queues from a node, without replacing them
    Shrink {
        node: String,
        #[command(flatten)]
        of: Matching,
    },
    /// Move the replicas of quorum queues from a node to other nodes, if there are any
    Evacuate {
        node: String,
        #[command(flatten)]
        of: Matching,
    },
    /// Add a replica of a quorum queue on a node
    AddMember {
        queue: String,
        node: String,
        #[command(flatten)]
        at: At,
    },
    /// Remove the replica of a quorum queue from a node
    DeleteMember {
        queue: String,
        node: String,
        #[command(flatten)]
        at: At,
    },
    /// List the replicas of a quorum queue with the state that each reports
    QuorumStatus {
        queue: String,
        #[command(flatten)]
        at: At,
    },
    /// Move queue leaders so that every node leads its share
    #[command(alias = "rebalance_queues")]
    Rebalance {
        /// Ignored: all, quorum
        #[arg(hide = true)]
        kind: Option<String>,
    },
    /// Remove a node that is lost or in maintenance mode from the cluster permanently. Its replicas move first: repeat the
    /// command until the node is forgotten
    #[command(alias = "forget_cluster_node")]
    ForgetNode { name: String },
}

#[derive(Debug, clap::Args)]
pub struct Matching {
    /// Regular expression on names of vhosts
    #[arg(long, default_value = ".*")]
    vhost_pattern: String,
    /// Regular expression on names of queues
    #[arg(long, default_value = ".*")]
    queue_pattern: String,
}

const OUTCOMES: &[Column] = &[
    ("vhost", &["vhost"]),
    ("name", &["name"]),
    ("size", &["size"]),
    ("members", &["members"]),
    ("result", &["result"]),
    ("reason", &["reason"]),
];

const REPLICAS: &[Column] = &[
    ("node", &["Node Name"]),
    ("state", &["Raft State"]),
    ("membership", &["Membership"]),
    ("term", &["Term"]),
    ("last_index", &["Last Log Index"]),
    ("written", &["Last Written"]),
    ("applied", &["Last Applied"]),
    ("commit", &["Commit Index"]),
    ("snapshot", &["Snapshot Index"]),
];

pub(crate) fn perform(client: &Client, output: &Output, command: &Command) -> Result<(), Failure> {
    match command {
        Command::Grow { node, strategy, of } => {
            let mut body = of.body();
            body["strategy"] = json!(strategy);
            outcomes(client, output, node, "grow", &body)
        }
        Command::Shrink { node, of } => outcomes(client, output, node, "shrink", &of.body()),
        Command::Evacuate { node, of } => outcomes(client, output, node, "evacuate", &of.body()),
        Command::AddMember { queue, node, at } => {
            member(client, &at.vhost, queue, "add", node)?;
            output.say(&format!("Node '{node}' gets a replica of queue '{queue}'"));
            Ok(())
        }
        Command::DeleteMember { queue, node, at } => {
            member(client, &at.vhost, queue, "delete", node)?;
            output.say(&format!(
                "Node '{node}' is to be no member of queue '{queue}'"
            ));
            Ok(())
        }
        Command::QuorumStatus { queue, at } => {
            let shown = client.get(&["queues", "quorum", &at.vhost, queue, "status"])?;
            output.list(&shown, REPLICAS);
            Ok(())
        }
        Command::Rebalance { .. } => rebalance(client, output),
        Command::ForgetNode { name } => forget(client, output, name),
    }
}

impl Matching {
    fn body(&self) -> Json {
        json!({"vhost_pattern": self.vhost_pattern, "queue_pattern": self.queue_pattern})
    }
}

/// A row for each queue; it fails when one could not be changed.
fn outcomes(
    client: &Client,
    output: &Output,
    node: &str,
    what: &str,
    body: &Json,
) -> Result<(), Failure> {
    let path = ["queues", "quorum", "replicas", "on", node, what];
    let rows = client.post_for(&path, body)?.body;
    output.list(&rows, OUTCOMES);
    let refused = |row: &&Json| row["result"] != "ok";
    match rows
        .as_array()
        .into_iter()
        .flatten()
        .filter(refused)
        .count()
    {
        0 => Ok(()),
        n => Err(Failure::Usage(format!(
            "{n} queue(s) were left as they are; the reason is in their row"
        ))),
    }
}

fn member(
    client: &Client,
    vhost: &str,
    queue: &str,
    what: &str,
    node: &str,
) -> Result<Answered, Failure> {
    let path = ["queues", "quorum", vhost, queue, "replicas", what];
    client.post_for(&path, &json!({"node": node}))
}

fn rebalance(client: &Client, output: &Output) -> Result<(), Failure> {
    let moved = client.post_for(&["rebalance", "queues"], &json!({}))?.body;
    output.say(&match moved["leaders_moved"].as_u64() {
        Some(0) => "Every node leads its share already".to_owned(),
        Some(1) => "1 queue leader is being moved".to_owned(),
        Some(n) => format!("{n} queue leaders are being moved"),
        None => "Queue leaders are being moved".to_owned(),
    });
    Ok(())
}

fn forget(client: &Client, output: &Output, name: &str) -> Result<(), Failure> {
    let answered = client.delete_for(&["nodes", name])?;
    output.say(&match (answered.status, &answered.body["queues"]) {
        (202, queues) if *queues == 0 => format!(
            "Node '{name}' is being taken out of the group that keeps the cluster's definitions. Ask again until it is forgotten."
        ),
        (202, queues) => format!(
            "The replicas of {queues} queue(s) are moved off node '{name}' first. Ask again until it is forgotten."
        ),
        _ => format!("Node '{name}' is no member any more"),
    });
    Ok(())
}
