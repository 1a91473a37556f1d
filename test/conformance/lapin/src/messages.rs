//! Publishing, consuming, settling.

use crate::checks::{Checks, PATIENCE, holds, same, until};
use crate::{KINDS, Result, channel, connect, declare, fresh, get, publish, table, take, text};
use futures_lite::StreamExt;
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicGetOptions, BasicNackOptions,
    BasicPublishOptions, BasicQosOptions, BasicRecoverOptions, BasicRejectOptions,
    QueueDeclareOptions, QueueDeleteOptions, QueuePurgeOptions,
};
use lapin::types::{AMQPValue, FieldArray, FieldTable, ShortString};
use lapin::{BasicProperties, Consumer};

pub async fn run(checks: &mut Checks) {
    for kind in KINDS {
        checks
            .check(&format!("publishes with confirms: {kind}"), confirms(kind))
            .await;
        checks
            .check(
                &format!("prefetch bounds what is out: {kind}"),
                prefetch(kind),
            )
            .await;
        checks
            .check(
                &format!("nack, reject and recover requeue or drop: {kind}"),
                settlement(kind),
            )
            .await;
        checks
            .check(
                &format!("large bodies travel in many frames: {kind}"),
                large_bodies(kind),
            )
            .await;
        checks
            .check(
                &format!("properties and headers arrive as they were: {kind}"),
                properties(kind),
            )
            .await;
        checks
            .check(
                &format!("a consumer hears that its queue is gone: {kind}"),
                cancelled(kind),
            )
            .await;
        checks
            .check(
                &format!("a closed channel returns what it held: {kind}"),
                closed_channel(kind),
            )
            .await;
    }
    checks
        .check(
            "unroutable mandatory messages come back with their confirm",
            returned(),
        )
        .await;
    checks
        .check("transactions commit and roll back", transactions())
        .await;
    checks.check("a full queue refuses", full()).await;
    checks
        .check("purge and delete count", purge_and_delete())
        .await;
    checks
        .check("replies come directly", direct_replies())
        .await;
}

async fn consume(channel: &lapin::Channel, queue: &ShortString) -> Result<Consumer> {
    let (tag, options) = (fresh("consumer"), BasicConsumeOptions::default());
    Ok(channel
        .basic_consume(queue.clone(), tag, options, FieldTable::default())
        .await?)
}

/// The next delivery of a consumer; None when it was cancelled.
async fn next(consumer: &mut Consumer) -> Result<Option<lapin::message::Delivery>> {
    match tokio::time::timeout(PATIENCE, consumer.next()).await {
        Ok(Some(delivery)) => Ok(Some(delivery?)),
        Ok(None) => Ok(None),
        Err(_) => Err("no delivery".into()),
    }
}

async fn confirms(kind: &str) -> Result {
    let connection = connect().await?;
    let channel = channel(&connection).await?;
    let queue = declare(&channel, kind, &[]).await?;
    let bodies: Vec<Vec<u8>> = (0..500).map(|n: u32| n.to_string().into_bytes()).collect();
    for body in &bodies {
        let options = BasicPublishOptions::default();
        // The confirms are awaited together below.
        drop(
            channel
                .basic_publish(
                    "".into(),
                    queue.clone(),
                    options,
                    body,
                    BasicProperties::default(),
                )
                .await?,
        );
    }
    holds(
        channel.wait_for_confirms().await?.is_empty(),
        "nothing is returned",
    )?;
    let options = BasicConsumeOptions {
        no_ack: true,
        ..Default::default()
    };
    let mut consumer = channel
        .basic_consume(queue, "all".into(), options, FieldTable::default())
        .await?;
    for body in bodies {
        same(next(&mut consumer).await?.ok_or("cancelled")?.data, body)?;
    }
    Ok(connection.close(200, "".into()).await?)
}

async fn prefetch(kind: &str) -> Result {
    let connection = connect().await?;
    let channel = channel(&connection).await?;
    let queue = declare(&channel, kind, &[]).await?;
    for n in 0..12 {
        publish(&channel, &queue, &[n]).await?;
    }
    channel.basic_qos(5, BasicQosOptions::default()).await?;
    let mut consumer = consume(&channel, &queue).await?;
    let mut last = None;
    for n in 0..5 {
        let delivery = next(&mut consumer).await?.ok_or("cancelled")?;
        same(&delivery.data, &vec![n])?;
        last = Some(delivery);
    }
    let passive = QueueDeclareOptions::default().passive();
    // The broker answers in order: what it had sent before this answer is here.
    let left = channel
        .queue_declare(queue.clone(), passive, FieldTable::default())
        .await?;
    same((left.message_count(), left.consumer_count()), (7, 1))?;
    holds(
        futures_lite::future::poll_once(consumer.next())
            .await
            .is_none(),
        "no sixth delivery",
    )?;
    last.ok_or("nothing")?
        .ack(BasicAckOptions { multiple: true })
        .await?;
    for n in 5..12 {
        let delivery = next(&mut consumer).await?.ok_or("cancelled")?;
        same(&delivery.data, &vec![n])?;
        delivery.ack(BasicAckOptions::default()).await?;
    }
    channel
        .basic_cancel(consumer.tag(), BasicCancelOptions::default())
        .await?;
    Ok(connection.close(200, "".into()).await?)
}

