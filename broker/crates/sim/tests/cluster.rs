//! Seeds of the cluster scenario. Each runs twice.

use sim::cluster::{Options, Report, run};
use std::collections::BTreeSet;

const SEEDS: u64 = 4;

fn options() -> Options {
    Options::default()
}

fn run_twice(seed: u64, options: &Options) -> Result<Report, String> {
    let (first, second) = (run(seed, options), run(seed, options));
    if first != second {
        return Err(format!("seed {seed}: {first:?}, then {second:?}"));
    }
    first.map_err(|violation| format!("seed {seed}: {violation}"))
}

#[test]
fn rules_hold_and_runs_are_repeatable() {
    let results: Vec<_> = (0..SEEDS).map(|seed| run_twice(seed, &options())).collect();
    let failures: Vec<_> = results.iter().filter_map(|r| r.as_ref().err()).collect();
    assert!(failures.is_empty(), "{failures:#?}");
    let reports: Vec<_> = results.into_iter().flatten().collect();
    let hashes: BTreeSet<_> = reports.iter().map(|r| r.hash).collect();
    assert_eq!(hashes.len(), reports.len(), "a seed changes nothing");
    // Guard against runs that exercise too little.
    let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
    let counts = [
        sum(|r| r.confirmed),
        sum(|r| r.delivered),
        sum(|r| r.redelivered),
        sum(|r| r.settled),
        sum(|r| r.starts),
        sum(|r| r.mqtt_messages[1]),
        sum(|r| r.mqtt_messages[2]),
    ];
    let minimums = [100, 100, 10, 50, 4, 50, 50].map(|n| n * SEEDS);
    assert!(
        counts
            .iter()
            .zip(minimums)
            .all(|(count, minimum)| *count > minimum),
        "confirmed, delivered, again, settled, starts, acknowledged and received by MQTT: {counts:?}, minimums {minimums:?}"
    );
}
