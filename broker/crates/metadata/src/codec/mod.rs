//! Encodings of changes (entries of the metadata group's log) and of snapshots of the tree. Arbitrary bytes give an
//! error, never a panic.

mod change;
mod record;
mod snapshot;

use crate::Name;
use crate::limits;
use bytes::{Bytes, BytesMut};
use message::{Table, Value};
use wire::Wire;

// Tables that are nested deeper are refused before they reach the log.
const _: () = assert!(limits::TABLE_DEPTH == wire::MAX_DEPTH);

/// The encoding that all equivalent tables share: sorted by key, and of equal keys the last entry only.
pub(crate) fn canonical(table: &Table) -> Bytes {
    let sorted: std::collections::BTreeMap<&Name, &Value> =
        table.0.iter().map(|(k, v)| (k, v)).collect();
    let mut out = BytesMut::new();
    for (key, value) in sorted {
        key.put(&mut out);
        value.put(&mut out);
    }
    out.freeze()
}

/// The encoded size of a table in bytes.
pub(crate) fn table_len(table: &Table) -> usize {
    wire::encode(table).len()
}