async fn settlement(kind: &str) -> Result {
    let connection = connect().await?;
    let channel = channel(&connection).await?;
    let queue = declare(&channel, kind, &[]).await?;
    publish(&channel, &queue, b"1").await?;
    let first = get(&channel, &queue).await?;
    holds(!first.redelivered, "a first delivery")?;
    first
        .nack(BasicNackOptions {
            multiple: false,
            requeue: true,
        })
        .await?;
    holds(
        get(&channel, &queue).await?.redelivered,
        "redelivered after nack",
    )?;
    channel
        .basic_recover(BasicRecoverOptions { requeue: true })
        .await?;
    let third = get(&channel, &queue).await?;
    holds(third.redelivered, "redelivered after recover")?;
    third.reject(BasicRejectOptions { requeue: false }).await?;
    holds(
        channel
            .basic_get(queue, BasicGetOptions::default())
            .await?
            .is_none(),
        "dropped by reject",
    )?;
    Ok(connection.close(200, "".into()).await?)
}

async fn closed_channel(kind: &str) -> Result {
    let connection = connect().await?;
    let (holder, other) = (channel(&connection).await?, channel(&connection).await?);
    let queue = declare(&holder, kind, &[]).await?;
    publish(&holder, &queue, b"held").await?;
    let held = get(&holder, &queue).await?;
    same(held.message_count, 0)?;
    holder.close(200, "".into()).await?;
    let again = get(&other, &queue).await?;
    same(
        (again.redelivered, again.data.as_slice()),
        (true, b"held".as_slice()),
    )?;
    Ok(connection.close(200, "".into()).await?)
}

async fn large_bodies(kind: &str) -> Result {
    let connection = lapin::Connection::connect(
        &format!("{}?frame_max=4096", crate::URI),
        Default::default(),
    )
    .await?;
    let channel = channel(&connection).await?;
    let queue = declare(&channel, kind, &[]).await?;
    let body: Vec<u8> = (0..3_000_000_u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    publish(&channel, &queue, &body).await?;
    publish(&channel, &queue, b"").await?;
    holds(
        take(&channel, &queue, 2).await? == [body, Vec::new()],
        "both bodies as they were",
    )?;
    Ok(connection.close(200, "".into()).await?)
}

async fn properties(kind: &str) -> Result {
    let connection = connect().await?;
    let channel = channel(&connection).await?;
    let queue = declare(&channel, kind, &[]).await?;
    let mut array = FieldArray::default();
    array.push(AMQPValue::ShortInt(-2));
    array.push(AMQPValue::FieldTable(table(&[(
        "inner",
        AMQPValue::Float(0.5),
    )])));
    let headers = table(&[
        ("boolean", AMQPValue::Boolean(true)),
        ("byte", AMQPValue::ShortShortInt(-1)),
        ("long", AMQPValue::LongInt(-70_000)),
        ("longlong", AMQPValue::LongLongInt(1 << 40)),
        ("double", AMQPValue::Double(1.5)),
        ("text", text("é")),
        ("time", AMQPValue::Timestamp(1_700_000_000)),
        ("bytes", AMQPValue::ByteArray(vec![0, 255].into())),
        ("nothing", AMQPValue::Void),
        ("array", AMQPValue::FieldArray(array)),
    ]);
    let sent = BasicProperties::default()
        .with_content_type("text/plain".into())
        .with_content_encoding("utf-8".into())
        .with_headers(headers)
        .with_delivery_mode(2)
        .with_priority(3)
        .with_correlation_id("c".into())
        .with_reply_to("r".into())
        .with_expiration("600000".into())
        .with_message_id("m".into())
        .with_timestamp(1_700_000_000)
        .with_type("t".into())
        .with_user_id("guest".into())
        .with_app_id("a".into())
        .with_cluster_id("x".into());
    let options = BasicPublishOptions::default();
    channel
        .basic_publish("".into(), queue.clone(), options, b"", sent.clone())
        .await?
        .await?;
    same(get(&channel, &queue).await?.delivery.properties, sent)?;
    Ok(connection.close(200, "".into()).await?)
}

async fn cancelled(kind: &str) -> Result {
    let connection = connect().await?;
    let (channel, other) = (channel(&connection).await?, channel(&connection).await?);
    let queue = declare(&channel, kind, &[]).await?;
    let mut consumer = consume(&channel, &queue).await?;
    other
        .queue_delete(queue, QueueDeleteOptions::default())
        .await?;
    holds(next(&mut consumer).await?.is_none(), "the consumer ends")?;
    channel
        .queue_declare(
            "".into(),
            QueueDeclareOptions::exclusive(),
            FieldTable::default(),
        )
        .await?;
    Ok(connection.close(200, "".into()).await?)
}

async fn returned() -> Result {
    let connection = connect().await?;
    let channel = channel(&connection).await?;
    let options = BasicPublishOptions {
        mandatory: true,
        ..Default::default()
    };
    let (exchange, key) = ("amq.direct".into(), "nowhere".into());
    let confirm = channel
        .basic_publish(exchange, key, options, b"lost", BasicProperties::default())
        .await?
        .await?;
    holds(confirm.is_ack(), "confirmed")?;
    let message = confirm.take_message().ok_or("not returned")?;
    same(
        (message.reply_code, message.reply_text.as_str()),
        (312, "NO_ROUTE"),
    )?;
    same(message.delivery.data, b"lost".to_vec())?;
    Ok(connection.close(200, "".into()).await?)
}

async fn transactions() -> Result {
    let connection = connect().await?;
    let channel = connection.create_channel().await?;
    let queue = declare(&channel, "classic", &[]).await?;
    channel.tx_select().await?;
    let send = async |body: &'static [u8]| {
        let options = BasicPublishOptions::default();
        channel
            .basic_publish(
                "".into(),
                queue.clone(),
                options,
                body,
                BasicProperties::default(),
            )
            .await
    };
    send(b"1").await?;
    channel.tx_rollback().await?;
    send(b"2").await?;
    holds(
        channel
            .basic_get(queue.clone(), BasicGetOptions::default())
            .await?
            .is_none(),
        "nothing before the commit",
    )?;
    channel.tx_commit().await?;
    let message = get(&channel, &queue).await?;
    same(message.data.as_slice(), b"2".as_slice())?;
    message.ack(BasicAckOptions::default()).await?;
    channel.tx_rollback().await?;
    channel
        .basic_nack(
            message.delivery_tag,
            BasicNackOptions {
                multiple: false,
                requeue: true,
            },
        )
        .await?;
    channel.tx_commit().await?;
    holds(
        get(&channel, &queue).await?.redelivered,
        "the rolled back ack is undone",
    )?;
    Ok(connection.close(200, "".into()).await?)
}

