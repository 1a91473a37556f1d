//! What a clean stop leaves beside the segments: of each lane, where the messages begin that nobody was ever given. Without it all that a
//! restart finds is delivered as redelivered, as after a crash. Integers are big-endian.
//!
//! `magic 8 | version u8 | zeros 7 | queue u64 | incarnation u64 | lane u8, number u64 for each lane | crc u32`
//!
//! It counts in the node's next life only: what it says is wrong as soon as a message was delivered after it.

use super::record::{be32, be64};
use bytes::{BufMut, BytesMut};
use env::{Disk, Incarnation};
use ids::QueueId;
use std::collections::BTreeMap;
use std::io;

pub(super) const NAME: &str = "stopped";
const MAGIC: [u8; 8] = *b"PHORNEND";
const VERSION: u8 = 1;
const HEADER: usize = 32;
const LANE: usize = 9;
const CRC: usize = 4;
/// One of every lane there can be.
const MOST: usize = HEADER + LANE * 256 + CRC;

/// By lane, the first number that was never delivered.
pub(super) type FirstUndelivered = BTreeMap<u8, u64>;

fn encode(queue: QueueId, incarnation: Incarnation, lanes: &FirstUndelivered) -> BytesMut {
    let mut out = BytesMut::with_capacity(HEADER + LANE * lanes.len() + CRC);
    out.put_slice(&MAGIC);
    out.put_u8(VERSION);
    out.put_bytes(0, 7);
    out.put_u64(queue.0);
    out.put_u64(incarnation.0);
    for (lane, from) in lanes {
        out.put_u8(*lane);
        out.put_u64(*from);
    }
    let crc = crc32fast::hash(&out);
    out.put_u32(crc);
    out
}

/// None: it is damaged, of another program, another queue or another life.
fn decode(raw: &[u8], queue: QueueId, incarnation: Incarnation) -> Option<FirstUndelivered> {
    let (covered, crc) = raw.split_at_checked(raw.len().checked_sub(CRC)?)?;
    if Some(crc32fast::hash(covered)) != be32(crc, 0) {
        return None;
    }
    let lanes = covered.get(HEADER..)?;
    let front = (covered.get(..8)?, covered.get(8)?);
    let whose = (be64(covered, 16)?, be64(covered, 24)?);
    if front != (&MAGIC[..], &VERSION) || whose != (queue.0, incarnation.0) {
        return None;
    }
    let lanes = lanes.chunks_exact(LANE);
    lanes.map(|l| Some((*l.first()?, be64(l, 1)?))).collect()
}

/// Leaves it for the next life. Nothing is synced, as nothing of a classic queue is.
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

/// A message is delivered after all. Synced: a machine that loses power must not find what is not true any more.
pub(super) fn revoke(disk: &dyn Disk, path: &str) -> io::Result<()> {
    let file = disk.open(path)?;
    file.truncate(0)?;
    file.sync_data()
}

/// What the life before this one has left, if it has. It stays: to later lives it is not of the one before theirs.
pub(super) fn read(
    disk: &dyn Disk,
    path: &str,
    queue: QueueId,
    incarnation: Incarnation,
) -> io::Result<Option<FirstUndelivered>> {
    let mut raw = [0; MOST + 1];
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

    fn found(raw: &[u8], queue: QueueId, life: u64) -> Option<FirstUndelivered> {
        let disk = SimDisk::new();
        disk.create(NAME).unwrap().write_at(0, raw).unwrap();
        read(&disk, NAME, queue, Incarnation(life)).unwrap()
    }

    #[test]
    fn it_counts_for_one_queue_in_the_next_life_and_whole() {
        let lanes = FirstUndelivered::from([(0, 7), (255, u64::MAX)]);
        let raw = encode(QUEUE, Incarnation(3), &lanes);
        assert_eq!(found(&raw, QUEUE, 4), Some(lanes));
        for life in [0, 2, 3, 5] {
            assert_eq!(found(&raw, QUEUE, life), None);
        }
        assert_eq!(found(&raw, QueueId(6), 4), None);
        for at in 0..raw.len() {
            assert_eq!(found(&raw[..at], QUEUE, 4), None, "{at}");
            let mut bent = raw.clone();
            bent[at] ^= 0x55;
            assert_eq!(found(&bent, QUEUE, 4), None, "{at}");
        }
        assert_eq!(found(&[0; 2 * MOST], QUEUE, 4), None);
    }

    #[test]
    fn what_is_revoked_is_gone_although_the_power_fails() {
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
