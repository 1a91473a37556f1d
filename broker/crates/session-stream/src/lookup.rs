//! Streams, their nodes, and super streams.

use crate::config::PROTOCOL;
use crate::session::{StepContext, StreamSession};
use codec_stream::{
    Broker as Endpoint, CommandKey, CommandVersions, List, NO_LEADER, OffsetSpecification,
    ResponseCode, ServerCommand, StreamMetadata,
};
use env::NodeId;
use message::Table;
use metadata::{Name, QueueRecord, Right, RouteResult, Tree};
use operations::{
    ErrorKind, Resource, is_stream, partition_order, partitions_of, stream_of_binding,
};
use queue::cursor::StreamRequest;
use session::Broker;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The number of a stream in a super stream: the order of its binding, or else the number at the end of its name. None:
/// it has none, or is no partition.
pub(crate) fn partition_index(
    tree: &Tree,
    vhost: &str,
    super_stream: &str,
    stream: &str,
) -> Option<u32> {
    tree.exchange(vhost, super_stream)?;
    let bindings = tree.bindings_from(vhost, super_stream);
    let of_stream = bindings.into_iter().filter(|binding| {
        stream_of_binding(tree, binding).is_some_and(|record| *record.name == *stream)
    });
    let binding = of_stream.min_by_key(|binding| partition_order(binding).unwrap_or(i64::MAX))?;
    let order = partition_order(binding).or_else(|| stream.rsplit_once('-')?.1.parse().ok());
    order.and_then(|order| u32::try_from(order).ok())
}

impl StreamSession {
    /// Fails unless the user has this right.
    pub(crate) fn check(
        &self,
        right: Right,
        resource: Resource<'_>,
        cx: &StepContext<'_>,
    ) -> Result<(), ResponseCode> {
        let checked = self.caller(cx.broker).check(right, resource);
        checked.map_err(|error| match error.kind {
            ErrorKind::AccessRefused => ResponseCode::ACCESS_REFUSED,
            _ => ResponseCode::INTERNAL_ERROR,
        })
    }

    /// The stream with this name.
    pub(crate) fn find_stream(
        &self,
        stream: &str,
        cx: &StepContext<'_>,
    ) -> Result<Arc<QueueRecord>, ResponseCode> {
        let record = cx.broker.tree().queue(&self.vhost, stream);
        let record = record.filter(|record| is_stream(record));
        record.cloned().ok_or(ResponseCode::STREAM_DOES_NOT_EXIST)
    }

    /// The stream with this name, if one of its nodes can be reached.
    pub(crate) fn available_stream(
        &self,
        stream: &str,
        cx: &StepContext<'_>,
    ) -> Result<Arc<QueueRecord>, ResponseCode> {
        let record = self.find_stream(stream, cx)?;
        let is_lost = cx.broker.tree().lost_on(record.id).is_some();
        let is_available = match cx.broker.leader_of(&record) {
            Some(leader) => cx.broker.is_reachable(leader),
            None => record
                .members
                .iter()
                .any(|node| cx.broker.is_reachable(*node)),
        };
        match is_available && !is_lost {
            true => Ok(record),
            false => Err(ResponseCode::STREAM_NOT_AVAILABLE),
        }
    }

    /// Host and port under which clients like this one reach a node. A node that has stated no address is expected to have
    /// the same port as this one.
    pub(crate) fn address_of(&self, node: NodeId, broker: &dyn Broker) -> Option<(Name, u16)> {
        let tree = broker.tree();
        if let Some(address) = tree.client_address(node, PROTOCOL, self.tls.is_some()) {
            return Some((address.host.clone(), address.port));
        }
        let record = tree.node(node)?;
        let (host, _) = record.address.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Some((host.into(), self.local.port()))
    }

    /// Sends the nodes of streams. Fails if a stream does not exist and the tree may be outdated.
    pub(crate) fn metadata(
        &mut self,
        correlation_id: u32,
        names: &List<'_, &str>,
        may_retry: bool,
        cx: &mut StepContext<'_>,
    ) -> Result<(), ResponseCode> {
        let mut streams: Vec<(&str, Option<Arc<QueueRecord>>)> = Vec::new();
        for name in names.iter() {
            if streams.iter().any(|(other, _)| *other == name) {
                continue;
            }
            let record = self.find_stream(name, cx);
            if record.is_err() && may_retry {
                return Err(ResponseCode::STREAM_DOES_NOT_EXIST);
            }
            streams.push((name, record.ok()));
        }
        let mut nodes: BTreeMap<NodeId, Option<(u16, Name, u16)>> = BTreeMap::new();
        let mut reference_of = |node: NodeId, broker: &dyn Broker| {
            let next = nodes.values().flatten().count() as u16;
            let endpoint = nodes.entry(node).or_insert_with(|| {
                let is_drained = broker.tree().node(node).is_none_or(|n| n.maintenance);
                let address = self.address_of(node, broker).filter(|_| !is_drained);
                address.map(|(host, port)| (next, host, port))
            });
            endpoint.as_ref().map(|(reference, ..)| *reference)
        };
        let mut found: Vec<(ResponseCode, u16, Vec<u16>)> = Vec::new();
        for (_, record) in &streams {
            let Some(record) = record else {
                found.push((ResponseCode::STREAM_DOES_NOT_EXIST, NO_LEADER, Vec::new()));
                continue;
            };
            let leader = cx.broker.leader_of(record);
            let leader = leader.filter(|node| cx.broker.is_reachable(*node));
            let reference = leader.and_then(|node| reference_of(node, cx.broker));
            let replicas = record.members.iter().filter(|node| Some(**node) != leader);
            let replicas = replicas.filter(|node| cx.broker.is_reachable(**node));
            let replicas: Vec<u16> = replicas
                .filter_map(|node| reference_of(*node, cx.broker))
                .collect();
            found.push((ResponseCode::OK, reference.unwrap_or(NO_LEADER), replicas));
        }
        let brokers: Vec<Endpoint<'_>> = nodes
            .values()
            .flatten()
            .map(|(reference, host, port)| Endpoint {
                reference: *reference,
                host,
                port: u32::from(*port),
            })
            .collect();
        let streams: Vec<StreamMetadata<'_>> = streams
            .iter()
            .zip(&found)
            .map(|((stream, _), (code, leader, replicas))| StreamMetadata {
                stream,
                code: *code,
                leader: *leader,
                replicas: List::from(&replicas[..]),
            })
            .collect();
        ServerCommand::Metadata {
            correlation_id,
            brokers: List::from(&brokers[..]),
            streams: List::from(&streams[..]),
        }
        .encode(cx.out.tail());
        Ok(())
    }

