//! The audit log: a thread that writes audit records as JSON lines to a file or to standard output.

use crate::config::{AuditConfig, AuditTarget};
use crate::control_door::ControlGateway;
use crate::event_exchange::EventExchange;
use audit::{AuditReceiver, AuditRecord, AuditSink, Client, Operation, Outcome, Received};
use env::{Clock, WallTime};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes of lines that are written with one system call.
const BATCH: usize = 64 << 10;
/// Time after which the writer looks for lost records.
const IDLE: Duration = Duration::from_secs(1);
/// Users other than the owner and the group do not read the log.
const MODE: u32 = 0o640;

/// The running audit log of a node.
pub(crate) struct AuditLog {
    sink: AuditSink,
    thread: Option<JoinHandle<()>>,
}

impl AuditLog {
    /// Opens the log and starts its threads. None: the configuration has neither an audit log nor an event exchange.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened.
    pub(crate) fn start(
        config: &AuditConfig,
        node: &str,
        clock: Arc<dyn Clock + Send + Sync>,
        door: &Arc<ControlGateway>,
    ) -> io::Result<Option<AuditLog>> {
        let output = match &config.target {
            AuditTarget::None => None,
            AuditTarget::Stdout => Some(Output::Stdout),
            AuditTarget::File(path) => Some(Output::File(open(path)?)),
        };
        let receivers = usize::from(output.is_some()) + usize::from(config.events.is_some());
        let (sink, receivers) = audit::channels(receivers, config.buffer, clock.clone());
        let mut receivers = receivers.into_iter();
        if let Some(vhost) = &config.events
            && let Some(receiver) = receivers.next_back()
        {
            EventExchange::start(receiver, door.clone(), vhost)?;
        }
        let Some((output, receiver)) = output.zip(receivers.next()) else {
            let log = AuditLog { sink, thread: None };
            return Ok(config.events.is_some().then_some(log));
        };
        let writer = AuditWriter {
            receiver,
            target: config.target.clone(),
            output,
            node: node.to_owned(),
            clock,
            batch: Vec::new(),
            lines: 0,
            reported: 0,
            is_torn: false,
            is_failing: false,
        };
        let thread = std::thread::Builder::new().name("audit".to_owned());
        let thread = thread.spawn(move || writer.run())?;
        Ok(Some(AuditLog {
            sink,
            thread: Some(thread),
        }))
    }

    pub(crate) fn sink(&self) -> AuditSink {
        self.sink.clone()
    }

    /// Opens the file again, after it was moved.
    pub(crate) fn reopen(&self) {
        self.sink.reopen();
    }
}

/// Writes the records so far and ends the thread.
impl Drop for AuditLog {
    fn drop(&mut self) {
        self.sink.close();
        if let Some(thread) = self.thread.take() {
            // A panic would have aborted the process.
            let _ = thread.join();
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(MODE).open(path)
}

enum Output {
    Stdout,
    File(File),
}

impl Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Output::Stdout => {
                let mut out = io::stdout().lock();
                out.write_all(bytes)?;
                out.flush()
            }
            Output::File(file) => file.write_all(bytes),
        }
    }
}

struct AuditWriter {
    receiver: AuditReceiver,
    target: AuditTarget,
    output: Output,
    node: String,
    clock: Arc<dyn Clock + Send + Sync>,
    batch: Vec<u8>,
    /// Lines in `batch`.
    lines: u64,
    /// Lost records that a line of the log has named.
    reported: u64,
    /// The output may end with a part of a line.
    is_torn: bool,
    is_failing: bool,
}

impl AuditWriter {
    fn run(mut self) {
        loop {
            let wait = match self.batch.is_empty() {
                true => IDLE,
                false => Duration::ZERO,
            };
            match self.receiver.next(wait) {
                Received::Record(at, record) => self.add(&record, at),
                Received::Idle => {
                    self.flush();
                    self.report_lost();
                }
                Received::Reopen => {
                    self.flush();
                    self.reopen();
                }
                Received::Closed => {
                    self.report_lost();
                    return self.flush();
                }
            }
            if self.batch.len() >= BATCH {
                self.flush();
            }
        }
    }

    fn add(&mut self, record: &AuditRecord, at: WallTime) {
        let line = record.json(&self.node, at).to_string();
        self.batch.extend_from_slice(line.as_bytes());
        self.batch.push(b'\n');
        self.lines += 1;
    }

