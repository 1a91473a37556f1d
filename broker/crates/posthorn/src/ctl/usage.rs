//! Errors of the command line: few suggestions, and JSON if the output is JSON.

use super::failure::EXIT_USAGE;
use super::suggestions::suggestions;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use serde_json::json;
use std::ffi::OsString;
use std::process::ExitCode;

/// Commands of RabbitMQ that do not exist here, with the way to do the same.
const ELSEWHERE: &[(&str, &str)] = &[
    (
        "stop",
        "stop the process with SIGTERM, or with the service manager",
    ),
    (
        "shutdown",
        "stop the process with SIGTERM, or with the service manager",
    ),
    (
        "reset",
        "stop the node, run `forget_node` at another node, and delete its data directory",
    ),
    (
        "force_reset",
        "stop the node, run `forget_node` at another node, and delete its data directory",
    ),
    (
        "force_shrink_member_to_current_member",
        "`recover_majority` recovers all queues that lost their majority",
    ),
    (
        "force_standalone_khepri_boot",
        "`recover_majority` recovers the metadata at a node that runs",
    ),
    (
        "join_cluster",
        "set `cluster.peers` in the configuration of the new node",
    ),
    (
        "rename_cluster_node",
        "add a node with the new name, then run `forget_node` for the old one",
    ),
    (
        "eval",
        "there is no Erlang; `report` and `environment` show the state of a node",
    ),
    (
        "rotate_logs",
        "nodes log to standard error; the service manager rotates",
    ),
    (
        "set_parameter",
        "no component has parameters; use `set_global_parameter` or `set_policy`",
    ),
    (
        "list_ciphers",
        "`ssl_options.versions` limits the TLS versions; the ciphers cannot be chosen",
    ),
    (
        "enable",
        "plugins do not exist; their functions are built in or have settings",
    ),
];

/// Returns true if the command line asks for JSON. It cannot be parsed, so this looks for the option.
fn wants_json(arguments: &[OsString]) -> bool {
    let words: Vec<&str> = arguments.iter().filter_map(|a| a.to_str()).collect();
    let is_pair = |pair: &[&str]| pair == ["--output", "json"];
    words.contains(&"--output=json") || words.windows(2).any(is_pair)
}

/// Replaces the suggestions for an unknown command by names that are close enough to be meant.
fn improve(error: &mut clap::Error, commands: &[&str]) {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return;
    }
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else {
        return;
    };
    let word = word.clone();
    error.remove(ContextKind::SuggestedSubcommand);
    error.remove(ContextKind::Suggested);
    let elsewhere = ELSEWHERE.iter().find(|(name, _)| *name == word);
    if let Some((_, advice)) = elsewhere {
        let advice =
            format!("'{word}' is a command of RabbitMQ that does not exist here: {advice}");
        error.insert(
            ContextKind::Suggested,
            ContextValue::StyledStrs(vec![advice.into()]),
        );
        return;
    }
    let similar = suggestions(&word, commands);
    if !similar.is_empty() {
        error.insert(
            ContextKind::SuggestedSubcommand,
            ContextValue::Strings(similar),
        );
    }
}

/// Prints the error of a command line that cannot be parsed, or the requested help. `commands` are
/// the names of the operations of `ctl`.
pub(crate) fn report(
    mut error: clap::Error,
    arguments: &[OsString],
    commands: &[&str],
) -> ExitCode {
    improve(&mut error, commands);
    if error.use_stderr() && wants_json(arguments) {
        let text = error.render().to_string();
        let text = text.trim().trim_start_matches("error: ");
        let (message, remedy) = text.split_once("\n\n").unwrap_or((text, ""));
        eprintln!(
            "{}",
            json!({"error": "usage", "message": message, "remedy": remedy, "exit_code": EXIT_USAGE})
        );
    } else {
        // Nothing can be done if the terminal is gone.
        let _ = error.print();
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(EXIT_USAGE))
}
