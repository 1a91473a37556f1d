//! The sessions of a shard that use a stream, which get an event when it is deleted. A session without traffic would
//! not notice the deletion before its next check.

use crate::groups::Groups;
use metadata::QueueId;
use session::{Broker, ServiceStates};
use std::collections::BTreeMap;

/// Number of publishers and consumers of each stream in each session.
#[derive(Debug, Default)]
pub(crate) struct StreamUsers(BTreeMap<(QueueId, u64), u32>);

impl StreamUsers {
    fn add(&mut self, queue: QueueId, session: u64) {
        *self.0.entry((queue, session)).or_default() += 1;
    }

    fn remove(&mut self, queue: QueueId, session: u64) {
        let Some(count) = self.0.get_mut(&(queue, session)) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            self.0.remove(&(queue, session));
        }
    }

    /// The numbers of the sessions that use a stream.
    pub(crate) fn sessions(&self, queue: QueueId) -> impl Iterator<Item = u64> + '_ {
        let keys = self.0.range((queue, 0)..=(queue, u64::MAX));
        keys.map(|((_, session), _)| *session)
    }
}

/// Adds a publisher or consumer of this session.
pub(crate) fn add(broker: &mut dyn Broker, queue: QueueId) {
    let session = broker.id().number;
    if let Some(groups) = broker.services().and_then(ServiceStates::get_mut::<Groups>) {
        groups.users.add(queue, session);
    }
}

/// Removes a publisher or consumer of this session.
pub(crate) fn remove(broker: &mut dyn Broker, queue: QueueId) {
    let session = broker.id().number;
    if let Some(groups) = broker.services().and_then(ServiceStates::get_mut::<Groups>) {
        groups.users.remove(queue, session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_is_listed_until_its_last_publisher_or_consumer_ends() {
        let mut users = StreamUsers::default();
        for (queue, session) in [(1, 7), (1, 7), (1, 8), (2, 9)] {
            users.add(QueueId(queue), session);
        }
        let list = |users: &StreamUsers, queue| users.sessions(QueueId(queue)).collect::<Vec<_>>();
        assert_eq!(list(&users, 1), [7, 8]);
        users.remove(QueueId(1), 7);
        assert_eq!(list(&users, 1), [7, 8]);
        users.remove(QueueId(1), 7);
        users.remove(QueueId(1), 7);
        assert_eq!(list(&users, 1), [8]);
        assert_eq!(list(&users, 2), [9]);
    }
}
