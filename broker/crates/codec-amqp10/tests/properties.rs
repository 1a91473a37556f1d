//! Round trips of arbitrary values, and arbitrary bytes, which must neither panic nor allocate.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use codec_amqp10::{
    AmqpError, Condition, DeliveryState, Disposition, Encode, Flow, Modified, Outcome,
    Performative, Reader, Role, SaslFrame, Sections, Symbol, Timestamp, Transfer, Uuid, Value,
    encode_described, encode_frame, encode_transfer_frame, list, map, parse_frame,
};
use proptest::prelude::*;

/// Counts allocations of the current thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of GlobalAlloc.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of GlobalAlloc.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(of: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.with(Cell::get);
    of();
    ALLOCATIONS.with(Cell::get) - before
}

/// A value that owns its contents.
#[derive(Clone, Debug)]
enum Tree {
    Scalar(Scalar),
    List(Vec<Tree>),
    Map(Vec<(Tree, Tree)>),
    Described(String, Box<Tree>),
}

#[derive(Clone, Debug)]
enum Scalar {
    Null,
    Boolean(bool),
    Unsigned(u64),
    Signed(i64),
    Double(f64),
    Char(char),
    Timestamp(i64),
    Uuid([u8; 16]),
    Binary(Vec<u8>),
    String(String),
    Symbol(String),
}

impl Scalar {
    /// The value, with the width that `width` picks for numbers.
    fn value(&self) -> Value<'_> {
        match self {
            Self::Null => Value::Null,
            Self::Boolean(value) => Value::Boolean(*value),
            Self::Unsigned(value) => match value % 4 {
                0 => Value::Ubyte(*value as u8),
                1 => Value::Ushort(*value as u16),
                2 => Value::Uint(*value as u32),
                _ => Value::Ulong(*value),
            },
            Self::Signed(value) => match value & 3 {
                0 => Value::Byte(*value as i8),
                1 => Value::Short(*value as i16),
                2 => Value::Int(*value as i32),
                _ => Value::Long(*value),
            },
            Self::Double(value) => Value::Double(*value),
            Self::Char(value) => Value::Char(*value),
            Self::Timestamp(value) => Value::Timestamp(Timestamp(*value)),
            Self::Uuid(value) => Value::Uuid(Uuid(*value)),
            Self::Binary(value) => Value::Binary(value),
            Self::String(value) => Value::String(value),
            Self::Symbol(value) => Value::Symbol(Symbol::new(value).expect("ASCII")),
        }
    }
}

impl Encode for Tree {
    fn encode<O: codec_amqp10::Output>(&self, out: &mut O) {
        match self {
            Self::Scalar(scalar) => scalar.value().encode(out),
            Self::List(elements) => {
                let mut writer = list(out);
                elements.iter().for_each(|element| writer.push(element));
                writer.finish();
            }
            Self::Map(entries) => {
                let mut writer = map(out);
                for (key, value) in entries {
                    writer.push(key);
                    writer.push(value);
                }
                writer.finish();
            }
            Self::Described(name, inner) => {
                encode_described(out, Symbol::new(name).expect("ASCII"), &**inner);
            }
        }
    }
}

/// Compares a tree with what was decoded.
fn same(tree: &Tree, value: Value<'_>) -> bool {
    match (tree, value) {
        (Tree::Scalar(scalar), value) => scalar.value() == value,
        (Tree::List(elements), Value::List(found)) => {
            elements.len() == found.len()
                && elements
                    .iter()
                    .zip(found)
                    .all(|(tree, value)| same(tree, value))
        }
        (Tree::Map(entries), Value::Map(found)) => {
            entries.len() == found.len()
                && entries
                    .iter()
                    .zip(found)
                    .all(|((key, value), (found_key, found_value))| {
                        same(key, found_key) && same(value, found_value)
                    })
        }
        (Tree::Described(name, inner), Value::Described(found)) => {
            matches!(found.descriptor, codec_amqp10::Descriptor::Symbol(symbol) if symbol.as_str() == name)
                && same(inner, found.value())
        }
        _ => false,
    }
}

