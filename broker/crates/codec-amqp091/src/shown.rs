//! Formatting of octets in error texts, in RabbitMQ's notation.

use std::fmt;

/// Number of octets shown of longer input.
const MAX_SHOWN: usize = 16;

/// The first octets of a peer's input, for an error text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    first: [u8; MAX_SHOWN],
    /// Number of valid octets in `first`.
    len: usize,
    truncated: bool,
}

impl Shown {
    /// Copies the first octets.
    pub fn of(octets: &[u8]) -> Shown {
        let mut first = [0; MAX_SHOWN];
        let len = octets.len().min(MAX_SHOWN);
        first
            .iter_mut()
            .zip(octets)
            .for_each(|(to, from)| *to = *from);
        Shown {
            first,
            len,
            truncated: octets.len() > MAX_SHOWN,
        }
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let which = if self.truncated { "first 16" } else { "all" };
        let octets = self.first.get(..self.len).unwrap_or_default();
        write!(f, "{which} octets = {}", Octets(octets))
    }
}

/// All octets: quoted if they are printable ASCII, otherwise as numbers.
#[derive(Clone, Copy, Debug)]
pub struct Octets<'a>(pub &'a [u8]);

impl fmt::Display for Octets<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = std::str::from_utf8(self.0).ok();
        let is_printable =
            |t: &&str| !t.is_empty() && t.bytes().all(|b| (b' '..=b'~').contains(&b));
        if let Some(text) = text.filter(is_printable) {
            let text = text.replace('\\', "\\\\").replace('"', "\\\"");
            return write!(f, "<<\"{text}\">>");
        }
        f.write_str("<<")?;
        for (n, octet) in self.0.iter().enumerate() {
            write!(f, "{}{octet}", if n == 0 { "" } else { "," })?;
        }
        f.write_str(">>")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printable_text_is_quoted_and_other_octets_are_numbers() {
        let show = |octets: &[u8]| Shown::of(octets).to_string();
        assert_eq!(show(b""), "all octets = <<>>");
        assert_eq!(show(b"xyz"), "all octets = <<\"xyz\">>");
        assert_eq!(show(b"a\"\\"), r#"all octets = <<"a\"\\">>"#);
        assert_eq!(show(b"a\0"), "all octets = <<97,0>>");
        assert_eq!(show(&[255; 16]).matches("255").count(), 16);
        let long = show(&[255; 17]);
        assert!(long.starts_with("first 16 octets = <<255,"), "{long}");
        assert_eq!(long.matches("255").count(), 16);
    }
}
