//! `recover_majority`: repeats the request of the HTTP API, which does one step each, until nothing is left to recover.

use super::client::Client;
use super::failure::Failure;
use super::output::{Column, Output};
use env::real::RealClock;
use env::{Clock as _, Time};
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// The pause before a step is repeated.
const INTERVAL: Duration = Duration::from_secs(1);

/// The pause after a step that changed something.
const INTERVAL_AFTER_PROGRESS: Duration = Duration::from_millis(100);

/// A queue is given up once it is refused this often. The first refusals may be temporary.
const MAX_REFUSALS: u32 = 10;

const LOSS: &str = "Messages and definitions that only lost nodes had are lost, also confirmed messages. A queue whose \
     copies were all on lost nodes is lost.\n\
     Never start a lost node again with its old data directory. It refuses to serve once it reaches a node of the \
     cluster, but until then it can serve clients with old data.";

const QUEUES: &[Column] = &[
    ("vhost", &["vhost"]),
    ("name", &["name"]),
    ("node", &["node"]),
    ("last_index", &["last_index"]),
    ("compared", &["compared"]),
    ("result", &["result"]),
    ("reason", &["reason"]),
];

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// A node that never returns; repeat the option for each. Without it, only queues whose members were removed before
    /// are recovered
    #[arg(long, value_name = "NODE")]
    lost: Vec<String>,
    /// Recover, although messages and definitions that only lost nodes had are lost. Without it, nothing changes
    #[arg(long = "accept-loss")]
    accept_loss: bool,
    /// Seconds without progress after which the command gives up
    #[arg(long = "give-up-after", value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=3600))]
    give_up_after: u64,
}

pub(crate) fn recover_majority(
    client: &Client,
    output: &Output,
    options: &Options,
) -> Result<(), Failure> {
    let mut lost = options.lost.clone();
    lost.sort_unstable();
    lost.dedup();
    let nodes = NodeStates::get(client)?;
    if let Some(unknown) = lost.iter().find(|name| !nodes.0.contains_key(*name)) {
        return Err(Failure::Usage(format!(
            "node '{unknown}' is not in the cluster, whose nodes are {}; if it was removed already, leave it out",
            nodes.names(|_| true)
        )));
    }
    if !options.accept_loss {
        return explain(output, &lost, &nodes);
    }
    let mut recovery = Recovery {
        client,
        output,
        lost,
        has_begun: false,
        metadata: Json::Null,
        removed: Vec::new(),
        queues: BTreeMap::new(),
        refused: String::new(),
    };
    let result = recovery.run(Duration::from_secs(options.give_up_after));
    let shown = recovery.show();
    result?;
    shown?;
    match recovery.queues.values().filter(|q| q.refusals > 0).count() {
        0 => Ok(()),
        count => Err(Failure::Unfulfilled {
            message: format!("{count} queue(s) were not recovered; see the reason in their rows"),
            remedy: "Remove the reason, then run the command again: it continues with the remaining queues.",
        }),
    }
}

/// Prints what the command would do.
fn explain(output: &Output, lost: &[String], nodes: &NodeStates) -> Result<(), Failure> {
    let is_lost = |name: &str| lost.iter().any(|l| l == name);
    let list = |names: String| match names.is_empty() {
        true => "none".to_owned(),
        false => names,
    };
    let (named, up) = (lost.join(", "), nodes.names(|is_up| is_up));
    let down = nodes.0.iter().filter(|(name, up)| !**up && !is_lost(name));
    let down: Vec<&str> = down.map(|(name, _)| &**name).collect();
    if output.is_table() {
        output.text(&format!(
            "Lost nodes: {}\nNodes that run: {}\nOther nodes that are down: {}\n\n\
             1. If the metadata have no leader, they continue on the remaining node with their newest copy.\n\
             2. The lost nodes are removed from the cluster permanently.\n\
             3. Each quorum queue or stream that lost its majority continues on the remaining node with its newest copy.\n\n{LOSS}",
            list(named),
            list(up),
            list(down.join(", ")),
        ));
    } else {
        let running: Vec<&String> = nodes.0.iter().filter(|n| *n.1).map(|n| n.0).collect();
        output.json(&json!({"lost": lost, "running": running, "down": down, "loss": LOSS}));
    }
    Err(Failure::Unfulfilled {
        message: "nothing was changed".to_owned(),
        remedy: "Give --accept-loss to recover.",
    })
}

