//! RabbitMQ's Rust client for streams against Posthorn: what an application does with it.

#[path = "../../fe2o3-amqp/src/checks.rs"]
mod checks;

use checks::{Checks, holds, node, same, until};
use futures::StreamExt;
use rabbitmq_stream_client::error::{
    ConsumerCreateError, ConsumerStoreOffsetError, ProducerCreateError, StreamCreateError,
    StreamDeleteError,
};
use rabbitmq_stream_client::types::{
    ByteCapacity, HashRoutingMurmurStrategy, Message, OffsetSpecification, ResponseCode,
    RoutingStrategy,
};
use rabbitmq_stream_client::{Consumer, Environment, FilterConfiguration};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

pub type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> std::process::ExitCode {
    let mut checks = Checks::new();
    macro_rules! each {
        ($($name:literal $body:ident;)*) => {$(checks.check($name, $body()).await;)*};
    }
    each! {
        "wrong password is refused" wrong_password;
        "stream is created once and deleted once" declare;
        "missing stream is reported" missing;
        "ten thousand messages are confirmed and consumed in order" many;
        "consumer starts at each kind of offset" offsets;
        "named producer is deduplicated" deduplication;
        "filtered consumer gets the messages of its filter" filter;
        "stored offset is found again" tracking;
        "super stream is written and read" super_stream;
        "next single active consumer takes over at the stored offset" single_active;
        "partitions of a super stream are shared by single active consumers" shared_partitions;
        "confirmed messages survive a killed node" killed;
    }
    checks.end("stream-rust")
}

/// A name that this run has not used.
fn fresh(prefix: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{prefix}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

async fn environment() -> Result<Environment> {
    let builder = Environment::builder().host("127.0.0.1").port(5552);
    Ok(builder.build().await?)
}

async fn stream(environment: &Environment, prefix: &str) -> Result<String> {
    let stream = fresh(prefix);
    environment.stream_creator().create(&stream).await?;
    Ok(stream)
}

fn message(body: impl std::fmt::Display) -> Message {
    Message::builder().body(body.to_string()).build()
}

fn body(message: &Message) -> String {
    let data = message.data().unwrap_or_default();
    String::from_utf8_lossy(data).into_owned()
}

/// Publishes numbers and waits until all are confirmed.
async fn publish(environment: &Environment, stream: &str, numbers: std::ops::Range<u32>) -> Result {
    let producer = environment.producer().build(stream).await?;
    let count = numbers.len();
    let messages = numbers.map(message).collect();
    let statuses = producer.batch_send_with_confirm(messages).await?;
    same(statuses.iter().filter(|s| s.confirmed()).count(), count)?;
    producer.close().await?;
    Ok(())
}

async fn consumer(
    environment: &Environment,
    stream: &str,
    offset: OffsetSpecification,
) -> Result<Consumer> {
    Ok(environment.consumer().offset(offset).build(stream).await?)
}

/// The next messages of a consumer: offsets and bodies.
async fn take(consumer: &mut Consumer, count: usize) -> Result<Vec<(u64, String)>> {
    let mut taken = Vec::new();
    while taken.len() < count {
        let next = tokio::time::timeout(checks::PATIENCE, consumer.next()).await;
        let delivery = next
            .map_err(|_| format!("{} of {count} messages arrived", taken.len()))?
            .ok_or("the consumer ended")??;
        taken.push((delivery.offset(), body(delivery.message())));
    }
    Ok(taken)
}

/// Offsets and bodies of a stream of numbers.
fn numbered(numbers: std::ops::Range<u32>) -> Vec<(u64, String)> {
    numbers.map(|n| (u64::from(n), n.to_string())).collect()
}

async fn wrong_password() -> Result {
    let builder = Environment::builder().host("127.0.0.1").password("wrong");
    holds(builder.build().await.is_err(), "the login is refused")
}

async fn declare() -> Result {
    let environment = environment().await?;
    let name = fresh("declare");
    let creator = || {
        let creator = environment.stream_creator().max_length(ByteCapacity::GB(1));
        creator.max_age(Duration::from_secs(3600))
    };
    creator().create(&name).await?;
    match creator().create(&name).await {
        Err(StreamCreateError::Create { status, .. }) => {
            same(status, ResponseCode::StreamAlreadyExists)?;
        }
        other => return Err(format!("{other:?}").into()),
    }
    environment.delete_stream(&name).await?;
    match environment.delete_stream(&name).await {
        Err(StreamDeleteError::Delete { status, .. }) => {
            same(status, ResponseCode::StreamDoesNotExist)
        }
        other => Err(format!("{other:?}").into()),
    }
}

async fn missing() -> Result {
    let environment = environment().await?;
    let produced = environment.producer().build("missing").await;
    holds(
        matches!(
            produced,
            Err(ProducerCreateError::StreamDoesNotExist { .. }
                | ProducerCreateError::Create {
                    status: ResponseCode::StreamDoesNotExist,
                    ..
                })
        ),
        "the producer is told that there is no stream",
    )?;
    let consumed = environment.consumer().build("missing").await;
    holds(
        matches!(
            consumed,
            Err(ConsumerCreateError::StreamDoesNotExist { .. }
                | ConsumerCreateError::Create {
                    status: ResponseCode::StreamDoesNotExist,
                    ..
                })
        ),
        "the consumer is told that there is no stream",
    )
}

async fn many() -> Result {
    let environment = environment().await?;
    let stream = stream(&environment, "many").await?;
    publish(&environment, &stream, 0..10_000).await?;
    let mut consumer = consumer(&environment, &stream, OffsetSpecification::First).await?;
    same(take(&mut consumer, 10_000).await?, numbered(0..10_000))?;
    consumer.handle().close().await?;
    Ok(())
}

async fn offsets() -> Result {
    let environment = environment().await?;
    let stream = stream(&environment, "offsets").await?;
    publish(&environment, &stream, 0..100).await?;
    // Timestamps of chunks have milliseconds, and the clock of the node is that of this process.
    let millis = || -> Result<i64> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        Ok(i64::try_from(now.as_millis())?)
    };
    let after_first = millis()?;
    until("the clock moves on", || async move {
        Ok((millis()? > after_first + 1).then_some(()))
    })
    .await?;
    let between = millis()?;
    publish(&environment, &stream, 100..200).await?;
    let cases = [
        (OffsetSpecification::First, 0),
        (OffsetSpecification::Offset(50), 50),
        (OffsetSpecification::Timestamp(between), 100),
    ];
    for (offset, first) in cases {
        let mut consumer = consumer(&environment, &stream, offset).await?;
        let taken = take(&mut consumer, 200 - first as usize).await?;
        same(taken, numbered(first..200))?;
        consumer.handle().close().await?;
    }
    let mut last = consumer(&environment, &stream, OffsetSpecification::Last).await?;
    let (offset, _) = take(&mut last, 1).await?.remove(0);
    holds(
        (100..200).contains(&offset),
        "the last chunk is of the second batch",
    )?;
    last.handle().close().await?;
    let mut next = consumer(&environment, &stream, OffsetSpecification::Next).await?;
    publish(&environment, &stream, 200..201).await?;
    same(take(&mut next, 1).await?, numbered(200..201))?;
    next.handle().close().await?;
    Ok(())
}

