//! fe2o3-amqp against Posthorn: what an application does with it, and what it is told when it does it wrong.

mod checks;
mod client;

use checks::{Checks, holds, node, same, until};
use client::{Client, URL, accepted, fresh, name_of};
use fe2o3_amqp::connection::OpenError;
use fe2o3_amqp::link::receiver::CreditMode;
use fe2o3_amqp::types::definitions::{ReceiverSettleMode, SenderSettleMode};
use fe2o3_amqp::types::messaging::{
    AmqpValue, ApplicationProperties, Data, Header, Message, Modified, Outcome, Properties, Source,
    Target,
};
use fe2o3_amqp::types::primitives::{Binary, Symbol, Value};
use fe2o3_amqp::{Connection, Receiver, Sender, Session};

const KINDS: [&str; 2] = ["classic", "quorum"];

pub type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> std::process::ExitCode {
    let mut checks = Checks::new();
    macro_rules! each {
        ($($name:literal $body:ident;)*) => {$(
            for kind in KINDS {
                checks.check(&format!("{}: {kind}", $name), $body(kind)).await;
            }
        )*};
    }
    macro_rules! one {
        ($($name:literal $body:ident;)*) => {$(checks.check($name, $body()).await;)*};
    }
    one! {
        "wrong password is refused" wrong_password;
        "small frames carry large messages" small_frames;
        "sessions are independent" sessions;
        "anonymous terminus takes the address of each message" anonymous;
        "unroutable message is released" unroutable;
        "second settle mode completes" second_mode;
        "modified annotations stay" modified;
        "dynamic source is a queue of the link" dynamic;
        "missing terminus refuses the link only" missing;
        "deleted queue ends its links" deleted;
        "exchange routes by its bindings" exchange;
    }
    each! {
        "messages are accepted and consumed" publish;
        "messages in flight keep their order" in_flight;
        "sections of a message are preserved" sections;
        "full queue rejects" full;
        "credit limits deliveries" credit;
        "drain uses up the credit" drain;
        "outcomes settle messages" outcomes;
        "settled receiver needs no disposition" settled;
        "unsettled messages return with the link" unsettled;
    }
    checks
        .check("confirmed messages survive a killed node", killed())
        .await;
    checks.end("fe2o3-amqp")
}

async fn wrong_password() -> Result {
    match Connection::open("wrong", "amqp://guest:wrong@127.0.0.1:5672").await {
        Err(OpenError::SaslError { .. }) => Ok(()),
        Err(other) => Err(format!("{other:?}").into()),
        Ok(_) => Err("opened".into()),
    }
}

async fn small_frames() -> Result {
    let mut client = Client::open().await?;
    let queue = client.queue("quorum", &[])?;
    let mut connection = Connection::builder()
        .container_id("small")
        .max_frame_size(512u32)
        .open(URL)
        .await?;
    let mut session = Session::begin(&mut connection).await?;
    let body = "x".repeat(50_000);
    let mut sender = Sender::attach(&mut session, "s", queue.as_str()).await?;
    accepted(sender.send(body.clone()).await?)?;
    let mut receiver = Receiver::attach(&mut session, "r", queue.as_str()).await?;
    let delivery = receiver.recv::<String>().await?;
    receiver.accept(&delivery).await?;
    holds(*delivery.body() == body, "the body")?;
    sender.close().await?;
    receiver.close().await?;
    session.end().await?;
    connection.close().await?;
    client.close().await
}

async fn sessions() -> Result {
    let mut client = Client::open().await?;
    let mut other = Session::begin(&mut client.connection).await?;
    let queue = client.queue("classic", &[])?;
    let mut sender = Sender::attach(&mut other, "s", queue.as_str()).await?;
    accepted(sender.send("a").await?)?;
    sender.close().await?;
    other.end().await?;
    same(client.take(&queue, 1).await?, vec!["a".to_owned()])?;
    client.close().await
}

async fn publish(kind: &str) -> Result {
    let mut client = Client::open().await?;
    let queue = client.queue(kind, &[])?;
    client.send(&queue, &["a", "b"]).await?;
    same(client.count(&queue)?, 2)?;
    same(
        client.take(&queue, 2).await?,
        vec!["a".to_owned(), "b".to_owned()],
    )?;
    same(client.count(&queue)?, 0)?;
    client.close().await
}

