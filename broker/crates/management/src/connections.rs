//! `/api/connections`.

use crate::access::Call;
use crate::ask::Api;
use crate::dispatch::{Answer, json, no_content};
use crate::error::ApiError;
use crate::page::Window;
use crate::queues::{NodeNames, node_names};
use crate::rates::{self, Key, Range};
use control::{ConnectionFacts, ControlRequest};
use serde_json::{Value as Json, json as object};

/// Host and port of `host:port`, the host without the brackets of an IPv6 address.
pub(crate) fn address(text: &str) -> (&str, Option<u16>) {
    let (host, port) = text.rsplit_once(':').unwrap_or((text, ""));
    let host = host.strip_prefix('[').unwrap_or(host);
    (host.strip_suffix(']').unwrap_or(host), port.parse().ok())
}

/// What people call the protocol.
fn protocol(label: &str) -> &str {
    match label {
        "amqp091" => "AMQP 0-9-1",
        "amqp10" => "AMQP 1-0",
        "mqtt310" => "MQTT 3-1-0",
        "mqtt311" => "MQTT 3-1-1",
        "mqtt50" => "MQTT 5-0",
        "web_mqtt310" => "Web MQTT 3-1-0",
        "web_mqtt311" => "Web MQTT 3-1-1",
        "web_mqtt50" => "Web MQTT 5-0",
        other => other,
    }
}

/// As RabbitMQ: there, and null where there is nothing. What is not known of a connection over TLS is left out.
fn show_tls(shown: &mut Json, connection: &ConnectionFacts) {
    let known = !connection.tls || !connection.tls_protocol.is_empty();
    if !known {
        return;
    }
    let suite = Suite::of(&connection.tls_suite);
    shown["ssl_protocol"] = match connection.tls {
        true => object!(connection.tls_protocol),
        false => Json::Null,
    };
    shown["ssl_key_exchange"] = object!(suite.as_ref().map(|s| &s.key_exchange));
    shown["ssl_cipher"] = object!(suite.as_ref().map(|s| &s.cipher));
    // Messages are authenticated by the cipher itself in all suites that there are.
    shown["ssl_hash"] = object!(suite.as_ref().map(|_| "aead"));
    shown["peer_cert_subject"] = object!(connection.certificate);
    if connection.certificate.is_none() {
        shown["peer_cert_issuer"] = Json::Null;
        shown["peer_cert_validity"] = Json::Null;
    }
}

/// A cipher suite as Erlang has it in parts.
#[derive(Debug, PartialEq, Eq)]
struct Suite {
    key_exchange: String,
    cipher: String,
}

impl Suite {
    /// Of a registered name: `TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384`, and from TLS 1.3 on `TLS_AES_256_GCM_SHA384`, which
    /// goes with any key exchange.
    fn of(name: &str) -> Option<Suite> {
        let name = name
            .strip_prefix("TLS13_")
            .or_else(|| name.strip_prefix("TLS_"))?;
        let (key_exchange, rest) = name.split_once("_WITH_").unwrap_or(("any", name));
        let (cipher, _hash) = rest.rsplit_once('_')?;
        Some(Suite {
            key_exchange: key_exchange.to_ascii_lowercase(),
            cipher: cipher.to_ascii_lowercase(),
        })
    }
}

fn show(api: &Api, connection: &ConnectionFacts, names: &NodeNames, range: Option<&Range>) -> Json {
    let (peer_host, peer_port) = address(&connection.peer);
    let (host, port) = address(&connection.local);
    let mut shown = object!({
        "name": connection.name,
        "node": names.get(&connection.node),
        "type": "network",
        "user": connection.user,
        "user_who_performed_action": connection.user,
        "vhost": connection.vhost,
        "protocol": protocol(&connection.protocol),
        "state": connection.state,
        "channels": connection.channels.len(),
        "client_properties": client_properties(connection),
        "connected_at": connection.connected_ms,
        "timeout": connection.heartbeat_s,
        "frame_max": connection.frame_max,
        "channel_max": connection.channel_max,
        "ssl": connection.tls,
        "host": host,
        "port": port,
        "peer_host": peer_host,
        "peer_port": peer_port,
        "send_pend": connection.pending_bytes,
    });
    let octets = (&rates::OCTETS[..], &rates::octets(connection)[..]);
    let at = (Key::Connection(connection.name.clone()), range);
    rates::show_counts(api, at, &mut shown, octets);
    shown["auth_mechanism"] = match connection.auth_mechanism.as_str() {
        // RabbitMQ's word where a protocol has no choice.
        "" => object!("none"),
        name => object!(name),
    };
    show_tls(&mut shown, connection);
    // RabbitMQ leaves it out where there is none.
    if !connection.client_name.is_empty() {
        shown["user_provided_name"] = object!(connection.client_name);
    }
    shown
}

