//! `/api/connections`.

use crate::access::Call;
use crate::ask::Api;
use crate::dispatch::{Answer, json, no_content};
use crate::error::ApiError;
use crate::page::Window;
use crate::queues::{NodeNames, node_names};
use control::{ConnectionFacts, ControlRequest};
use serde_json::{Value as Json, json as object};

fn show(connection: &ConnectionFacts, names: &NodeNames) -> Json {
    let (host, port) = connection
        .peer
        .rsplit_once(':')
        .unwrap_or((&connection.peer, ""));
    object!({
        "name": connection.name,
        "node": names.get(&connection.node),
        "user": connection.user,
        "vhost": connection.vhost,
        "protocol": connection.protocol,
        "channels": connection.channels,
        "user_provided_name": connection.client_name,
        "client_properties": {"connection_name": connection.client_name},
        "peer_host": host,
        "peer_port": port.parse::<u16>().ok(),
        "state": "running",
    })
}

/// Those that the user may see: all for monitors, else its own.
async fn visible(api: &Api, call: &Call) -> Result<Vec<ConnectionFacts>, ApiError> {
    let mut all = api
        .ask(|reply| ControlRequest::Connections { reply })
        .await?;
    if !call.is_monitor() {
        all.retain(|c| *c.user == *call.user.name);
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

pub(crate) async fn list(api: &Api, call: &Call, vhost: Option<&str>) -> Answer {
    let window = Window::of(&call.query)?;
    if let Some(vhost) = vhost {
        api.visible(call, vhost).await?;
    }
    let mut found = visible(api, call).await?;
    found.retain(|c| vhost.is_none_or(|v| c.vhost == v));
    let names = api.read(node_names).await?;
    let (part, cut) = window.cut(found, |c| &c.name)?;
    Ok(cut.respond(part.iter().map(|c| show(c, &names)).collect()))
}

async fn find(api: &Api, call: &Call, name: &str) -> Result<ConnectionFacts, ApiError> {
    let found = visible(api, call).await?;
    let named = found.into_iter().find(|c| c.name == name);
    named.ok_or_else(ApiError::not_found)
}

pub(crate) async fn get(api: &Api, call: &Call, name: &str) -> Answer {
    let found = find(api, call, name).await?;
    let names = api.read(node_names).await?;
    json(show(&found, &names))
}

pub(crate) async fn close(api: &Api, call: &Call, name: &str) -> Answer {
    let found = find(api, call, name).await?;
    if !call.is_administrator() && *found.user != *call.user.name {
        return Err(ApiError::not_authorized("Not administrator user"));
    }
    let reason = call.reason.clone();
    let reason = reason.unwrap_or_else(|| "Closed via management plugin".to_owned());
    let name = found.name;
    let closed = api
        .ask(|reply| ControlRequest::CloseConnection {
            name,
            reason,
            reply,
        })
        .await?;
    if closed {
        no_content()
    } else {
        Err(ApiError::not_found())
    }
}
