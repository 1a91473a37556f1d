//! Seeds of the cluster scenario, each twice.

use sim::cluster::{Options, Report, run};
use std::collections::BTreeSet;

const SEEDS: u64 = 12;

fn options() -> Options {
    Options::default()
}

fn both(seed: u64, options: &Options) -> Result<Report, String> {
    let (first, second) = (run(seed, options), run(seed, options));
    if first != second {
        return Err(format!("seed {seed}: {first:?}, then {second:?}"));
    }
    first.map_err(|violation| format!("seed {seed}: {violation}"))
}

#[test]
fn the_rules_hold_under_every_seed_and_a_seed_is_one_run() {
    let results: Vec<_> = (0..SEEDS).map(|seed| both(seed, &options())).collect();
    let failures: Vec<_> = results.iter().filter_map(|r| r.as_ref().err()).collect();
    assert!(failures.is_empty(), "{failures:#?}");
    let reports: Vec<_> = results.into_iter().flatten().collect();
    let hashes: BTreeSet<_> = reports.iter().map(|r| r.hash).collect();
    assert_eq!(hashes.len(), reports.len(), "a seed changes nothing");
    // The runs went where they were meant to go.
    let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
    let reached = [
        sum(|r| r.confirmed),
        sum(|r| r.delivered),
        sum(|r| r.redelivered),
        sum(|r| r.settled),
        sum(|r| r.starts),
        sum(|r| r.posts[1]),
        sum(|r| r.posts[2]),
    ];
    let meant = [100, 100, 10, 50, 4, 50, 50].map(|n| n * SEEDS);
    assert!(
        reached.iter().zip(meant).all(|(r, m)| *r > m),
        "confirmed, delivered, again, settled, starts, acknowledged and received by MQTT: {reached:?}, meant were {meant:?}"
    );
}
