//! `posthorn ctl`: manual operations through the management API.

mod administration;
mod changes;
mod checks;
mod client;
mod connections;
mod erlang;
mod lists;
mod membership;
mod node_name;
mod output;
mod service;
mod streams;
mod tls;

use client::{Client, Endpoint, Failure};
use output::{Format, Output};
use serde_json::Value as Json;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// The arguments of `posthorn ctl`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Management address, http:// or https:// [default: $POSTHORN_URL, else http://127.0.0.1:15672]
    #[arg(long, global = true)]
    url: Option<String>,
    /// User with a management tag [default: $POSTHORN_USER, else guest]
    #[arg(long = "user", global = true, value_name = "USER")]
    as_user: Option<String>,
    /// Password of the user; other users of this machine can see it, so prefer the next option [default: $POSTHORN_PASSWORD, else guest]
    #[arg(
        long = "password",
        global = true,
        value_name = "PASSWORD",
        conflicts_with = "password_file"
    )]
    as_password: Option<String>,
    /// File that contains the password
    #[arg(long, global = true)]
    password_file: Option<PathBuf>,
    #[command(flatten)]
    tls: tls::TlsFiles,
    /// Format of the output
    #[arg(long, global = true, value_enum, default_value_t = Format::Table)]
    output: Format,
    /// Do not print the result of a change
    #[arg(short, long, global = true)]
    quiet: bool,
    /// Like --quiet, and print no headings above chosen columns
    #[arg(short, long, global = true)]
    silent: bool,
    /// Node that must answer at --url, or for operations on the whole cluster a node of that cluster: NAME or rabbit@NAME
    #[arg(short = 'n', long = "node", global = true, value_name = "NAME")]
    node_name: Option<String>,
    /// Maximum time to wait for an answer, in seconds
    #[arg(long, global = true, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
    #[command(subcommand)]
    command: Command,
}

