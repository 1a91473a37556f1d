//! `/api/stream`: connections of the stream protocol, with their publishers and consumers. Paths and names are those of
//! RabbitMQ's plugin `rabbitmq_stream_management`.

use crate::access::AuthenticatedRequest;
use crate::ask::Api;
use crate::connections::{self, address, visible_connections};
use crate::dispatch::{ApiResult, json};
use crate::error::ApiError;
use crate::page::ListRequest;
use crate::queues::{NodeNames, node_names};
use crate::streams;
use control::{ConnectionFacts, StreamConsumerFacts, StreamFilter, StreamPublisherFacts};
use serde_json::{Value as Json, json as object};
use std::collections::BTreeMap;

/// The lag of each consumer, by node and number of its session and by its subscription id.
type Lags = BTreeMap<(u64, u64, u8), u64>;

/// Connections of the stream protocol that the user may see, in one virtual host or in all.
async fn stream_connections(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: Option<&str>,
) -> Result<Vec<ConnectionFacts>, ApiError> {
    if let Some(vhost) = vhost {
        api.require_vhost_visible(call, vhost).await?;
    }
    let mut found = visible_connections(api, call).await?;
    found.retain(|c| c.stream.is_some() && vhost.is_none_or(|v| c.vhost == v));
    Ok(found)
}

/// A connection of the stream protocol in a virtual host.
async fn find(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    name: &str,
) -> Result<ConnectionFacts, ApiError> {
    let found = stream_connections(api, call, Some(vhost)).await?;
    let named = found.into_iter().find(|c| c.name == name);
    named.ok_or_else(ApiError::not_found)
}

/// The lags of the consumers of these connections. A stream whose replicas do not answer has none.
async fn lags(api: &Api, connections: &[ConnectionFacts]) -> Result<Lags, ApiError> {
    let consumers = connections.iter().flat_map(|c| &c.stream);
    if consumers
        .flat_map(|stream| &stream.consumers)
        .next()
        .is_none()
    {
        return Ok(Lags::new());
    }
    let of = StreamFilter {
        readers: true,
        ..StreamFilter::default()
    };
    let replicas = streams::replicas(api, of).await?;
    let mut readers: Vec<_> = replicas.into_iter().flat_map(|r| r.readers).collect();
    // A subscription id that is used again belongs to the newest consumer.
    readers.sort_unstable_by_key(|reader| reader.consumer);
    let lag = |reader: control::StreamReaderFacts| {
        let subscription = (reader.consumer & 0xff) as u8;
        let key = (reader.session_node, reader.session_number, subscription);
        (key, reader.lag)
    };
    Ok(readers.into_iter().map(lag).collect())
}

fn connection_details(connection: &ConnectionFacts, names: &NodeNames) -> Json {
    let (host, port) = address(&connection.peer);
    object!({
        "name": connection.name,
        "node": names.get(&connection.node),
        "peer_host": host,
        "peer_port": port,
        "user": connection.user,
    })
}

fn show_publisher(
    publisher: &StreamPublisherFacts,
    connection: &ConnectionFacts,
    names: &NodeNames,
) -> Json {
    object!({
        "connection_details": connection_details(connection, names),
        "queue": {"name": publisher.stream, "vhost": connection.vhost},
        "publisher_id": publisher.id,
        "reference": publisher.reference,
        "published": publisher.published,
        "confirmed": publisher.confirmed,
        "errored": publisher.errored,
    })
}

fn show_consumer(
    consumer: &StreamConsumerFacts,
    connection: &ConnectionFacts,
    (names, lags): (&NodeNames, &Lags),
) -> Json {
    let is_single_active = consumer.properties.get("single-active-consumer");
    let is_single_active = is_single_active.is_some_and(|value| value == "true");
    let status = match (consumer.active, is_single_active) {
        (false, _) => "waiting",
        (true, true) => "single_active",
        (true, false) => "up",
    };
    object!({
        "connection_details": connection_details(connection, names),
        "queue": {"name": consumer.stream, "vhost": connection.vhost},
        "subscription_id": consumer.id,
        "credits": consumer.credit,
        "consumed": consumer.consumed,
        "offset": consumer.offset,
        // As in RabbitMQ, a consumer that waits to be the active one has no lag.
        "offset_lag": match consumer.active {
            true => lags.get(&(connection.node.0, connection.number, consumer.id)).copied(),
            false => Some(0),
        },
        "active": consumer.active,
        "activity_status": status,
        "properties": consumer.properties,
        "user": connection.user,
    })
}

fn publishers_of(
    connection: &ConnectionFacts,
    stream: Option<&str>,
    names: &NodeNames,
) -> Vec<Json> {
    let publishers = connection.stream.iter().flat_map(|s| &s.publishers);
    let wanted = publishers.filter(|p| stream.is_none_or(|name| p.stream == name));
    wanted
        .map(|publisher| show_publisher(publisher, connection, names))
        .collect()
}

fn consumers_of(connection: &ConnectionFacts, facts: (&NodeNames, &Lags)) -> Vec<Json> {
    let consumers = connection.stream.iter().flat_map(|s| &s.consumers);
    consumers
        .map(|consumer| show_consumer(consumer, connection, facts))
        .collect()
}

/// The name by which a list of publishers or consumers is searched: that of the stream.
fn stream_name(shown: &Json) -> &str {
    shown["queue"]["name"].as_str().unwrap_or_default()
}

fn respond(call: &AuthenticatedRequest, found: Vec<Json>) -> ApiResult {
    let window = ListRequest::of(&call.query)?;
    let (part, cut) = window.cut(found, stream_name)?;
    Ok(cut.respond(part))
}

pub(crate) async fn list_connections(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: Option<&str>,
) -> ApiResult {
    connections::respond_with(api, call, stream_connections(api, call, vhost).await?).await
}

pub(crate) async fn get_connection(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    name: &str,
) -> ApiResult {
    let found = find(api, call, vhost, name).await?;
    connections::get(api, call, &found.name).await
}

pub(crate) async fn close_connection(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    name: &str,
) -> ApiResult {
    let found = find(api, call, vhost, name).await?;
    connections::close(api, call, &found.name).await
}

pub(crate) async fn connection_publishers(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    name: &str,
) -> ApiResult {
    let found = find(api, call, vhost, name).await?;
    let names = api.read(node_names).await?;
    json(publishers_of(&found, None, &names).into())
}

pub(crate) async fn connection_consumers(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    name: &str,
) -> ApiResult {
    let found = find(api, call, vhost, name).await?;
    let names = api.read(node_names).await?;
    let lags = lags(api, std::slice::from_ref(&found)).await?;
    json(consumers_of(&found, (&names, &lags)).into())
}

pub(crate) async fn list_publishers(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: Option<&str>,
    stream: Option<&str>,
) -> ApiResult {
    let found = stream_connections(api, call, vhost).await?;
    let names = api.read(node_names).await?;
    let shown = found.iter().flat_map(|c| publishers_of(c, stream, &names));
    respond(call, shown.collect())
}

pub(crate) async fn list_consumers(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: Option<&str>,
) -> ApiResult {
    let found = stream_connections(api, call, vhost).await?;
    let names = api.read(node_names).await?;
    let lags = lags(api, &found).await?;
    let shown = found.iter().flat_map(|c| consumers_of(c, (&names, &lags)));
    respond(call, shown.collect())
}
