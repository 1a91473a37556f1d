//! Routing of a complete basic.publish: checks in RabbitMQ's order, one allocation for the message,
//! then the queues.

use crate::channel::Channel;
use crate::connection_state::{ConnectionState, StepContext};
use crate::content::PublishAssembly;
use crate::directory;
use crate::failure::{Failure, MethodResult, ReplyCode, refuse};
use crate::replies::{REPLY_TO, ReplyConsumer};
use bytes::BytesMut;
use codec_amqp091::{HeaderEdit, Method, Properties, Short, encode_content_header, table};
use conversion::Part;
use conversion::amqp091::property_text;
use env::WallTime;
use message::{Message, MessageBuilder, Protocol, Table, Value};
use metadata::{Right, Traffic};
use operations::is_direct_reply_name;
use routing::{HashedProperty, PublishOrigin, RoutingInput};
use session::interceptors::{self, Interceptors};
use session::{FlowState, Outbox, PublishCounters, PublishTag, TraceEvent};
use smallvec::SmallVec;

pub(crate) fn publish(
    channel: &mut Channel,
    assembly: &PublishAssembly,
    body: &[u8],
    conn: &mut ConnectionState,
    cx: &mut StepContext<'_>,
) -> MethodResult {
    if assembly.immediate {
        refuse!(NotImplemented, "immediate=true");
    }
    let (message, routes) = route(channel, assembly, body, conn, cx)?;
    if let Some(transaction) = &mut channel.transaction {
        return transaction.publish(message, routes, assembly.mandatory, conn);
    }
    conn.routes = dispatch(channel, message, routes, assembly.mandatory, conn, cx);
    Ok(())
}

/// Fails if this node may not know the queue of a direct reply yet: the queue of a request that has just
/// been received may be newer than this node's tree.
pub(crate) fn check_reply_queue(
    assembly: &PublishAssembly,
    conn: &ConnectionState,
    cx: &StepContext<'_>,
) -> MethodResult {
    let key = assembly.routing_key();
    if !assembly.exchange().is_empty()
        || !is_direct_reply_name(key)
        || cx.broker.knows_all()
        || directory::caller(cx.broker, conn).queue(key).is_some()
    {
        return Ok(());
    }
    let text = format!("no queue '{key}' in vhost '{}'", conn.vhost);
    Err(Failure {
        unknown: Some(key.into()),
        ..Failure::new(ReplyCode::NotFound, text)
    })
}

/// Publishes a message to its queues, or returns it to the client. Hands the vector of queues back
/// for reuse.
pub(crate) fn dispatch(
    channel: &mut Channel,
    message: Message,
    mut routes: Vec<metadata::QueueId>,
    mandatory: bool,
    conn: &mut ConnectionState,
    cx: &mut StepContext<'_>,
) -> Vec<metadata::QueueId> {
    let size = u32::try_from(message.as_bytes().len()).unwrap_or(u32::MAX);
    let seq = channel.confirms.next();
    let tag: PublishTag = channel.publish_tag(seq);
    let bound = routes.len();
    let announced = cx.broker.announce(&conn.vhost, &message, tag, &mut routes);
    conn.behind |= announced.behind;
    let routed = routes.len() + announced.receivers;
    if routed > bound {
        count_traffic(0, routed - bound, &message, conn, cx);
    }
    // basic.return precedes the confirm.
    if routed == 0 && mandatory {
        send_return(channel.number, &message, conn, cx.out);
    }
    let lengths = (message.body_len(), message.properties().len());
    count(channel, routed as u64, lengths, mandatory, conn);
    if cx.broker.tree().traces() {
        let what = TraceEvent::Published {
            routes: &routes,
            tag,
        };
        conn.trace(channel.number, &message, what, cx);
    }
    let answers = routes.len() + announced.awaited + usize::from(announced.refused);
    let slots = channel.confirms.slots();
    if let Some(settled) = channel.confirms.publish(answers, size) {
        channel.count_confirm(settled, conn);
        channel.confirm(settled, cx);
    } else {
        conn.add_in_flight(size);
    }
    conn.replace_confirm_slots(slots, channel.confirms.slots());
    if announced.refused {
        channel.record_answer(tag, false, conn, cx);
    }
    if let Some((&last, others)) = routes.split_last() {
        for &queue in others {
            conn.behind |= cx.broker.publish(queue, tag, message.clone()) == FlowState::Behind;
        }
        conn.behind |= cx.broker.publish(last, tag, message) == FlowState::Behind;
    }
    routes
}

