//! Wake-ups of another thread, at most one per turn of its loop.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;
use std::time::Duration;

/// Wakes one thread. All calls between two turns of that thread cost one system call together.
#[derive(Debug)]
pub struct ThreadWaker {
    pending: AtomicBool,
    target: WakeTarget,
}

#[derive(Debug)]
enum WakeTarget {
    Poll(mio::Waker),
    Thread(OnceLock<Thread>),
}

impl ThreadWaker {
    /// For a thread that waits in `mio::Poll`. `token` appears among its events.
    pub fn for_poll(registry: &mio::Registry, token: mio::Token) -> io::Result<ThreadWaker> {
        Ok(ThreadWaker {
            pending: AtomicBool::new(false),
            target: WakeTarget::Poll(mio::Waker::new(registry, token)?),
        })
    }

    /// For a thread that waits in [`ThreadWaker::wait`].
    pub fn for_thread() -> ThreadWaker {
        ThreadWaker {
            pending: AtomicBool::new(false),
            target: WakeTarget::Thread(OnceLock::new()),
        }
    }

    /// Wakes the thread. Call it after the item is in the ring.
    pub fn wake(&self) {
        // Both sides change `pending` by read-modify-write. Either this swap follows the receiver's
        // and wakes it again, or the receiver's swap acquires what was pushed before this one.
        if self.pending.swap(true, Ordering::AcqRel) {
            return;
        }
        match &self.target {
            // Fails only if the descriptor is closed, and then the thread has ended.
            WakeTarget::Poll(waker) => drop(waker.wake()),
            WakeTarget::Thread(thread) => {
                if let Some(thread) = thread.get() {
                    thread.unpark();
                }
            }
        }
    }

    /// Begins a turn. The woken thread calls this before it reads its rings.
    pub fn begin_turn(&self) {
        self.pending.swap(false, Ordering::AcqRel);
    }

    /// Waits until woken or until `timeout` has passed, then begins a turn. Only for
    /// [`ThreadWaker::for_thread`], and only from that thread.
    pub fn wait(&self, timeout: Duration) {
        if let WakeTarget::Thread(thread) = &self.target {
            thread.get_or_init(std::thread::current);
            if !self.pending.load(Ordering::Acquire) {
                std::thread::park_timeout(timeout);
            }
        }
        self.begin_turn();
    }
}
