//! The manifest: lower bounds on the log, which the log files cannot provide once they are missing or
//! truncated.
//!
//! It repeats, outside the log files, the numbers of the oldest and the newest file and the newest durable
//! sequence number. All three are lower bounds: each is written only after the log reached it, so a crash
//! between the two steps leaves a manifest that is behind the log, never ahead of it. A log that is behind
//! its manifest lost records.
//!
//! The file has three slots, each in a page of its own. Synced updates (a new file, a deletion) alternate
//! between the first two, so a torn update leaves the previous one. The third slot receives the durable
//! sequence number after each sync of the log, without a sync of its own: it is exact after the process was
//! killed, and at worst as old as the last synced update after a power failure. Integers are little-endian.
//!
//! `magic 8 | version u8 | zeros 7 | node u64 | updates u64 | oldest u64 | newest u64 | durable u64 | crc
//! u32`

use crate::error::WalError;
use crate::format::DIR;
use env::disk::is_full;
use env::{Disk, File, NodeId};
use std::io::ErrorKind;

pub(crate) const PATH: &str = "wal/manifest";
/// Name of the manifest while it is created; never read.
const NEW: &str = "wal/manifest.new";
const MAGIC: [u8; 8] = *b"PHORNMAN";
const VERSION: u8 = 1;
const SLOT_BYTES: u64 = 4096;
const SYNCED_SLOTS: u64 = 2;
/// The slot that is written without a sync.
const UNSYNCED_SLOT: u64 = 2;
const FIELDS: usize = 5;
const COVERED: usize = 16 + FIELDS * 8;
const ENCODED: usize = COVERED + 4;

/// Lower bounds on the state of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DurableBounds {
    /// Number of the oldest file that was not deleted; 0 before the first file.
    pub oldest: u64,
    /// Number of the newest file; 0 before the first file.
    pub newest: u64,
    /// Newest durable sequence number.
    pub durable: u64,
}

/// The manifest of a log that is open for writing.
pub(crate) struct Manifest {
    file: Box<dyn File>,
    node: NodeId,
    updates: u64,
    /// As of the newest synced update.
    pub bounds: DurableBounds,
}