/// Adds to the traffic counters of the message's exchange.
pub(crate) fn count_traffic(
    published: u64,
    routed: usize,
    message: &Message,
    conn: &ConnectionState,
    cx: &StepContext<'_>,
) {
    let routed = routed as u64;
    let tree = cx.broker.tree();
    tree.count_traffic(
        &conn.vhost,
        message.exchange(),
        Traffic { published, routed },
    );
}

/// Counts a publish by its result and the bytes of its body and properties.
fn count(
    channel: &mut Channel,
    routed: u64,
    (body, properties): (usize, usize),
    mandatory: bool,
    conn: &mut ConnectionState,
) {
    let confirm = u64::from(channel.confirm_base.is_some());
    let add = |p: &mut PublishCounters| {
        p.received += 1;
        p.received_confirm += confirm;
        match routed {
            0 if mandatory => p.unroutable_returned += 1,
            0 => p.unroutable_dropped += 1,
            queues => p.routed += queues,
        }
    };
    let publishes = &mut channel.counts().publishes;
    let first = publishes.received == 0;
    add(publishes);
    conn.count(|t| {
        t.publishers += i64::from(first);
        t.published_bytes += (body + properties) as u64;
        t.sizes.observe(body);
        add(&mut t.publishes);
    });
}

/// Builds the message and computes its queues. The caller must return the vector to the
/// connection's scratch space.
fn route(
    channel: &Channel,
    assembly: &PublishAssembly,
    body: &[u8],
    conn: &mut ConnectionState,
    cx: &mut StepContext<'_>,
) -> MethodResult<(Message, Vec<metadata::QueueId>)> {
    let received = cx.broker.wall();
    let exchange = assembly.exchange();
    directory::check_publish(cx.broker, conn, exchange)?;
    let caller = directory::caller(cx.broker, conn);
    let record = caller.exchange_to_publish(exchange)?;

    let mut copies: SmallVec<[table::Entry<'_>; 2]> = SmallVec::new();
    let properties = match Properties::scan(&assembly.properties, |entry| {
        if matches!(entry.key, "CC" | "BCC") {
            copies.push(entry);
        }
    }) {
        Ok(properties) => properties,
        Err(error) => refuse!(FrameError, "cannot decode content properties: {error}"),
    };
    let ttl_ms = match properties.expiration {
        Some(text) => Some(parse_expiration(&text.lossy())?),
        None => None,
    };
    let (copied, blind) = copy_keys(&copies)?;
    let mut keys: SmallVec<[&str; 4]> = SmallVec::new();
    keys.push(assembly.routing_key());
    keys.extend(copied.iter().filter_map(|v| v.as_str()));
    if let Some(record) = record {
        for key in &keys {
            caller.check_topic(Right::Write, record, key)?;
        }
    }
    let reads_delays = operations::reads_delays(record);
    check_user(&properties, conn)?;

    let added = match conn.limits.interceptors.is_incoming() {
        true => added_headers(&conn.limits.interceptors, &properties, received, cx.broker),
        false => AddedHeaders::default(),
    };
    let rewritten = rewrite(&properties, &copies, added, channel.replies.as_deref())?;
    let raw = rewritten.as_deref().unwrap_or(&assembly.properties);
    let builder = MessageBuilder {
        protocol: Protocol::Amqp091,
        durable: properties.delivery_mode == Some(2),
        priority: properties.priority,
        ttl_ms,
        received,
        exchange,
        routing_keys: &keys,
        properties: raw,
    };
    let mut message = match builder.build_blind(blind, body.len(), [body]) {
        Ok(message) => message,
        Err(error) => refuse!(PreconditionFailed, "invalid message: {error}"),
    };
    let mut routes = std::mem::take(&mut conn.routes);
    routes.clear();
    let view = PublishView {
        properties: &properties,
        origin: PublishOrigin {
            node: cx.broker.id().node.0,
            random: conn.next_random(received),
        },
    };
    let tree = cx.broker.tree();
    match channel.transaction.is_some() {
        // A publish in a transaction is counted at the commit.
        true => tree.route(&conn.vhost, exchange, &keys, &view, &mut routes),
        false => tree.publish(&conn.vhost, exchange, &keys, &view, &mut routes),
    };
    if tree.has_deduplicating_queues() {
        identify(&mut message, &routes, &view, tree)?;
    }
    if tree.has_queues_with_groups() {
        assign_group(&mut message, &routes, &view, tree)?;
    }
    if reads_delays && let Some(delay) = operations::delay_of(&view.headers()) {
        let scheduled = schedule(&message, delay, &routes, cx)?;
        return Ok((scheduled, routes));
    }
    Ok((message, routes))
}

/// Adds what queues recognise the message by, if one of them does.
#[cold]
#[inline(never)]
fn identify(
    message: &mut Message,
    routes: &[metadata::QueueId],
    view: &PublishView<'_>,
    tree: &metadata::Tree,
) -> MethodResult {
    if let Some(identified) = operations::deduplicate(tree, routes, message, || view.headers())? {
        *message = identified;
    }
    Ok(())
}

/// Adds the group of the message, if a queue has groups.
#[cold]
#[inline(never)]
fn assign_group(
    message: &mut Message,
    routes: &[metadata::QueueId],
    view: &PublishView<'_>,
    tree: &metadata::Tree,
) -> MethodResult {
    let grouped = operations::assign_group(tree, routes, message, None, || view.headers())?;
    if let Some(grouped) = grouped {
        *message = grouped;
    }
    Ok(())
}

/// Gives the message a delay in milliseconds, if all its queues can hold it back.
#[cold]
fn schedule(
    message: &Message,
    delay: u64,
    routes: &[metadata::QueueId],
    cx: &StepContext<'_>,
) -> MethodResult<Message> {
    operations::check_scheduled(cx.broker.tree(), routes)?;
    match queue::schedule(message, delay) {
        Ok(message) => Ok(message),
        Err(error) => refuse!(PreconditionFailed, "invalid message: {error}"),
    }
}

/// The view of exchanges on a publish.
struct PublishView<'a> {
    properties: &'a Properties<'a, Short<'a>>,
    origin: PublishOrigin,
}

