//! Requests to streams and to the metadata group that a client waits for.

use crate::session::{StepContext, StreamSession, count_error};
use bytes::Bytes;
use codec_stream::{
    ClientCommand, CommandKey, List, OffsetSpecification, ResponseCode, ServerCommand, Statistic,
};
use env::Time;
use metadata::{Change, ChangeError, ChangeResult, QueueId};
use queue::QueueReply;
use queue::cursor::{StreamReply, StreamRequest, StreamStats};
use session::RequestSeq;
use std::collections::VecDeque;

/// A command that waits for the metadata group. The client is not read meanwhile, as commands of a connection are
/// performed one after the other.
#[derive(Debug)]
pub(crate) struct Operation {
    /// The token of the change that was proposed.
    pub token: u64,
    pub deadline: Time,
    pub step: OperationStep,
}

#[derive(Debug)]
pub(crate) enum OperationStep {
    /// The frame of a command that is performed again when this node has applied the metadata log up to now.
    Retry(Bytes),
    /// Changes that the command consists of.
    Changes(Changes),
}

/// Changes that are proposed one after the other.
#[derive(Debug)]
pub(crate) struct Changes {
    pub command: CommandKey,
    pub correlation_id: u32,
    /// Changes that were not proposed yet.
    pub next: VecDeque<Change>,
    /// Changes that undo those that were applied, the newest last.
    pub undo: Vec<Change>,
    /// The changes in `next` undo others.
    is_undoing: bool,
    /// The result so far.
    pub code: ResponseCode,
    /// A created stream, whose leader must be ready before the client gets the response.
    pub created: Option<QueueId>,
}

impl Changes {
    pub(crate) fn new(command: CommandKey, correlation_id: u32, next: Vec<Change>) -> Changes {
        Changes {
            command,
            correlation_id,
            next: next.into(),
            undo: Vec::new(),
            is_undoing: false,
            code: ResponseCode::OK,
            created: None,
        }
    }

    fn is_creation(&self) -> bool {
        matches!(
            self.command,
            CommandKey::Create | CommandKey::CreateSuperStream
        )
    }

    /// Takes the result of a change.
    fn record(&mut self, change: &Change, result: Result<ChangeResult, ChangeError>) {
        let code = match result {
            Ok(ChangeResult::Queue { created: false, .. }) => ResponseCode::STREAM_ALREADY_EXISTS,
            Ok(ChangeResult::Queue { record, .. }) => {
                self.created = Some(record.id);
                self.undo.push(Change::DeleteQueue {
                    vhost: record.vhost.clone(),
                    name: record.name.clone(),
                    id: Some(record.id),
                });
                return;
            }
            Ok(result) => {
                if let Change::DeclareExchange(record) = change
                    && result == ChangeResult::Changed
                {
                    self.undo.push(Change::DeleteExchange {
                        vhost: record.vhost.clone(),
                        name: record.name.clone(),
                        if_unused: false,
                    });
                }
                return;
            }
            // A partition of a super stream that is gone does not matter.
            Err(ChangeError::NotFound(_)) if self.command == CommandKey::DeleteSuperStream => {
                return;
            }
            Err(error) => {
                tracing::info!(command = %self.command, %error, "command refused");
                code_of(&error)
            }
        };
        if self.code == ResponseCode::OK {
            self.code = code;
        }
        if self.is_creation() && !self.is_undoing {
            self.is_undoing = true;
            self.next = std::mem::take(&mut self.undo).into_iter().rev().collect();
        }
    }
}

fn code_of(error: &ChangeError) -> ResponseCode {
    match error {
        ChangeError::NotFound(_) => ResponseCode::STREAM_DOES_NOT_EXIST,
        ChangeError::PreconditionFailed(_)
        | ChangeError::ResourceLocked(_)
        | ChangeError::Invalid(_)
        | ChangeError::NotPermitted(_) => ResponseCode::PRECONDITION_FAILED,
        ChangeError::AccessRefused(_) => ResponseCode::ACCESS_REFUSED,
        ChangeError::Unavailable(_) => ResponseCode::INTERNAL_ERROR,
    }
}

/// A request to a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Query {
    pub queue: QueueId,
    pub seq: RequestSeq,
    pub deadline: Time,
    pub command: CommandKey,
    pub correlation_id: u32,
}

impl StreamSession {
    pub(crate) fn change(&mut self, change: Change, step: OperationStep, cx: &mut StepContext<'_>) {
        self.next_token += 1;
        cx.broker.change(self.next_token, change);
        self.operation = Some(Operation {
            token: self.next_token,
            deadline: cx.broker.now() + self.settings.limits.operation,
            step,
        });
    }