async fn in_flight(kind: &str) -> Result {
    let mut client = Client::open().await?;
    let queue = client.queue(kind, &[])?;
    let mut sender = client.sender(&queue).await?;
    let mut sent = Vec::new();
    for number in 0..500u32 {
        sent.push(sender.send_batchable(number).await?);
    }
    for outcome in sent {
        accepted(outcome.await?)?;
    }
    let mut receiver = client.receiver(&queue, CreditMode::Auto(100)).await?;
    for number in 0..500u32 {
        let delivery = receiver.recv::<u32>().await?;
        same(*delivery.body(), number)?;
        receiver.accept(&delivery).await?;
    }
    sender.close().await?;
    receiver.close().await?;
    client.close().await
}

async fn sections(kind: &str) -> Result {
    let mut client = Client::open().await?;
    let queue = client.queue(kind, &[])?;
    let mut sender = client.sender(&queue).await?;
    let properties = Properties::builder()
        .message_id("id-1".to_owned())
        .user_id(Binary::from("guest"))
        .subject("subject")
        .correlation_id("id-0".to_owned())
        .content_type("text/plain")
        .group_id("group".to_owned())
        .group_sequence(7u32)
        .build();
    let application = ApplicationProperties::builder()
        .insert("text", "é")
        .insert("int", 7i32)
        .insert("ulong", u64::MAX)
        .insert("yes", true)
        .insert("double", 0.5f64)
        .build();
    let message = Message::builder()
        .header(Header::builder().durable(true).priority(3).build())
        .properties(properties.clone())
        .application_properties(application.clone())
        .data(Binary::from(vec![0, 255]))
        .build();
    accepted(sender.send(message).await?)?;
    let mut receiver = client.receiver(&queue, CreditMode::Auto(1)).await?;
    let delivery = receiver.recv::<Data>().await?;
    receiver.accept(&delivery).await?;
    let got = delivery.message();
    same(got.properties.clone(), Some(properties))?;
    let got_application = got
        .application_properties
        .clone()
        .ok_or("application properties")?;
    for (key, value) in application.0.iter() {
        same(got_application.0.get(key), Some(value))?;
    }
    let header = got.header.clone().ok_or("a header")?;
    holds(
        header.durable && header.first_acquirer,
        "a durable message that nobody had before",
    )?;
    same(u8::from(header.priority), 3)?;
    same(got.body.0.to_vec(), vec![0, 255])?;
    sender.close().await?;
    receiver.close().await?;
    client.close().await
}

async fn anonymous() -> Result {
    let mut client = Client::open().await?;
    let queue = client.queue("quorum", &[])?;
    let sender = Sender::builder()
        .name(fresh("anonymous"))
        .target(Target::builder().build());
    let mut sender = sender.attach(&mut client.session).await?;
    let message = |to: &str| {
        let properties = Properties::builder().to(to.to_owned()).build();
        Message::builder()
            .properties(properties)
            .value("a".to_owned())
            .build()
    };
    accepted(sender.send(message(&queue)).await?)?;
    match sender.send(message("/exchanges/missing/key")).await? {
        Outcome::Rejected(rejected) => {
            let error = rejected.error.ok_or("an error")?;
            same(format!("{:?}", error.condition).contains("NotFound"), true)?;
        }
        other => return Err(format!("{other:?}").into()),
    }
    same(client.count(&queue)?, 1)?;
    sender.close().await?;
    client.close().await
}

async fn unroutable() -> Result {
    let mut client = Client::open().await?;
    let mut sender = client.sender("/exchanges/amq.direct/nowhere").await?;
    let outcome = sender.send("a").await?;
    holds(
        matches!(outcome, Outcome::Released(_)),
        &format!("released, got {outcome:?}"),
    )?;
    sender.close().await?;
    client.close().await
}

