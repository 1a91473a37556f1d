//! Streams: their clients, replicas and stored offsets, and super streams. Command names follow `rabbitmq-streams`.

use super::client::Client;
use super::failure::Failure;
use super::output::{Column, Output};
use super::{ColumnSelection, VhostOption};
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeMap;

#[derive(Debug, clap::Subcommand)]
#[command(rename_all = "snake_case")]
pub(crate) enum Command {
    /// List connections of the stream protocol
    ListStreamConnections {
        #[command(flatten)]
        at: VhostOption,
        #[command(flatten)]
        chosen: ColumnSelection,
    },
    /// List publishers of the stream protocol
    ListStreamPublishers {
        #[command(flatten)]
        at: VhostOption,
        #[command(flatten)]
        chosen: ColumnSelection,
    },
    /// List consumers of the stream protocol with the number of messages by which they lag
    ListStreamConsumers {
        #[command(flatten)]
        at: VhostOption,
        #[command(flatten)]
        chosen: ColumnSelection,
    },
    /// List groups of single active consumers
    ListStreamConsumerGroups {
        #[command(flatten)]
        at: VhostOption,
        #[command(flatten)]
        chosen: ColumnSelection,
    },
    /// List the consumers of a group of single active consumers
    ListStreamGroupConsumers {
        #[command(flatten)]
        group: Reference,
        #[command(flatten)]
        chosen: ColumnSelection,
    },
    /// List the stored offsets and the publishing ids of a stream
    ListStreamTracking {
        stream: String,
        #[command(flatten)]
        at: VhostOption,
        #[command(flatten)]
        kinds: TrackingKinds,
    },
    /// List the replicas of a stream with their offsets, segments and lag
    StreamStatus {
        stream: String,
        #[command(flatten)]
        at: VhostOption,
        /// List the stored offsets and the publishing ids instead
        #[arg(long)]
        tracking: bool,
    },
    /// Store offset 0 for a consumer that has stored an offset
    ResetOffset(Reference),
    /// Add a replica of a stream on a node
    AddReplica {
        stream: String,
        node: String,
        #[command(flatten)]
        at: VhostOption,
    },
    /// Remove the replica of a stream from a node
    DeleteReplica {
        stream: String,
        node: String,
        #[command(flatten)]
        at: VhostOption,
    },
    /// List super streams with their partitions
    ListSuperStreams(VhostOption),
    /// Create a super stream: an exchange with a stream for each partition
    AddSuperStream {
        name: String,
        #[command(flatten)]
        at: VhostOption,
        /// Number of partitions [default: 3]
        #[arg(long, conflicts_with = "binding_keys")]
        partitions: Option<u32>,
        /// Comma-separated binding keys, one for each partition
        #[arg(long = "binding-keys", alias = "routing-keys")]
        binding_keys: Option<String>,
        /// Size of each stream from which on its oldest segments are deleted: 20GB
        #[arg(long = "max-length-bytes")]
        max_length_bytes: Option<String>,
        /// Age from which on segments are deleted, as an ISO 8601 duration: P5DT8H, PT10M30S
        #[arg(long = "max-age")]
        max_age: Option<String>,
        /// Size of the segment files: 500MB
        #[arg(long = "stream-max-segment-size-bytes")]
        stream_max_segment_size_bytes: Option<String>,
        /// client-local or balanced
        #[arg(long = "leader-locator")]
        leader_locator: Option<String>,
        /// Number of replicas of each stream
        #[arg(long = "initial-cluster-size")]
        initial_cluster_size: Option<u32>,
    },
    /// Delete a super stream with its streams and their messages
    DeleteSuperStream {
        name: String,
        #[command(flatten)]
        at: VhostOption,
    },
}

/// A consumer name on a stream.
#[derive(Debug, clap::Args)]
pub(crate) struct Reference {
    /// Name of the stream
    #[arg(long)]
    stream: String,
    /// Name of the consumer
    #[arg(long)]
    reference: String,
    #[command(flatten)]
    at: VhostOption,
}

