//! `--watch`: repeats a command that only reads.

use super::client::Client;
use super::failure::Failure;
use super::output::{self, Output};
use super::{Command, administration::Administration, connections, membership, perform, streams};
use std::io::IsTerminal as _;
use std::time::Duration;

/// The interval of `top` in seconds.
pub(crate) const TOP_INTERVAL_S: u64 = 2;

/// Moves the cursor to the corner and clears the screen (ECMA-48, 8.3.21 and 8.3.39).
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";

/// The interval at which the command repeats. `top` repeats on a terminal without `--watch`, too.
pub(crate) fn interval(watch: Option<u64>, command: &Command) -> Result<Option<Duration>, Failure> {
    let is_top = matches!(command, Command::Top(_)) && std::io::stdout().is_terminal();
    match watch {
        Some(_) if !only_reads(command) => Err(Failure::Usage(
            "--watch repeats lists and checks only: a change must not be repeated".to_owned(),
        )),
        Some(seconds) => Ok(Some(Duration::from_secs(seconds))),
        None => Ok(is_top.then_some(Duration::from_secs(TOP_INTERVAL_S))),
    }
}

fn only_reads(command: &Command) -> bool {
    match command {
        Command::Status
        | Command::Health
        | Command::Doctor(_)
        | Command::Top(_)
        | Command::Cluster(_)
        | Command::Check(_)
        | Command::ListQueues { .. }
        | Command::ListExchanges { .. }
        | Command::ListBindings { .. }
        | Command::ListPolicies(_)
        | Command::ListVhosts(_)
        | Command::ListNodes
        | Command::ListUsers
        | Command::ListPermissions { .. }
        | Command::ListLogLevels
        | Command::Connections(connections::Command::ListConnections(_))
        | Command::Membership(membership::Command::QuorumStatus { .. }) => true,
        Command::Streams(command) => streams::only_reads(command),
        Command::Administration(command) => matches!(
            command,
            Administration::ListChannels(_)
                | Administration::ListConsumers(_)
                | Administration::Listeners
                | Administration::ListFeatureFlags
                | Administration::ListDeprecatedFeatures { .. }
                | Administration::ListVhostLimits(_)
                | Administration::ListUserLimits
                | Administration::ListTopicPermissions
                | Administration::ListUserPermissions { .. }
                | Administration::ListGlobalParameters
        ),
        _ => false,
    }
}

/// Repeats the command until the process is interrupted or its output is closed. A node that does
/// not answer for a while does not end the command.
pub(crate) fn watch(
    client: &Client,
    output: &Output,
    command: &Command,
    interval: Duration,
) -> Result<(), Failure> {
    let is_terminal = std::io::stdout().is_terminal();
    loop {
        if is_terminal && output.is_table() {
            output::print(CLEAR);
        }
        match perform(client, output, command) {
            Ok(()) => {}
            Err(
                temporary @ (Failure::Unreachable { .. }
                | Failure::Unhealthy
                | Failure::Unfulfilled { .. }
                | Failure::Refused { status: 503, .. }),
            ) => output.fail(&temporary),
            Err(failure) => return Err(failure),
        }
        client.pause(interval);
    }
}
