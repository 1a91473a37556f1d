//! Formats values in error texts as RabbitMQ does: as Erlang terms.

use crate::{Table, Value};
use std::fmt;

/// Displays a value as an Erlang term on one line; RabbitMQ breaks long ones.
#[derive(Clone, Copy, Debug)]
pub struct Term<'a>(pub &'a Value);

impl fmt::Display for Term<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::Void => f.write_str("undefined"),
            Value::Bool(v) => write!(f, "{v}"),
            Value::F32(v) => write!(f, "{}", Float((*v).into())),
            Value::F64(v) => write!(f, "{}", Float(*v)),
            Value::Decimal { scale, value } => write!(f, "{{{scale},{value}}}"),
            Value::String(octets) | Value::Binary(octets) => write!(f, "{}", Octets(octets)),
            Value::Timestamp(v) => write!(f, "{v}"),
            Value::Array(values) => {
                f.write_str("[")?;
                for (n, value) in values.iter().enumerate() {
                    let comma = if n == 0 { "" } else { "," };
                    write!(f, "{comma}{{{},{}}}", value.type_name(), Term(value))?;
                }
                f.write_str("]")
            }
            Value::Table(Table(pairs)) => {
                f.write_str("[")?;
                for (n, (key, value)) in pairs.iter().enumerate() {
                    let comma = if n == 0 { "" } else { "," };
                    let (key, kind) = (Octets(key.as_bytes()), value.type_name());
                    write!(f, "{comma}{{{key},{kind},{}}}", Term(value))?;
                }
                f.write_str("]")
            }
            integer => match integer.as_integer() {
                Some(v) => write!(f, "{v}"),
                None => Ok(()),
            },
        }
    }
}

/// A number with a decimal point: the shorter of the forms with and without exponent, without exponent if
/// both are equally long.
struct Float(f64);

impl fmt::Display for Float {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Rust omits ".0".
        let mut plain = self.0.to_string();
        if self.0.is_finite() && !plain.contains('.') {
            plain.push_str(".0");
        }
        let mut scientific = format!("{:e}", self.0);
        if let Some((digits, exponent)) = scientific.split_once('e')
            && !digits.contains('.')
        {
            scientific = format!("{digits}.0e{exponent}");
        }
        let shorter = scientific.len() < plain.len();
        f.write_str(if shorter { &scientific } else { &plain })
    }
}

/// Bytes: quoted text if printable as UTF-8 or else as Latin-1, numbers otherwise.
struct Octets<'a>(&'a [u8]);

impl fmt::Display for Octets<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let printed = |text: &str| {
            text.chars()
                .all(|c| !c.is_control() || "\n\r\t".contains(c))
        };
        let utf8 = std::str::from_utf8(self.0).ok().filter(|t| printed(t));
        let (text, end) = match utf8 {
            Some(text) if text.is_ascii() => (text.to_owned(), ""),
            Some(text) => (text.to_owned(), "/utf8"),
            None => (latin1(self.0), ""),
        };
        if !text.is_empty() && printed(&text) {
            let mut quoted = String::with_capacity(text.len());
            for c in text.chars() {
                match c {
                    '"' => quoted.push_str("\\\""),
                    '\\' => quoted.push_str("\\\\"),
                    '\n' => quoted.push_str("\\n"),
                    '\r' => quoted.push_str("\\r"),
                    '\t' => quoted.push_str("\\t"),
                    c => quoted.push(c),
                }
            }
            return write!(f, "<<\"{quoted}\"{end}>>");
        }
        f.write_str("<<")?;
        for (n, octet) in self.0.iter().enumerate() {
            write!(f, "{}{octet}", if n == 0 { "" } else { "," })?;
        }
        f.write_str(">>")
    }
}

/// Decodes a peer's text for display: as UTF-8, or as Latin-1 if it is not UTF-8.
pub fn bare(octets: &[u8]) -> String {
    match std::str::from_utf8(octets) {
        Ok(text) => text.to_owned(),
        Err(_) => latin1(octets),
    }
}

fn latin1(octets: &[u8]) -> String {
    octets.iter().copied().map(char::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    /// Expected texts as produced by RabbitMQ 4.0.5.
    #[test]
    fn values_are_formatted_as_in_rabbitmq() {
        let display = |value: Value| Term(&value).to_string();
        for (number, text) in [
            (0.0, "0.0"),
            (-1.5, "-1.5"),
            (100.0, "100.0"),
            (1000.0, "1.0e3"),
            (12345.0, "12345.0"),
            (123_456_789.0, "123456789.0"),
            (1.5e22, "1.5e22"),
            (0.0001, "0.0001"),
            (0.00012, "1.2e-4"),
            (0.00123, "0.00123"),
            (1.0 / 3.0, "0.3333333333333333"),
            (1e300, "1.0e300"),
        ] {
            assert_eq!(display(Value::F64(number)), text);
        }
        assert_eq!(display(Value::F32(0.1)), "0.10000000149011612");
        let octets = |octets: &'static [u8]| display(Value::Binary(Bytes::from_static(octets)));
        for (bytes, text) in [
            (&b"abc"[..], "<<\"abc\">>"),
            (b"", "<<>>"),
            (b"\x00\xff", "<<0,255>>"),
            (b"\xff", "<<\"\u{ff}\">>"),
            ("\u{fc}".as_bytes(), "<<\"\u{fc}\"/utf8>>"),
            (b"a\"\\\n", r#"<<"a\"\\\n">>"#),
        ] {
            assert_eq!(octets(bytes), text);
        }
        let decimal = Value::Decimal { scale: 1, value: 2 };
        let array = Value::Array(vec![Value::I32(1), "x".into(), decimal, Value::Bool(true)]);
        assert_eq!(
            display(array.clone()),
            "[{signedint,1},{longstr,<<\"x\">>},{decimal,{1,2}},{bool,true}]"
        );
        let table = Table(vec![
            ("b".into(), Value::Timestamp(7)),
            ("a".into(), Value::Void),
        ]);
        assert_eq!(
            display(Value::Table(table)),
            "[{<<\"b\">>,timestamp,7},{<<\"a\">>,void,undefined}]"
        );
        assert_eq!(display(Value::Array(vec![])), "[]");
        assert_eq!(bare(b"\xff"), "\u{ff}");
    }
}
