//! `/api/channels`.

use crate::access::AuthenticatedRequest;
use crate::ask::Api;
use crate::connections::{self, address, visible_connections};
use crate::consumers;
use crate::dispatch::{ApiResult, json};
use crate::error::ApiError;
use crate::page::ListRequest;
use crate::queues::{NodeNames, node_names};
use crate::rates::{self, Key, Range};
use control::{ChannelFacts, ConnectionFacts};
use serde_json::{Value as Json, json as object};

/// `peer -> host (number)`, RabbitMQ's format.
pub(crate) fn name(connection: &ConnectionFacts, channel: &ChannelFacts) -> String {
    format!("{} ({})", connection.name, channel.number)
}

/// The summary of a channel in other objects' listings.
pub(crate) fn summary(
    connection: &ConnectionFacts,
    channel: &ChannelFacts,
    names: &NodeNames,
) -> Json {
    let (host, port) = address(&connection.peer);
    object!({
        "name": name(connection, channel),
        "number": channel.number,
        "node": names.get(&connection.node),
        "connection_name": connection.name,
        "peer_host": host,
        "peer_port": port,
        "user": connection.user,
    })
}

fn show(
    api: &Api,
    connection: &ConnectionFacts,
    channel: &ChannelFacts,
    names: &NodeNames,
    range: Option<&Range>,
) -> Json {
    let name = name(connection, channel);
    let (host, port) = address(&connection.peer);
    let mut stats = object!({});
    let counts = (&rates::COUNTS[..], &rates::counts(&channel.counts)[..]);
    let at = (Key::Channel(name.clone()), range);
    rates::show_counts(api, at, &mut stats, counts);
    object!({
        "name": name,
        "number": channel.number,
        "node": names.get(&connection.node),
        "user": connection.user,
        "user_who_performed_action": connection.user,
        "vhost": connection.vhost,
        "state": if channel.flow_blocked { "flow" } else { "running" },
        "confirm": channel.confirm,
        "transactional": channel.transactional,
        "client_flow_blocked": channel.flow_blocked,
        "prefetch_count": channel.prefetch,
        "global_prefetch_count": channel.global_prefetch,
        "consumer_count": channel.consumers,
        "messages_unacknowledged": channel.unacknowledged,
        "messages_unconfirmed": channel.unconfirmed,
        "messages_uncommitted": channel.uncommitted,
        "acks_uncommitted": channel.acks_uncommitted,
        "message_stats": stats,
        "connection_details": {
            "name": connection.name,
            "peer_host": host,
            "peer_port": port,
        },
    })
}

/// Responds with the channels of the connections that match.
async fn answer(
    api: &Api,
    call: &AuthenticatedRequest,
    matches: impl Fn(&ConnectionFacts) -> bool,
) -> ApiResult {
    let window = ListRequest::of(&call.query)?;
    let range = Range::of(&call.query, "msg_rates")?;
    let names = api.read(node_names).await?;
    let found = visible_connections(api, call).await?;
    let all = found.iter().filter(|c| matches(c)).flat_map(|connection| {
        let channels = connection.channels.iter();
        channels.map(move |channel| (name(connection, channel), connection, channel))
    });
    let (part, cut) = window.cut(all.collect(), |(name, ..)| name)?;
    let shown = part
        .iter()
        .map(|(_, c, ch)| show(api, c, ch, &names, range.as_ref()));
    Ok(cut.respond(shown.collect()))
}

pub(crate) async fn list(api: &Api, call: &AuthenticatedRequest, vhost: Option<&str>) -> ApiResult {
    if let Some(vhost) = vhost {
        api.require_vhost_visible(call, vhost).await?;
    }
    answer(api, call, |c| vhost.is_none_or(|v| c.vhost == v)).await
}

pub(crate) async fn of_connection(
    api: &Api,
    call: &AuthenticatedRequest,
    connection: &str,
) -> ApiResult {
    connections::find(api, call, connection).await?;
    answer(api, call, |c| c.name == connection).await
}

pub(crate) async fn get(api: &Api, call: &AuthenticatedRequest, wanted_name: &str) -> ApiResult {
    let range = Range::of(&call.query, "msg_rates")?;
    let names = api.read(node_names).await?;
    for connection in visible_connections(api, call).await? {
        for channel in &connection.channels {
            if name(&connection, channel) == wanted_name {
                let mut shown = show(api, &connection, channel, &names, range.as_ref());
                let mut consumers = consumers::consumer_list(api, None).await?;
                consumers.retain(|c| c["channel_details"]["name"] == wanted_name);
                shown["consumer_details"] = Json::Array(consumers);
                // Counts per exchange and per queue are not kept.
                shown["publishes"] = object!([]);
                shown["deliveries"] = object!([]);
                return json(call.query.columns_of(shown));
            }
        }
    }
    Err(ApiError::not_found())
}
