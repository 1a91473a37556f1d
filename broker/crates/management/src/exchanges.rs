//! `/api/exchanges`.

use crate::access::{Call, ResourceName};
use crate::ask::Api;
use crate::dispatch::{Answer, json, no_content, put};
use crate::error::ApiError;
use crate::json::{Members, from_table};
use crate::page::Window;
use crate::rates::{self, Key, Range};
use control::{TrafficFacts, TrafficFilter};
use message::Value;
use metadata::{Change, ExchangeCursor, ExchangeRecord, Name, Right, Tree};
use serde_json::{Value as Json, json as object};
use std::sync::Arc;

struct Known {
    record: Arc<ExchangeRecord>,
    policy: Option<Name>,
}

impl Known {
    fn of(tree: &Tree, record: &Arc<ExchangeRecord>) -> Known {
        Known {
            policy: tree.effective_exchange_policy(record).name.clone(),
            record: record.clone(),
        }
    }
}

fn show(api: &Api, known: &Known, traffic: &TrafficFacts, range: Option<&Range>) -> Json {
    let mut shown = definition(&known.record);
    // RabbitMQ leaves it out where there is none.
    if let Some(policy) = &known.policy {
        shown["policy"] = object!(&**policy);
    }
    let (vhost, name) = (&*known.record.vhost, &*known.record.name);
    let figures = rates::exchange_counts(traffic.exchange(vhost, name));
    let at = (Key::Exchange(vhost.to_owned(), name.to_owned()), range);
    let mut stats = object!({});
    rates::show_counts(api, at, &mut stats, (&rates::EXCHANGE, &figures));
    shown["message_stats"] = stats;
    shown
}

/// What was published to them.
async fn traffic(api: &Api, known: &[Known]) -> Result<TrafficFacts, ApiError> {
    let names = known.iter().map(|x| &x.record);
    let of = TrafficFilter {
        exchanges: names
            .map(|x| (x.vhost.to_string(), x.name.to_string()))
            .collect(),
        ..TrafficFilter::default()
    };
    api.traffic(of).await
}

/// What the API calls the default exchange in paths.
pub(crate) fn plain(name: &str) -> &str {
    if name == "amq.default" { "" } else { name }
}

pub(crate) async fn list(api: &Api, call: &Call, vhost: Option<&str>) -> Answer {
    let window = Window::of(&call.query)?;
    let range = Range::of(&call.query, "msg_rates")?;
    if let Some(vhost) = vhost {
        api.visible(call, vhost).await?;
    }
    let visible = api.visible_vhosts(call).await?;
    let only = vhost.map(str::to_owned);
    let mut known = api
        .walk(ExchangeCursor::default(), move |tree, x| {
            let fits = only.as_deref().is_none_or(|o| *x.vhost == *o)
                && visible.as_ref().is_none_or(|set| set.contains(&*x.vhost));
            fits.then(|| Known::of(tree, x))
        })
        .await?;
    known.sort_unstable_by(|a, b| {
        let (a, b) = (&a.record, &b.record);
        (&a.vhost, &a.name).cmp(&(&b.vhost, &b.name))
    });
    let (part, cut) = window.cut(known, |x| &x.record.name)?;
    let traffic = traffic(api, &part).await?;
    let shown = part.iter().map(|x| show(api, x, &traffic, range.as_ref()));
    Ok(cut.respond(shown.collect()))
}

async fn find(api: &Api, vhost: &str, name: &str) -> Result<Option<Known>, ApiError> {
    let (vhost, name) = (vhost.to_owned(), name.to_owned());
    api.read(move |tree| tree.exchange(&vhost, &name).map(|x| Known::of(tree, x)))
        .await
}

pub(crate) async fn get(api: &Api, call: &Call, vhost: &str, name: &str) -> Answer {
    api.visible(call, vhost).await?;
    let range = Range::of(&call.query, "msg_rates")?;
    let known = find(api, vhost, plain(name)).await?;
    let known = known.ok_or_else(ApiError::not_found)?;
    let traffic = traffic(api, std::slice::from_ref(&known)).await?;
    let mut shown = show(api, &known, &traffic, range.as_ref());
    // By channel and by queue RabbitMQ counts only with detailed rates, which it says here that it has not.
    shown["incoming"] = object!([]);
    shown["outgoing"] = object!([]);
    json(call.query.columns_of(shown))
}

/// As it stands in a definitions document.
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

/// The exchange that a request describes.
pub(crate) fn record(
    vhost: &str,
    name: &str,
    body: &Members<'_>,
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

pub(crate) async fn declare(api: &Api, call: &Call, vhost: &str, name: &str) -> Answer {
    let name = plain(name);
    api.member(call, vhost).await?;
    let body = call.object()?;
    let record = record(vhost, name, &Members(&body))?;
    let exchange = ResourceName::Exchange(name.to_owned());
    let mut needs = vec![(Right::Configure, exchange.clone())];
    let alternate = record.arguments.get("alternate-exchange");
    if let Some(alternate) = alternate.and_then(Value::as_str) {
        needs.push((Right::Read, exchange));
        needs.push((Right::Write, ResourceName::Exchange(alternate.to_owned())));
    }
    api.permitted(call, vhost, needs).await?;
    let existed = find(api, vhost, name).await?.is_some();
    if !existed && name.starts_with("amq.") {
        return Err(ApiError::not_authorised(format!(
            "exchange name '{name}' contains reserved prefix 'amq.*'"
        )));
    }
    api.change(Change::DeclareExchange(record)).await?;
    put(existed)
}

pub(crate) async fn delete(api: &Api, call: &Call, vhost: &str, name: &str) -> Answer {
    let name = plain(name);
    api.member(call, vhost).await?;
    let exchange = ResourceName::Exchange(name.to_owned());
    api.permitted(call, vhost, vec![(Right::Configure, exchange)])
        .await?;
    if find(api, vhost, name).await?.is_none() {
        return Err(ApiError::not_found());
    }
    let change = Change::DeleteExchange {
        vhost: vhost.into(),
        name: name.into(),
        if_unused: call.query.is_true("if-unused"),
    };
    api.change(change).await?;
    no_content()
}
