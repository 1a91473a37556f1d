//! Publishing and getting messages over HTTP: `exchanges/.../publish` and `queues/.../get`. For
//! inspection and tests, not for production traffic.

use crate::access::AuthenticatedRequest;
use crate::ask::Api;
use crate::dispatch::{ApiResult, json};
use crate::error::ApiError;
use crate::exchanges::exchange_name;
use crate::json::{JsonMembers, to_table};
use crate::queues;
use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use codec_amqp091::{HeaderEdit, Properties};
use control::ControlRequest;
use conversion::amqp091;
use env::WallTime;
use message::{Deaths, Message, MessageBuilder, Protocol};
use metadata::Right;
use operations::{Caller, Resource};
use queue::{Delivery, SettlementOutcome};
use serde_json::{Map, Value as Json, json as object};

/// Maximum number of messages of one get request, and the size of bodies in bytes after which it
/// stops.
const MAX_MESSAGES: i64 = 1000;
const MAX_BYTES: usize = 16 * 1024 * 1024;
/// Maximum length of an AMQP short string in bytes.
const MAX_SHORT: usize = 255;
/// Ten years, the limit for AMQP too.
const MAX_TTL_MS: u64 = 315_360_000_000;

/// The message of a publish request.
struct PublishRequest {
    exchange: String,
    key: String,
    properties: Map<String, Json>,
    payload: Vec<u8>,
}

fn short_string<'a>(members: &JsonMembers<'a>, key: &str) -> Result<Option<&'a str>, ApiError> {
    let text = members.0.get(key);
    let text = match text {
        None | Some(Json::Null) => return Ok(None),
        Some(Json::String(text)) => text.as_str(),
        Some(_) => return Err(ApiError::bad_request(object!(["not_string", key]))),
    };
    if text.len() > MAX_SHORT {
        let why = format!("'{key}' is longer than {MAX_SHORT} bytes");
        return Err(ApiError::bad_request(why));
    }
    Ok(Some(text))
}

fn parse_number<T: TryFrom<i64>>(
    members: &JsonMembers<'_>,
    key: &str,
) -> Result<Option<T>, ApiError> {
    let number = members.integer(key);
    let number = number.map_err(|_| ApiError::bad_request(object!(["not_int", key])))?;
    let Some(number) = number else {
        return Ok(None);
    };
    T::try_from(number)
        .map(Some)
        .map_err(|_| ApiError::bad_request(format!("'{key}' is out of range: {number}")))
}

/// Parses an `expiration` in milliseconds, with the rules of AMQP. The error is RabbitMQ's term.
fn ttl(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let end = digits.find(|c: char| !c.is_ascii_digit());
    let (number, rest) = digits.split_at(end.unwrap_or(digits.len()));
    if number.is_empty() {
        return Err("no_integer".to_owned());
    }
    if !rest.is_empty() {
        return Err(format!("{{leftover_string,\"{rest}\"}}"));
    }
    match number.parse::<u64>() {
        Ok(value) if text.starts_with('-') && value > 0 => {
            Err(format!("{{value_negative,-{value}}}"))
        }
        Ok(value) if value <= MAX_TTL_MS => Ok(value),
        _ => Err(format!("{{value_too_large,{number}}}")),
    }
}

/// The encoded AMQP 0-9-1 properties, and the values that the node needs.
struct EncodedProperties {
    raw: Bytes,
    durable: bool,
    priority: Option<u8>,
    ttl_ms: Option<u64>,
    user_id: Option<String>,
}

