//! What this node does not know may have been made on another a moment ago: before a client is told 404 the log is asked,
//! and what the client wished is tried again with a tree that is not older than the wish.

use crate::channel::Channel;
use crate::connection_state::{ConnectionState, StepContext};
use crate::content::PublishAssembly;
use crate::method_failure::MethodFailure;
use crate::wait::WaitReason;
use bytes::Bytes;
use codec_amqp091::Method;
use metadata::{Change, Name, QueueId};

/// What is tried again.
#[derive(Debug)]
pub(crate) enum RetriedMethod {
    /// A method frame's payload.
    Method(Bytes),
    /// A publish with its whole body.
    Publish(Box<PublishAssembly>),
}

impl Channel {
    /// The channel waits for the answer, then it tries again.
    pub(crate) fn ask_the_log_of(
        &mut self,
        name: Name,
        again: RetriedMethod,
        ids: (u16, u16),
        link: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) {
        let change = nothing(name, link);
        self.change(change, WaitReason::Learn(again), ids, link, cx);
    }

    /// The log has answered, or nobody did: what this node knows now has to do.
    pub(crate) fn try_again(
        &mut self,
        again: RetriedMethod,
        ids: (u16, u16),
        link: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> Result<(), MethodFailure> {
        let done = match again {
            RetriedMethod::Method(payload) => {
                let method = Method::decode(&payload)
                    .map_err(|error| MethodFailure::undecodable(&error, &payload))?;
                self.method(method, link, cx)
            }
            RetriedMethod::Publish(mut assembly) => {
                let published = crate::publish::publish(self, &assembly, assembly.kept(), link, cx);
                assembly.finish(link);
                published
            }
        };
        done.map_err(|failure| MethodFailure { failure, ids })
    }
}

/// A change that goes through the log and changes nothing: no queue has that id.
pub(crate) fn nothing(name: Name, link: &ConnectionState) -> Change {
    Change::DeleteQueue {
        vhost: link.vhost.clone(),
        name,
        id: Some(QueueId::NONE),
    }
}
