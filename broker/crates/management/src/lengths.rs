//! How long the queues of virtual hosts are together.

use crate::ask::Api;
use crate::error::ApiError;
use crate::rates;
use env::Time;
use metadata::{Name, QueueId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Messages of a virtual host: all, ready, unacknowledged.
pub(crate) type Depths = BTreeMap<Name, [u64; 3]>;

/// Where there are more queues than this, sums are as old as [`KEPT`] at the most rather than made for each request.
const MANY: usize = 1_000;
const KEPT: Duration = Duration::from_secs(5);

/// Sums that were made lately.
#[derive(Default)]
pub(crate) struct RecentSums(Mutex<Option<(Time, Arc<Depths>)>>);

impl RecentSums {
    fn get(&self, now: Time) -> Option<Arc<Depths>> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = kept.as_ref().filter(|(made, _)| now.since(*made) < KEPT);
        fresh.map(|(_, depths)| depths.clone())
    }

    fn set(&self, now: Time, depths: Arc<Depths>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, depths));
    }
}

/// Of virtual hosts that have queues somebody answers for.
pub(crate) async fn of_all(api: &Api) -> Result<Arc<Depths>, ApiError> {
    let now = api.moment().now;
    let many = api.read(|tree| tree.queue_count()).await? > MANY;
    if many && let Some(depths) = api.lately().get(now) {
        return Ok(depths);
    }
    let facts = api.queue_facts(None).await?;
    let figures: Vec<(QueueId, [u64; 3])> = facts
        .iter()
        .filter_map(|f| {
            let stats = f.stats.as_ref()?;
            let lengths = rates::lengths(stats.ready, stats.unacknowledged, stats.dead);
            Some((f.id, lengths))
        })
        .collect();
    let mut depths = Depths::new();
    // A short turn of the shard for each part.
    for part in figures.chunks(MANY) {
        let part = part.to_vec();
        let sums = api
            .read(move |tree| {
                let mut sums = Depths::new();
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
    if many {
        api.lately().set(now, depths.clone());
    }
    Ok(depths)
}

fn add(sums: &mut Depths, vhost: &Name, lengths: [u64; 3]) {
    let sum = sums.entry(vhost.clone()).or_default();
    for (sum, length) in sum.iter_mut().zip(lengths) {
        *sum += length;
    }
}
