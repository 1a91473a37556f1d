//! Messages that the control plane stores in a queue, such as those of a backup.
//!
//! They are sent to the queue in their order, with a window, and counted when the queue has confirmed them. After the first one
//! that the queue refuses no further one is sent.

use super::{InternalClient, InternalClientOutput, PublishReply, RoutedPublish, too_many};
use crate::context::Context;
use control::{ImportOutcome, ImportRequest, PublishResult, Reply};
use env::Time;
use message::Message;
use metadata::{ChangeError, Name, QueueId, Tree};
use session::PublishTag;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// A requester gets its answer after this time at the latest.
const WITHIN: Duration = Duration::from_secs(20);
/// Maximum number of pending imports.
const MAX_IMPORTS: usize = 16;
/// Messages of one import that are not confirmed, and their bytes after which no further one is sent.
const WINDOW: usize = 512;
const WINDOW_BYTES: usize = 4 << 20;

struct PendingImport {
    queue: QueueId,
    vhost: Name,
    user: Name,
    waiting: VecDeque<Message>,
    /// Bytes of the messages that are sent and not confirmed, in their order. Confirms may come in another order, but all
    /// messages go to one queue.
    sent: VecDeque<usize>,
    sent_bytes: usize,
    outcome: ImportOutcome,
    /// No further message is sent.
    has_ended: bool,
    until: Time,
    /// `None`: answered.
    reply: Option<Reply<Result<ImportOutcome, ChangeError>>>,
}

impl PendingImport {
    fn end(&mut self, error: String) {
        self.has_ended = true;
        self.outcome.error.get_or_insert(error);
        self.outcome.untried += self.waiting.len() as u64;
        self.waiting.clear();
    }
}

/// A message to be stored for an import.
pub(crate) struct ImportPublish {
    pub token: u64,
    pub queue: QueueId,
    pub vhost: Name,
    pub user: Name,
    pub message: Message,
}

#[derive(Default)]
pub(crate) struct Imports(BTreeMap<u64, PendingImport>);

impl Imports {
    pub(super) fn wake_at(&self) -> Option<Time> {
        let waiting = self.0.values().filter(|i| i.reply.is_some());
        waiting.map(|i| i.until).min()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl InternalClient {
    pub(crate) fn begin_import(
        &mut self,
        ctx: &Context,
        tree: &Tree,
        request: ImportRequest,
        reply: Reply<Result<ImportOutcome, ChangeError>>,
    ) {
        let Some(record) = tree.queue_by_id(request.queue) else {
            return reply(Err(ChangeError::NotFound("the queue is gone".into())));
        };
        if self.imports.0.len() >= MAX_IMPORTS {
            return reply(Err(too_many()));
        }
        let token = self.tag();
        let pending = PendingImport {
            queue: request.queue,
            vhost: record.vhost.clone(),
            user: request.user,
            waiting: request.messages.into(),
            sent: VecDeque::new(),
            sent_bytes: 0,
            outcome: ImportOutcome::default(),
            has_ended: false,
            until: ctx.now() + WITHIN,
            reply: Some(reply),
        };
        self.imports.0.insert(token, pending);
        self.advance_import(token);
    }

    /// Sends further messages of an import, or ends it.
    fn advance_import(&mut self, token: u64) {
        let Some(pending) = self.imports.0.get_mut(&token) else {
            return;
        };
        while !pending.has_ended
            && pending.sent.len() < WINDOW
            && (pending.sent_bytes < WINDOW_BYTES || pending.sent.is_empty())
            && let Some(message) = pending.waiting.pop_front()
        {
            let bytes = message.as_bytes().len();
            pending.sent.push_back(bytes);
            pending.sent_bytes += bytes;
            let publish = ImportPublish {
                token,
                queue: pending.queue,
                vhost: pending.vhost.clone(),
                user: pending.user.clone(),
                message,
            };
            self.outputs
                .push_back(InternalClientOutput::Import(Box::new(publish)));
        }
        if pending.sent.is_empty() {
            self.answer_import(token);
            self.imports.0.remove(&token);
        }
    }

    fn answer_import(&mut self, token: u64) {
        let Some(pending) = self.imports.0.get_mut(&token) else {
            return;
        };
        let Some(reply) = pending.reply.take() else {
            return;
        };
        let mut outcome = std::mem::take(&mut pending.outcome);
        outcome.pending = pending.sent.len() as u64;
        reply(Ok(outcome));
    }

    /// Routes a message of an import to its queue. Returns `None` if publishers are blocked by an alarm.
    pub(crate) fn begin_imported_publish(
        &mut self,
        alarm: Option<&'static str>,
        publish: ImportPublish,
    ) -> Option<RoutedPublish> {
        let token = publish.token;
        let has_ended = (self.imports.0.get(&token)).is_none_or(|pending| pending.has_ended);
        let refused = match (alarm, has_ended) {
            (_, true) => Some("an earlier message was not stored".to_owned()),
            (Some(alarm), false) => Some(format!("publishers are blocked: the cluster is {alarm}")),
            (None, false) => None,
        };
        if let Some(text) = refused {
            self.handle_imported(token, Err(ChangeError::Unavailable(text)));
            return None;
        }
        Some(RoutedPublish {
            tag: PublishTag(self.tag()),
            vhost: publish.vhost,
            user: publish.user,
            message: publish.message,
            routes: vec![publish.queue],
            reply: PublishReply::Import(token),
        })
    }

    /// The queue has confirmed or refused a message of an import, or it could not be sent.
    pub(super) fn handle_imported(
        &mut self,
        token: u64,
        result: Result<PublishResult, ChangeError>,
    ) {
        let Some(pending) = self.imports.0.get_mut(&token) else {
            return;
        };
        let bytes = pending.sent.pop_front().unwrap_or(0);
        pending.sent_bytes = pending.sent_bytes.saturating_sub(bytes);
        match result {
            Ok(PublishResult { taken: true, .. }) => pending.outcome.stored += 1,
            Ok(PublishResult { taken: false, .. }) => {
                pending.outcome.refused += 1;
                pending.end(
                    "the queue did not take a message: it is full, or it cannot be reached".into(),
                );
            }
            // It was not sent.
            Err(error) => {
                pending.outcome.untried += 1;
                pending.end(error.to_string());
            }
        }
        self.advance_import(token);
    }

    /// Answers the requesters whose time is up.
    pub(super) fn tick_imports(&mut self, now: Time) {
        let is_late = |i: &PendingImport| i.reply.is_some() && now >= i.until;
        let late = self.imports.0.iter().filter(|(_, i)| is_late(i));
        let late: Vec<u64> = late.map(|(token, _)| *token).collect();
        for token in late {
            if let Some(pending) = self.imports.0.get_mut(&token) {
                pending.end("the queue did not confirm all messages in time".into());
            }
            self.answer_import(token);
        }
    }
}
