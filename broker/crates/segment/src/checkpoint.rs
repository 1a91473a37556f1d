//! Checkpoint files.
//!
//! Layout: magic (8 bytes), version (1) and zeros (7), group (8), index (8), term (8), lengths of the
//! membership (8), the live set (8) and the state (8); those three parts; CRC-32 of everything before it (4).
//! Integers are little-endian. The live set is a list of pairs of varints of 1 to 10 bytes, seven bits each,
//! low bits first: the gap since the previous range, and the length of the range minus one.

use crate::SegmentError;
use crate::files::{TEMPORARY, checkpoint_path, create_temporary, ensure_dir, publish};
use crate::format::FieldReader;
use bytes::Bytes;
use env::{Disk, File};
use slots::IndexSet;
use wal::GroupId;

const MAGIC: [u8; 8] = *b"PHORNCKP";
const VERSION: u8 = 1;
const HEADER_BYTES: usize = 64;

/// Limit of a checkpoint file in bytes.
pub const MAX_CHECKPOINT_BYTES: u64 = 1 << 30;

/// A group's state machine after `index`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// Index of the last entry applied to the state.
    pub index: u64,
    /// Term of that entry.
    pub term: u64,
    /// The membership, encoded by the consensus crate.
    pub membership: Bytes,
    /// Entries at or below `index` that are still read.
    pub live: IndexSet,
    /// The encoded state machine.
    pub state: Bytes,
}

/// Writes a checkpoint durably, replacing one with the same index. Older ones stay until
/// [`crate::delete_checkpoint`].
pub fn write_checkpoint(
    disk: &dyn Disk,
    group: GroupId,
    checkpoint: &Checkpoint,
) -> Result<(), SegmentError> {
    let path = checkpoint_path(group, checkpoint.index);
    let (head, tail) = encode(group, checkpoint);
    let bytes = (head.len() + checkpoint.state.len() + tail.len()) as u64;
    if bytes > MAX_CHECKPOINT_BYTES {
        return Err(SegmentError::TooLarge {
            file: path,
            what: "a checkpoint",
            bytes,
            limit: MAX_CHECKPOINT_BYTES,
        });
    }
    ensure_dir(disk, group)?;
    let temporary = path.clone() + TEMPORARY;
    let file = create_temporary(disk, &temporary)?;
    let parts = [&head[..], &checkpoint.state, &tail];
    let written = write_parts(&*file, &parts).map_err(|e| SegmentError::io(&temporary, &e));
    if written.is_err() {
        // Report the original error; `list_group` removes a leftover.
        let _ = disk.remove(&temporary);
    }
    written?;
    publish(disk, &*file, &temporary, &path)
}

fn write_parts(file: &dyn File, parts: &[&[u8]]) -> std::io::Result<()> {
    let mut offset = 0;
    for part in parts {
        file.write_at(offset, part)?;
        offset += part.len() as u64;
    }
    Ok(())
}

/// Encodes the parts before and after the state.
fn encode(group: GroupId, checkpoint: &Checkpoint) -> (Vec<u8>, [u8; 4]) {
    let mut live = Vec::new();
    let mut previous = 0;
    for (first, last) in checkpoint.live.ranges() {
        put_varint(first - previous, &mut live);
        put_varint(last - first, &mut live);
        previous = *last;
    }
    let mut head = Vec::with_capacity(HEADER_BYTES + checkpoint.membership.len() + live.len());
    head.extend_from_slice(&MAGIC);
    head.extend_from_slice(&[VERSION, 0, 0, 0, 0, 0, 0, 0]);
    let lengths = [
        checkpoint.membership.len(),
        live.len(),
        checkpoint.state.len(),
    ];
    let fields = [group.0, checkpoint.index, checkpoint.term];
    for field in fields.into_iter().chain(lengths.map(|n| n as u64)) {
        head.extend_from_slice(&field.to_le_bytes());
    }
    head.extend_from_slice(&checkpoint.membership);
    head.extend_from_slice(&live);
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&head);
    hasher.update(&checkpoint.state);
    (head, hasher.finalize().to_le_bytes())
}

