//! Two shards of one node, which is one of three and hears of no other.

use control::ControlRequest;
use env::sim::SimDisk;
use env::{Time, WallTime};
use metadata::{Change, ChangeError};
use shard::{Effect, RecoveredShard, Shard, ShardConfig, ShardDriver};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Longer than an answer may take.
const LONG: Duration = Duration::from_secs(40);

/// Carries what shards say to each other until they are silent.
fn settle(shards: &mut [Shard; 2], now: Time, wall: WallTime) {
    loop {
        let mut said = Vec::new();
        for shard in shards.iter_mut() {
            shard.tick(now, wall);
            let mut effects = Vec::new();
            shard.poll(&mut effects);
            for effect in effects {
                match effect {
                    Effect::Shard { to, from, message } => said.push((to, from, message)),
                    Effect::Append { token, .. } => shard.durable(token),
                    _ => {}
                }
            }
        }
        if said.is_empty() {
            return;
        }
        for (to, from, message) in said {
            shards[usize::from(to)].shard_message(from, message);
        }
    }
}

#[test]
fn a_change_that_shard_0_cannot_bring_to_the_log_is_answered_on_the_shard_that_asked() {
    let founders: Vec<_> = (1..=3).map(crate::cluster::record).collect();
    let (start, wall) = (Time(1), WallTime(1_700_000_000_000));
    let make = |index| {
        let config = ShardConfig {
            shards: 2,
            index,
            ..crate::cluster::config(1, &founders)
        };
        let disk = Arc::new(SimDisk::new());
        Shard::new(config, RecoveredShard::default(), disk, start, wall).expect("a new shard")
    };
    let mut shards = [make(0), make(1)];
    settle(&mut shards, start, wall);
    let (tell, told) = mpsc::channel();
    shards[1].control(ControlRequest::Change {
        change: Change::PutVhost {
            name: "v".into(),
            description: "".into(),
            tags: Vec::new(),
        },
        reply: Box::new(move |answer| drop(tell.send(answer))),
    });
    settle(&mut shards, start, wall);
    assert!(told.try_recv().is_err(), "there may be a leader soon");
    settle(&mut shards, start + LONG, wall);
    let answer = told.try_recv().expect("an answer");
    assert!(
        matches!(&answer, Err(ChangeError::Unavailable(why)) if why.contains("did not answer in time")),
        "{answer:?}"
    );
}
