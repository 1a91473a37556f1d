//! `sim --seed 7`, `sim --seeds 0..200`: runs clusters under seeds and says what each came to.
#![forbid(unsafe_code)]

mod selfcheck;

use clap::{Parser, ValueEnum};
use env::planted::{self, Bug};
use sim::faults::Kind;
use sim::{Violation, cluster, metadata};
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
    /// Seeds from A up to, not with, B: `A..B`; or a count from 0.
    #[arg(long, value_parser = seeds)]
    seeds: Option<Range<u64>>,
    /// What runs on the machines.
    #[arg(long, value_enum, default_value_t = Scenario::All)]
    scenario: Scenario,
    #[arg(long, default_value_t = 3)]
    nodes: u64,
    /// Clients of the metadata scenario.
    #[arg(long, default_value_t = 4)]
    clients: u64,
    /// Simulated seconds in which things go wrong; 20 with metadata and 8 with whole nodes when not said.
    #[arg(long)]
    chaos: Option<u64>,
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
    /// Run each seed once and do not look whether a second run is the same.
    #[arg(long)]
    once: bool,
    /// Print every event.
    #[arg(long)]
    trace: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// The metadata group alone.
    Metadata,
    /// Whole nodes and AMQP 0.9.1 clients.
    Cluster,
    All,
}

/// A scenario under a seed: what it came to. `once`: it is not run a second time to see whether that is the same.
type Run = fn(seed: u64, arguments: &Arguments, once: bool) -> Result<String, String>;

const SCENARIOS: [(Scenario, &str, Run); 2] = [
    (Scenario::Metadata, "metadata", run_metadata),
    (Scenario::Cluster, "cluster", run_cluster),
];

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
    if arguments.trace {
        // What the nodes log, between the events.
        let log = tracing_subscriber::fmt().without_time().with_ansi(false);
        let log = log.with_max_level(tracing_subscriber::filter::LevelFilter::DEBUG);
        log.with_writer(std::io::stdout).init();
    }
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

/// What the panic handler says it happened under: release builds end at a panic.
static RUNNING: AtomicU64 = AtomicU64::new(0);

/// True when all went well. With a planted bug: each seed once, until the first that does not.
fn run_all(seeds: Range<u64>, arguments: &Arguments) -> bool {
    std::panic::set_hook(Box::new(|panic| {
        let what = panic.to_string().replace('\n', " ");
        println!("seed {}: FAILED: {what}", RUNNING.load(Ordering::Relaxed));
    }));
    let hunt = arguments.planted.is_some();
    let wanted = |s: Scenario| arguments.scenario == Scenario::All || arguments.scenario == s;
    let (mut passed, mut failed) = (0, 0);
    for seed in seeds {
        RUNNING.store(seed, Ordering::Relaxed);
        let mut whole = true;
        for (_, name, run) in SCENARIOS.iter().filter(|(s, _, _)| wanted(*s)) {
            match run(seed, arguments, hunt || arguments.once) {
                Ok(text) => println!("seed {seed}: {name}: {text}"),
                Err(why) => {
                    whole = false;
                    println!("seed {seed}: FAILED: {name}: {why}");
                    println!(
                        "  again, with every event: sim --scenario {name} --seed {seed} --trace"
                    );
                }
            }
        }
        passed += u64::from(whole);
        failed += u64::from(!whole);
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

fn told<R: PartialEq>(
    run: impl Fn() -> Result<R, Violation>,
    once: bool,
    tell: impl Fn(&R) -> String,
) -> Result<String, String> {
    let first = run();
    let again = once || first == run();
    match first {
        Ok(report) if again => Ok(tell(&report)),
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
        loud: arguments.trace,
    };
    let tell = |report: &metadata::Report| {
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
    told(|| metadata::run(seed, &options), once, tell)
}

fn run_cluster(seed: u64, arguments: &Arguments, once: bool) -> Result<String, String> {
    let options = cluster::Options {
        nodes: arguments.nodes.max(1),
        chaos: Duration::from_secs(arguments.chaos.unwrap_or(8)),
        lying_disks: arguments.lying_disks,
        without: arguments.without.iter().copied().collect(),
        loud: arguments.trace,
    };
    let tell = |report: &cluster::Report| {
        format!(
            "hash {:016x}, {} events, {} faults, {} published, {} confirmed, {} delivered ({} again), {} known settled, \
             {} connections, {} starts, {} nodes damaged, {} replaced, {} operations, {} flags turned on ({} nodes did not know one), MQTT: {} posted, {} acknowledged, {} received ({} again), \
             credit: {} delivered, {} drained, {:.1} s",
            report.hash,
            report.events,
            report.faults,
            report.published,
            report.confirmed,
            report.delivered,
            report.redelivered,
            report.settled,
            report.connections,
            report.starts,
            report.damaged,
            report.replaced,
            report.operations,
            report.flags.0,
            report.flags.1,
            report.posts[0],
            report.posts[1],
            report.posts[2],
            report.posts[3],
            report.credit[0],
            report.credit[1],
            report.ended.0 as f64 / 1e9,
        )
    };
    told(|| cluster::run(seed, &options), once, tell)
}