fn encode(properties_json: &Map<String, Json>) -> Result<EncodedProperties, ApiError> {
    let m = JsonMembers(properties_json);
    let expiration = short_string(&m, "expiration")?;
    let ttl_ms = match expiration {
        None => None,
        Some(text) => Some(ttl(text).map_err(|why| {
            let why = format!("invalid expiration '{text}': {why}");
            ApiError::bad_request(why).with_amqp_code("406 PRECONDITION_FAILED")
        })?),
    };
    let properties = Properties {
        content_type: short_string(&m, "content_type")?,
        content_encoding: short_string(&m, "content_encoding")?,
        headers: None,
        delivery_mode: parse_number(&m, "delivery_mode")?,
        priority: parse_number(&m, "priority")?,
        correlation_id: short_string(&m, "correlation_id")?,
        reply_to: short_string(&m, "reply_to")?,
        expiration,
        message_id: short_string(&m, "message_id")?,
        timestamp: parse_number(&m, "timestamp")?,
        kind: short_string(&m, "type")?,
        user_id: short_string(&m, "user_id")?,
        app_id: short_string(&m, "app_id")?,
        cluster_id: short_string(&m, "cluster_id")?,
    };
    let headers = match properties_json.get("headers") {
        Some(Json::Object(headers)) => to_table(headers)?,
        None | Some(Json::Null) => message::Table::default(),
        Some(_) => return Err(ApiError::bad_request("'headers' should be an object")),
    };
    if headers.0.iter().any(|(key, _)| key.len() > MAX_SHORT) {
        let why = format!("a header's name is longer than {MAX_SHORT} bytes");
        return Err(ApiError::bad_request(why));
    }
    let edits: Vec<HeaderEdit<'_>> = headers
        .0
        .iter()
        .map(|(key, value)| HeaderEdit {
            key,
            value: Some(value.clone()),
        })
        .collect();
    let mut raw = BytesMut::new();
    properties.encode_edited(&edits, &mut raw);
    Ok(EncodedProperties {
        raw: raw.freeze(),
        durable: properties.delivery_mode == Some(2),
        priority: properties.priority,
        ttl_ms,
        user_id: properties.user_id.map(str::to_owned),
    })
}

fn build(
    request: &PublishRequest,
    encoded: &EncodedProperties,
    received: WallTime,
) -> Result<Message, String> {
    let builder = MessageBuilder {
        protocol: Protocol::Amqp091,
        durable: encoded.durable,
        priority: encoded.priority,
        ttl_ms: encoded.ttl_ms,
        received,
        exchange: &request.exchange,
        routing_keys: &[&request.key],
        properties: &encoded.raw,
    };
    let body: &[u8] = &request.payload;
    let built = builder.build(body.len(), [body]);
    built.map_err(|e| format!("invalid message: {e}"))
}

fn payload(body: &JsonMembers<'_>) -> Result<Vec<u8>, ApiError> {
    let text = body.0.get("payload").and_then(Json::as_str);
    let text = text.ok_or_else(|| ApiError::bad_request("payload_not_string"))?;
    match body.required_text("payload_encoding")? {
        "string" => Ok(text.as_bytes().to_vec()),
        "base64" => STANDARD
            .decode(text)
            .map_err(|_| ApiError::bad_request(object!(["not_base64", text]))),
        other => Err(ApiError::bad_request(object!([
            "unsupported_encoding",
            other
        ]))),
    }
}

/// Adds the context of the request to a message without one.
fn add_trace(properties: &mut Map<String, Json>, call: &AuthenticatedRequest) {
    let Some((parent, state)) = &call.trace else {
        return;
    };
    let headers = properties.entry("headers").or_insert(Json::Null);
    if headers.is_null() {
        *headers = object!({});
    }
    // Anything else is refused later.
    if let Json::Object(headers) = headers
        && !headers.contains_key("traceparent")
    {
        headers.insert("traceparent".to_owned(), parent.as_str().into());
        headers.remove("tracestate");
        if let Some(state) = state {
            headers.insert("tracestate".to_owned(), state.as_str().into());
        }
    }
}

