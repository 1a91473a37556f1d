//! Administrative commands: limits, topic permissions, parameters, feature flags, definitions.

use super::client::Client;
use super::failure::Failure;
use super::output::{Column, Output};
use super::{ColumnSelection, VhostFilter, VhostOption, lists, object};
use metadata::{USER_LIMITS, VHOST_LIMITS};
use serde_json::{Map, Value as Json, json};
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Subcommand)]
#[command(rename_all = "snake_case")]
pub(crate) enum Administration {
    /// List channels
    ListChannels(ColumnSelection),
    /// List consumers with their queues
    ListConsumers(VhostFilter),
    /// List the listeners of this node
    Listeners,
    /// List feature flags with their state
    ListFeatureFlags,
    /// List deprecated features of RabbitMQ, and whether this node permits them
    ListDeprecatedFeatures {
        /// List only features that are in use
        #[arg(long)]
        used: bool,
    },
    /// Enable a feature flag, or all
    EnableFeatureFlag { name: String },
    /// Set the name of the cluster
    SetClusterName { name: String },
    /// List the limits of all virtual hosts or of one
    ListVhostLimits(VhostFilter),
    /// Set limits of a virtual host: '{"max-connections": 100, "max-message-rate": 5000}'
    SetVhostLimits {
        limits: String,
        #[command(flatten)]
        at: VhostOption,
    },
    /// Clear the limits of a virtual host
    ClearVhostLimits {
        #[command(flatten)]
        at: VhostOption,
    },
    /// List the limits of all users
    ListUserLimits,
    /// Set limits of a user: '{"max-connections": 10, "max-byte-rate": 1000000}'
    SetUserLimits { user: String, limits: String },
    /// Clear one limit of a user, or `all`
    ClearUserLimits { user: String, limit: String },
    /// Set the topic permissions of a user for publishing and binding, as regular expressions on routing keys
    SetTopicPermissions {
        user: String,
        exchange: String,
        write: String,
        read: String,
        #[command(flatten)]
        at: VhostOption,
    },
    /// Clear the topic permissions of a user, for one exchange or all
    ClearTopicPermissions {
        user: String,
        exchange: Option<String>,
        #[command(flatten)]
        at: VhostOption,
    },
    /// List the topic permissions of all users
    ListTopicPermissions,
    /// List the permissions of a user
    ListUserPermissions { user: String },
    /// List global parameters
    ListGlobalParameters,
    /// Set a global parameter to a JSON value
    SetGlobalParameter { name: String, value: String },
    /// Delete a global parameter
    ClearGlobalParameter { name: String },
    /// Check whether a user can log in with a password
    AuthenticateUser { name: String, user_password: String },
    /// Export all definitions to a file, or to standard output
    ExportDefinitions { file: Option<PathBuf> },
    /// Import definitions from a file
    ImportDefinitions { file: PathBuf },
}

pub(crate) fn perform(
    client: &Client,
    output: &Output,
    command: &Administration,
) -> Result<(), Failure> {
    use Administration::*;
    match command {
        ListChannels(_)
        | ListConsumers(_)
        | Listeners
        | ListFeatureFlags
        | ListDeprecatedFeatures { .. }
        | ListVhostLimits(_)
        | ListUserLimits
        | ListTopicPermissions
        | ListUserPermissions { .. }
        | ListGlobalParameters => list(client, output, command),
        ExportDefinitions { file } => export(client, output, file.as_deref()),
        change => {
            let message = apply_change(client, change)?;
            output.say(&message);
            Ok(())
        }
    }
}

const PERMISSIONS: &[Column] = &[
    ("user", &["user"]),
    ("vhost", &["vhost"]),
    ("configure", &["configure"]),
    ("write", &["write"]),
    ("read", &["read"]),
];

