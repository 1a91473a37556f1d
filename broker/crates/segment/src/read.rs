//! Reading segments.

use crate::files::segment_path;
use crate::format::{self, END_MARK, FieldReader, HEADER_BYTES, SegmentIndex, TRAILER};
use crate::{SegmentError, SegmentMeta, SegmentName};
use bytes::Bytes;
use env::{Disk, File};
use std::io::ErrorKind;
use std::sync::{Arc, Mutex, PoisonError};
use wal::{Entry, GroupId, MAX_RECORD_BYTES};

/// A larger block is not cached: there are many segments, and one message may be as large as a record.
const MAX_CACHED_BYTES: usize = 256 << 10;

/// An open segment. Its index takes a few bits of memory per entry; a recently read segment also holds one
/// block and a file handle (see [`Segment::release`]).
pub struct Segment {
    disk: Arc<dyn Disk>,
    path: String,
    meta: SegmentMeta,
    index: SegmentIndex,
    rebuilt: bool,
    cache: Mutex<ReadCache>,
}

/// The resources of the last read.
#[derive(Default)]
struct ReadCache {
    file: Option<Box<dyn File>>,
    /// Number and bytes of the block read last.
    block: Option<(usize, Bytes)>,
}

impl std::fmt::Debug for Segment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Segment")
            .field("meta", &self.meta)
            .finish_non_exhaustive()
    }
}

impl Segment {
    /// Reads the index from the footer; if the footer is damaged, rebuilds it from the entries.
    pub fn open(
        disk: Arc<dyn Disk>,
        group: GroupId,
        name: SegmentName,
    ) -> Result<Segment, SegmentError> {
        let path = segment_path(group, name);
        let file = disk.open(&path).map_err(|e| SegmentError::io(&path, &e))?;
        let bytes = file.len().map_err(|e| SegmentError::io(&path, &e))?;
        check_header(&*file, &path, group, name)?;
        let source = SegmentSource {
            file: &*file,
            path: &path,
            group,
            name,
            bytes,
        };
        let (index, rebuilt) = match source.read_footer()? {
            Some(index) => (index, false),
            None => (source.rebuild()?, true),
        };
        let meta = SegmentMeta {
            group,
            name,
            last: index.last,
            count: index.count,
            bytes,
        };
        Ok(Segment {
            disk,
            path,
            meta,
            index,
            rebuilt,
            cache: Mutex::default(),
        })
    }

    /// Name, range and size of the segment.
    pub fn meta(&self) -> &SegmentMeta {
        &self.meta
    }

    /// True if the segment holds every index from its first to its last.
    pub fn is_dense(&self) -> bool {
        self.meta.last - self.meta.name.first < u64::from(self.meta.count)
    }

    /// True if the footer was damaged: the caller should log a warning and rewrite the segment.
    pub fn rebuilt(&self) -> bool {
        self.rebuilt
    }

    /// Reads the entry at `index`; `None` if the segment does not hold it.
    pub fn read(&self, index: u64) -> Result<Option<Entry>, SegmentError> {
        if index < self.meta.name.first || index > self.meta.last {
            return Ok(None);
        }
        let mut found = None;
        self.visit_block(self.block_of(index), |entry| {
            let done = entry.index >= index;
            if entry.index == index {
                found = Some(entry);
            }
            !done
        })?;
        Ok(found)
    }

    /// Appends entries from the first at or above `from` up to and including `to`, until their data exceeds
    /// `max_bytes`. The entry that exceeds it is included, so that there is always progress.
    pub fn read_range(
        &self,
        from: u64,
        to: u64,
        max_bytes: u64,
        out: &mut Vec<Entry>,
    ) -> Result<(), SegmentError> {
        let mut bytes = 0;
        let mut more = from <= self.meta.last && to >= self.meta.name.first;
        let mut block = self.block_of(from);
        while more && block < self.index.blocks.len() {
            self.visit_block(block, |entry| {
                more = entry.index < to;
                if entry.index >= from && entry.index <= to {
                    bytes += entry.data.len() as u64;
                    more &= bytes <= max_bytes;
                    out.push(entry);
                }
                more
            })?;
            block += 1;
        }
        Ok(())
    }