/// One operation.
#[derive(Debug, clap::Subcommand)]
#[command(rename_all = "snake_case")]
pub(crate) enum Command {
    /// Show the node, its cluster and the number of objects
    Status,
    /// Check that the node serves clients, all nodes are up and none has an alarm (exit code 1 if not), and whether the node
    /// may be stopped now
    Health,
    /// List queues with their message counts
    ListQueues {
        #[command(flatten)]
        of: VhostFilter,
        #[command(flatten)]
        chosen: ColumnSelection,
    },
    ListExchanges(VhostFilter),
    ListBindings(VhostFilter),
    /// List policies and operator policies
    ListPolicies(VhostFilter),
    ListVhosts,
    ListNodes,
    ListUsers,
    /// List permissions of all users or of one user
    ListPermissions {
        user: Option<String>,
    },
    AddUser {
        name: String,
        #[command(flatten)]
        secret: NewPassword,
        /// administrator, monitoring, policymaker, management
        #[arg(long, value_delimiter = ',')]
        tags: Vec<String>,
    },
    ChangePassword {
        name: String,
        #[command(flatten)]
        secret: NewPassword,
    },
    DeleteUser {
        name: String,
    },
    /// Replace the tags of a user; without a tag, remove all
    SetUserTags {
        name: String,
        tags: Vec<String>,
    },
    /// Set the permissions of a user in a vhost, as regular expressions on names
    SetPermissions {
        user: String,
        configure: String,
        write: String,
        read: String,
        #[command(flatten)]
        at: VhostOption,
    },
    ClearPermissions {
        user: String,
        #[command(flatten)]
        at: VhostOption,
    },
    AddVhost {
        name: String,
        #[arg(long, default_value = "")]
        description: String,
        /// Comma-separated tags
        #[arg(long)]
        tags: Option<String>,
        /// Type of queues that are declared without x-queue-type: classic or quorum
        #[arg(long = "default-queue-type")]
        default_queue_type: Option<String>,
    },
    /// Copy all messages published and delivered in a vhost to its exchange amq.rabbitmq.trace
    TraceOn(VhostOption),
    TraceOff(VhostOption),
    /// Delete a vhost with its queues, exchanges and permissions
    DeleteVhost {
        name: String,
    },
    DeclareQueue {
        name: String,
        #[command(flatten)]
        at: VhostOption,
        /// quorum or classic
        #[arg(long = "type", default_value = "quorum")]
        kind: String,
        /// Further arguments, as a JSON object: '{"x-max-length": 1000}'
        #[arg(long, default_value = "{}")]
        arguments: String,
    },
    DeleteQueue {
        name: String,
        #[command(flatten)]
        at: VhostOption,
        /// Delete the queue only if it holds no message
        #[arg(long = "if-empty")]
        if_empty: bool,
        /// Delete the queue only if it has no consumer
        #[arg(long = "if-unused")]
        if_unused: bool,
    },
    /// Delete all ready messages of a queue
    PurgeQueue {
        name: String,
        #[command(flatten)]
        at: VhostOption,
    },
    /// Create or replace a policy
    SetPolicy {
        name: String,
        /// Regular expression on names
        pattern: String,
        /// Settings as a JSON object: '{"max-length": 1000}'
        definition: String,
        #[command(flatten)]
        at: VhostOption,
        #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
        priority: i64,
        /// all, queues, quorum_queues, classic_queues, streams, exchanges
        #[arg(long = "apply-to", default_value = "all")]
        apply_to: String,
        /// Set an operator policy: a limit that users' policies cannot exceed
        #[arg(long)]
        operator: bool,
    },
    ClearPolicy {
        name: String,
        #[command(flatten)]
        at: VhostOption,
        #[arg(long)]
        operator: bool,
    },
    /// Set maintenance mode of this node: on moves leaders and clients to other nodes, off ends it
    Maintenance {
        #[arg(value_enum)]
        state: SwitchState,
    },
    /// Set the memory high watermark of this node (0.0 to 1.0 of its memory), above which it blocks publishers, until it restarts
    #[command(name = "set_vm_memory_high_watermark")]
    SetMemoryWatermark {
        fraction: f64,
    },
    /// Set the free disk space (bytes, or with a unit: 2GB, 512MiB) below which this node blocks publishers, until it restarts
    SetDiskFreeLimit {
        limit: String,
    },
    /// Set the log level of this node until it restarts, for one category (connection, queue, cluster, storage, http)
    /// or for all
    SetLogLevel {
        /// [CATEGORY] and one of none, error, warning, info, debug, trace
        #[arg(num_args = 1..=2, required = true, value_name = "CATEGORY|LEVEL")]
        words: Vec<String>,
    },
    /// List the log level of each category on this node
    ListLogLevels,
    #[command(flatten)]
    Connections(connections::Command),
    #[command(flatten)]
    Service(service::Command),
    #[command(flatten)]
    Administration(administration::Administration),
    #[command(flatten)]
    Check(checks::Check),
    #[command(flatten)]
    Membership(membership::Command),
    #[command(flatten)]
    Streams(streams::Command),
}

