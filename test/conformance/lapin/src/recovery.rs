//! What an application sees of its node's death: lapin recovers the connection, its topology and its consumers; what was not
//! confirmed is the application's to publish again. To go to another node is the application's too.

use crate::checks::{Checks, PATIENCE, cluster, holds, node, same, until};
use crate::{KINDS, Result, channel, publish, table, text};
use futures_lite::StreamExt;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions, QueueDeclareOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::{Channel, Connection, ConnectionProperties};
use std::collections::BTreeSet;
use std::time::Duration;

/// A third of them is confirmed when the node dies.
const MESSAGES: u32 = 300;

pub async fn run(checks: &mut Checks) {
    for kind in KINDS {
        checks
            .check(
                &format!("a node killed and started again has all that was confirmed: {kind}"),
                restart(kind),
            )
            .await;
    }
    checks
        .check(
            "two nodes of three go on without the one we were on",
            failover(),
        )
        .await;
}

fn properties() -> ConnectionProperties {
    ConnectionProperties::default()
        .enable_auto_recover()
        .configure_backoff(|backoff| {
            backoff
                .with_min_delay(Duration::from_millis(50))
                .with_max_delay(Duration::from_millis(500))
                .with_max_times(200)
        })
}

async fn declare(channel: &Channel, queue: &ShortString, kind: &str) -> lapin::Result<()> {
    let arguments = table(&[("x-queue-type", text(kind))]);
    channel
        .queue_declare(queue.clone(), QueueDeclareOptions::durable(), arguments)
        .await
        .map(|_| ())
}

/// Consumes until all numbers below the limit were seen.
async fn consume_all(channel: &Channel, queue: &ShortString, limit: u32) -> Result {
    channel.basic_qos(50, BasicQosOptions::default()).await?;
    let (tag, options) = ("all".into(), BasicConsumeOptions::default());
    let mut consumer = channel
        .basic_consume(queue.clone(), tag, options, FieldTable::default())
        .await?;
    let mut seen = BTreeSet::new();
    while seen.len() < limit as usize {
        let delivery = tokio::time::timeout(PATIENCE, consumer.next()).await;
        let delivery = delivery
            .map_err(|_| format!("{} of {limit}, then nothing", seen.len()))?
            .ok_or("cancelled")??;
        seen.insert(std::str::from_utf8(&delivery.data)?.parse::<u32>()?);
        delivery.ack(BasicAckOptions::default()).await?;
    }
    same(seen, (0..limit).collect())
}

async fn restart(kind: &str) -> Result {
    let queue: ShortString = format!("killed-{kind}").into();
    let connection = Connection::connect(crate::URI, properties()).await?;
    let channel = channel(&connection).await?;
    declare(&channel, &queue, kind).await?;
    for n in 0..MESSAGES {
        if n == MESSAGES / 3 {
            node(&["kill", "one"])?;
            node(&["start", "one"])?;
        }
        while let Err(error) = publish(&channel, &queue, n.to_string().as_bytes()).await {
            let error = *error.downcast::<lapin::Error>()?;
            channel.wait_for_recovery(error).await?;
        }
    }
    consume_all(&channel, &queue, MESSAGES).await?;
    Ok(connection.close(200, "".into()).await?)
}

/// A channel on a node that takes us, with the queue declared.
async fn some_node(queue: &ShortString) -> Result<(Connection, Channel)> {
    until("a node that takes us", || async {
        for port in [5681, 5682, 5683] {
            let uri = format!("amqp://127.0.0.1:{port}/%2F");
            let Ok(connection) = Connection::connect(&uri, ConnectionProperties::default()).await
            else {
                continue;
            };
            if let Ok(channel) = channel(&connection).await
                && declare(&channel, queue, "quorum").await.is_ok()
            {
                return Ok(Some((connection, channel)));
            }
        }
        Ok(None)
    })
    .await
}

async fn failover() -> Result {
    node(&["stop", "one"])?;
    cluster(&["start"])?;
    let queue: ShortString = "survivor".into();
    let (mut connection, mut channel) = some_node(&queue).await?;
    for n in 0..MESSAGES {
        if n == MESSAGES / 3 {
            node(&["kill", "n1"])?;
        }
        if n == 2 * MESSAGES / 3 {
            cluster(&["node", "n1"])?;
        }
        while publish(&channel, &queue, n.to_string().as_bytes())
            .await
            .is_err()
        {
            holds(
                !connection.status().connected(),
                "only a lost connection fails a publish",
            )?;
            (connection, channel) = some_node(&queue).await?;
        }
    }
    consume_all(&channel, &queue, MESSAGES).await?;
    Ok(connection.close(200, "".into()).await?)
}