    /// The term of the entry at `index`, if the segment holds one: the segment may have gaps between its
    /// first and last index.
    pub fn term(&self, index: u64) -> Option<u64> {
        if index > self.meta.last {
            return None;
        }
        let relative = u32::try_from(index.checked_sub(self.meta.name.first)?).ok()?;
        let at = self.index.terms.partition_point(|(r, _)| *r <= relative);
        Some(self.index.terms.get(at.checked_sub(1)?)?.1)
    }

    /// All entries, ascending. Ends after an error.
    pub fn entries(&self) -> impl Iterator<Item = Result<Entry, SegmentError>> + '_ {
        (0..self.index.blocks.len()).flat_map(|block| {
            let mut entries = Vec::new();
            let visited = self.visit_block(block, |entry| {
                entries.push(Ok(entry));
                true
            });
            entries.extend(visited.err().map(Err));
            entries
        })
    }

    /// Closes the file handle and drops the cached block; the next read opens the file again.
    pub fn release(&self) {
        *self.cache() = ReadCache::default();
    }

    /// Bytes of memory used while the segment is not read.
    pub fn memory(&self) -> usize {
        size_of::<Segment>()
            + self.path.capacity()
            + self.index.blocks.capacity() * size_of::<(u32, u32)>()
            + self.index.terms.capacity() * size_of::<(u32, u64)>()
    }

    fn cache(&self) -> std::sync::MutexGuard<'_, ReadCache> {
        // A panic cannot leave the cache inconsistent.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The block that holds `index`, if any does.
    fn block_of(&self, index: u64) -> usize {
        let relative = index.saturating_sub(self.meta.name.first);
        let after = |(r, _): &(u32, u32)| u64::from(*r) <= relative;
        self.index.blocks.partition_point(after).saturating_sub(1)
    }

    /// Passes the entries of a block to `visit` until it returns false.
    fn visit_block(
        &self,
        block: usize,
        mut visit: impl FnMut(Entry) -> bool,
    ) -> Result<(), SegmentError> {
        let Some((_, start)) = self.index.blocks.get(block) else {
            return Ok(());
        };
        let mut bytes = self.block(block)?;
        let mut offset = u64::from(*start);
        while !bytes.is_empty() {
            let (entry, len) = format::decode_entry(self.meta.group, &bytes)
                .map_err(|what| SegmentError::corrupt(&self.path, offset, what))?;
            if !visit(entry) {
                break;
            }
            bytes = bytes.slice(len..);
            offset += len as u64;
        }
        Ok(())
    }

    fn block(&self, block: usize) -> Result<Bytes, SegmentError> {
        let io = |e: std::io::Error| SegmentError::io(&self.path, &e);
        let mut cache = self.cache();
        if let Some((number, bytes)) = &cache.block
            && *number == block
        {
            return Ok(bytes.clone());
        }
        let start = self.index.blocks.get(block).map_or(0, |(_, o)| *o);
        let next = self.index.blocks.get(block + 1);
        let end = next.map_or(self.index.end, |(_, o)| *o);
        let mut bytes = vec![0; end.saturating_sub(start) as usize];
        if cache.file.is_none() {
            cache.file = Some(self.disk.open(&self.path).map_err(io)?);
        }
        if let Some(file) = &cache.file {
            let n = file.read_at(u64::from(start), &mut bytes).map_err(io)?;
            bytes.truncate(n);
        }
        if !self.disk.may_keep_open() {
            cache.file = None;
        }
        if bytes.len() < end.saturating_sub(start) as usize {
            return Err(SegmentError::corrupt(
                &self.path,
                u64::from(start),
                "the file is truncated",
            ));
        }
        let bytes = Bytes::from(bytes);
        cache.block = (bytes.len() <= MAX_CACHED_BYTES).then(|| (block, bytes.clone()));
        Ok(bytes)
    }
}

