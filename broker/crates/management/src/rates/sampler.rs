//! Background sampling every five seconds: cluster totals and nodes, whose counters the shards
//! maintain, and recently requested objects, limited to what a shard reports in one turn.

use super::{
    ClockReading, Key, churn, counts, exchange_counts, lengths as length_values, octets,
    queue_counts, resource_usage,
};
use crate::ask::{Api, WeakApi};
use crate::channels;
use crate::error::ApiError;
use crate::lengths;
use crate::overview;
use control::{ControlRequest, Counters, QueueFacts, TrafficFilter};
use metadata::QueueId;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::MissedTickBehavior;

const INTERVAL: Duration = Duration::from_secs(5);
/// Time limit for sampling all requested objects.
const TIMEOUT: Duration = Duration::from_secs(4);
/// Up to this many requested queues are sampled individually.
const MAX_SINGLE_QUEUES: usize = 16;
/// Above [`MAX_SINGLE_QUEUES`], all queues are sampled together if the cluster has at most this
/// many: a shard reports them in one turn.
const ALL_QUEUES: usize = 1_000;
/// In larger clusters, this many of the most recently requested queues are sampled individually.
const MAX_RECENT_QUEUES: usize = 64;
/// Maximum number of connections and channels of the cluster; above it they are not sampled.
const MAX_CLIENTS: u64 = 1_000;
/// Maximum number of sampled vhosts and exchanges, most recently requested first: a shard reports
/// them in one turn.
const MAX_NAMES: usize = 1_000;

/// Samples until the API is dropped.
pub(crate) async fn run(api: WeakApi) {
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick fires immediately, before there is anything to sample.
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let Some(api) = api.upgrade() else {
            return;
        };
        if let Err(error) = sample(&api).await {
            tracing::debug!(event = "rates_not_sampled", reason = error.text());
        }
    }
}

/// Takes one sample of everything. A node that does not answer, for example because it is starting,
/// leaves a gap.
pub(crate) async fn sample(api: &Api) -> Result<(), ApiError> {
    let nodes = overview::counters_by_node(api).await?;
    let counters = overview::sum(&nodes);
    let requested = {
        let at = api.moment();
        let mut rates = api.rates();
        let all = &counters.queues;
        let depths = length_values(all.ready, all.unacknowledged, all.dead + all.delayed);
        rates.note(Key::Overview, at, &counts(&counters.messages()));
        rates.note(Key::MessageTotals, at, &depths);
        rates.note(Key::Churn, at, &churn(&counters));
        for (node, counters) in &nodes {
            rates.note(Key::NodeChurn(node.0), at, &churn(counters));
            let resources = api.resources_of(*node, counters);
            if let Some(usage) = resource_usage(&resources, counters.connections) {
                rates.note(Key::NodeUse(node.0), at, &usage);
            }
        }
        rates.drop_expired(at.now);
        RequestedObjects::of(rates.recently_requested(at.now))
    };
    let sampling = async {
        traffic(api, requested.names).await?;
        queues(api, requested.queues).await?;
        if requested.depths {
            vhost_depths(api).await?;
        }
        match requested.clients {
            true => clients(api, &counters).await,
            false => Ok(()),
        }
    };
    // Unreachable nodes must not delay the samples of cluster totals.
    let sampling = tokio::time::timeout(TIMEOUT, sampling).await;
    sampling.unwrap_or_else(|_| Err(ApiError::unavailable("not all answered in time")))
}

struct RequestedObjects {
    /// Most recently requested first.
    queues: Vec<QueueId>,
    clients: bool,
    /// Lengths of virtual hosts.
    depths: bool,
    /// Keys of virtual hosts and exchanges.
    names: Vec<Key>,
}

