//! Hash over all events of a run. Two runs are equal if their hashes are equal.

use env::Time;
use std::fmt;

/// Hashes all events with FNV-1a, so that the hash is the same on every machine.
#[derive(Clone, Debug)]
pub struct Trace {
    hash: u64,
    events: u64,
    /// Whether each event is printed.
    pub verbose: bool,
}

impl Trace {
    /// Creates an empty trace.
    pub fn new(verbose: bool) -> Trace {
        Trace {
            hash: 0xcbf2_9ce4_8422_2325,
            events: 0,
            verbose,
        }
    }

    /// Adds bytes to the hash.
    pub fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.hash = (self.hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// Adds a number to the hash.
    pub fn number(&mut self, number: u64) {
        self.hash = (self.hash ^ number)
            .wrapping_mul(0x0100_0000_01b3)
            .rotate_left(29);
    }

    /// Adds an event: its kind, the id of the node or client that it concerns, and its details.
    pub fn event(&mut self, now: Time, kind: &'static str, subject: u64, detail: &dyn fmt::Debug) {
        self.events += 1;
        self.number(now.0);
        self.bytes(kind.as_bytes());
        self.number(subject);
        // Writing to the hash cannot fail.
        let _ = fmt::write(self, format_args!("{detail:?}"));
        if self.verbose {
            println!(
                "{:>14.6} {kind:<10} {subject:>3} {detail:?}",
                now.0 as f64 / 1e9
            );
        }
    }

    /// The hash of all events until now.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Number of events until now.
    pub fn events(&self) -> u64 {
        self.events
    }
}

impl fmt::Write for Trace {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.bytes(text.as_bytes());
        Ok(())
    }
}
