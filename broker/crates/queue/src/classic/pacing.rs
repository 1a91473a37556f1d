//! When a classic queue writes the persistent messages that publishers wait for.
//!
//! Normally at the end of the turn that brought them: nothing is gained by keeping a publisher waiting that sends no more until it
//! is confirmed. There are two exceptions, since a write costs as much as several messages:
//!
//! - Under load a write follows the one before it only after a pause in proportion to the messages that one covered, so that
//!   a stream of publishes shares its writes.
//! - A consumer that acknowledges at once makes the write superfluous. While that is so the queue waits for the acknowledgement.

use super::WRITE_AFTER;
use env::Time;
use env::planted::{self, Bug};
use std::time::Duration;

/// What each message of a write but the first adds to the pause after it: below one message in this time each turn writes, above it
/// the pause grows from write to write, up to [`WRITE_AFTER`].
const PAUSE_PER_MESSAGE: Duration = Duration::from_micros(50);

#[derive(Debug)]
pub(super) struct WritePacing {
    now: Time,
    /// No write before this: the pause after the last one.
    paused_until: Time,
    /// Messages published since the last write.
    published: u32,
    /// A message was settled before it was written, since the last write.
    spared: bool,
    /// Consumers acknowledge so soon that waiting for them spares writes.
    consumers_are_fast: bool,
    /// The last write, and the first message that it covered.
    last_write: Option<(Time, u64)>,
}

impl Default for WritePacing {
    fn default() -> WritePacing {
        WritePacing {
            now: Time::ZERO,
            paused_until: Time::ZERO,
            published: 0,
            spared: false,
            consumers_are_fast: true,
            last_write: None,
        }
    }
}

impl WritePacing {
    pub fn set_time(&mut self, now: Time) {
        self.now = now;
    }

    /// A message was published.
    pub fn published(&mut self) {
        self.published = self.published.saturating_add(1);
    }

    /// When a persistent message that was published now is to be written.
    pub fn due(&self, has_consumers: bool) -> Time {
        // The planted bug confirms a message before it is written, which takes a moment in which it is not.
        let waits = has_consumers && self.consumers_are_fast;
        match waits || planted::is(Bug::ClassicConfirmEarly) {
            true => self.now + WRITE_AFTER,
            false => self.now.max(self.paused_until),
        }
    }

    /// A write has covered all messages from this number on.
    pub fn wrote(&mut self, first: u64) {
        let pause = PAUSE_PER_MESSAGE * self.published.saturating_sub(1);
        self.paused_until = self.now + pause.min(WRITE_AFTER);
        self.consumers_are_fast = self.spared;
        self.last_write = Some((self.now, first));
        (self.published, self.spared) = (0, false);
    }

    /// A message was settled that was not written: its write is spared.
    pub fn settled_unwritten(&mut self) {
        self.spared = true;
        self.consumers_are_fast = true;
    }

    /// A message was settled that had been written. So soon after the write, waiting would have spared it.
    pub fn settled_written(&mut self, message: u64) {
        if let Some((at, first)) = self.last_write
            && message >= first
            && self.now < at + WRITE_AFTER
        {
            self.consumers_are_fast = true;
        }
    }
}