fn list(client: &Client, output: &Output, command: &Administration) -> Result<(), Failure> {
    use Administration::*;
    let (items, columns): (Json, &[Column]) = match command {
        ListChannels(_) => (
            client.get(&["channels"])?,
            &[
                ("name", &["name"]),
                ("node", &["node"]),
                ("user", &["user"]),
                ("vhost", &["vhost"]),
                ("consumers", &["consumer_count"]),
                ("unacked", &["messages_unacknowledged"]),
                ("unconfirmed", &["messages_unconfirmed"]),
                ("prefetch", &["prefetch_count"]),
                ("confirm", &["confirm"]),
            ],
        ),
        ListConsumers(vhost_filter) => {
            let elements = ["consumers"]
                .into_iter()
                .chain(vhost_filter.vhost.as_deref());
            (
                client.get(&elements.collect::<Vec<_>>())?,
                &[
                    ("vhost", &["queue", "vhost"]),
                    ("queue", &["queue", "name"]),
                    ("channel", &["channel_details", "name"]),
                    ("tag", &["consumer_tag"]),
                    ("ack", &["ack_required"]),
                    ("prefetch", &["prefetch_count"]),
                    ("active", &["active"]),
                    ("arguments", &["arguments"]),
                ],
            )
        }
        Listeners => (
            client.get(&["overview"])?["listeners"].clone(),
            lists::LISTENERS,
        ),
        ListFeatureFlags => (
            client.get(&["feature-flags"])?,
            &[
                ("name", &["name"]),
                ("state", &["state"]),
                ("not supported by", &["not_known_by"]),
                ("description", &["desc"]),
            ],
        ),
        ListDeprecatedFeatures { used } => {
            let path: &[&str] = match used {
                true => &["deprecated-features", "used"],
                false => &["deprecated-features"],
            };
            (
                client.get(path)?,
                &[
                    ("name", &["name"]),
                    ("deprecation phase", &["deprecation_phase"]),
                    ("state", &["state"]),
                    ("description", &["desc"]),
                ],
            )
        }
        ListVhostLimits(vhost_filter) => {
            let elements = ["vhost-limits"]
                .into_iter()
                .chain(vhost_filter.vhost.as_deref());
            (
                client.get(&elements.collect::<Vec<_>>())?,
                &[("vhost", &["vhost"]), ("limits", &["value"])],
            )
        }
        ListUserLimits => (
            client.get(&["user-limits"])?,
            &[("user", &["user"]), ("limits", &["value"])],
        ),
        ListTopicPermissions => (
            client.get(&["topic-permissions"])?,
            &[
                ("user", &["user"]),
                ("vhost", &["vhost"]),
                ("exchange", &["exchange"]),
                ("write", &["write"]),
                ("read", &["read"]),
            ],
        ),
        ListUserPermissions { user } => (client.get(&["users", user, "permissions"])?, PERMISSIONS),
        _ => (
            client.get(&["global-parameters"])?,
            &[("name", &["name"]), ("value", &["value"])],
        ),
    };
    let columns_by_name = match command {
        ListChannels(columns_by_name) => columns_by_name.columns.as_slice(),
        _ => &[],
    };
    output.chosen(&items, columns_by_name, columns)
}

