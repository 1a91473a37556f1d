//! `/api/connections`.

use crate::access::AuthenticatedRequest;
use crate::ask::Api;
use crate::dispatch::{ApiResult, json, no_content};
use crate::error::ApiError;
use crate::page::ListRequest;
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

/// RabbitMQ's display name of a protocol.
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
        "web_amqp10" => "Web AMQP 1-0",
        other => other,
    }
}

/// As in RabbitMQ, the keys are present and null for a connection without TLS. Unknown details of a
/// TLS connection are omitted.
fn show_tls(shown: &mut Json, connection: &ConnectionFacts) {
    let known = !connection.tls || !connection.tls_protocol.is_empty();
    if !known {
        return;
    }
    let suite = CipherSuite::of(&connection.tls_suite);
    shown["ssl_protocol"] = match connection.tls {
        true => object!(connection.tls_protocol),
        false => Json::Null,
    };
    shown["ssl_key_exchange"] = object!(suite.as_ref().map(|s| &s.key_exchange));
    shown["ssl_cipher"] = object!(suite.as_ref().map(|s| &s.cipher));
    // All supported suites use an AEAD cipher.
    shown["ssl_hash"] = object!(suite.as_ref().map(|_| "aead"));
    shown["peer_cert_subject"] = object!(connection.certificate);
    if connection.certificate.is_none() {
        shown["peer_cert_issuer"] = Json::Null;
        shown["peer_cert_validity"] = Json::Null;
    }
}

/// A cipher suite, split into parts as Erlang reports it.
#[derive(Debug, PartialEq, Eq)]
struct CipherSuite {
    key_exchange: String,
    cipher: String,
}

