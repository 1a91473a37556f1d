//! Commands that only list objects.

use super::client::Client;
use super::failure::Failure;
use super::output::{Column, Output};
use serde_json::{Value as Json, json};

/// The path of a list, optionally of one vhost.
fn of<'a>(what: &'a str, vhost: Option<&'a str>) -> Vec<&'a str> {
    [what].into_iter().chain(vhost).collect()
}

pub(crate) fn log_levels(client: &Client, output: &Output) -> Result<(), Failure> {
    let node = super::changes::local_node(client)?;
    let levels = client.get(&["nodes", &node, "log-levels"])?;
    let all = levels.as_object().into_iter().flatten();
    let shown = all.map(|(category, level)| json!({"category": category, "level": level}));
    let columns: &[Column] = &[("category", &["category"]), ("level", &["level"])];
    output.list(&Json::Array(shown.collect()), columns)
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
    output.chosen(&client.get(&of("queues", vhost))?, chosen, columns)
}

pub(crate) fn exchanges(
    client: &Client,
    output: &Output,
    vhost: Option<&str>,
    chosen: &[String],
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
    output.chosen(&client.get(&of("exchanges", vhost))?, chosen, columns)
}

/// Columns of `rabbitmqctl list_bindings` and their names in the API.
const BINDING_COLUMNS: [(&str, &str); 4] = [
    ("source_name", "source"),
    ("source_kind", "source_kind"),
    ("destination_name", "destination"),
    ("destination_kind", "destination_type"),
];

pub(crate) fn bindings(
    client: &Client,
    output: &Output,
    vhost: Option<&str>,
    chosen: &[String],
) -> Result<(), Failure> {
    let columns: &[Column] = &[
        ("vhost", &["vhost"]),
        ("source", &["source"]),
        ("destination", &["destination"]),
        ("kind", &["destination_type"]),
        ("routing_key", &["routing_key"]),
        ("arguments", &["arguments"]),
    ];
    let mut bindings = client.get(&of("bindings", vhost))?;
    for binding in bindings.as_array_mut().into_iter().flatten() {
        for (name, of_api) in BINDING_COLUMNS {
            if chosen.iter().any(|column| column == name) {
                binding[name] = match name {
                    "source_kind" => json!("exchange"),
                    _ => binding[of_api].clone(),
                };
            }
        }
    }
    output.chosen(&bindings, chosen, columns)
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
    output.list(&Json::Array(all), columns)
}

pub(crate) fn vhosts(client: &Client, output: &Output, chosen: &[String]) -> Result<(), Failure> {
    let columns: &[Column] = &[
        ("name", &["name"]),
        ("description", &["description"]),
        ("tags", &["tags"]),
    ];
    output.chosen(&client.get(&["vhosts"])?, chosen, columns)
}

pub(crate) const NODES: &[Column] = &[
    ("name", &["name"]),
    ("running", &["running"]),
    ("version", &["product_version"]),
    ("voter", &["voter"]),
    ("maintenance", &["being_drained"]),
    ("memory_alarm", &["mem_alarm"]),
    ("disk_alarm", &["disk_free_alarm"]),
    ("zone", &["zone"]),
    ("address", &["address"]),
];

pub(crate) const LISTENERS: &[Column] = &[
    ("node", &["node"]),
    ("protocol", &["protocol"]),
    ("port", &["port"]),
];

pub(crate) fn nodes(client: &Client, output: &Output) -> Result<(), Failure> {
    output.list(&client.get(&["nodes"])?, NODES)
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
    output.list(&users, columns)
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
    output.list(&list, columns)
}
