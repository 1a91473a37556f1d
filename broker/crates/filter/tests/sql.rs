//! SQL filters: results for messages, by construct. Expected results are those of RabbitMQ 4.2 where it supports the construct.

use crate::message::{Message, NOW, check_sql, order, symbol, with};
use codec_amqp10::{Timestamp, Uuid, Value};
use filter::{Filter, Property};

#[test]
fn logical_operators_use_three_valued_logic() {
    check_sql(
        &order(),
        &[
            ("region = 'EU' AND count = 5", true),
            ("region = 'EU' AND count > 5", false),
            ("region = 'US' OR count < 6", true),
            ("NOT region = 'US'", true),
            ("NOT NOT paid", true),
            ("NOT NOT NOT gift", true),
            ("NOT NOT NOT NOT paid", true),
            // AND with unknown.
            ("absent AND paid", false),
            ("paid AND absent", false),
            ("NOT (absent AND paid)", false),
            ("NOT (paid AND absent)", false),
            ("NOT (absent AND gift)", true),
            ("NOT (gift AND absent)", true),
            ("NOT (absent AND nothing)", false),
            // OR with unknown.
            ("absent OR paid", true),
            ("paid OR absent", true),
            ("absent OR gift", false),
            ("NOT (absent OR gift)", false),
            ("NOT (gift OR absent)", false),
            ("NOT (absent OR paid)", false),
            ("NOT (absent OR nothing)", false),
            // NOT of unknown.
            ("NOT absent", false),
            ("NOT NOT absent", false),
            // A value that is not a boolean is unknown.
            ("count", false),
            ("NOT count", false),
            ("NOT NOT count", false),
            ("percent OR paid", true),
            ("paid OR percent", true),
            ("NOT (city OR gift)", false),
        ],
    );
}

#[test]
fn comparisons_compare_values_of_like_types() {
    check_sql(
        &order(),
        &[
            ("region = 'EU'", true),
            ("'EU' = region", true),
            ("region <> 'EU'", false),
            ("region != 'US'", true),
            ("count > 4", true),
            ("count > 5", false),
            ("count >= 5", true),
            ("count >= 5.01", false),
            ("count < 5.5", true),
            ("count <= 5.0", true),
            ("price >= 10", true),
            ("price < 10", false),
            ("region > 'DE'", true),
            ("region < 'DE'", false),
            ("region <= 'EU'", true),
            ("'Zz' > city", true),
            ("'Osl' < city", true),
            ("paid = TRUE", true),
            ("gift = FALSE", true),
            ("gift <> FALSE", false),
            // Different types are not equal and have no order.
            ("count = '5'", false),
            ("count <> '5'", true),
            ("count >= '5'", false),
            ("count < '5'", false),
            ("region > 1", false),
            ("region < 1", false),
            ("paid = 1", false),
            ("paid = 'TRUE'", false),
            ("paid >= TRUE", false),
            ("paid > gift", false),
            ("NOT paid >= TRUE", true),
            ("decimal = 0", false),
            ("decimal <> 0", true),
            ("decimal = decimal", false),
            // Characters and timestamps are integers.
            ("letter = 65", true),
            ("letter = 'A'", false),
            ("sold = 1785000000000", true),
        ],
    );
}

#[test]
fn numbers_compare_exactly_across_types() {
    check_sql(
        &with(&[
            ("above", Value::Ulong(9_007_199_254_740_993)),
            ("float", Value::Double(9_007_199_254_740_992.0)),
            ("most", Value::Ulong(u64::MAX)),
            ("least", Value::Long(i64::MIN)),
            ("vast", Value::Double(f64::MAX)),
            ("infinite", Value::Double(f64::INFINITY)),
            ("negative", Value::Double(f64::NEG_INFINITY)),
            ("nan", Value::Double(f64::NAN)),
            ("minus_zero", Value::Double(-0.0)),
            ("half", Value::Float(-2.5)),
        ]),
        &[
            ("above = float", false),
            ("above > float", true),
            ("float < above", true),
            ("most = 18446744073709551615", true),
            ("most < 18446744073709551615.0", true),
            ("least = -9223372036854775808", true),
            ("least < most", true),
            ("vast > most", true),
            ("-vast < least", true),
            ("infinite > vast", true),
            ("infinite > most", true),
            ("most < infinite", true),
            ("negative < least", true),
            ("minus_zero = 0", true),
            ("half > -3", true),
            ("half < -2", true),
            ("half = -2", false),
            ("[nan] = [nan]", false),
            ("[nan] < 1", false),
            ("1 <= [nan]", false),
            ("[nan] <> 1", true),
        ],
    );
}

