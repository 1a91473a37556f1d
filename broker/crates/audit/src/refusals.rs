//! Refused permissions of one step of a session.

use metadata::Name;
use std::cell::RefCell;

/// Refused permissions of a step that are kept. A step that has more, such as a batch of refused publishes, records
/// these only.
const MAX_REFUSALS: usize = 64;

/// A refused permission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedPermission {
    /// The user.
    pub user: Name,
    /// The virtual host.
    pub vhost: Name,
    /// `queue`, `exchange` or `topic`.
    pub kind: &'static str,
    /// The name of the object.
    pub name: String,
    /// `configure`, `write` or `read`.
    pub permission: &'static str,
    /// The error for the client.
    pub error: String,
}

/// Collects refused permissions. Checks have a shared reference, because they borrow the metadata tree from the same
/// owner.
#[derive(Debug, Default)]
pub struct Refusals(RefCell<Vec<RefusedPermission>>);

impl Refusals {
    /// Adds a refusal.
    pub fn add(&self, refusal: RefusedPermission) {
        let mut all = self.0.borrow_mut();
        if all.len() < MAX_REFUSALS {
            all.push(refusal);
        }
    }

    /// Takes the refusals that were added since the last call.
    pub fn take(&mut self) -> Vec<RefusedPermission> {
        std::mem::take(self.0.get_mut())
    }
}
