//! Compact storage of client ids. Ids of up to 15 bytes are stored inline, so that a look-up by id
//! follows no pointer; longer ones use allocations that match the size classes of the allocator.

/// Padded with U+0000, which is not allowed in MQTT strings [MQTT-1.5.4-2].
pub(super) enum InlineName {
    Inline([u8; 15]),
    Of32(Box<[u8; 32]>),
    Of48(Box<[u8; 48]>),
    Of64(Box<[u8; 64]>),
    /// More than 64 bytes, or contains U+0000.
    Long(Box<Box<[u8]>>),
}

// The size of a fat pointer.
const _: () = assert!(size_of::<Option<InlineName>>() <= 16);

impl InlineName {
    pub(super) fn new(text: &str) -> InlineName {
        let bytes = text.as_bytes();
        let long = || InlineName::Long(Box::new(bytes.into()));
        if bytes.contains(&0) {
            return long();
        }
        match bytes.len() {
            0..=15 => InlineName::Inline(padded(bytes)),
            16..=32 => InlineName::Of32(Box::new(padded(bytes))),
            33..=48 => InlineName::Of48(Box::new(padded(bytes))),
            49..=64 => InlineName::Of64(Box::new(padded(bytes))),
            _ => long(),
        }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        let all: &[u8] = match self {
            InlineName::Inline(all) => all,
            InlineName::Of32(all) => &all[..],
            InlineName::Of48(all) => &all[..],
            InlineName::Of64(all) => &all[..],
            InlineName::Long(all) => return all,
        };
        let end = all.iter().position(|b| *b == 0);
        all.get(..end.unwrap_or(all.len())).unwrap_or(all)
    }

    pub(super) fn as_str(&self) -> &str {
        // The bytes come from a `str`.
        std::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }
}

/// Pads with zeros; `bytes` has at most `N` bytes.
fn padded<const N: usize>(bytes: &[u8]) -> [u8; N] {
    debug_assert!(bytes.len() <= N);
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
        fn client_name_round_trips(text in "[a-c\u{0}é]{0,80}") {
            let name = InlineName::new(&text);
            prop_assert_eq!(name.as_str(), &text);
        }
    }

    #[test]
    fn every_length_uses_its_variant() {
        for len in 0..200 {
            let text = "x".repeat(len);
            assert_eq!(InlineName::new(&text).as_bytes(), text.as_bytes());
        }
        assert!(matches!(
            InlineName::new(&"x".repeat(15)),
            InlineName::Inline(_)
        ));
        assert!(matches!(
            InlineName::new(&"x".repeat(23)),
            InlineName::Of32(_)
        ));
        assert!(matches!(
            InlineName::new(&"x".repeat(36)),
            InlineName::Of48(_)
        ));
        assert_ne!(InlineName::new("a\0").as_str(), "a");
    }
}
