//! Retry of methods that failed with 404 on a node with an outdated tree. A queue or exchange that
//! is missing here may have been created through another node a moment ago. The session sends a
//! barrier through the log and retries the method when this node has applied it.

use crate::channel::Channel;
use crate::connection_state::{ConnectionState, StepContext};
use crate::content::PublishAssembly;
use crate::method_failure::MethodFailure;
use crate::wait::WaitReason;
use bytes::Bytes;
use codec_amqp091::Method;
use metadata::Change;

/// A method to retry.
#[derive(Debug)]
pub(crate) enum RetriedMethod {
    /// A method frame's payload.
    Method(Bytes),
    /// A publish with its complete body.
    Publish(Box<PublishAssembly>),
}

impl Channel {
    /// Waits until this node has applied the log up to now, then retries the method.
    pub(crate) fn check_log_for(
        &mut self,
        retry: RetriedMethod,
        ids: (u16, u16),
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) {
        self.change(
            Change::Barrier {},
            WaitReason::CatchUp(retry),
            ids,
            conn,
            cx,
        );
    }

    /// Retries the method with the current tree, after the log position was reached or the wait
    /// timed out.
    pub(crate) fn retry_method(
        &mut self,
        retry: RetriedMethod,
        ids: (u16, u16),
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> Result<(), MethodFailure> {
        let result = match retry {
            RetriedMethod::Method(payload) => {
                let method = Method::decode(&payload)
                    .map_err(|error| MethodFailure::undecodable(&error, &payload))?;
                self.method(method, conn, cx)
            }
            RetriedMethod::Publish(mut assembly) => {
                let published =
                    crate::publish::publish(self, &assembly, assembly.collected_body(), conn, cx);
                assembly.finish(conn);
                published
            }
        };
        result.map_err(|failure| MethodFailure { failure, ids })
    }
}
