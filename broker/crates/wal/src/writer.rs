//! Group commit: all queued batches are written and made durable by one sync.

use crate::{CompletedFile, Record, Wal, WalError};
use env::planted::{self, Bug};
use std::collections::VecDeque;

/// Upper bound of the bytes written by one step; a larger batch is written alone.
const STEP_BYTES: u64 = 8 << 20;

/// A log with a queue in front. It has no thread of its own: the driver pushes batches and calls
/// [`Writer::step`].
pub struct Writer<T> {
    wal: Wal,
    queue: VecDeque<QueuedBatch<T>>,
    queued_bytes: u64,
    /// The error of the last step that could not write everything.
    full_error: String,
}

struct QueuedBatch<T> {
    token: T,
    records: Vec<Record>,
    bytes: u64,
}

/// The effects of a step besides making batches durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriterProgress {
    /// The file that was completed before the batches of this step.
    pub rolled: Option<CompletedFile>,
    /// Space, descriptors or memory are short, and batches stay queued. Raise the alarm and step again later.
    pub full: bool,
    /// Bytes of the batches made durable.
    pub bytes: u64,
}

impl<T> Writer<T> {
    /// A writer with an empty queue.
    pub fn new(wal: Wal) -> Writer<T> {
        Writer {
            wal,
            queue: VecDeque::new(),
            queued_bytes: 0,
            full_error: String::new(),
        }
    }

    /// Queues a batch; its token is returned by [`Writer::step`] once the batch is durable.
    pub fn push(&mut self, token: T, records: Vec<Record>) {
        let bytes = records.iter().map(crate::format::encoded_len).sum();
        self.queued_bytes += bytes;
        self.queue.push_back(QueuedBatch {
            token,
            records,
            bytes,
        });
    }

    /// True if no batch is queued.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Bytes in the queue, for flow control.
    pub fn queued_bytes(&self) -> u64 {
        self.queued_bytes
    }

    /// The error behind the last [`WriterProgress::full`].
    pub fn full_error(&self) -> &str {
        &self.full_error
    }

    /// The log, for calls between steps.
    pub fn wal(&mut self) -> &mut Wal {
        &mut self.wal
    }

    /// Writes batches from the front of the queue, syncs once and appends their tokens to `durable`, in
    /// order. Errors are fatal to the node.
    pub fn step(&mut self, durable: &mut Vec<T>) -> Result<WriterProgress, WalError> {
        let mut count = self.batches_per_step();
        let mut progress = WriterProgress::default();
        while count > 0 {
            let batches = self.queue.iter().take(count);
            match self.wal.append_all(batches.flat_map(|b| b.records.iter())) {
                Ok(rolled) => {
                    progress.rolled = rolled;
                    break;
                }
                Err(error) if error.is_passing() => {
                    self.full_error = error.to_string();
                    // A smaller part may still fit.
                    progress.full = true;
                    count /= 2;
                }
                Err(error) => return Err(error),
            }
        }
        if count > 0 && !planted::is(Bug::ConfirmBeforeFsync) {
            self.wal.sync()?;
        }
        for batch in self.queue.drain(..count) {
            debug_assert!(
                self.queued_bytes >= batch.bytes,
                "a batch of {} bytes was not counted",
                batch.bytes
            );
            self.queued_bytes -= batch.bytes;
            progress.bytes += batch.bytes;
            durable.push(batch.token);
        }
        Ok(progress)
    }

    fn batches_per_step(&self) -> usize {
        let mut bytes = 0;
        let over = self.queue.iter().position(|batch| {
            bytes += batch.bytes;
            bytes > STEP_BYTES
        });
        over.map_or(self.queue.len(), |at| at.max(1))
    }

    /// Shuts down: queued batches are dropped, durable records are sealed.
    pub fn close(self) -> Result<(), WalError> {
        self.wal.close()
    }
}