#[derive(Debug, clap::Args)]
pub(crate) struct VhostFilter {
    /// Only objects of this vhost
    #[arg(short = 'p', long)]
    vhost: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ColumnSelection {
    /// Only these columns, separated by tabs, by their names in the API: name messages
    columns: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct VhostOption {
    #[arg(short = 'p', long, default_value = "/")]
    vhost: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct NewPassword {
    /// Password; without it, one line is read from standard input
    new_password: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum SwitchState {
    On,
    Off,
}

/// Completes the command line: `ctl` is implied if the binary is called as `posthornctl`, or by a
/// name of RabbitMQ's for tools that only know that.
pub(crate) fn arguments(raw_arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = raw_arguments.collect();
    let binary_name = arguments.first().map(Path::new).and_then(Path::file_name);
    let names = [
        "posthornctl",
        "rabbitmqctl",
        "rabbitmq-queues",
        "rabbitmq-streams",
        "rabbitmq-diagnostics",
    ];
    if binary_name.is_some_and(|name| names.iter().any(|n| name == *n)) {
        arguments.insert(1, "ctl".into());
    }
    arguments
}

/// Runs one operation. Exit codes: 0 success, 1 rejected or failed, 69 node unreachable, 77 not
/// permitted.
pub(crate) fn run(args: Args) -> ExitCode {
    let output = Output::new(args.output, args.quiet, args.silent);
    let result = client(&args).and_then(|client| {
        let node_name = args.node_name.as_deref();
        node_name::check_before(&client, node_name, &args.command)?;
        perform(&client, &output, &args.command)?;
        node_name::check_after(&client, node_name, &args.command)
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("Error: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

fn client(args: &Args) -> Result<Client, Failure> {
    let setting = |raw_arguments: &Option<String>, variable: &str, default: &str| {
        let raw_arguments = raw_arguments
            .clone()
            .or_else(|| std::env::var(variable).ok());
        raw_arguments.unwrap_or_else(|| default.to_owned())
    };
    let password = match &args.password_file {
        Some(path) => {
            let text = std::fs::read_to_string(path);
            let text = text.map_err(|e| {
                Failure::Usage(format!(
                    "the password file {} cannot be read: {e}",
                    path.display()
                ))
            })?;
            text.trim_end_matches(['\r', '\n']).to_owned()
        }
        None => setting(&args.as_password, "POSTHORN_PASSWORD", "guest"),
    };
    let url = setting(&args.url, "POSTHORN_URL", "http://127.0.0.1:15672");
    let user = setting(&args.as_user, "POSTHORN_USER", "guest");
    Client::new(Endpoint {
        url,
        user,
        password,
        timeout: Duration::from_secs(args.timeout),
        tls: args.tls.clone(),
    })
}

fn perform(client: &Client, output: &Output, command: &Command) -> Result<(), Failure> {
    match command {
        Command::Status => lists::status(client, output),
        Command::Health => checks::health(client, output),
        Command::ListQueues { of, chosen } => {
            lists::queues(client, output, of.vhost.as_deref(), &chosen.columns)
        }
        Command::ListExchanges(of) => lists::exchanges(client, output, of.vhost.as_deref()),
        Command::ListBindings(of) => lists::bindings(client, output, of.vhost.as_deref()),
        Command::ListPolicies(of) => lists::policies(client, output, of.vhost.as_deref()),
        Command::ListVhosts => lists::vhosts(client, output),
        Command::ListNodes => lists::nodes(client, output),
        Command::ListLogLevels => lists::log_levels(client, output),
        Command::ListUsers => lists::users(client, output),
        Command::ListPermissions { user } => lists::permissions(client, output, user.as_deref()),
        Command::Connections(command) => connections::perform(client, output, command),
        Command::Service(command) => service::perform(client, output, *command),
        Command::Administration(command) => administration::perform(client, output, command),
        Command::Check(check) => checks::perform(client, output, check),
        Command::Membership(command) => membership::perform(client, output, command),
        Command::Streams(command) => streams::perform(client, output, command),
        change => {
            let message = changes::perform(client, change)?;
            output.say(&message);
            Ok(())
        }
    }
}

/// Parses a JSON object from the command line.
fn object(subject: &str, text: &str) -> Result<serde_json::Map<String, Json>, Failure> {
    match serde_json::from_str(text) {
        Ok(Json::Object(object)) => Ok(object),
        Ok(_) => Err(Failure::Usage(format!(
            "{subject} is not a JSON object: {text}"
        ))),
        Err(e) => Err(Failure::Usage(format!(
            "{subject} is not JSON ({e}): {text}"
        ))),
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn ctl_is_implied_by_the_name_of_the_binary() {
        let run = |words: &[&str]| {
            let raw_arguments = words.iter().map(OsString::from);
            let got = arguments(raw_arguments)
                .into_iter()
                .map(|w| w.into_string());
            got.collect::<Result<Vec<_>, _>>().unwrap()
        };
        assert_eq!(run(&["/bin/posthornctl", "status"])[1..], ["ctl", "status"]);
        assert_eq!(run(&["rabbitmqctl", "status"])[1..], ["ctl", "status"]);
        assert_eq!(
            run(&["/rabbitmq-diagnostics", "ping"])[1..],
            ["ctl", "ping"]
        );
        assert_eq!(run(&["posthorn", "serve"])[1..], ["serve"]);
        assert!(run(&[]).is_empty());
    }
}