impl RoutingInput for PublishView<'_> {
    fn headers(&self) -> Table {
        let table = self.properties.header_table();
        table.unwrap_or_else(|_| Table::default())
    }

    fn property(&self, property: HashedProperty) -> Option<String> {
        property_text(self.properties, property)
    }

    fn origin(&self) -> Option<PublishOrigin> {
        Some(self.origin)
    }
}

/// Headers and the timestamp that interceptors add to a publish.
#[derive(Default)]
struct AddedHeaders {
    headers: SmallVec<[HeaderEdit<'static>; 2]>,
    /// The property `timestamp`, in seconds since the Unix epoch.
    timestamp: Option<u64>,
}

/// The header with the time of arrival in milliseconds, under the name that RabbitMQ's plugin gave it.
const TIMESTAMP_IN_MS: &str = "timestamp_in_ms";

fn added_headers(
    interceptors: &Interceptors,
    properties: &Properties<'_, Short<'_>>,
    received: WallTime,
    broker: &dyn session::Broker,
) -> AddedHeaders {
    let published = properties.header_table().unwrap_or_default();
    let mut added = AddedHeaders::default();
    let mut add = |key: &'static str, value: Value, is_overwritten: bool| {
        if is_overwritten || published.get(key).is_none() {
            let value = Some(value);
            added.headers.push(HeaderEdit { key, value });
        }
    };
    if let Some(is_overwritten) = interceptors.received_time {
        let ms = i64::try_from(received.0).unwrap_or(i64::MAX);
        add(TIMESTAMP_IN_MS, Value::I64(ms), is_overwritten);
    }
    if let Some(is_overwritten) = interceptors.routing_node {
        let node = interceptors::routing_node(broker);
        add(interceptors::ROUTED_BY, Value::from(&*node), is_overwritten);
    }
    if let Some(is_overwritten) = interceptors.received_time
        && (is_overwritten || properties.timestamp.is_none())
    {
        added.timestamp = Some(received.0 / 1000);
    }
    added
}

/// Rewrites properties that must not be forwarded as they are: removes the BCC header, replaces the
/// direct reply-to address by the queue behind it, and adds what interceptors add. None: no change is
/// needed.
fn rewrite<'a>(
    properties: &Properties<'a, Short<'a>>,
    copies: &[table::Entry<'_>],
    added: AddedHeaders,
    replies: Option<&'a ReplyConsumer>,
) -> MethodResult<Option<BytesMut>> {
    let direct = properties.reply_to == Some(REPLY_TO.into());
    let blind = copies.iter().any(|c| c.key == "BCC");
    if !direct && !blind && added.headers.is_empty() && added.timestamp.is_none() {
        return Ok(None);
    }
    let mut properties = *properties;
    properties.timestamp = added.timestamp.or(properties.timestamp);
    if direct {
        match replies {
            Some(replies) => properties.reply_to = Some((&*replies.queue).into()),
            None => refuse!(PreconditionFailed, "fast reply consumer does not exist"),
        }
    }
    let mut edits = added.headers;
    edits.push(HeaderEdit {
        key: "BCC",
        value: None,
    });
    let mut out = BytesMut::new();
    properties.encode_edited(&edits, &mut out);
    Ok(Some(out))
}