    pub(crate) fn route(
        &mut self,
        correlation_id: u32,
        routing_key: &str,
        super_stream: &str,
        cx: &mut StepContext<'_>,
    ) -> Result<(), ResponseCode> {
        let tree = cx.broker.tree();
        let mut routes = std::mem::take(&mut self.routes);
        routes.clear();
        let keys = [routing_key];
        let result = tree.route(
            &self.vhost,
            super_stream,
            &keys,
            &Table::default,
            &mut routes,
        );
        let streams = routes.iter().filter_map(|id| tree.queue_by_id(*id));
        let streams = streams.filter(|record| is_stream(record));
        let streams: Vec<Name> = streams.map(|record| record.name.clone()).collect();
        self.routes = routes;
        if result == RouteResult::NoExchange || super_stream.is_empty() {
            return Err(ResponseCode::STREAM_DOES_NOT_EXIST);
        }
        let streams: Vec<&str> = streams.iter().map(|name| &**name).collect();
        ServerCommand::Route {
            correlation_id,
            code: ResponseCode::OK,
            streams: List::from(&streams[..]),
        }
        .encode(cx.out.tail());
        Ok(())
    }

    pub(crate) fn partitions(
        &mut self,
        correlation_id: u32,
        super_stream: &str,
        cx: &mut StepContext<'_>,
    ) -> Result<(), ResponseCode> {
        let streams = partitions_of(cx.broker.tree(), &self.vhost, super_stream)
            .ok_or(ResponseCode::STREAM_DOES_NOT_EXIST)?;
        let streams: Vec<&str> = streams.iter().map(|name| &**name).collect();
        ServerCommand::Partitions {
            correlation_id,
            code: ResponseCode::OK,
            streams: List::from(&streams[..]),
        }
        .encode(cx.out.tail());
        Ok(())
    }

    pub(crate) fn exchange_versions(
        &mut self,
        correlation_id: u32,
        commands: &List<'_, CommandVersions>,
        cx: &mut StepContext<'_>,
    ) {
        let deliver = CommandKey::Deliver.versions();
        let mut commands = commands.iter();
        if commands.any(|command| command.key == deliver.key && command.max >= 2) {
            self.reads_committed = true;
        }
        let versions: Vec<CommandVersions> =
            CommandKey::ALL.iter().map(|key| key.versions()).collect();
        ServerCommand::ExchangeCommandVersions {
            correlation_id,
            code: ResponseCode::OK,
            commands: List::from(&versions[..]),
        }
        .encode(cx.out.tail());
    }

    pub(crate) fn query_publisher(
        &mut self,
        correlation_id: u32,
        reference: &str,
        stream: &str,
        cx: &mut StepContext<'_>,
    ) -> Result<(), ResponseCode> {
        let name = reference.into();
        let request = StreamRequest::QueryPublisher { name };
        let command = CommandKey::QueryPublisherSequence;
        self.ask(stream, request, command, correlation_id, cx)
    }

    pub(crate) fn query_offset(
        &mut self,
        correlation_id: u32,
        reference: &str,
        stream: &str,
        cx: &mut StepContext<'_>,
    ) -> Result<(), ResponseCode> {
        let name = reference.into();
        let request = StreamRequest::QueryOffset { name };
        self.ask(stream, request, CommandKey::QueryOffset, correlation_id, cx)
    }

    pub(crate) fn statistics(
        &mut self,
        correlation_id: u32,
        stream: &str,
        cx: &mut StepContext<'_>,
    ) -> Result<(), ResponseCode> {
        let request = StreamRequest::Stats;
        self.ask(stream, request, CommandKey::StreamStats, correlation_id, cx)
    }

    pub(crate) fn resolve_offset(
        &mut self,
        correlation_id: u32,
        stream: &str,
        offset: OffsetSpecification,
        cx: &mut StepContext<'_>,
    ) -> Result<(), ResponseCode> {
        let start = crate::consume::start_of(offset).ok_or(ResponseCode::PRECONDITION_FAILED)?;
        let request = StreamRequest::ResolveOffset { start };
        let command = CommandKey::ResolveOffsetSpec;
        self.ask(stream, request, command, correlation_id, cx)
    }

    /// Asks a stream that the user may read.
    fn ask(
        &mut self,
        stream: &str,
        request: StreamRequest,
        command: CommandKey,
        correlation_id: u32,
        cx: &mut StepContext<'_>,
    ) -> Result<(), ResponseCode> {
        self.check(Right::Read, Resource::Queue(stream), cx)?;
        let record = self.available_stream(stream, cx)?;
        self.query(record.id, request, command, correlation_id, cx);
        Ok(())
    }
}