#[derive(Debug, clap::Args)]
#[group(multiple = false)]
pub(crate) struct TrackingKinds {
    /// Offsets and publishing ids, which is the default
    #[arg(long)]
    all: bool,
    /// Only offsets
    #[arg(long)]
    offset: bool,
    /// Only publishing ids
    #[arg(long)]
    writer: bool,
}

const CONNECTIONS: &[Column] = &[
    ("conn_name", &["conn_name"]),
    ("node", &["node"]),
    ("user", &["user"]),
    ("vhost", &["vhost"]),
    ("state", &["state"]),
    ("ssl", &["ssl"]),
    ("peer_host", &["peer_host"]),
    ("peer_port", &["peer_port"]),
];

const PUBLISHERS: &[Column] = &[
    ("stream", &["stream"]),
    ("publisher_id", &["publisher_id"]),
    ("reference", &["reference"]),
    ("published", &["messages_published"]),
    ("confirmed", &["messages_confirmed"]),
    ("errored", &["messages_errored"]),
    ("node", &["node"]),
    ("connection", &["connection_name"]),
];

const CONSUMERS: &[Column] = &[
    ("stream", &["stream"]),
    ("subscription_id", &["subscription_id"]),
    ("offset", &["offset"]),
    ("offset_lag", &["offset_lag"]),
    ("consumed", &["messages_consumed"]),
    ("credits", &["credits"]),
    ("status", &["activity_status"]),
    ("node", &["node"]),
    ("connection", &["connection_name"]),
];

const GROUPS: &[Column] = &[
    ("stream", &["stream"]),
    ("reference", &["reference"]),
    ("partition_index", &["partition_index"]),
    ("consumers", &["consumers"]),
];

const GROUP_CONSUMERS: &[Column] = &[
    ("subscription_id", &["subscription_id"]),
    ("connection_name", &["connection_name"]),
    ("state", &["state"]),
];

const TRACKING: &[Column] = &[
    ("type", &["type"]),
    ("name", &["name"]),
    ("tracking_value", &["tracking_value"]),
];

const REPLICAS: &[Column] = &[
    ("node", &["node"]),
    ("role", &["role"]),
    ("state", &["state"]),
    ("epoch", &["epoch"]),
    ("first_offset", &["first_offset"]),
    ("offset", &["offset"]),
    ("committed_offset", &["committed_offset"]),
    ("lag", &["lag"]),
    ("segments", &["segments"]),
    ("bytes", &["bytes"]),
    ("readers", &["readers"]),
];

const SUPER_STREAMS: &[Column] = &[
    ("vhost", &["vhost"]),
    ("name", &["name"]),
    ("partitions", &["partition_count"]),
    ("streams", &["streams"]),
];

pub(crate) fn perform(client: &Client, output: &Output, command: &Command) -> Result<(), Failure> {
    match command {
        Command::ListStreamConnections { at, chosen } => {
            let mut found = client.get(&["stream", "connections", &at.vhost])?;
            for connection in rows_mut(&mut found) {
                connection["conn_name"] = connection["name"].clone();
            }
            output.chosen(&found, &chosen.columns, CONNECTIONS)?;
        }
        Command::ListStreamPublishers { at, chosen } => {
            let mut found = client.get(&["stream", "publishers", &at.vhost])?;
            for publisher in rows_mut(&mut found) {
                flatten(publisher, &["published", "confirmed", "errored"]);
            }
            output.chosen(&found, &chosen.columns, PUBLISHERS)?;
        }
        Command::ListStreamConsumers { at, chosen } => {
            output.chosen(&consumers(client, &at.vhost)?, &chosen.columns, CONSUMERS)?;
        }
        Command::ListStreamConsumerGroups { at, chosen } => {
            output.chosen(&groups(client, &at.vhost)?, &chosen.columns, GROUPS)?;
        }
        Command::ListStreamGroupConsumers { group, chosen } => {
            let found = group_consumers(client, group)?;
            output.chosen(&found, &chosen.columns, GROUP_CONSUMERS)?;
        }
        Command::ListStreamTracking { stream, at, kinds } => {
            let wanted = (!kinds.writer, !kinds.offset);
            output.list(&tracking(client, &at.vhost, stream, wanted)?, TRACKING)?;
        }
        Command::StreamStatus {
            stream,
            at,
            tracking: true,
        } => {
            let both = (true, true);
            output.list(&tracking(client, &at.vhost, stream, both)?, TRACKING)?;
        }
        Command::StreamStatus { stream, at, .. } => {
            let replicas = client.get(&["stream", &at.vhost, stream, "status"])?;
            output.list(&replicas, REPLICAS)?;
        }
        Command::ListSuperStreams(at) => {
            let mut found = client.get(&["stream", "super-streams", &at.vhost])?;
            for super_stream in rows_mut(&mut found) {
                let partitions = super_stream["partitions"].as_array().into_iter().flatten();
                let streams = partitions.map(|partition| partition["name"].clone());
                super_stream["streams"] = streams.collect();
            }
            output.list(&found, SUPER_STREAMS)?;
        }
        change => output.say(&apply(client, change)?),
    }
    Ok(())
}

