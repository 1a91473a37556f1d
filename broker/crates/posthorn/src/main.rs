//! The posthorn program.
#![forbid(unsafe_code)]

mod ctl;

use clap::Parser as _;
use std::process::ExitCode;

/// A message broker.
#[derive(Debug, clap::Parser)]
#[command(name = "posthorn", version)]
enum Program {
    /// Operations on a running node, over its management API
    Ctl(ctl::Args),
}

fn main() -> ExitCode {
    match Program::parse() {
        Program::Ctl(args) => ctl::run(args),
    }
}
