//! Processor time of compiling a filter and of evaluating it for one stored message. `cargo bench -p filter`.
//!
//! The time is the thread's own (Linux's schedstat), so a busy machine disturbs little.

use std::hint::black_box;
use std::time::Duration;

use codec_amqp10::{Encode, Properties, SectionKind, Value, encode_section_descriptor, map};
use env::WallTime;
use filter::{Filter, StoredMessage};
use message::{Message, MessageBuilder, Protocol};

const MEASURED: u32 = 1_000_000;

fn cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let first = text.split(' ').next().and_then(|n| n.parse().ok());
    Duration::from_nanos(first.unwrap_or(0))
}

fn message(application_properties: usize) -> Message {
    let mut out = Vec::new();
    Properties {
        message_id: Some(Value::String("order-17")),
        to: Some("/queues/orders"),
        subject: Some("order.created"),
        ..Properties::default()
    }
    .encode(&mut out);
    encode_section_descriptor(&mut out, SectionKind::ApplicationProperties);
    let mut application = map(&mut out);
    for number in 0..application_properties.saturating_sub(3) {
        application.push(format!("other-{number}").as_str());
        application.push("a value");
    }
    for (name, value) in [
        ("region", Value::String("EU")),
        ("count", Value::Int(5)),
        ("title", Value::String("Ten red apples")),
    ] {
        application.push(name);
        application.push(&value);
    }
    application.finish();
    MessageBuilder {
        protocol: Protocol::Amqp10,
        durable: true,
        priority: None,
        ttl_ms: None,
        received: WallTime(0),
        exchange: "",
        routing_keys: &["orders"],
        properties: &out,
    }
    .build(12, [&[7u8; 12][..]])
    .unwrap()
}

fn measure(name: &str, times: u32, mut run: impl FnMut()) {
    run();
    let start = cpu();
    for _ in 0..times {
        run();
    }
    println!("{name:<70}{:>8} ns", ((cpu() - start) / times).as_nanos());
}

fn main() {
    const APPLICATION: &str = "region = 'EU' AND count > 3 AND title LIKE '%red%'";
    const PROPERTIES: &str =
        "p.subject = 'order.created' AND p.to LIKE '/queues/%' AND h.priority = 4";
    const MIXED: &str = "p.subject LIKE 'order.%' AND region IN ('US', 'EU') AND count * 2 >= 10";
    for (count, expression) in [
        (5, APPLICATION),
        (5, PROPERTIES),
        (5, MIXED),
        (20, APPLICATION),
        (20, MIXED),
    ] {
        let (message, filter) = (message(count), Filter::compile_sql(expression).unwrap());
        assert!(filter.matches(&StoredMessage::new(&message), 0));
        measure(
            &format!("{count} application properties: {expression}"),
            MEASURED,
            || {
                let message = StoredMessage::new(black_box(&message));
                black_box(filter.matches(&message, 0));
            },
        );
    }
    let longest = format!("region IN ({})", vec!["'some text'"; 98].join(","));
    measure("compile three predicates", MEASURED / 20, || {
        black_box(Filter::compile_sql(black_box(MIXED)).is_ok());
    });
    measure("compile 98 entries of IN", MEASURED / 200, || {
        black_box(Filter::compile_sql(black_box(&longest)).is_ok());
    });
}
