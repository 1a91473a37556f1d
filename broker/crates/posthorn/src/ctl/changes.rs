//! Commands that change something. Each returns a sentence that states what it did.

use super::client::Client;
use super::failure::Failure;
use super::{Command, NewPassword, SwitchState, object, warnings};
use serde_json::{Value as Json, json};
use std::io::BufRead as _;

/// Warnings about names that have no effect.
pub(crate) fn warnings(command: &Command) -> Result<Vec<String>, Failure> {
    Ok(match command {
        Command::DeclareQueue {
            kind, arguments, ..
        } => warnings::unknown_arguments(kind, object("--arguments", arguments)?.keys()),
        Command::AddUser { tags, .. } | Command::SetUserTags { tags, .. } => {
            warnings::unknown_tags(tags)
        }
        _ => Vec::new(),
    })
}

type CommandResult = Result<String, Failure>;

pub(crate) fn perform(client: &Client, command: &Command) -> CommandResult {
    match command {
        Command::AddUser { .. }
        | Command::ChangePassword { .. }
        | Command::DeleteUser { .. }
        | Command::SetUserTags { .. }
        | Command::SetPermissions { .. }
        | Command::ClearPermissions { .. } => user(client, command),
        Command::AddVhost {
            name,
            description,
            tags,
            default_queue_type,
        } => {
            let mut body = json!({"description": description});
            if let Some(tags) = tags {
                body["tags"] = json!(tags);
            }
            if let Some(kind) = default_queue_type {
                body["default_queue_type"] = json!(kind);
            }
            let response = client.put(&["vhosts", name], &body)?;
            Ok(format!(
                "{} vhost '{name}'",
                created_or_changed(response.status)
            ))
        }
        Command::TraceOn(at) => trace(client, &at.vhost, true),
        Command::TraceOff(at) => trace(client, &at.vhost, false),
        Command::DeleteVhost { name } => {
            client.delete(&["vhosts", name], "")?;
            Ok(format!("Deleted vhost '{name}' and its contents"))
        }
        Command::SetPolicy { .. } | Command::ClearPolicy { .. } => policy(client, command),
        Command::Maintenance { state } => maintenance(client, *state),
        Command::SetLogLevel { words } => set_log_level(client, words),
        Command::SetMemoryWatermark { fraction } => {
            let node = local_node(client)?;
            let body = json!({"relative": fraction});
            client.put(&["nodes", &node, "memory-watermark"], &body)?;
            Ok(format!(
                "Node '{node}' blocks publishers above {fraction} of its memory"
            ))
        }
        Command::SetDiskFreeLimit { limit } => {
            let bytes = node::config::parse_bytes(limit)
                .ok_or_else(|| Failure::Usage(format!("'{limit}' is not a number of bytes")))?;
            let name = local_node(client)?;
            let body = json!({"absolute": bytes});
            client.put(&["nodes", &name, "disk-free-limit"], &body)?;
            Ok(format!(
                "Node '{name}' blocks publishers below {bytes} bytes of free disk space"
            ))
        }
        queues => queue(client, queues),
    }
}

fn created_or_changed(status: u16) -> &'static str {
    if status == 201 { "Created" } else { "Changed" }
}

fn user(client: &Client, command: &Command) -> CommandResult {
    match command {
        Command::AddUser { name, secret, tags } => {
            if exists(client, name)? {
                return Err(Failure::Usage(format!(
                    "user '{name}' already exists; use change_password or set_user_tags"
                )));
            }
            let body = json!({"password": read(secret)?, "tags": tags});
            client.put(&["users", name], &body)?;
            Ok(format!(
                "Created user '{name}'. It has no permissions yet: set_permissions {name} '.*' '.*' '.*'"
            ))
        }
        Command::ChangePassword { name, secret } => {
            let tags = client.get(&["users", name])?["tags"].clone();
            let body =
                json!({"password": read(secret)?, "tags": tags, "override_protection": true});
            client.put(&["users", name], &body)?;
            Ok(format!("Changed the password of user '{name}'"))
        }
        Command::DeleteUser { name } => {
            client.delete(&["users", name], "?override_protection=true")?;
            Ok(format!("Deleted user '{name}'"))
        }
        Command::SetUserTags { name, tags } => {
            let existing = client.get(&["users", name])?;
            let body = json!({
                "password_hash": existing["password_hash"],
                "hashing_algorithm": existing["hashing_algorithm"],
                "tags": tags,
                "override_protection": true,
            });
            client.put(&["users", name], &body)?;
            Ok(format!("User '{name}' has tags: {}", tags.join(", ")))
        }
        Command::SetPermissions {
            user,
            configure,
            write,
            read,
            at,
        } => {
            let body = json!({"configure": configure, "write": write, "read": read});
            client.put(&["permissions", &at.vhost, user], &body)?;
            Ok(format!(
                "Set the permissions of user '{user}' in vhost '{}'",
                at.vhost
            ))
        }
        Command::ClearPermissions { user, at } => {
            let owners = [["users", user], ["vhosts", &at.vhost]];
            client.clear(&["permissions", &at.vhost, user], &owners)?;
            Ok(format!(
                "Cleared the permissions of user '{user}' in vhost '{}'",
                at.vhost
            ))
        }
        other => unknown(other),
    }
}

