//! Entry point of the control plane, available before shard 0 exists.

use crate::links::LinkStatus;
use control::{ControlRequest, Readiness};
use reactor::{Mailbox, ShardMessage};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Forwards requests to shard 0. While the node starts or stops, it answers readiness itself and
/// drops other requests.
pub struct ControlGateway {
    shard: OnceLock<Mailbox>,
    links: Arc<LinkStatus>,
    stopping: AtomicBool,
}

impl ControlGateway {
    /// A gateway that is closed until the shard is known.
    pub fn new(links: Arc<LinkStatus>) -> ControlGateway {
        ControlGateway {
            shard: OnceLock::new(),
            links,
            stopping: AtomicBool::new(false),
        }
    }

    /// Called when the shards run.
    pub fn open(&self, shard: Mailbox) {
        // Called once; a second call would pass the same shard.
        let _ = self.shard.set(shard);
    }

    /// Refuses new requests: the node stops.
    pub fn stopping(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Never blocks. A request that cannot be forwarded is dropped, which its sender notices.
    pub fn ask(&self, request: ControlRequest) {
        let not_ready_reason = if self.stopping.load(Ordering::Acquire) {
            Some("stopping".to_owned())
        } else if self.shard.get().is_none() {
            let waiting = self.links.waiting();
            Some(waiting.unwrap_or_else(|| "recovering".to_owned()))
        } else {
            None
        };
        match (request, not_ready_reason) {
            (ControlRequest::Readiness { reply }, Some(not_ready_reason)) => {
                reply(Readiness::NotReady(not_ready_reason))
            }
            (request, _) => {
                if let Some(shard) = self.shard.get()
                    && shard.post(ShardMessage::Control(request)).is_err()
                {
                    tracing::warn!(event = "control.overloaded");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reactor::ThreadWaker;
    use std::sync::mpsc;

    fn readiness(door: &ControlGateway) -> Option<Readiness> {
        let (tx, rx) = mpsc::channel();
        let reply = Box::new(move |r| drop(tx.send(r)));
        door.ask(ControlRequest::Readiness { reply });
        rx.try_recv().ok()
    }

    #[test]
    fn readiness_is_answered_while_starting_and_stopping() {
        let door = ControlGateway::new(Arc::default());
        assert_eq!(
            readiness(&door),
            Some(Readiness::NotReady("recovering".into()))
        );
        let (mailbox, inlet) = reactor::mailbox(Arc::new(ThreadWaker::for_thread()));
        door.open(mailbox);
        assert_eq!(readiness(&door), None);
        assert!(matches!(
            inlet.drain().as_slice(),
            [ShardMessage::Control(_)]
        ));
        door.stopping();
        assert_eq!(
            readiness(&door),
            Some(Readiness::NotReady("stopping".into()))
        );
    }
}
