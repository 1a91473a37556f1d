//! `top`: the busiest queues.

use super::client::Client;
use super::failure::Failure;
use super::output::{Column, Output};
use serde_json::{Value as Json, json};

/// The options of `top`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Number of queues
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=500))]
    limit: u16,
    /// publish, deliver, or messages
    #[arg(long = "by", value_enum, default_value_t = Key::Deliver)]
    by: Key,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Key {
    Publish,
    Deliver,
    Messages,
}

impl Key {
    fn path(self) -> &'static str {
        match self {
            Key::Publish => "message_stats.publish_details.rate",
            Key::Deliver => "message_stats.deliver_get_details.rate",
            Key::Messages => "messages",
        }
    }
}

const QUEUES: &[Column] = &[
    ("vhost", &["vhost"]),
    ("queue", &["name"]),
    ("type", &["type"]),
    ("publish/s", &["publish_rate"]),
    ("deliver/s", &["deliver_rate"]),
    ("ack/s", &["ack_rate"]),
    ("ready", &["messages_ready"]),
    ("unacked", &["messages_unacknowledged"]),
    ("consumers", &["consumers"]),
];

/// Lists the queues with the highest values. The node sorts them, so that a cluster with many queues
/// sends one page only.
pub(crate) fn top(client: &Client, output: &Output, options: &Options) -> Result<(), Failure> {
    let query = format!(
        "?page=1&page_size={}&sort={}&sort_reverse=true",
        options.limit,
        options.by.path()
    );
    let page = client.get_with(&["queues"], &query)?;
    let queues = page["items"].as_array().into_iter().flatten();
    let rows = queues.map(|queue| {
        // One decimal is enough for a comparison.
        let rate = |name: &str| {
            let rate = queue["message_stats"][name]["rate"].as_f64();
            (rate.unwrap_or(0.0) * 10.0).round() / 10.0
        };
        let mut row = queue.clone();
        row["publish_rate"] = json!(rate("publish_details"));
        row["deliver_rate"] = json!(rate("deliver_get_details"));
        row["ack_rate"] = json!(rate("ack_details"));
        row
    });
    output.list(&rows.collect::<Json>(), QUEUES)
}
