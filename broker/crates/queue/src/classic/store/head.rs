//! The oldest ready message of a classic queue.
//!
//! The first message on disk has no entry in memory while the read-ahead window is empty: after a restart, and while nobody
//! consumes. It is read alone, since a window for each queue that is listed would take much memory.

use super::ClassicStore;
use crate::classic::location::MessageLocation;
use crate::{DescribeMessage, HeadLookup, HeadMessage};
use std::collections::BTreeMap;
use std::io;

/// Bytes that are read at once to find the first message on disk. A larger message is read whole.
const PIECE: usize = 16 << 10;
/// Pieces that one call reads for one level. The next call continues: a segment may begin with many settled messages.
const MAX_PIECES: usize = 8;

/// The first messages of a queue, as far as files were read for them.
#[derive(Debug, Default)]
pub(super) struct KnownHeads {
    /// The number of the oldest message of the last call. `None` in place of the message: it is damaged.
    oldest: Option<(u64, Option<HeadMessage>)>,
    /// The first messages on disk by level.
    stored: BTreeMap<usize, StoredHead>,
}

/// The first message of a level on disk.
#[derive(Clone, Copy, Debug)]
struct StoredHead {
    /// Where the messages on disk began when the search began.
    cursor: MessageLocation,
    search: Search,
}

#[derive(Clone, Copy, Debug)]
enum Search {
    /// The number of the message.
    Found(u64, HeadMessage),
    /// There is none before this location.
    From(MessageLocation),
    /// There is none, which the queue notices when it reads on.
    Missing,
}

impl ClassicStore {
    /// The message with the lowest number among the first ones of the levels.
    pub(in crate::classic) fn head(&mut self, describe: DescribeMessage) -> io::Result<HeadLookup> {
        if self.ready == 0 {
            self.known_heads = None;
            return Ok(HeadLookup::default());
        }
        let mut known = self.known_heads.take().unwrap_or_default();
        let found = self.find_head(&mut known, describe);
        self.known_heads = Some(known);
        found
    }

    fn find_head(
        &mut self,
        known: &mut KnownHeads,
        describe: DescribeMessage,
    ) -> io::Result<HeadLookup> {
        let mut has_read = false;
        let mut first_held: Option<u64> = None;
        let mut first_stored: Option<(u64, HeadMessage)> = None;
        for at in 0..self.levels.len() {
            let Some(level) = self.levels.get(at).filter(|level| level.ready > 0) else {
                known.stored.remove(&at);
                continue;
            };
            let returned = level.returned.keys().next();
            let window = level.window.front().map(|loaded| &loaded.seq);
            let held = [returned, window, level.fresh.front(), first_held.as_ref()];
            let cursor = level
                .cursor
                .filter(|_| window.is_none() && level.backlog > 0);
            first_held = held.into_iter().flatten().min().copied();
            let Some(cursor) = cursor else {
                known.stored.remove(&at);
                continue;
            };
            let before = known.stored.get(&at).filter(|head| head.cursor == cursor);
            let mut search = before.map_or(Search::From(cursor), |head| head.search);
            if let Search::From(from) = search {
                has_read = true;
                search = self.search_stored(from, describe)?;
                known.stored.insert(at, StoredHead { cursor, search });
            }
            if let Search::Found(number, message) = search
                && first_stored.is_none_or(|(first, _)| number < first)
            {
                first_stored = Some((number, message));
            }
        }
        if let Some((number, message)) = first_stored
            && first_held.is_none_or(|held| number < held)
        {
            return Ok(HeadLookup {
                message: Some(message),
                has_read,
            });
        }
        let Some(number) = first_held else {
            return Ok(HeadLookup {
                message: None,
                has_read,
            });
        };
        if let Some((oldest, message)) = known.oldest
            && oldest == number
        {
            return Ok(HeadLookup { message, has_read });
        }
        let message = match self.windowed(number).map(describe) {
            Some(message) => Some(message),
            None => {
                has_read |= self.slot(number).is_none();
                match self.message(number) {
                    Ok(message) => Some(describe(&message)),
                    // Reported when it is delivered.
                    Err(error) if error.kind() == io::ErrorKind::InvalidData => None,
                    Err(error) => return Err(error),
                }
            }
        };
        known.oldest = Some((number, message));
        Ok(HeadLookup { message, has_read })
    }

    /// The message with this number, if it is the first one in a window.
    fn windowed(&self, number: u64) -> Option<&message::Message> {
        let fronts = self.levels.iter().filter_map(|level| level.window.front());
        let mut fronts = fronts.filter(|loaded| loaded.seq == number);
        fronts.next().map(|loaded| &loaded.message)
    }

    /// Searches for the first message on disk from a location on.
    fn search_stored(
        &mut self,
        mut from: MessageLocation,
        describe: DescribeMessage,
    ) -> io::Result<Search> {
        for _ in 0..MAX_PIECES {
            // Damage is reported when the queue itself reads it.
            let mut faults = Vec::new();
            let (loaded, next) =
                self.segments
                    .read(from.segment, from.offset, PIECE, &mut faults)?;
            if let Some(first) = loaded.first() {
                return Ok(Search::Found(first.seq, describe(&first.message)));
            }
            let next = match next {
                Some(offset) => Some(MessageLocation { offset, ..from }),
                None => self.segment_after(from),
            };
            match next {
                Some(next) => from = next,
                None => return Ok(Search::Missing),
            }
        }
        Ok(Search::From(from))
    }
}
