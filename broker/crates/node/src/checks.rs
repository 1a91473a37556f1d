//! Threads that verify passwords, because hashing is deliberately expensive and would stall a shard.

use reactor::{Inbound, Mailbox};
use shard::Check;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

/// Threads at the most. They have no more than half of the processors, so that logins do not stop the others' work.
const MAX_THREADS: u16 = 4;

struct Work {
    check: Check,
    /// Where the answer goes.
    shard: Mailbox,
}

/// A way in. The pool ends when the last one is gone. How much waits is bounded by the shards that ask
/// (`shard::logins`).
#[derive(Clone)]
pub(crate) struct CheckPool(Sender<Work>);

impl CheckPool {
    pub fn start(cpus: u16) -> io::Result<CheckPool> {
        let (sender, inbox) = channel();
        let inbox = Arc::new(Mutex::new(inbox));
        for n in 0..(cpus / 2).clamp(1, MAX_THREADS) {
            let inbox = inbox.clone();
            // They end when the last shard is gone; nobody needs to wait for that.
            std::thread::Builder::new()
                .name(format!("login-{n}"))
                .spawn(move || work(&inbox))?;
        }
        Ok(CheckPool(sender))
    }

    /// What a shard begins its checks with.
    pub fn for_shard(&self, shard: Mailbox) -> shard::StartCheck {
        let pool = self.clone();
        Box::new(move |check| {
            let shard = shard.clone();
            // A pool that is gone: the process ends.
            let _ = pool.0.send(Work { check, shard });
        })
    }
}

fn work(inbox: &Mutex<Receiver<Work>>) {
    loop {
        // Held while waiting: the others wait for the lock instead.
        let next = inbox.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Work { check, shard }) = next else {
            return;
        };
        let right = auth::verify(&check.hash, &check.password);
        shard.post_waiting(Inbound::Checked {
            id: check.id,
            right,
        });
    }
}
