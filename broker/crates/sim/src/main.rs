//! `sim --seed 7`, `sim --seeds 0..200`: runs clusters under seeds and prints the result of each run.
#![forbid(unsafe_code)]

mod selfcheck;

use clap::{Parser, ValueEnum};
use env::planted::{self, Bug};
use sim::faults::FaultKind;
use sim::{Violation, cluster, metadata, stream};
use std::ops::Range;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[derive(Parser)]
#[command(about = "Runs simulated clusters under a seed and checks their rules")]
struct Arguments {
    /// One seed.
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Seeds A to B, without B (`A..B`), or a number of seeds from 0.
    #[arg(long, value_parser = parse_seeds)]
    seeds: Option<Range<u64>>,
    /// Scenario to run.
    #[arg(long, value_enum, default_value_t = Scenario::All)]
    scenario: Scenario,
    /// Number of nodes.
    #[arg(long, default_value_t = 3)]
    nodes: u64,
    /// Number of clients in the metadata scenario.
    #[arg(long, default_value_t = 4)]
    clients: u64,
    /// Simulated seconds with faults. Default: 20 for the metadata scenario, 8 for the cluster scenario.
    #[arg(long)]
    chaos: Option<u64>,
    /// Disks ignore fsync. The oracles must then report violations.
    #[arg(long)]
    lying_disks: bool,
    /// Leave out this kind of fault. May be repeated.
    #[arg(long, value_name = "KIND")]
    without: Vec<FaultKind>,
    /// Enable a planted bug and stop at the first seed that catches it. Needs a build with the feature `planted`.
    #[arg(long, value_name = "BUG", value_parser = parse_bug)]
    planted: Option<Bug>,
    /// Enable each planted bug in turn and count the seeds until a rule catches it (of `--seeds`, 2,000 by default).
    #[arg(long)]
    selfcheck: bool,
    /// Run each seed once, without the second run that must be equal.
    #[arg(long)]
    once: bool,
    /// Print every event and the logs of the nodes.
    #[arg(long)]
    trace: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// The metadata group alone.
    Metadata,
    /// Whole nodes with AMQP 0.9.1 and MQTT clients.
    Cluster,
    /// The members of one stream alone.
    Stream,
    /// All scenarios.
    All,
}

/// Runs a scenario under a seed and returns a summary. `once`: skips the second run, which must equal the first.
type RunScenario = fn(seed: u64, arguments: &Arguments, once: bool) -> Result<String, String>;

const SCENARIOS: [(Scenario, &str, RunScenario); 3] = [
    (Scenario::Metadata, "metadata", run_metadata),
    (Scenario::Cluster, "cluster", run_cluster),
    (Scenario::Stream, "stream", run_stream),
];

fn parse_seeds(text: &str) -> Result<Range<u64>, String> {
    let number = |t: &str| t.parse::<u64>().map_err(|e| format!("{t:?}: {e}"));
    match text.split_once("..") {
        Some((from, to)) => Ok(number(from)?..number(to)?),
        None => Ok(0..number(text)?),
    }
}

