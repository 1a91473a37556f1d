//! `/api/bindings` and the bindings of queues and exchanges.

use crate::access::AuthenticatedRequest;
use crate::ask::Api;
use crate::dispatch::{ApiResult, json, no_content};
use crate::error::ApiError;
use crate::exchanges::exchange_name;
use crate::json::{JsonMembers, from_table};
use crate::page::ListRequest;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::IntoResponse as _;
use message::Table;
use metadata::{
    BindingCursor, BindingRecord, Destination, QueueCursor, QueueRecord, SourceCursor, Tree,
};
use operations::{BindingOperation, Caller};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value as Json, json as object};
use std::sync::Arc;

/// Characters that a properties key leaves unescaped.
const KEY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');
/// A key within a path also keeps the separator between routing key and argument digest.
const LOCATION: &AsciiSet = &KEY.remove(b'~');

/// Source and destination of a binding.
#[derive(Clone)]
pub(crate) struct BindingEnds {
    vhost: String,
    source: String,
    destination: Destination,
}

impl BindingEnds {
    pub(crate) fn new(vhost: &str, source: &str, kind: &str, destination: &str) -> BindingEnds {
        BindingEnds {
            vhost: vhost.to_owned(),
            source: exchange_name(source).to_owned(),
            destination: match kind {
                "q" => Destination::Queue(destination.into()),
                _ => Destination::Exchange(exchange_name(destination).into()),
            },
        }
    }

    fn record(&self, key: &str, arguments: Table) -> BindingRecord {
        BindingRecord {
            vhost: self.vhost.as_str().into(),
            source: self.source.as_str().into(),
            destination: self.destination.clone(),
            routing_key: key.into(),
            arguments,
        }
    }

    /// None if the source or the destination does not exist.
    fn find(&self, tree: &Tree) -> Option<Vec<Arc<BindingRecord>>> {
        tree.exchange(&self.vhost, &self.source)?;
        match &self.destination {
            Destination::Queue(name) => tree.queue(&self.vhost, name).map(|_| ())?,
            Destination::Exchange(name) => tree.exchange(&self.vhost, name).map(|_| ())?,
        }
        if self.source.is_empty() {
            return Some(match &self.destination {
                Destination::Queue(name) => {
                    let queue = tree.queue(&self.vhost, name);
                    queue.map(|q| implicit(q)).into_iter().collect()
                }
                Destination::Exchange(_) => Vec::new(),
            });
        }
        let from = tree.bindings_from(&self.vhost, &self.source).into_iter();
        let here = from.filter(|b| b.destination == self.destination);
        Some(here.cloned().collect())
    }
}

/// The implicit binding of a queue to the default exchange.
fn implicit(queue: &QueueRecord) -> Arc<BindingRecord> {
    Arc::new(BindingRecord {
        vhost: queue.vhost.clone(),
        source: "".into(),
        destination: Destination::Queue(queue.name.clone()),
        routing_key: queue.name.clone(),
        arguments: Table::default(),
    })
}

/// The implicit bindings of all queues in virtual hosts that `matches_vhost` accepts.
async fn all_implicit(
    api: &Api,
    matches_vhost: impl Fn(&str) -> bool + Send + 'static,
) -> Result<Vec<Arc<BindingRecord>>, ApiError> {
    let queues = api.walk(QueueCursor::default(), move |_, q| {
        matches_vhost(&q.vhost).then(|| q.clone())
    });
    Ok(queues.await?.iter().map(|q| implicit(q)).collect())
}

/// Sorts by vhost, source, destination, routing key and arguments.
pub(crate) fn sort(bindings: &mut [Arc<BindingRecord>]) {
    bindings.sort_by(|a, b| {
        (&a.vhost, &a.source, &a.destination, &a.routing_key)
            .cmp(&(&b.vhost, &b.source, &b.destination, &b.routing_key))
            .then_with(|| properties_key(a).cmp(&properties_key(b)))
    });
}