async fn deduplication() -> Result {
    let environment = environment().await?;
    let stream = stream(&environment, "dedup").await?;
    for _ in 0..2 {
        let mut producer = environment.producer().name("p").build(&stream).await?;
        for n in 0..100u64 {
            let body = n.to_string();
            let message = Message::builder().body(body).publishing_id(n).build();
            producer.send_with_confirm(message).await?;
        }
        producer.close().await?;
    }
    let mut producer = environment.producer().name("p").build(&stream).await?;
    producer.send_with_confirm(message(100)).await?;
    producer.close().await?;
    let mut consumer = consumer(&environment, &stream, OffsetSpecification::First).await?;
    same(take(&mut consumer, 101).await?, numbered(0..101))?;
    consumer.handle().close().await?;
    Ok(())
}

async fn filter() -> Result {
    let environment = environment().await?;
    let stream = stream(&environment, "filter").await?;
    for region in ["north", "south"] {
        let producer = environment
            .producer()
            .filter_value_extractor(body)
            .build(&stream)
            .await?;
        for _ in 0..10 {
            producer.send_with_confirm(message(region)).await?;
        }
        producer.close().await?;
    }
    let filter = FilterConfiguration::new(vec!["south".to_owned()], false)
        .post_filter(|message| body(message) == "south");
    let mut consumer = environment
        .consumer()
        .offset(OffsetSpecification::First)
        .filter_input(Some(filter))
        .build(&stream)
        .await?;
    let bodies = take(&mut consumer, 10).await?;
    same(bodies.iter().filter(|(_, b)| b == "south").count(), 10)?;
    consumer.handle().close().await?;
    Ok(())
}

async fn tracking() -> Result {
    let environment = environment().await?;
    let stream = stream(&environment, "tracking").await?;
    publish(&environment, &stream, 0..10).await?;
    let build = || environment.consumer().name("group").build(&stream);
    let consumer = build().await?;
    match consumer.query_offset().await {
        Err(ConsumerStoreOffsetError::Client(_)) => {}
        other => return Err(format!("{other:?}").into()),
    }
    consumer.store_offset(3).await?;
    consumer.store_offset(7).await?;
    same(consumer.query_offset().await?, 7)?;
    consumer.handle().close().await?;
    let again = build().await?;
    same(again.query_offset().await?, 7)?;
    again.handle().close().await?;
    Ok(())
}

fn id(message: &Message) -> String {
    body(message)
}

