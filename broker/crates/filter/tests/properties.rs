//! Property filters, and the choice of a filter by its descriptor.

use crate::message::{NOW, order, symbol};
use codec_amqp10::{Decode, Described, Encode, Map, Reader, Symbol, Timestamp, Uuid, Value, map};
use filter::{CompileError, Filter};

fn encoded(entries: &[(Value<'static>, Value<'static>)]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = map(&mut out);
    for (key, value) in entries {
        writer.push(key);
        writer.push(value);
    }
    writer.finish();
    out
}

fn compile(
    entries: &[(Value<'static>, Value<'static>)],
    compile: impl Fn(Map<'_>) -> Result<Filter, CompileError>,
) -> Result<Filter, CompileError> {
    let bytes = encoded(entries);
    compile(Map::decode(&mut Reader::new(&bytes)).unwrap())
}

fn properties(entries: &[(&'static str, Value<'static>)]) -> Result<Filter, CompileError> {
    let entries: Vec<_> = entries
        .iter()
        .map(|(name, value)| (symbol(name), *value))
        .collect();
    compile(&entries, Filter::compile_properties)
}

fn application(entries: &[(&'static str, Value<'static>)]) -> Result<Filter, CompileError> {
    let entries: Vec<_> = entries
        .iter()
        .map(|(name, value)| (Value::String(name), *value))
        .collect();
    compile(&entries, Filter::compile_application_properties)
}

#[test]
fn fields_of_the_properties_section_match_by_value() {
    let cases: &[(&'static str, Value<'static>, bool)] = &[
        ("message-id", Value::String("order-17"), true),
        ("message-id", Value::String("order-1"), false),
        ("message-id", Value::Binary(b"order-17"), true),
        ("message-id", Value::Uuid(Uuid([0; 16])), false),
        ("user-id", Value::Binary(&[10, 11, 12]), true),
        ("to", Value::String("/queues/orders"), true),
        ("subject", Value::String("order.created"), true),
        ("subject", Value::String("Order.created"), false),
        ("reply-to", Value::String("&s:answers"), true),
        ("reply-to", Value::String("&p:/queues/"), true),
        ("reply-to", Value::String("&p:queues"), false),
        ("reply-to", Value::String("&s:"), true),
        ("correlation-id", Value::Ulong(789), true),
        ("correlation-id", Value::String("789"), false),
        ("correlation-id", Value::String("&p:7"), false),
        ("content-type", symbol("text/plain"), true),
        ("content-encoding", symbol("deflate"), false),
        (
            "absolute-expiry-time",
            Value::Timestamp(Timestamp(1_800_000_000_000)),
            true,
        ),
        (
            "creation-time",
            Value::Timestamp(Timestamp(1_800_000_000_000)),
            false,
        ),
        ("group-id", Value::String("&p:customer"), true),
        ("group-sequence", Value::Uint(999), true),
        ("reply-to-group-id", Value::String("answers 5"), true),
    ];
    for (name, value, expected) in cases {
        let filter = properties(&[(name, *value)]).unwrap();
        assert_eq!(filter.matches(&order(), NOW), *expected, "{name} {value:?}");
    }
}

#[test]
fn every_field_of_a_filter_must_match() {
    let filter = |subject| {
        properties(&[
            ("group-sequence", Value::Uint(999)),
            ("subject", Value::String(subject)),
        ])
        .unwrap()
    };
    assert!(filter("order.created").matches(&order(), NOW));
    assert!(!filter("order.deleted").matches(&order(), NOW));
    let filter = properties(&[("subject", Value::String("&s:"))]).unwrap();
    assert!(!filter.matches(&crate::message::Message::default(), NOW));
}

#[test]
fn application_properties_match_by_value_and_presence() {
    let cases: &[(&'static str, Value<'static>, bool)] = &[
        ("region", Value::String("EU"), true),
        ("region", symbol("EU"), true),
        ("region", Value::Binary(b"EU"), true),
        ("region", Value::String("&p:E"), true),
        ("region", Value::String("&s:EU"), true),
        ("region", Value::String("&s:XEU"), false),
        ("region", Value::String("&&EU"), false),
        // Numbers of different types are equal if their values are.
        ("count", Value::Ushort(5), true),
        ("count", Value::Long(5), true),
        ("count", Value::Double(5.0), true),
        ("count", Value::Float(5.5), false),
        ("count", Value::String("5"), false),
        ("count", Value::String("&p:5"), false),
        ("paid", Value::Boolean(true), true),
        ("gift", Value::Boolean(true), false),
        ("sold", Value::Timestamp(Timestamp(1_785_000_000_000)), true),
        ("letter", Value::Char('A'), true),
        // Null asks for any value of a property that is present.
        ("region", Value::Null, true),
        ("nothing", Value::Null, true),
        ("absent", Value::Null, false),
        ("absent", Value::Int(1), false),
        ("nothing", Value::Int(0), false),
    ];
    for (name, value, expected) in cases {
        let filter = application(&[(name, *value)]).unwrap();
        assert_eq!(filter.matches(&order(), NOW), *expected, "{name} {value:?}");
    }
}

#[test]
fn an_ampersand_is_written_twice_at_the_start_of_a_value() {
    let message = crate::message::with(&[
        ("modifier", Value::String("&p:x")),
        ("both", Value::String("&&")),
        ("inside", Value::String("a&b")),
    ]);
    for (name, value, expected) in [
        ("modifier", "&&p:x", true),
        ("modifier", "&p:&p", true),
        ("modifier", "&s::x", true),
        ("both", "&&&", true),
        ("both", "&&", false),
        ("inside", "a&b", true),
    ] {
        let filter = application(&[(name, Value::String(value))]).unwrap();
        assert_eq!(filter.matches(&message, NOW), expected, "{name} {value}");
    }
}

#[test]
fn maps_that_are_no_filters_are_refused() {
    let errors = [
        properties(&[]),
        properties(&[("durable", Value::Boolean(true))]),
        properties(&[("subject", symbol("a"))]),
        properties(&[("message-id", Value::Uint(1))]),
        properties(&[("user-id", Value::String("a"))]),
        properties(&[("content-type", Value::String("a"))]),
        properties(&[("creation-time", Value::Ulong(1))]),
        properties(&[("group-sequence", Value::Ulong(1))]),
        properties(&[("to", Value::Null)]),
        properties(&[("to", Value::String("&x:a"))]),
        application(&[("key", Value::String("&"))]),
        application(&[("key", Value::Decimal32([0; 4]))]),
        application(&(0..17).map(|_| ("k", Value::Int(1))).collect::<Vec<_>>()),
        application(&[("key", Value::String(&*"a".repeat(16_400).leak()))]),
        compile(
            &[(Value::String("to"), Value::String("a"))],
            Filter::compile_properties,
        ),
        compile(
            &[(symbol("key"), Value::String("a"))],
            Filter::compile_application_properties,
        ),
    ];
    let texts: Vec<String> = errors
        .into_iter()
        .map(|result| result.expect_err("no filter").to_string())
        .collect();
    assert_eq!(
        texts,
        [
            "properties filter: the map is empty; name at least one field",
            "properties filter: the properties section has no field 'durable'",
            "properties filter: the value of field 'subject' must be a string",
            "properties filter: the value of field 'message-id' must be a ulong, uuid, binary or string",
            "properties filter: the value of field 'user-id' must be a binary",
            "properties filter: the value of field 'content-type' must be a symbol",
            "properties filter: the value of field 'creation-time' must be a timestamp",
            "properties filter: the value of field 'group-sequence' must be a uint",
            "properties filter: the value of field 'to' must be a string",
            "properties filter: the value of field 'to' begins with an unknown modifier: use &s: for a suffix, &p: for a \
             prefix, and && for a string that begins with &",
            "application properties filter: the value of field 'key' begins with an unknown modifier: use &s: for a suffix, \
             &p: for a prefix, and && for a string that begins with &",
            "application properties filter: the value of field 'key' must be a simple type other than decimal",
            "application properties filter: the map has 17 fields; the limit is 16",
            "application properties filter: the keys and values have more than 16384 bytes",
            "properties filter: every key must be a symbol",
            "application properties filter: every key must be a string",
        ]
    );
}

#[test]
fn the_descriptor_chooses_the_kind_of_filter() {
    fn described(descriptor: Value<'static>, value: &impl Encode) -> Vec<u8> {
        let mut out = Vec::new();
        out.push(0);
        descriptor.encode(&mut out);
        value.encode(&mut out);
        out
    }
    fn compile(bytes: &[u8]) -> Option<Result<Filter, CompileError>> {
        let Ok(Value::Described(filter)) = Value::decode(&mut Reader::new(bytes)) else {
            panic!("not a described value");
        };
        let filter: Described<'_> = filter;
        Filter::compile(&filter)
    }
    let sql = "region = 'EU' AND NOT gift";
    let fields = encoded(&[(symbol("subject"), Value::String("order.created"))]);
    let fields = Map::decode(&mut Reader::new(&fields)).unwrap();
    let keys = encoded(&[(Value::String("region"), Value::String("EU"))]);
    let keys = Map::decode(&mut Reader::new(&keys)).unwrap();
    for (code, name, value) in [
        (0x120, "amqp:sql-filter", Value::String(sql)),
        (
            0x468C_0000_0004,
            "apache.org:selector-filter:string",
            Value::String(sql),
        ),
        (0x173, "amqp:properties-filter", Value::Map(fields)),
        (
            0x174,
            "amqp:application-properties-filter",
            Value::Map(keys),
        ),
    ] {
        for descriptor in [Value::Ulong(code), symbol(name)] {
            let filter = compile(&described(descriptor, &value)).unwrap().unwrap();
            assert!(filter.matches(&order(), NOW), "{name}");
            assert!(
                !filter.matches(&crate::message::Message::default(), NOW),
                "{name}"
            );
            let error = compile(&described(descriptor, &Value::Uint(1))).unwrap();
            assert!(error.is_err(), "{name}");
        }
    }
    for descriptor in [Value::Ulong(0x121), symbol("rabbitmq:stream-offset-spec")] {
        let bytes = described(descriptor, &Value::Symbol(Symbol::from_static("first")));
        assert!(compile(&bytes).is_none());
    }
}