fn trees() -> impl Strategy<Value = Tree> {
    let scalar = prop_oneof![
        Just(Scalar::Null),
        any::<bool>().prop_map(Scalar::Boolean),
        any::<u64>().prop_map(Scalar::Unsigned),
        (0..1024u64).prop_map(Scalar::Unsigned),
        any::<i64>().prop_map(Scalar::Signed),
        (-1024..1024i64).prop_map(Scalar::Signed),
        (-1e300..1e300f64).prop_map(Scalar::Double),
        any::<char>().prop_map(Scalar::Char),
        any::<i64>().prop_map(Scalar::Timestamp),
        any::<[u8; 16]>().prop_map(Scalar::Uuid),
        prop::collection::vec(any::<u8>(), 0..300).prop_map(Scalar::Binary),
        "\\PC{0,80}".prop_map(Scalar::String),
        "[ -~]{0,300}".prop_map(Scalar::Symbol),
    ]
    .prop_map(Tree::Scalar);
    scalar.prop_recursive(6, 64, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Tree::List),
            prop::collection::vec((inner.clone(), inner.clone()), 0..5).prop_map(Tree::Map),
            ("[a-z:]{1,20}", inner)
                .prop_map(|(name, inner)| Tree::Described(name, Box::new(inner))),
        ]
    })
}

/// Bytes that resemble encoded values: format codes are frequent, and so are small sizes.
fn resembling_bytes() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        any::<u8>(),
        0..16u8,
        Just(0u8),
        Just(0x53u8),
        0x10..0x19u8,
        0x23..0x35u8,
        0x70..0x79u8,
        prop::sample::select(vec![
            0x40u8, 0x41, 0x43, 0x44, 0x45, 0x50, 0x52, 0x70, 0xa0, 0xa1, 0xa3, 0xb0, 0xc0, 0xc1,
            0xd0, 0xd1, 0xe0, 0xf0
        ]),
    ];
    prop::collection::vec(byte, 0..200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn values_round_trip(tree in trees()) {
        let mut bytes = Vec::new();
        tree.encode(&mut bytes);
        let mut reader = Reader::new(&bytes);
        let value: Value<'_> = reader.read().expect("an encoded value");
        prop_assert!(reader.is_empty());
        prop_assert!(same(&tree, value), "{tree:?} became {value:?}");
        // A decoded value is encoded to the same bytes, because the writer chooses the shortest encodings.
        let mut again = Vec::new();
        value.encode(&mut again);
        prop_assert_eq!(again, bytes);
    }

    #[test]
    fn a_value_with_one_changed_byte_does_not_panic(tree in trees(), at in any::<prop::sample::Index>(), byte: u8) {
        let mut bytes = Vec::new();
        tree.encode(&mut bytes);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        decode_as_everything(&bytes);
    }

    #[test]
    fn arbitrary_bytes_neither_panic_nor_allocate(bytes in resembling_bytes()) {
        let mut count = 0;
        count += allocations(|| decode_as_everything(&bytes));
        for descriptor in (0x10..=0x18u8).chain(0x40..=0x44).chain(0x70..=0x78) {
            let body = [&[0, 0x53, descriptor], &bytes[..]].concat();
            count += allocations(|| decode_as_everything(&body));
            let list = [&[0, 0x53, descriptor, 0xd0, 0, 0, 0, bytes.len() as u8 + 4, 0, 0, 0, bytes.first().map_or(0, |b| b % 16)], &bytes[..]].concat();
            count += allocations(|| decode_as_everything(&list));
        }
        prop_assert_eq!(count, 0);
    }

    #[test]
    fn transfers_round_trip_without_allocation(
        handle: u32, id in any::<Option<u32>>(), tag in prop::option::of(prop::collection::vec(any::<u8>(), 0..=32)),
        format in any::<Option<u32>>(), settled in any::<Option<bool>>(), resume: bool, aborted: bool, batchable: bool,
        payload in prop::collection::vec(any::<u8>(), 0..900), channel: u16,
    ) {
        let mut transfer = Transfer {
            handle, delivery_id: id, delivery_tag: tag.as_deref(), message_format: format, settled, resume, aborted, batchable,
            state: aborted.then_some(DeliveryState::ACCEPTED), ..Transfer::default()
        };
        let mut out = Vec::with_capacity(4096);
        let mut taken = 0;
        let count = allocations(|| taken = encode_transfer_frame(&mut out, channel, &mut transfer, &[&payload], 0, 512));
        prop_assert_eq!(count, 0);
        prop_assert!(out.len() <= 512);
        let frame = parse_frame(&out, 512).expect("a frame").expect("a whole frame");
        prop_assert_eq!((frame.channel, frame.size), (channel, out.len()));
        let mut decoded = None;
        let count = allocations(|| decoded = Some(Performative::decode(frame.body)));
        prop_assert_eq!(count, 0);
        let (performative, part) = decoded.expect("decoded").expect("a transfer");
        prop_assert_eq!(part, &payload[..taken]);
        prop_assert_eq!(transfer.more, taken < payload.len());
        prop_assert_eq!(performative, Performative::Transfer(transfer));
    }

    #[test]
    fn flows_and_dispositions_round_trip(
        numbers in any::<[Option<u32>; 5]>(), required in any::<[u32; 3]>(), drain: bool, echo: bool,
        condition in "[a-z:]{1,300}", description in prop::option::of("\\PC{0,40}"), kind in 0..6u8,
    ) {
        let [next_incoming_id, handle, delivery_count, link_credit, available] = numbers;
        let [incoming_window, next_outgoing_id, outgoing_window] = required;
        let flow = Flow {
            next_incoming_id, incoming_window, next_outgoing_id, outgoing_window, handle, delivery_count, link_credit,
            available, drain, echo, properties: None,
        };
        let error = AmqpError {
            condition: Condition::from(Symbol::new(&condition).expect("ASCII")), description: description.as_deref(), info: None,
        };
        let state = match kind {
            0 => DeliveryState::ACCEPTED,
            1 => DeliveryState::RELEASED,
            2 => DeliveryState::Outcome(Outcome::Rejected(Some(error))),
            3 => DeliveryState::Outcome(Outcome::Rejected(None)),
            4 => DeliveryState::Outcome(Outcome::Modified(Modified { delivery_failed: drain, undeliverable_here: echo, message_annotations: None })),
            _ => DeliveryState::Transactional(codec_amqp10::TransactionalState { txn_id: condition.as_bytes(), outcome: Some(Outcome::Rejected(Some(error))) }),
        };
        let disposition = Disposition {
            role: if drain { Role::Sender } else { Role::Receiver }, first: incoming_window, last: handle, settled: echo,
            state: Some(state), batchable: drain,
        };
        for body in [Performative::Flow(flow), Performative::Disposition(disposition)] {
            let mut out = Vec::new();
            encode_frame(&mut out, 0, &body);
            let frame = parse_frame(&out, u32::MAX).expect("a frame").expect("a whole frame");
            let (decoded, rest) = Performative::decode(frame.body).expect("a performative");
            prop_assert!(rest.is_empty());
            prop_assert_eq!(decoded, body);
        }
    }
}

