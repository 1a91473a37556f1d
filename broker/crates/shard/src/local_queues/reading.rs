//! Messages of quorum queues are read from their logs, and what becomes of one that is damaged there.

use super::{GroupOutput, LocalQueues};
use consensus::{GroupId, Host, RaftHost, ReadError};
use metadata::QueueId;
use queue::quorum::LogRead;

/// A queue whose log is damaged, and what is wrong with which file.
pub(super) struct DamagedLog {
    queue: QueueId,
    what: String,
}

/// Reads the commands of a queue's entries. The first that is damaged on the disk is noted.
pub(super) fn commands<'a>(
    host: &'a Host,
    queue: QueueId,
    damage: &'a mut Option<DamagedLog>,
) -> impl FnMut(u64) -> LogRead + 'a {
    move |index| match host.read(GroupId(queue.0), index) {
        Ok(command) => LogRead::Command(command),
        Err(ReadError::Gone) => LogRead::Lost,
        // Told by the disk itself (`storage.files_short`).
        Err(ReadError::Shortage { .. }) => LogRead::Shortage,
        Err(error @ ReadError::Corrupt { .. }) => {
            damage.get_or_insert_with(|| DamagedLog {
                queue,
                what: error.to_string(),
            });
            LogRead::Lost
        }
    }
}

impl LocalQueues {
    /// Files of queues were found to be damaged or gone. A node must not go on leading a queue with messages that it cannot read
    /// while others have them: it ends, and the others go on. Where there are no others the queue goes on without
    /// those messages; they stay in it, and each time that one is to be delivered the file is named again.
    #[inline]
    pub(super) fn tell_damage(&mut self, shard: &mut Vec<GroupOutput>) {
        if self.damage.is_some() || self.said.has_gone() {
            self.push_damage(shard);
        }
    }

    #[cold]
    fn push_damage(&mut self, shard: &mut Vec<GroupOutput>) {
        if let Some(gone) = self.said.take_gone() {
            shard.push(GroupOutput::Fatal(gone));
        }
        let Some(DamagedLog { queue, what }) = self.damage.take() else {
            return;
        };
        let status = self.host.status(GroupId(queue.0));
        if status.is_some_and(|s| s.membership.voters.len() > 1) {
            shard.push(GroupOutput::Fatal(format!("queue {}: {what}", queue.0)));
        } else {
            tracing::error!(event = "queue_damaged", queue = queue.0, error = what);
        }
    }
}
