//! What happened, as one number: two runs under a seed are the same run when it is the same.

use env::Time;
use std::fmt;

/// Takes in everything that happens. FNV-1a, so that the number means the same on every machine.
#[derive(Clone, Debug)]
pub struct Trace {
    hash: u64,
    events: u64,
    /// Prints each event.
    pub loud: bool,
}

impl Trace {
    pub fn new(loud: bool) -> Trace {
        Trace {
            hash: 0xcbf2_9ce4_8422_2325,
            events: 0,
            loud,
        }
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.hash = (self.hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    pub fn number(&mut self, number: u64) {
        self.hash = (self.hash ^ number)
            .wrapping_mul(0x0100_0000_01b3)
            .rotate_left(29);
    }

    /// An event: its kind, who it concerns, and what else tells it from others.
    pub fn event(&mut self, now: Time, kind: &'static str, who: u64, what: &dyn fmt::Debug) {
        self.events += 1;
        self.number(now.0);
        self.bytes(kind.as_bytes());
        self.number(who);
        // Writing into the hash does not fail.
        let _ = fmt::write(self, format_args!("{what:?}"));
        if self.loud {
            println!("{:>14.6} {kind:<10} {who:>3} {what:?}", now.0 as f64 / 1e9);
        }
    }

    /// The number that stands for all of it.
    pub fn hash(&self) -> u64 {
        self.hash
    }

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