    /// Performs a command again after this node has applied the metadata log up to now.
    pub(crate) fn catch_up(&mut self, command: &ClientCommand<'_>, cx: &mut StepContext<'_>) {
        let mut frame = bytes::BytesMut::new();
        command.encode(&mut frame);
        let step = OperationStep::Retry(frame.freeze());
        self.change(Change::Barrier {}, step, cx);
    }

    /// Proposes the next change of a command, or responds if there is none.
    pub(crate) fn proceed(&mut self, mut changes: Changes, cx: &mut StepContext<'_>) {
        if let Some(Change::DeclareQueue(record)) = changes.next.front_mut()
            && record.members.is_empty()
        {
            // Not earlier: the leaders of a super stream spread over the nodes because the streams before this one count.
            record.members = cx.broker.place_queue(record);
        }
        match changes.next.front().cloned() {
            Some(change) => self.change(change, OperationStep::Changes(changes), cx),
            None => match changes.created.take() {
                Some(queue) if changes.code == ResponseCode::OK => {
                    let request = StreamRequest::Stats;
                    self.query(queue, request, changes.command, changes.correlation_id, cx);
                }
                _ => self.respond(changes.command, changes.correlation_id, changes.code, cx),
            },
        }
    }

    pub(crate) fn handle_changed(
        &mut self,
        token: u64,
        result: Result<ChangeResult, ChangeError>,
        cx: &mut StepContext<'_>,
    ) {
        let Some(operation) = self.operation.take_if(|operation| operation.token == token) else {
            return;
        };
        match operation.step {
            OperationStep::Retry(frame) => {
                let command = frame.get(codec_stream::SIZE_BYTES..).unwrap_or_default();
                match ClientCommand::decode(command) {
                    Ok(command) => self.perform(&command, true, cx),
                    Err(error) => tracing::error!(%error, "a command cannot be repeated"),
                }
            }
            OperationStep::Changes(mut changes) => {
                if let Some(change) = changes.next.pop_front() {
                    changes.record(&change, result);
                }
                self.proceed(changes, cx);
            }
        }
    }

    /// Asks a stream on behalf of a command.
    pub(crate) fn query(
        &mut self,
        queue: QueueId,
        request: StreamRequest,
        command: CommandKey,
        correlation_id: u32,
        cx: &mut StepContext<'_>,
    ) {
        let seq = cx
            .broker
            .request(queue, queue::RequestBody::Stream(request));
        self.queries.push(Query {
            queue,
            seq,
            deadline: cx.broker.now() + self.settings.limits.operation,
            command,
            correlation_id,
        });
    }

    pub(crate) fn handle_answer(
        &mut self,
        queue: QueueId,
        seq: RequestSeq,
        answer: QueueReply,
        cx: &mut StepContext<'_>,
    ) {
        let mut queries = self.queries.iter();
        let found = queries.position(|query| query.queue == queue && query.seq == seq);
        let Some(query) = found.map(|at| self.queries.swap_remove(at)) else {
            return;
        };
        let result = match answer {
            QueueReply::Stream(reply) => Ok(reply),
            QueueReply::Refused { code: 404, .. } => Err(ResponseCode::STREAM_DOES_NOT_EXIST),
            QueueReply::Refused { code, text } => {
                tracing::info!(code, text, command = %query.command, "a stream refused a request");
                Err(ResponseCode::STREAM_NOT_AVAILABLE)
            }
            other => {
                tracing::error!(?other, command = %query.command, "unexpected answer of a stream");
                Err(ResponseCode::INTERNAL_ERROR)
            }
        };
        self.respond_to_query(query, result, cx);
    }

    fn respond_to_query(
        &mut self,
        query: Query,
        result: Result<StreamReply, ResponseCode>,
        cx: &mut StepContext<'_>,
    ) {
        let Query {
            command,
            correlation_id,
            ..
        } = query;
        if matches!(command, CommandKey::Create | CommandKey::CreateSuperStream) {
            // The stream exists; a leader that is late does not change that.
            return self.respond(command, correlation_id, ResponseCode::OK, cx);
        }
        match result {
            Ok(reply) => encode_reply(command, correlation_id, reply, cx),
            Err(code) => self.respond(command, correlation_id, code, cx),
        }
    }

    pub(crate) fn time_out_waits(&mut self, now: Time, cx: &mut StepContext<'_>) {
        while let Some(at) = self.queries.iter().position(|query| now >= query.deadline) {
            let query = self.queries.swap_remove(at);
            self.respond_to_query(query, Err(ResponseCode::STREAM_NOT_AVAILABLE), cx);
        }
        let Some(operation) = self
            .operation
            .take_if(|operation| now >= operation.deadline)
        else {
            return;
        };
        match operation.step {
            OperationStep::Retry(frame) => {
                let command = frame.get(codec_stream::SIZE_BYTES..).unwrap_or_default();
                if let Ok(command) = ClientCommand::decode(command) {
                    // With the tree as it is.
                    self.perform(&command, true, cx);
                }
            }
            OperationStep::Changes(changes) => {
                let code = ResponseCode::INTERNAL_ERROR;
                self.respond(changes.command, changes.correlation_id, code, cx);
            }
        }
    }