fn parse_bug(name: &str) -> Result<Bug, String> {
    let names = || Bug::ALL.iter().map(|b| b.name()).collect::<Vec<_>>();
    Bug::named(name).ok_or_else(|| format!("unknown bug; known are {}", names().join(", ")))
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.trace {
        // Logs of the nodes, between the events of the simulator.
        let log = tracing_subscriber::fmt().without_time().with_ansi(false);
        let log = log.with_max_level(tracing_subscriber::filter::LevelFilter::DEBUG);
        log.with_writer(std::io::stdout).init();
    }
    if (arguments.selfcheck || arguments.planted.is_some()) && !planted::POSSIBLE {
        eprintln!(
            "this build has no planted bugs; build it with: cargo build --release -p sim --features planted"
        );
        return ExitCode::FAILURE;
    }
    if arguments.selfcheck {
        return selfcheck::run(&arguments.seeds.unwrap_or(0..2_000));
    }
    if let Some(bug) = arguments.planted {
        planted::plant(bug);
    }
    let seeds = match (arguments.seed, arguments.seeds.clone()) {
        (Some(seed), _) => seed..seed.saturating_add(1),
        (None, Some(seeds)) => seeds,
        (None, None) => 0..1,
    };
    match run_all(seeds, &arguments) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// The seed that runs now, for the panic hook: release builds abort at a panic.
static RUNNING: AtomicU64 = AtomicU64::new(0);

/// Returns true if every seed passed. With a planted bug, runs each seed once and stops at the first failure.
fn run_all(seeds: Range<u64>, arguments: &Arguments) -> bool {
    std::panic::set_hook(Box::new(|panic| {
        let message = panic.to_string().replace('\n', " ");
        println!(
            "seed {}: FAILED: {message}",
            RUNNING.load(Ordering::Relaxed)
        );
    }));
    let stops_at_failure = arguments.planted.is_some();
    let is_selected = |s: Scenario| arguments.scenario == Scenario::All || arguments.scenario == s;
    let (mut passed, mut failed) = (0, 0);
    for seed in seeds {
        RUNNING.store(seed, Ordering::Relaxed);
        let mut all_passed = true;
        for (_, name, run) in SCENARIOS.iter().filter(|(s, _, _)| is_selected(*s)) {
            match run(seed, arguments, stops_at_failure || arguments.once) {
                Ok(text) => println!("seed {seed}: {name}: {text}"),
                Err(error) => {
                    all_passed = false;
                    println!("seed {seed}: FAILED: {name}: {error}");
                    println!(
                        "  again, with every event: sim --scenario {name} --seed {seed} --trace"
                    );
                }
            }
        }
        passed += u64::from(all_passed);
        failed += u64::from(!all_passed);
        if stops_at_failure && failed > 0 {
            break;
        }
    }
    println!("{passed} seeds passed");
    if failed > 0 {
        println!("{failed} seeds failed");
    }
    failed == 0
}

/// Runs once or twice, and describes the report unless the two runs differ.
fn run_and_compare<R: PartialEq>(
    run: impl Fn() -> Result<R, Violation>,
    once: bool,
    describe: impl Fn(&R) -> String,
) -> Result<String, String> {
    let first = run();
    let is_repeatable = once || first == run();
    match first {
        Ok(report) if is_repeatable => Ok(describe(&report)),
        Ok(_) => Err("the second run differs from the first".to_owned()),
        Err(violation) => Err(violation.to_string()),
    }
}

fn run_metadata(seed: u64, arguments: &Arguments, once: bool) -> Result<String, String> {
    let options = metadata::Options {
        nodes: arguments.nodes.max(1),
        clients: arguments.clients,
        chaos: Duration::from_secs(arguments.chaos.unwrap_or(20)),
        lying_disks: arguments.lying_disks,
        without: arguments.without.iter().copied().collect(),
        verbose: arguments.trace,
    };
    let describe = |report: &metadata::Report| {
        format!(
            "hash {:016x}, {} events, {} faults, {} changes confirmed, {} terms, {} starts, \
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
        )
    };
    run_and_compare(|| metadata::run(seed, &options), once, describe)
}

fn run_cluster(seed: u64, arguments: &Arguments, once: bool) -> Result<String, String> {
    let options = cluster::Options {
        nodes: arguments.nodes.max(1),
        chaos: Duration::from_secs(arguments.chaos.unwrap_or(8)),
        lying_disks: arguments.lying_disks,
        without: arguments.without.iter().copied().collect(),
        verbose: arguments.trace,
    };
    let describe = |report: &cluster::Report| {
        format!(
            "hash {:016x}, {} events, {} faults, {} published, {} confirmed ({} beside a cut), {} delivered ({} again, {} after a delay), {} copies, {} known settled, \
             {} connections, {} starts, {} nodes damaged, {} replaced, {} operations, {} flags turned on ({} nodes did not know one), MQTT: {} posted, {} acknowledged, {} received ({} again), \
             AMQP 1.0: {} confirmed, {} repeated, {} delivered, {} drained, {} filtered ({} drains beside other parts), {} browsed ({} drained), streams: {} published, {} confirmed, {} read, {} repeated, {:.1} s",
            report.hash,
            report.events,
            report.faults,
            report.published,
            report.confirmed,
            report.confirmed_beside_cut,
            report.delivered,
            report.redelivered,
            report.after_delay,
            report.copies,
            report.settled,
            report.connections,
            report.starts,
            report.damaged,
            report.replaced,
            report.operations,
            report.flags.0,
            report.flags.1,
            report.mqtt_messages[0],
            report.mqtt_messages[1],
            report.mqtt_messages[2],
            report.mqtt_messages[3],
            report.amqp10[0],
            report.amqp10[1],
            report.amqp10[2],
            report.amqp10[3],
            report.amqp10[4],
            report.amqp10[5],
            report.amqp10[6],
            report.amqp10[7],
            report.streams[0],
            report.streams[1],
            report.streams[2],
            report.streams[3],
            report.ended.0 as f64 / 1e9,
        )
    };
    run_and_compare(|| cluster::run(seed, &options), once, describe)
}

fn run_stream(seed: u64, arguments: &Arguments, once: bool) -> Result<String, String> {
    let options = stream::Options {
        verbose: arguments.trace,
        ..stream::Options::default()
    };
    let describe = |report: &stream::Report| {
        format!(
            "hash {:016x}, {} chunks written, {} committed, {} terms, {} opened, {} processes and {} machines stopped, \
             {} logs truncated, {} begun anew, {} recovered",
            report.hash,
            report.written,
            report.committed,
            report.terms,
            report.opened,
            report.stops.0,
            report.stops.1,
            report.truncated.0,
            report.truncated.1,
            report.recovered,
        )
    };
    run_and_compare(|| stream::run(seed, &options), once, describe)
}
