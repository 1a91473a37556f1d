//! Exchanges, bindings, and queues that go by themselves.

use crate::checks::{Checks, holds, same};
use crate::{Result, channel, connect, declare, fresh, table, take, text};
use lapin::options::{
    BasicCancelOptions, BasicConsumeOptions, BasicPublishOptions, ExchangeBindOptions,
    ExchangeDeclareOptions, ExchangeDeleteOptions, ExchangeUnbindOptions, QueueBindOptions,
    QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, ExchangeKind};

pub async fn run(checks: &mut Checks) {
    checks
        .check("exchanges route by their type", by_type())
        .await;
    checks
        .check(
            "exchanges bind to exchanges, and an alternate takes what has no route",
            exchange_to_exchange(),
        )
        .await;
    checks
        .check(
            "exclusive, server-named and auto-delete queues go",
            temporary_queues(),
        )
        .await;
}

/// True when a mandatory publish was not returned. The body is the key.
async fn routed(
    channel: &Channel,
    exchange: &ShortString,
    key: &str,
    headers: FieldTable,
) -> Result<bool> {
    let options = BasicPublishOptions {
        mandatory: true,
        ..Default::default()
    };
    let properties = BasicProperties::default().with_headers(headers);
    let sent = channel
        .basic_publish(
            exchange.clone(),
            key.into(),
            options,
            key.as_bytes(),
            properties,
        )
        .await?;
    Ok(sent.await?.take_message().is_none())
}

async fn exchange(
    channel: &Channel,
    kind: ExchangeKind,
    arguments: FieldTable,
) -> Result<ShortString> {
    let name = fresh("exchange");
    channel
        .exchange_declare(
            name.clone(),
            kind,
            ExchangeDeclareOptions::default(),
            arguments,
        )
        .await?;
    Ok(name)
}

async fn by_type() -> Result {
    let (pdf, none) = (
        table(&[("format", text("pdf")), ("pages", AMQPValue::LongInt(3))]),
        FieldTable::default(),
    );
    let any = table(&[
        ("x-match", text("any")),
        ("format", text("pdf")),
        ("pages", AMQPValue::LongInt(4)),
    ]);
    // Type, binding key and arguments; each publish with whether it is routed.
    let cases = [
        (
            ExchangeKind::Direct,
            "blue",
            &none,
            [
                ("blue", &none, true),
                ("red", &none, false),
                ("", &none, false),
            ],
        ),
        (
            ExchangeKind::Topic,
            "*.b.#",
            &none,
            [
                ("a.b", &none, true),
                ("a.b.c.d", &none, true),
                ("b.a", &none, false),
            ],
        ),
        (
            ExchangeKind::Fanout,
            "",
            &none,
            [("x", &none, true), ("", &none, true), ("y", &none, true)],
        ),
        (
            ExchangeKind::Headers,
            "",
            &any,
            [("h", &pdf, true), ("", &none, false), ("b", &none, false)],
        ),
    ];
    let connection = connect().await?;
    let channel = channel(&connection).await?;
    for (kind, binding, arguments, publishes) in cases {
        let exchange = exchange(&channel, kind, FieldTable::default()).await?;
        let queue = declare(&channel, "classic", &[]).await?;
        let options = QueueBindOptions::default();
        channel
            .queue_bind(
                queue.clone(),
                exchange.clone(),
                binding.into(),
                options,
                arguments.clone(),
            )
            .await?;
        let mut expected = Vec::new();
        for (key, headers, is_routed) in publishes {
            same(
                (
                    key,
                    routed(&channel, &exchange, key, headers.clone()).await?,
                ),
                (key, is_routed),
            )?;
            expected.extend(is_routed.then(|| key.as_bytes().to_vec()));
        }
        same(take(&channel, &queue, expected.len()).await?, expected)?;
        channel
            .queue_unbind(queue, exchange.clone(), binding.into(), arguments.clone())
            .await?;
        channel
            .exchange_delete(
                exchange,
                ExchangeDeleteOptions {
                    if_unused: true,
                    nowait: false,
                },
            )
            .await?;
    }
    Ok(connection.close(200, "".into()).await?)
}

async fn exchange_to_exchange() -> Result {
    let connection = connect().await?;
    let channel = channel(&connection).await?;
    let none = FieldTable::default;
    let alternate = exchange(&channel, ExchangeKind::Fanout, none()).await?;
    let source = exchange(
        &channel,
        ExchangeKind::Topic,
        table(&[("alternate-exchange", text(alternate.as_str()))]),
    )
    .await?;
    let destination = exchange(&channel, ExchangeKind::Fanout, none()).await?;
    let queue = declare(&channel, "quorum", &[]).await?;
    let key: ShortString = "in.#".into();
    channel
        .exchange_bind(
            destination.clone(),
            source.clone(),
            key.clone(),
            ExchangeBindOptions::default(),
            none(),
        )
        .await?;
    channel
        .queue_bind(
            queue.clone(),
            destination.clone(),
            "".into(),
            QueueBindOptions::default(),
            none(),
        )
        .await?;
    holds(
        routed(&channel, &source, "in.here", none()).await?,
        "through both exchanges",
    )?;
    channel
        .exchange_unbind(
            destination,
            source.clone(),
            key,
            ExchangeUnbindOptions::default(),
            none(),
        )
        .await?;
    holds(
        !routed(&channel, &source, "in.there", none()).await?,
        "no route after unbind",
    )?;
    channel
        .queue_bind(
            queue.clone(),
            alternate,
            "".into(),
            QueueBindOptions::default(),
            none(),
        )
        .await?;
    holds(
        routed(&channel, &source, "elsewhere", none()).await?,
        "through the alternate exchange",
    )?;
    same(
        take(&channel, &queue, 2).await?,
        vec![b"in.here".to_vec(), b"elsewhere".to_vec()],
    )?;
    Ok(connection.close(200, "".into()).await?)
}

async fn temporary_queues() -> Result {
    let (owner, watcher) = (connect().await?, connect().await?);
    let owned = channel(&owner).await?;
    let exclusive = owned
        .queue_declare(
            "".into(),
            QueueDeclareOptions::exclusive(),
            FieldTable::default(),
        )
        .await?;
    let exclusive = exclusive.name().clone();
    holds(
        exclusive.as_str().starts_with("amq.gen-"),
        "a name from the server",
    )?;
    let options = QueueDeclareOptions::default().auto_delete();
    let automatic = owned
        .queue_declare(fresh("automatic"), options, FieldTable::default())
        .await?
        .name()
        .clone();
    let consuming = BasicConsumeOptions::default();
    owned
        .basic_consume(
            automatic.clone(),
            "only".into(),
            consuming,
            FieldTable::default(),
        )
        .await?;
    owned
        .basic_cancel("only".into(), BasicCancelOptions::default())
        .await?;
    owner.close(200, "".into()).await?;
    for gone in [automatic, exclusive] {
        let channel = watcher.create_channel().await?;
        let passive = QueueDeclareOptions::default().passive();
        let answer = channel
            .queue_declare(gone, passive, FieldTable::default())
            .await;
        same(
            crate::errors::code(&answer.err().ok_or("still there")?),
            Some(404),
        )?;
    }
    Ok(watcher.close(200, "".into()).await?)
}
