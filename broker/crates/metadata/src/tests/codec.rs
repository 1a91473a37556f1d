use super::*;
use crate::codec::canonical;
use proptest::prelude::*;
use wire::DecodeCause;

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Void),
        any::<bool>().prop_map(Value::Bool),
        any::<i8>().prop_map(Value::I8),
        any::<u8>().prop_map(Value::U8),
        any::<i16>().prop_map(Value::I16),
        any::<u16>().prop_map(Value::U16),
        any::<i32>().prop_map(Value::I32),
        any::<u32>().prop_map(Value::U32),
        any::<i64>().prop_map(Value::I64),
        (-1e9f32..1e9).prop_map(Value::F32),
        (-1e9f64..1e9).prop_map(Value::F64),
        (any::<u8>(), any::<u32>()).prop_map(|(scale, value)| Value::Decimal { scale, value }),
        any::<Vec<u8>>().prop_map(|v| Value::String(v.into())),
        any::<Vec<u8>>().prop_map(|v| Value::Binary(v.into())),
        any::<u64>().prop_map(Value::Timestamp),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let pairs = proptest::collection::vec(("[a-zé]{0,5}", inner.clone()), 0..4);
        prop_oneof![
            proptest::collection::vec(inner, 0..4).prop_map(Value::Array),
            pairs.prop_map(|p| Value::Table(Table(
                p.into_iter().map(|(k, v)| (k.into(), v)).collect()
            ))),
        ]
    })
}

/// Tables at the maximum depth of the log, and one level deeper.
#[test]
fn change_that_cannot_be_decoded_again_is_refused() {
    let nested = |depth: usize| {
        let deep = (1..depth).fold(Value::Void, |inner, n| match n % 2 {
            0 => Value::Array(vec![inner]),
            _ => Value::Table(table(&[("a", inner)])),
        });
        table(&[("a", deep)])
    };
    for depth in [1, limits::TABLE_DEPTH, limits::TABLE_DEPTH + 1, 32] {
        let arguments = nested(depth);
        let changes = [
            Change::DeclareQueue(QueueRecord {
                arguments: arguments.clone(),
                ..queue("q")
            }),
            Change::DeclareExchange(ExchangeRecord {
                arguments: arguments.clone(),
                ..exchange("x", "direct")
            }),
            Change::Bind(BindingRecord {
                arguments: arguments.clone(),
                ..to_queue("x", "q", "k")
            }),
        ];
        for change in changes {
            let refused =
                ChangeError::PreconditionFailed("arguments are nested deeper than 16".into());
            let (readable, read) = match depth > limits::TABLE_DEPTH {
                true => (Err(refused), Err(DecodeCause::Limit)),
                false => (Ok(()), Ok(change.clone())),
            };
            assert_eq!(change.check_readable(), readable, "{depth}");
            let decoded = Change::decode(&change.encode()).map_err(|e| e.cause);
            assert_eq!(decoded, read, "{depth}");
        }
    }
    let large = Change::PutGlobalParameter {
        name: name("p"),
        value: "x".repeat(limits::CHANGE_BYTES).into(),
    };
    assert!(matches!(
        large.check_readable(),
        Err(ChangeError::Invalid(_))
    ));
}

proptest! {
    #[test]
    fn tables_survive_encoding(pairs in proptest::collection::vec(("[a-zé]{0,5}", value()), 0..6)) {
        let arguments = Table(pairs.into_iter().map(|(k, v)| (name(&k), v)).collect());
        let change = Change::Bind(BindingRecord { arguments: arguments.clone(), ..to_queue("x", "q", "k") });
        prop_assert_eq!(Change::decode(&change.encode()), Ok(change));
        let mut reordered = Table(arguments.0.clone());
        reordered.0.sort_by(|a, b| b.0.cmp(&a.0));
        // A stable sort keeps the order of duplicate keys, so the last one stays last.
        prop_assert_eq!(canonical(&arguments), canonical(&reordered));
    }

    #[test]
    fn decoding_arbitrary_bytes_does_not_panic(raw: Vec<u8>, tag in 0u8..60) {
        let _ = Change::decode(&raw);
        let _ = Tree::restore(&raw);
        let mut tagged = vec![1, tag];
        tagged.extend(raw);
        let _ = Change::decode(&tagged);
    }

    /// A damaged snapshot gives an error or another consistent tree.
    #[test]
    fn restoring_a_damaged_snapshot_does_not_panic(position: prop::sample::Index, byte: u8, cut: prop::sample::Index) {
        let mut log = Log::new();
        log.declare(quorum("q"));
        log.declare(QueueRecord { durable: false, ..queue("t") });
        log.ok(Change::Bind(to_queue("amq.topic", "q", "#")));
        log.ok(Change::PutPolicy(policy("p", "^q", &[("max-length", Value::I64(1))])));
        let snapshot = log.tree.snapshot();
        let mut damaged = snapshot.to_vec();
        let position = position.index(damaged.len());
        damaged[position] = byte;
        if let Ok(tree) = Tree::restore(&damaged) {
            let _ = (tree.digest(), tree.events_since(&log.tree).len());
        }
        let truncated_len = cut.index(snapshot.len());
        prop_assert!(Tree::restore(&snapshot[..truncated_len]).is_err());
    }
}

#[test]
fn newer_versions_and_trailing_bytes_are_refused() {
    let cause = |raw: &[u8]| Change::decode(raw).map_err(|e| e.cause);
    let change = Change::DeleteUser { name: name("u") };
    let mut raw = change.encode().to_vec();
    raw.push(0);
    assert_eq!(cause(&raw), Err(DecodeCause::Trailing));
    raw[0] = 9;
    assert_eq!(cause(&raw), Err(DecodeCause::Version(9)));
    let too_long = vec![1; limits::CHANGE_BYTES + 1];
    assert_eq!(cause(&too_long), Err(DecodeCause::Limit));
    let cause = |raw: &[u8]| Tree::restore(raw).unwrap_err().cause;
    let mut snapshot = Log::new().tree.snapshot().to_vec();
    snapshot.push(0);
    assert_eq!(cause(&snapshot), DecodeCause::Trailing);
    snapshot[0] = 7;
    assert_eq!(cause(&snapshot), DecodeCause::Version(7));
}
