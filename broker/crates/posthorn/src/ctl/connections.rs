//! Lists and closes client connections.

use super::client::Client;
use super::failure::Failure;
use super::output::{Column, Output};
use super::{ColumnSelection, VhostOption, erlang};
use serde_json::Value as Json;
use std::time::Duration;

#[derive(Debug, clap::Subcommand)]
#[command(rename_all = "snake_case")]
pub(crate) enum Command {
    /// List client connections
    ListConnections(ColumnSelection),
    /// Close one connection
    CloseConnection {
        /// Name as shown by list_connections
        name: String,
        /// Reason given to the client
        #[arg(default_value = "closed by an operator")]
        explanation: String,
        /// Reason given to the client, as an option
        #[arg(long, conflicts_with = "explanation")]
        reason: Option<String>,
    },
    /// Close the connections of a vhost, or of all vhosts
    CloseAllConnections {
        #[command(flatten)]
        at: VhostOption,
        /// Close the connections of all vhosts
        #[arg(long)]
        global: bool,
        /// Close at most this many; 0 closes all
        #[arg(long, default_value_t = 0)]
        limit: usize,
        /// Milliseconds between two connections
        #[arg(long = "per-connection-delay", default_value_t = 0)]
        per_connection_delay: u64,
        /// Reason given to the clients
        explanation: String,
    },
    /// Close the connections of a user
    CloseAllUserConnections {
        user: String,
        /// Reason given to the clients
        reason: String,
    },
}

pub(crate) fn perform(client: &Client, output: &Output, command: &Command) -> Result<(), Failure> {
    let result = match command {
        Command::ListConnections(chosen) => return list(client, output, &chosen.columns),
        Command::CloseConnection {
            name,
            explanation,
            reason,
        } => {
            close(client, name, reason.as_ref().unwrap_or(explanation))?;
            format!("Closed connection '{name}'")
        }
        Command::CloseAllConnections {
            at,
            global,
            limit,
            per_connection_delay,
            explanation,
        } => {
            let vhost = (!global).then_some(at.vhost.as_str());
            let names = names(client, vhost)?;
            let limit = if *limit == 0 { names.len() } else { *limit };
            let pause = Duration::from_millis(*per_connection_delay);
            let closed = close_each(client, names.iter().take(limit), explanation, pause)?;
            match vhost {
                Some(vhost) => format!("Closed {closed} connections to vhost '{vhost}'"),
                None => format!("Closed {closed} connections"),
            }
        }
        Command::CloseAllUserConnections { user, reason } => {
            let reason = [("X-Reason", reason.as_str())];
            client.delete_with(&["connections", "username", user], "", &reason)?;
            format!("Closed all connections of user '{user}'")
        }
    };
    output.say(&result);
    Ok(())
}

fn close(client: &Client, name: &str, reason: &str) -> Result<(), Failure> {
    client.delete_with(&["connections", name], "", &[("X-Reason", reason)])
}

/// Names of the connections to one vhost, or to all vhosts.
fn names(client: &Client, vhost: Option<&str>) -> Result<Vec<String>, Failure> {
    let connections = match vhost {
        Some(vhost) => client.get(&["vhosts", vhost, "connections"])?,
        None => client.get(&["connections"])?,
    };
    let connections = connections.as_array().into_iter().flatten();
    let names = connections.filter_map(|c| c["name"].as_str());
    Ok(names.map(str::to_owned).collect())
}

/// Returns the number of closed connections. Connections that ended meanwhile are not failures.
fn close_each<'a>(
    client: &Client,
    names: impl Iterator<Item = &'a String>,
    reason: &str,
    pause: Duration,
) -> Result<usize, Failure> {
    let mut closed = 0;
    for name in names {
        if closed > 0 && !pause.is_zero() {
            client.pause(pause);
        }
        match close(client, name, reason) {
            Ok(()) => closed += 1,
            Err(Failure::Refused { status: 404, .. }) => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(closed)
}

fn list(client: &Client, output: &Output, chosen: &[String]) -> Result<(), Failure> {
    let columns: &[Column] = &[
        ("name", &["name"]),
        ("node", &["node"]),
        ("user", &["user"]),
        ("vhost", &["vhost"]),
        ("protocol", &["protocol"]),
        ("state", &["state"]),
        ("channels", &["channels"]),
        ("client", &["user_provided_name"]),
    ];
    let mut connections = client.get(&["connections"])?;
    for connection in connections.as_array_mut().into_iter().flatten() {
        // rabbitmqctl identifies a connection by its Erlang process; `close_connection` takes its
        // name.
        if chosen.iter().any(|column| column == "pid") {
            connection["pid"] = connection["name"].clone();
        }
        // Scripts for rabbitmqctl search the table for `{"connection_name","..."}`.
        if output.is_table() {
            let properties = connection["client_properties"].take();
            connection["client_properties"] = Json::String(erlang::table(&properties));
        }
    }
    output.chosen(&connections, chosen, columns)
}
