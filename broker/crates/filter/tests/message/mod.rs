//! A message whose fields a test sets.

use codec_amqp10::{Symbol, Timestamp, Value};
use filter::{ApplicationValues, Fields, Filter, HeaderField, Operand, Property};

/// The time that `UTC()` returns.
pub const NOW: u64 = 1_790_000_000_000;

#[derive(Clone, Debug, Default)]
pub struct Message {
    pub priority: Option<u8>,
    pub durable: bool,
    pub properties: Vec<(Property, Value<'static>)>,
    pub application: Vec<(&'static str, Value<'static>)>,
}

impl Fields for Message {
    fn header(&self, field: HeaderField) -> Operand<'_> {
        match field {
            HeaderField::Priority => Operand::Integer(self.priority.unwrap_or(4).into()),
            HeaderField::Durable => Operand::Boolean(self.durable),
        }
    }

    fn property(&self, property: Property) -> Operand<'_> {
        self.properties
            .iter()
            .find(|(found, _)| *found == property)
            .map_or(Operand::Null, |(_, value)| (*value).into())
    }

    fn application_properties<'m>(&'m self, values: &mut ApplicationValues<'m>) {
        for (name, value) in &self.application {
            if values.offer(name.as_bytes(), || (*value).into()).is_break() {
                return;
            }
        }
    }
}

pub fn with(application: &[(&'static str, Value<'static>)]) -> Message {
    Message {
        application: application.to_vec(),
        ..Message::default()
    }
}

pub fn symbol(text: &'static str) -> Value<'static> {
    Value::Symbol(Symbol::from_static(text))
}

/// An order with a property of each type.
pub fn order() -> Message {
    Message {
        priority: Some(7),
        durable: true,
        properties: vec![
            (Property::MessageId, Value::String("order-17")),
            (Property::UserId, Value::Binary(&[10, 11, 12])),
            (Property::To, Value::String("/queues/orders")),
            (Property::Subject, Value::String("order.created")),
            (Property::ReplyTo, Value::String("/queues/answers")),
            (Property::CorrelationId, Value::Ulong(789)),
            (Property::ContentType, symbol("text/plain")),
            (Property::ContentEncoding, symbol("gzip")),
            (
                Property::AbsoluteExpiryTime,
                Value::Timestamp(Timestamp(1_800_000_000_000)),
            ),
            (
                Property::CreationTime,
                Value::Timestamp(Timestamp(1_780_000_000_000)),
            ),
            (Property::GroupId, Value::String("customer 5")),
            (Property::GroupSequence, Value::Uint(999)),
            (Property::ReplyToGroupId, Value::String("answers 5")),
        ],
        application: vec![
            ("region", symbol("EU")),
            ("city", Value::String("Oslo")),
            ("title", Value::String("Ten red apples")),
            ("sku", Value::String("AB_100")),
            ("count", Value::Ushort(5)),
            ("price", Value::Double(10.5)),
            ("stock", Value::Uint(100)),
            ("rate", Value::Double(0.25)),
            ("celsius", Value::Int(-5)),
            ("zero", Value::Ulong(0)),
            ("distance", Value::Float(1.2e6)),
            ("tiny", Value::Double(3.5e-4)),
            ("huge", Value::Double(6.02e23)),
            ("paid", Value::Boolean(true)),
            ("gift", Value::Boolean(false)),
            ("nothing", Value::Null),
            ("percent", Value::Ubyte(75)),
            ("digest", Value::Binary(&[0xDE, 0xAD])),
            ("letter", Value::Char('A')),
            ("sold", Value::Timestamp(Timestamp(1_785_000_000_000))),
            ("notText", Value::Binary(&[0xFF, b'a'])),
            ("biggest", Value::Ulong(u64::MAX)),
            ("decimal", Value::Decimal32([0; 4])),
        ],
    }
}

/// Compiles each SQL expression and compares its result for the message.
pub fn check_sql(message: &Message, cases: &[(&str, bool)]) {
    check(message, cases, Filter::compile_sql);
}

/// As [`check_sql`] for selectors.
pub fn check_selector(message: &Message, cases: &[(&str, bool)]) {
    check(message, cases, Filter::compile_selector);
}

fn check(
    message: &Message,
    cases: &[(&str, bool)],
    compile: impl Fn(&str) -> Result<Filter, filter::CompileError>,
) {
    let wrong: Vec<String> = cases
        .iter()
        .filter_map(|(text, expected)| match compile(text) {
            Ok(filter) if filter.matches(message, NOW) == *expected => None,
            Ok(_) => Some(format!("{text}: expected {expected}")),
            Err(error) => Some(format!("{text}: {error}")),
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
