//! Replicas, leaders, and nodes that leave the cluster. Command names follow `rabbitmq-queues`.

use super::VhostOption;
use super::client::{ApiResponse, Client};
use super::failure::Failure;
use super::output::{Column, Output};
use super::recovery;
use serde_json::{Value as Json, json};

#[derive(Debug, clap::Subcommand)]
#[command(rename_all = "snake_case")]
pub(crate) enum Command {
    /// Add a replica of each matching quorum queue to a node that has none of it
    Grow {
        node: String,
        /// all, or even: only queues with an even number of members
        #[arg(default_value = "all")]
        strategy: String,
        #[command(flatten)]
        of: QueueSelection,
    },
    /// Remove the replicas of quorum queues from a node, without replacing them
    Shrink {
        node: String,
        #[command(flatten)]
        of: QueueSelection,
    },
    /// Move the replicas of quorum queues from a node to other nodes, if there are any
    Evacuate {
        node: String,
        #[command(flatten)]
        of: QueueSelection,
    },
    /// Add a replica of a quorum queue on a node
    AddMember {
        queue: String,
        node: String,
        #[command(flatten)]
        at: VhostOption,
    },
    /// Remove the replica of a quorum queue from a node
    DeleteMember {
        queue: String,
        node: String,
        #[command(flatten)]
        at: VhostOption,
    },
    /// List the replicas of a quorum queue with the state that each reports
    QuorumStatus {
        queue: String,
        #[command(flatten)]
        at: VhostOption,
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
    /// Continue with the remaining nodes after a majority of the nodes, or of the members of quorum queues, is lost for
    /// good
    ///
    /// Give each node that never returns with --lost, and ask a node that runs. The remaining copies of the metadata and of
    /// each queue are compared, and the newest one continues. Lost nodes are removed from the cluster permanently.
    ///
    /// Messages and definitions that only lost nodes had are lost, also confirmed messages. Use the command only if the disks
    /// of the lost nodes cannot be restored. If a majority of the nodes runs, `forget_node` removes a dead node without a
    /// loss.
    ///
    /// It is refused while a lost node runs or has been down for less than 30 seconds, and while another member that is not
    /// named as lost does not answer: start that node, or name it, too.
    ///
    /// Never start a lost node again with its old data directory. It refuses to serve once it reaches a node of the cluster,
    /// but until then it can serve clients with old data.
    ///
    /// Without --accept-loss the command prints what it would do, changes nothing and exits with 1. It can be repeated after
    /// an interruption, without the nodes that are removed already.
    #[command(after_help = "Examples:\n  \
        posthorn ctl recover_majority --lost c-1 --lost c-2\n  \
        posthorn ctl recover_majority --lost c-1 --lost c-2 --accept-loss\n  \
        posthorn ctl recover_majority --accept-loss --output json")]
    RecoverMajority(recovery::Options),
}

#[derive(Debug, clap::Args)]
pub(crate) struct QueueSelection {
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
                "The replica of queue '{queue}' on node '{node}' is being removed"
            ));
            Ok(())
        }
        Command::QuorumStatus { queue, at } => {
            let replicas = client.get(&["queues", "quorum", &at.vhost, queue, "status"])?;
            output.list(&replicas, REPLICAS)
        }
        Command::Rebalance { .. } => rebalance(client, output),
        Command::ForgetNode { name } => forget(client, output, name),
        Command::RecoverMajority(options) => recovery::recover_majority(client, output, options),
    }
}

impl QueueSelection {
    fn body(&self) -> Json {
        json!({"vhost_pattern": self.vhost_pattern, "queue_pattern": self.queue_pattern})
    }
}

/// Prints one row per queue. Fails if any queue could not be changed.
fn outcomes(
    client: &Client,
    output: &Output,
    node: &str,
    action: &str,
    body: &Json,
) -> Result<(), Failure> {
    let path = ["queues", "quorum", "replicas", "on", node, action];
    let rows = client.post_for(&path, body)?.body;
    output.list(&rows, OUTCOMES)?;
    let is_failed = |row: &&Json| row["result"] != "ok";
    match rows
        .as_array()
        .into_iter()
        .flatten()
        .filter(is_failed)
        .count()
    {
        0 => Ok(()),
        n => Err(Failure::Usage(format!(
            "{n} queue(s) were not changed; see the reason in their rows"
        ))),
    }
}

pub(crate) fn member(
    client: &Client,
    vhost: &str,
    queue: &str,
    action: &str,
    node: &str,
) -> Result<ApiResponse, Failure> {
    let path = ["queues", "quorum", vhost, queue, "replicas", action];
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
    let response = client.delete_for(&["nodes", name])?;
    output.say(&match (response.status, &response.body["queues"]) {
        (202, queues) if *queues == 0 => format!(
            "Node '{name}' is being removed from the metadata group. Repeat the command until it is forgotten."
        ),
        (202, queues) => format!(
            "The replicas of {queues} queue(s) are moved off node '{name}' first. Repeat the command until it is forgotten."
        ),
        _ => format!("Node '{name}' is forgotten"),
    });
    Ok(())
}