impl CipherSuite {
    /// Parses a registered name: `TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384`, or since TLS 1.3
    /// `TLS_AES_256_GCM_SHA384`, which does not name a key exchange.
    fn of(name: &str) -> Option<CipherSuite> {
        let name = name
            .strip_prefix("TLS13_")
            .or_else(|| name.strip_prefix("TLS_"))?;
        let (key_exchange, rest) = name.split_once("_WITH_").unwrap_or(("any", name));
        let (cipher, _hash) = rest.rsplit_once('_')?;
        Some(CipherSuite {
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
        // RabbitMQ's value for protocols without a choice of mechanism.
        "" => object!("none"),
        name => object!(name),
    };
    show_tls(&mut shown, connection);
    // RabbitMQ omits the key if the client gave no name.
    if !connection.client_name.is_empty() {
        shown["user_provided_name"] = object!(connection.client_name);
    }
    if connection.protocol.ends_with("amqp10") {
        shown["container_id"] = object!(connection.client_name);
    }
    shown
}

/// MQTT has no client properties: show the values that RabbitMQ shows.
fn client_properties(connection: &ConnectionFacts) -> Json {
    if connection.protocol.contains("mqtt") {
        return object!({"product": "MQTT client", "client_id": connection.client_name});
    }
    Json::Object(connection.client_properties.clone())
}

/// Connections that the user may see: all for users with the monitoring tag, otherwise the user's
/// own.
pub(crate) async fn visible_connections(
    api: &Api,
    call: &AuthenticatedRequest,
) -> Result<Vec<ConnectionFacts>, ApiError> {
    let mut all = api
        .ask(|reply| ControlRequest::Connections { reply })
        .await?;
    if !call.is_monitor() {
        all.retain(|c| *c.user == *call.user.name);
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

async fn answer(
    api: &Api,
    call: &AuthenticatedRequest,
    matches: impl Fn(&ConnectionFacts) -> bool,
) -> ApiResult {
    let mut found = visible_connections(api, call).await?;
    found.retain(matches);
    respond_with(api, call, found).await
}

/// Responds with a list of connections, as the query asks for it.
pub(crate) async fn respond_with(
    api: &Api,
    call: &AuthenticatedRequest,
    found: Vec<ConnectionFacts>,
) -> ApiResult {
    let window = ListRequest::of(&call.query)?;
    let range = Range::of(&call.query, "data_rates")?;
    let names = api.read(node_names).await?;
    let (part, cut) = window.cut(found, |c| &c.name)?;
    let shown = part.iter().map(|c| show(api, c, &names, range.as_ref()));
    Ok(cut.respond(shown.collect()))
}

pub(crate) async fn list(api: &Api, call: &AuthenticatedRequest, vhost: Option<&str>) -> ApiResult {
    if let Some(vhost) = vhost {
        api.require_vhost_visible(call, vhost).await?;
    }
    answer(api, call, |c| vhost.is_none_or(|v| c.vhost == v)).await
}

/// Allows access to the user's own connections. `may_others` is true for users who may access those
/// of others: monitoring to see, administrator to close.
fn require_own_or(
    call: &AuthenticatedRequest,
    user: &str,
    may_others: bool,
) -> Result<(), ApiError> {
    if may_others || *user == *call.user.name {
        return Ok(());
    }
    Err(ApiError::not_authorised(
        "User not authorised to access object",
    ))
}

pub(crate) async fn of_user(api: &Api, call: &AuthenticatedRequest, user: &str) -> ApiResult {
    require_own_or(call, user, call.is_monitor())?;
    answer(api, call, |c| c.user == user).await
}

pub(crate) async fn find(
    api: &Api,
    call: &AuthenticatedRequest,
    name: &str,
) -> Result<ConnectionFacts, ApiError> {
    let found = visible_connections(api, call).await?;
    let named = found.into_iter().find(|c| c.name == name);
    named.ok_or_else(ApiError::not_found)
}

pub(crate) async fn get(api: &Api, call: &AuthenticatedRequest, name: &str) -> ApiResult {
    let range = Range::of(&call.query, "data_rates")?;
    let found = find(api, call, name).await?;
    let names = api.read(node_names).await?;
    let shown = show(api, &found, &names, range.as_ref());
    json(call.query.columns_of(shown))
}

/// Closes a connection with the reason from the request. Returns false if it is already gone.
async fn close_connection(
    api: &Api,
    call: &AuthenticatedRequest,
    name: String,
) -> Result<bool, ApiError> {
    let reason = call.reason.clone();
    let reason = reason.unwrap_or_else(|| "Closed via management plugin".to_owned());
    api.ask(|reply| ControlRequest::CloseConnection {
        name,
        reason,
        reply,
    })
    .await
}

pub(crate) async fn close(api: &Api, call: &AuthenticatedRequest, name: &str) -> ApiResult {
    let found = find(api, call, name).await?;
    require_own_or(call, &found.user, call.is_administrator())?;
    if close_connection(api, call, found.name).await? {
        no_content()
    } else {
        Err(ApiError::not_found())
    }
}

pub(crate) async fn close_of_user(api: &Api, call: &AuthenticatedRequest, user: &str) -> ApiResult {
    require_own_or(call, user, call.is_administrator())?;
    let found = visible_connections(api, call).await?;
    for connection in found.into_iter().filter(|c| c.user == user) {
        close_connection(api, call, connection.name).await?;
    }
    no_content()
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn cipher_suites_are_split_as_in_erlang() {
        let of = |name: &str| CipherSuite::of(name).map(|s| (s.key_exchange, s.cipher));
        let pair = |a: &str, b: &str| Some((a.to_owned(), b.to_owned()));
        let old = "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384";
        assert_eq!(of(old), pair("ecdhe_rsa", "aes_256_gcm"));
        let new = pair("any", "chacha20_poly1305");
        assert_eq!(of("TLS13_CHACHA20_POLY1305_SHA256"), new);
        assert_eq!(of("TLS_CHACHA20_POLY1305_SHA256"), new);
        assert_eq!((of(""), of("TLS_NULL")), (None, None));
    }
}
