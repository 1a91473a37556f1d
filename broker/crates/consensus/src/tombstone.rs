//! Tombstones: what a node keeps of a replica that it deleted because it is no longer a member of the group.
//!
//! A node must not forget its promises: as a member again it could vote for a candidate that lacks entries
//! this node acknowledged. Therefore its term, its vote and the end of its log stay in `departed/<group>`:
//! magic (8 bytes), version (1) and zeros (7), then group, term, vote, term and index of the last entry (8
//! each, little-endian), CRC-32 (4). A job writes it, and it is durable before any of the replica's files is
//! deleted. It is removed with the group.

use crate::entry::Position;
use crate::recovery::RecoveryError;
use env::Disk;
use segment::SegmentError;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use wal::GroupId;

const DIR: &str = "departed";
const MAGIC: [u8; 8] = *b"PHORNDEP";
const VERSION: u8 = 1;
const BYTES: usize = 60;

/// The promises of a deleted replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tombstone {
    pub term: u64,
    /// 0 means that it did not vote in that term.
    pub vote: u64,
    /// The end of its log. A candidate with a shorter log gets no vote, and a later replica with a shorter
    /// log does not campaign.
    pub last: Position,
}

fn path(group: GroupId) -> String {
    format!("{DIR}/{:016x}", group.0)
}

/// Durable on return. Replaces an older tombstone.
pub(crate) fn write(disk: &dyn Disk, group: GroupId, tombstone: &Tombstone) -> io::Result<()> {
    disk.create_dir(DIR)?;
    disk.sync_dir("")?;
    let (path, temporary) = (path(group), path(group) + ".tmp");
    remove_file(disk, &temporary)?;
    let file = disk.create(&temporary)?;
    file.write_at(0, &encode(group, tombstone))?;
    file.sync_data()?;
    disk.rename(&temporary, &path)?;
    disk.sync_dir(DIR)
}

/// Succeeds if the file does not exist.
pub(crate) fn remove(disk: &dyn Disk, group: GroupId) -> io::Result<()> {
    remove_file(disk, &path(group))?;
    disk.sync_dir(DIR)
}

fn remove_file(disk: &dyn Disk, path: &str) -> io::Result<()> {
    match disk.remove(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Reads all tombstones. The error names the file.
pub(crate) fn read_all(disk: &dyn Disk) -> Result<BTreeMap<GroupId, Tombstone>, RecoveryError> {
    let names = disk.list(DIR).map_err(|e| SegmentError::io(DIR, &e))?;
    let mut all = BTreeMap::new();
    for name in names {
        // The name of a temporary file is not a number.
        let Ok(group) = u64::from_str_radix(&name, 16).map(GroupId) else {
            continue;
        };
        let tombstone = read(disk, group).map_err(|e| SegmentError::io(&path(group), &e))?;
        let tombstone = tombstone.map_err(|what| RecoveryError::Damaged {
            group,
            what: format!("{}{what}", path(group)),
        })?;
        all.insert(group, tombstone);
    }
    Ok(all)
}

/// The inner error describes the damage.
fn read(disk: &dyn Disk, group: GroupId) -> io::Result<Result<Tombstone, String>> {
    let file = disk.open(&path(group))?;
    let mut bytes = [0; BYTES + 1];
    let n = file.read_at(0, &mut bytes)?;
    let bytes = bytes.get(..n).unwrap_or_default();
    // Checked before the checksum, which a newer format may keep elsewhere.
    let newer = bytes.get(MAGIC.len()).filter(|v| **v > VERSION);
    if let Some(version) = newer.filter(|_| bytes.starts_with(&MAGIC)) {
        return Ok(Err(format!(
            " has format version {version}, this version of Posthorn reads up to {VERSION}: it was written by a newer version and is left untouched"
        )));
    }
    let tombstone = decode(group, bytes);
    Ok(tombstone.ok_or_else(|| " is damaged, or of another group".to_owned()))
}

fn encode(group: GroupId, tombstone: &Tombstone) -> Vec<u8> {
    let mut out = Vec::with_capacity(BYTES);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&[VERSION, 0, 0, 0, 0, 0, 0, 0]);
    let last = tombstone.last;
    for field in [
        group.0,
        tombstone.term,
        tombstone.vote,
        last.term,
        last.index,
    ] {
        out.extend_from_slice(&field.to_le_bytes());
    }
    out.extend_from_slice(&crc32fast::hash(&out).to_le_bytes());
    out
}

fn decode(group: GroupId, bytes: &[u8]) -> Option<Tombstone> {
    let (covered, crc) = bytes.split_at_checked(BYTES - 4)?;
    let good = crc == crc32fast::hash(covered).to_le_bytes();
    let (head, fields) = covered.split_at_checked(16)?;
    if !good || head.get(..8)? != MAGIC || *head.get(8)? != VERSION {
        return None;
    }
    let field = |n: usize| {
        let raw = fields.get(n * 8..n * 8 + 8)?;
        Some(u64::from_le_bytes(raw.try_into().ok()?))
    };
    let last = Position {
        term: field(3)?,
        index: field(4)?,
    };
    (field(0)? == group.0).then_some(Tombstone {
        term: field(1)?,
        vote: field(2)?,
        last,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use env::sim::SimDisk;

    const STONE: Tombstone = Tombstone {
        term: 7,
        vote: 3,
        last: Position { index: 99, term: 6 },
    };

    #[test]
    fn tombstone_persists_until_removed() -> io::Result<()> {
        let disk = SimDisk::new();
        let group = GroupId(5);
        assert_eq!(read_all(&disk), Ok(BTreeMap::new()));
        write(&disk, group, &Tombstone::default())?;
        write(&disk, group, &STONE)?;
        assert_eq!(read_all(&disk), Ok(BTreeMap::from([(group, STONE)])));
        remove(&disk, group)?;
        remove(&disk, group)?;
        assert_eq!(read_all(&disk), Ok(BTreeMap::new()));
        Ok(())
    }

    #[test]
    fn damaged_tombstone_is_refused_by_file_name() -> io::Result<()> {
        let good = encode(GroupId(5), &STONE);
        assert_eq!(decode(GroupId(5), &good), Some(STONE));
        assert_eq!(decode(GroupId(6), &good), None, "of another group");
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert_eq!(decode(GroupId(5), &bad), None, "at {at}");
            assert_eq!(decode(GroupId(5), &good[..at]), None);
        }
        let disk = SimDisk::new();
        write(&disk, GroupId(5), &STONE)?;
        disk.open(&path(GroupId(5)))?.write_at(20, &[0xff])?;
        let error = read_all(&disk).unwrap_err();
        assert!(matches!(
            error,
            RecoveryError::Damaged {
                group: GroupId(5),
                ..
            }
        ));
        let text = error.to_string();
        assert!(text.contains("departed/0000000000000005"), "{text}");
        Ok(())
    }

    #[test]
    fn newer_tombstone_format_is_refused_by_version() -> io::Result<()> {
        let disk = SimDisk::new();
        write(&disk, GroupId(5), &STONE)?;
        disk.open(&path(GroupId(5)))?.write_at(8, &[9])?;
        let error = read_all(&disk).unwrap_err().to_string();
        assert!(error.contains("departed/0000000000000005"), "{error}");
        assert!(error.contains("version 9"), "{error}");
        Ok(())
    }
}
