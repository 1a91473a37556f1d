//! Messages of AMQP 1.0 clients. All content follows from the number.

use super::filters::{PARTS, PROPERTY};
use codec_amqp10::{
    Encode, Header, Properties, SectionKind, Sections, Value, encode_data_section,
    encode_section_descriptor, map,
};

/// The annotation that receivers add.
pub(super) const ANNOTATION: &str = "x-opt-value";
/// The annotation with the number of earlier deliveries of a message.
const ACQUIRED_COUNT: &str = "x-acquired-count";
/// Largest body in bytes, of several frames.
const LARGEST_BODY: u64 = 4000;
const SMALL_BODY: u64 = 120;

/// The contents of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadMessage {
    pub number: u64,
    /// The value of the annotation. 0: it has none.
    pub value: u64,
    /// Number of earlier deliveries. 0: none, or the queue does not count them.
    pub acquired: u64,
}

fn mix(number: u64) -> u64 {
    let mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed ^ (mixed >> 29)
}

/// A third of the bodies is large, and some are empty.
fn body(number: u64) -> Vec<u8> {
    let random = mix(number);
    let spread = random >> 16;
    let size = match random % 12 {
        0 => 0,
        1..8 => spread % SMALL_BODY,
        _ => spread % LARGEST_BODY,
    };
    (0..size)
        .map(|at| (number.wrapping_add(at.wrapping_mul(31)) ^ (at >> 8)) as u8)
        .collect()
}

/// The part of a message.
pub(super) fn part(number: u64) -> u64 {
    (mix(number) >> 40) % PARTS
}

/// The bare message (section 3.2), which the broker must not change.
fn bare(number: u64, has_part: bool) -> Vec<u8> {
    let mut out = Vec::new();
    let properties = Properties {
        message_id: Some(Value::Ulong(number)),
        ..Properties::default()
    };
    properties.encode(&mut out);
    if has_part {
        encode_section_descriptor(&mut out, SectionKind::ApplicationProperties);
        let mut properties = map(&mut out);
        properties.push(PROPERTY);
        properties.push(&part(number).cast_signed());
        properties.finish();
    }
    encode_data_section(&mut out, &body(number));
    out
}

/// The message as a publisher sends it. `has_part`: it has its part as an application property.
pub(super) fn encode(number: u64, has_part: bool) -> Vec<u8> {
    let mut out = Vec::new();
    let header = Header {
        durable: true,
        ..Header::default()
    };
    header.encode(&mut out);
    out.extend_from_slice(&bare(number, has_part));
    out
}

/// Identifies a message. Returns an error if its bare message differs from the publish.
pub(super) fn read(message: &[u8], has_part: bool) -> Result<ReadMessage, String> {
    let unreadable = |error: codec_amqp10::DecodeError| format!("a delivery: {error}");
    let sections = Sections::parse(message).map_err(unreadable)?;
    let properties = sections.read_properties(message).map_err(unreadable)?;
    let Some(Value::Ulong(number)) = properties.message_id else {
        return Err(format!(
            "a delivery has the message id {:?}",
            properties.message_id
        ));
    };
    if message.get(sections.bare()) != Some(&bare(number, has_part)[..]) {
        return Err(format!("message {number} is not what was published"));
    }
    let annotations = sections
        .read_map(sections.message_annotations, message)
        .map_err(unreadable)?;
    let read = |name| match annotations.get(name) {
        None => Ok(0),
        Some(Value::Long(value)) => Ok(value.cast_unsigned()),
        Some(other) => Err(format!(
            "message {number} has the annotation {name}: {other:?}"
        )),
    };
    Ok(ReadMessage {
        number,
        value: read(ANNOTATION)?,
        acquired: read(ACQUIRED_COUNT)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_identified_and_a_changed_one_is_refused() {
        for number in 1..200 {
            let has_part = number % 2 == 0;
            let message = encode(number, has_part);
            assert!(read(&message, !has_part).is_err());
            let unchanged = ReadMessage {
                number,
                value: 0,
                acquired: 0,
            };
            assert_eq!(read(&message, has_part), Ok(unchanged));
            let sections = Sections::parse(&message).expect("a message");
            let mut changed = message.clone();
            if let (Some(last), false) = (changed.last_mut(), body(number).is_empty()) {
                *last ^= 1;
                assert!(read(&changed, has_part).is_err());
            }
            assert!(sections.bare().len() < message.len());
        }
    }
}