pub(crate) async fn publish(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    exchange: &str,
) -> ApiResult {
    api.require_vhost_access(call, vhost).await?;
    let body = call.object()?;
    let body = JsonMembers(&body);
    body.require(&["routing_key", "properties", "payload", "payload_encoding"])?;
    let mut properties = match body.0.get("properties") {
        Some(Json::Object(properties)) => properties.clone(),
        Some(Json::Array(list)) if list.is_empty() => Map::new(),
        _ => return Err(ApiError::bad_request("'properties' should be an object")),
    };
    add_trace(&mut properties, call);
    let key = body.required_text("routing_key")?;
    if key.len() > MAX_SHORT {
        let why = format!("'routing_key' is longer than {MAX_SHORT} bytes");
        return Err(ApiError::bad_request(why));
    }
    let request = PublishRequest {
        exchange: exchange_name(exchange).to_owned(),
        key: key.to_owned(),
        payload: payload(&body)?,
        properties,
    };
    let encoded = encode(&request.properties)?;
    check_publish_permissions(api, call, vhost, &request, &encoded).await?;
    let vhost = vhost.into();
    let published = api
        .ask(|reply| ControlRequest::Publish {
            vhost,
            user: call.user.name.clone(),
            build: Box::new(move |received| build(&request, &encoded, received)),
            reply,
        })
        .await??;
    if !published.taken {
        return Err(ApiError::bad_request(
            "Unable to publish message. Check queue limits.",
        ));
    }
    json(object!({"routed": published.routed}))
}

/// RabbitMQ publishes over its own AMQP connection and reports its close reason: 400, not 401.
/// Other errors are kept.
fn access_refused(error: ApiError) -> ApiError {
    match error.status {
        StatusCode::UNAUTHORIZED | StatusCode::BAD_REQUEST => {
            ApiError::bad_request(error.text()).with_amqp_code("403 ACCESS_REFUSED")
        }
        _ => error,
    }
}

/// The checks of an AMQP publish: write permission, topic permission, not an internal exchange.
pub(crate) async fn check_publish(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    exchange: &str,
    key: &str,
) -> Result<(), ApiError> {
    check_target(api, call, vhost, exchange, Some(key.to_owned())).await
}

/// As [`check_publish`], without a routing key.
pub(crate) async fn check_write(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    exchange: &str,
) -> Result<(), ApiError> {
    check_target(api, call, vhost, exchange, None).await
}

async fn check_target(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    exchange: &str,
    key: Option<String>,
) -> Result<(), ApiError> {
    let exchange = exchange.to_owned();
    let check = move |caller: Caller<'_>| {
        caller.check(Right::Write, Resource::Exchange(&exchange))?;
        match (caller.exchange_to_publish(&exchange)?, &key) {
            (Some(record), Some(key)) => caller.check_topic(Right::Write, record, key),
            _ => Ok(()),
        }
    };
    let permitted = api.operate(call, vhost, check).await;
    permitted.map_err(|error| match error.status {
        StatusCode::NOT_FOUND => ApiError::missing("exchange_not_found"),
        _ => access_refused(error),
    })
}

/// The checks of an AMQP publish, and that `user_id` is the user's name.
async fn check_publish_permissions(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    request: &PublishRequest,
    encoded: &EncodedProperties,
) -> Result<(), ApiError> {
    check_publish(api, call, vhost, &request.exchange, &request.key).await?;
    match &encoded.user_id {
        Some(claimed) if **claimed != *call.user.name => {
            let why = format!(
                "user_id property set to '{claimed}' but authenticated user was '{}'",
                call.user.name
            );
            Err(ApiError::bad_request(why).with_amqp_code("406 PRECONDITION_FAILED"))
        }
        _ => Ok(()),
    }
}

/// The settlement that an `ackmode` requests.
fn outcome(mode: &str) -> Result<SettlementOutcome, ApiError> {
    match mode {
        "ack_requeue_false" => Ok(SettlementOutcome::Accepted),
        // The message was only inspected. Released does not count as a delivery attempt, so
        // repeated inspection cannot exceed the delivery limit.
        "ack_requeue_true" => Ok(SettlementOutcome::Released),
        "reject_requeue_true" => Ok(SettlementOutcome::Requeue),
        "reject_requeue_false" => Ok(SettlementOutcome::Rejected),
        other => Err(ApiError::bad_request(format!(
            "ackmode '{other}' is not known: ack_requeue_true, ack_requeue_false, reject_requeue_true and \
             reject_requeue_false are"
        ))),
    }
}