/// The `properties_key` of a binding: its escaped routing key, followed by a digest of the
/// arguments if there are any.
fn properties_key(binding: &BindingRecord) -> String {
    let key = utf8_percent_encode(&binding.routing_key, KEY).to_string();
    if binding.arguments.is_empty() {
        return if key.is_empty() { "~".into() } else { key };
    }
    let text = from_table(&binding.arguments).to_string();
    let digest = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{key}~{digest:016x}")
}

pub(crate) fn show(binding: &BindingRecord) -> Json {
    let (kind, destination) = match &binding.destination {
        Destination::Queue(name) => ("queue", name),
        Destination::Exchange(name) => ("exchange", name),
    };
    object!({
        "source": &*binding.source,
        "vhost": &*binding.vhost,
        "destination": &**destination,
        "destination_type": kind,
        "routing_key": &*binding.routing_key,
        "arguments": from_table(&binding.arguments),
        "properties_key": properties_key(binding),
    })
}

/// Applies the request's pagination and name filter (on the routing key) to the bindings.
fn answer(call: &AuthenticatedRequest, found: Vec<Arc<BindingRecord>>) -> ApiResult {
    let (part, cut) = ListRequest::of(&call.query)?.cut(found, |b| &b.routing_key)?;
    Ok(cut.respond(part.iter().map(|b| show(b)).collect()))
}

/// Parses a binding of a definitions document.
pub(crate) fn record(vhost: &str, body: &JsonMembers<'_>) -> Result<BindingRecord, ApiError> {
    let kind = match body.required_text("destination_type")? {
        "queue" => "q",
        "exchange" => "e",
        other => {
            return Err(ApiError::bad_request(format!(
                "destination_type '{other}' is neither queue nor exchange"
            )));
        }
    };
    let source = body.required_text("source")?;
    let pair = BindingEnds::new(vhost, source, kind, body.required_text("destination")?);
    let arguments = body.table("arguments")?.unwrap_or_default();
    Ok(pair.record(body.text("routing_key")?.unwrap_or(""), arguments))
}

pub(crate) async fn list(api: &Api, call: &AuthenticatedRequest, vhost: Option<&str>) -> ApiResult {
    if let Some(vhost) = vhost {
        api.require_vhost_visible(call, vhost).await?;
    }
    let visible = api.visible_vhosts(call).await?;
    let only = vhost.map(str::to_owned);
    let matches_vhost = move |vhost: &str| {
        only.as_deref().is_none_or(|o| *vhost == *o)
            && visible.as_ref().is_none_or(|set| set.contains(vhost))
    };
    let mut found = all_implicit(api, matches_vhost.clone()).await?;
    let bound = api.walk(BindingCursor::default(), move |_, b| {
        matches_vhost(&b.vhost).then(|| b.clone())
    });
    found.extend(bound.await?);
    sort(&mut found);
    answer(call, found)
}

pub(crate) async fn of_queue(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    name: &str,
) -> ApiResult {
    api.require_vhost_visible(call, vhost).await?;
    let (vhost, name) = (vhost.to_owned(), name.to_owned());
    let found = api
        .read(move |tree| {
            let queue = tree.queue(&vhost, &name)?;
            let default = BindingEnds::new(&vhost, "", "q", &name);
            let mut all = default.find(tree)?;
            all.extend(tree.bindings_of_queue(queue.id).into_iter().cloned());
            Some(all)
        })
        .await?;
    // As in `between`.
    answer(call, found.unwrap_or_default())
}

pub(crate) async fn of_exchange(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    name: &str,
    as_source: bool,
) -> ApiResult {
    api.require_vhost_visible(call, vhost).await?;
    let (vhost, name) = (vhost.to_owned(), exchange_name(name).to_owned());
    if as_source && name.is_empty() {
        let mut found = all_implicit(api, move |binding_vhost| *binding_vhost == *vhost).await?;
        sort(&mut found);
        return answer(call, found);
    }
    if as_source {
        let from = SourceCursor::new(&vhost, &name);
        let mut found = api.walk(from, |_, b| Some(b.clone())).await?;
        sort(&mut found);
        return answer(call, found);
    }
    let found = api
        .read(move |tree| {
            tree.exchange(&vhost, &name)?;
            let found = tree.bindings_of_exchange(&vhost, &name);
            Some(found.into_iter().cloned().collect())
        })
        .await?;
    // As in `between`.
    answer(call, found.unwrap_or_default())
}

