//! Filters of AMQP 1.0 receivers and stored messages: nothing panics, errors are short, and repeated evaluations agree.
#![no_main]

use codec_amqp10::{Map, Reader, Value};
use env::WallTime;
use filter::{CompileError, Filter, StoredMessage};
use libfuzzer_sys::fuzz_target;
use message::{Message, MessageBuilder, Protocol};

const NOW_MS: u64 = 1_790_000_000_000;

// The first byte is the length of the filter divided by 8; the stored properties of the message follow the filter.
fuzz_target!(|input: &[u8]| {
    let Some((length, rest)) = input.split_first() else {
        return;
    };
    let (expression, properties) = rest.split_at((usize::from(*length) * 8).min(rest.len()));
    let messages =
        [Protocol::Amqp10, Protocol::Amqp091].map(|protocol| message(protocol, properties));
    if let Ok(text) = std::str::from_utf8(expression) {
        let sql = Filter::compile_sql(text);
        if let Ok(filter) = &sql {
            negate(text, filter, &messages);
        }
        check(sql, &messages);
        check(Filter::compile_selector(text), &messages);
    }
    if let Ok(fields) = Reader::new(expression).read::<Map<'_>>() {
        check(Filter::compile_properties(fields), &messages);
        check(Filter::compile_application_properties(fields), &messages);
    }
    if let Ok(Value::Described(filter)) = Reader::new(expression).read::<Value<'_>>()
        && let Some(filter) = Filter::compile(&filter)
    {
        check(filter, &messages);
    }
});

fn message(protocol: Protocol, properties: &[u8]) -> Message {
    MessageBuilder {
        protocol,
        durable: true,
        priority: None,
        ttl_ms: None,
        received: WallTime(0),
        exchange: "",
        routing_keys: &[],
        properties,
    }
    .build(0, [])
    .expect("the input is short")
}

fn check(filter: Result<Filter, CompileError>, messages: &[Message]) {
    match filter {
        Ok(filter) => {
            for message in messages {
                let fields = StoredMessage::new(message);
                let result = filter.matches(&fields, NOW_MS);
                // The second evaluation reads properties that the first one decoded.
                assert_eq!(filter.matches(&fields, NOW_MS), result);
            }
        }
        Err(error) => {
            let text = error.to_string();
            assert!(
                text.len() < 500 && !text.contains(char::is_control),
                "{text:?}"
            );
        }
    }
}

/// A message passes an expression or its negation, or neither of them.
fn negate(text: &str, filter: &Filter, messages: &[Message]) {
    let Ok(negated) = Filter::compile_sql(&format!("NOT ({text})")) else {
        // The negation is above a limit.
        return;
    };
    for message in messages {
        let fields = StoredMessage::new(message);
        assert!(!(filter.matches(&fields, NOW_MS) && negated.matches(&fields, NOW_MS)));
    }
}