#[test]
fn arithmetic_promotes_numbers() {
    check_sql(
        &order(),
        &[
            ("count + 5 = 10", true),
            ("price + 4.5 = 15", true),
            ("count - 2 = 3", true),
            ("count * 2 = 10", true),
            ("stock * price * rate = 262.5", true),
            ("count / 2 = 2.5", true),
            ("stock / 10 = 10", true),
            ("count % 2 = 1", true),
            ("7 % celsius = 2", true),
            ("celsius % 3 = -2", true),
            ("101 % percent % count = 1", true),
            ("101 % (percent % 30) = 11", true),
            ("10 - 3 - 2 = 5", true),
            ("100 / 10 / 5 = 2", true),
            ("count + 2 * 3 = 11", true),
            ("(count + 2) * 3 = 21", true),
            ("+celsius = -5", true),
            ("-celsius = 5", true),
            ("6 - -count = 11", true),
            ("6 + +count = 11", true),
            ("-(-count) = 5", true),
            ("-(+count) = -5", true),
            ("huge + tiny >= huge", true),
            // No result.
            ("count / 0 > 0", false),
            ("NOT count / 0 > 0", false),
            ("count / 0.0 = 0", false),
            ("count % 0 = 0", false),
            ("count % zero = 0", false),
            ("price % 2 = 0", false),
            ("0 / 0 = 0", false),
            ("0.0 / 1 = 0", true),
            ("absent + 4 = 4", false),
            ("region + 1 = 'EU1'", false),
            ("paid + gift = 1", false),
            ("+region = 'EU'", false),
            ("-absent = 0", false),
            ("+count", false),
            ("0x01 + 1 = 2", false),
        ],
    );
}

#[test]
fn arithmetic_overflow_continues_in_floating_point() {
    check_sql(
        &order(),
        &[
            ("biggest + 1 = 18446744073709551616", true),
            ("biggest * biggest > 3.4E38", true),
            ("biggest * biggest * biggest > 6.2E57", true),
        ],
    );
    // A result that is not finite is none.
    let infinite = vec!["huge"; 13].join(" * ");
    check_sql(
        &order(),
        &[
            (&format!("{infinite} > 0"), false),
            (&format!("NOT {infinite} > 0"), false),
        ],
    );
}

#[test]
fn strings_are_compared_by_their_bytes() {
    check_sql(
        &with(&[
            ("name", Value::String("O'Brien")),
            ("quote", Value::String("\"")),
            ("empty", Value::String("")),
            ("flag", Value::String("🇳🇴")),
            ("bytes", Value::Binary(b"Hi")),
            ("id", Value::Uuid(Uuid([0xAB; 16]))),
        ]),
        &[
            ("name = 'O''Brien'", true),
            ("name = \"O'Brien\"", true),
            ("quote = '\"'", true),
            ("quote = \"\"\"\"", true),
            ("empty = ''", true),
            ("empty = \"\"", true),
            ("'' = 'x'", false),
            ("'''' = \"'\"", true),
            ("flag = '🇳🇴'", true),
            ("flag = '🇳🇴 '", false),
            ("bytes = 'Hi'", true),
            ("bytes = 0x4869", true),
            ("bytes < 0x486900", true),
            ("0x01 <> 0x02", true),
            ("0x02 > 0x0100", true),
            ("bytes IN (0x00, 0x4869)", true),
            ("id = 0xABABABABABABABABABABABABABABABAB", true),
            ("id = 0xAB", false),
            ("bytes = 4869", false),
        ],
    );
}