    /// Adds a line with the number of records that were lost since the last such line.
    fn report_lost(&mut self) {
        let lost = self.receiver.lost();
        if lost == self.reported || self.is_failing && !self.batch.is_empty() {
            return;
        }
        let count = lost - self.reported;
        self.reported = lost;
        tracing::warn!(event = "audit.records_lost", count);
        let record = AuditRecord {
            client: Client {
                protocol: "cluster",
                ..Client::default()
            },
            operation: Operation::AuditLost,
            vhost: None,
            name: String::new(),
            details: vec![("count", count.to_string())],
            outcome: Outcome::Failed("the buffer was full or the log could not be written".into()),
        };
        let now = self.clock.wall();
        self.add(&record, now);
    }

    fn flush(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        if self.is_torn {
            self.batch.insert(0, b'\n');
        }
        match self.output.write(&self.batch) {
            Ok(()) => (self.is_torn, self.is_failing) = (false, false),
            Err(error) => {
                if !self.is_failing {
                    tracing::error!(event = "audit.write_failed", %error, "records are lost until the audit log can be written");
                }
                (self.is_torn, self.is_failing) = (true, true);
                self.receiver.add_lost(self.lines);
            }
        }
        self.batch.clear();
        self.lines = 0;
    }

    fn reopen(&mut self) {
        let AuditTarget::File(path) = &self.target else {
            return;
        };
        match open(path) {
            Ok(file) => {
                self.output = Output::File(file);
                self.is_torn = false;
                tracing::info!(event = "audit.reopened", path = %path.display());
            }
            Err(error) => {
                tracing::error!(event = "audit.reopen_failed", path = %path.display(), %error, "records go to the old file");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use env::real::RealClock;
    use serde_json::Value as Json;
    use std::path::PathBuf;

    fn record(name: &str) -> AuditRecord {
        AuditRecord {
            client: Client::default(),
            operation: Operation::QueuePurge,
            vhost: None,
            name: name.to_owned(),
            details: Vec::new(),
            outcome: Outcome::Ok,
        }
    }

    struct Fixture {
        dir: PathBuf,
        config: AuditConfig,
    }

    impl Fixture {
        fn new(test: &str, buffer: usize) -> Fixture {
            let name = format!("posthorn-audit-{test}-{}", std::process::id());
            let dir = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&dir).unwrap();
            let config = AuditConfig {
                target: AuditTarget::File(dir.join("audit.log")),
                buffer,
                events: None,
            };
            Fixture { dir, config }
        }

        fn start(&self) -> AuditLog {
            let clock = Arc::new(RealClock::new());
            let door = Arc::new(ControlGateway::new(Arc::default()));
            let log = AuditLog::start(&self.config, "n", clock, &door);
            log.unwrap().unwrap()
        }

        fn lines(&self, name: &str) -> Vec<Json> {
            let text = std::fs::read_to_string(self.dir.join(name)).unwrap();
            let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
            lines.collect()
        }
    }

    impl Drop for Fixture {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }

    #[test]
    fn moved_file_is_replaced_and_an_existing_one_is_kept() {
        let fixture = Fixture::new("rotation", 1 << 20);
        let log = fixture.start();
        log.sink().record(record("a"));
        drop(log);
        let log = fixture.start();
        log.sink().record(record("b"));
        std::fs::rename(fixture.dir.join("audit.log"), fixture.dir.join("audit.1")).unwrap();
        log.reopen();
        log.sink().record(record("c"));
        drop(log);
        let names = |file| -> Vec<Json> {
            let lines = fixture.lines(file);
            lines.iter().map(|line| line["name"].clone()).collect()
        };
        assert_eq!(
            (names("audit.1"), names("audit.log")),
            (vec!["a".into(), "b".into()], vec!["c".into()])
        );
    }

    #[test]
    fn lost_records_are_logged() {
        let fixture = Fixture::new("lost", 1);
        let log = fixture.start();
        for name in ["a", "b"] {
            log.sink().record(record(name));
        }
        assert_eq!((log.sink().recorded(), log.sink().lost()), (0, 2));
        drop(log);
        let lines = fixture.lines("audit.log");
        let lost: u64 = lines
            .iter()
            .filter(|line| line["operation"] == "audit.lost")
            .map(|line| {
                line["details"]["count"]
                    .as_str()
                    .unwrap()
                    .parse::<u64>()
                    .unwrap()
            })
            .sum();
        assert_eq!(lost, 2, "{lines:?}");
    }
}
