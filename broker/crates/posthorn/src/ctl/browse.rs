//! `browse`, `delete_message`, `cancel_delayed`, `move_messages` and `redrive`: the messages of a queue, without consuming them.

use super::VhostOption;
use super::client::Client;
use super::failure::Failure;
use super::output::{Column, Output};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value as Json, json};

/// Most messages of one request; the API's limit is 1000.
const MAX_BATCH: u64 = 100;
/// The counts of an outcome, and the sentence about the messages behind each. Only the first are moved.
const OUTCOMES: [(&str, &str); 8] = [
    ("missing", "not in the queue any more, or not ready"),
    (
        "not_ready",
        "unacknowledged, or delayed and not named by a position",
    ),
    ("unroutable", "not routed to any queue"),
    ("without_history", "never dead-lettered"),
    (
        "without_queue",
        "dead-lettered first by a queue that does not exist, or by this one",
    ),
    ("refused", "refused by the target"),
    (
        "pending",
        "not confirmed by the target yet; they leave the queue once they are",
    ),
    ("untried", "not tried"),
];

#[derive(Debug, clap::Subcommand)]
#[command(rename_all = "snake_case")]
pub(crate) enum Command {
    /// List the messages of a queue without consuming them
    ///
    /// Unlike `get`, it does not take the messages from the queue: none is marked as redelivered, and consumers are not
    /// affected. The list begins with the message that is delivered next, in the order of priority and age, and has
    /// unacknowledged messages in their places. The position names a message for the other commands.
    #[command(after_help = "Examples:\n  \
        posthorn ctl browse orders\n  \
        posthorn ctl browse orders --count 1000 --state unacknowledged\n  \
        posthorn ctl browse reminders --state delayed\n  \
        posthorn ctl browse orders --truncate 4194304 --output json")]
    Browse {
        queue: String,
        /// Most messages to list
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
        count: u64,
        /// List messages with this position or a higher one
        #[arg(long, value_name = "POSITION")]
        from: Option<u64>,
        /// List messages of this state only; delayed ones with the time at which they become ready
        #[arg(long)]
        state: Option<State>,
        /// Bytes of each payload to show
        #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(0..=4_194_304))]
        truncate: u64,
        #[command(flatten)]
        at: VhostOption,
    },
    /// Delete one ready or delayed message of a queue
    #[command(after_help = "Example:\n  \
        posthorn ctl browse orders\n  \
        posthorn ctl delete_message orders 4194368")]
    DeleteMessage {
        queue: String,
        /// The position that `browse` shows
        position: u64,
        #[command(flatten)]
        at: VhostOption,
    },
    /// Delete the delayed messages of a queue that have a message id
    ///
    /// Messages that are ready by then, or that a consumer has, stay.
    #[command(after_help = "Example:\n  \
        posthorn ctl cancel_delayed reminders order-7")]
    CancelDelayed {
        queue: String,
        /// The property `message_id` of the messages
        message_id: String,
        #[command(flatten)]
        at: VhostOption,
    },
    /// Move messages to another queue or exchange
    ///
    /// A delayed message moves only if its position is named. Messages that were published with a delay keep the rest of it.
    ///
    /// A message leaves the queue once the target has confirmed it, so none is lost. If a node ends meanwhile, the target may
    /// get a copy. Messages that no queue gets stay. Consumers of both queues are served meanwhile.
    #[command(after_help = "Examples:\n  \
        posthorn ctl move_messages orders --all --to orders-new\n  \
        posthorn ctl move_messages orders --count 10 --to-exchange events --routing-key eu.paid\n  \
        posthorn ctl move_messages orders --position 4194368 --to parked")]
    MoveMessages {
        queue: String,
        /// The queue that gets the messages
        #[arg(long, value_name = "QUEUE", required_unless_present = "to_exchange")]
        to: Option<String>,
        /// The exchange that gets the messages
        #[arg(long = "to-exchange", value_name = "EXCHANGE", conflicts_with = "to")]
        to_exchange: Option<String>,
        /// Routing key for --to-exchange; without it, each message keeps its own
        #[arg(long = "routing-key", requires = "to_exchange")]
        routing_key: Option<String>,
        #[command(flatten)]
        selected: Selection,
        #[command(flatten)]
        at: VhostOption,
    },
    /// Send dead letters back to the queues where they were dead-lettered first
    ///
    /// Each message gets the exchange and the routing keys that it had there, and keeps its dead-letter history. No other queue
    /// gets a copy. Messages without a history and messages whose queue does not exist stay, and are counted.
    #[command(after_help = "Examples:\n  \
        posthorn ctl redrive dead-letters --count 1\n  \
        posthorn ctl redrive dead-letters --all")]
    Redrive {
        /// The queue that has the dead letters
        queue: String,
        #[command(flatten)]
        selected: Selection,
        #[command(flatten)]
        at: VhostOption,
    },
}

