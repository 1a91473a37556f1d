//! The oldest ready message.

use super::{PriorityLevel, Ready};
use crate::quorum::effects::LogLocation;

/// Most requeued messages that are compared. There may be as many as ready messages.
const MAX_COMPARED: usize = 1_024;

impl Ready {
    /// The location of the message that was enqueued first, of these: the first of each level, the first [`MAX_COMPARED`] of
    /// the requeued and of the postponed ones, and the first ones of groups.
    pub(crate) fn oldest(&self) -> Option<LogLocation> {
        if self.len == 0 {
            return None;
        }
        let fresh = self.levels.iter().filter_map(PriorityLevel::peek);
        let returned = self.returned.first_slots(MAX_COMPARED).map(|r| r.held);
        let postponed = self.postponed.first_slots(MAX_COMPARED);
        let postponed = postponed.map(|(_, message)| message.held);
        let ungrouped = fresh.chain(returned).chain(postponed);
        let grouped = self.groups().and_then(|g| g.oldest(MAX_COMPARED));
        ungrouped.map(|held| held.location()).chain(grouped).min()
    }
}
