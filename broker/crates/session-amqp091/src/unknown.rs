//! What this node does not know may have been made on another a moment ago: before a client is told 404 the log is asked,
//! and what the client wished is tried again with a tree that is not older than the wish.

use crate::at::At;
use crate::channel::Channel;
use crate::content::Assembly;
use crate::link::{Cx, Link};
use crate::wait::Wait;
use bytes::Bytes;
use codec_amqp091::Method;
use metadata::{Change, Name, QueueId};

/// What is tried again.
#[derive(Debug)]
pub(crate) enum Again {
    /// A method frame's payload.
    Method(Bytes),
    /// A publish with its whole body.
    Publish(Box<Assembly>),
}

impl Channel {
    /// The channel waits for the answer, then it tries again.
    pub(crate) fn ask_the_log_of(
        &mut self,
        name: Name,
        again: Again,
        ids: (u16, u16),
        link: &mut Link,
        cx: &mut Cx<'_>,
    ) {
        let change = nothing(name, link);
        self.change(change, Wait::Learn(again), ids, link, cx);
    }

    /// The log has answered, or nobody did: what this node knows now has to do.
    pub(crate) fn try_again(
        &mut self,
        again: Again,
        ids: (u16, u16),
        link: &mut Link,
        cx: &mut Cx<'_>,
    ) -> Result<(), At> {
        let done = match again {
            Again::Method(payload) => {
                let method =
                    Method::decode(&payload).map_err(|error| At::undecodable(&error, &payload))?;
                self.method(method, link, cx)
            }
            Again::Publish(mut assembly) => {
                let published = crate::publish::publish(self, &assembly, assembly.kept(), link, cx);
                assembly.finish(link);
                published
            }
        };
        done.map_err(|failure| At { failure, ids })
    }
}

/// A change that goes through the log and changes nothing: no queue has that id.
pub(crate) fn nothing(name: Name, link: &Link) -> Change {
    Change::DeleteQueue {
        vhost: link.vhost.clone(),
        name,
        id: Some(QueueId::NONE),
    }
}
