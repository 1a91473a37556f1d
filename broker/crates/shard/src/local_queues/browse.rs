//! Listings of the messages of queues that are led or live here.

use super::LocalQueues;
use super::reading::commands;
use super::replica::QueueReplica;
use metadata::QueueId;
use queue::{BrowsePage, BrowseRequest};

impl LocalQueues {
    /// A page of the messages of a queue. `None`: the queue is not led here and does not live here. The error says why the
    /// messages cannot be listed.
    pub fn browse(
        &mut self,
        queue: QueueId,
        request: &BrowseRequest,
    ) -> Option<Result<BrowsePage, String>> {
        match self.queues.get_mut(&queue)? {
            QueueReplica::Classic(classic) => Some(classic.queue.browse(request)),
            QueueReplica::Quorum(quorum) if quorum.leads() => {
                // Damage is reported when the queue itself reads the message.
                let mut damage = None;
                let mut read = commands(&self.host, queue, &mut damage);
                Some(quorum.browse(request, &mut read))
            }
            QueueReplica::Stream(stream) if stream.leads() => Some(Err(
                "streams are not browsed: their messages stay when they are consumed, so read them with a consumer and \
                 x-stream-offset"
                    .into(),
            )),
            QueueReplica::Quorum(_) | QueueReplica::Stream(_) => None,
        }
    }
}
