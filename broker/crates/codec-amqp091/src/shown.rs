//! Octets in texts for people, in the form of RabbitMQ's.

use std::fmt;

/// So many are shown of more.
const FIRST: usize = 16;

/// The beginning of what a peer sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    first: [u8; FIRST],
    /// Of `first`.
    len: usize,
    more: bool,
}

impl Shown {
    /// Keeps the first octets for display.
    pub fn of(octets: &[u8]) -> Shown {
        let mut first = [0; FIRST];
        let len = octets.len().min(FIRST);
        first
            .iter_mut()
            .zip(octets)
            .for_each(|(to, from)| *to = *from);
        Shown {
            first,
            len,
            more: octets.len() > FIRST,
        }
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let which = if self.more { "first 16" } else { "all" };
        let octets = self.first.get(..self.len).unwrap_or_default();
        write!(f, "{which} octets = {}", Octets(octets))
    }
}

/// All of them: as text in quotes where each is a character of ASCII that can be printed, as numbers otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Octets<'a>(pub &'a [u8]);

impl fmt::Display for Octets<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = std::str::from_utf8(self.0).ok();
        let printed = |t: &&str| !t.is_empty() && t.bytes().all(|b| (b' '..=b'~').contains(&b));
        if let Some(text) = text.filter(printed) {
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
    fn text_is_shown_as_text_and_the_rest_as_numbers() {
        let shown = |octets: &[u8]| Shown::of(octets).to_string();
        assert_eq!(shown(b""), "all octets = <<>>");
        assert_eq!(shown(b"xyz"), "all octets = <<\"xyz\">>");
        assert_eq!(shown(b"a\"\\"), r#"all octets = <<"a\"\\">>"#);
        assert_eq!(shown(b"a\0"), "all octets = <<97,0>>");
        assert_eq!(shown(&[255; 16]).matches("255").count(), 16);
        let long = shown(&[255; 17]);
        assert!(long.starts_with("first 16 octets = <<255,"), "{long}");
        assert_eq!(long.matches("255").count(), 16);
    }
}
