//! `sim --seed 7`, `sim --seeds 0..200`: runs the cluster under seeds and says what each came to.
#![forbid(unsafe_code)]

use clap::Parser;
use sim::metadata::{Options, run};
use std::ops::Range;
use std::process::ExitCode;
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

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let options = Options {
        nodes: arguments.nodes.max(1),
        clients: arguments.clients,
        chaos: Duration::from_secs(arguments.chaos),
        lying_disks: arguments.lying_disks,
        loud: arguments.trace,
    };
    let seeds = match (arguments.seed, arguments.seeds) {
        (Some(seed), _) => seed..seed.saturating_add(1),
        (None, Some(seeds)) => seeds,
        (None, None) => 0..1,
    };
    let (mut passed, mut failed) = (0, 0);
    for seed in seeds {
        let (first, second) = (run(seed, &options), run(seed, &options));
        let again = first == second;
        match first {
            Ok(report) if again => {
                passed += 1;
                println!(
                    "seed {seed}: hash {:016x}, {} events, {} changes confirmed, {} terms, {} starts, \
                 {} checkpoints restored, {:.1} s",
                    report.hash,
                    report.events,
                    report.answers,
                    report.terms,
                    report.starts,
                    report.restores,
                    report.ended.0 as f64 / 1e9,
                );
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
    }
    println!("{passed} seeds passed");
    if failed == 0 {
        return ExitCode::SUCCESS;
    }
    println!("{failed} seeds failed");
    ExitCode::FAILURE
}
