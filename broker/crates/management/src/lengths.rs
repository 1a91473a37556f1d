//! Total queue lengths of virtual hosts.

use crate::ask::Api;
use crate::error::ApiError;
use crate::rates;
use env::Time;
use metadata::{Name, QueueId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Messages per virtual host: all, ready, unacknowledged.
pub(crate) type MessageTotals = BTreeMap<Name, [u64; 3]>;

/// With more queues than this, the sums are cached for up to [`CACHE_DURATION`].
const MANY: usize = 1_000;
const CACHE_DURATION: Duration = Duration::from_secs(5);

/// The sums computed last.
#[derive(Default)]
pub(crate) struct RecentSums(Mutex<Option<(Time, Arc<MessageTotals>)>>);

impl RecentSums {
    fn get(&self, now: Time) -> Option<Arc<MessageTotals>> {
        let cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = cached
            .as_ref()
            .filter(|(computed_at, _)| now.since(*computed_at) < CACHE_DURATION);
        fresh.map(|(_, depths)| depths.clone())
    }

    fn set(&self, now: Time, depths: Arc<MessageTotals>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, depths));
    }
}

/// Sums for all virtual hosts with a queue that reported statistics.
pub(crate) async fn of_all(api: &Api) -> Result<Arc<MessageTotals>, ApiError> {
    let now = api.moment().now;
    let is_cached = api.read(|tree| tree.queue_count()).await? > MANY;
    if is_cached && let Some(depths) = api.recent_depths().get(now) {
        return Ok(depths);
    }
    let facts = api.queue_facts(None).await?;
    let lengths_by_queue: Vec<(QueueId, [u64; 3])> = facts
        .iter()
        .filter_map(|f| {
            let stats = f.stats.as_ref()?;
            let lengths = rates::lengths(
                stats.ready,
                stats.unacknowledged,
                stats.dead + stats.delayed,
            );
            Some((f.id, lengths))
        })
        .collect();
    let mut depths = MessageTotals::new();
    // Split into parts to keep each turn of the shard short.
    for part in lengths_by_queue.chunks(MANY) {
        let part = part.to_vec();
        let sums = api
            .read(move |tree| {
                let mut sums = MessageTotals::new();
                for (id, lengths) in part {
                    if let Some(queue) = tree.queue_by_id(id) {
                        add(&mut sums, &queue.vhost, lengths);
                    }
                }
                sums
            })
            .await?;
        for (vhost, lengths) in sums {
            add(&mut depths, &vhost, lengths);
        }
    }
    let depths = Arc::new(depths);
    if is_cached {
        api.recent_depths().set(now, depths.clone());
    }
    Ok(depths)
}

fn add(sums: &mut MessageTotals, vhost: &Name, lengths: [u64; 3]) {
    let sum = sums.entry(vhost.clone()).or_default();
    for (sum, length) in sum.iter_mut().zip(lengths) {
        *sum += length;
    }
}