fn apply_change(client: &Client, command: &Administration) -> Result<String, Failure> {
    use Administration::*;
    match command {
        EnableFeatureFlag { name } => {
            client.put(&["feature-flags", name, "enable"], &json!({}))?;
            Ok(format!("Enabled feature flag '{name}'"))
        }
        SetClusterName { name } => {
            client.put(&["cluster-name"], &json!({"name": name}))?;
            Ok(format!("Set the cluster name to '{name}'"))
        }
        SetVhostLimits { .. }
        | ClearVhostLimits { .. }
        | SetUserLimits { .. }
        | ClearUserLimits { .. } => limit(client, command),
        SetTopicPermissions {
            user,
            exchange,
            write,
            read,
            at,
        } => {
            let body = json!({"exchange": exchange, "write": write, "read": read});
            client.put(&["topic-permissions", &at.vhost, user], &body)?;
            Ok(format!(
                "Set the topic permissions of user '{user}' for exchange '{exchange}' in vhost '{}'",
                at.vhost
            ))
        }
        ClearTopicPermissions { user, exchange, at } => {
            let elements = ["topic-permissions", &at.vhost, user].into_iter();
            let elements: Vec<&str> = elements.chain(exchange.as_deref()).collect();
            client.clear(&elements, &[["users", user], ["vhosts", &at.vhost]])?;
            Ok(format!(
                "Cleared the topic permissions of user '{user}' in vhost '{}'",
                at.vhost
            ))
        }
        SetGlobalParameter { name, value } => {
            let value: Json = serde_json::from_str(value)
                .map_err(|e| Failure::Usage(format!("the value is not JSON ({e}): {value}")))?;
            client.put(&["global-parameters", name], &json!({"value": value}))?;
            Ok(format!("Set global parameter '{name}'"))
        }
        ClearGlobalParameter { name } => {
            client.delete(&["global-parameters", name], "")?;
            Ok(format!("Cleared global parameter '{name}'"))
        }
        AuthenticateUser {
            name,
            user_password,
        } => {
            client.as_user(name, user_password)?.get(&["whoami"])?;
            Ok(format!("User '{name}' can log in with this password"))
        }
        ImportDefinitions { file } => {
            let text = std::fs::read_to_string(file);
            let text = text.map_err(|e| file_error("read", file, &e))?;
            let document = Json::Object(object(&file.display().to_string(), &text)?);
            client.post_for(&["definitions"], &document)?;
            Ok(format!("Imported {}", file.display()))
        }
        // The other commands are handled by `list`.
        other => Err(Failure::Usage(format!("unhandled command {other:?}"))),
    }
}

fn limit(client: &Client, command: &Administration) -> Result<String, Failure> {
    use Administration::*;
    let set = |kind: &str, vhost_filter: &str, limits: &Map<String, Json>| {
        limits.iter().try_for_each(|(limit, value)| {
            let body = json!({"value": value});
            client.put(&[kind, vhost_filter, limit], &body).map(|_| ())
        })
    };
    match command {
        SetVhostLimits { limits, at } => {
            set("vhost-limits", &at.vhost, &object("the limits", limits)?)?;
            Ok(format!("Set limits of vhost '{}'", at.vhost))
        }
        ClearVhostLimits { at } => {
            for limit in VHOST_LIMITS {
                client.delete(&["vhost-limits", &at.vhost, limit], "")?;
            }
            Ok(format!("Cleared the limits of vhost '{}'", at.vhost))
        }
        SetUserLimits { user, limits } => {
            set("user-limits", user, &object("the limits", limits)?)?;
            Ok(format!("Set limits of user '{user}'"))
        }
        ClearUserLimits { user, limit } => {
            let all = USER_LIMITS.iter();
            for known in all.filter(|known| limit == "all" || limit == **known) {
                client.delete(&["user-limits", user, known], "")?;
            }
            Ok(format!("Cleared limits of user '{user}': {limit}"))
        }
        other => Err(Failure::Usage(format!("unhandled command {other:?}"))),
    }
}

fn file_error(action: &str, file: &Path, error: &std::io::Error) -> Failure {
    Failure::Usage(format!("cannot {action} {}: {error}", file.display()))
}

fn export(client: &Client, output: &Output, file: Option<&Path>) -> Result<(), Failure> {
    let document = client.get(&["definitions"])?;
    let text = serde_json::to_string_pretty(&document).unwrap_or_default();
    match file.filter(|f| *f != Path::new("-")) {
        None => output.text(&text),
        Some(file) => {
            std::fs::write(file, text).map_err(|e| file_error("write", file, &e))?;
            output.say(&format!("Wrote definitions to {}", file.display()));
        }
    }
    Ok(())
}
