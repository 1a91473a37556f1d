//! What closes a channel, what closes a connection, and with which code and text.

use crate::checks::{Checks, holds, same};
use crate::{Result, channel, connect, declare, fresh, table, text};
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicGetOptions, BasicPublishOptions,
    ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ErrorKind, ExchangeKind};

pub async fn run(checks: &mut Checks) {
    checks
        .check(
            "a wrong password and a wrong virtual host are told apart",
            logins(),
        )
        .await;
    checks
        .check(
            "errors close the channel with the code and text",
            of_channels(),
        )
        .await;
    checks
        .check(
            "errors close the connection with the code and text",
            of_connections(),
        )
        .await;
    checks
        .check("the secret can be renewed", update_secret())
        .await;
}

/// The code of an error that the broker sent.
pub fn code(error: &lapin::Error) -> Option<u16> {
    match error.kind() {
        ErrorKind::ProtocolError(error) => Some(error.get_id()),
        _ => None,
    }
}

/// The operation failed so, and the words are in the text.
fn refused<T>(outcome: lapin::Result<T>, expected: u16, words: &str) -> Result {
    let Err(error) = outcome else {
        return Err(format!("expected {expected}: {words}").into());
    };
    let said = error.to_string();
    holds(
        code(&error) == Some(expected) && said.contains(words),
        &format!("{expected} {words}; got {said}"),
    )
}

async fn logins() -> Result {
    let wrong = "amqp://guest:wrong@127.0.0.1:5672/%2F";
    refused(
        Connection::connect(wrong, ConnectionProperties::default()).await,
        403,
        "ACCESS_REFUSED",
    )?;
    let nowhere = "amqp://guest:guest@127.0.0.1:5672/nowhere";
    refused(
        Connection::connect(nowhere, ConnectionProperties::default()).await,
        530,
        "nowhere",
    )
}

async fn of_channels() -> Result {
    let (owner, connection) = (connect().await?, connect().await?);
    let owned = channel(&owner).await?;
    let exclusive = owned
        .queue_declare(
            "".into(),
            QueueDeclareOptions::exclusive(),
            FieldTable::default(),
        )
        .await?;
    let taken = declare(&owned, "classic", &[]).await?;
    let alone = BasicConsumeOptions {
        exclusive: true,
        ..Default::default()
    };
    // A consumer that is let go of is cancelled.
    let _alone = owned
        .basic_consume(taken.clone(), "alone".into(), alone, FieldTable::default())
        .await?;

    let none = FieldTable::default;
    let open = async || connection.create_channel().await;
    let passive = QueueDeclareOptions::default().passive();
    let missing = "no queue 'missing' in vhost '/'";
    refused(
        open()
            .await?
            .queue_declare("missing".into(), passive, none())
            .await,
        404,
        missing,
    )?;
    refused(
        open()
            .await?
            .basic_get("missing".into(), BasicGetOptions::default())
            .await,
        404,
        missing,
    )?;
    let bound = open()
        .await?
        .queue_bind(
            taken.clone(),
            "missing".into(),
            "".into(),
            QueueBindOptions::default(),
            none(),
        )
        .await;
    refused(bound, 404, "no exchange 'missing' in vhost '/'")?;
    let reserved = open()
        .await?
        .queue_declare("amq.mine".into(), QueueDeclareOptions::durable(), none())
        .await;
    refused(reserved, 403, "contains reserved prefix 'amq.*'")?;
    let locked = open()
        .await?
        .basic_get(exclusive.name().clone(), BasicGetOptions::default())
        .await;
    refused(
        locked,
        405,
        "cannot obtain exclusive access to locked queue",
    )?;
    let second = open()
        .await?
        .basic_consume(
            taken.clone(),
            "".into(),
            BasicConsumeOptions::default(),
            none(),
        )
        .await;
    refused(second, 403, "in exclusive use")?;
    let quorum = table(&[("x-queue-type", text("quorum"))]);
    let other = open()
        .await?
        .queue_declare(taken.clone(), QueueDeclareOptions::durable(), quorum)
        .await;
    refused(other, 406, "inequivalent arg 'x-queue-type'")?;
    let kind = ExchangeKind::Custom("no-such-type".into());
    let unknown = open()
        .await?
        .exchange_declare(fresh("e"), kind, ExchangeDeclareOptions::default(), none())
        .await;
    refused(unknown, 406, "unknown exchange type 'no-such-type'")?;

    // What has no answer of its own fails what comes next.
    let outcome = next_after(&connection, &taken, async |channel| {
        channel.basic_ack(9, BasicAckOptions::default()).await
    });
    refused(outcome.await, 406, "unknown delivery tag 9")?;
    let outcome = next_after(&connection, &taken, async |channel| {
        let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
        let (exchange, key) = ("missing".into(), "".into());
        let sent = channel.basic_publish(exchange, key, options, b"", properties);
        sent.await.map(drop)
    });
    refused(outcome.await, 404, "no exchange 'missing' in vhost '/'")?;

    holds(connection.status().connected(), "the connection goes on")?;
    connection.close(200, "".into()).await?;
    Ok(owner.close(200, "".into()).await?)
}

/// What becomes of the operation after this one. When the broker's answer is there before that begins, the client only says that
/// the channel is closed, and not why: then once more.
async fn next_after(
    connection: &Connection,
    queue: &lapin::types::ShortString,
    wrong: impl AsyncFn(Channel) -> lapin::Result<()>,
) -> lapin::Result<()> {
    let mut outcome = Ok(());
    for _ in 0..100 {
        let channel = connection.create_channel().await?;
        wrong(channel.clone()).await?;
        outcome = get(&channel, queue).await;
        let silent =
            |error: &lapin::Error| matches!(error.kind(), ErrorKind::InvalidChannelState(..));
        if !outcome.as_ref().is_err_and(silent) {
            break;
        }
    }
    outcome
}

async fn get(channel: &Channel, queue: &lapin::types::ShortString) -> lapin::Result<()> {
    channel
        .basic_get(queue.clone(), BasicGetOptions::default())
        .await
        .map(|_| ())
}

async fn of_connections() -> Result {
    let connection = connect().await?;
    let channel = channel(&connection).await?;
    let options = BasicPublishOptions {
        immediate: true,
        ..Default::default()
    };
    let sent = channel
        .basic_publish(
            "".into(),
            "any".into(),
            options,
            b"",
            BasicProperties::default(),
        )
        .await?
        .await;
    refused(sent, 540, "immediate=true")?;
    same(connection.status().connected(), false)
}

async fn update_secret() -> Result {
    let connection = connect().await?;
    connection
        .update_secret("guest".into(), "rotated".into())
        .await?;
    // A channel that is let go of is closed.
    let _channel = channel(&connection).await?;
    Ok(connection.close(200, "".into()).await?)
}