/// The additional routing keys: the strings in the CC and BCC headers. Also returns how many of
/// them, at the end, are from BCC.
fn copy_keys(copies: &[table::Entry<'_>]) -> MethodResult<(Vec<Value>, usize)> {
    let mut keys = Vec::new();
    if copies.is_empty() {
        return Ok((keys, 0));
    }
    let mut cc_count = 0;
    // CC keys come before BCC keys, whatever their order in the table.
    for name in ["CC", "BCC"] {
        cc_count = keys.len();
        // The first of duplicate headers counts.
        if let Some(entry) = copies.iter().find(|c| c.key == name) {
            match entry.decode() {
                // Values that are not valid routing keys are ignored.
                Ok(Value::Array(values)) => keys.extend(values.into_iter().filter(is_key)),
                Ok(other) => refuse!(
                    PreconditionFailed,
                    "invalid message: {{unacceptable_type_in_header,\"{name}\",{}}}",
                    other.type_name()
                ),
                Err(error) => refuse!(FrameError, "cannot decode content properties: {error}"),
            }
        }
    }
    let blind = keys.len() - cc_count;
    Ok((keys, blind))
}

fn is_key(value: &Value) -> bool {
    value.as_str().is_some_and(|key| key.len() <= 255)
}

fn check_user(properties: &Properties<'_, Short<'_>>, conn: &ConnectionState) -> MethodResult {
    match properties.user_id {
        Some(user_id) if user_id.0 != conn.user.as_bytes() && !conn.impersonator => refuse!(
            PreconditionFailed,
            "user_id property set to '{}' but authenticated user was '{}'",
            user_id.lossy(),
            conn.user
        ),
        _ => Ok(()),
    }
}

/// Parses an expiration in milliseconds, with RabbitMQ's error texts.
fn parse_expiration(text: &str) -> MethodResult<u64> {
    let (negative, digits) = match text.strip_prefix(['-', '+']) {
        Some(rest) => (text.starts_with('-'), rest),
        None => (false, text),
    };
    let end = digits
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(digits.len());
    let (number, rest) = digits.split_at(end);
    if number.is_empty() {
        refuse!(
            PreconditionFailed,
            "invalid expiration '{text}': no_integer"
        );
    }
    if !rest.is_empty() {
        refuse!(
            PreconditionFailed,
            "invalid expiration '{text}': {{leftover_string,\"{rest}\"}}"
        );
    }
    match number.parse::<u64>() {
        Ok(value) if negative && value > 0 => refuse!(
            PreconditionFailed,
            "invalid expiration '{text}': {{value_negative,-{value}}}"
        ),
        Ok(value) if value <= MAX_EXPIRY => Ok(value),
        _ => refuse!(
            PreconditionFailed,
            "invalid expiration '{text}': {{value_too_large,{number}}}"
        ),
    }
}

/// Ten years in ms. RabbitMQ has no limit; here sums of times must not overflow.
const MAX_EXPIRY: u64 = 315_360_000_000;

fn send_return(channel: u16, message: &Message, conn: &ConnectionState, out: &mut Outbox) {
    let method = Method::BasicReturn {
        reply_code: 312,
        reply_text: "NO_ROUTE",
        exchange: message.exchange(),
        routing_key: message.routing_key(),
    };
    codec_amqp091::encode_method(out.tail(), channel, &method);
    let properties = message.properties();
    encode_content_header(out.tail(), channel, message.body_len() as u64, properties);
    let body = Part::whole(message);
    crate::deliver::send_body(out, channel, (message, &body), conn.frame_max);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expiration_errors_match_rabbitmq() {
        assert_eq!(parse_expiration("0"), Ok(0));
        assert_eq!(parse_expiration("315360000000"), Ok(MAX_EXPIRY));
        for (text, why) in [
            ("", "no_integer"),
            ("abc", "no_integer"),
            ("1.5", "{leftover_string,\".5\"}"),
            ("-1", "{value_negative,-1}"),
            ("315360000001", "{value_too_large,315360000001}"),
            (
                "99999999999999999999999",
                "{value_too_large,99999999999999999999999}",
            ),
        ] {
            let failure = parse_expiration(text).unwrap_err();
            assert_eq!(failure.text, format!("invalid expiration '{text}': {why}"));
        }
    }
}
