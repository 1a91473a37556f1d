//! Messages between the shards of a node.

use crate::frame::Frame;
use session::ServiceId;
use std::any::Any;
use std::fmt;

/// A message from one shard of a node to another. It goes from thread to thread as a value: what crosses shards is
/// neither encoded nor decoded.
pub enum LocalMessage {
    /// A frame that could go to another node as well. Boxed, since it is large and rings have many places.
    Frame(Box<Frame>),
    /// A message of a service to the same service on the other shard.
    Service(ServiceId, Box<dyn Any + Send>),
}

impl From<Frame> for LocalMessage {
    fn from(frame: Frame) -> LocalMessage {
        LocalMessage::Frame(Box::new(frame))
    }
}

impl fmt::Debug for LocalMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LocalMessage::Frame(frame) => frame.fmt(f),
            LocalMessage::Service(service, _) => write!(f, "Service({service:?})"),
        }
    }
}
