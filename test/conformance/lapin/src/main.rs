//! lapin against Posthorn: what an application does with it, and what it is told when it does it wrong.

mod checks;
mod errors;
mod messages;
mod recovery;
mod routing;

use lapin::message::BasicGetMessage;
use lapin::options::{
    BasicAckOptions, BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions,
    QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use std::sync::atomic::{AtomicU32, Ordering};

pub const URI: &str = "amqp://guest:guest@127.0.0.1:5672/%2F";
pub const KINDS: [&str; 2] = ["classic", "quorum"];

pub type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

pub async fn connect() -> Result<Connection> {
    Ok(Connection::connect(URI, ConnectionProperties::default()).await?)
}

/// A channel in confirm mode.
pub async fn channel(connection: &Connection) -> Result<Channel> {
    let channel = connection.create_channel().await?;
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await?;
    Ok(channel)
}

/// Unlike every other name of this run.
pub fn fresh(prefix: &str) -> ShortString {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!(
        "{prefix}-{}-{}",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    )
    .into()
}

pub fn table(entries: &[(&str, AMQPValue)]) -> FieldTable {
    let mut table = FieldTable::default();
    for (key, value) in entries {
        table.insert((*key).into(), value.clone());
    }
    table
}

pub fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

/// A durable queue of this type.
pub async fn declare(
    channel: &Channel,
    kind: &str,
    more: &[(&str, AMQPValue)],
) -> Result<ShortString> {
    let mut arguments = table(more);
    arguments.insert("x-queue-type".into(), text(kind));
    let queue = channel
        .queue_declare(fresh(kind), QueueDeclareOptions::durable(), arguments)
        .await?;
    Ok(queue.name().clone())
}

/// Publishes to the queue; an error unless the broker takes it.
pub async fn publish(channel: &Channel, queue: &ShortString, body: &[u8]) -> Result {
    let properties = BasicProperties::default().with_delivery_mode(2);
    let sent = channel
        .basic_publish(
            "".into(),
            queue.clone(),
            BasicPublishOptions::default(),
            body,
            properties,
        )
        .await?;
    match sent.await? {
        confirmed if confirmed.is_ack() => Ok(()),
        other => Err(format!("not taken: {other:?}").into()),
    }
}

/// The next message, as soon as there is one.
pub async fn get(channel: &Channel, queue: &ShortString) -> Result<BasicGetMessage> {
    checks::until("a message", || async {
        Ok(channel
            .basic_get(queue.clone(), BasicGetOptions::default())
            .await?)
    })
    .await
}

/// Takes and acknowledges so many.
pub async fn take(channel: &Channel, queue: &ShortString, count: usize) -> Result<Vec<Vec<u8>>> {
    let mut taken = Vec::new();
    for _ in 0..count {
        let message = get(channel, queue).await?;
        message.ack(BasicAckOptions::default()).await?;
        taken.push(message.delivery.data);
    }
    Ok(taken)
}

#[tokio::main]
async fn main() -> std::process::ExitCode {
    let mut checks = checks::Checks::new();
    messages::run(&mut checks).await;
    routing::run(&mut checks).await;
    errors::run(&mut checks).await;
    recovery::run(&mut checks).await;
    checks.end("lapin")
}
