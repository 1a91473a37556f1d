//! Samples in the background, every five seconds: sums that the shards keep; and of what somebody has looked at lately no
//! more than a shard tells in one turn.

use super::{
    Key, Moment, churn, counts, exchange_counts, lengths as figures, octets, queue_counts, used,
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

const EVERY: Duration = Duration::from_secs(5);
/// For all that is watched together.
const PATIENCE: Duration = Duration::from_secs(4);
/// Up to so many watched queues are asked for one by one.
const FEW: usize = 16;
/// Above that, all of them together, where the cluster has no more: a shard tells of so many in one turn.
const ALL_QUEUES: usize = 1_000;
/// And where it has more, one by one those that were looked at last.
const MOST: usize = 64;
/// Connections and channels of the cluster; those of one with more are not sampled.
const ALL_CLIENTS: u64 = 1_000;
/// Virtual hosts and exchanges that were looked at last: a shard tells of so many in one turn.
const MOST_NAMES: usize = 1_000;

/// Samples until the API is gone.
pub(crate) async fn run(api: WeakApi) {
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first is at once: there is nothing yet.
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

/// Samples once. A node that does not answer, as while it starts, leaves a gap.
pub(crate) async fn sample(api: &Api) -> Result<(), ApiError> {
    let counters = overview::counters(api).await?;
    let watched = {
        let at = api.moment();
        let mut rates = api.rates();
        let all = &counters.queues;
        let depths = figures(all.ready, all.unacknowledged, all.dead);
        rates.note(Key::Overview, at, &counts(&counters.messages()));
        rates.note(Key::Depths, at, &depths);
        rates.note(Key::Churn, at, &churn(&counters));
        rates.forget(at.now);
        Watched::of(rates.watched(at.now))
    };
    let watching = async {
        traffic(api, watched.names).await?;
        queues(api, watched.queues).await?;
        if watched.depths {
            vhost_depths(api).await?;
        }
        if watched.own {
            own(api).await?;
        }
        match watched.clients {
            true => clients(api, &counters).await,
            false => Ok(()),
        }
    };
    // Nodes that do not answer must not keep the cluster's own sample waiting.
    let watching = tokio::time::timeout(PATIENCE, watching).await;
    watching.unwrap_or_else(|_| Err(ApiError::unavailable("not all answered in time")))
}

struct Watched {
    /// The one that was looked at last comes first.
    queues: Vec<QueueId>,
    clients: bool,
    /// Lengths of virtual hosts.
    depths: bool,
    /// What the node that answers has counted and uses.
    own: bool,
    /// Of virtual hosts and exchanges.
    names: Vec<Key>,
}

impl Watched {
    fn of<'a>(keys: impl Iterator<Item = (&'a Key, env::Time)>) -> Watched {
        let mut queues = BTreeMap::new();
        let (mut clients, mut depths, mut own) = (false, false, false);
        let mut names = Vec::new();
        for (key, looked) in keys {
            match key {
                Key::Queue(id) | Key::Depth(id) => {
                    let latest = queues.entry(*id).or_insert(looked);
                    *latest = looked.max(*latest);
                }
                Key::Connection(_) | Key::Channel(_) => clients = true,
                Key::Vhost(_) | Key::Exchange(..) => names.push((looked, key)),
                Key::VhostDepth(_) => depths = true,
                Key::OwnChurn | Key::OwnUse => own = true,
                Key::Overview | Key::Depths | Key::Churn => {}
            }
        }
        let mut queues: Vec<_> = queues.into_iter().collect();
        queues.sort_by_key(|(id, looked)| (std::cmp::Reverse(*looked), *id));
        Watched {
            queues: queues.into_iter().map(|(id, _)| QueueId(id)).collect(),
            clients,
            depths,
            own,
            names: latest(names),
        }
    }
}

/// As many as are sampled.
fn latest(mut names: Vec<(env::Time, &Key)>) -> Vec<Key> {
    if names.len() > MOST_NAMES {
        names.select_nth_unstable_by(MOST_NAMES, |a, b| b.cmp(a));
        names.truncate(MOST_NAMES);
    }
    names.into_iter().map(|(_, key)| key.clone()).collect()
}

async fn traffic(api: &Api, watched: Vec<Key>) -> Result<(), ApiError> {
    let mut of = TrafficFilter::default();
    for key in watched {
        match key {
            Key::Vhost(name) => of.vhosts.push(name),
            Key::Exchange(vhost, name) => of.exchanges.push((vhost, name)),
            _ => {}
        }
    }
    if of == TrafficFilter::default() {
        return Ok(());
    }
    let facts = api.traffic(of.clone()).await?;
    let at = api.moment();
    let mut rates = api.rates();
    for name in of.vhosts {
        let figures = facts.vhosts.get(&name).copied().unwrap_or_default();
        rates.note(Key::Vhost(name), at, &counts(&figures));
    }
    for (vhost, name) in of.exchanges {
        let figures = exchange_counts(facts.exchange(&vhost, &name));
        rates.note(Key::Exchange(vhost, name), at, &figures);
    }
    Ok(())
}

async fn queues(api: &Api, watched: Vec<QueueId>) -> Result<(), ApiError> {
    if watched.len() > FEW && api.read(|tree| tree.queue_count()).await? <= ALL_QUEUES {
        let facts = api.queue_facts(None).await?;
        note(api, &facts);
        return Ok(());
    }
    for queue in watched.into_iter().take(MOST) {
        note(api, &api.queue_facts(Some(queue)).await?);
    }
    Ok(())
}

/// Where there are few queues: each is to be asked for.
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

async fn own(api: &Api) -> Result<(), ApiError> {
    let counters = overview::own_counters(api).await?;
    let at = api.moment();
    let mut rates = api.rates();
    rates.note(Key::OwnChurn, at, &churn(&counters));
    if let Some(used) = used(&api.config().measured(), counters.connections) {
        rates.note(Key::OwnUse, at, &used);
    }
    Ok(())
}

fn note(api: &Api, facts: &[QueueFacts]) {
    let at = api.moment();
    let mut rates = api.rates();
    for queue in facts {
        if let Some(stats) = &queue.stats {
            let depth = figures(stats.ready, stats.unacknowledged, stats.dead);
            rates.note(Key::Depth(queue.id.0), at, &depth);
            let counts = queue_counts(&queue.counters);
            rates.note(Key::Queue(queue.id.0), at, &counts);
        }
    }
}

async fn clients(api: &Api, counters: &Counters) -> Result<(), ApiError> {
    if counters.connections + counters.channels > ALL_CLIENTS {
        return Ok(());
    }
    let connections = api
        .ask(|reply| ControlRequest::Connections { reply })
        .await?;
    let at: Moment = api.moment();
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