/// The state of a message.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum State {
    Ready,
    Unacknowledged,
    Delayed,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            State::Ready => "ready",
            State::Unacknowledged => "unacknowledged",
            State::Delayed => "delayed",
        }
    }
}

/// Which messages to move.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Selection {
    /// The first messages of the queue
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// All messages of the queue
    #[arg(long)]
    all: bool,
    /// The message at this position, as `browse` shows it; may be repeated
    #[arg(long = "position", value_name = "POSITION")]
    positions: Vec<u64>,
}

const MESSAGES: &[Column] = &[
    ("position", &["position"]),
    ("state", &["state"]),
    ("redelivered", &["redelivered"]),
    ("exchange", &["exchange"]),
    ("routing_key", &["routing_key"]),
    ("bytes", &["payload_bytes"]),
    ("encoding", &["payload_encoding"]),
    ("payload", &["payload"]),
];

const DELAYED_MESSAGES: &[Column] = &[
    ("position", &["position"]),
    ("due_at", &["due_at"]),
    ("message_id", &["properties", "message_id"]),
    ("exchange", &["exchange"]),
    ("routing_key", &["routing_key"]),
    ("bytes", &["payload_bytes"]),
    ("encoding", &["payload_encoding"]),
    ("payload", &["payload"]),
];

pub(crate) fn perform(client: &Client, output: &Output, command: &Command) -> Result<(), Failure> {
    match command {
        Command::Browse {
            queue,
            count,
            from,
            state,
            truncate,
            at,
        } => {
            let mut query = format!("&truncate={truncate}");
            if let Some(from) = from {
                query += &format!("&position={from}");
            }
            if let Some(state) = state {
                query += &format!("&state={}", state.name());
            }
            let messages = list(client, (&at.vhost, queue), *count, &query)?;
            match state {
                Some(State::Delayed) => output.list(&messages, DELAYED_MESSAGES),
                _ => output.list(&messages, MESSAGES),
            }
        }
        Command::DeleteMessage {
            queue,
            position,
            at,
        } => {
            let number = position.to_string();
            let path = ["queues", &at.vhost, queue, "messages", &number];
            client.delete_for(&path)?;
            output.say(&format!(
                "Deleted message {position} of queue '{queue}' in vhost '{}'",
                at.vhost
            ));
            Ok(())
        }
        Command::CancelDelayed {
            queue,
            message_id,
            at,
        } => {
            let deleted = cancel(client, (&at.vhost, queue), message_id)?;
            match output.is_table() {
                false => output.json(&json!({"deleted": deleted})),
                true => output.say(&format!(
                    "Deleted {} with the message id '{message_id}' of queue '{queue}' in vhost '{}'",
                    delayed_messages(deleted),
                    at.vhost
                )),
            }
            Ok(())
        }
        Command::MoveMessages {
            queue,
            to,
            to_exchange,
            routing_key,
            selected,
            at,
        } => {
            let target = match (to, to_exchange) {
                (Some(to), _) => json!({"destination_queue": to}),
                (None, exchange) => {
                    json!({"destination_exchange": exchange, "routing_key": routing_key})
                }
            };
            let name = match (to, to_exchange) {
                (Some(to), _) => format!("to queue '{to}'"),
                (None, exchange) => {
                    format!("to exchange '{}'", exchange.as_deref().unwrap_or_default())
                }
            };
            let path = ["queues", &at.vhost, queue, "messages", "move"];
            let outcome = carry_out(client, &path, &target, selected)?;
            report(output, &outcome, (&at.vhost, queue), &name)
        }
        Command::Redrive {
            queue,
            selected,
            at,
        } => {
            let path = ["queues", &at.vhost, queue, "messages", "redrive"];
            let outcome = carry_out(client, &path, &json!({}), selected)?;
            let name = "to the queues where they were dead-lettered first";
            report(output, &outcome, (&at.vhost, queue), name)
        }
    }
}

/// Lists messages with as many requests as needed.
fn list(
    client: &Client,
    (vhost, queue): (&str, &str),
    count: u64,
    filter: &str,
) -> Result<Json, Failure> {
    let mut messages = Vec::new();
    let mut cursor = String::new();
    loop {
        let left = count - messages.len() as u64;
        let mut query = format!("?count={}{filter}", left.min(MAX_BATCH));
        if !cursor.is_empty() {
            query += &format!("&cursor={cursor}");
        }
        let mut page = client.get_with(&["queues", vhost, queue, "messages"], &query)?;
        if let Some(listed) = page["messages"].as_array_mut() {
            messages.append(listed);
        }
        match page["next"].as_str() {
            Some(next) if (messages.len() as u64) < count => cursor = next.to_owned(),
            _ => return Ok(Json::Array(messages)),
        }
    }
}

