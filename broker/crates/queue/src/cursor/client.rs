//! The session's side of one cursor, sans-io.

use super::{CursorEvent, CursorRequest, CursorSpec, CursorStart, MessageBatch};
use crate::ConsumerId;
use env::NodeId;
use env::planted::{self, Bug};

/// What the session learns.
#[derive(Clone, Debug, PartialEq)]
pub enum CursorNotice {
    /// The cursor has started at this offset. Once per cursor.
    Attached {
        /// The offset of the next message.
        next: u64,
    },
    /// The next messages. Offsets ascend over all batches, and no message comes twice.
    Batch(MessageBatch),
    /// The cursor has ended.
    Refused {
        /// The reason, for the client.
        text: String,
    },
}

/// A request and the replica that it goes to.
#[derive(Clone, Debug, PartialEq)]
pub struct CursorSend {
    /// The node of the replica.
    pub to: NodeId,
    /// The request.
    pub request: CursorRequest,
}

/// Follows one cursor over lost messages and lost replicas.
#[derive(Debug)]
pub struct CursorClient {
    id: ConsumerId,
    spec: CursorSpec,
    /// Nodes with a replica, the preferred one first. Tried in turn.
    replicas: Vec<NodeId>,
    /// Index of the replica that serves the cursor.
    at: usize,
    attachment: u32,
    /// The offset that comes next, once the cursor has started.
    next: Option<u64>,
    /// Batches that the session may still receive.
    credit: u64,
    /// Batches received since the attachment.
    received: u64,
    is_attached: bool,
}

impl CursorClient {
    /// A cursor that is served by one of `replicas`, the preferred one first.
    ///
    /// # Panics
    ///
    /// If there is no replica.
    pub fn new(
        id: ConsumerId,
        spec: CursorSpec,
        replicas: Vec<NodeId>,
        credit: u64,
    ) -> CursorClient {
        assert!(!replicas.is_empty(), "a queue has a replica");
        CursorClient {
            id,
            spec,
            replicas,
            at: 0,
            attachment: 0,
            next: None,
            credit,
            received: 0,
            is_attached: false,
        }
    }

    /// Attaches the cursor. Call once at first, and again whenever [`CursorClient::is_attached`] is false and a retry
    /// is due: the request or its answer may be lost.
    pub fn attach(&mut self) -> CursorSend {
        self.attachment = self.attachment.wrapping_add(1);
        self.received = 0;
        self.is_attached = false;
        if planted::is(Bug::StreamReattachSkips) {
            self.next = self.next.map(|next| next + 1);
        }
        let start = self.next.map_or(self.spec.start, CursorStart::Offset);
        self.send(CursorRequest::Attach {
            cursor: self.id,
            attachment: self.attachment,
            spec: CursorSpec {
                start,
                ..self.spec.clone()
            },
            total: self.credit,
        })
    }

    /// Returns true if a replica serves the cursor, as far as this side knows.
    pub fn is_attached(&self) -> bool {
        self.is_attached
    }

    /// Adds credit for `batches` more batches.
    pub fn add_credit(&mut self, batches: u64) -> CursorSend {
        self.credit = self.credit.saturating_add(batches);
        self.send_credit(false)
    }

    /// Asks the replica for its position and repeats the credit. Credit and batches may be lost, and no later batch
    /// would show it; so the session probes now and then while it waits for messages.
    pub fn probe(&mut self) -> CursorSend {
        self.send_credit(true)
    }

    fn send_credit(&self, probe: bool) -> CursorSend {
        self.send(CursorRequest::Credit {
            cursor: self.id,
            attachment: self.attachment,
            total: self.received.saturating_add(self.credit),
            probe,
        })
    }

    /// Ends the cursor.
    pub fn detach(&mut self) -> CursorSend {
        self.is_attached = false;
        self.send(CursorRequest::Detach { cursor: self.id })
    }

    /// Batches that may still arrive.
    pub fn credit(&self) -> u64 {
        self.credit
    }

    /// The replicas have changed, the preferred one first. Returns the request to attach to another one if the one that
    /// serves the cursor is no longer among them.
    pub fn set_replicas(&mut self, replicas: Vec<NodeId>) -> Option<CursorSend> {
        assert!(!replicas.is_empty(), "a queue has a replica");
        let current = self.replica();
        self.replicas = replicas;
        match self.replicas.iter().position(|node| *node == current) {
            Some(at) => {
                self.at = at;
                None
            }
            None => {
                self.at = 0;
                Some(self.attach())
            }
        }
    }

    /// The node cannot be reached. Returns the request to attach to another replica if it served the cursor.
    pub fn node_lost(&mut self, node: NodeId) -> Option<CursorSend> {
        (self.replica() == node).then(|| self.attach_elsewhere())
    }

    /// Handles an event from a replica. Adds notices for the session; returns a request to send, if one is needed.
    pub fn handle(
        &mut self,
        event: CursorEvent,
        notices: &mut Vec<CursorNotice>,
    ) -> Option<CursorSend> {
        match event {
            CursorEvent::Attached {
                attachment, next, ..
            } if attachment == self.attachment => {
                self.is_attached = true;
                match self.next {
                    None => {
                        self.next = Some(next);
                        notices.push(CursorNotice::Attached { next });
                        None
                    }
                    // The replica has sent a batch that was lost.
                    Some(expected) if expected != next => Some(self.attach()),
                    Some(_) => None,
                }
            }
            CursorEvent::Batch {
                attachment, batch, ..
            } if attachment == self.attachment => self.handle_batch(batch, notices),
            CursorEvent::Detached { attachment, .. } if attachment == self.attachment => {
                Some(self.attach_elsewhere())
            }
            CursorEvent::Refused {
                attachment, text, ..
            } if attachment == self.attachment => {
                self.is_attached = false;
                notices.push(CursorNotice::Refused { text });
                None
            }
            // Of an earlier attachment.
            CursorEvent::Attached { .. }
            | CursorEvent::Batch { .. }
            | CursorEvent::Detached { .. }
            | CursorEvent::Refused { .. } => None,
        }
    }

    fn handle_batch(
        &mut self,
        batch: MessageBatch,
        notices: &mut Vec<CursorNotice>,
    ) -> Option<CursorSend> {
        // The start of the cursor is lost, or a batch before this one.
        if self.next != Some(batch.from) {
            return Some(self.attach());
        }
        debug_assert!(batch.first >= batch.from, "offsets ascend");
        debug_assert!(self.credit > 0, "a replica sends no more than the credit");
        self.next = Some(batch.next());
        self.received += 1;
        self.credit = self.credit.saturating_sub(1);
        notices.push(CursorNotice::Batch(batch));
        None
    }

    /// Attaches the cursor to the next replica.
    pub fn attach_elsewhere(&mut self) -> CursorSend {
        self.at = (self.at + 1) % self.replicas.len();
        self.attach()
    }

    fn replica(&self) -> NodeId {
        // `at` is an index of `replicas`, which is never empty.
        self.replicas.get(self.at).copied().unwrap_or(NodeId(0))
    }

    fn send(&self, request: CursorRequest) -> CursorSend {
        CursorSend {
            to: self.replica(),
            request,
        }
    }
}