/// Publishes numbers to a super stream and waits until all are confirmed.
async fn publish_super(environment: &Environment, name: &str, count: u32) -> Result {
    let strategy = HashRoutingMurmurStrategy {
        routing_extractor: &id,
    };
    let strategy = RoutingStrategy::HashRoutingStrategy(strategy);
    let mut producer = environment
        .super_stream_producer(strategy)
        .build(name)
        .await?;
    let confirmed = Arc::new(AtomicU32::new(0));
    for n in 0..count {
        let confirmed = confirmed.clone();
        let note =
            move |status: std::result::Result<rabbitmq_stream_client::ConfirmationStatus, _>| {
                if status.is_ok_and(|status| status.confirmed()) {
                    confirmed.fetch_add(1, Ordering::SeqCst);
                }
                async {}
            };
        producer.send(message(n), note).await?;
    }
    until("all messages are confirmed", || async {
        Ok((confirmed.load(Ordering::SeqCst) == count).then_some(()))
    })
    .await?;
    producer.close().await?;
    Ok(())
}

async fn super_stream() -> Result {
    let environment = environment().await?;
    let name = fresh("super");
    let creator = environment.stream_creator();
    creator.create_super_stream(&name, 3, None).await?;
    publish_super(&environment, &name, 300).await?;
    let mut consumer = environment
        .super_stream_consumer()
        .offset(OffsetSpecification::First)
        .build(&name)
        .await?;
    let mut bodies = BTreeSet::new();
    let mut streams = BTreeSet::new();
    for _ in 0..300 {
        let next = tokio::time::timeout(checks::PATIENCE, consumer.next()).await;
        let delivery = next?.ok_or("the consumer ended")??;
        bodies.insert(body(delivery.message()));
        streams.insert(delivery.stream().clone());
    }
    same(bodies.len(), 300)?;
    same(streams, (0..3).map(|n| format!("{name}-{n}")).collect())?;
    consumer.handle().close().await?;
    environment.delete_super_stream(&name).await?;
    Ok(())
}

async fn single_active() -> Result {
    let environment = environment().await?;
    let stream = stream(&environment, "single").await?;
    publish(&environment, &stream, 0..10).await?;
    let build = || {
        let builder = environment.consumer().name("group");
        builder
            .enable_single_active_consumer(true)
            .consumer_update(|_, context| async move {
                let (client, stream) = (context.client(), context.stream());
                match client.query_offset(context.name(), &stream).await {
                    Ok(offset) => OffsetSpecification::Offset(offset + 1),
                    Err(_) => OffsetSpecification::First,
                }
            })
            .build(&stream)
    };
    let mut one = build().await?;
    same(take(&mut one, 10).await?, numbered(0..10))?;
    let mut two = build().await?;
    publish(&environment, &stream, 10..20).await?;
    same(take(&mut one, 10).await?, numbered(10..20))?;
    one.store_offset(14).await?;
    same(one.query_offset().await?, 14)?;
    one.handle().close().await?;
    // The client counts offsets from the start of the chunk, so only the bodies tell where it starts.
    let (_, first) = take(&mut two, 1).await?.remove(0);
    let first: u32 = first.parse()?;
    holds(
        (10..=15).contains(&first),
        "it starts in the chunk of the stored offset",
    )?;
    two.handle().close().await?;
    Ok(())
}

async fn shared_partitions() -> Result {
    let environment = environment().await?;
    let name = fresh("shared");
    let creator = environment.stream_creator();
    creator.create_super_stream(&name, 2, None).await?;
    // Messages by consumer and partition.
    let seen: Arc<Mutex<BTreeMap<(u32, String), u32>>> = Arc::default();
    let mut handles = Vec::new();
    for number in 0..2 {
        let mut consumer = environment
            .super_stream_consumer()
            .name("group")
            .enable_single_active_consumer(true)
            .consumer_update(|_, _| async { OffsetSpecification::First })
            .build(&name)
            .await?;
        handles.push(consumer.handle());
        let seen = seen.clone();
        tokio::spawn(async move {
            while let Some(Ok(delivery)) = consumer.next().await {
                let mut seen = seen.lock().expect("the map of messages");
                *seen.entry((number, delivery.stream().clone())).or_default() += 1;
            }
        });
    }
    // Each consumer gets messages of the partition with its number when the group is settled.
    until("both consumers get messages", || async {
        publish_super(&environment, &name, 20).await?;
        let seen = seen.lock().map_err(|_| "the map of messages")?;
        let has = |number: u32| seen.contains_key(&(number, format!("{name}-{number}")));
        Ok((has(0) && has(1)).then_some(()))
    })
    .await?;
    for handle in handles {
        handle.close().await?;
    }
    Ok(())
}

async fn killed() -> Result {
    let first = environment().await?;
    let stream = stream(&first, "kill").await?;
    publish(&first, &stream, 0..1000).await?;
    node(&["kill", "one"])?;
    node(&["start", "one"])?;
    let second = environment().await?;
    let mut consumer = consumer(&second, &stream, OffsetSpecification::First).await?;
    same(take(&mut consumer, 1000).await?, numbered(0..1000))?;
    publish(&second, &stream, 1000..1001).await?;
    // The stream's leader has stored a mark of its own, so the offset is not that of the message before plus one.
    let (offset, body) = take(&mut consumer, 1).await?.remove(0);
    same(body, "1000".to_owned())?;
    holds(offset >= 1000, "offsets grow")?;
    consumer.handle().close().await?;
    Ok(())
}
