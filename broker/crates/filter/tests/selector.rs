//! JMS selectors: the syntax and the headers in which they differ from SQL filters.

use crate::message::{Message, NOW, check_selector, check_sql, order, with};
use codec_amqp10::{Uuid, Value};
use filter::{Filter, Property};

#[test]
fn keywords_are_case_insensitive_and_identifiers_are_not() {
    check_selector(
        &order(),
        &[
            ("region = 'EU' and count = 5", true),
            ("region = 'EU' AnD nOt count = 6", true),
            ("Region = 'EU'", false),
            ("paid = true and gift = FaLsE", true),
            ("region in ('US', 'EU')", true),
            ("region not like 'U%'", true),
            ("absent is null and region is not null", true),
            ("absent IS NULL or gift", true),
            ("sku like 'AB!_%' escape '!'", true),
        ],
    );
}

#[test]
fn between_includes_both_limits() {
    check_selector(
        &order(),
        &[
            ("count BETWEEN 5 AND 6", true),
            ("count BETWEEN 4 AND 5", true),
            ("count BETWEEN 6 AND 7", false),
            ("count NOT BETWEEN 6 AND 7", true),
            ("count NOT BETWEEN 5 AND 5", false),
            ("count BETWEEN 1 + 1 AND 2 * 3 AND paid", true),
            ("NOT count BETWEEN 1 AND 2", true),
            // Unknown unless one limit already excludes the value.
            ("count BETWEEN absent AND 9", false),
            ("count NOT BETWEEN absent AND 9", false),
            ("count NOT BETWEEN absent AND 4", true),
            ("absent NOT BETWEEN 1 AND 2", false),
            ("(count BETWEEN 1 AND 9) BETWEEN 1 AND 2", false),
        ],
    );
}

#[test]
fn numbers_have_the_syntax_of_java() {
    check_selector(
        &order(),
        &[
            ("5. = 5", true),
            (".5 = 0.5", true),
            ("5E2 = 500", true),
            ("5.e-1 = 0.5", true),
            (".5E1 = 5", true),
            ("5L = 5 AND 5l = 5", true),
            ("0x1F = 31", true),
            ("0XffL = 255", true),
            ("5f = 5.0D", true),
            ("-57.9E2 = -5790", true),
            ("0 = 0.0", true),
            // The quotient of integers is an integer.
            ("7 / 2 = 3", true),
            ("-7 / 2 = -3", true),
            ("7 / 2.0 = 3.5", true),
            ("count / zero = 1", false),
        ],
    );
}

#[test]
fn identifiers_have_the_syntax_of_java() {
    check_selector(
        &with(&[
            ("_a$1", Value::Boolean(true)),
            ("größe", Value::Boolean(true)),
            ("UTC", Value::Boolean(true)),
            ("exists", Value::Boolean(true)),
        ]),
        &[("_a$1", true), ("größe", true), ("UTC AND exists", true)],
    );
}

#[test]
fn header_names_of_jms_refer_to_fields_of_the_message() {
    let mut message = order();
    check_selector(
        &message,
        &[
            ("JMSPriority = 7", true),
            ("JMSMessageID = 'order-17'", true),
            ("JMSMessageID LIKE 'order-%'", true),
            ("JMSCorrelationID IS NOT NULL", true),
            ("JMSType = 'order.created'", true),
            ("JMSTimestamp = 1780000000000", true),
            ("JMSDeliveryMode = 'PERSISTENT'", true),
            ("JMSDeliveryMode IN ('NON_PERSISTENT')", false),
            ("JMSXGroupID = 'customer 5' AND JMSXGroupSeq = 999", true),
            ("JMSXUserID IS NOT NULL", true),
        ],
    );
    message.durable = false;
    check_selector(&message, &[("JMSDeliveryMode = 'NON_PERSISTENT'", true)]);
    check_selector(
        &Message::default(),
        &[("JMSPriority = 4 AND JMSType IS NULL", true)],
    );
}

#[test]
fn ids_that_are_not_strings_are_compared_by_their_text_in_jms() {
    const UUID: Uuid = Uuid([
        0x12, 0x3e, 0x45, 0x67, 0xe8, 0x9b, 0x12, 0xd3, 0xa4, 0x56, 0x42, 0x66, 0x14, 0x17, 0x40,
        0x00,
    ]);
    let cases: &[(Value<'static>, &str)] = &[
        (Value::Ulong(42), "ID:AMQP_ULONG:42"),
        (Value::Ulong(u64::MAX), "ID:AMQP_ULONG:18446744073709551615"),
        (
            Value::Uuid(UUID),
            "ID:AMQP_UUID:123e4567-e89b-12d3-a456-426614174000",
        ),
        (Value::Binary(&[0, 0xAF]), "ID:AMQP_BINARY:00AF"),
        (Value::Binary(&[0, 0xAF]), "ID:AMQP_BINARY:00af"),
        (Value::String("plain"), "ID:AMQP_NO_PREFIX:plain"),
        (
            Value::String("ID:AMQP_ULONG:42"),
            "ID:AMQP_STRING:ID:AMQP_ULONG:42",
        ),
        (Value::String("ID:usual:1"), "ID:usual:1"),
        // Text that only looks like an encoded id is itself.
        (Value::String("ID:AMQP_ULONG:x"), "ID:AMQP_ULONG:x"),
        (Value::String("ID:AMQP_UUID:12"), "ID:AMQP_UUID:12"),
        (Value::String("ID:AMQP_BINARY:0"), "ID:AMQP_BINARY:0"),
    ];
    for (id, text) in cases {
        for (property, name) in [
            (Property::MessageId, "JMSMessageID"),
            (Property::CorrelationId, "JMSCorrelationID"),
        ] {
            let message = Message {
                properties: vec![(property, *id)],
                ..Message::default()
            };
            check_selector(
                &message,
                &[
                    (&format!("{name} = '{text}'"), true),
                    (&format!("'{text}' = {name}"), true),
                    (&format!("{name} <> '{text}'"), false),
                    (&format!("{name} IN ('other', '{text}')"), true),
                    (&format!("{name} = 'ID:AMQP_ULONG:43'"), false),
                ],
            );
        }
    }
    // SQL filters compare the ids themselves.
    let message = Message {
        properties: vec![(Property::MessageId, Value::Ulong(42))],
        ..Message::default()
    };
    check_sql(
        &message,
        &[
            ("p.message_id = 'ID:AMQP_ULONG:42'", false),
            ("p.message_id = 42", true),
        ],
    );
}

#[test]
fn a_long_list_of_keys_compiles() {
    let keys: Vec<String> = (0..300).map(|key| format!("'key-{key}'")).collect();
    let filter = Filter::compile_selector(&format!("id IN ({})", keys.join(","))).unwrap();
    assert!(filter.matches(&with(&[("id", Value::String("key-299"))]), NOW));
    assert!(!filter.matches(&with(&[("id", Value::String("key-500"))]), NOW));
}
