//! The subset of the Basic Encoding Rules that LDAP uses (RFC 4511, section 5.1).
//!
//! Tags have one byte and lengths are definite. Decoding is not recursive, so nesting in input cannot exhaust the stack.

pub(crate) const BOOLEAN: u8 = 0x01;
pub(crate) const INTEGER: u8 = 0x02;
pub(crate) const OCTET_STRING: u8 = 0x04;
pub(crate) const ENUMERATED: u8 = 0x0a;
pub(crate) const SEQUENCE: u8 = 0x30;

/// Most bytes of a length: one with the number of bytes, and four with the length.
pub(crate) const MAX_LENGTH_BYTES: usize = 5;

/// Encodes an element.
pub(crate) fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag];
    match u8::try_from(content.len()) {
        Ok(length) if length < 0x80 => bytes.push(length),
        _ => {
            let length = content.len().to_be_bytes();
            let zeros = length.iter().take_while(|byte| **byte == 0).count();
            let length = length.get(zeros..).unwrap_or_default();
            // A usize has at most eight bytes.
            bytes.push(0x80 | length.len() as u8);
            bytes.extend_from_slice(length);
        }
    }
    bytes.extend_from_slice(content);
    bytes
}

/// Encodes an element whose content is a sequence of elements.
pub(crate) fn constructed(tag: u8, elements: &[&[u8]]) -> Vec<u8> {
    element(tag, &elements.concat())
}

/// Encodes a number as INTEGER or ENUMERATED.
pub(crate) fn number(tag: u8, value: u32) -> Vec<u8> {
    // The first byte has the sign, so a fifth one keeps large numbers positive.
    let bytes = u64::from(value).to_be_bytes();
    let start = (0..7)
        .find(|start| bytes[*start] != 0 || bytes[start + 1] >= 0x80)
        .unwrap_or(7);
    element(tag, &bytes[start..])
}

/// Returns the length of the content and the number of bytes that encode it, or `None` if the length is indefinite,
/// incomplete, or has more than four bytes.
pub(crate) fn decode_length(bytes: &[u8]) -> Option<(usize, usize)> {
    let (first, rest) = bytes.split_first()?;
    let count = length_bytes(*first)?;
    if count == 1 {
        return Some((usize::from(*first), 1));
    }
    let digits = rest.get(..count - 1)?;
    let fold = |length, digit: &u8| length << 8 | usize::from(*digit);
    Some((digits.iter().fold(0, fold), count))
}

/// Returns the number of bytes of a length that begins with this byte.
pub(crate) fn length_bytes(first: u8) -> Option<usize> {
    match first {
        0..=0x7f => Some(1),
        0x81..=0x84 => Some(1 + usize::from(first & 0x7f)),
        _ => None,
    }
}

/// Reads elements one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Elements<'a>(pub(crate) &'a [u8]);

impl<'a> Elements<'a> {
    /// Reads the next element: its tag and its content.
    pub(crate) fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (tag, rest) = self.0.split_first()?;
        if tag & 0x1f == 0x1f {
            return None;
        }
        let (length, count) = decode_length(rest)?;
        let content = rest.get(count..)?.get(..length)?;
        self.0 = rest.get(count + length..)?;
        Some((*tag, content))
    }

    /// Reads the next element if it has this tag.
    pub(crate) fn read(&mut self, tag: u8) -> Option<&'a [u8]> {
        let mut after = *self;
        let (found, content) = after.next()?;
        if found != tag {
            return None;
        }
        *self = after;
        Some(content)
    }

    /// Reads a number that is not negative and has at most 32 bits.
    pub(crate) fn read_number(&mut self, tag: u8) -> Option<u32> {
        let content = self.read(tag)?;
        let (first, _) = content.split_first()?;
        if *first >= 0x80 || content.len() > 5 {
            return None;
        }
        let value = content
            .iter()
            .fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
        u32::try_from(value).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_and_lengths_are_minimal() {
        for (value, bytes) in [
            (0, &[2, 1, 0][..]),
            (127, &[2, 1, 127]),
            (128, &[2, 2, 0, 128]),
            (256, &[2, 2, 1, 0]),
            (u32::MAX, &[2, 5, 0, 255, 255, 255, 255]),
        ] {
            assert_eq!(number(INTEGER, value), bytes);
            assert_eq!(Elements(bytes).read_number(INTEGER), Some(value));
        }
        for (length, header) in [
            (127, &[4, 127][..]),
            (128, &[4, 0x81, 128]),
            (65_536, &[4, 0x83, 1, 0, 0]),
        ] {
            let encoded = element(OCTET_STRING, &vec![7; length]);
            assert!(encoded.starts_with(header) && encoded.len() == header.len() + length);
        }
    }

    #[test]
    fn invalid_elements_are_refused() {
        for invalid in [
            &[][..],
            &[4],
            &[4, 2, 0],
            &[4, 0x80, 0, 0],
            &[4, 0x85, 0, 0, 0, 0, 0],
            &[4, 0x84, 0xff, 0xff, 0xff, 0xff],
            &[0x1f, 1, 0],
        ] {
            assert!(Elements(invalid).next().is_none(), "{invalid:?}");
        }
        for invalid in [
            &[2, 0][..],
            &[2, 1, 0x80],
            &[2, 6, 0, 0, 0, 0, 0, 1],
            &[10, 1, 1],
        ] {
            assert_eq!(Elements(invalid).read_number(INTEGER), None, "{invalid:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut elements = Elements(&bytes);
            while let Some((_, content)) = elements.next() {
                prop_assert!(content.len() <= bytes.len());
            }
        }

        #[test]
        fn encoded_elements_are_decoded(contents in proptest::collection::vec(0_usize..300, 0..5)) {
            let encoded: Vec<u8> = contents.iter().flat_map(|n| element(SEQUENCE, &vec![1; *n])).collect();
            let mut elements = Elements(&encoded);
            for length in contents {
                prop_assert_eq!(elements.read(SEQUENCE).map(<[u8]>::len), Some(length));
            }
            prop_assert!(elements.0.is_empty());
        }
    }
}