/// Unreachable as long as every command is dispatched above.
fn unknown(command: &Command) -> CommandResult {
    Err(Failure::Usage(format!("unhandled command {command:?}")))
}

fn exists(client: &Client, name: &str) -> Result<bool, Failure> {
    match client.get(&["users", name]) {
        Ok(_) => Ok(true),
        Err(Failure::Refused { status: 404, .. }) => Ok(false),
        Err(other) => Err(other),
    }
}

fn read(secret: &NewPassword) -> Result<String, Failure> {
    if let Some(password) = &secret.new_password {
        return Ok(password.clone());
    }
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    read.map_err(|e| Failure::Usage(format!("the password cannot be read: {e}")))?;
    let password = line.trim_end_matches(['\r', '\n']);
    if password.is_empty() {
        return Err(Failure::Usage(
            "no password: give it as an argument or as a line on standard input".to_owned(),
        ));
    }
    Ok(password.to_owned())
}

fn queue(client: &Client, command: &Command) -> CommandResult {
    match command {
        Command::DeclareQueue {
            name,
            at,
            kind,
            arguments,
        } => {
            let mut arguments = object("--arguments", arguments)?;
            arguments.insert("x-queue-type".to_owned(), json!(kind));
            let body = json!({"durable": true, "arguments": arguments});
            let response = client.put(&["queues", &at.vhost, name], &body)?;
            Ok(if response.status == 201 {
                format!("Declared {kind} queue '{name}' in vhost '{}'", at.vhost)
            } else {
                format!(
                    "Queue '{name}' in vhost '{}' already exists with the same arguments",
                    at.vhost
                )
            })
        }
        Command::DeleteQueue {
            name,
            at,
            if_empty,
            if_unused,
        } => {
            let query = match (if_empty, if_unused) {
                (false, false) => "",
                (true, false) => "?if-empty=true",
                (false, true) => "?if-unused=true",
                (true, true) => "?if-empty=true&if-unused=true",
            };
            client.delete(&["queues", &at.vhost, name], query)?;
            Ok(format!("Deleted queue '{name}' in vhost '{}'", at.vhost))
        }
        Command::PurgeQueue { name, at } => {
            client.delete(&["queues", &at.vhost, name, "contents"], "")?;
            Ok(format!("Purged queue '{name}' in vhost '{}'", at.vhost))
        }
        other => unknown(other),
    }
}

fn scope(operator: bool) -> &'static str {
    if operator {
        "operator-policies"
    } else {
        "policies"
    }
}

fn policy(client: &Client, command: &Command) -> CommandResult {
    match command {
        Command::SetPolicy {
            name,
            pattern,
            definition,
            at,
            priority,
            apply_to,
            operator,
        } => {
            let body = json!({
                "pattern": pattern,
                "definition": Json::Object(object("the definition", definition)?),
                "priority": priority,
                "apply-to": apply_to,
            });
            let response = client.put(&[scope(*operator), &at.vhost, name], &body)?;
            let verb = created_or_changed(response.status);
            Ok(format!("{verb} policy '{name}' in vhost '{}'", at.vhost))
        }
        Command::ClearPolicy { name, at, operator } => {
            client.delete(&[scope(*operator), &at.vhost, name], "")?;
            Ok(format!("Deleted policy '{name}' in vhost '{}'", at.vhost))
        }
        other => unknown(other),
    }
}

/// The name of the node that answers requests at this address.
pub(super) fn local_node(client: &Client) -> CommandResult {
    let overview = client.get(&["overview"])?;
    Ok(overview["node"].as_str().unwrap_or_default().to_owned())
}

fn trace(client: &Client, vhost: &str, on: bool) -> CommandResult {
    // A PUT would create a missing vhost.
    client.get(&["vhosts", vhost])?;
    client.put(&["vhosts", vhost], &json!({"tracing": on}))?;
    let word = if on { "is" } else { "is not" };
    Ok(format!("Vhost '{vhost}' {word} traced"))
}

fn set_log_level(client: &Client, words: &[String]) -> CommandResult {
    let (category, level) = match words {
        [category, level] => (Some(category), level),
        [level] => (None, level),
        _ => return Err(Failure::Usage("set_log_level [CATEGORY] LEVEL".to_owned())),
    };
    let node = local_node(client)?;
    let body = json!({"category": category, "level": level});
    client.put(&["nodes", &node, "log-levels"], &body)?;
    let target = category.map_or("everything", String::as_str);
    Ok(format!("Node '{node}' logs {target} at level {level}"))
}

fn maintenance(client: &Client, state: SwitchState) -> CommandResult {
    let node = local_node(client)?;
    let elements = ["nodes", &node, "maintenance"];
    if state == SwitchState::Off {
        client.delete(&elements, "")?;
        return Ok(format!("Node '{node}' accepts clients and leaders again"));
    }
    let progress = client.put(&elements, &json!({}))?.body;
    Ok(match progress["state"].as_str() {
        Some("drained") => format!("Node '{node}' is drained and may be stopped"),
        _ => format!(
            "Node '{node}' is draining: {} leaders still have to move. Repeat the command to see its progress.",
            progress["leaders"]
        ),
    })
}