#[test]
fn like_matches_whole_strings() {
    check_sql(
        &order(),
        &[
            ("title LIKE '%red%'", true),
            ("title LIKE 'Ten%'", true),
            ("title LIKE '%apples'", true),
            ("title LIKE 'Ten%apples'", true),
            ("title LIKE 'T_n _ed %p_les'", true),
            ("title LIKE 'T_n _ed %p_le'", false),
            ("title LIKE 'red'", false),
            ("title LIKE '%red%red%'", false),
            ("title LIKE '%e%e%e%'", true),
            ("title LIKE '%e%e%e%e%'", false),
            ("region LIKE 'EU'", true),
            ("region LIKE 'E_'", true),
            ("region LIKE '_U'", true),
            ("region LIKE 'E_U'", false),
            ("region LIKE 'EU_'", false),
            ("region LIKE 'eu'", false),
            ("region NOT LIKE 'US'", true),
            ("region NOT LIKE '%U'", false),
            ("sku LIKE 'AB\\_%' ESCAPE '\\'", true),
            ("sku LIKE 'AB\\%' ESCAPE '\\'", false),
            ("sku LIKE 'AB🥕_100' ESCAPE '🥕'", true),
            // Only strings and binaries have patterns.
            ("count LIKE '5'", false),
            ("NOT count LIKE '5'", false),
            ("absent LIKE '%'", false),
            ("absent NOT LIKE '%'", false),
            ("nothing NOT LIKE '%'", false),
            // '_' is a character, of which a binary that is not UTF-8 has none.
            ("notText LIKE '_a'", false),
            ("NOT notText LIKE '_a'", false),
            ("notText LIKE '%a'", true),
            ("digest LIKE '%a'", false),
        ],
    );
    check_sql(
        &with(&[
            ("empty", Value::String("")),
            ("food", Value::String("car🥕rot")),
            ("twice", Value::String("aa")),
            ("lines", Value::String("a\nb")),
            ("signs", Value::String("#.\\|()[]{}^$*+?%_")),
            ("cake", Value::String("🍰%🥕")),
        ]),
        &[
            ("empty LIKE ''", true),
            ("empty LIKE '%'", true),
            ("empty LIKE '%%%'", true),
            ("empty LIKE '_'", false),
            ("empty LIKE '%x%'", false),
            ("food LIKE 'car_rot'", true),
            ("food LIKE 'car__rot'", false),
            ("food LIKE '___🥕___'", true),
            ("food LIKE '%_🥕_%'", true),
            ("food LIKE '%🥕'", false),
            ("food LIKE '%_t'", true),
            ("food LIKE '%_____________'", false),
            ("food LIKE '_______'", true),
            ("food LIKE '________'", false),
            ("food LIKE '%r__'", true),
            ("food LIKE '%o%r%'", false),
            ("twice LIKE 'a%a'", true),
            ("twice LIKE 'a%aa'", false),
            ("twice LIKE 'aa%aa'", false),
            ("twice LIKE '%a_%'", true),
            ("lines LIKE 'a_b'", true),
            ("lines LIKE '%_b'", true),
            ("signs LIKE '_.\\|()[]{}^$*+?%'", true),
            ("signs LIKE '%!%!_' ESCAPE '!'", true),
            ("signs LIKE '%!_!%' ESCAPE '!'", false),
            ("cake LIKE '🍰@%🥕' ESCAPE '@'", true),
            ("cake LIKE '🍰@_🥕' ESCAPE '@'", false),
            ("cake LIKE '🍰%%🥕' ESCAPE '%'", true),
            ("food LIKE 'car%%🥕' ESCAPE '%'", false),
        ],
    );
}