/// Deletes the delayed messages with a message id, with as many requests as needed. Returns their number.
fn cancel(client: &Client, (vhost, queue): (&str, &str), message_id: &str) -> Result<u64, Failure> {
    let id = utf8_percent_encode(message_id, NON_ALPHANUMERIC);
    let mut deleted = 0;
    let mut query = format!("?state=delayed&message_id={id}");
    loop {
        let answer = client.delete_matching(&["queues", vhost, queue, "messages"], &query)?;
        deleted += answer["deleted"].as_u64().unwrap_or(0);
        if let Some(error) = answer["error"].as_str() {
            return Err(Failure::Unfulfilled {
                message: format!("{} were deleted, then: {error}", delayed_messages(deleted)),
                remedy: "Remove the cause and repeat the command: it deletes the others.",
            });
        }
        match answer["next"].as_str() {
            Some(next) => query = format!("?state=delayed&message_id={id}&cursor={next}"),
            None => return Ok(deleted),
        }
    }
}

fn delayed_messages(count: u64) -> String {
    match count {
        1 => "1 delayed message".to_owned(),
        count => format!("{count} delayed messages"),
    }
}

/// Sends as many requests as the selection needs, and adds up their outcomes.
fn carry_out(
    client: &Client,
    path: &[&str],
    target: &Json,
    selected: &Selection,
) -> Result<Map<String, Json>, Failure> {
    let mut total = Map::new();
    let mut request = |change: Json| {
        let mut body = target.as_object().cloned().unwrap_or_default();
        body.extend(change.as_object().cloned().unwrap_or_default());
        let outcome = client.post_for(path, &Json::Object(body))?.body;
        for (key, value) in outcome.as_object().into_iter().flatten() {
            let sum = match (total.get(key).and_then(Json::as_u64), value.as_u64()) {
                (Some(before), Some(more)) => json!(before + more),
                _ => value.clone(),
            };
            total.insert(key.clone(), sum);
        }
        Ok::<_, Failure>(outcome)
    };
    for positions in selected.positions.chunks(MAX_BATCH as usize) {
        let positions: Vec<String> = positions.iter().map(u64::to_string).collect();
        let outcome = request(json!({"positions": positions}))?;
        if !outcome["error"].is_null() {
            break;
        }
    }
    let mut left = match (selected.all, selected.count) {
        (true, _) => u64::MAX,
        (false, count) => count.unwrap_or(0),
    };
    let mut cursor = Json::Null;
    while left > 0 {
        let count = left.min(MAX_BATCH);
        let outcome = request(json!({"count": count, "cursor": cursor}))?;
        cursor = outcome["next"].clone();
        left = left.saturating_sub(count);
        if cursor.is_null() || !outcome["error"].is_null() {
            break;
        }
    }
    total.remove("next");
    Ok(total)
}

fn report(
    output: &Output,
    outcome: &Map<String, Json>,
    (vhost, queue): (&str, &str),
    target: &str,
) -> Result<(), Failure> {
    let count = |key: &str| outcome.get(key).and_then(Json::as_u64).unwrap_or(0);
    match output.is_table() {
        false => output.json(&Json::Object(outcome.clone())),
        true => output.say(&format!(
            "Moved {} of queue '{queue}' in vhost '{vhost}' {target}",
            messages(count("moved"))
        )),
    }
    let stayed = OUTCOMES.iter().filter(|(key, _)| count(key) > 0);
    for (key, why) in stayed.filter(|_| output.is_table()) {
        output.warn(&format!("{} stayed: {why}", messages(count(key))));
    }
    let error = outcome.get("error").and_then(Json::as_str);
    if let Some(error) = error {
        return Err(Failure::Unfulfilled {
            message: format!("the move ended early: {error}"),
            remedy: "Remove the cause and repeat the command: it continues with the messages that stayed.",
        });
    }
    match count("unroutable") {
        0 => Ok(()),
        unroutable => Err(Failure::Unfulfilled {
            message: format!(
                "no queue gets {}: the target has no binding for them",
                messages(unroutable)
            ),
            remedy: "Declare the queue with `declare_queue`, or bind one with `bind`; `list_bindings` shows the bindings.",
        }),
    }
}

fn messages(count: u64) -> String {
    match count {
        1 => "1 message".to_owned(),
        count => format!("{count} messages"),
    }
}
