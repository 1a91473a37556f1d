//! `/api/connections/:name/sessions`: sessions and links of AMQP 1.0.

use crate::access::AuthenticatedRequest;
use crate::ask::Api;
use crate::connections;
use crate::dispatch::{ApiResult, json};
use crate::error::ApiError;
use control::{ChannelFacts, LinkFacts};
use serde_json::{Value as Json, json as object};

/// A limit, or RabbitMQ's text for none.
fn limit(bytes: Option<u64>) -> Json {
    bytes.map_or_else(|| Json::from("unlimited"), Json::from)
}

fn incoming(link: &LinkFacts) -> Json {
    object!({
        "handle": link.handle,
        "link_name": link.name,
        "target_address": link.address,
        "snd_settle_mode": link.settle_mode,
        "max_message_size": limit(link.max_message_size),
        "delivery_count": link.delivery_count,
        "credit": link.credit,
        "unconfirmed_messages": link.unconfirmed,
    })
}

fn outgoing(link: &LinkFacts) -> Json {
    object!({
        "handle": link.handle,
        "link_name": link.name,
        "source_address": link.address,
        "queue_name": link.queue,
        "send_settled": link.settle_mode == "settled",
        "max_message_size": limit(link.max_message_size),
        "delivery_count": link.delivery_count,
        "credit": link.credit,
        "filter": link.filters,
    })
}

fn show(channel: &ChannelFacts) -> Option<Json> {
    let session = channel.links.as_ref()?;
    Some(object!({
        "channel_number": channel.number,
        "handle_max": session.handle_max,
        "next_incoming_id": session.next_incoming_id,
        "incoming_window": session.incoming_window,
        "next_outgoing_id": session.next_outgoing_id,
        "remote_incoming_window": session.remote_incoming_window,
        "remote_outgoing_window": session.remote_outgoing_window,
        "outgoing_unsettled_deliveries": channel.unacknowledged,
        "incoming_links": session.incoming.iter().map(incoming).collect::<Json>(),
        "outgoing_links": session.outgoing.iter().map(outgoing).collect::<Json>(),
    }))
}

/// The sessions of a connection. As in RabbitMQ, other protocols than AMQP 1.0 are refused.
pub(crate) async fn list(api: &Api, call: &AuthenticatedRequest, name: &str) -> ApiResult {
    let connection = connections::find(api, call, name).await?;
    if !connection.protocol.ends_with("amqp10") {
        return Err(ApiError::bad_request(format!(
            "connection '{name}' has no sessions: its protocol is not AMQP 1.0"
        )));
    }
    json(connection.channels.iter().filter_map(show).collect())
}
