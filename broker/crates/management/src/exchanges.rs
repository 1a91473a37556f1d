//! `/api/exchanges`.

use crate::access::AuthenticatedRequest;
use crate::ask::Api;
use crate::dispatch::{ApiResult, json, no_content, put};
use crate::error::ApiError;
use crate::json::{JsonMembers, from_table};
use crate::page::ListRequest;
use crate::rates::{self, Key, Range};
use control::{TrafficFacts, TrafficFilter};
use metadata::{ExchangeCursor, ExchangeRecord, Name, Tree};
use operations::{Caller, ExchangePlan};
use serde_json::{Value as Json, json as object};
use std::sync::Arc;

struct ExchangeView {
    record: Arc<ExchangeRecord>,
    policy: Option<Name>,
}

impl ExchangeView {
    fn filter(tree: &Tree, record: &Arc<ExchangeRecord>) -> ExchangeView {
        ExchangeView {
            policy: tree.effective_exchange_policy(record).name.clone(),
            record: record.clone(),
        }
    }
}

fn show(api: &Api, views: &ExchangeView, traffic: &TrafficFacts, range: Option<&Range>) -> Json {
    let mut shown = definition(&views.record);
    // RabbitMQ omits the key if there is no policy.
    if let Some(policy) = &views.policy {
        shown["policy"] = object!(&**policy);
    }
    let (vhost, name) = (&*views.record.vhost, &*views.record.name);
    let counts = rates::exchange_counts(traffic.exchange(vhost, name));
    let at = (Key::Exchange(vhost.to_owned(), name.to_owned()), range);
    let mut stats = object!({});
    rates::show_counts(api, at, &mut stats, (&rates::EXCHANGE, &counts));
    shown["message_stats"] = stats;
    shown
}

/// Publish counts of these exchanges.
async fn traffic(api: &Api, views: &[ExchangeView]) -> Result<TrafficFacts, ApiError> {
    let names = views.iter().map(|x| &x.record);
    let filter = TrafficFilter {
        exchanges: names
            .map(|x| (x.vhost.to_string(), x.name.to_string()))
            .collect(),
        ..TrafficFilter::default()
    };
    api.traffic(filter).await
}

/// Maps `amq.default`, the name of the default exchange in paths, to its real name.
pub(crate) fn exchange_name(name: &str) -> &str {
    if name == "amq.default" { "" } else { name }
}

pub(crate) async fn list(api: &Api, call: &AuthenticatedRequest, vhost: Option<&str>) -> ApiResult {
    let window = ListRequest::of(&call.query)?;
    let range = Range::of(&call.query, "msg_rates")?;
    if let Some(vhost) = vhost {
        api.require_vhost_visible(call, vhost).await?;
    }
    let visible = api.visible_vhosts(call).await?;
    let only = vhost.map(str::to_owned);
    let mut views = api
        .walk(ExchangeCursor::default(), move |tree, x| {
            let matches = only.as_deref().is_none_or(|o| *x.vhost == *o)
                && visible.as_ref().is_none_or(|set| set.contains(&*x.vhost));
            matches.then(|| ExchangeView::filter(tree, x))
        })
        .await?;
    views.sort_unstable_by(|a, b| {
        let (a, b) = (&a.record, &b.record);
        (&a.vhost, &a.name).cmp(&(&b.vhost, &b.name))
    });
    let (part, cut) = window.cut(views, |x| &x.record.name)?;
    let traffic = traffic(api, &part).await?;
    let shown = part.iter().map(|x| show(api, x, &traffic, range.as_ref()));
    Ok(cut.respond(shown.collect()))
}

async fn find(api: &Api, vhost: &str, name: &str) -> Result<Option<ExchangeView>, ApiError> {
    let (vhost, name) = (vhost.to_owned(), name.to_owned());
    api.read(move |tree| {
        tree.exchange(&vhost, &name)
            .map(|x| ExchangeView::filter(tree, x))
    })
    .await
}

pub(crate) async fn get(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    name: &str,
) -> ApiResult {
    api.require_vhost_visible(call, vhost).await?;
    let range = Range::of(&call.query, "msg_rates")?;
    let views = find(api, vhost, exchange_name(name)).await?;
    let views = views.ok_or_else(ApiError::not_found)?;
    let traffic = traffic(api, std::slice::from_ref(&views)).await?;
    let mut shown = show(api, &views, &traffic, range.as_ref());
    // RabbitMQ counts per channel and per queue only with detailed rates, which are reported as
    // disabled.
    shown["incoming"] = object!([]);
    shown["outgoing"] = object!([]);
    json(call.query.columns_of(shown))
}

/// The exchange's entry in a definitions document.
pub(crate) fn definition(record: &ExchangeRecord) -> Json {
    object!({
        "name": &*record.name,
        "vhost": &*record.vhost,
        "type": &*record.kind,
        "durable": record.durable,
        "auto_delete": record.auto_delete,
        "internal": record.internal,
        "arguments": from_table(&record.arguments),
    })
}

/// Parses the exchange of a request.
pub(crate) fn record(
    vhost: &str,
    name: &str,
    body: &JsonMembers<'_>,
) -> Result<ExchangeRecord, ApiError> {
    Ok(ExchangeRecord {
        vhost: vhost.into(),
        name: name.into(),
        kind: body.text("type")?.unwrap_or("direct").into(),
        durable: body.flag("durable", true)?,
        auto_delete: body.flag("auto_delete", false)?,
        internal: body.flag("internal", false)?,
        arguments: body.table("arguments")?.unwrap_or_default(),
    })
}

pub(crate) async fn declare(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    name: &str,
) -> ApiResult {
    let name = exchange_name(name);
    api.require_vhost_access(call, vhost).await?;
    let body = call.object()?;
    let record = record(vhost, name, &JsonMembers(&body))?;
    let existed = find(api, vhost, name).await?.is_some();
    let plan = move |caller: Caller<'_>| caller.plan_exchange_declaration(record);
    if let ExchangePlan::Propose(change) = api.operate(call, vhost, plan).await? {
        api.change(change).await?;
    }
    put(existed)
}

pub(crate) async fn delete(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    name: &str,
) -> ApiResult {
    let name = exchange_name(name);
    api.require_vhost_access(call, vhost).await?;
    let (exchange, if_unused) = (name.to_owned(), call.query.is_true("if-unused"));
    let plan = move |caller: Caller<'_>| caller.plan_exchange_deletion(&exchange, if_unused);
    let change = api.operate(call, vhost, plan).await?;
    if find(api, vhost, name).await?.is_none() {
        return Err(ApiError::not_found());
    }
    api.change(change).await?;
    no_content()
}