impl Manifest {
    /// Opens the manifest; `None` if there is none.
    pub(crate) fn open(disk: &dyn Disk, node: NodeId) -> Result<Option<Manifest>, WalError> {
        let file = match disk.open(PATH) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            other => other.map_err(|e| WalError::io(PATH, &e))?,
        };
        let mut found: Option<ManifestSlot> = None;
        for slot in 0..=UNSYNCED_SLOT {
            let Some(read) = read_slot(&*file, slot)? else {
                continue;
            };
            if read.node != node {
                return Err(WalError::OtherNode {
                    file: PATH.to_owned(),
                    expected: node,
                    found: read.node,
                });
            }
            found = Some(found.map_or(read, |other| other.join(read)));
        }
        let found = found.ok_or_else(|| {
            WalError::corrupt(PATH, 0, "none of its copies has a matching checksum")
        })?;
        Ok(Some(Manifest {
            file,
            node,
            updates: found.updates,
            bounds: found.bounds,
        }))
    }

    /// Creates the manifest durably. It is written under a temporary name first, so an incomplete manifest
    /// never exists.
    pub(crate) fn create(
        disk: &dyn Disk,
        node: NodeId,
        bounds: DurableBounds,
    ) -> Result<Manifest, WalError> {
        match disk.remove(NEW) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(WalError::io(NEW, &e)),
            _ => {}
        }
        let file = disk.create(NEW).map_err(|e| WalError::io(NEW, &e))?;
        let manifest = Manifest {
            file,
            node,
            updates: 0,
            bounds,
        };
        let prepared = (manifest.file)
            .allocate((UNSYNCED_SLOT + 1) * SLOT_BYTES)
            .and_then(|()| manifest.write_slot(0, bounds))
            .and_then(|()| manifest.file.sync_data());
        if let Err(error) = prepared {
            if !is_full(&error) {
                return Err(WalError::sync(NEW, &error));
            }
            disk.remove(NEW).map_err(|e| WalError::sync(NEW, &e))?;
            return Err(WalError::io(NEW, &error));
        }
        disk.rename(NEW, PATH)
            .map_err(|e| WalError::sync(PATH, &e))?;
        // If it fails for lack of a descriptor, the next attempt creates the file again.
        disk.sync_dir(DIR)
            .map_err(|e| WalError::sync_dir(PATH, &e))?;
        Ok(manifest)
    }

    /// Replaces the bounds durably.
    pub(crate) fn update(&mut self, bounds: DurableBounds) -> Result<(), WalError> {
        self.updates += 1;
        let slot = self.updates % SYNCED_SLOTS;
        (self.write_slot(slot, bounds)).map_err(|e| WalError::io(PATH, &e))?;
        (self.file.sync_data()).map_err(|e| WalError::sync(PATH, &e))?;
        self.bounds = bounds;
        Ok(())
    }

    /// Records a durable sequence number without a sync. It survives the death of the process; a power
    /// failure may lose it.
    pub(crate) fn note_durable(&self, durable: u64) -> Result<(), WalError> {
        let bounds = DurableBounds {
            durable,
            ..self.bounds
        };
        match self.write_slot(UNSYNCED_SLOT, bounds) {
            // Copy-on-write file systems may need space for it. The previous bound remains valid.
            Err(e) if is_full(&e) => Ok(()),
            other => other.map_err(|e| WalError::io(PATH, &e)),
        }
    }

    fn write_slot(&self, slot: u64, bounds: DurableBounds) -> std::io::Result<()> {
        let mut bytes = Vec::with_capacity(ENCODED);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&[VERSION, 0, 0, 0, 0, 0, 0, 0]);
        let DurableBounds {
            oldest,
            newest,
            durable,
        } = bounds;
        for field in [self.node.0, self.updates, oldest, newest, durable] {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        let crc = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        self.file.write_at(slot * SLOT_BYTES, &bytes)
    }
}

/// One copy of the bounds, as read from the file.
#[derive(Clone, Copy)]
struct ManifestSlot {
    node: NodeId,
    updates: u64,
    bounds: DurableBounds,
}

impl ManifestSlot {
    /// Takes the higher of each bound, because every copy is a valid lower bound.
    fn join(self, other: ManifestSlot) -> ManifestSlot {
        ManifestSlot {
            node: self.node,
            updates: self.updates.max(other.updates),
            bounds: DurableBounds {
                oldest: self.bounds.oldest.max(other.bounds.oldest),
                newest: self.bounds.newest.max(other.bounds.newest),
                durable: self.bounds.durable.max(other.bounds.durable),
            },
        }
    }
}

/// Returns `None` if the slot was never written, or its last update is torn.
fn read_slot(file: &dyn File, slot: u64) -> Result<Option<ManifestSlot>, WalError> {
    let mut bytes = [0; ENCODED];
    let n = file
        .read_at(slot * SLOT_BYTES, &mut bytes)
        .map_err(|e| WalError::io(PATH, &e))?;
    let (covered, crc) = bytes.split_at(COVERED);
    if n > MAGIC.len() && bytes.starts_with(&MAGIC) && bytes[8] > VERSION {
        return Err(WalError::Newer {
            file: PATH.to_owned(),
            version: bytes[8],
            known: VERSION,
        });
    }
    if n < ENCODED || !bytes.starts_with(&MAGIC) || crc != crc32fast::hash(covered).to_le_bytes() {
        return Ok(None);
    }
    let field = |at: usize| {
        let bytes = covered.get(16 + at * 8..).and_then(|b| b.first_chunk());
        u64::from_le_bytes(*bytes.unwrap_or(&[0; 8]))
    };
    Ok(Some(ManifestSlot {
        node: NodeId(field(0)),
        updates: field(1),
        bounds: DurableBounds {
            oldest: field(2),
            newest: field(3),
            durable: field(4),
        },
    }))
}