async fn found(api: &Api, pair: &BindingEnds) -> Result<Option<Vec<Arc<BindingRecord>>>, ApiError> {
    let pair = pair.clone();
    api.read(move |tree| pair.find(tree)).await
}

pub(crate) async fn between(
    api: &Api,
    call: &AuthenticatedRequest,
    pair: &BindingEnds,
) -> ApiResult {
    api.require_vhost_visible(call, &pair.vhost).await?;
    // RabbitMQ also returns an empty list if the source or the destination does not exist.
    answer(call, found(api, pair).await?.unwrap_or_default())
}

/// The binding with this properties key, or 404.
async fn one(api: &Api, pair: &BindingEnds, key: &str) -> Result<Arc<BindingRecord>, ApiError> {
    let all = found(api, pair).await?.unwrap_or_default();
    // The path was decoded once: compare in both forms.
    let named = |b: &&Arc<BindingRecord>| {
        let name = properties_key(b);
        name == key || (b.arguments.is_empty() && *b.routing_key == *key)
    };
    let decoded = |b: &&Arc<BindingRecord>| {
        let name = properties_key(b);
        let name = percent_encoding::percent_decode_str(&name).decode_utf8_lossy();
        name == key
    };
    let binding = all.iter().find(named).or_else(|| all.iter().find(decoded));
    binding.cloned().ok_or_else(ApiError::not_found)
}

pub(crate) async fn get(
    api: &Api,
    call: &AuthenticatedRequest,
    pair: &BindingEnds,
    key: &str,
) -> ApiResult {
    api.require_vhost_visible(call, &pair.vhost).await?;
    json(show(&*one(api, pair, key).await?))
}

pub(crate) async fn bind(api: &Api, call: &AuthenticatedRequest, pair: &BindingEnds) -> ApiResult {
    api.require_vhost_access(call, &pair.vhost).await?;
    let body = call.object()?;
    let body = JsonMembers(&body);
    let arguments = body.table("arguments")?.unwrap_or_default();
    let record = pair.record(body.text("routing_key")?.unwrap_or(""), arguments);
    let key = properties_key(&record);
    let plan = move |caller: Caller<'_>| caller.plan_binding(BindingOperation::Bind, record);
    let change = api.operate(call, &pair.vhost, plan).await?;
    api.change(change).await?;
    let mut response = StatusCode::CREATED.into_response();
    let destination = match &pair.destination {
        Destination::Queue(name) | Destination::Exchange(name) => name,
    };
    // RabbitMQ also sends destination and key as a relative path without a base.
    let location =
        [destination, key.as_str()].map(|e| utf8_percent_encode(e, LOCATION).to_string());
    if let Ok(location) = HeaderValue::from_str(&location.join("/")) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

pub(crate) async fn unbind(
    api: &Api,
    call: &AuthenticatedRequest,
    pair: &BindingEnds,
    key: &str,
) -> ApiResult {
    api.require_vhost_access(call, &pair.vhost).await?;
    // Permissions come first, so that nobody learns of bindings that they may not remove.
    let unknown = pair.record("", Table::default());
    let check = move |caller: Caller<'_>| caller.plan_binding(BindingOperation::Unbind, unknown);
    api.operate(call, &pair.vhost, check).await?;
    let binding = BindingRecord::clone(&*one(api, pair, key).await?);
    let plan = move |caller: Caller<'_>| caller.plan_binding(BindingOperation::Unbind, binding);
    let change = api.operate(call, &pair.vhost, plan).await?;
    api.change(change).await?;
    no_content()
}