async fn full(kind: &str) -> Result {
    let mut client = Client::open().await?;
    let arguments = [("x-max-length", "1"), ("x-overflow", r#""reject-publish""#)];
    let queue = client.queue(kind, &arguments)?;
    let mut sender = client.sender(&queue).await?;
    // A quorum queue refuses messages some messages later than its limit.
    for _ in 0..1000 {
        if let Outcome::Rejected(rejected) = sender.send("a").await? {
            let error = rejected.error.ok_or("an error")?;
            same(
                format!("{:?}", error.condition).contains("ResourceLimitExceeded"),
                true,
            )?;
            sender.close().await?;
            return client.close().await;
        }
    }
    Err("no rejection".into())
}

async fn credit(kind: &str) -> Result {
    let mut client = Client::open().await?;
    let queue = client.queue(kind, &[])?;
    client.send(&queue, &["a", "b", "c"]).await?;
    let mut receiver = client.receiver(&queue, CreditMode::Manual).await?;
    receiver.set_credit(2).await?;
    let first = receiver.recv::<String>().await?;
    let second = receiver.recv::<String>().await?;
    same((first.body().as_str(), second.body().as_str()), ("a", "b"))?;
    // The third comes only with more credit.
    client.count(&queue)?;
    receiver.set_credit(1).await?;
    let third = receiver.recv::<String>().await?;
    receiver.accept_all([&first, &second, &third]).await?;
    receiver.close().await?;
    same(client.count(&queue)?, 0)?;
    client.close().await
}

async fn drain(kind: &str) -> Result {
    let mut client = Client::open().await?;
    let queue = client.queue(kind, &[])?;
    client.send(&queue, &["a"]).await?;
    let mut receiver = client.receiver(&queue, CreditMode::Manual).await?;
    receiver.set_credit(10).await?;
    receiver.drain().await?;
    let delivery = receiver.recv::<String>().await?;
    receiver.accept(&delivery).await?;
    // The client does not tell that its credit is used up, but the next message stays in the queue.
    let ready = || async { Ok((client.count(&queue)? == 0).then_some(())) };
    until("the settlement of the first message", ready).await?;
    client.send(&queue, &["b"]).await?;
    same(client.count(&queue)?, 1)?;
    receiver.close().await?;
    client.close().await
}

async fn outcomes(kind: &str) -> Result {
    let mut client = Client::open().await?;
    let dead = client.queue("classic", &[])?;
    let key = format!(r#""{}""#, name_of(&dead));
    let arguments = [
        ("x-dead-letter-exchange", r#""""#),
        ("x-dead-letter-routing-key", &*key),
    ];
    let queue = client.queue(kind, &arguments)?;
    client
        .send(&queue, &["accept", "reject", "release"])
        .await?;
    let mut receiver = client.receiver(&queue, CreditMode::Manual).await?;
    receiver.set_credit(3).await?;
    let delivery = receiver.recv::<String>().await?;
    receiver.accept(&delivery).await?;
    let delivery = receiver.recv::<String>().await?;
    receiver.reject(&delivery, None).await?;
    let delivery = receiver.recv::<String>().await?;
    receiver.release(&delivery).await?;
    receiver.close().await?;
    // The client cannot decode the annotation with the deaths of a message.
    let dead_lettered = || async { Ok((client.count(&dead)? == 1).then_some(())) };
    until("the dead letter", dead_lettered).await?;
    same(client.take(&queue, 1).await?, vec!["release".to_owned()])?;
    client.close().await
}

async fn modified() -> Result {
    let mut client = Client::open().await?;
    let queue = client.queue("quorum", &[])?;
    client.send(&queue, &["a"]).await?;
    let mut receiver = client.receiver(&queue, CreditMode::Auto(2)).await?;
    let delivery = receiver.recv::<String>().await?;
    let mut annotations = fe2o3_amqp::types::definitions::Fields::new();
    annotations.insert(Symbol::from("x-opt-why"), Value::String("busy".to_owned()));
    let modified = Modified {
        delivery_failed: Some(true),
        undeliverable_here: None,
        message_annotations: Some(annotations),
    };
    receiver.modify(&delivery, modified).await?;
    let again = receiver.recv::<String>().await?;
    let header = again.message().header.clone().ok_or("a header")?;
    same((header.delivery_count, header.first_acquirer), (1, false))?;
    let annotations = format!("{:?}", again.message().message_annotations);
    holds(
        annotations.contains("x-opt-why") && annotations.contains("busy"),
        &annotations,
    )?;
    receiver.accept(&again).await?;
    receiver.close().await?;
    client.close().await
}

async fn settled(kind: &str) -> Result {
    let mut client = Client::open().await?;
    let queue = client.queue(kind, &[])?;
    client.send(&queue, &["a", "b"]).await?;
    let receiver = Receiver::builder()
        .name(fresh("settled"))
        .source(queue.as_str())
        .sender_settle_mode(SenderSettleMode::Settled);
    let mut receiver = receiver.attach(&mut client.session).await?;
    same(receiver.recv::<String>().await?.into_body(), "a".to_owned())?;
    same(receiver.recv::<String>().await?.into_body(), "b".to_owned())?;
    receiver.close().await?;
    same(client.count(&queue)?, 0)?;
    client.close().await
}

async fn second_mode() -> Result {
    let mut client = Client::open().await?;
    let queue = client.queue("quorum", &[])?;
    client.send(&queue, &["a"]).await?;
    let receiver = Receiver::builder()
        .name(fresh("second"))
        .source(queue.as_str())
        .receiver_settle_mode(ReceiverSettleMode::Second);
    let mut receiver = receiver.attach(&mut client.session).await?;
    let delivery = receiver.recv::<String>().await?;
    receiver.accept(&delivery).await?;
    receiver.close().await?;
    same(client.count(&queue)?, 0)?;
    client.close().await
}

async fn unsettled(kind: &str) -> Result {
    let mut client = Client::open().await?;
    let queue = client.queue(kind, &[])?;
    client.send(&queue, &["a"]).await?;
    let mut receiver = client.receiver(&queue, CreditMode::Auto(1)).await?;
    receiver.recv::<String>().await?;
    receiver.close().await?;
    same(client.take(&queue, 1).await?, vec!["a".to_owned()])?;
    client.close().await
}

async fn dynamic() -> Result {
    let mut client = Client::open().await?;
    let source = Source::builder()
        .dynamic(true)
        .capabilities(vec![Symbol::from("temporary-queue")])
        .build();
    let receiver = Receiver::builder().name(fresh("dynamic")).source(source);
    let mut receiver = receiver.attach(&mut client.session).await?;
    let address = receiver
        .source()
        .as_ref()
        .and_then(|source| source.address.clone())
        .ok_or("an address")?;
    client.send(&address, &["a"]).await?;
    let delivery = receiver.recv::<String>().await?;
    receiver.accept(&delivery).await?;
    receiver.close().await?;
    for _ in 0..1000 {
        if !client.exists(&address)? {
            return client.close().await;
        }
    }
    Err("the queue is still there".into())
}

async fn missing() -> Result {
    let mut client = Client::open().await?;
    let queue = client.queue("classic", &[])?;
    let mut kept = client.sender(&queue).await?;
    for address in ["/queues/missing", "/exchanges/missing/key"] {
        let error = Sender::attach(&mut client.session, fresh("missing"), address).await;
        let error = format!("{:?}", error.err().ok_or("attached")?);
        holds(error.contains("NotFound"), &error)?;
    }
    let error = Receiver::attach(&mut client.session, fresh("missing"), "/queues/missing").await;
    let error = format!("{:?}", error.err().ok_or("attached")?);
    holds(error.contains("NotFound"), &error)?;
    accepted(kept.send("a").await?)?;
    kept.close().await?;
    client.close().await
}

async fn deleted() -> Result {
    let mut client = Client::open().await?;
    let queue = client.queue("quorum", &[])?;
    let mut receiver = client.receiver(&queue, CreditMode::Auto(1)).await?;
    client.delete(&queue)?;
    let error = format!(
        "{:?}",
        receiver.recv::<String>().await.err().ok_or("a message")?
    );
    holds(error.contains("ResourceDeleted"), &error)?;
    Ok(())
}

async fn exchange() -> Result {
    let mut client = Client::open().await?;
    let queue = client.queue("quorum", &[])?;
    let name = client.exchange("topic", &queue, "orders.*")?;
    client
        .send(&format!("/exchanges/{name}/orders.new"), &["a"])
        .await?;
    same(client.take(&queue, 1).await?, vec!["a".to_owned()])?;
    client.close().await
}

async fn killed() -> Result {
    let mut client = Client::open().await?;
    let mut queues = Vec::new();
    for kind in KINDS {
        let queue = client.queue(kind, &[])?;
        let mut sender = client.sender(&queue).await?;
        for number in 0..20u32 {
            let header = Header::builder().durable(true).build();
            accepted(
                sender
                    .send(Message::builder().header(header).value(number).build())
                    .await?,
            )?;
        }
        queues.push(queue);
    }
    node(&["kill", "one"])?;
    node(&["start", "one"])?;
    let mut client = Client::open().await?;
    for queue in queues {
        let mut receiver = client.receiver(&queue, CreditMode::Auto(20)).await?;
        for number in 0..20u32 {
            let delivery = receiver.recv::<AmqpValue<u32>>().await?;
            same(delivery.body().0, number)?;
            receiver.accept(&delivery).await?;
        }
        receiver.close().await?;
    }
    client.close().await
}
