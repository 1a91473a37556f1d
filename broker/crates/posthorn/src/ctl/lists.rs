//! Commands that only list objects.

use super::client::{Client, Failure};
use super::output::{Column, Output};
use serde_json::{Value as Json, json};

/// The path of a list, optionally of one vhost.
fn of<'a>(what: &'a str, vhost: Option<&'a str>) -> Vec<&'a str> {
    [what].into_iter().chain(vhost).collect()
}

pub(crate) fn status(client: &Client, output: &Output) -> Result<(), Failure> {
    let overview = client.get(&["overview"])?;
    let columns: &[Column] = &[
        ("node", &["node"]),
        ("cluster", &["cluster_name"]),
        ("version", &["product_version"]),
        ("queues", &["object_totals", "queues"]),
        ("connections", &["object_totals", "connections"]),
        ("messages", &["queue_totals", "messages"]),
    ];
    output.list(&Json::Array(vec![overview]), columns);
    Ok(())
}

pub(crate) fn log_levels(client: &Client, output: &Output) -> Result<(), Failure> {
    let node = super::changes::local_node(client)?;
    let levels = client.get(&["nodes", &node, "log-levels"])?;
    let all = levels.as_object().into_iter().flatten();
    let shown = all.map(|(category, level)| json!({"category": category, "level": level}));
    let columns: &[Column] = &[("category", &["category"]), ("level", &["level"])];
    output.list(&Json::Array(shown.collect()), columns);
    Ok(())
}

pub(crate) fn queues(
    client: &Client,
    output: &Output,
    vhost: Option<&str>,
    chosen: &[String],
) -> Result<(), Failure> {
    let columns: &[Column] = &[
        ("vhost", &["vhost"]),
        ("name", &["name"]),
        ("type", &["type"]),
        ("state", &["state"]),
        ("ready", &["messages_ready"]),
        ("unacked", &["messages_unacknowledged"]),
        ("consumers", &["consumers"]),
        ("leader", &["leader"]),
        ("members", &["members"]),
        ("online", &["online"]),
        ("policy", &["policy"]),
    ];
    output.chosen(&client.get(&of("queues", vhost))?, chosen, columns);
    Ok(())
}

pub(crate) fn exchanges(
    client: &Client,
    output: &Output,
    vhost: Option<&str>,
) -> Result<(), Failure> {
    let columns: &[Column] = &[
        ("vhost", &["vhost"]),
        ("name", &["name"]),
        ("type", &["type"]),
        ("durable", &["durable"]),
        ("auto_delete", &["auto_delete"]),
        ("internal", &["internal"]),
        ("policy", &["policy"]),
    ];
    output.list(&client.get(&of("exchanges", vhost))?, columns);
    Ok(())
}

pub(crate) fn bindings(
    client: &Client,
    output: &Output,
    vhost: Option<&str>,
) -> Result<(), Failure> {
    let columns: &[Column] = &[
        ("vhost", &["vhost"]),
        ("source", &["source"]),
        ("destination", &["destination"]),
        ("kind", &["destination_type"]),
        ("routing_key", &["routing_key"]),
        ("arguments", &["arguments"]),
    ];
    output.list(&client.get(&of("bindings", vhost))?, columns);
    Ok(())
}

pub(crate) fn policies(
    client: &Client,
    output: &Output,
    vhost: Option<&str>,
) -> Result<(), Failure> {
    let mut all = Vec::new();
    for (scope, what) in [("user", "policies"), ("operator", "operator-policies")] {
        let Json::Array(list) = client.get(&of(what, vhost))? else {
            continue;
        };
        for mut policy in list {
            policy["scope"] = json!(scope);
            all.push(policy);
        }
    }
    let columns: &[Column] = &[
        ("vhost", &["vhost"]),
        ("scope", &["scope"]),
        ("name", &["name"]),
        ("pattern", &["pattern"]),
        ("apply_to", &["apply-to"]),
        ("priority", &["priority"]),
        ("definition", &["definition"]),
    ];
    output.list(&Json::Array(all), columns);
    Ok(())
}

pub(crate) fn vhosts(client: &Client, output: &Output) -> Result<(), Failure> {
    let columns: &[Column] = &[
        ("name", &["name"]),
        ("description", &["description"]),
        ("tags", &["tags"]),
    ];
    output.list(&client.get(&["vhosts"])?, columns);
    Ok(())
}

pub(crate) fn nodes(client: &Client, output: &Output) -> Result<(), Failure> {
    let columns: &[Column] = &[
        ("name", &["name"]),
        ("running", &["running"]),
        ("voter", &["voter"]),
        ("maintenance", &["being_drained"]),
        ("memory_alarm", &["mem_alarm"]),
        ("disk_alarm", &["disk_free_alarm"]),
        ("zone", &["zone"]),
        ("address", &["address"]),
    ];
    output.list(&client.get(&["nodes"])?, columns);
    Ok(())
}

pub(crate) fn users(client: &Client, output: &Output) -> Result<(), Failure> {
    let mut users = client.get(&["users"])?;
    for user in users.as_array_mut().into_iter().flatten() {
        // Password hashes are never listed.
        if let Some(fields) = user.as_object_mut() {
            fields.remove("password_hash");
        }
    }
    let columns: &[Column] = &[
        ("name", &["name"]),
        ("tags", &["tags"]),
        ("limits", &["limits"]),
    ];
    output.list(&users, columns);
    Ok(())
}

pub(crate) fn permissions(
    client: &Client,
    output: &Output,
    user: Option<&str>,
) -> Result<(), Failure> {
    let list = match user {
        None => client.get(&["permissions"])?,
        Some(user) => client.get(&["users", user, "permissions"])?,
    };
    let columns: &[Column] = &[
        ("user", &["user"]),
        ("vhost", &["vhost"]),
        ("configure", &["configure"]),
        ("write", &["write"]),
        ("read", &["read"]),
    ];
    output.list(&list, columns);
    Ok(())
}
