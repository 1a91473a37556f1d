//! Tells now and then why a node that has started does not serve: it may wait for something that never comes.

use env::Time;
use std::time::Duration;

/// How often.
const EVERY: Duration = Duration::from_secs(30);

/// See the module.
#[derive(Debug)]
pub(crate) struct NotReadyLog {
    since: Time,
    due: Time,
}

impl NotReadyLog {
    /// The node has started.
    pub fn new(now: Time) -> NotReadyLog {
        NotReadyLog {
            since: now,
            due: now + EVERY,
        }
    }

    /// It does not serve yet, for this reason.
    pub fn note(&mut self, now: Time, reason: &str) {
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
            self.due = now + EVERY;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_waits_says_so_every_half_minute() {
        let start = Time(7);
        let mut log = NotReadyLog::new(start);
        let told = |s: u64, log: &mut NotReadyLog| log.is_due(start + Duration::from_secs(s));
        let times: Vec<u64> = (0..=100).filter(|s| told(*s, &mut log)).collect();
        assert_eq!(times, [30, 60, 90]);
    }
}
