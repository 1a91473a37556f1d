//! Time at which a classic queue writes persistent messages, whose publishers wait for the write.
//!
//! A queue writes at the end of the turn that brought the messages. A publisher that waits for each confirm sends nothing
//! meanwhile, so waiting longer would gather nothing. There are two exceptions, because a write costs as much as several
//! messages:
//!
//! - Under load, a pause follows each write. It is proportional to the number of messages of that write, so that a stream of
//!   publishes shares its writes.
//! - A consumer that acknowledges at once makes the write superfluous. The queue then waits for the acknowledgement.

use super::WRITE_AFTER;
use env::Time;
use env::planted::{self, Bug};
use std::time::Duration;

/// Pause after a write for each of its messages but the first. Below one message per this time, each turn writes; above it,
/// the pause grows from write to write, up to [`WRITE_AFTER`].
const PAUSE_PER_MESSAGE: Duration = Duration::from_micros(50);

#[derive(Debug)]
pub(super) struct WritePacing {
    now: Time,
    /// End of the pause after the last write.
    paused_until: Time,
    /// Messages published since the last write.
    published: u32,
    /// True if a message was settled before it was written, since the last write.
    spared: bool,
    /// True if consumers acknowledge so soon that waiting for them saves writes.
    consumers_are_fast: bool,
    /// Time of the last write, and its first message.
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
    pub(crate) fn set_time(&mut self, now: Time) {
        self.now = now;
    }

    /// Records a publish.
    pub(crate) fn published(&mut self) {
        self.published = self.published.saturating_add(1);
    }

    /// Time at which a persistent message that was published now is written.
    pub(crate) fn due(&self, has_consumers: bool) -> Time {
        // The planted bug confirms before the write, so the write must not be immediate.
        let waits = has_consumers && self.consumers_are_fast;
        match waits || planted::is(Bug::ClassicConfirmEarly) {
            true => self.now + WRITE_AFTER,
            false => self.now.max(self.paused_until),
        }
    }

    /// Records a write of all messages from this number on.
    pub(crate) fn wrote(&mut self, first: u64) {
        let pause = PAUSE_PER_MESSAGE * self.published.saturating_sub(1);
        self.paused_until = self.now + pause.min(WRITE_AFTER);
        self.consumers_are_fast = self.spared;
        self.last_write = Some((self.now, first));
        (self.published, self.spared) = (0, false);
    }

    /// Records that a message was settled before it was written, so that its write was saved.
    pub(crate) fn settled_unwritten(&mut self) {
        self.spared = true;
        self.consumers_are_fast = true;
    }

    /// Records that a written message was settled. If this came soon after the write, waiting would have saved it.
    pub(crate) fn settled_written(&mut self, message: u64) {
        if let Some((at, first)) = self.last_write
            && message >= first
            && self.now < at + WRITE_AFTER
        {
            self.consumers_are_fast = true;
        }
    }
}
