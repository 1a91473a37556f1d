//! Runs the next version of the broker in a process of its own.

use crate::program::Result;
use std::ffi::OsString;
use std::process::{Command, ExitCode, Stdio};

/// Environment variable with the arguments of [`run_next_version`], one per line.
const ARGUMENTS: &str = "NEXT_PROGRAM";

/// Not a test: runs the next version in a process that a test starts.
#[test]
#[ignore = "it is started by the tests that use the next version"]
fn run_next_version() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else {
        return;
    };
    let code = posthorn::run(arguments.lines().map(OsString::from), posthorn::NEXT);
    std::process::exit(if code == ExitCode::SUCCESS { 0 } else { 1 });
}

/// Makes `command` run the next version.
pub fn next(command: &Command) -> Result<Command> {
    let mut lines = vec!["posthorn"];
    for argument in command.get_args() {
        lines.push(argument.to_str().ok_or("not UTF-8")?);
    }
    let mut next = Command::new(std::env::current_exe()?);
    next.args(["next_version::run_next_version", "--exact"]);
    next.args(["--ignored", "--nocapture"]);
    next.env_clear().env(ARGUMENTS, lines.join("\n"));
    next.stdin(Stdio::null()).stdout(Stdio::null());
    Ok(next)
}
