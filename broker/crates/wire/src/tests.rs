//! Encodings come back, and arbitrary bytes are refused without a panic.

use crate::{
    AtMost, DecodeCause, MAX_DEPTH, MediumText, Reader, Rest, ShortText, Varint, Wire, decode,
    encode, wire_enum, wire_newtype, wire_struct,
};
use bytes::Bytes;
use ids::{QueueId, QueueType};
use proptest::prelude::*;
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq)]
struct Record {
    name: Arc<str>,
    queue: QueueId,
    kind: QueueType,
    parts: Vec<(u16, Option<bool>)>,
    body: Bytes,
}

wire_struct!(Record {
    name: Arc<str>,
    queue: QueueId,
    kind: QueueType,
    parts: Vec<(u16, Option<bool>)>,
    body: Bytes,
});

#[derive(Clone, Debug, PartialEq)]
enum Change {
    Put(Record),
    Move { from: u64, to: u64 },
    Clear,
}

wire_enum!(Change, "a change" {
    1 = Put(record: Record),
    2 = Move { from: u64, to: u64 },
    4 = Clear,
});

#[derive(Clone, Copy, Debug, PartialEq)]
struct Number(u64);

wire_newtype!(Number(u64 as Varint));

#[derive(Clone, Debug, PartialEq)]
struct Compact {
    wide: u64,
    narrow: u16,
    signed: i32,
    optional: Option<u32>,
}

wire_struct!(Compact {
    wide: u64 as Varint,
    narrow: u16 as Varint,
    signed: i32 as Varint,
    optional: Option<u32> as Varint,
});

fn record() -> Record {
    Record {
        name: "orders".into(),
        queue: QueueId(7),
        kind: QueueType::default(),
        parts: vec![(1, None), (2, Some(true))],
        body: Bytes::from_static(b"body"),
    }
}

fn cause<T: Wire>(raw: &[u8]) -> Option<DecodeCause> {
    let raw = Bytes::copy_from_slice(raw);
    decode::<T>("test", &raw).err().map(|error| error.cause)
}

#[test]
fn every_variant_comes_back() {
    let changes = [
        Change::Put(record()),
        Change::Move { from: 1, to: 2 },
        Change::Clear,
    ];
    for change in changes {
        let raw = encode(&change);
        assert_eq!(decode::<Change>("test", &raw), Ok(change));
        for cut in 0..raw.len() {
            let short = decode::<Change>("test", &raw.slice(..cut));
            assert_eq!(short.map_err(|e| e.cause), Err(DecodeCause::Short));
        }
        let mut longer = raw.to_vec();
        longer.push(0);
        assert_eq!(cause::<Change>(&longer), Some(DecodeCause::Trailing));
    }
}

#[test]
fn encoding_is_stable() {
    // Formats of nodes and disks are built from these.
    assert_eq!(
        &*encode(&Change::Move { from: 1, to: 2 }),
        [2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]
    );
    let text = encode(&Arc::<str>::from("ab"));
    assert_eq!(&*text, [0, 0, 0, 2, b'a', b'b']);
    assert_eq!(&*encode(&Some(3u16)), [1, 0, 3]);
    assert_eq!(&*encode(&vec![true, false]), [0, 0, 0, 2, 1, 0]);
}

#[test]
fn shared_reader_does_not_copy() {
    let raw = encode(&record());
    let read: Record = decode("test", &raw).unwrap();
    let within = |part: &Bytes| raw.as_ptr_range().contains(&part.as_ptr());
    assert!(within(&read.body));
    let mut owned = Reader::new("test", &raw);
    assert!(!within(&Record::get(&mut owned).unwrap().body));
}

#[test]
fn errors_name_format_and_cause() {
    assert_eq!(cause::<Change>(&[9]), Some(DecodeCause::Tag("a change", 9)));
    let error = decode::<Change>("metadata change", &Bytes::from_static(&[9])).unwrap_err();
    assert_eq!(
        error.to_string(),
        "metadata change has the unknown tag 9 for a change"
    );
    assert_eq!(
        cause::<String>(&[0, 0, 0, 1, 0xff]),
        Some(DecodeCause::Utf8)
    );
    assert_eq!(cause::<bool>(&[2]), Some(DecodeCause::Tag("a boolean", 2)));
}