    /// Sends a response that has no other fields than the code, or zeros in them.
    pub(crate) fn respond(
        &mut self,
        command: CommandKey,
        correlation_id: u32,
        code: ResponseCode,
        cx: &mut StepContext<'_>,
    ) {
        count_error(code, cx);
        if let Some(response) = response(command, correlation_id, code) {
            response.encode(cx.out.tail());
        }
    }
}

/// The response of a command with this code and zeros or empty lists in the other fields. None: the command has no
/// response.
fn response(
    command: CommandKey,
    correlation_id: u32,
    code: ResponseCode,
) -> Option<ServerCommand<'static>> {
    const NO_STREAMS: &[&str] = &[];
    const NO_STATISTICS: &[Statistic<'static>] = &[];
    macro_rules! of {
        ($variant:ident $(, $field:ident: $value:expr)*) => {
            ServerCommand::$variant { correlation_id, code, $($field: $value,)* }
        };
    }
    Some(match command {
        CommandKey::DeclarePublisher => of!(DeclarePublisher),
        CommandKey::DeletePublisher => of!(DeletePublisher),
        CommandKey::QueryPublisherSequence => of!(QueryPublisherSequence, sequence: 0),
        CommandKey::Subscribe => of!(Subscribe),
        CommandKey::Unsubscribe => of!(Unsubscribe),
        CommandKey::QueryOffset => of!(QueryOffset, offset: 0),
        CommandKey::Create => of!(Create),
        CommandKey::Delete => of!(Delete),
        CommandKey::Route => of!(Route, streams: List::from(NO_STREAMS)),
        CommandKey::Partitions => of!(Partitions, streams: List::from(NO_STREAMS)),
        CommandKey::StreamStats => of!(StreamStats, statistics: List::from(NO_STATISTICS)),
        CommandKey::CreateSuperStream => of!(CreateSuperStream),
        CommandKey::DeleteSuperStream => of!(DeleteSuperStream),
        CommandKey::ResolveOffsetSpec => {
            of!(ResolveOffsetSpec, offset: OffsetSpecification::Offset(0))
        }
        _ => return None,
    })
}

fn encode_reply(
    command: CommandKey,
    correlation_id: u32,
    reply: StreamReply,
    cx: &mut StepContext<'_>,
) {
    let out = cx.out.tail();
    let code_of = |offset: Option<u64>| match offset {
        Some(_) => ResponseCode::OK,
        None => ResponseCode::NO_OFFSET,
    };
    match (command, reply) {
        (CommandKey::QueryOffset, StreamReply::Offset(offset)) => ServerCommand::QueryOffset {
            correlation_id,
            code: code_of(offset),
            offset: offset.unwrap_or(0),
        }
        .encode(out),
        (CommandKey::ResolveOffsetSpec, StreamReply::Offset(offset)) => {
            ServerCommand::ResolveOffsetSpec {
                correlation_id,
                code: code_of(offset),
                offset: OffsetSpecification::Offset(offset.unwrap_or(0)),
            }
            .encode(out);
        }
        (CommandKey::QueryPublisherSequence, StreamReply::PublishingId(id)) => {
            ServerCommand::QueryPublisherSequence {
                correlation_id,
                code: ResponseCode::OK,
                sequence: id.unwrap_or(0),
            }
            .encode(out);
        }
        (CommandKey::StreamStats, StreamReply::Stats(stats)) => ServerCommand::StreamStats {
            correlation_id,
            code: ResponseCode::OK,
            statistics: List::from(&statistics(&stats)[..]),
        }
        .encode(out),
        (command, reply) => {
            tracing::error!(?reply, %command, "unexpected answer of a stream");
            let response = response(command, correlation_id, ResponseCode::INTERNAL_ERROR);
            if let Some(response) = response {
                response.encode(out);
            }
        }
    }
}

/// RabbitMQ's names. An offset that does not exist is -1.
fn statistics(stats: &StreamStats) -> [Statistic<'static>; 4] {
    let value = |offset: Option<u64>| {
        let offset = offset.map(|offset| i64::try_from(offset).unwrap_or(i64::MAX));
        offset.unwrap_or(-1)
    };
    [
        ("first_chunk_id", stats.first_offset),
        ("committed_chunk_id", stats.last_chunk),
        ("last_chunk_id", stats.last_chunk),
        ("committed_offset", stats.committed),
    ]
    .map(|(key, offset)| Statistic {
        key,
        value: value(offset),
    })
}
