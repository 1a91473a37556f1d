//! Self-check of the simulator: every planted bug must break a rule.

use env::planted::Bug;
use std::ops::Range;
use std::process::{Command, ExitCode};

/// The first seed that caught a bug.
struct CaughtBug {
    seed: u64,
    /// Text of the violation.
    rule: String,
}

/// Prints a table of all bugs. Each bug runs in a process of its own, because planting it is a global switch of the
/// process and the bug may abort it.
pub fn run(seeds: &Range<u64>) -> ExitCode {
    println!("| bug | what it breaks | seeds | caught by |");
    println!("|---|---|---|---|");
    let mut missed = 0;
    for bug in Bug::ALL {
        let (count, rule) = match find_first_failure(*bug, seeds) {
            Ok(Some(caught)) => ((caught.seed - seeds.start + 1).to_string(), caught.rule),
            Ok(None) => {
                missed += 1;
                (
                    format!("> {}", seeds.end - seeds.start),
                    "NOT CAUGHT".to_owned(),
                )
            }
            Err(error) => {
                eprintln!("{}: {error}", bug.name());
                return ExitCode::FAILURE;
            }
        };
        println!("| {} | {} | {count} | {rule} |", bug.name(), bug.breaks());
    }
    println!("{} bugs caught, {missed} not", Bug::ALL.len() - missed);
    match missed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// Runs the seeds in a new process until one fails.
fn find_first_failure(bug: Bug, seeds: &Range<u64>) -> std::io::Result<Option<CaughtBug>> {
    let range = format!("{}..{}", seeds.start, seeds.end);
    let output = Command::new(std::env::current_exe()?)
        .args(["--scenario", bug.scenario(), "--planted", bug.name()])
        .args(["--seeds", &range])
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.lines().find_map(parse_failure) {
        None if !output.status.success() => {
            let stderr = String::from_utf8_lossy(&output.stderr);
            Err(std::io::Error::other(format!(
                "{}: {stderr}",
                output.status
            )))
        }
        found => Ok(found),
    }
}

/// Parses `seed 7: FAILED: at 3.1 s: why (more)`.
fn parse_failure(line: &str) -> Option<CaughtBug> {
    let (seed, rule) = line.strip_prefix("seed ")?.split_once(": FAILED: ")?;
    let rule = rule.split_once(" s: ").map_or(rule, |(_, rule)| rule);
    let rule = rule.rsplit_once(" (newest").map_or(rule, |(rule, _)| rule);
    Some(CaughtBug {
        seed: seed.parse().ok()?,
        rule: rule.replace('|', "/"),
    })
}