/// The names of all nodes. True: a node of that name runs, and none that is down has the same name.
struct NodeStates(BTreeMap<String, bool>);

impl NodeStates {
    fn get(client: &Client) -> Result<NodeStates, Failure> {
        let listed = client.get(&["nodes"])?;
        let mut nodes = BTreeMap::new();
        for node in listed.as_array().into_iter().flatten() {
            let name = node["name"].as_str().unwrap_or_default().to_owned();
            let is_up = node["running"] == true;
            *nodes.entry(name).or_insert(true) &= is_up;
        }
        Ok(NodeStates(nodes))
    }

    fn names(&self, wanted: impl Fn(bool) -> bool) -> String {
        let names = self.0.iter().filter(|(_, up)| wanted(**up));
        names
            .map(|(name, _)| &**name)
            .collect::<Vec<_>>()
            .join(", ")
    }
}

/// The last result of a queue.
struct QueueRow {
    row: Json,
    /// Number of refusals since it was recovered.
    refusals: u32,
}

/// The progress of a step.
enum Progress {
    Changed,
    Unchanged,
    Finished,
}

struct Recovery<'a> {
    client: &'a Client,
    output: &'a Output,
    /// Lost nodes that are in the cluster.
    lost: Vec<String>,
    /// The broker accepted that the named nodes are lost.
    has_begun: bool,
    /// The last step that recovered the metadata, or null.
    metadata: Json,
    removed: Vec<String>,
    /// By vhost and name.
    queues: BTreeMap<(String, String), QueueRow>,
    /// The last temporary refusal.
    refused: String,
}

