//! Logs periodically why a started node does not serve clients yet, because the reason may be
//! permanent.

use env::Time;
use std::time::Duration;

/// Interval between log lines.
const INTERVAL: Duration = Duration::from_secs(30);

/// Rate limiter of the log line.
#[derive(Debug)]
pub(crate) struct NotReadyLog {
    since: Time,
    due: Time,
}

impl NotReadyLog {
    /// Created when the node starts.
    pub(crate) fn new(now: Time) -> NotReadyLog {
        NotReadyLog {
            since: now,
            due: now + INTERVAL,
        }
    }

    /// Called while the node does not serve, with the reason.
    pub(crate) fn note(&mut self, now: Time, reason: &str) {
        if !self.is_due(now) {
            return;
        }
        tracing::warn!(
            event = "node.not_ready",
            seconds = now.since(self.since).as_secs(),
            reason,
            "clients are not served yet. If this does not change although most of the other nodes are up, this node may \
             have lost records of its log: move its data directory away and start it again, and it joins anew"
        );
    }

    fn is_due(&mut self, now: Time) -> bool {
        let due = now >= self.due;
        if due {
            self.due = now + INTERVAL;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_is_logged_every_half_minute() {
        let start = Time(7);
        let mut log = NotReadyLog::new(start);
        let is_logged = |s: u64, log: &mut NotReadyLog| log.is_due(start + Duration::from_secs(s));
        let times: Vec<u64> = (0..=100).filter(|s| is_logged(*s, &mut log)).collect();
        assert_eq!(times, [30, 60, 90]);
    }
}