/// Reads and verifies the checkpoint of `group` after `index`.
pub fn read_checkpoint(
    disk: &dyn Disk,
    group: GroupId,
    index: u64,
) -> Result<Checkpoint, SegmentError> {
    let path = checkpoint_path(group, index);
    let io = |e: std::io::Error| SegmentError::io(&path, &e);
    let file = disk.open(&path).map_err(io)?;
    let len = file.len().map_err(io)?;
    if len > MAX_CHECKPOINT_BYTES {
        return Err(SegmentError::TooLarge {
            file: path,
            what: "a checkpoint",
            bytes: len,
            limit: MAX_CHECKPOINT_BYTES,
        });
    }
    let mut bytes = vec![0; len as usize];
    let n = file.read_at(0, &mut bytes).map_err(io)?;
    bytes.truncate(n);
    decode(&path, group, index, &Bytes::from(bytes))
}

fn decode(
    path: &str,
    group: GroupId,
    index: u64,
    bytes: &Bytes,
) -> Result<Checkpoint, SegmentError> {
    let corrupt = |what: &str| SegmentError::corrupt(path, 0, what);
    let mut fields = FieldReader(bytes);
    if fields.array() != Some(MAGIC) {
        return Err(corrupt("not a checkpoint file"));
    }
    let version: [u8; 8] = fields.array().ok_or(corrupt("the file is truncated"))?;
    if version[0] > VERSION {
        return Err(SegmentError::Newer {
            file: path.to_owned(),
            version: version[0],
            known: VERSION,
        });
    }
    let covered = bytes.len().saturating_sub(4);
    let (covered, crc) = bytes.split_at(covered);
    if crc != crc32fast::hash(covered).to_le_bytes() {
        return Err(corrupt("checksum does not match"));
    }
    let mut next = || fields.u64().ok_or(corrupt("the file is truncated"));
    let (found, found_index, term) = (GroupId(next()?), next()?, next()?);
    let (membership, live, state) = (next()?, next()?, next()?);
    if found != group {
        return Err(SegmentError::OtherGroup {
            file: path.to_owned(),
            expected: group,
            found,
        });
    }
    if found_index != index {
        return Err(corrupt("its index differs from its file name"));
    }
    let mut at = HEADER_BYTES;
    let mut part = |len: u64| {
        let end = usize::try_from(len).ok().and_then(|n| at.checked_add(n));
        let end = end.filter(|e| *e <= covered.len());
        let end = end.ok_or(corrupt("lengths do not add up"))?;
        let part = bytes.slice(at..end);
        at = end;
        Ok::<_, SegmentError>(part)
    };
    let (membership, live, state) = (part(membership)?, part(live)?, part(state)?);
    if at != covered.len() {
        return Err(corrupt("lengths do not add up"));
    }
    Ok(Checkpoint {
        index,
        term,
        membership,
        live: decode_live(&live).ok_or(corrupt("live set is invalid"))?,
        state,
    })
}

fn decode_live(bytes: &[u8]) -> Option<IndexSet> {
    let mut fields = FieldReader(bytes);
    let mut live = IndexSet::default();
    let mut previous = 0u64;
    while !fields.0.is_empty() {
        let first = previous.checked_add(take_varint(&mut fields)?)?;
        let last = first.checked_add(take_varint(&mut fields)?)?;
        if !live.push(first, last) {
            return None;
        }
        previous = last;
    }
    Some(live)
}

fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn take_varint(fields: &mut FieldReader<'_>) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let [byte] = fields.array()?;
        let bits = u64::from(byte & 0x7F);
        if bits << shift >> shift != bits {
            return None;
        }
        value |= bits << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}
