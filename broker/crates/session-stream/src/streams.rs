//! Creation and deletion of streams and super streams.

use crate::session::{StepContext, StreamSession, count_error};
use crate::wait::Changes;
use codec_stream::{CommandKey, DecodeError, List, Property, ResponseCode};
use message::Table;
use metadata::{Change, Name, QueueRecord, Right};
use operations::{
    ErrorKind, OperationError, Resource, StreamCreationError, SuperStreamDeclaration,
    stream_arguments, stream_deletion, stream_name,
};

/// A super stream to create.
pub(crate) struct NewSuperStream<'a> {
    pub name: &'a str,
    pub partitions: List<'a, &'a str>,
    pub binding_keys: List<'a, &'a str>,
    pub arguments: List<'a, Property<'a>>,
}

/// The arguments of a stream's queue.
fn queue_arguments(arguments: &List<'_, Property<'_>>) -> Result<Table, ResponseCode> {
    let pairs = arguments.iter().map(|Property { key, value }| (key, value));
    stream_arguments(pairs).map_err(|error| code_of(&error))
}

fn code_of(error: &OperationError) -> ResponseCode {
    match error.kind {
        ErrorKind::AccessRefused => ResponseCode::ACCESS_REFUSED,
        ErrorKind::NotFound => ResponseCode::STREAM_DOES_NOT_EXIST,
        ErrorKind::ResourceLocked
        | ErrorKind::PreconditionFailed
        | ErrorKind::NotImplemented
        | ErrorKind::NotPermitted => ResponseCode::PRECONDITION_FAILED,
        ErrorKind::Unavailable => ResponseCode::INTERNAL_ERROR,
    }
}

fn creation_code(error: &StreamCreationError) -> ResponseCode {
    match error {
        StreamCreationError::Exists(_) => ResponseCode::STREAM_ALREADY_EXISTS,
        StreamCreationError::Refused(error) => code_of(error),
    }
}

impl StreamSession {
    pub(crate) fn create(
        &mut self,
        correlation_id: u32,
        stream: &str,
        arguments: List<'_, Property<'_>>,
        cx: &mut StepContext<'_>,
    ) -> Result<(), ResponseCode> {
        let name = stream_name(stream).map_err(|error| code_of(&error))?;
        self.check(Right::Configure, Resource::Queue(&name), cx)?;
        let record = self.plan_stream(name, queue_arguments(&arguments)?, cx)?;
        let changes = vec![Change::DeclareQueue(record)];
        let changes = Changes::new(CommandKey::Create, correlation_id, changes);
        self.proceed(changes, cx);
        Ok(())
    }

    /// The record of a stream to declare.
    fn plan_stream(
        &self,
        name: Name,
        arguments: Table,
        cx: &mut StepContext<'_>,
    ) -> Result<QueueRecord, ResponseCode> {
        let plan = self.caller(cx.broker).plan_stream(name, arguments);
        let mut record = plan.map_err(|error| self.creation_refused(&error))?;
        record.members = cx.broker.place_queue(&record);
        Ok(record)
    }

    fn creation_refused(&self, error: &StreamCreationError) -> ResponseCode {
        if let StreamCreationError::Refused(error) = error {
            tracing::info!(peer = %self.peer, user = %self.user, %error, "stream refused");
        }
        creation_code(error)
    }

    pub(crate) fn delete(
        &mut self,
        correlation_id: u32,
        stream: &str,
        cx: &mut StepContext<'_>,
    ) -> Result<(), ResponseCode> {
        self.check(Right::Configure, Resource::Queue(stream), cx)?;
        let record = self.find_stream(stream, cx)?;
        let changes = vec![stream_deletion(&record)];
        let changes = Changes::new(CommandKey::Delete, correlation_id, changes);
        self.proceed(changes, cx);
        Ok(())
    }

    pub(crate) fn create_super_stream(
        &mut self,
        correlation_id: u32,
        request: &NewSuperStream<'_>,
        cx: &mut StepContext<'_>,
    ) -> Result<(), ResponseCode> {
        if request.partitions.len() != request.binding_keys.len() {
            return Err(ResponseCode::PRECONDITION_FAILED);
        }
        let keys = request.binding_keys.iter();
        let declaration = SuperStreamDeclaration {
            name: request.name,
            partitions: request.partitions.iter().zip(keys).collect(),
            arguments: queue_arguments(&request.arguments)?,
        };
        let plan = self.caller(cx.broker).plan_super_stream(declaration);
        let changes = plan.map_err(|error| self.creation_refused(&error))?;
        let changes = Changes::new(CommandKey::CreateSuperStream, correlation_id, changes);
        self.proceed(changes, cx);
        Ok(())
    }

    pub(crate) fn delete_super_stream(
        &mut self,
        correlation_id: u32,
        super_stream: &str,
        cx: &mut StepContext<'_>,
    ) -> Result<(), ResponseCode> {
        let plan = self
            .caller(cx.broker)
            .plan_super_stream_deletion(super_stream);
        let changes = plan.map_err(|error| code_of(&error))?;
        let changes = Changes::new(CommandKey::DeleteSuperStream, correlation_id, changes);
        self.proceed(changes, cx);
        Ok(())
    }

    /// Closes the connection because a frame is malformed.
    pub(crate) fn close_malformed(&mut self, error: &DecodeError, cx: &mut StepContext<'_>) {
        let code = ResponseCode::UNKNOWN_FRAME;
        count_error(code, cx);
        self.flush_confirms(cx);
        self.connection
            .close(code, &error.to_string(), cx.out.tail());
        self.begin_closing(cx);
    }
}