/// Returns true for commands that change nothing.
pub(crate) fn only_reads(command: &Command) -> bool {
    matches!(
        command,
        Command::ListStreamConnections { .. }
            | Command::ListStreamPublishers { .. }
            | Command::ListStreamConsumers { .. }
            | Command::ListStreamConsumerGroups { .. }
            | Command::ListStreamGroupConsumers { .. }
            | Command::ListStreamTracking { .. }
            | Command::StreamStatus { .. }
            | Command::ListSuperStreams(_)
    )
}

fn apply(client: &Client, command: &Command) -> Result<String, Failure> {
    Ok(match command {
        Command::ResetOffset(of) => {
            let (vhost, stream, reference) = (&of.at.vhost, &of.stream, &of.reference);
            client.delete(&["stream", vhost, stream, "tracking", reference], "")?;
            format!("The stored offset of '{reference}' on stream '{stream}' is 0")
        }
        Command::AddReplica { stream, node, at } => {
            check_is_stream(client, &at.vhost, stream)?;
            super::membership::member(client, &at.vhost, stream, "add", node)?;
            format!("Node '{node}' gets a replica of stream '{stream}'")
        }
        Command::DeleteReplica { stream, node, at } => {
            check_is_stream(client, &at.vhost, stream)?;
            super::membership::member(client, &at.vhost, stream, "delete", node)?;
            format!("The replica of stream '{stream}' on node '{node}' is being removed")
        }
        Command::AddSuperStream { name, at, .. } => {
            let body = super_stream(command)?;
            client.put(&["stream", "super-streams", &at.vhost, name], &body)?;
            format!("Super stream '{name}' is created in vhost '{}'", at.vhost)
        }
        Command::DeleteSuperStream { name, at } => {
            client.delete(&["stream", "super-streams", &at.vhost, name], "")?;
            format!("Super stream '{name}' in vhost '{}' is deleted", at.vhost)
        }
        // The other commands are lists.
        _ => String::new(),
    })
}

fn rows_mut(list: &mut Json) -> impl Iterator<Item = &mut Json> {
    list.as_array_mut().into_iter().flatten()
}

/// Adds the names that RabbitMQ's command has for the members of a publisher or a consumer.
fn flatten(row: &mut Json, counts: &[&str]) {
    row["stream"] = row["queue"]["name"].clone();
    row["vhost"] = row["queue"]["vhost"].clone();
    row["connection_name"] = row["connection_details"]["name"].clone();
    row["node"] = row["connection_details"]["node"].clone();
    for count in counts {
        row[format!("messages_{count}")] = row[*count].clone();
    }
}

fn consumers(client: &Client, vhost: &str) -> Result<Json, Failure> {
    let mut found = client.get(&["stream", "consumers", vhost])?;
    for consumer in rows_mut(&mut found) {
        flatten(consumer, &["consumed"]);
    }
    Ok(found)
}

