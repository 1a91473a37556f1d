//! Retained messages: the metadata has them for the whole cluster, this shard's router finds them for subscribers.

use crate::core::{Core, FixedState};
use crate::metadata_client::ChangeRequester;
use env::planted::{self, Bug};
use hashbrown::HashMap;
use message::Message;
use metadata::{Change, ChangeError, ChangeResult, Name};
use session::ControlEvent;

/// Topics that clients of this shard have changed and the log has not answered for: the hub is ahead of the tree there, and by
/// how many changes.
#[derive(Default)]
pub struct UnconfirmedRetained(HashMap<(Name, Name), u32, FixedState>);

/// A change of this shard that retains a message, until it is answered.
pub struct PendingRetain {
    pub session: u64,
    /// 0: nobody waits.
    pub token: u64,
    pub vhost: Name,
    pub topic: Name,
}

impl Core {
    /// A client of this shard retains a message, or nothing any more.
    pub fn retain(
        &mut self,
        session: u64,
        token: u64,
        (vhost, topic): (&str, &str),
        message: Option<Message>,
    ) -> Result<(), ChangeError> {
        let bytes = message.as_ref().map(|m| m.to_bytes());
        if let Some(bytes) = &bytes {
            self.tree.room_to_retain(vhost, topic, bytes.len())?;
        }
        let taken = self.topics.retain(vhost, topic, message);
        taken.map_err(|_| ChangeError::PreconditionFailed("too much is retained here".into()))?;
        let (vhost, topic): (Name, Name) = (vhost.into(), topic.into());
        *self
            .ahead
            .0
            .entry((vhost.clone(), topic.clone()))
            .or_default() += 1;
        let change = Change::Retain {
            vhost: vhost.clone(),
            topic: topic.clone(),
            message: bytes,
        };
        let retaining = PendingRetain {
            session,
            token,
            vhost,
            topic,
        };
        self.ask(change, ChangeRequester::Retain(Box::new(retaining)));
        Ok(())
    }

    /// What came of a change of this shard.
    pub fn retained(
        &mut self,
        retaining: PendingRetain,
        result: Result<ChangeResult, ChangeError>,
    ) {
        let PendingRetain {
            session,
            token,
            vhost,
            topic,
        } = retaining;
        let key = (vhost, topic);
        if let Some(open) = self.ahead.0.get_mut(&key) {
            *open -= 1;
            if *open == 0 {
                self.ahead.0.remove(&key);
                self.show_retained(&key.0, &key.1);
            }
        }
        if token != 0 {
            self.notices
                .push_back((session, ControlEvent::Changed { token, result }.into()));
        }
    }

    /// The tree has another message for a topic.
    pub fn retained_changed(&mut self, vhost: Name, topic: Name) {
        let key = (vhost, topic);
        if !self.ahead.0.contains_key(&key) && !planted::is(Bug::RetainedStale) {
            self.show_retained(&key.0, &key.1);
        }
    }

    /// The tree was replaced.
    pub fn retained_replaced(&mut self) {
        self.topics.clear_retained();
        let all: Vec<(Name, Name)> = self
            .tree
            .all_retained()
            .map(|(vhost, topic, _)| (vhost.clone(), topic.clone()))
            .collect();
        for (vhost, topic) in all {
            self.show_retained(&vhost, &topic);
        }
    }

    fn show_retained(&mut self, vhost: &str, topic: &str) {
        let bytes = self.tree.retained(vhost, topic);
        let message = match bytes.map(|bytes| Message::decode(bytes.clone())) {
            Some(Ok(message)) => Some(message),
            Some(Err(error)) => {
                tracing::error!(event = "retained_unreadable", vhost, topic, %error);
                None
            }
            None => None,
        };
        if self.topics.retain(vhost, topic, message).is_err() {
            tracing::error!(event = "retained_has_no_room", vhost, topic);
        }
    }
}
