//! The way of records from the threads that make them to the thread that writes them.

use crate::AuditRecord;
use env::{Clock, WallTime};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

/// Takes records of any thread. Cloning increments a reference count.
#[derive(Clone)]
pub struct AuditSink {
    outputs: Arc<[Output]>,
    clock: Arc<dyn Clock + Send + Sync>,
}

/// The way to one receiver.
#[derive(Debug)]
struct Output {
    sender: Sender<Message>,
    shared: Arc<Shared>,
}

impl fmt::Debug for AuditSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AuditSink").field(&self.outputs).finish()
    }
}

#[derive(Debug)]
struct Shared {
    /// Most bytes of records that wait.
    limit: usize,
    waiting: AtomicUsize,
    recorded: AtomicU64,
    lost: AtomicU64,
}

#[derive(Debug)]
enum Message {
    Record(WallTime, Box<AuditRecord>),
    Reopen,
    Close,
}

/// An item for the writer.
#[derive(Debug)]
pub enum Received {
    /// A record and its time.
    Record(WallTime, Box<AuditRecord>),
    /// Open the file again: it was moved.
    Reopen,
    /// Nothing came in time.
    Idle,
    /// No further records follow.
    Closed,
}

/// The end of the writer.
#[derive(Debug)]
pub struct AuditReceiver {
    receiver: Receiver<Message>,
    shared: Arc<Shared>,
}

/// A sink and its receivers. Each receiver gets every record; at most `limit` bytes of records wait for each. `clock`
/// gives the time of records.
pub fn channels(
    receivers: usize,
    limit: usize,
    clock: Arc<dyn Clock + Send + Sync>,
) -> (AuditSink, Vec<AuditReceiver>) {
    let (outputs, receivers): (Vec<_>, Vec<_>) = (0..receivers)
        .map(|_| {
            let (sender, receiver) = std::sync::mpsc::channel();
            let shared = Arc::new(Shared {
                limit,
                waiting: AtomicUsize::new(0),
                recorded: AtomicU64::new(0),
                lost: AtomicU64::new(0),
            });
            let output = Output {
                sender,
                shared: shared.clone(),
            };
            (output, AuditReceiver { receiver, shared })
        })
        .unzip();
    let outputs = outputs.into();
    (AuditSink { outputs, clock }, receivers)
}

impl AuditSink {
    /// Gives a record to the receivers. Never waits: a record that exceeds the limit is lost and counted.
    pub fn record(&self, mut record: AuditRecord) {
        record.cut();
        let at = self.clock.wall();
        for output in self.outputs.iter() {
            output.record(at, &record);
        }
    }

    /// Records since the start of the node, of all receivers.
    pub fn recorded(&self) -> u64 {
        let all = self.outputs.iter();
        all.map(|o| o.shared.recorded.load(Ordering::Relaxed)).sum()
    }

    /// Records that receivers have lost since the start of the node.
    pub fn lost(&self) -> u64 {
        let all = self.outputs.iter();
        all.map(|o| o.shared.lost.load(Ordering::Relaxed)).sum()
    }

    /// Asks the receivers to open their files again.
    pub fn reopen(&self) {
        self.send(|| Message::Reopen);
    }

    /// Asks the receivers to end after the records so far.
    pub fn close(&self) {
        self.send(|| Message::Close);
    }

    fn send(&self, message: impl Fn() -> Message) {
        for output in self.outputs.iter() {
            // Receivers end with the process.
            let _ = output.sender.send(message());
        }
    }
}

impl Output {
    fn record(&self, at: WallTime, record: &AuditRecord) {
        let size = record.size();
        let waiting = self.shared.waiting.fetch_add(size, Ordering::Relaxed);
        if waiting.saturating_add(size) > self.shared.limit {
            self.shared.waiting.fetch_sub(size, Ordering::Relaxed);
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.shared.recorded.fetch_add(1, Ordering::Relaxed);
        // Receivers end with the process.
        let _ = self
            .sender
            .send(Message::Record(at, Box::new(record.clone())));
    }
}

impl AuditReceiver {
    /// The next item. Waits for at most `timeout`.
    pub fn next(&self, timeout: Duration) -> Received {
        match self.receiver.recv_timeout(timeout) {
            Ok(Message::Record(at, record)) => {
                let size = record.size();
                self.shared.waiting.fetch_sub(size, Ordering::Relaxed);
                Received::Record(at, record)
            }
            Ok(Message::Reopen) => Received::Reopen,
            Ok(Message::Close) | Err(RecvTimeoutError::Disconnected) => Received::Closed,
            Err(RecvTimeoutError::Timeout) => Received::Idle,
        }
    }

    /// Counts records that could not be written as lost.
    pub fn add_lost(&self, count: u64) {
        self.shared.lost.fetch_add(count, Ordering::Relaxed);
    }

    /// Records that were lost since the start of the node.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Client, Operation, Outcome};

    fn record(name: &str) -> AuditRecord {
        AuditRecord {
            client: Client::default(),
            operation: Operation::Login,
            vhost: None,
            name: name.to_owned(),
            details: Vec::new(),
            outcome: Outcome::Ok,
        }
    }

    #[test]
    fn records_beyond_the_limit_are_counted_and_there_is_room_again_after_a_read() {
        let size = record("aaaa").size();
        let clock = Arc::new(env::real::RealClock::new());
        let (sink, mut receivers) = channels(1, 2 * size, clock);
        let receiver = receivers.remove(0);
        for name in ["aaaa", "bbbb", "cccc"] {
            sink.record(record(name));
        }
        assert_eq!((sink.recorded(), sink.lost()), (2, 1));
        let next = || match receiver.next(Duration::ZERO) {
            Received::Record(_, record) => record.name,
            other => format!("{other:?}"),
        };
        assert_eq!(next(), "aaaa");
        sink.record(record("dddd"));
        assert_eq!(
            (next(), next(), next()),
            ("bbbb".into(), "dddd".into(), "Idle".into())
        );
        assert_eq!((sink.recorded(), receiver.lost()), (3, 1));
        sink.close();
        assert_eq!(next(), "Closed");
    }
}
