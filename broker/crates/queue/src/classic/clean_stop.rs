//! The clean-stop file, which a classic queue writes beside its segments when its node stops: for each lane, the first
//! message that was never delivered. Without it a restart marks all messages as redelivered, as after a crash. Integers are
//! big-endian.
//!
//! `magic 8 | version u8 | zeros 7 | queue u64 | incarnation u64 | lane u8, number u64 for each lane | CRC-32`
//!
//! It is valid only in the next incarnation of the node, until the first delivery.

use super::record::{CRC_LEN, checked, put_crc};
use super::segment_header::FileHeader;
use bytes::BytesMut;
use env::{Disk, Incarnation};
use ids::QueueId;
use std::collections::BTreeMap;
use std::io;
use wire::Wire;

pub(super) const NAME: &str = "stopped";
const MAGIC: [u8; 8] = *b"PHORNEND";
const VERSION: u8 = 1;
const HEADER: usize = FileHeader::MIN_LEN + Incarnation::MIN_LEN;
const LANE: usize = 9;
/// Most bytes of a file: there are 256 lanes.
const MAX_LEN: usize = HEADER + LANE * 256 + CRC_LEN;

/// The first number of each lane that was never delivered.
pub(super) type FirstUndelivered = BTreeMap<u8, u64>;

fn encode(queue: QueueId, incarnation: Incarnation, lanes: &FirstUndelivered) -> BytesMut {
    let mut out = BytesMut::with_capacity(HEADER + LANE * lanes.len() + CRC_LEN);
    FileHeader::new(MAGIC, VERSION, queue).put(&mut out);
    incarnation.put(&mut out);
    for (lane, first) in lanes {
        (*lane, *first).put(&mut out);
    }
    put_crc(&mut out, 0);
    out
}

/// Returns `None` if the file is damaged or was written by another version, queue or incarnation.
fn decode(raw: &[u8], queue: QueueId, incarnation: Incarnation) -> Option<FirstUndelivered> {
    let mut from = checked(raw, raw.len().checked_sub(CRC_LEN)?)?;
    if !FileHeader::new(MAGIC, VERSION, queue).matches(&mut from)
        || from.get::<Incarnation>().ok()? != incarnation
    {
        return None;
    }
    let mut lanes = FirstUndelivered::new();
    while !from.is_empty() {
        let (lane, first) = from.get().ok()?;
        lanes.insert(lane, first);
    }
    Some(lanes)
}

/// Writes the file. It is not synced, like all files of a classic queue.
pub(super) fn write(
    disk: &dyn Disk,
    path: &str,
    queue: QueueId,
    incarnation: Incarnation,
    lanes: &FirstUndelivered,
) -> io::Result<()> {
    let file = match disk.open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => disk.create(path)?,
        other => other?,
    };
    let raw = encode(queue, incarnation, lanes);
    file.truncate(raw.len() as u64)?;
    file.write_at(0, &raw)
}

/// Invalidates the file before the first delivery. Durable on return: the file must not become valid again after a power loss.
pub(super) fn revoke(disk: &dyn Disk, path: &str) -> io::Result<()> {
    let file = disk.open(path)?;
    file.truncate(0)?;
    file.sync_data()
}

/// Reads the file of the last incarnation. It need not be removed, because it is not valid in later incarnations.
pub(super) fn read(
    disk: &dyn Disk,
    path: &str,
    queue: QueueId,
    incarnation: Incarnation,
) -> io::Result<Option<FirstUndelivered>> {
    let mut raw = [0; MAX_LEN + 1];
    let read = disk.open(path)?.read_at(0, &mut raw)?;
    let before = incarnation.0.checked_sub(1).map(Incarnation);
    let raw = raw.get(..read).unwrap_or(&[]);
    Ok(before.and_then(|before| decode(raw, queue, before)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use env::sim::SimDisk;

    const QUEUE: QueueId = QueueId(5);

    fn found(raw: &[u8], queue: QueueId, incarnation: u64) -> Option<FirstUndelivered> {
        let disk = SimDisk::new();
        disk.create(NAME).unwrap().write_at(0, raw).unwrap();
        read(&disk, NAME, queue, Incarnation(incarnation)).unwrap()
    }

    #[test]
    fn file_is_valid_for_its_queue_in_the_next_incarnation_only() {
        let lanes = FirstUndelivered::from([(0, 7), (255, u64::MAX)]);
        let raw = encode(QUEUE, Incarnation(3), &lanes);
        assert_eq!(found(&raw, QUEUE, 4), Some(lanes));
        for other in [0, 2, 3, 5] {
            assert_eq!(found(&raw, QUEUE, other), None);
        }
        assert_eq!(found(&raw, QueueId(6), 4), None);
        for at in 0..raw.len() {
            assert_eq!(found(&raw[..at], QUEUE, 4), None, "{at}");
            let mut damaged = raw.clone();
            damaged[at] ^= 0x55;
            assert_eq!(found(&damaged, QUEUE, 4), None, "{at}");
        }
        assert_eq!(found(&[0; 2 * MAX_LEN], QUEUE, 4), None);
    }

    #[test]
    fn revoked_file_stays_invalid_after_a_power_loss() {
        for seed in 0..20 {
            let disk = SimDisk::new();
            let lanes = FirstUndelivered::from([(0, 7)]);
            write(&disk, NAME, QUEUE, Incarnation(3), &lanes).unwrap();
            disk.sync_dir("").unwrap();
            revoke(&disk, NAME).unwrap();
            disk.crash(&mut env::rng::SeededRng::new(seed));
            disk.restart();
            let found = read(&disk, NAME, QUEUE, Incarnation(4)).unwrap();
            assert_eq!(found, None);
        }
    }
}