#[test]
fn in_compares_with_each_entry() {
    check_sql(
        &order(),
        &[
            ("region IN ('US', 'EU')", true),
            ("region IN ('US')", false),
            ("region NOT IN ('US')", true),
            ("region NOT IN ('EU')", false),
            ("'Oslo' IN (region, city)", true),
            ("price IN (h.priority + 3.5, 1)", true),
            ("5.0 IN (TRUE, count)", true),
            ("absent IN ('EU')", false),
            ("absent NOT IN ('EU')", false),
            ("NOT (absent IN ('EU') AND paid)", false),
            // A null entry is equal to nothing and not unknown, as in RabbitMQ.
            ("region IN (absent, 'EU')", true),
            ("region NOT IN (absent, 'US')", true),
        ],
    );
}

#[test]
fn null_is_only_found_by_is_null() {
    check_sql(
        &order(),
        &[
            ("absent IS NULL", true),
            ("nothing IS NULL", true),
            ("region IS NULL", false),
            ("absent IS NOT NULL", false),
            ("region IS NOT NULL", true),
            ("decimal IS NOT NULL", true),
            ("h.priority IS NOT NULL", true),
            ("absent = absent", false),
            ("absent <> absent", false),
            ("nothing = 0", false),
            ("0 <> nothing", false),
            ("absent >= 0", false),
            ("0 > nothing", false),
        ],
    );
    let empty = Message::default();
    check_sql(
        &empty,
        &[
            ("p.subject IS NULL", true),
            ("p.subject IS NOT NULL", false),
            ("h.priority = 4", true),
        ],
    );
}

#[test]
fn number_literals_have_the_forms_of_the_specification() {
    check_sql(
        &order(),
        &[
            ("5 = 5.0", true),
            ("0 = 0.0", true),
            ("distance = 1.2E6", true),
            ("distance = 1200000", true),
            ("tiny = 3.5E-4", true),
            ("5.0E+2 = 500", true),
            ("-5.0E-2 = -0.05", true),
            ("1.0E0 = 1", true),
            ("007 = 7", true),
        ],
    );
}

#[test]
fn precedence_is_that_of_sql() {
    check_sql(
        &order(),
        &[
            ("NOT region = 'US' AND count > 3", true),
            ("NOT (region = 'EU' AND count > 6)", true),
            ("NOT region = 'EU' AND gift", false),
            ("paid OR gift AND gift", true),
            ("(paid OR gift) AND gift", false),
            ("gift AND gift OR paid", true),
            ("count = 2 + 3 AND 2 * 5 = 4 + 6", true),
            ("count = -(-81) % percent -1", true),
            ("(region = 'EU') = TRUE", true),
            ("(region = 'EU') = paid", true),
            ("(count > 4 OR absent) IN (TRUE)", true),
            ("((((count)))) = 5", true),
        ],
    );
}

#[test]
fn white_space_is_optional_between_tokens() {
    check_sql(
        &order(),
        &[
            ("region='EU'AND count=5", true),
            (" \t\u{c}\r\nregion\t=\u{c}'EU'\nAND\rcount=5 ", true),
            ("count-2=3", true),
            ("title = 'Ten  red apples'", false),
            ("UTC()>0", true),
            ("UTC ( ) > 0", true),
        ],
    );
}

#[test]
fn identifiers_name_fields_of_sections() {
    let mut message = order();
    message.application.extend([
        ("priority", Value::Int(-1)),
        ("p.to", Value::Boolean(true)),
        ("NOT", Value::Boolean(true)),
        ("utc", Value::Boolean(true)),
        ("🥕", Value::Boolean(true)),
        (" ", Value::Boolean(true)),
        ("[x]", Value::Boolean(true)),
        ("]", Value::Boolean(true)),
        ("][", Value::Boolean(true)),
        ("", Value::Boolean(true)),
        ("Region", Value::String("other case")),
        ("a1_b", Value::Boolean(true)),
        ("ANDROID", Value::Boolean(true)),
    ]);
    check_sql(
        &message,
        &[
            ("h.priority = 7 AND header.priority = 7", true),
            ("priority = -1", true),
            (
                "a.priority = -1 AND application_properties.priority = -1",
                true,
            ),
            ("p.to = '/queues/orders'", true),
            ("properties.to = '/queues/orders'", true),
            ("[p.to]", true),
            ("[NOT] AND a.NOT", true),
            ("[utc]", true),
            ("[🥕]", true),
            ("[ ]", true),
            ("[]", true),
            ("[[[x]]]", true),
            ("[]]]", true),
            ("[]][[]", true),
            ("a1_b AND ANDROID", true),
            ("Region = 'other case' AND region = 'EU'", true),
            ("p.message_id = 'order-17'", true),
            ("p.message_id LIKE 'order-%'", true),
            ("p.user_id = 0x0A0B0C", true),
            ("p.subject = 'order.created'", true),
            ("p.reply_to LIKE '%answers'", true),
            ("p.correlation_id > 788", true),
            ("p.content_type IN ('text/plain')", true),
            ("p.content_encoding = 'gzip'", true),
            ("p.absolute_expiry_time = 1800000000000", true),
            ("p.creation_time < p.absolute_expiry_time", true),
            ("p.group_id = 'customer 5'", true),
            ("p.group_sequence >= 999", true),
            ("p.reply_to_group_id <> p.group_id", true),
        ],
    );
}

