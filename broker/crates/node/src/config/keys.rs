//! The table of keys: name, accepted values, default and meaning. The reference is generated from
//! it.

use super::backend_keys::BACKEND_KEYS;
use super::budget_keys::BUDGET_KEYS;
use super::interceptor_keys::INTERCEPTOR_KEYS;
use super::ldap_keys::LDAP_KEYS;
use super::live::is_live;
use super::mqtt_keys::MQTT_KEYS;
use super::opentelemetry_keys::OPENTELEMETRY_KEYS;
use super::restriction_keys::RESTRICTION_KEYS;
use super::stream_keys::STREAM_KEYS;
use super::tiered_keys::TIERED_KEYS;
use super::tls_keys::TLS_KEYS;
use super::values::{Listen, PeerAddress, parse_bool, parse_bytes, parse_ms};
use super::web_keys::{WEB_AMQP_KEYS, WEB_MQTT_KEYS};
use super::{AuditTarget, AuthFiles, Config, ShardSetting};
use metadata::QueueType;
use std::fmt::Write;
use std::path::PathBuf;

/// One key. A name that ends with `.*` matches every key with that prefix.
pub struct ConfigKey {
    /// The name in the file.
    pub name: &'static str,
    /// Accepted values, for errors and the reference.
    pub accepts: &'static str,
    /// The default as written in a file; empty if there is none.
    pub default: &'static str,
    /// The description, for the reference.
    pub doc: &'static str,
    /// Sets a value. Arguments: the configuration, the part of the key matched by `*`, and the
    /// value. None: the value is invalid.
    pub(super) set: fn(&mut Config, &str, &str) -> Option<()>,
}

pub(super) const LISTEN: &str =
    "PORT (all interfaces), IP:PORT, localhost:PORT or none; port 0 is any free one";
const BYTES: &str = "bytes, or a number with kB, MB, GB, KiB, MiB or GiB";
pub(super) const BOOL: &str = "true or false";
pub(super) const PATH: &str = "a path";

pub(super) fn number<T: std::str::FromStr + PartialOrd>(text: &str, min: T, max: T) -> Option<T> {
    text.parse().ok().filter(|n| *n >= min && *n <= max)
}

/// Names are used in listings, addresses and file names.
fn name(text: &str) -> Option<String> {
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '@');
    (!text.is_empty() && text.len() <= 255 && text.chars().all(known)).then(|| text.to_owned())
}

pub(super) fn filled(text: &str) -> Option<String> {
    (!text.is_empty() && text.len() <= 255).then(|| text.to_owned())
}

/// Clients split the version at dots and parse each part as a number.
fn is_version(text: &str) -> bool {
    let is_number = |part: &str| part.parse::<u16>().is_ok_and(|n| n.to_string() == part);
    text.split('.').count() == 3 && text.split('.').all(is_number)
}

fn auth(config: &mut Config) -> &mut AuthFiles {
    config.cluster.auth.get_or_insert_default()
}

pub(super) fn path(text: &str) -> Option<PathBuf> {
    (!text.is_empty()).then(|| PathBuf::from(text))
}

fn peers(text: &str) -> Option<Vec<PeerAddress>> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    text.split(',')
        .map(|p| PeerAddress::parse(p.trim()))
        .collect()
}

/// All keys, in the order of the reference.
pub fn keys() -> impl Iterator<Item = &'static ConfigKey> {
    let web = WEB_MQTT_KEYS.iter().chain(WEB_AMQP_KEYS);
    let all = KEYS.iter().chain(RESTRICTION_KEYS).chain(INTERCEPTOR_KEYS);
    all.chain(BUDGET_KEYS)
        .chain(TLS_KEYS)
        .chain(BACKEND_KEYS)
        .chain(LDAP_KEYS)
        .chain(MQTT_KEYS)
        .chain(web)
        .chain(STREAM_KEYS)
        .chain(TIERED_KEYS)
        .chain(OPENTELEMETRY_KEYS)
}

