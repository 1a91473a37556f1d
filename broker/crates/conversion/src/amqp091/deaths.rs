//! The dead-letter history for AMQP 0.9.1 clients: the header `x-death` and the `x-first-death-*`
//! and `x-last-death-*` headers, as in RabbitMQ.

use codec_amqp091::HeaderEdit;
use message::{Death, Deaths, Table, Value};

/// Headers that describe the dead-letter history. They replace headers of the same name from the
/// publisher.
fn headers(deaths: &Deaths) -> Vec<(&'static str, Value)> {
    let records = deaths.records().iter().map(record).collect();
    let mut headers = vec![("x-death", Value::Array(records))];
    headers.extend(companions(deaths));
    headers
}

/// The headers that exchanges can match and that every AMQP client gets.
pub(crate) fn companions(deaths: &Deaths) -> Vec<(&'static str, Value)> {
    let mut headers = Vec::new();
    if let Some(first) = deaths.first() {
        headers.push(("x-first-death-exchange", Value::from(&*first.exchange)));
        headers.push(("x-first-death-queue", Value::from(&*first.queue)));
        headers.push(("x-first-death-reason", Value::from(first.reason.name())));
    }
    if let Some(last) = deaths.last() {
        headers.push(("x-last-death-exchange", Value::from(deaths.last_exchange())));
        headers.push(("x-last-death-queue", Value::from(&*last.queue)));
        headers.push(("x-last-death-reason", Value::from(last.reason.name())));
    }
    headers
}

fn record(death: &Death) -> Value {
    let mut table = Table::default();
    // RabbitMQ writes it first.
    if let Some(ttl) = death.ttl_ms {
        table.set("original-expiration", Value::from(&*ttl.to_string()));
    }
    let count = i64::try_from(death.count).unwrap_or(i64::MAX);
    table.set("count", Value::I64(count));
    table.set("reason", Value::from(death.reason.name()));
    table.set("queue", Value::from(&*death.queue));
    table.set("time", Value::Timestamp(death.first.0 / 1000));
    table.set("exchange", Value::from(&*death.exchange));
    let keys = death.routing_keys.iter().map(|key| Value::from(&**key));
    table.set("routing-keys", Value::Array(keys.collect()));
    Value::Table(table)
}

/// Changes to the properties on the way to a client. The stored message keeps the publisher's
/// properties.
pub fn death_edits(deaths: &Deaths) -> Vec<HeaderEdit<'static>> {
    let edit = |(key, value)| HeaderEdit {
        key,
        value: Some(value),
    };
    headers(deaths).into_iter().map(edit).collect()
}
