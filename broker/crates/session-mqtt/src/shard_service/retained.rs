//! Retained messages. The metadata tree has those of the whole cluster, the shard's router finds
//! them for subscribers.

use super::{MqttService, MqttShard, ProposedChange, state};
use env::planted::{self, Bug};
use hashbrown::HashMap;
use message::Message;
use metadata::{Change, ChangeError, ChangeResult, Name};
use session::{Broker, ControlEvent, ServiceHost};

/// The number of unconfirmed changes by clients of this shard for each topic. While there are any,
/// the router is ahead of the tree.
#[derive(Default)]
pub(super) struct UnconfirmedRetained(HashMap<(Name, Name), u32, foldhash::fast::FixedState>);

/// A change that retains a message, until it is answered.
pub(super) struct PendingRetain {
    session: u64,
    /// 0: the session does not wait.
    token: u64,
    vhost: Name,
    topic: Name,
}

/// Stores the retained message of a topic, or removes it (`None`). Subscribers of this shard see it
/// at once. [`ControlEvent::Changed`] with the token (0: no confirmation wanted) follows when the
/// cluster has it. On an error nothing is stored and no event follows.
pub(crate) fn retain(
    broker: &mut dyn Broker,
    token: u64,
    (vhost, topic): (&str, &str),
    message: Option<Message>,
) -> Result<(), ChangeError> {
    let bytes = message.as_ref().map(Message::to_bytes);
    if let Some(bytes) = &bytes {
        broker
            .tree()
            .check_retained_limits(vhost, topic, bytes.len())?;
    }
    let session = broker.id().number;
    let services = broker.services();
    let Some(shard) = services.and_then(MqttShard::access) else {
        let text = format!("retained messages are not available in vhost '{vhost}'");
        return Err(ChangeError::Unavailable(text));
    };
    let stored = shard.router.retain(vhost, topic, message);
    stored.map_err(|_| ChangeError::PreconditionFailed("too much is retained here".into()))?;
    let (vhost, topic): (Name, Name) = (vhost.into(), topic.into());
    let unconfirmed = &mut shard.unconfirmed_retained.0;
    *unconfirmed
        .entry((vhost.clone(), topic.clone()))
        .or_default() += 1;
    let change = Change::Retain {
        vhost: vhost.clone(),
        topic: topic.clone(),
        message: bytes,
    };
    let pending = ProposedChange::Retain(PendingRetain {
        session,
        token,
        vhost,
        topic,
    });
    let token = shard.propose(pending);
    broker.change_by_service(MqttService::ID, token, change);
    Ok(())
}

/// Handles the answer to a change of this shard.
pub(super) fn answered(
    host: &mut dyn ServiceHost,
    pending: PendingRetain,
    result: Result<ChangeResult, ChangeError>,
) {
    let PendingRetain {
        session,
        token,
        vhost,
        topic,
    } = pending;
    let key = (vhost, topic);
    if let Some(shard) = state(host)
        && let Some(open) = shard.unconfirmed_retained.0.get_mut(&key)
    {
        debug_assert!(
            *open > 0,
            "topic {} has an entry without unconfirmed changes",
            key.1
        );
        *open -= 1;
        if *open == 0 {
            shard.unconfirmed_retained.0.remove(&key);
            copy_from_tree(host, &key.0, &key.1);
        }
    }
    if token != 0 {
        host.notify(session, ControlEvent::Changed { token, result });
    }
}

/// The tree has another message for a topic.
pub(super) fn changed(host: &mut dyn ServiceHost, vhost: &Name, topic: &Name) {
    let Some(shard) = state(host) else { return };
    let key = (vhost.clone(), topic.clone());
    if !shard.unconfirmed_retained.0.contains_key(&key) && !planted::is(Bug::RetainedStale) {
        copy_from_tree(host, vhost, topic);
    }
}

/// The tree was replaced.
pub(super) fn replaced(host: &mut dyn ServiceHost) {
    if let Some(shard) = state(host) {
        shard.router.clear_retained();
    }
    let all = host.tree().all_retained();
    let all: Vec<(Name, Name)> = all
        .map(|(vhost, topic, _)| (vhost.clone(), topic.clone()))
        .collect();
    for (vhost, topic) in all {
        copy_from_tree(host, &vhost, &topic);
    }
}

fn copy_from_tree(host: &mut dyn ServiceHost, vhost: &str, topic: &str) {
    let bytes = host.tree().retained(vhost, topic).cloned();
    let message = match bytes.map(Message::decode) {
        Some(Ok(message)) => Some(message),
        Some(Err(error)) => {
            tracing::error!(event = "retained_unreadable", vhost, topic, %error);
            None
        }
        None => None,
    };
    if let Some(shard) = state(host)
        && shard.router.retain(vhost, topic, message).is_err()
    {
        tracing::error!(event = "retained_has_no_room", vhost, topic);
    }
}
