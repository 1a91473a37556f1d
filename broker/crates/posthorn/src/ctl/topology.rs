//! Exchanges and bindings.

use super::client::Client;
use super::failure::Failure;
use super::output::Output;
use super::{VhostOption, object};
use serde_json::{Value as Json, json};

#[derive(Debug, clap::Subcommand)]
#[command(rename_all = "snake_case")]
pub(crate) enum Command {
    /// Declare a durable exchange
    #[command(after_help = "Example:\n  posthorn ctl declare_exchange events --type topic")]
    DeclareExchange {
        name: String,
        /// direct, fanout, topic, headers, x-consistent-hash, x-local-random, x-modulus-hash, x-random or
        /// x-delayed-message
        #[arg(long = "type", default_value = "direct")]
        kind: String,
        /// Further arguments, as a JSON object: '{"alternate-exchange": "unrouted"}'. The type x-delayed-message needs
        /// x-delayed-type
        #[arg(long, default_value = "{}")]
        arguments: String,
        #[command(flatten)]
        at: VhostOption,
    },
    /// Delete an exchange with its bindings
    DeleteExchange {
        name: String,
        /// Delete the exchange only if it has no binding
        #[arg(long = "if-unused")]
        if_unused: bool,
        #[command(flatten)]
        at: VhostOption,
    },
    /// Bind a queue, or another exchange, to an exchange
    #[command(after_help = "Example:\n  posthorn ctl bind amq.topic orders --routing-key 'eu.#'")]
    Bind(Binding),
    /// Remove a binding
    #[command(after_help = "Example:\n  posthorn ctl unbind amq.topic orders --routing-key 'eu.#'")]
    Unbind(Binding),
}

/// A binding.
#[derive(Debug, clap::Args)]
pub(crate) struct Binding {
    /// Exchange that messages are published to
    source: String,
    /// Queue that gets the messages
    destination: String,
    /// The destination is an exchange
    #[arg(long = "to-exchange")]
    to_exchange: bool,
    /// Routing key, or pattern for a topic exchange
    #[arg(long = "routing-key", default_value = "")]
    routing_key: String,
    /// Arguments, as a JSON object: '{"x-match": "any", "region": "eu"}'
    #[arg(long, default_value = "{}")]
    arguments: String,
    #[command(flatten)]
    at: VhostOption,
}

impl Binding {
    fn path(&self) -> [&str; 6] {
        let kind = if self.to_exchange { "e" } else { "q" };
        [
            "bindings",
            &self.at.vhost,
            "e",
            &self.source,
            kind,
            &self.destination,
        ]
    }

    fn describe(&self) -> String {
        let kind = if self.to_exchange {
            "exchange"
        } else {
            "queue"
        };
        format!(
            "the binding of {kind} '{}' to exchange '{}' with routing key '{}' in vhost '{}'",
            self.destination, self.source, self.routing_key, self.at.vhost
        )
    }
}

pub(crate) fn perform(client: &Client, output: &Output, command: &Command) -> Result<(), Failure> {
    let result = match command {
        Command::DeclareExchange {
            name,
            kind,
            arguments,
            at,
        } => {
            let arguments = object("--arguments", arguments)?;
            let body = json!({"type": kind, "durable": true, "arguments": arguments});
            let response = client.put(&["exchanges", &at.vhost, name], &body)?;
            match response.status {
                201 => format!("Declared {kind} exchange '{name}' in vhost '{}'", at.vhost),
                _ => format!(
                    "Exchange '{name}' in vhost '{}' already exists with the same arguments",
                    at.vhost
                ),
            }
        }
        Command::DeleteExchange {
            name,
            if_unused,
            at,
        } => {
            let query = if *if_unused { "?if-unused=true" } else { "" };
            client.delete(&["exchanges", &at.vhost, name], query)?;
            format!("Deleted exchange '{name}' in vhost '{}'", at.vhost)
        }
        Command::Bind(binding) => {
            let arguments = object("--arguments", &binding.arguments)?;
            let body = json!({"routing_key": binding.routing_key, "arguments": arguments});
            client.post_for(&binding.path(), &body)?;
            format!("Created {}", binding.describe())
        }
        Command::Unbind(binding) => {
            unbind(client, binding)?;
            format!("Deleted {}", binding.describe())
        }
    };
    output.say(&result);
    Ok(())
}

/// The API identifies a binding by a key that it derives from the routing key and the arguments.
fn unbind(client: &Client, binding: &Binding) -> Result<(), Failure> {
    let arguments = Json::Object(object("--arguments", &binding.arguments)?);
    let path = binding.path();
    let bindings = client.get(&path)?;
    let mut bindings = bindings.as_array().into_iter().flatten();
    let found = bindings
        .find(|b| b["routing_key"] == binding.routing_key.as_str() && b["arguments"] == arguments);
    let key = found.and_then(|b| b["properties_key"].as_str());
    let Some(key) = key else {
        return Err(Failure::Unfulfilled {
            message: format!("{} does not exist", binding.describe()),
            remedy: "`list_bindings` shows the existing bindings with their arguments.",
        });
    };
    client.delete(&[&path[..], &[key]].concat(), "")
}