impl Recovery<'_> {
    fn run(&mut self, patience: Duration) -> Result<(), Failure> {
        let clock = RealClock::new();
        let mut until: Time = clock.now() + patience;
        loop {
            let pause = match self.step()? {
                Progress::Finished => return Ok(()),
                Progress::Changed => {
                    until = clock.now() + patience;
                    INTERVAL_AFTER_PROGRESS
                }
                Progress::Unchanged => INTERVAL,
            };
            if clock.now() >= until {
                let reason = match self.refused.as_str() {
                    "" => "queues or the metadata have no leader yet",
                    reason => reason,
                };
                return Err(Failure::Unfulfilled {
                    message: format!("no progress for {} s: {reason}", patience.as_secs()),
                    remedy: "Run the command again, without the nodes that are removed already: it continues with the rest.",
                });
            }
            self.client.pause(pause);
        }
    }

    fn step(&mut self) -> Result<Progress, Failure> {
        let body = json!({"lost": self.lost});
        let step = match self.client.post_for(&["recovery", "majority"], &body) {
            Ok(response) => response.body,
            // A node was removed although its response did not arrive, or a new node has its name.
            Err(Failure::Refused {
                status: 400 | 404, ..
            }) if self.update_lost()? => {
                return Ok(Progress::Changed);
            }
            Err(refused) => {
                let Some(reason) = temporary_reason(&refused) else {
                    return Err(refused);
                };
                self.wait_for(reason);
                return Ok(Progress::Unchanged);
            }
        };
        self.has_begun = true;
        self.refused.clear();
        match step["step"].as_str() {
            Some("metadata") => Ok(self.metadata_continue(step)),
            Some("queues") => Ok(self.queues_continue(&step)),
            Some("forgotten") => Ok(match self.update_lost()? {
                true => Progress::Changed,
                false => Progress::Unchanged,
            }),
            _ => Err(Failure::Unfulfilled {
                message: format!("the node answered with an unknown step: {step}"),
                remedy: "Use the version of the command that belongs to the node.",
            }),
        }
    }

    /// Reports a temporary refusal once, although its numbers change.
    fn wait_for(&mut self, reason: String) {
        let without_numbers = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "");
        if without_numbers(&reason) != without_numbers(&self.refused) {
            self.output.progress(&format!("Waiting: {reason}"));
        }
        self.refused = reason;
    }

    fn metadata_continue(&mut self, step: Json) -> Progress {
        if step == self.metadata {
            return Progress::Unchanged;
        }
        self.output.progress(&format!(
            "The metadata continue on node '{}' with index {}; {} were compared",
            step["node"].as_str().unwrap_or_default(),
            step["last_index"],
            copies(&step)
        ));
        self.metadata = step;
        Progress::Changed
    }

    /// Drops the names of nodes that are no longer in the cluster. Returns true if there were any.
    fn update_lost(&mut self) -> Result<bool, Failure> {
        let nodes = NodeStates::get(self.client)?;
        let mut is_changed = false;
        for name in std::mem::take(&mut self.lost) {
            match nodes.0.get(&name) {
                None => {
                    self.output
                        .progress(&format!("Node '{name}' is removed from the cluster"));
                }
                // The broker agreed that the lost node was down: this one has its name and another identity.
                Some(true) if self.has_begun => {
                    self.output.progress(&format!(
                        "A node '{name}' runs, so the name is not reported as lost any more"
                    ));
                }
                Some(_) => {
                    self.lost.push(name);
                    continue;
                }
            }
            is_changed = true;
            self.removed.push(name);
        }
        Ok(is_changed)
    }

    fn queues_continue(&mut self, step: &Json) -> Progress {
        let outcomes = step["queues"].as_array().map_or(&[][..], Vec::as_slice);
        let left = step["left"].as_u64().unwrap_or_default();
        if outcomes.is_empty() && left == 0 {
            return Progress::Finished;
        }
        let mut recovered = 0u64;
        let mut is_given_up = left == 0;
        for outcome in outcomes {
            let text = |key: &str| outcome[key].as_str().unwrap_or_default().to_owned();
            let known = self.queues.entry((text("vhost"), text("name")));
            let queue = known.or_insert_with(|| QueueRow {
                row: Json::Null,
                refusals: 0,
            });
            if outcome["result"] == "recovered" {
                recovered += u64::from(queue.row["result"] != "recovered");
                queue.row = outcome.clone();
                queue.refusals = 0;
                is_given_up = false;
            } else if queue.row["result"] == "recovered" {
                // It is about to have a leader.
                is_given_up = false;
            } else {
                queue.row = outcome.clone();
                queue.refusals += 1;
                is_given_up &= queue.refusals >= MAX_REFUSALS;
            }
        }
        if recovered > 0 {
            self.output.progress(&format!(
                "{recovered} queue(s) continue; {left} queue(s) without a leader are left"
            ));
        }
        match (is_given_up, recovered) {
            (true, _) => Progress::Finished,
            (false, 0) => Progress::Unchanged,
            (false, _) => Progress::Changed,
        }
    }

    /// Prints the result, also of a recovery that failed.
    fn show(&self) -> Result<(), Failure> {
        if !self.has_begun {
            return Ok(());
        }
        let mut rows: Vec<Json> = self.queues.values().map(|q| q.row.clone()).collect();
        let lost = self.client.check("/api/health/checks/lost-queues")?;
        for queue in lost.body["queues"].as_array().into_iter().flatten() {
            let mut row = queue.clone();
            row["result"] = json!("lost");
            row["reason"] = json!(
                "the only copy was on this node, which is removed; delete the queue, then declare it again"
            );
            rows.push(row);
        }
        if !self.output.is_table() {
            self.output.json(&json!({
                "metadata": self.metadata,
                "removed": self.removed,
                "queues": rows,
            }));
            return Ok(());
        }
        for row in rows.iter_mut().filter(|row| row["replicas"].is_u64()) {
            row["compared"] = json!(format!("{} of {}", row["replicas"], row["voters"]));
        }
        match rows.is_empty() {
            true => self.output.say("No queue had lost its majority"),
            false => self.output.list(&Json::Array(rows), QUEUES)?,
        }
        if !self.removed.is_empty() {
            self.output.warn(&format!(
                "never start a removed node ({}) again with its old data directory: until it reaches a node of the cluster, it \
                 can serve clients with old data",
                self.removed.join(", ")
            ));
        }
        Ok(())
    }
}

fn copies(group: &Json) -> String {
    format!("{} of {} copies", group["replicas"], group["voters"])
}

/// Why a step was refused, if it may succeed later.
fn temporary_reason(failure: &Failure) -> Option<String> {
    match failure {
        Failure::Refused {
            status: 503,
            reason,
            ..
        } => Some(reason.clone()),
        Failure::Unreachable { reason, .. } => Some(reason.clone()),
        _ => None,
    }
}