/// Decodes bytes in every way that the network offers. What decodes once also decodes from its own encoding.
fn decode_as_everything(bytes: &[u8]) {
    let _ = parse_frame(bytes, 1 << 20);
    if let Ok(value) = Reader::new(bytes).read::<Value<'_>>() {
        visit(value);
    }
    let _ = Reader::new(bytes).read::<DeliveryState<'_>>();
    if let Ok((Performative::Attach(attach), _)) = Performative::decode(bytes) {
        attach.offered_capabilities.iter().for_each(drop);
    }
    let _ = SaslFrame::decode(bytes);
    if let Ok(sections) = Sections::parse(bytes) {
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
        sections
            .read_body(bytes)
            .for_each(|value| visit(value.unwrap_or_default()));
        assert!(sections.bare().end <= bytes.len() && sections.bare().start <= sections.bare().end);
    }
}

/// Visits a decoded value and everything inside; all of it was checked, so every element is there.
fn visit(value: Value<'_>) {
    match value {
        Value::List(list) => {
            assert_eq!(list.iter().count(), list.len());
            list.iter().for_each(visit);
        }
        Value::Map(map) => {
            // The encoded entries are the same ones. Values are compared by their text, because NaN is not equal to itself.
            let shown = |entries: Vec<(Value<'_>, Value<'_>)>| format!("{entries:?}");
            let encoded = map
                .encoded_entries()
                .map(|(key, value)| (key.value(), value.value()));
            assert_eq!(shown(encoded.collect()), shown(map.iter().collect()));
            assert_eq!(map.iter().count(), map.len());
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
