//! Expressions that are no filters, and the text of each error.

use filter::{Filter, MAX_EXPRESSION_CHARACTERS, MAX_NESTING};

fn check(compile: impl Fn(&str) -> Option<String>, cases: &[(&str, &str)]) {
    let wrong: Vec<String> = cases
        .iter()
        .filter_map(|(text, expected)| match compile(text) {
            Some(error) if error == *expected => None,
            Some(error) => Some(format!(
                "{text}\n  expected: {expected}\n  found:    {error}"
            )),
            None => Some(format!("{text}\n  compiles")),
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn sql_error(text: &str) -> Option<String> {
    Filter::compile_sql(text)
        .err()
        .map(|error| error.to_string())
}

fn selector_error(text: &str) -> Option<String> {
    Filter::compile_selector(text)
        .err()
        .map(|error| error.to_string())
}

#[test]
fn errors_name_the_character_and_the_expected_token() {
    check(
        sql_error,
        &[
            (
                "",
                "SQL filter, character 1: expected a value, an identifier or (, found the end of the expression",
            ),
            (
                "  ",
                "SQL filter, character 3: expected a value, an identifier or (, found the end of the expression",
            ),
            (
                "a =",
                "SQL filter, character 4: expected a value, an identifier or (, found the end of the expression",
            ),
            (
                "AND a",
                "SQL filter, character 1: expected a value, an identifier or (, found AND",
            ),
            (
                "a AND NOT",
                "SQL filter, character 10: expected a value, an identifier or (, found the end of the expression",
            ),
            (
                "a b",
                "SQL filter, character 3: expected an operator or the end, found b",
            ),
            (
                "a = 1 = 2",
                "SQL filter, character 7: expected an operator or the end, found =",
            ),
            (
                "(a = 1",
                "SQL filter, character 7: expected an operator or ), found the end of the expression",
            ),
            (
                "(a 'x')",
                "SQL filter, character 4: expected an operator or ), found 'x'",
            ),
            (
                "a = 1)",
                "SQL filter, character 6: expected an operator or the end, found )",
            ),
            (
                "- -1 = 1",
                "SQL filter, character 3: expected a value, an identifier or (, found -",
            ),
            (
                "1 + NOT a",
                "SQL filter, character 5: expected a value, an identifier or (, found NOT",
            ),
            (
                "a IS",
                "SQL filter, character 5: expected NULL or NOT NULL, found the end of the expression",
            ),
            (
                "a IS NOT 5",
                "SQL filter, character 10: expected NULL, found 5",
            ),
            (
                "1 IS NULL",
                "SQL filter, character 6: IS NULL needs an identifier on its left",
            ),
            (
                "a NOT 5",
                "SQL filter, character 7: expected IN or LIKE, found 5",
            ),
            (
                "a IN 5",
                "SQL filter, character 6: expected ( and the values of IN, found 5",
            ),
            (
                "a IN ()",
                "SQL filter, character 7: expected a value, an identifier or (, found )",
            ),
            (
                "a IN (1 2)",
                "SQL filter, character 9: expected , or ), found 2",
            ),
            (
                "a IN (1, TRUE",
                "SQL filter, character 14: expected , or ), found the end of the expression",
            ),
            (
                "a LIKE b",
                "SQL filter, character 8: expected a string with the pattern, found b",
            ),
            (
                "a LIKE 0x48",
                "SQL filter, character 8: expected a string with the pattern, found 0x48",
            ),
            (
                "a LIKE 'x' ESCAPE 1",
                "SQL filter, character 19: expected a string with the escape character, found 1",
            ),
            (
                "UTC",
                "SQL filter, character 4: expected (, found the end of the expression",
            ),
            ("UTC(1)", "SQL filter, character 5: expected ), found 1"),
            ("é = 1", "SQL filter, character 1: unexpected character 'é'"),
            (
                "'éé' = é",
                "SQL filter, character 8: unexpected character 'é'",
            ),
            ("a; b", "SQL filter, character 2: unexpected character ';'"),
            ("!!!", "SQL filter, character 1: unexpected character '!'"),
            (
                "my.key",
                "SQL filter, character 1: section 'my' is not supported; use header (h), properties (p) or \
              application_properties (a), or write a property whose name has a dot in brackets",
            ),
            ("a.b.c", "SQL filter, character 4: unexpected character '.'"),
            ("$key", "SQL filter, character 1: unexpected character '$'"),
            ("_key", "SQL filter, character 1: unexpected character '_'"),
            (
                "\u{7} = 1",
                "SQL filter, character 1: unexpected character '\\u{7}'",
            ),
            (
                "a 'x\ny'",
                "SQL filter, character 3: expected an operator or the end, found 'x\\ny'",
            ),
            (
                "a = '\u{7}' b",
                "SQL filter, character 9: expected an operator or the end, found b",
            ),
        ],
    );
}

#[test]
fn malformed_tokens_are_refused() {
    const BINARY: &str = "a binary constant is 0x and pairs of the digits 0-9 and A-F";
    const NUMBER: &str = "an identifier cannot start with a digit, and a number with an exponent needs a decimal point: 5.0E2";
    let at = |character: usize, text: &str| format!("SQL filter, character {character}: {text}");
    check(
        sql_error,
        &[
            (
                "a = 'x",
                &at(5, "the string that starts here is not closed"),
            ),
            (
                "a = 'x''",
                &at(5, "the string that starts here is not closed"),
            ),
            (
                "a = \"x'",
                &at(5, "the string that starts here is not closed"),
            ),
            (
                "[a",
                &at(1, "the identifier that starts here is not closed"),
            ),
            (
                "[a]]",
                &at(1, "the identifier that starts here is not closed"),
            ),
            (
                "[a[b]",
                &at(1, "a bracket in an identifier is written twice"),
            ),
            (
                "[a\nb]",
                &at(1, "control character 0x0a is not allowed in an identifier"),
            ),
            ("a = 0x", &at(5, BINARY)),
            ("a = 0x1", &at(5, BINARY)),
            ("a = 0x123", &at(5, BINARY)),
            ("a = 0xab", &at(5, BINARY)),
            ("a = 0xAG", &at(5, BINARY)),
            ("a = 0xABg", &at(5, BINARY)),
            ("1a = 1", &at(1, NUMBER)),
            ("5E2 > 0", &at(1, NUMBER)),
            ("5. > 0", &at(1, "a decimal point needs digits after it")),
            (".5 > 0", &at(1, "unexpected character '.'")),
            ("5.0e2 > 0", &at(1, "an exponent is E and digits")),
            ("5.0E > 0", &at(1, "an exponent is E and digits")),
            ("1.0E400 > 0", &at(1, "the number is out of range")),
            (
                &format!("1{} > 0", "0".repeat(40)),
                &at(1, "the number is out of range"),
            ),
        ],
    );
}

#[test]
fn patterns_are_checked() {
    check(
        sql_error,
        &[
            (
                "a LIKE 'x!' ESCAPE '!'",
                "SQL filter, character 8: the pattern ends with the escape character, which must precede a character",
            ),
            (
                "a LIKE '%_!' ESCAPE '!'",
                "SQL filter, character 8: the pattern ends with the escape character, which must precede a character",
            ),
            (
                "a LIKE 'x' ESCAPE ''",
                "SQL filter, character 19: ESCAPE needs a string of one character",
            ),
            (
                "a LIKE 'x' ESCAPE 'ab'",
                "SQL filter, character 19: ESCAPE needs a string of one character",
            ),
            (
                "a LIKE 'x\ty'",
                "SQL filter, character 8: control character 0x09 is not allowed in a pattern",
            ),
            (
                "a LIKE '!\r' ESCAPE '!'",
                "SQL filter, character 8: control character 0x0d is not allowed in a pattern",
            ),
            (
                &format!("a LIKE '%_{}%'", "x".repeat(64)),
                "SQL filter, character 8: 65 characters between two % of a pattern, with _ among them; the limit is 64",
            ),
        ],
    );
    for pattern in ["_", "%_", "_%"] {
        let long = format!("a LIKE '{}{pattern}'", "x".repeat(3000));
        assert_eq!(sql_error(&long), None);
    }
}

#[test]
fn reserved_words_are_no_identifiers() {
    for word in [
        "and",
        "And",
        "or",
        "not",
        "Not",
        "like",
        "in",
        "is",
        "Is",
        "null",
        "escape",
        "true",
        "True",
        "false",
        "utc",
        "exists",
        "lower",
        "upper",
        "left",
        "right",
        "substring",
        "date",
        "nan",
        "inf",
    ] {
        assert_eq!(
            sql_error(word).unwrap(),
            format!(
                "SQL filter, character 1: '{word}' is a reserved word: write keywords in upper case, and a property of this \
                 name as [{word}]"
            )
        );
    }
    check(
        sql_error,
        &[
            (
                "NULL = 1",
                "SQL filter, character 1: expected a value, an identifier or (, found NULL",
            ),
            (
                "a = ESCAPE",
                "SQL filter, character 5: expected a value, an identifier or (, found ESCAPE",
            ),
        ],
    );
}

#[test]
fn constructs_that_are_not_supported_are_named() {
    const FUNCTION: &str =
        "is not supported; the only function is UTC(); write a property of this name in brackets";
    for word in [
        "EXISTS",
        "LOWER",
        "UPPER",
        "LEFT",
        "RIGHT",
        "SUBSTRING",
        "DATE",
        "NAN",
        "INF",
    ] {
        assert_eq!(
            sql_error(&format!("{word}(a) = 1")).unwrap(),
            format!("SQL filter, character 1: {word} {FUNCTION}")
        );
    }
    for section in [
        "delivery_annotations",
        "d",
        "message_annotations",
        "m",
        "message-annotations",
        "footer",
        "f",
        "body",
        "application-properties",
    ] {
        assert_eq!(
            sql_error(&format!("1 = {section}.abc")).unwrap(),
            format!(
                "SQL filter, character 5: section '{section}' is not supported; use header (h), properties (p) or \
                 application_properties (a), or write a property whose name has a dot in brackets"
            )
        );
    }
    check(
        sql_error,
        &[
            (
                "a BETWEEN 1 AND 2",
                "SQL filter, character 3: BETWEEN is not supported; use >= and <=",
            ),
            (
                "h.ttl > 1",
                "SQL filter, character 1: section header has no field 'ttl' that filters support",
            ),
            (
                "header.durable",
                "SQL filter, character 1: section header has no field 'durable' that filters support",
            ),
            (
                "p.message-id = 1",
                "SQL filter, character 1: section properties has no field 'message' that filters support",
            ),
            (
                "properties.Subject = 1",
                "SQL filter, character 1: section properties has no field 'Subject' that filters support",
            ),
        ],
    );
    check(
        selector_error,
        &[
            (
                "a % 2 = 0",
                "JMS selector, character 3: expected an operator or the end, found %",
            ),
            (
                "JMSReplyTo = 'a'",
                "JMS selector, character 1: 'JMSReplyTo' is not supported; use JMSMessageID, JMSCorrelationID, JMSType, \
                 JMSTimestamp, JMSPriority, JMSDeliveryMode, JMSXGroupID, JMSXGroupSeq, JMSXUserID or a property of the \
                 application",
            ),
        ],
    );
}

#[test]
fn errors_of_selectors_follow_java() {
    check(
        selector_error,
        &[
            (
                "a.b = 1",
                "JMS selector, character 2: unexpected character '.'",
            ),
            (
                "a = \"x\"",
                "JMS selector, character 5: unexpected character '\"'",
            ),
            (
                "[a] = 1",
                "JMS selector, character 1: unexpected character '['",
            ),
            (
                "a = 010",
                "JMS selector, character 5: a leading 0 means octal in Java, which is not supported; remove it",
            ),
            (
                "a = 0x",
                "JMS selector, character 5: the number is out of range",
            ),
            (
                "a = 5x",
                "JMS selector, character 5: an identifier cannot start with a digit",
            ),
            (
                "a = 5.0L",
                "JMS selector, character 5: an identifier cannot start with a digit",
            ),
            (
                "a = 0x5g",
                "JMS selector, character 5: an identifier cannot start with a digit",
            ),
            (
                "a = 1E400",
                "JMS selector, character 5: the number is out of range",
            ),
            (
                "a BETWEEN 1",
                "JMS selector, character 12: expected AND and the upper limit of BETWEEN, found the end of the expression",
            ),
            (
                "a NOT 5",
                "JMS selector, character 7: expected IN, LIKE or BETWEEN, found 5",
            ),
            (
                "UTC() > 1",
                "JMS selector, character 4: expected an operator or the end, found (",
            ),
        ],
    );
}

#[test]
fn expressions_above_the_limits_are_refused() {
    let nested = format!(
        "{}a{}",
        "(".repeat(MAX_NESTING + 1),
        ")".repeat(MAX_NESTING + 1)
    );
    let many = format!("a IN ({}1)", "1,".repeat(100));
    let long = format!("{} IS NULL", "x".repeat(MAX_EXPRESSION_CHARACTERS));
    check(
        sql_error,
        &[
            (
                &nested,
                "SQL filter, character 33: parentheses are nested deeper than 32",
            ),
            (&many, "SQL filter: the expression has more than 200 tokens"),
            (
                &long,
                "SQL filter: the expression has 4104 characters; the limit is 4096",
            ),
        ],
    );
    let many = format!("a IN ({}1)", "1,".repeat(500));
    check(
        selector_error,
        &[(
            &many,
            "JMS selector: the expression has more than 1000 tokens",
        )],
    );
}

#[test]
fn long_tokens_are_shortened_in_errors() {
    let text = format!("a {}", "b".repeat(100));
    assert_eq!(
        sql_error(&text).unwrap(),
        format!(
            "SQL filter, character 3: expected an operator or the end, found {}...",
            "b".repeat(40)
        )
    );
}