pub(crate) async fn get(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    name: &str,
) -> ApiResult {
    api.require_vhost_access(call, vhost).await?;
    let body = call.object()?;
    let body = JsonMembers(&body);
    body.require(&["ackmode", "count", "encoding"])?;
    let settle = outcome(body.required_text("ackmode")?)?;
    let count = body.integer("count")?.unwrap_or(-1);
    let auto = match body.required_text("encoding")? {
        "auto" => true,
        "base64" => false,
        _ => {
            let why = "Unsupported encoding. Please use auto or base64.";
            return Err(ApiError::bad_request(why));
        }
    };
    let truncate = parse_number::<u32>(&body, "truncate")?.map(|n| n as usize);
    if !(0..=MAX_MESSAGES).contains(&count) {
        let why = format!("count is a number from 0 to {MAX_MESSAGES}");
        return Err(ApiError::bad_request(why));
    }
    let queue = queues::find_readable(api, call, vhost, name).await?;
    if count == 0 {
        return json(object!([]));
    }
    let count = u32::try_from(count).unwrap_or(1);
    let deliveries = api
        .ask(|reply| ControlRequest::Get {
            queue,
            user: call.user.name.clone(),
            count,
            bytes: MAX_BYTES,
            settle,
            reply,
        })
        .await??;
    let shown = deliveries.iter().map(|d| show(d, auto, truncate));
    json(Json::Array(shown.collect()))
}

/// Properties and payload of a message, as an AMQP 0-9-1 client would receive them.
pub(crate) struct ShownContent {
    pub(crate) properties: Json,
    pub(crate) payload: String,
    pub(crate) payload_encoding: &'static str,
    pub(crate) payload_bytes: usize,
}

/// `auto`: the payload is shown as text if it is UTF-8. `attempts`, `acquired`: counts of deliveries, 0 if unknown.
pub(crate) fn show_content(
    message: &Message,
    auto: bool,
    attempts: u32,
    acquired: u32,
) -> ShownContent {
    show_part(message, auto, None, (attempts, acquired))
}

fn show_part(
    message: &Message,
    auto: bool,
    truncate: Option<usize>,
    counts: (u32, u32),
) -> ShownContent {
    let encoded = amqp091::convert(message);
    let body = encoded.body.bytes();
    let part = body.get(..truncate.unwrap_or(body.len())).unwrap_or(body);
    let (payload, payload_encoding) = encode_payload(part, auto, part.len() < body.len());
    let deaths = message.deaths();
    ShownContent {
        properties: properties(&encoded.properties, deaths.as_ref(), counts),
        payload,
        payload_encoding,
        payload_bytes: body.len(),
    }
}

/// A payload as text if it may be and is UTF-8, otherwise in base64. `is_cut`: the last character may be incomplete.
pub(crate) fn encode_payload(bytes: &[u8], auto: bool, is_cut: bool) -> (String, &'static str) {
    let text = match std::str::from_utf8(bytes) {
        Err(error) if is_cut && error.error_len().is_none() => {
            let whole = bytes.get(..error.valid_up_to()).unwrap_or_default();
            std::str::from_utf8(whole)
        }
        text => text,
    };
    match text {
        Ok(text) if auto => (text.to_owned(), "string"),
        _ => (STANDARD.encode(bytes), "base64"),
    }
}

fn show(delivery: &Delivery, auto: bool, truncate: Option<usize>) -> Json {
    let message = &delivery.message;
    let counts = (delivery.attempts.unwrap_or(0), delivery.acquired);
    let shown = show_part(message, auto, truncate, counts);
    object!({
        "payload_bytes": shown.payload_bytes,
        "redelivered": delivery.redelivered,
        "exchange": message.exchange(),
        "routing_key": message.routing_key(),
        "message_count": delivery.left,
        "properties": shown.properties,
        "payload": shown.payload,
        "payload_encoding": shown.payload_encoding,
    })
}