fn check_header(
    file: &dyn File,
    path: &str,
    group: GroupId,
    name: SegmentName,
) -> Result<(), SegmentError> {
    let mut bytes = [0; HEADER_BYTES as usize];
    let n = file
        .read_at(0, &mut bytes)
        .map_err(|e| SegmentError::io(path, &e))?;
    let (covered, crc) = bytes.split_at(HEADER_BYTES as usize - 4);
    let mut fields = FieldReader(covered);
    if n < bytes.len() || fields.array() != Some(format::MAGIC) {
        return Err(SegmentError::corrupt(path, 0, "not a segment file"));
    }
    let version: [u8; 8] = fields.array().unwrap_or_default();
    if version[0] > format::VERSION {
        return Err(SegmentError::Newer {
            file: path.to_owned(),
            version: version[0],
            known: format::VERSION,
        });
    }
    if version[0] != format::VERSION || crc != crc32fast::hash(covered).to_le_bytes() {
        return Err(SegmentError::corrupt(
            path,
            0,
            "header checksum does not match",
        ));
    }
    let found = GroupId(fields.u64().unwrap_or_default());
    if found != group {
        return Err(SegmentError::OtherGroup {
            file: path.to_owned(),
            expected: group,
            found,
        });
    }
    if (fields.u64(), fields.u32()) != (Some(name.first), Some(name.n)) {
        return Err(SegmentError::corrupt(
            path,
            0,
            "its name differs from its file name",
        ));
    }
    Ok(())
}

/// A segment file that is being opened.
struct SegmentSource<'a> {
    file: &'a dyn File,
    path: &'a str,
    group: GroupId,
    name: SegmentName,
    bytes: u64,
}

impl SegmentSource<'_> {
    fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, SegmentError> {
        let len = (len as u64).min(self.bytes.saturating_sub(offset)) as usize;
        let mut bytes = vec![0; len];
        let n = self.file.read_at(offset, &mut bytes);
        match n {
            Ok(n) => bytes.truncate(n),
            // An unreadable footer is treated as a damaged one, because it can be rebuilt from the entries.
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => bytes.clear(),
            Err(e) => return Err(SegmentError::io(self.path, &e)),
        }
        Ok(bytes)
    }

    fn read_footer(&self) -> Result<Option<SegmentIndex>, SegmentError> {
        let Some(trailer_at) = self.bytes.checked_sub(TRAILER as u64) else {
            return Ok(None);
        };
        let trailer = self.read(trailer_at, TRAILER)?;
        let mut fields = FieldReader(&trailer);
        let (Some(offset), Some(len)) = (fields.u64(), fields.u32()) else {
            return Ok(None);
        };
        let is_consistent = offset.checked_add(u64::from(len)) == Some(trailer_at);
        let Some(end) = offset
            .checked_sub(END_MARK as u64)
            .and_then(|e| u32::try_from(e).ok())
            .filter(|_| is_consistent)
        else {
            return Ok(None);
        };
        let footer = self.read(offset, len as usize)?;
        if trailer != format::encode_trailer(self.group, &footer, offset) {
            return Ok(None);
        }
        Ok(SegmentIndex::decode_footer(&footer, self.name.first, end))
    }

    /// Rebuilds the index by reading the entries up to the end mark.
    fn rebuild(&self) -> Result<SegmentIndex, SegmentError> {
        let mut index = SegmentIndex::default();
        let mut offset = HEADER_BYTES;
        loop {
            let corrupt = |what| SegmentError::corrupt(self.path, offset, what);
            let head = self.read(offset, END_MARK)?;
            if head == format::encode_end_mark(self.group, index.count) && index.count > 0 {
                return Ok(index);
            }
            let len = FieldReader(&head)
                .u32()
                .ok_or(corrupt("the file is truncated"))?;
            let entry_len = format::ENTRY_HEADER as u64 + u64::from(len);
            if entry_len > MAX_RECORD_BYTES {
                return Err(corrupt("entry length exceeds the limit"));
            }
            let bytes = Bytes::from(self.read(offset, entry_len as usize)?);
            let (entry, len) = format::decode_entry(self.group, &bytes).map_err(corrupt)?;
            let relative = entry
                .index
                .checked_sub(self.name.first)
                .and_then(|r| u32::try_from(r).ok())
                .filter(|_| index.count == 0 || entry.index > index.last);
            let (Some(relative), Ok(at)) = (relative, u32::try_from(offset)) else {
                return Err(corrupt("entry is out of order"));
            };
            index.add(relative, entry.index, entry.term, at, len as u32);
            offset += len as u64;
        }
    }
}
