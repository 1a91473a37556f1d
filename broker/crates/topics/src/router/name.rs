//! A client id in few bytes. Those of up to 15 bytes stand in the table itself, so that a look-up by name follows no pointer; others
//! in pieces of the allocator's own sizes.

/// Padded with U+0000, which is in no string of MQTT [MQTT-1.5.4-2].
pub(super) enum Name {
    Inline([u8; 15]),
    Of32(Box<[u8; 32]>),
    Of48(Box<[u8; 48]>),
    Of64(Box<[u8; 64]>),
    /// Of more bytes, or with U+0000 in it.
    Long(Box<Box<[u8]>>),
}

// As a fat pointer, without what it points to.
const _: () = assert!(size_of::<Option<Name>>() <= 16);

impl Name {
    pub fn new(text: &str) -> Name {
        let bytes = text.as_bytes();
        let long = || Name::Long(Box::new(bytes.into()));
        if bytes.contains(&0) {
            return long();
        }
        match bytes.len() {
            0..=15 => Name::Inline(padded(bytes)),
            16..=32 => Name::Of32(Box::new(padded(bytes))),
            33..=48 => Name::Of48(Box::new(padded(bytes))),
            49..=64 => Name::Of64(Box::new(padded(bytes))),
            _ => long(),
        }
    }

    pub fn as_bytes(&self) -> &[u8] {
        let all: &[u8] = match self {
            Name::Inline(all) => all,
            Name::Of32(all) => &all[..],
            Name::Of48(all) => &all[..],
            Name::Of64(all) => &all[..],
            Name::Long(all) => return all,
        };
        let end = all.iter().position(|b| *b == 0);
        all.get(..end.unwrap_or(all.len())).unwrap_or(all)
    }

    pub fn as_str(&self) -> &str {
        // It was made of one.
        std::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }
}

/// No more than `N` bytes.
fn padded<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut all = [0; N];
    for (to, from) in all.iter_mut().zip(bytes) {
        *to = *from;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_name_is_what_it_was_made_of(text in "[a-c\u{0}é]{0,80}") {
            let name = Name::new(&text);
            prop_assert_eq!(name.as_str(), &text);
        }
    }

    #[test]
    fn every_length_has_its_place() {
        for len in 0..200 {
            let text = "x".repeat(len);
            assert_eq!(Name::new(&text).as_bytes(), text.as_bytes());
        }
        assert!(matches!(Name::new(&"x".repeat(15)), Name::Inline(_)));
        assert!(matches!(Name::new(&"x".repeat(23)), Name::Of32(_)));
        assert!(matches!(Name::new(&"x".repeat(36)), Name::Of48(_)));
        assert_ne!(Name::new("a\0").as_str(), "a");
    }
}