/// Single active consumers by stream and reference.
fn grouped(client: &Client, vhost: &str) -> Result<BTreeMap<(String, String), Vec<Json>>, Failure> {
    let mut groups: BTreeMap<_, Vec<Json>> = BTreeMap::new();
    let mut consumers = consumers(client, vhost)?;
    for consumer in rows_mut(&mut consumers) {
        let properties = &consumer["properties"];
        if properties["single-active-consumer"] != "true" {
            continue;
        }
        let text = |value: &Json| value.as_str().unwrap_or_default().to_owned();
        let key = (text(&consumer["stream"]), text(&properties["name"]));
        groups.entry(key).or_default().push(consumer.take());
    }
    Ok(groups)
}

/// RabbitMQ shows -1 for a group that does not consume a super stream.
fn groups(client: &Client, vhost: &str) -> Result<Json, Failure> {
    let super_streams = client.get(&["stream", "super-streams", vhost])?;
    let index_of = |stream: &str, super_stream: &Json| {
        let all = super_streams.as_array().into_iter().flatten();
        let partitions = all.filter(|s| s["name"] == *super_stream);
        let mut partitions =
            partitions.flat_map(|s| s["partitions"].as_array().into_iter().flatten());
        partitions.position(|partition| partition["name"] == stream)
    };
    let rows = grouped(client, vhost)?.into_iter();
    let rows = rows.map(|((stream, reference), consumers)| {
        let super_stream = consumers.first().map(|c| &c["properties"]["super-stream"]);
        let index = super_stream.and_then(|name| index_of(&stream, name));
        json!({
            "stream": stream,
            "reference": reference,
            "partition_index": index.map_or(-1, |index| index as i64),
            "consumers": consumers.len(),
        })
    });
    Ok(rows.collect())
}

fn group_consumers(client: &Client, group: &Reference) -> Result<Json, Failure> {
    let key = (group.stream.clone(), group.reference.clone());
    let found = grouped(client, &group.at.vhost)?.remove(&key);
    let consumers = found.ok_or_else(|| {
        Failure::Usage(format!(
            "stream '{}' in vhost '{}' has no group of single active consumers with the reference '{}'; \
             list_stream_consumer_groups shows all groups",
            group.stream, group.at.vhost, group.reference
        ))
    })?;
    let rows = consumers.into_iter().map(|consumer| {
        let is_active = consumer["active"] == true;
        json!({
            "subscription_id": consumer["subscription_id"],
            "connection_name": consumer["connection_name"],
            "state": if is_active { "active" } else { "inactive" },
        })
    });
    Ok(rows.collect())
}

/// The stored offsets and the publishing ids, if they are wanted.
fn tracking(
    client: &Client,
    vhost: &str,
    stream: &str,
    (offsets, writers): (bool, bool),
) -> Result<Json, Failure> {
    let found = client.get(&["stream", vhost, stream, "tracking"])?;
    let mut rows = Vec::new();
    for (kind, member, is_wanted) in [
        ("offset", "offsets", offsets),
        ("writer", "writers", writers),
    ] {
        let all = found[member].as_object().into_iter().flatten();
        for (name, value) in all.filter(|_| is_wanted) {
            rows.push(json!({"type": kind, "name": name, "tracking_value": value}));
        }
    }
    Ok(rows.into())
}

/// Replicas of quorum queues have commands of their own.
fn check_is_stream(client: &Client, vhost: &str, name: &str) -> Result<(), Failure> {
    let queue = client.get(&["queues", vhost, name])?;
    match queue["type"].as_str() {
        Some("stream") => Ok(()),
        kind => Err(Failure::Usage(format!(
            "queue '{name}' in vhost '{vhost}' is a {} queue, not a stream; use add_member and delete_member for quorum queues",
            kind.unwrap_or("classic")
        ))),
    }
}

