//! Segments in the object store: uploads, and reads of older segments.

use super::{Purpose, Role, StreamReplica};
use crate::jobs::{ReadResult, Work};
use env::Time;
use queue::cursor::{CursorRequest, CursorStart};
use std::time::Duration;
use stream_log::Start;
use stream_tier::{RemoteRead, TierJobResult};

/// How often failed reads of the store are logged, at most.
const LOG_REMOTE: Duration = Duration::from_secs(60);

impl StreamReplica {
    /// The tier works while the log is open.
    pub(super) fn tier_wake_at(&self) -> Option<Time> {
        self.log.as_ref()?;
        self.tier.as_ref()?.wake_at()
    }

    /// Starts the next job of the tier.
    pub(super) fn take_tier_job(&mut self) {
        let (Some(tier), Some(log)) = (&mut self.tier, &mut self.log) else {
            return;
        };
        self.is_tier_due = false;
        let epoch = match self.role {
            Role::Open { epoch } if !self.is_deleted => Some(epoch),
            _ => None,
        };
        tier.set_leading(epoch, self.at.now);
        let retention = self.config.log.retention;
        if let Some(job) = tier.take_job(self.at.now, self.at.wall, retention, log) {
            self.start_job(Purpose::Tier, Work::Tier(Box::new(job)));
        }
    }

    pub(super) fn tier_done(&mut self, result: TierJobResult) {
        let Some(tier) = &mut self.tier else { return };
        tier.done(self.at.now, result);
        let label = &self.config.label;
        let faults = tier.take_faults();
        let faults = faults.into_iter().map(|fault| format!("{label}: {fault}"));
        self.faults.extend(faults);
        self.is_tier_due = true;
        if tier.is_loaded() {
            for (session, request) in std::mem::take(&mut self.parked) {
                self.cursor_request(session, request);
            }
        }
        self.retain();
    }

    /// True if the position of a cursor depends on segments in the store, which are not known yet.
    pub(super) fn waits_for_store(&self, request: &CursorRequest) -> bool {
        let (Some(tier), Some(log)) = (&self.tier, &self.log) else {
            return false;
        };
        let CursorRequest::Attach { spec, .. } = request else {
            return false;
        };
        let local = log.first_offset();
        let is_old = match spec.start {
            CursorStart::First | CursorStart::Timestamp(_) => local > 0,
            CursorStart::Offset(offset) => offset < local,
            CursorStart::Next | CursorStart::Last => false,
        };
        is_old && !tier.is_loaded()
    }

    /// A read of the store that finds a position; None if the log is to be read.
    pub(super) fn remote_start(&self, start: Start) -> Option<Box<RemoteRead>> {
        let (tier, log) = (self.tier.as_ref()?, self.log.as_ref()?);
        match start {
            Start::Timestamp(time) => tier.read_timestamp(time, log.first_offset()).map(Box::new),
            _ => None,
        }
    }

    /// Logs the first failure of a read, and has a wrong segment uploaded again.
    pub(super) fn note_remote_read(&mut self, result: &ReadResult) {
        let (Some(tier), Some(error)) = (&mut self.tier, &result.error) else {
            return;
        };
        let is_new = result
            .wrong_segment
            .is_some_and(|first| tier.note_wrong(first));
        self.is_tier_due |= is_new;
        let is_remote = matches!(error, stream_log::LogError::Remote { .. });
        if is_new || (is_remote && self.at.now >= self.log_remote_at) {
            self.log_remote_at = self.at.now + LOG_REMOTE;
            self.faults.push(format!("{}: {error}", self.config.label));
        }
    }

    /// Fetches the next part while clients take this one.
    pub(super) fn read_ahead(&mut self, result: &ReadResult) {
        let (Some(tier), Some(log)) = (&self.tier, &self.log) else {
            return;
        };
        let is_running = self.jobs.values().any(|p| *p == Purpose::ReadAhead);
        let Some(offset) = result.read_ahead.filter(|_| !is_running) else {
            return;
        };
        if let Some(mut read) = tier.read_offset(offset, log.first_offset()) {
            read.is_read_ahead = true;
            self.start_job(Purpose::ReadAhead, Work::ReadRemote(Box::new(read)));
        }
    }

    /// Deletes the objects of the stream, which was deleted.
    pub(super) fn purge_store(&mut self) {
        self.is_tier_due = false;
        self.tier = None;
        if let Some(config) = &self.config.tier {
            let (stream, remote) = (self.config.stream, config.remote.clone());
            self.start_job(Purpose::Purge, Work::Purge { stream, remote });
        }
    }
}
