//! `sim --seed 7`, `sim --seeds 0..200`: runs the cluster under seeds and says what each came to.
#![forbid(unsafe_code)]

mod selfcheck;

use clap::Parser;
use env::planted::{self, Bug};
use sim::faults::Kind;
use sim::metadata::{Options, Report, run};
use std::ops::Range;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[derive(Parser)]
#[command(about = "Runs a simulated cluster under a seed and checks its rules")]
struct Arguments {
    /// One seed.
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Seeds from A up to, not with, B: `A..B`; or a count from 0.
    #[arg(long, value_parser = seeds)]
    seeds: Option<Range<u64>>,
    #[arg(long, default_value_t = 3)]
    nodes: u64,
    #[arg(long, default_value_t = 4)]
    clients: u64,
    /// Simulated seconds in which things go wrong.
    #[arg(long, default_value_t = 20)]
    chaos: u64,
    /// Disks that ignore syncs: shows that the rules notice.
    #[arg(long)]
    lying_disks: bool,
    /// Leave out faults of this kind (several: once for each).
    #[arg(long, value_name = "KIND")]
    without: Vec<Kind>,
    /// Plants a bug (a build with the feature `planted`): stops at the first seed that catches it.
    #[arg(long, value_name = "BUG", value_parser = bug)]
    planted: Option<Bug>,
    /// Plants each bug in turn and looks whether it is caught within so many seeds (`--seeds`, 2,000 otherwise).
    #[arg(long)]
    selfcheck: bool,
    /// Print every event.
    #[arg(long)]
    trace: bool,
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let number = |t: &str| t.parse::<u64>().map_err(|e| format!("{t:?}: {e}"));
    match text.split_once("..") {
        Some((from, to)) => Ok(number(from)?..number(to)?),
        None => Ok(0..number(text)?),
    }
}

fn bug(name: &str) -> Result<Bug, String> {
    let known = || Bug::ALL.iter().map(|b| b.name()).collect::<Vec<_>>();
    Bug::named(name).ok_or_else(|| format!("no such bug; there are {}", known().join(", ")))
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if (arguments.selfcheck || arguments.planted.is_some()) && !planted::POSSIBLE {
        eprintln!("no bugs are in this build: cargo build --release -p sim --features planted");
        return ExitCode::FAILURE;
    }
    if arguments.selfcheck {
        return selfcheck::run(&arguments.seeds.unwrap_or(0..2_000));
    }
    if let Some(bug) = arguments.planted {
        planted::plant(bug);
    }
    let options = Options {
        nodes: arguments.nodes.max(1),
        clients: arguments.clients,
        chaos: Duration::from_secs(arguments.chaos),
        lying_disks: arguments.lying_disks,
        without: arguments.without.into_iter().collect(),
        loud: arguments.trace,
    };
    let seeds = match (arguments.seed, arguments.seeds) {
        (Some(seed), _) => seed..seed.saturating_add(1),
        (None, Some(seeds)) => seeds,
        (None, None) => 0..1,
    };
    match run_all(seeds, &options, arguments.planted.is_some()) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// What the panic handler says it happened under: release builds end at a panic.
static RUNNING: AtomicU64 = AtomicU64::new(0);

/// True when all went well. `hunt`: each seed once, until the first that does not.
fn run_all(seeds: Range<u64>, options: &Options, hunt: bool) -> bool {
    std::panic::set_hook(Box::new(|panic| {
        let what = panic.to_string().replace('\n', " ");
        println!("seed {}: FAILED: {what}", RUNNING.load(Ordering::Relaxed));
    }));
    let (mut passed, mut failed) = (0, 0);
    for seed in seeds {
        RUNNING.store(seed, Ordering::Relaxed);
        let first = run(seed, options);
        let again = hunt || first == run(seed, options);
        match first {
            Ok(report) if again => {
                passed += 1;
                say(seed, &report);
            }
            Ok(_) => {
                failed += 1;
                println!("seed {seed}: FAILED: the second run differs from the first");
            }
            Err(violation) => {
                failed += 1;
                println!("seed {seed}: FAILED: {violation}");
                println!("  again, with every event: sim --seed {seed} --trace");
            }
        }
        if hunt && failed > 0 {
            break;
        }
    }
    println!("{passed} seeds passed");
    if failed > 0 {
        println!("{failed} seeds failed");
    }
    failed == 0
}

fn say(seed: u64, report: &Report) {
    println!(
        "seed {seed}: hash {:016x}, {} events, {} faults, {} changes confirmed, {} terms, {} starts, \
         {} checkpoints restored, {} nodes damaged, {} replaced, {:.1} s",
        report.hash,
        report.events,
        report.faults,
        report.answers,
        report.terms,
        report.starts,
        report.restores,
        report.damaged,
        report.replaced,
        report.ended.0 as f64 / 1e9,
    );
}
