//! `publish`, `get` and `consume`: messages over the HTTP API, for inspection and scripts.

use super::VhostOption;
use super::client::Client;
use super::failure::Failure;
use super::output::{Column, Output};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value as Json, json};
use std::io::Read as _;
use std::path::PathBuf;
use std::time::Duration;

/// Largest payload in bytes: encoded in Base64 it fits into a request of 256 KiB.
const MAX_PAYLOAD: usize = 180 * 1024;
/// Most messages of one request. The API's limit is 1000.
const MAX_BATCH: u64 = 100;
/// Interval at which `consume --follow` looks for messages in an empty queue.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(250);

#[derive(Debug, clap::Subcommand)]
#[command(rename_all = "snake_case")]
pub(crate) enum Command {
    /// Publish a message and wait until every queue that gets it has confirmed it
    ///
    /// The payload is the second argument, a file, or standard input. A message that no queue gets is an error.
    #[command(after_help = "Examples:\n  \
        posthorn ctl publish orders 'first order'\n  \
        posthorn ctl publish eu.paid --exchange amq.topic --file order.json --property content_type=application/json")]
    Publish {
        /// Routing key; on the default exchange the name of a queue
        routing_key: String,
        /// Payload; without it and without --file, it is read from standard input
        payload: Option<String>,
        /// File with the payload
        #[arg(long, conflicts_with = "payload", value_name = "FILE")]
        file: Option<PathBuf>,
        /// Exchange; without it, the message goes to the queue that the routing key names
        #[arg(long, default_value = "")]
        exchange: String,
        /// Property of the message, such as content_type=text/plain, priority=5 or expiration=60000
        #[arg(long = "property", value_name = "NAME=VALUE")]
        properties: Vec<String>,
        /// Header of the message
        #[arg(long = "header", value_name = "NAME=VALUE")]
        headers: Vec<String>,
        /// Publish a message that need not survive a restart
        #[arg(long)]
        transient: bool,
        /// Number of times that the message is published
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
        count: u64,
        #[command(flatten)]
        at: VhostOption,
    },
    /// Show the first messages of a queue, which stay in the queue
    ///
    /// The messages count as redelivered afterwards. With --remove, they are taken from the queue.
    #[command(after_help = "Examples:\n  \
        posthorn ctl get orders\n  \
        posthorn ctl get orders --count 10 --output json")]
    Get {
        queue: String,
        /// Most messages to show
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
        count: u64,
        /// Take the messages from the queue
        #[arg(long)]
        remove: bool,
        #[command(flatten)]
        at: VhostOption,
    },
    /// Take messages from a queue and print their payloads, until the queue is empty
    ///
    /// Each message is removed before it is printed, so one that is not printed completely is lost. An application should
    /// consume over AMQP instead. With --output json, each message is one line.
    #[command(after_help = "Examples:\n  \
        posthorn ctl consume orders --count 10\n  \
        posthorn ctl consume orders --follow --output json")]
    Consume {
        queue: String,
        /// Stop after this number of messages
        #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
        count: Option<u64>,
        /// Wait for further messages when the queue is empty
        #[arg(long)]
        follow: bool,
        #[command(flatten)]
        at: VhostOption,
    },
}

const MESSAGES: &[Column] = &[
    ("exchange", &["exchange"]),
    ("routing_key", &["routing_key"]),
    ("redelivered", &["redelivered"]),
    ("bytes", &["payload_bytes"]),
    ("encoding", &["payload_encoding"]),
    ("payload", &["payload"]),
];

pub(crate) fn perform(client: &Client, output: &Output, command: &Command) -> Result<(), Failure> {
    match command {
        Command::Publish { .. } => publish(client, output, command),
        Command::Get {
            queue,
            count,
            remove,
            at,
        } => {
            let messages = take(client, &at.vhost, queue, *count, *remove)?;
            output.list(&messages, MESSAGES)
        }
        Command::Consume {
            queue,
            count,
            follow,
            at,
        } => consume(client, output, (&at.vhost, queue), *count, *follow),
    }
}

/// Splits NAME=VALUE.
fn assignment<'a>(option: &str, text: &'a str) -> Result<(&'a str, &'a str), Failure> {
    text.split_once('=')
        .ok_or_else(|| Failure::Usage(format!("{option} '{text}': expected NAME=VALUE")))
}

/// Properties whose values are numbers.
const NUMBERS: [&str; 3] = ["priority", "timestamp", "delivery_mode"];
/// All other properties of a message.
const TEXTS: [&str; 10] = [
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
];

fn properties(given: &[String], headers: &[String], transient: bool) -> Result<Json, Failure> {
    let mut all = Map::new();
    all.insert(
        "delivery_mode".to_owned(),
        json!(if transient { 1 } else { 2 }),
    );
    for text in given {
        let (name, value) = assignment("--property", text)?;
        let value =
            if NUMBERS.contains(&name) {
                let number = value.parse::<u64>();
                json!(number.map_err(|_| Failure::Usage(format!(
                    "--property '{text}': {name} is a number"
                )))?)
            } else if TEXTS.contains(&name) {
                json!(value)
            } else {
                return Err(Failure::Usage(format!(
                    "--property '{text}': no property has this name; the properties are {}, {}",
                    NUMBERS.join(", "),
                    TEXTS.join(", ")
                )));
            };
        all.insert(name.to_owned(), value);
    }
    let mut table = Map::new();
    for text in headers {
        let (name, value) = assignment("--header", text)?;
        table.insert(name.to_owned(), json!(value));
    }
    if !table.is_empty() {
        all.insert("headers".to_owned(), Json::Object(table));
    }
    Ok(Json::Object(all))
}

