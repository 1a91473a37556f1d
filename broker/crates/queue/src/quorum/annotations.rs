//! Annotations of messages in a quorum queue ([`Modification::annotations`](crate::Modification)).
//!
//! Part of the replicated state. They are stored apart from the references to messages, which stay small since
//! few messages have annotations.

use super::effects::LogLocation;
use crate::{Annotations, MAX_QUEUE_ANNOTATION_BYTES};
use message::Message;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Annotations by the log location of their message.
#[derive(Debug, Default)]
pub(crate) struct MessageAnnotations {
    by_message: BTreeMap<LogLocation, Arc<Annotations>>,
    memory: u64,
}

impl MessageAnnotations {
    /// Adds annotations to those of a message. If the new ones exceed a limit, the message keeps only its
    /// earlier ones.
    pub(crate) fn add(&mut self, at: LogLocation, newer: &Arc<Annotations>) {
        let own = self.by_message.get(&at);
        let merged = match own {
            // The messages of one request share them.
            None => Some(Arc::clone(newer)),
            Some(own) => own.merged(newer).map(Arc::new),
        };
        let before = own.map_or(0, |own| own.memory());
        let Some(merged) = merged else { return };
        let memory = self.memory - before + merged.memory();
        if memory <= MAX_QUEUE_ANNOTATION_BYTES {
            self.memory = memory;
            self.by_message.insert(at, merged);
        }
    }

    pub(crate) fn get(&self, at: LogLocation) -> Option<Arc<Annotations>> {
        match self.by_message.is_empty() {
            true => None,
            false => self.by_message.get(&at).cloned(),
        }
    }

    /// Removes the annotations of a message that leaves the queue.
    pub(crate) fn remove(&mut self, at: LogLocation) -> Option<Arc<Annotations>> {
        if self.by_message.is_empty() {
            return None;
        }
        let removed = self.by_message.remove(&at)?;
        self.memory -= removed.memory();
        debug_assert!(self.memory == 0 || !self.by_message.is_empty());
        Some(removed)
    }

    pub(crate) fn clear(&mut self) {
        *self = MessageAnnotations::default();
    }

    pub(crate) fn len(&self) -> usize {
        self.by_message.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (LogLocation, &Annotations)> {
        self.by_message.iter().map(|(at, own)| (*at, &**own))
    }
}

/// Adds the annotations that a message got in its queue.
pub(super) fn annotated(message: Message, annotations: Option<Arc<Annotations>>) -> Message {
    match annotations.map(|annotations| annotations.add_to(&message)) {
        Some(Ok(annotated)) => annotated,
        // Together they exceed the size limit of messages: deliver without the annotations.
        Some(Err(_)) | None => message,
    }
}
