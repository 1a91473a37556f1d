//! Receivers that browse.

use env::Time;
use std::collections::BTreeMap;

/// A receiver that browses.
struct Browser {
    attached_at: Time,
    /// Copies by the number of the message.
    copies: BTreeMap<u64, usize>,
    /// Position of the last copy among all publishes, by link of the publisher.
    order: BTreeMap<u64, u64>,
}

/// All receivers that browse, by number.
#[derive(Default)]
pub(crate) struct Browsers {
    browsers: BTreeMap<u64, Browser>,
    pub copies: u64,
    /// Drains that ended.
    pub drains: u64,
}

impl Browsers {
    /// A browser sends its attach.
    pub(super) fn attach(&mut self, browser: u64, now: Time) {
        let state = Browser {
            attached_at: now,
            copies: BTreeMap::new(),
            order: BTreeMap::new(),
        };
        self.browsers.insert(browser, state);
    }

    /// A copy of a message has come, which was published so many times. Returns when the browser sent its attach.
    pub(super) fn copied(
        &mut self,
        browser: u64,
        number: u64,
        sends: usize,
    ) -> Result<Time, String> {
        self.copies += 1;
        let state = self.browsers.get_mut(&browser);
        let state = state.ok_or("a copy for a browser that is unknown")?;
        let copies = state.copies.entry(number).or_default();
        *copies += 1;
        match *copies <= sends {
            true => Ok(state.attached_at),
            false => Err(format!(
                "browser {browser} got {copies} copies of message {number}, which was published {sends} times"
            )),
        }
    }

    /// A browser gets the messages of a publisher in their order: that of the queue.
    pub(super) fn check_order(
        &mut self,
        browser: u64,
        number: u64,
        (link, position): (u64, u64),
    ) -> Result<(), String> {
        let Some(state) = self.browsers.get_mut(&browser) else {
            return Ok(());
        };
        match state.order.insert(link, position) {
            Some(last) if position < last => Err(format!(
                "message {number} came to browser {browser} after a later one of its publisher"
            )),
            _ => Ok(()),
        }
    }
}