#[test]
fn wrong_length_reserves_no_memory() {
    let mut raw = u32::MAX.to_be_bytes().to_vec();
    raw.extend([0; 64]);
    assert_eq!(cause::<Vec<u64>>(&raw), Some(DecodeCause::Short));
    assert_eq!(cause::<Bytes>(&raw), Some(DecodeCause::Short));
}

#[test]
fn nesting_is_bounded() {
    fn descend(from: &mut Reader<'_>, levels: usize) -> crate::Decoded<()> {
        match levels {
            0 => Ok(()),
            _ => from.nested(|from| descend(from, levels - 1)),
        }
    }
    let mut from = Reader::new("test", &[]);
    assert_eq!(descend(&mut from, MAX_DEPTH), Ok(()));
    let deeper = descend(&mut from, MAX_DEPTH + 1);
    assert_eq!(deeper.map_err(|e| e.cause), Err(DecodeCause::Limit));
}

#[test]
fn compact_numbers_are_stable_and_range_checked() {
    let compact = Compact {
        wide: 300,
        narrow: 1,
        signed: -2,
        optional: Some(5),
    };
    assert_eq!(&*encode(&compact), [0xac, 2, 1, 3, 1, 5]);
    // 65,536 does not fit into the second field.
    let too_wide = [0, 0x80, 0x80, 4, 0, 0];
    assert_eq!(cause::<Compact>(&too_wide), Some(DecodeCause::Limit));
    let eleven_bytes = [0xff; 11];
    assert_eq!(cause::<Number>(&eleven_bytes), Some(DecodeCause::Limit));
    let mut from = Reader::new("test", &[4, 1, 2, 3]);
    let count = from.varint_count(1).map_err(|e| e.cause);
    assert_eq!(count, Err(DecodeCause::Short));
}

#[derive(Clone, Debug, PartialEq)]
struct Frame {
    vhost: Arc<str>,
    topic: Arc<str>,
    short_list: Vec<u8>,
    body: Bytes,
}

wire_struct!(Frame {
    vhost: Arc<str> as ShortText,
    topic: Arc<str> as MediumText,
    short_list: Vec<u8> as AtMost<2>,
    body: Bytes as Rest,
});

#[test]
fn fields_have_the_encodings_chosen_for_them() {
    let frame = Frame {
        vhost: "/".into(),
        topic: "é".into(),
        short_list: vec![1, 2],
        body: Bytes::from_static(b"body"),
    };
    let raw = encode(&frame);
    assert_eq!(&*raw, b"\x01/\0\x02\xc3\xa9\0\0\0\x02\x01\x02body");
    let decoded: Frame = decode("test", &raw).unwrap();
    assert_eq!(decoded, frame);
    assert!(raw.as_ptr_range().contains(&decoded.body.as_ptr()));
    let three_items = [0, 0, 0, 0, 0, 0, 3, 1, 2, 3];
    assert_eq!(cause::<Frame>(&three_items), Some(DecodeCause::Limit));
    assert_eq!(cause::<Frame>(&[1, 0xff]), Some(DecodeCause::Utf8));
}

proptest! {
    #[test]
    fn compact_numbers_come_back(wide: u64, narrow: u16, signed: i32, optional: Option<u32>) {
        let compact = Compact { wide, narrow, signed, optional };
        prop_assert_eq!(decode::<Compact>("test", &encode(&compact)), Ok(compact));
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(raw in proptest::collection::vec(any::<u8>(), 0..80)) {
        let raw = Bytes::from(raw);
        if let Ok(change) = decode::<Change>("test", &raw) {
            prop_assert_eq!(encode(&change), raw.clone());
        }
        if let Ok(number) = decode::<Number>("test", &raw) {
            let again = encode(&number);
            // A longer form with trailing zeros is read as well.
            prop_assert!(again.len() <= raw.len());
        }
    }
}
