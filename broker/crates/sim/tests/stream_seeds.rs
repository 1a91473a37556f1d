//! Seeds of the stream scenario. Each runs twice.

use sim::stream::{Options, Report, run};
use std::collections::BTreeSet;

const SEEDS: u64 = 60;

#[test]
fn rules_hold_and_runs_are_repeatable() {
    let options = Options::default();
    let reports: Vec<Report> = (0..SEEDS)
        .map(|seed| {
            let first = run(seed, &options).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            assert_eq!(Ok(&first), run(seed, &options).as_ref(), "seed {seed}");
            first
        })
        .collect();
    let hashes: BTreeSet<u64> = reports.iter().map(|r| r.hash).collect();
    assert_eq!(hashes.len(), reports.len(), "a seed changes nothing");
    // Guard against runs that exercise too little.
    let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
    let counts = [
        sum(|r| r.committed),
        sum(|r| r.opened),
        sum(|r| r.stops.1),
        sum(|r| r.truncated.0),
        sum(|r| r.truncated.1),
        sum(|r| r.recovered),
    ];
    let minimums = [20, 5, 2, 0, 0, 1].map(|least| least * SEEDS);
    assert!(
        counts
            .iter()
            .zip(minimums)
            .all(|(count, least)| *count > least),
        "committed chunks, opened epochs, stopped machines, truncations, resets, recoveries: {counts:?}, minimums {minimums:?}"
    );
}