/// Of MQTT, which has none, what RabbitMQ shows.
fn client_properties(connection: &ConnectionFacts) -> Json {
    if connection.protocol.contains("mqtt") {
        return object!({"product": "MQTT client", "client_id": connection.client_name});
    }
    Json::Object(connection.client_properties.clone())
}

/// Those that the user may see: all for monitors, else its own.
pub(crate) async fn visible(api: &Api, call: &Call) -> Result<Vec<ConnectionFacts>, ApiError> {
    let mut all = api
        .ask(|reply| ControlRequest::Connections { reply })
        .await?;
    if !call.is_monitor() {
        all.retain(|c| *c.user == *call.user.name);
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

async fn answer(api: &Api, call: &Call, fits: impl Fn(&ConnectionFacts) -> bool) -> Answer {
    let window = Window::of(&call.query)?;
    let range = Range::of(&call.query, "data_rates")?;
    let mut found = visible(api, call).await?;
    found.retain(fits);
    let names = api.read(node_names).await?;
    let (part, cut) = window.cut(found, |c| &c.name)?;
    let shown = part.iter().map(|c| show(api, c, &names, range.as_ref()));
    Ok(cut.respond(shown.collect()))
}

pub(crate) async fn list(api: &Api, call: &Call, vhost: Option<&str>) -> Answer {
    if let Some(vhost) = vhost {
        api.visible(call, vhost).await?;
    }
    answer(api, call, |c| vhost.is_none_or(|v| c.vhost == v)).await
}

/// Others' connections are for monitors to see and for administrators to close.
fn own_or(call: &Call, user: &str, may: bool) -> Result<(), ApiError> {
    if may || *user == *call.user.name {
        return Ok(());
    }
    Err(ApiError::not_authorised(
        "User not authorised to access object",
    ))
}

pub(crate) async fn of_user(api: &Api, call: &Call, user: &str) -> Answer {
    own_or(call, user, call.is_monitor())?;
    answer(api, call, |c| c.user == user).await
}

pub(crate) async fn find(api: &Api, call: &Call, name: &str) -> Result<ConnectionFacts, ApiError> {
    let found = visible(api, call).await?;
    let named = found.into_iter().find(|c| c.name == name);
    named.ok_or_else(ApiError::not_found)
}

pub(crate) async fn get(api: &Api, call: &Call, name: &str) -> Answer {
    let range = Range::of(&call.query, "data_rates")?;
    let found = find(api, call, name).await?;
    let names = api.read(node_names).await?;
    let shown = show(api, &found, &names, range.as_ref());
    json(call.query.columns_of(shown))
}

/// Tells the client why and ends its connection; false when it has gone meanwhile.
async fn end(api: &Api, call: &Call, name: String) -> Result<bool, ApiError> {
    let reason = call.reason.clone();
    let reason = reason.unwrap_or_else(|| "Closed via management plugin".to_owned());
    api.ask(|reply| ControlRequest::CloseConnection {
        name,
        reason,
        reply,
    })
    .await
}

pub(crate) async fn close(api: &Api, call: &Call, name: &str) -> Answer {
    let found = find(api, call, name).await?;
    own_or(call, &found.user, call.is_administrator())?;
    if end(api, call, found.name).await? {
        no_content()
    } else {
        Err(ApiError::not_found())
    }
}

pub(crate) async fn close_of_user(api: &Api, call: &Call, user: &str) -> Answer {
    own_or(call, user, call.is_administrator())?;
    let found = visible(api, call).await?;
    for connection in found.into_iter().filter(|c| c.user == user) {
        end(api, call, connection.name).await?;
    }
    no_content()
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn suites_come_apart_as_erlangs() {
        let of = |name: &str| Suite::of(name).map(|s| (s.key_exchange, s.cipher));
        let pair = |a: &str, b: &str| Some((a.to_owned(), b.to_owned()));
        let old = "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384";
        assert_eq!(of(old), pair("ecdhe_rsa", "aes_256_gcm"));
        let new = pair("any", "chacha20_poly1305");
        assert_eq!(of("TLS13_CHACHA20_POLY1305_SHA256"), new);
        assert_eq!(of("TLS_CHACHA20_POLY1305_SHA256"), new);
        assert_eq!((of(""), of("TLS_NULL")), (None, None));
    }
}