const KEYS: &[ConfigKey] = &[
    ConfigKey {
        name: "listeners.tcp.default",
        accepts: LISTEN,
        default: "127.0.0.1:5672",
        doc: "AMQP listener without TLS.",
        set: |c, _, v| Listen::parse(v).map(|l| c.amqp = l),
    },
    ConfigKey {
        name: "management.tcp.port",
        accepts: LISTEN,
        default: "127.0.0.1:15672",
        doc: "Listener of the HTTP API and the web UI, which also answers `/livez` and `/readyz`.",
        set: |c, _, v| Listen::parse(v).map(|l| c.management = l),
    },
    ConfigKey {
        name: "prometheus.tcp.port",
        accepts: LISTEN,
        default: "127.0.0.1:15692",
        doc: "Listener of the metrics.",
        set: |c, _, v| Listen::parse(v).map(|l| c.prometheus = l),
    },
    ConfigKey {
        name: "probes.tcp.port",
        accepts: LISTEN,
        default: "127.0.0.1:15693",
        doc: "Listener of `/livez` and `/readyz` only, without TLS or password, which answers \
              even while the HTTP API has no free connection.",
        set: |c, _, v| Listen::parse(v).map(|l| c.probes = l),
    },
    ConfigKey {
        name: "data_dir",
        accepts: PATH,
        default: "posthorn-data",
        doc: "Directory of all data of the node; `--data-dir` takes precedence.",
        set: |c, _, v| path(v).map(|p| c.data_dir = p),
    },
    ConfigKey {
        name: "default_user",
        accepts: "a name of 1 to 255 bytes",
        default: "guest",
        doc: "First user, an administrator, which the node creates only when it forms the cluster.",
        set: |c, _, v| filled(v).map(|n| c.default_user = n),
    },
    ConfigKey {
        name: "default_pass",
        accepts: "a password of 1 to 255 bytes",
        default: "guest",
        doc: "Password of the first user.",
        set: |c, _, v| filled(v).map(|n| c.default_pass = n),
    },
    ConfigKey {
        name: "default_vhost",
        accepts: "a name of 1 to 255 bytes",
        default: "/",
        doc: "Virtual host of clients whose protocol cannot name one.",
        set: |c, _, v| filled(v).map(|n| c.default_vhost = n),
    },
    ConfigKey {
        name: "server_properties.product",
        accepts: "a name of 1 to 255 bytes",
        default: "RabbitMQ",
        doc: "`product` in the server properties of AMQP 0.9.1, by which clients detect the \
              features of RabbitMQ.",
        set: |c, _, v| filled(v).map(|n| c.product = n),
    },
    ConfigKey {
        name: "server_properties.version",
        accepts: "three numbers with dots, as 4.3.0",
        default: "4.3.0",
        doc: "Version of RabbitMQ in the server properties of AMQP 0.9.1 and 1.0, which some \
              clients evaluate; Celery with kombu 5.7 and classic queues needs 3.13.7 for tasks with ETA \
              or countdown.",
        set: |c, _, v| is_version(v).then(|| c.version = v.to_owned()),
    },
    ConfigKey {
        name: "default_queue_type",
        accepts: "classic or quorum",
        default: "classic",
        doc: "Type of queues declared without `x-queue-type`, for the first virtual host and for \
              those created through this node without a default queue type of their own.",
        set: |c, _, v| {
            let queue_type = QueueType::from_name(v)?;
            c.default_queue_type = Some(queue_type).filter(|t| *t != QueueType::default());
            Some(())
        },
    },
    ConfigKey {
        name: "loopback_users",
        accepts: "none",
        default: "",
        doc: "`none` lets every user log in from any address.",
        set: |c, _, v| (v == "none").then(|| c.loopback_users.clear()),
    },
    ConfigKey {
        name: "loopback_users.*",
        accepts: BOOL,
        default: "",
        doc: "Restricts this user to connections over loopback; `guest` is restricted unless the \
              value is false.",
        set: |c, user, v| {
            let on = parse_bool(v)?;
            c.loopback_users.retain(|u| u != user);
            if on {
                c.loopback_users.push(user.to_owned());
            }
            Some(())
        },
    },
    ConfigKey {
        name: "anonymous_login_user",
        accepts: "a name of 1 to 255 bytes, or none",
        default: "guest",
        doc: "Existing user of clients that log in without a name (SASL ANONYMOUS), subject to \
              `loopback_users`; `none` refuses these clients.",
        set: |c, _, v| {
            let named = filled(v)?;
            c.anonymous_user = (named != "none").then_some(named);
            Some(())
        },
    },
    ConfigKey {
        name: "anonymous_login_pass",
        accepts: "a password of 1 to 255 bytes",
        default: "guest",
        doc: "Password of the anonymous user.",
        set: |c, _, v| filled(v).map(|n| c.anonymous_pass = n),
    },
    ConfigKey {
        name: "cluster.name",
        accepts: "letters, digits, `.`, `-`, `_`, `@`; 1 to 255",
        default: "posthorn",
        doc: "Name of the cluster; nodes refuse links to nodes of another cluster.",
        set: |c, _, v| name(v).map(|n| c.cluster.name = n),
    },
    ConfigKey {
        name: "cluster.node",
        accepts: "letters, digits, `.`, `-`, `_`, `@`; 1 to 255",
        default: "",
        doc: "Name of this node, unique in the cluster; the host name by default.",
        set: |c, _, v| name(v).map(|n| c.cluster.node = n),
    },
    ConfigKey {
        name: "cluster.zone",
        accepts: "letters, digits, `.`, `-`, `_`, `@`, at most 255; or nothing",
        default: "",
        doc: "Rack or availability zone of this node; the replicas of a quorum queue are spread \
              over zones.",
        set: |c, _, v| {
            c.cluster.zone = match v {
                "" => String::new(),
                text => name(text)?,
            };
            Some(())
        },
    },
    ConfigKey {
        name: "cluster.peers",
        accepts: "host:port, comma-separated",
        default: "",
        doc: "Addresses of all nodes that form the cluster, the same on each node; or one DNS \
              name for all of them, with `cluster.initial_size`; empty for a single node.",
        set: |c, _, v| peers(v).map(|p| c.cluster.peers = p),
    },
    ConfigKey {
        name: "cluster.initial_size",
        accepts: "0 to 101",
        default: "0",
        doc: "Number of nodes that form the cluster; 0 uses the number of `cluster.peers`.",
        set: |c, _, v| number(v, 0, 101).map(|n| c.cluster.initial_size = n),
    },
    ConfigKey {
        name: "cluster.listener",
        accepts: LISTEN,
        default: "none",
        doc: "Listener for links from other nodes, by convention 25672, which `cluster.peers` \
              needs.",
        set: |c, _, v| Listen::parse(v).map(|l| c.cluster.listener = l),
    },
    ConfigKey {
        name: "cluster.advertised_host",
        accepts: "a host name or address",
        default: "",
        doc: "Host under which other nodes reach this one; by default the host name, or 127.0.0.1 \
              if the listener is on loopback.",
        set: |c, _, v| filled(v).map(|n| c.cluster.advertised_host = n.to_ascii_lowercase()),
    },
    ConfigKey {
        name: "advertised_listeners.*",
        accepts: "a host name or address, a colon and a port",
        default: "",
        doc: "Address under which clients reach this listener of this node, for example \
              `advertised_listeners.amqp = broker-0.example.org:30672`, where it differs from \
              `cluster.advertised_host` and the listener's port.",
        set: |c, listener, v| {
            let address = PeerAddress::parse_with_port(v)?;
            c.advertised_listeners.insert(listener.to_owned(), address);
            Some(())
        },
    },
    ConfigKey {
        name: "advertised_nodes.*",
        accepts: "a host name or address, a colon and a port",
        default: "",
        doc: "The same for one listener of the node of this name, in settings that all nodes share, \
              for example `advertised_nodes.broker-0.stream = broker-0.example.org:30552`. It takes \
              precedence over `advertised_listeners.*`.",
        set: |c, name, v| {
            // Names of nodes may have dots, those of listeners have none.
            let (node, listener) = name.rsplit_once('.')?;
            let address = PeerAddress::parse_with_port(v)?;
            let key = (self::name(node)?, filled(listener)?);
            c.advertised_nodes.insert(key, address);
            Some(())
        },
    },
    ConfigKey {
        name: "cluster.auth.cacertfile",
        accepts: PATH,
        default: "",
        doc: "PEM file of the authority that signs only the certificates of nodes, which turns on \
              mutual TLS for links.",
        set: |c, _, v| path(v).map(|p| auth(c).cacertfile = p),
    },
    ConfigKey {
        name: "cluster.auth.certfile",
        accepts: PATH,
        default: "",
        doc: "PEM file of this node's certificate chain, valid for server and client \
              authentication.",
        set: |c, _, v| path(v).map(|p| auth(c).certfile = p),
    },
    ConfigKey {
        name: "cluster.auth.keyfile",
        accepts: PATH,
        default: "",
        doc: "PEM file of this node's private key.",
        set: |c, _, v| path(v).map(|p| auth(c).keyfile = p),
    },
    ConfigKey {
        name: "cluster.heartbeat_interval",
        accepts: "milliseconds, 50 to 60000",
        default: "500",
        doc: "Interval between two heartbeats to each other node.",
        set: |c, _, v| parse_ms(v, 50, 60_000).map(|d| c.cluster.heartbeat = d),
    },
    ConfigKey {
        name: "cluster.peer_timeout",
        accepts: "milliseconds, 200 to 600000",
        default: "3000",
        doc: "Time without a heartbeat after which another node counts as down.",
        set: |c, _, v| parse_ms(v, 200, 600_000).map(|d| c.cluster.peer_timeout = d),
    },
    ConfigKey {
        name: "cluster.peer_buffer",
        accepts: BYTES,
        default: "64MiB",
        doc: "Largest size of the data that waits for one other node, at least 1 MiB; more closes \
              the link.",
        set: |c, _, v| {
            let bytes = parse_bytes(v).filter(|b| *b >= 1 << 20)?;
            c.limits.peer_buffer = usize::try_from(bytes).ok()?;
            Some(())
        },
    },
    ConfigKey {
        name: "shards",
        accepts: "auto or 0 to 256",
        default: "auto",
        doc: "Number of threads that serve connections and queues. `auto`: one for each CPU that \
              the cgroup grants (its quota rounded up), or one as long as the feature flag \
              `shards_per_node` is off. 0: one for each CPU. Nodes may differ once the flag is on; \
              a restart with another number moves queues between shards.",
        set: |c, _, v| {
            c.shards = match v {
                "auto" => ShardSetting::Auto,
                _ => match number(v, 0, shard::MAX_SHARDS)? {
                    0 => ShardSetting::Cpus,
                    count => ShardSetting::Count(count),
                },
            };
            Some(())
        },
    },
    ConfigKey {
        name: "frame_max",
        accepts: "bytes, 8192 to 16777216",
        default: "131072",
        doc: "Largest AMQP 0.9.1 frame that the node offers to clients.",
        set: |c, _, v| number(v, 8192, 16 << 20).map(|n| c.limits.frame_max = n),
    },
    ConfigKey {
        name: "channel_max",
        accepts: "1 to 65535",
        default: "2047",
        doc: "Largest number of channels of a connection.",
        set: |c, _, v| number(v, 1, u16::MAX).map(|n| c.limits.channel_max = n),
    },
    ConfigKey {
        name: "heartbeat",
        accepts: "seconds, 0 to 65535",
        default: "60",
        doc: "Heartbeat interval that the node offers to clients; 0 turns heartbeats off.",
        set: |c, _, v| number(v, 0, u16::MAX).map(|n| c.limits.heartbeat_s = n),
    },
    ConfigKey {
        name: "max_message_size",
        accepts: "bytes, 1024 to 536870912",
        default: "16777216",
        doc: "Largest message body that clients of this node may publish; messages of clients of other nodes are not affected.",
        set: |c, _, v| {
            number(v, 1024, message::MAX_BODY_BYTES).map(|n| c.limits.max_message_size = n)
        },
    },
    ConfigKey {
        name: "handshake_timeout",
        accepts: "milliseconds, 100 to 600000",
        default: "10000",
        doc: "Time within which a new connection must log in.",
        set: |c, _, v| parse_ms(v, 100, 600_000).map(|d| c.limits.handshake_timeout = d),
    },
    ConfigKey {
        name: "consumer_timeout",
        accepts: "milliseconds, 0 to 4294967295, or none",
        default: "1800000",
        doc: "Time after which a consumer that does not acknowledge a delivery ends, for queues \
              without `x-consumer-timeout` or policy `consumer-timeout`. Quorum queues cancel the \
              consumer; for other queues its channel is closed, checked once a minute.",
        set: |c, _, v| {
            let timeout = match v {
                "none" => None,
                text => Some(number(text, 0, u64::from(u32::MAX))?),
            };
            c.limits.consumer_timeout_ms = timeout;
            Some(())
        },
    },
    ConfigKey {
        name: "connection_max",
        accepts: "1 to 10000000",
        default: "1000000",
        doc: "Largest number of client connections of this node.",
        set: |c, _, v| number(v, 1, 10_000_000).map(|n| c.limits.max_connections = n),
    },
    ConfigKey {
        name: "accepts_per_turn",
        accepts: "1 to 65535",
        default: "64",
        doc: "New connections that a shard accepts before it does other work, which limits a \
              burst of reconnects.",
        set: |c, _, v| number(v, 1, 65535).map(|n| c.limits.accepts_per_turn = n),
    },
    ConfigKey {
        name: "accepts_per_second",
        accepts: "0 to 1000000; 0: no bound",
        default: "5000",
        doc: "New connections of this node per second, which limits a burst of reconnects; \
              further ones wait.",
        set: |c, _, v| number(v, 0, 1_000_000).map(|n| c.limits.accepts_per_second = n),
    },
    ConfigKey {
        name: "disk_free_limit.absolute",
        accepts: BYTES,
        default: "50MB",
        doc: "Free disk space below which publishers are blocked; the last 32 MiB are always kept \
              for acknowledgements and for freeing the log.",
        set: |c, _, v| parse_bytes(v).map(|b| c.disk_free_limit = b),
    },
    ConfigKey {
        name: "vm_memory_high_watermark.relative",
        accepts: "a share between 0.05 and 1",
        default: "0.6",
        doc: "Share of the memory limit (of the cgroup or the machine) above which publishers are \
              blocked.",
        set: |c, _, v| number(v, 0.05, 1.0).map(|n| c.memory_watermark = n),
    },
    ConfigKey {
        name: "quorum_queue.continuous_membership_reconciliation.target_group_size",
        accepts: "0 to 7",
        default: "0",
        doc: "Number of replicas that every quorum queue grows to, the same on all nodes; a queue \
              may have a larger `x-quorum-target-group-size` or policy `target-group-size`, and 0 \
              grows only these.",
        set: |c, _, v| number(v, 0, 7).map(|n| c.target_group_size = n),
    },
    ConfigKey {
        name: "wal.file_size",
        accepts: "1 MiB to 1 GiB, in bytes or with a unit",
        default: "64MiB",
        doc: "Size at which the write-ahead log continues in a new file.",
        set: |c, _, v| {
            let bytes = parse_bytes(v).filter(|b| (1 << 20..=1 << 30).contains(b))?;
            c.wal_file_bytes = bytes;
            Some(())
        },
    },
    ConfigKey {
        name: "shutdown_timeout",
        accepts: "milliseconds, 0 to 3600000",
        default: "30000",
        doc: "Time that a stopping node may take to inform clients and to transfer its leaders.",
        set: |c, _, v| parse_ms(v, 0, 3_600_000).map(|d| c.shutdown_timeout = d),
    },
    ConfigKey {
        name: "log.level",
        accepts: "error, warn, info, debug or trace",
        default: "info",
        doc: "Lowest level of the events that the node writes to standard error.",
        set: |c, _, v| {
            let known = ["error", "warn", "info", "debug", "trace"];
            known.contains(&v).then(|| c.log.level = v.to_owned())
        },
    },
    ConfigKey {
        name: "log.format",
        accepts: "text or json",
        default: "text",
        doc: "Format of the log, one line per event: text for people, JSON for programs.",
        set: |c, _, v| {
            c.log.json = match v {
                "text" => false,
                "json" => true,
                _ => return None,
            };
            Some(())
        },
    },
    ConfigKey {
        name: "audit.file",
        accepts: "a path, - for standard output, or none",
        default: "none",
        doc: "File to which the node appends audit records, one JSON object per line. SIGHUP opens \
              it again.",
        set: |c, _, v| {
            c.audit.target = match v {
                "none" => AuditTarget::None,
                "-" => AuditTarget::Stdout,
                file => AuditTarget::File(path(file)?),
            };
            Some(())
        },
    },
    ConfigKey {
        name: "audit.buffer",
        accepts: "64 KiB to 1 GiB, in bytes or with a unit",
        default: "4MiB",
        doc: "Audit records that may wait to be written. Further ones are lost, counted and logged.",
        set: |c, _, v| {
            let bytes = parse_bytes(v).filter(|b| (64 << 10..=1 << 30).contains(b))?;
            c.audit.buffer = usize::try_from(bytes).ok()?;
            Some(())
        },
    },
    ConfigKey {
        name: "event_exchange.vhost",
        accepts: "the name of a virtual host, or none",
        default: "none",
        doc: "Virtual host with the exchange `amq.rabbitmq.event`, to which the node publishes \
              audit records as events.",
        set: |c, _, v| {
            c.audit.events = match v {
                "none" => None,
                vhost => Some(filled(vhost)?),
            };
            Some(())
        },
    },
];