/// The message's properties, including the headers that an AMQP client would receive.
fn properties(raw: &[u8], deaths: Option<&Deaths>, (attempts, acquired): (u32, u32)) -> Json {
    let mut shown = Map::new();
    let Ok(decoded) = Properties::received(raw) else {
        return Json::Object(shown);
    };
    let mut headers = match decoded.header_table() {
        Ok(table) => control::json::object(&table),
        Err(_) => Map::new(),
    };
    for edit in deaths.map(amqp091::death_edits).unwrap_or_default() {
        if let Some(value) = edit.value {
            headers.insert(edit.key.to_owned(), control::json::value(&value));
        }
    }
    if attempts > 0 {
        headers.insert("x-delivery-count".to_owned(), object!(attempts));
    }
    if acquired > 0 {
        headers.insert("x-acquired-count".to_owned(), object!(acquired));
    }
    for (name, text) in [
        ("content_type", decoded.content_type),
        ("content_encoding", decoded.content_encoding),
        ("correlation_id", decoded.correlation_id),
        ("reply_to", decoded.reply_to),
        ("expiration", decoded.expiration),
        ("message_id", decoded.message_id),
        ("type", decoded.kind),
        ("user_id", decoded.user_id),
        ("app_id", decoded.app_id),
        ("cluster_id", decoded.cluster_id),
    ] {
        shown.extend(text.map(|t| (name.to_owned(), object!(t.lossy()))));
    }
    let numbers = [
        ("delivery_mode", decoded.delivery_mode.map(u64::from)),
        ("priority", decoded.priority.map(u64::from)),
        ("timestamp", decoded.timestamp),
    ];
    for (name, number) in numbers {
        shown.extend(number.map(|n| (name.to_owned(), object!(n))));
    }
    if !headers.is_empty() {
        shown.insert("headers".to_owned(), Json::Object(headers));
    }
    Json::Object(shown)
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn message_of_another_protocol_is_shown_as_amqp() {
        // QoS 1, topic "a"; user property k: v.
        let mut raw = vec![1, 0, 1];
        raw.extend(b"a\x26\x00\x01k\x00\x01v");
        let builder = MessageBuilder {
            protocol: Protocol::Mqtt,
            durable: true,
            priority: None,
            ttl_ms: Some(9000),
            received: WallTime(0),
            exchange: "amq.topic",
            routing_keys: &["a"],
            properties: &raw,
        };
        let delivery = Delivery {
            id: 1,
            redelivered: false,
            attempts: None,
            acquired: 0,
            left: 0,
            annotations: None,
            message: builder.build(2, [&b"hi"[..]]).unwrap(),
        };
        let shown = show(&delivery, true, None);
        assert_eq!(shown["properties"]["delivery_mode"], 2);
        assert_eq!(shown["properties"]["expiration"], "9000");
        assert_eq!(shown["properties"]["headers"]["k"], "v");
        assert_eq!(shown["payload"], "hi");
    }

    #[test]
    fn expiration_follows_amqp_rules() {
        assert_eq!((ttl("0"), ttl("+7")), (Ok(0), Ok(7)));
        assert_eq!(ttl("315360000000"), Ok(MAX_TTL_MS));
        for (text, why) in [
            ("", "no_integer"),
            ("soon", "no_integer"),
            ("1.5", "{leftover_string,\".5\"}"),
            ("-1", "{value_negative,-1}"),
            ("315360000001", "{value_too_large,315360000001}"),
            (
                "99999999999999999999999",
                "{value_too_large,99999999999999999999999}",
            ),
        ] {
            assert_eq!(ttl(text), Err(why.to_owned()), "{text}");
        }
    }
}
