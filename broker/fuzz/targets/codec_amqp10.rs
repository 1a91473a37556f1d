//! Frames, values, performatives and messages of AMQP 1.0: no panic, and what is understood is written and read again as the same.
#![no_main]

use codec_amqp10::{
    DeliveryState, Encode, Performative, Reader, SaslFrame, Sections, Value, parse_frame,
};
use libfuzzer_sys::fuzz_target;

const FRAME_MAX: u32 = 131_072;

fuzz_target!(|input: &[u8]| {
    body(input);
    if let Ok(sections) = Sections::parse(input) {
        message(input, &sections);
    }
    let mut rest = input;
    while let Ok(Some(frame)) = parse_frame(rest, FRAME_MAX) {
        assert!((8..=rest.len()).contains(&frame.size));
        body(frame.body);
        rest = &rest[frame.size..];
    }
});

fn body(bytes: &[u8]) {
    if let Ok(value) = Reader::new(bytes).read::<Value<'_>>() {
        let written = encoded(&value);
        let again: Value<'_> = Reader::new(&written)
            .read()
            .expect("what we write can be read");
        assert_eq!(encoded(&again), written);
        visit(value);
    }
    if let Ok((performative, _)) = Performative::decode(bytes) {
        let written = encoded(&performative);
        let (again, rest) = Performative::decode(&written).expect("what we write can be read");
        assert!(rest.is_empty());
        assert_eq!(encoded(&again), written, "{performative:?}");
    }
    if let Ok(frame) = SaslFrame::decode(bytes) {
        let written = encoded(&frame);
        let again = SaslFrame::decode(&written).expect("what we write can be read");
        assert_eq!(encoded(&again), written, "{frame:?}");
    }
    if let Ok(state) = Reader::new(bytes).read::<DeliveryState<'_>>() {
        let written = encoded(&state);
        let again: DeliveryState<'_> = Reader::new(&written)
            .read()
            .expect("what we write can be read");
        assert_eq!(encoded(&again), written, "{state:?}");
    }
}

fn encoded(value: &impl Encode) -> Vec<u8> {
    let mut out = Vec::new();
    value.encode(&mut out);
    out
}

fn message(bytes: &[u8], sections: &Sections) {
    sections.read_header(bytes).expect("the header was checked");
    sections
        .read_properties(bytes)
        .expect("the properties were checked");
    for section in [
        sections.delivery_annotations,
        sections.message_annotations,
        sections.application_properties,
        sections.footer,
    ] {
        visit(Value::Map(
            sections
                .read_map(section, bytes)
                .expect("the map was checked"),
        ));
    }
    sections.read_body(bytes).flatten().for_each(visit);
    assert!(sections.bare().end <= bytes.len());
}

/// Every element of a checked value can be read.
fn visit(value: Value<'_>) {
    match value {
        Value::List(list) => {
            assert_eq!(list.iter().count(), list.len());
            list.iter().for_each(visit);
        }
        Value::Map(map) => {
            assert_eq!(map.iter().count(), map.len());
            assert_eq!(map.encoded_entries().count(), map.len());
            map.iter().for_each(|(key, value)| {
                visit(key);
                visit(value);
            });
        }
        Value::Array(array) => {
            assert_eq!(array.iter().count(), array.len());
            array.iter().for_each(visit);
        }
        Value::Described(described) => visit(described.value()),
        _ => {}
    }
}
