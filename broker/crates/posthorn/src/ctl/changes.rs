//! Operations that change something. Each gives a sentence that says what it did.

use super::client::{Client, Failure};
use super::{Command, NewPassword, OnOff, object};
use serde_json::{Value as Json, json};
use std::io::BufRead as _;

type Said = Result<String, Failure>;

pub(crate) fn perform(client: &Client, command: &Command) -> Said {
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
            let answered = client.put(&["vhosts", name], &body)?;
            Ok(format!("{} vhost '{name}'", made(answered.status)))
        }
        Command::TraceOn(at) => trace(client, &at.vhost, true),
        Command::TraceOff(at) => trace(client, &at.vhost, false),
        Command::DeleteVhost { name } => {
            client.delete(&["vhosts", name], "")?;
            Ok(format!("Deleted vhost '{name}' and all that was in it"))
        }
        Command::SetPolicy { .. } | Command::ClearPolicy { .. } => policy(client, command),
        Command::Maintenance { state } => maintenance(client, *state),
        Command::SetLogLevel { words } => set_log_level(client, words),
        Command::SetMemoryWatermark { fraction } => {
            let node = answering(client)?;
            let body = json!({"relative": fraction});
            client.put(&["nodes", &node, "memory-watermark"], &body)?;
            Ok(format!(
                "Node '{node}' stops publishers from {fraction} of its memory on"
            ))
        }
        Command::SetDiskFreeLimit { limit } => {
            let bytes = node::config::parse_bytes(limit)
                .ok_or_else(|| Failure::Usage(format!("'{limit}' is no number of bytes")))?;
            let name = answering(client)?;
            let body = json!({"absolute": bytes});
            client.put(&["nodes", &name, "disk-free-limit"], &body)?;
            Ok(format!(
                "Node '{name}' stops publishers when less than {bytes} bytes of disk space are free"
            ))
        }
        queues => queue(client, queues),
    }
}

fn made(status: u16) -> &'static str {
    if status == 201 { "Made" } else { "Changed" }
}

fn user(client: &Client, command: &Command) -> Said {
    match command {
        Command::AddUser { name, secret, tags } => {
            if exists(client, name)? {
                return Err(Failure::Usage(format!(
                    "user '{name}' is there already; change_password and set_user_tags change it"
                )));
            }
            let body = json!({"password": read(secret)?, "tags": tags});
            client.put(&["users", name], &body)?;
            Ok(format!(
                "Made user '{name}'. It has no rights yet: set_permissions {name} '.*' '.*' '.*'"
            ))
        }
        Command::ChangePassword { name, secret } => {
            let tags = client.get(&["users", name])?["tags"].clone();
            let body = json!({"password": read(secret)?, "tags": tags});
            client.put(&["users", name], &body)?;
            Ok(format!("Changed the password of user '{name}'"))
        }
        Command::DeleteUser { name } => {
            client.delete(&["users", name], "")?;
            Ok(format!("Deleted user '{name}'"))
        }
        Command::SetUserTags { name, tags } => {
            let before = client.get(&["users", name])?;
            let body = json!({
                "password_hash": before["password_hash"],
                "hashing_algorithm": before["hashing_algorithm"],
                "tags": tags,
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
                "Set the rights of user '{user}' in vhost '{}'",
                at.vhost
            ))
        }
        Command::ClearPermissions { user, at } => {
            let of = [["users", user], ["vhosts", &at.vhost]];
            client.clear(&["permissions", &at.vhost, user], &of)?;
            Ok(format!(
                "User '{user}' has no rights in vhost '{}' any more",
                at.vhost
            ))
        }
        other => unknown(other),
    }
}

/// Commands are shared out above; this is where one would land that nobody took.
fn unknown(command: &Command) -> Said {
    Err(Failure::Usage(format!("nothing does {command:?}")))
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
    let got = std::io::stdin().lock().read_line(&mut line);
    got.map_err(|e| Failure::Usage(format!("the password cannot be read: {e}")))?;
    let password = line.trim_end_matches(['\r', '\n']);
    if password.is_empty() {
        return Err(Failure::Usage(
            "no password: give it as an argument or as a line on standard input".to_owned(),
        ));
    }
    Ok(password.to_owned())
}

fn queue(client: &Client, command: &Command) -> Said {
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
            let answered = client.put(&["queues", &at.vhost, name], &body)?;
            Ok(if answered.status == 201 {
                format!("Made {kind} queue '{name}' in vhost '{}'", at.vhost)
            } else {
                format!(
                    "Queue '{name}' in vhost '{}' was there, and the same",
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

fn policy(client: &Client, command: &Command) -> Said {
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
            let answered = client.put(&[scope(*operator), &at.vhost, name], &body)?;
            let made = made(answered.status);
            Ok(format!("{made} policy '{name}' in vhost '{}'", at.vhost))
        }
        Command::ClearPolicy { name, at, operator } => {
            client.delete(&[scope(*operator), &at.vhost, name], "")?;
            Ok(format!("Deleted policy '{name}' in vhost '{}'", at.vhost))
        }
        other => unknown(other),
    }
}

/// The name of the node that answers: some things are asked of the node itself.
pub(super) fn answering(client: &Client) -> Said {
    let overview = client.get(&["overview"])?;
    Ok(overview["node"].as_str().unwrap_or_default().to_owned())
}

fn trace(client: &Client, vhost: &str, on: bool) -> Said {
    // A PUT would make a vhost that is not there.
    client.get(&["vhosts", vhost])?;
    client.put(&["vhosts", vhost], &json!({"tracing": on}))?;
    let word = if on { "is" } else { "is not" };
    Ok(format!("Virtual host '{vhost}' {word} traced"))
}

fn set_log_level(client: &Client, words: &[String]) -> Said {
    let (category, level) = match words {
        [category, level] => (Some(category), level),
        [level] => (None, level),
        _ => return Err(Failure::Usage("set_log_level [CATEGORY] LEVEL".to_owned())),
    };
    let node = answering(client)?;
    let body = json!({"category": category, "level": level});
    client.put(&["nodes", &node, "log-levels"], &body)?;
    let what = category.map_or("everything", String::as_str);
    Ok(format!("Node '{node}' logs {what} at level {level}"))
}

fn maintenance(client: &Client, state: OnOff) -> Said {
    let node = answering(client)?;
    let elements = ["nodes", &node, "maintenance"];
    if state == OnOff::Off {
        client.delete(&elements, "")?;
        return Ok(format!("Node '{node}' takes clients and leaders again"));
    }
    let progress = client.put(&elements, &json!({}))?.body;
    Ok(match progress["state"].as_str() {
        Some("drained") => format!("Node '{node}' is drained and may be stopped"),
        _ => format!(
            "Node '{node}' is draining: {} leaders to move. Ask again to see how far it is.",
            progress["leaders"]
        ),
    })
}