/// The body of a request for a super stream.
fn super_stream(command: &Command) -> Result<Json, Failure> {
    let Command::AddSuperStream {
        partitions,
        binding_keys,
        max_length_bytes,
        max_age,
        stream_max_segment_size_bytes,
        leader_locator,
        initial_cluster_size,
        ..
    } = command
    else {
        return Ok(json!({}));
    };
    let mut arguments = Map::new();
    for (name, size) in [
        ("max-length-bytes", max_length_bytes),
        (
            "stream-max-segment-size-bytes",
            stream_max_segment_size_bytes,
        ),
    ] {
        if let Some(size) = size {
            let bytes = node::config::parse_bytes(size).ok_or_else(|| {
                Failure::Usage(format!(
                    "--{name} must be a number of bytes, or one with a unit such as 20GB or 512MiB, got '{size}'"
                ))
            })?;
            arguments.insert(name.to_owned(), json!(bytes));
        }
    }
    if let Some(age) = max_age {
        let seconds = seconds_of(age).ok_or_else(|| {
            Failure::Usage(format!(
                "--max-age must be an ISO 8601 duration such as P5DT8H or PT10M30S, got '{age}'"
            ))
        })?;
        arguments.insert("max-age".to_owned(), json!(format!("{seconds}s")));
    }
    if let Some(locator) = leader_locator {
        arguments.insert("queue-leader-locator".to_owned(), json!(locator));
    }
    if let Some(size) = initial_cluster_size {
        arguments.insert("initial-cluster-size".to_owned(), json!(size));
    }
    Ok(match binding_keys {
        Some(keys) => json!({"binding-keys": keys, "arguments": arguments}),
        None => json!({"partitions": partitions.unwrap_or(3), "arguments": arguments}),
    })
}

/// The seconds of an ISO 8601 duration. As in RabbitMQ, a year has 365 days and a month 30.
fn seconds_of(duration: &str) -> Option<u64> {
    const DAY: u64 = 86_400;
    let (date, time) = match duration.strip_prefix('P')?.split_once('T') {
        Some((date, time)) if !time.is_empty() => (date, time),
        Some(_) => return None,
        None => (duration.strip_prefix('P')?, ""),
    };
    let dates = [
        ('Y', 365 * DAY),
        ('M', 30 * DAY),
        ('W', 7 * DAY),
        ('D', DAY),
    ];
    let times = [('H', 3_600), ('M', 60), ('S', 1)];
    let total = seconds_of_parts(date, &dates)?.checked_add(seconds_of_parts(time, &times)?)?;
    (total > 0).then_some(total)
}

/// The seconds of numbers with these units, each at most once and in this order.
fn seconds_of_parts(mut parts: &str, units: &[(char, u64)]) -> Option<u64> {
    let mut total: u64 = 0;
    let mut units = units.iter();
    while !parts.is_empty() {
        let end = parts.find(|c: char| !c.is_ascii_digit())?;
        let (number, rest) = parts.split_at(end);
        let unit = rest.chars().next()?;
        let seconds = units.find(|(name, _)| *name == unit)?.1;
        total = total.checked_add(number.parse::<u64>().ok()?.checked_mul(seconds)?)?;
        parts = &rest[unit.len_utf8()..];
    }
    Some(total)
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn durations_are_those_of_iso_8601() {
        for (text, seconds) in [
            ("PT10M30S", Some(630)),
            ("P5DT8H", Some(5 * 86_400 + 8 * 3_600)),
            ("P1Y2M", Some((365 + 60) * 86_400)),
            ("P2W", Some(14 * 86_400)),
            ("5D", None),
            ("P", None),
            ("PT", None),
            ("P5", None),
            ("P5S", None),
            ("PT5D", None),
            ("PT1S2M", None),
            ("PT0S", None),
            ("PxD", None),
            ("P99999999999999999999D", None),
            ("P9999999999999999Y", None),
            ("P5\u{e9}", None),
        ] {
            assert_eq!(seconds_of(text), seconds, "{text}");
        }
    }
}