async fn full() -> Result {
    let connection = connect().await?;
    let channel = channel(&connection).await?;
    let limits = [
        ("x-max-length", AMQPValue::LongInt(1)),
        ("x-overflow", text("reject-publish")),
    ];
    let queue = declare(&channel, "classic", &limits).await?;
    publish(&channel, &queue, b"1").await?;
    let options = BasicPublishOptions::default();
    let second = channel
        .basic_publish(
            "".into(),
            queue.clone(),
            options,
            b"2",
            BasicProperties::default(),
        )
        .await?
        .await?;
    holds(second.is_nack(), "refused by basic.nack")?;
    Ok(connection.close(200, "".into()).await?)
}

async fn purge_and_delete() -> Result {
    let connection = connect().await?;
    let channel = channel(&connection).await?;
    for kind in KINDS {
        let queue = declare(&channel, kind, &[]).await?;
        publish(&channel, &queue, b"1").await?;
        publish(&channel, &queue, b"2").await?;
        same(
            channel
                .queue_purge(queue.clone(), QueuePurgeOptions::default())
                .await?,
            2,
        )?;
        publish(&channel, &queue, b"3").await?;
        same(
            channel
                .queue_delete(queue.clone(), QueueDeleteOptions::default())
                .await?,
            1,
        )?;
        same(
            channel
                .queue_delete(queue, QueueDeleteOptions::default())
                .await?,
            0,
        )?;
    }
    Ok(connection.close(200, "".into()).await?)
}

async fn direct_replies() -> Result {
    let connection = connect().await?;
    let (client, server) = (channel(&connection).await?, channel(&connection).await?);
    let queue = declare(&server, "classic", &[]).await?;
    let pseudo: ShortString = "amq.rabbitmq.reply-to".into();
    let options = BasicConsumeOptions {
        no_ack: true,
        ..Default::default()
    };
    let mut replies = client
        .basic_consume(
            pseudo.clone(),
            "replies".into(),
            options,
            FieldTable::default(),
        )
        .await?;
    let request = BasicProperties::default().with_reply_to(pseudo);
    client
        .basic_publish(
            "".into(),
            queue.clone(),
            BasicPublishOptions::default(),
            b"ping",
            request,
        )
        .await?
        .await?;
    let asked = until("the request", || async {
        Ok(server
            .basic_get(queue.clone(), BasicGetOptions { no_ack: true })
            .await?)
    })
    .await?;
    let reply_to = asked.properties.reply_to().clone().ok_or("no reply-to")?;
    publish(&server, &reply_to, b"pong").await?;
    same(
        next(&mut replies).await?.ok_or("cancelled")?.data,
        b"pong".to_vec(),
    )?;
    Ok(connection.close(200, "".into()).await?)
}
