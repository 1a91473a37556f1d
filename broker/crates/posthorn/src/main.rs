//! The `posthorn` binary; see the library crate.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    posthorn::run(std::env::args_os(), posthorn::PROGRAM)
}
