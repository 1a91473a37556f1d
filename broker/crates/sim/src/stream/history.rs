//! What was committed. It never changes.

use stream_replication::ChunkHeader;

/// A chunk with its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub header: ChunkHeader,
    /// Stands for the entries: no two chunks have the same.
    pub content: u64,
}

/// The committed chunks, from offset 0.
#[derive(Debug, Default)]
pub(super) struct History {
    chunks: Vec<Chunk>,
}

impl History {
    /// The offset after the last committed chunk.
    pub(super) fn next(&self) -> u64 {
        self.chunks.last().map_or(0, |chunk| chunk.header.next)
    }

    /// Number of committed chunks.
    pub(super) fn len(&self) -> usize {
        self.chunks.len()
    }

    /// A member says that everything before `committed` is. Compares its log with the history and adds what is new.
    pub(super) fn commit(&mut self, log: &[Chunk], committed: u64) -> Result<(), String> {
        for chunk in log.iter().filter(|chunk| chunk.header.next <= committed) {
            self.compare(chunk)?;
        }
        let end = log.last().map_or(0, |chunk| chunk.header.next);
        match log.is_empty() || end >= committed {
            true => Ok(()),
            false => Err(format!(
                "offset {committed} is committed, but the log ends at {end}"
            )),
        }
    }

    /// The log of a new leader, or of any member at the end, has every committed chunk since `start`.
    pub(super) fn is_in(&self, log: &[Chunk], start: u64) -> Result<(), String> {
        for chunk in self
            .chunks
            .iter()
            .filter(|chunk| chunk.header.first >= start)
        {
            if !log.contains(chunk) {
                return Err(format!("a log lacks the committed {chunk:?}"));
            }
        }
        Ok(())
    }

    fn compare(&mut self, chunk: &Chunk) -> Result<(), String> {
        let next = self.next();
        if chunk.header.first == next {
            self.chunks.push(*chunk);
            return Ok(());
        }
        let at = self
            .chunks
            .partition_point(|c| c.header.first < chunk.header.first);
        match self.chunks.get(at) {
            Some(known) if known == chunk => Ok(()),
            Some(known) => Err(format!("{chunk:?} is committed where {known:?} was")),
            None => Err(format!(
                "{chunk:?} is committed, but the history ends at {next}"
            )),
        }
    }
}
