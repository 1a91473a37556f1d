//! Threads that verify passwords: hashing is deliberately expensive and would stall a shard.

use auth_backends::{IdentityRequest, IdentityService};
use reactor::{Mailbox, ShardMessage};
use shard::{Check, StartIdentification};
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of threads. They use at most half of the processors, so that logins do not starve
/// other work.
const MAX_THREADS: u16 = 4;

struct PasswordCheckTask {
    check: Check,
    /// The shard that receives the result.
    shard: Mailbox,
}

/// A handle of the pool, which ends when the last handle is dropped. The shards bound the queue
/// length (`shard::logins`).
#[derive(Clone)]
pub(crate) struct PasswordCheckPool(Sender<PasswordCheckTask>);

impl PasswordCheckPool {
    pub(crate) fn start(cpus: u16) -> io::Result<PasswordCheckPool> {
        let (sender, inbox) = channel();
        let inbox = Arc::new(Mutex::new(inbox));
        for n in 0..(cpus / 2).clamp(1, MAX_THREADS) {
            let inbox = inbox.clone();
            // The threads end when the last shard is gone; nothing waits for them.
            std::thread::Builder::new()
                .name(format!("login-{n}"))
                .spawn(move || run_worker(&inbox))?;
        }
        Ok(PasswordCheckPool(sender))
    }

    /// Returns the function with which a shard starts a check.
    pub(crate) fn for_shard(&self, shard: Mailbox) -> shard::StartCheck {
        let pool = self.clone();
        Box::new(move |check| {
            let shard = shard.clone();
            // Sending fails only if the pool is gone, which means that the process is ending.
            let _ = pool.0.send(PasswordCheckTask { check, shard });
        })
    }
}

/// Returns the function with which a shard has users identified by external backends.
pub(crate) fn identification_for_shard(
    service: Arc<IdentityService>,
    shard: Mailbox,
) -> StartIdentification {
    Box::new(move |wanted| {
        let (id, shard) = (wanted.id, shard.clone());
        service.identify(IdentityRequest {
            backend: wanted.backend,
            user: wanted.user,
            password: wanted.password,
            reply: Box::new(move |result| {
                shard.post_waiting(ShardMessage::Identified { id, result });
            }),
        });
    })
}

fn run_worker(inbox: &Mutex<Receiver<PasswordCheckTask>>) {
    loop {
        // Held while receiving: the other threads wait for the lock instead.
        let next = inbox.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(PasswordCheckTask { check, shard }) = next else {
            return;
        };
        let right = auth::verify(&check.hash, &check.password);
        shard.post_waiting(ShardMessage::Checked {
            id: check.id,
            right,
        });
    }
}
