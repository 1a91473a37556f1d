//! The program of the version after this one, for tests of upgrades.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    posthorn::run(std::env::args_os(), posthorn::NEXT)
}