#[test]
fn the_first_of_two_application_properties_with_one_name_counts() {
    check_sql(
        &with(&[("twice", Value::Int(1)), ("twice", Value::Int(2))]),
        &[("twice = 1", true), ("twice = 2", false)],
    );
}

#[test]
fn many_application_properties_are_found_by_one_pass() {
    let names: Vec<&'static str> = (0..60)
        .map(|number| &*Box::leak(format!("key{number}").into_boxed_str()))
        .collect();
    let application: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(number, name)| (*name, Value::Int(number as i32)))
        .collect();
    let expression: Vec<String> = (0..49)
        .map(|number| format!("key{number} = {number}"))
        .collect();
    let message = with(&application);
    let filter = Filter::compile_sql(&expression.join(" AND ")).unwrap();
    assert!(filter.matches(&message, NOW));
    for missing in 0..49 {
        let mut message = message.clone();
        message.application.remove(missing);
        assert!(!filter.matches(&message, NOW), "without key{missing}");
    }
}

#[test]
fn utc_is_the_time_of_the_evaluation() {
    let mut message = order();
    message
        .application
        .push(("soon", Value::Timestamp(Timestamp(NOW as i64 + 1))));
    check_sql(
        &message,
        &[
            ("UTC() = 1790000000000", true),
            ("UTC() > p.creation_time", true),
            ("UTC() < p.absolute_expiry_time", true),
            ("UTC() - p.creation_time = 10000000000", true),
            ("soon - UTC() = 1", true),
        ],
    );
    let filter = Filter::compile_sql("UTC() < sold").unwrap();
    assert!(filter.matches(&message, 0));
    assert!(!filter.matches(&message, NOW));
}

#[test]
fn expressions_up_to_the_limits_compile() {
    let open = "(".repeat(filter::MAX_NESTING);
    let close = ")".repeat(filter::MAX_NESTING);
    let nested = format!("{open}paid{close}");
    let list = vec!["1"; 98].join(",");
    let longest = format!(
        "'{}' = ''",
        "é".repeat(filter::MAX_EXPRESSION_CHARACTERS - 7)
    );
    let message = Message {
        application: vec![("paid", Value::Boolean(true)), ("id", symbol("x"))],
        ..Message::default()
    };
    check_sql(
        &message,
        &[
            (&nested, true),
            (&format!("id IN ({list})"), false),
            (&longest, false),
            (&format!("{}paid", "NOT ".repeat(198)), true),
            (&format!("1{} > 0", "+1".repeat(98)), true),
        ],
    );
    assert_eq!(longest.chars().count(), filter::MAX_EXPRESSION_CHARACTERS);
}

#[test]
fn a_property_of_the_message_is_read_with_its_own_type() {
    let message = Message {
        properties: vec![(Property::MessageId, Value::Uuid(Uuid(*b"0123456789abcdef")))],
        ..Message::default()
    };
    check_sql(
        &message,
        &[
            ("p.message_id = '0123456789abcdef'", true),
            ("p.message_id LIKE '0%f'", true),
            ("p.message_id = 0", false),
        ],
    );
}
