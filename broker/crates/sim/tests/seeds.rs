//! Seeds of the metadata scenario. Each runs twice.

use sim::metadata::{Options, Report, run};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const SEEDS: u64 = 40;
/// Number of runs at a time. Each run is single-threaded.
const THREADS: usize = 2;

fn options() -> Options {
    Options {
        chaos: Duration::from_secs(8),
        ..Options::default()
    }
}

/// Runs every seed twice and checks that both runs are equal.
fn run_all(seeds: u64, options: &Options) -> Vec<Result<Report, String>> {
    let next = AtomicU64::new(0);
    let worker = || {
        let mut results = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds {
                return results;
            }
            let (first, second) = (run(seed, options), run(seed, options));
            results.push(if first == second {
                first.map_err(|violation| format!("seed {seed}: {violation}"))
            } else {
                Err(format!("seed {seed}: {first:?}, then {second:?}"))
            });
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS).map(|_| scope.spawn(worker)).collect();
        let results = workers.into_iter().map(|w| w.join().expect("no panic"));
        results.flatten().collect()
    })
}

#[test]
fn rules_hold_and_runs_are_repeatable() {
    let results = run_all(SEEDS, &options());
    let failures: Vec<_> = results.iter().filter_map(|r| r.as_ref().err()).collect();
    assert!(failures.is_empty(), "{failures:#?}");
    let reports: Vec<_> = results.into_iter().flatten().collect();
    let hashes: BTreeSet<_> = reports.iter().map(|r| r.hash).collect();
    assert_eq!(hashes.len(), reports.len(), "a seed changes nothing");
    // Guard against runs that exercise too little.
    let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
    let counts = [
        sum(|r| r.answers),
        sum(|r| r.starts),
        sum(|r| r.terms),
        sum(|r| r.restores),
        sum(|r| r.faults),
        sum(|r| r.damaged),
        sum(|r| r.replaced),
    ];
    let minimums = [
        100 * SEEDS,
        5 * SEEDS,
        2 * SEEDS,
        SEEDS,
        8 * SEEDS,
        SEEDS / 10,
        SEEDS / 4,
    ];
    assert!(
        counts
            .iter()
            .zip(minimums)
            .all(|(count, minimum)| *count > minimum),
        "answers, starts, terms, restored checkpoints, faults, damaged and replaced nodes: {counts:?}, minimums {minimums:?}"
    );
}

/// The oracles must find violations if confirmed data is not durable.
#[test]
fn disks_that_ignore_syncs_are_caught() {
    let options = Options {
        lying_disks: true,
        ..options()
    };
    let caught = run_all(20, &options).iter().filter(|r| r.is_err()).count();
    assert!(caught >= 10, "only {caught} of 20 runs");
}
