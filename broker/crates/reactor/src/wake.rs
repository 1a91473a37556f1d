//! Waking another thread, at most once per turn of its loop.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;
use std::time::Duration;

/// Wakes one thread. Calls between two turns of that thread cost one system call together.
#[derive(Debug)]
pub struct Wake {
    pending: AtomicBool,
    target: Target,
}

#[derive(Debug)]
enum Target {
    Poll(mio::Waker),
    Thread(OnceLock<Thread>),
}

impl Wake {
    /// For a thread that waits in `mio::Poll`; `token` shows among its events.
    pub fn for_poll(registry: &mio::Registry, token: mio::Token) -> io::Result<Wake> {
        Ok(Wake {
            pending: AtomicBool::new(false),
            target: Target::Poll(mio::Waker::new(registry, token)?),
        })
    }

    /// For a thread that waits in [`Wake::wait`].
    pub fn for_thread() -> Wake {
        Wake {
            pending: AtomicBool::new(false),
            target: Target::Thread(OnceLock::new()),
        }
    }

    /// Call after the item is in the ring.
    pub fn wake(&self) {
        // Both sides change `pending` by read-modify-write: either this swap comes after the sleeper's (and wakes it
        // again), or the sleeper's acquires what was pushed before this one.
        if self.pending.swap(true, Ordering::AcqRel) {
            return;
        }
        match &self.target {
            // Fails only when the descriptor is gone, which is when the thread is.
            Target::Poll(waker) => drop(waker.wake()),
            Target::Thread(thread) => {
                if let Some(thread) = thread.get() {
                    thread.unpark();
                }
            }
        }
    }

    /// The woken thread calls this before it looks into its rings.
    pub fn begin_turn(&self) {
        self.pending.swap(false, Ordering::AcqRel);
    }

    /// Waits until woken or `timeout` has passed, then begins a turn. Only for [`Wake::for_thread`], only from its thread.
    pub fn wait(&self, timeout: Duration) {
        if let Target::Thread(thread) = &self.target {
            thread.get_or_init(std::thread::current);
            if !self.pending.load(Ordering::Acquire) {
                std::thread::park_timeout(timeout);
            }
        }
        self.begin_turn();
    }
}