fn payload(text: Option<&str>, file: Option<&PathBuf>) -> Result<Vec<u8>, Failure> {
    let limit = MAX_PAYLOAD as u64 + 1;
    let mut bytes = Vec::new();
    let (read, source) = match (text, file) {
        (Some(text), _) => {
            bytes.extend_from_slice(text.as_bytes());
            (Ok(bytes.len()), "the payload".to_owned())
        }
        (None, Some(path)) => {
            let opened = std::fs::File::open(path);
            let read = opened.and_then(|file| file.take(limit).read_to_end(&mut bytes));
            (read, format!("the file {}", path.display()))
        }
        (None, None) => {
            let read = std::io::stdin().lock().take(limit).read_to_end(&mut bytes);
            (read, "standard input".to_owned())
        }
    };
    read.map_err(|e| Failure::Usage(format!("{source} cannot be read: {e}")))?;
    match bytes.len() > MAX_PAYLOAD {
        true => Err(Failure::Usage(format!(
            "{source} has more than {MAX_PAYLOAD} bytes, the most that `publish` sends; publish larger messages over AMQP"
        ))),
        false => Ok(bytes),
    }
}

fn publish(client: &Client, output: &Output, command: &Command) -> Result<(), Failure> {
    let Command::Publish {
        routing_key,
        payload: text,
        file,
        exchange,
        properties: given,
        headers,
        transient,
        count,
        at,
    } = command
    else {
        return Ok(());
    };
    let bytes = payload(text.as_deref(), file.as_ref())?;
    let body = json!({
        "routing_key": routing_key,
        "properties": properties(given, headers, *transient)?,
        "payload": STANDARD.encode(bytes),
        "payload_encoding": "base64",
    });
    let name = if exchange.is_empty() {
        "amq.default"
    } else {
        exchange
    };
    for _ in 0..*count {
        let result = client.post_for(&["exchanges", &at.vhost, name, "publish"], &body)?;
        if result.body["routed"] != true {
            return Err(not_routed(&at.vhost, exchange, routing_key));
        }
    }
    let times = if *count == 1 {
        "a message".to_owned()
    } else {
        format!("{count} messages")
    };
    output.say(&match exchange.as_str() {
        "" => format!(
            "Published {times} to queue '{routing_key}' in vhost '{}'",
            at.vhost
        ),
        _ => format!("Published {times} to exchange '{exchange}' with routing key '{routing_key}'"),
    });
    Ok(())
}

fn not_routed(vhost: &str, exchange: &str, routing_key: &str) -> Failure {
    match exchange {
        "" => Failure::Unfulfilled {
            message: format!("vhost '{vhost}' has no queue '{routing_key}'"),
            remedy: "Declare it with `declare_queue`, or name an exchange with --exchange.",
        },
        _ => Failure::Unfulfilled {
            message: format!(
                "exchange '{exchange}' in vhost '{vhost}' has no binding that matches routing key '{routing_key}'"
            ),
            remedy: "Bind a queue with `bind`; `list_bindings` shows the existing bindings.",
        },
    }
}

fn take(
    client: &Client,
    vhost: &str,
    queue: &str,
    count: u64,
    remove: bool,
) -> Result<Json, Failure> {
    let body = json!({
        "count": count,
        "ackmode": if remove { "ack_requeue_false" } else { "ack_requeue_true" },
        "encoding": "auto",
    });
    Ok(client
        .post_for(&["queues", vhost, queue, "get"], &body)?
        .body)
}

fn consume(
    client: &Client,
    output: &Output,
    (vhost, queue): (&str, &str),
    count: Option<u64>,
    follow: bool,
) -> Result<(), Failure> {
    let mut left = count.unwrap_or(u64::MAX);
    while left > 0 {
        let messages = take(client, vhost, queue, left.min(MAX_BATCH), true)?;
        let messages = messages.as_array().map_or(&[][..], Vec::as_slice);
        for message in messages {
            match output.is_table() {
                true => output.text(message["payload"].as_str().unwrap_or_default()),
                false => output.json_line(message),
            }
        }
        left = left.saturating_sub(messages.len() as u64);
        if messages.is_empty() {
            match (follow, count) {
                (true, _) => client.pause(FOLLOW_INTERVAL),
                (false, None) => break,
                (false, Some(count)) => {
                    return Err(Failure::Unfulfilled {
                        message: format!(
                            "queue '{queue}' in vhost '{vhost}' is empty after {} of {count} messages",
                            count - left
                        ),
                        remedy: "With --follow, the command waits for further messages.",
                    });
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod unit {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|w| (*w).to_owned()).collect()
    }

    #[test]
    fn properties_have_their_types() {
        let given = words(&["priority=5", "content_type=text/plain", "expiration=60000"]);
        let headers = words(&["origin=shop=1"]);
        assert_eq!(
            properties(&given, &headers, false),
            Ok(json!({
                "delivery_mode": 2, "priority": 5, "content_type": "text/plain", "expiration": "60000",
                "headers": {"origin": "shop=1"},
            }))
        );
        assert_eq!(properties(&[], &[], true), Ok(json!({"delivery_mode": 1})));
    }

    #[test]
    fn invalid_properties_are_named() {
        for (given, text) in [
            ("priority", "--property 'priority': expected NAME=VALUE"),
            (
                "priority=high",
                "--property 'priority=high': priority is a number",
            ),
            (
                "prority=5",
                "no property has this name; the properties are priority,",
            ),
        ] {
            let failure = properties(&words(&[given]), &[], false).expect_err(given);
            assert!(failure.to_string().contains(text), "{failure}");
        }
    }
}