impl RequestedObjects {
    fn of<'a>(keys: impl Iterator<Item = (&'a Key, env::Time)>) -> RequestedObjects {
        let mut queues = BTreeMap::new();
        let (mut clients, mut depths) = (false, false);
        let mut names = Vec::new();
        for (key, last_requested) in keys {
            match key {
                Key::Queue(id) | Key::Depth(id) => {
                    let latest = queues.entry(*id).or_insert(last_requested);
                    *latest = last_requested.max(*latest);
                }
                Key::Connection(_) | Key::Channel(_) => clients = true,
                Key::Vhost(_) | Key::Exchange(..) => names.push((last_requested, key)),
                Key::VhostDepth(_) => depths = true,
                Key::Overview
                | Key::MessageTotals
                | Key::Churn
                | Key::NodeChurn(_)
                | Key::NodeUse(_) => {}
            }
        }
        let mut queues: Vec<_> = queues.into_iter().collect();
        queues.sort_by_key(|(id, last_requested)| (std::cmp::Reverse(*last_requested), *id));
        RequestedObjects {
            queues: queues.into_iter().map(|(id, _)| QueueId(id)).collect(),
            clients,
            depths,
            names: latest(names),
        }
    }
}

/// The most recently requested names, up to [`MAX_NAMES`].
fn latest(mut names: Vec<(env::Time, &Key)>) -> Vec<Key> {
    if names.len() > MAX_NAMES {
        names.select_nth_unstable_by(MAX_NAMES, |a, b| b.cmp(a));
        names.truncate(MAX_NAMES);
    }
    names.into_iter().map(|(_, key)| key.clone()).collect()
}

async fn traffic(api: &Api, requested: Vec<Key>) -> Result<(), ApiError> {
    let mut filter = TrafficFilter::default();
    for key in requested {
        match key {
            Key::Vhost(name) => filter.vhosts.push(name),
            Key::Exchange(vhost, name) => filter.exchanges.push((vhost, name)),
            _ => {}
        }
    }
    if filter == TrafficFilter::default() {
        return Ok(());
    }
    let facts = api.traffic(filter.clone()).await?;
    let at = api.moment();
    let mut rates = api.rates();
    for name in filter.vhosts {
        let length_values = facts.vhosts.get(&name).copied().unwrap_or_default();
        rates.note(Key::Vhost(name), at, &counts(&length_values));
    }
    for (vhost, name) in filter.exchanges {
        let length_values = exchange_counts(facts.exchange(&vhost, &name));
        rates.note(Key::Exchange(vhost, name), at, &length_values);
    }
    Ok(())
}

async fn queues(api: &Api, requested: Vec<QueueId>) -> Result<(), ApiError> {
    if requested.len() > MAX_SINGLE_QUEUES
        && api.read(|tree| tree.queue_count()).await? <= ALL_QUEUES
    {
        let facts = api.queue_facts(None).await?;
        note(api, &facts);
        return Ok(());
    }
    for queue in requested.into_iter().take(MAX_RECENT_QUEUES) {
        note(api, &api.queue_facts(Some(queue)).await?);
    }
    Ok(())
}

/// Skipped with many queues, because every queue has to be read.
async fn vhost_depths(api: &Api) -> Result<(), ApiError> {
    if api.read(|tree| tree.queue_count()).await? > ALL_QUEUES {
        return Ok(());
    }
    let depths = lengths::of_all(api).await?;
    let at = api.moment();
    let mut rates = api.rates();
    for (vhost, depth) in &*depths {
        rates.note(Key::VhostDepth(vhost.to_string()), at, depth);
    }
    Ok(())
}

fn note(api: &Api, facts: &[QueueFacts]) {
    let at = api.moment();
    let mut rates = api.rates();
    for queue in facts {
        if let Some(stats) = &queue.stats {
            let depth = length_values(
                stats.ready,
                stats.unacknowledged,
                stats.dead + stats.delayed,
            );
            rates.note(Key::Depth(queue.id.0), at, &depth);
            let counts = queue_counts(&queue.counters);
            rates.note(Key::Queue(queue.id.0), at, &counts);
        }
    }
}

async fn clients(api: &Api, counters: &Counters) -> Result<(), ApiError> {
    if counters.connections + counters.channels > MAX_CLIENTS {
        return Ok(());
    }
    let connections = api
        .ask(|reply| ControlRequest::Connections { reply })
        .await?;
    let at: ClockReading = api.moment();
    let mut rates = api.rates();
    for connection in &connections {
        let key = Key::Connection(connection.name.clone());
        rates.note(key, at, &octets(connection));
        for channel in &connection.channels {
            let key = Key::Channel(channels::name(connection, channel));
            rates.note(key, at, &counts(&channel.counts));
        }
    }
    Ok(())
}
