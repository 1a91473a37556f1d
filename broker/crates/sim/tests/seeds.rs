//! Many seeds of the metadata scenario, each twice.

use sim::metadata::{Options, Report, run};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const SEEDS: u64 = 200;
/// Runs are single-threaded; this many go on at the same time.
const THREADS: usize = 2;

fn options() -> Options {
    Options {
        chaos: Duration::from_secs(8),
        ..Options::default()
    }
}

/// Runs every seed twice; the second run must be the first.
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
fn the_rules_hold_under_every_seed_and_a_seed_is_one_run() {
    let results = run_all(SEEDS, &options());
    let failures: Vec<_> = results.iter().filter_map(|r| r.as_ref().err()).collect();
    assert!(failures.is_empty(), "{failures:#?}");
    let reports: Vec<_> = results.into_iter().flatten().collect();
    let hashes: BTreeSet<_> = reports.iter().map(|r| r.hash).collect();
    assert_eq!(hashes.len(), reports.len(), "a seed changes nothing");
    // The runs went where they were meant to go.
    let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
    let reached = [
        sum(|r| r.answers),
        sum(|r| r.starts),
        sum(|r| r.terms),
        sum(|r| r.restores),
        sum(|r| r.faults),
        sum(|r| r.damaged),
        sum(|r| r.replaced),
    ];
    let meant = [
        100 * SEEDS,
        5 * SEEDS,
        2 * SEEDS,
        SEEDS,
        8 * SEEDS,
        SEEDS / 10,
        SEEDS / 4,
    ];
    assert!(
        reached.iter().zip(meant).all(|(r, m)| *r > m),
        "answers, starts, terms, restored checkpoints, faults, damaged and replaced nodes: {reached:?}, meant were {meant:?}"
    );
}

/// The rules notice when what was confirmed is not durable.
#[test]
fn disks_that_ignore_syncs_are_caught() {
    let options = Options {
        lying_disks: true,
        ..options()
    };
    let caught = run_all(20, &options).iter().filter(|r| r.is_err()).count();
    assert!(caught >= 10, "only {caught} of 20 runs");
}
