//! A user or virtual host that is deleted takes its connections with it.

use crate::shard::Shard;
use metadata::Name;
use session::ControlEvent;

/// What is gone.
#[derive(Debug)]
pub(crate) enum RemovedAccount {
    User(Name),
    Vhost(Name),
}

impl Shard {
    /// Closes this shard's connections of users and virtual hosts that are gone. True when any was.
    pub(crate) fn evict(&mut self) -> bool {
        let mut worked = false;
        while let Some(gone) = self.state.limits.next_removed() {
            worked = true;
            let text = match &gone {
                RemovedAccount::User(name) => format!("user '{name}' is deleted"),
                RemovedAccount::Vhost(name) => format!("vhost '{name}' is deleted"),
            };
            let all = self.sessions.iter_mut();
            let theirs = all.filter(|(_, slot)| {
                let info = slot.session.info(self.state.services.states());
                match &gone {
                    RemovedAccount::User(name) => info.user == **name,
                    RemovedAccount::Vhost(name) => info.vhost == **name,
                }
            });
            let keys: Vec<_> = theirs.map(|(key, _)| key).collect();
            for key in keys {
                let text = text.clone();
                self.step(key, |s, view, out| {
                    s.session_event(ControlEvent::Close { text }.into(), view, out)
                });
            }
        }
        worked
    }
}