/// Finds the key with this name, and the part matched by its `*`.
pub(super) fn find(name: &str) -> Option<(&'static ConfigKey, &str)> {
    if let Some(key) = keys().find(|k| k.name == name) {
        return Some((key, ""));
    }
    keys().find_map(|key| {
        let rest = name.strip_prefix(key.name.strip_suffix('*')?)?;
        (!rest.is_empty()).then_some((key, rest))
    })
}

/// The known key most similar to this name.
pub(super) fn nearest(name: &str) -> Option<&'static str> {
    let by_distance = keys().map(|k| (distance(k.name, name), k.name));
    by_distance
        .min()
        .filter(|(d, _)| *d <= 2 + name.len() / 4)
        .map(|(_, n)| n)
}

/// Levenshtein distance in bytes; the names are short.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (cell, y) in row.iter_mut().skip(1).zip(b.bytes()) {
            let value = (diagonal + usize::from(x != y))
                .min(left + 1)
                .min(*cell + 1);
            diagonal = std::mem::replace(cell, value);
            left = value;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(usize::MAX)
}

/// The reference of all keys, as Markdown.
pub fn reference() -> String {
    let mut out = String::from("| key | default | accepts | meaning |\n|---|---|---|---|\n");
    for key in keys() {
        let default = if key.default.is_empty() {
            String::new()
        } else {
            format!("`{}`", key.default)
        };
        // Writing to a String cannot fail.
        let reload = match is_live(key.name) {
            true => " A reload applies changes.",
            false => "",
        };
        let _ = writeln!(
            out,
            "| `{}` | {default} | {} | {}{reload} |",
            key.name, key.accepts, key.doc
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_defaults_equal_built_in_defaults() {
        let mut config = Config::default();
        for key in keys().filter(|k| !k.default.is_empty()) {
            assert_eq!(
                (key.set)(&mut config, "", key.default),
                Some(()),
                "{}",
                key.name
            );
            assert_eq!(config, Config::default(), "{}", key.name);
        }
    }

    #[test]
    fn key_names_are_unique_and_documented() {
        for (i, key) in keys().enumerate() {
            assert!(keys().skip(i + 1).all(|other| other.name != key.name));
            assert!(
                key.doc.ends_with('.') && !key.accepts.is_empty(),
                "{}",
                key.name
            );
            assert!(reference().contains(&format!("| `{}` |", key.name)));
        }
    }

    #[test]
    fn wildcard_keys_and_similar_names_are_found() {
        assert_eq!(
            find("loopback_users.guest").map(|(k, r)| (k.name, r)),
            Some(("loopback_users.*", "guest"))
        );
        assert!(find("loopback_users.").is_none());
        assert_eq!(
            nearest("listener.tcp.default"),
            Some("listeners.tcp.default")
        );
        assert_eq!(nearest("completely_different_thing_altogether"), None);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
    }
}
