//! `posthorn ctl`: manual operations through the management API.

mod administration;
mod backup;
mod bench;
mod browse;
mod changes;
mod checks;
mod client;
mod cluster;
mod connections;
mod contexts;
mod doctor;
mod erlang;
mod failure;
mod lists;
mod membership;
mod messages;
mod node_name;
mod object_names;
mod output;
mod plain;
mod recovery;
mod redaction;
mod report;
mod selection;
mod service;
mod streams;
mod suggestions;
mod tls;
mod top;
mod topology;
mod usage;
mod warnings;
mod watching;

pub(crate) use usage::report as report_usage;

use client::{Client, Endpoint};
use failure::Failure;
use output::{Format, Output};
use serde_json::Value as Json;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// The arguments of `posthorn ctl`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Named address and user; see set_context [default: $POSTHORN_CONTEXT, else that of use_context]
    #[arg(long, global = true, value_name = "NAME", conflicts_with = "url")]
    context: Option<String>,
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
    /// Log in with the client certificate alone, at a listener for the operator (operator.ssl.port)
    #[arg(long, global = true, conflicts_with_all = ["as_user", "as_password", "password_file"])]
    certificate_only: bool,
    /// Format of the output
    #[arg(long, global = true, value_enum, default_value_t = Format::Table)]
    output: Format,
    #[command(flatten)]
    selection: selection::SelectionOptions,
    /// Repeat a list or a check at this interval, in seconds
    #[arg(long, global = true, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    watch: Option<u64>,
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
    /// Show the node, its cluster and the number of objects. Exit with 1 while a node of the cluster is down
    Status,
    #[command(flatten)]
    Cluster(cluster::Command),
    /// Find problems of the cluster and explain them, with cause and remedy
    ///
    /// Checks for nodes that are down or in maintenance mode, lost or endangered majorities, alarms, certificates that
    /// expire, different versions, disabled feature flags, unbalanced leaders, and queues that are lost, not available or
    /// without consumers. Exits with 1 if there is an error.
    #[command(
        after_help = "Examples:\n  posthorn ctl doctor\n  posthorn ctl doctor --strict --output json"
    )]
    Doctor(doctor::Options),
    /// Write a report for support into a directory: all lists, health, configuration, problems, without secrets
    #[command(
        after_help = "Example:\n  posthorn ctl report report && tar czf report.tar.gz report"
    )]
    Report(report::Options),
    /// List the busiest queues, on a terminal every 2 seconds
    #[command(
        after_help = "Examples:\n  posthorn ctl top\n  posthorn ctl top --by publish --limit 20 --watch 1"
    )]
    Top(top::Options),
    /// Measure rates and latencies of a queue, with publishers and consumers over AMQP 0.9.1
    ///
    /// Publishers wait for confirms, and consumers acknowledge. The latency of the first line is the time until the
    /// confirm, that of the second line the time until a consumer has the message.
    #[command(after_help = "Examples:\n  \
        posthorn ctl bench\n  \
        posthorn ctl bench --type classic --size 1024 --publishers 4 --consumers 4\n  \
        posthorn ctl bench --rate 1000 --seconds 60 --output json")]
    Bench(bench::Options),
    #[command(flatten)]
    Messages(messages::Command),
    #[command(flatten)]
    Browse(browse::Command),
    /// Write, list, verify, restore and delete backups of definitions and messages
    #[command(subcommand)]
    Backup(backup::Command),
    #[command(flatten)]
    Topology(topology::Command),
    #[command(flatten)]
    Contexts(contexts::Command),
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
    /// List exchanges
    ListExchanges {
        #[command(flatten)]
        of: VhostFilter,
        #[command(flatten)]
        chosen: ColumnSelection,
    },
    /// List bindings
    ListBindings {
        #[command(flatten)]
        of: VhostFilter,
        #[command(flatten)]
        chosen: ColumnSelection,
    },
    /// List policies and operator policies
    ListPolicies(VhostFilter),
    /// List virtual hosts
    ListVhosts(ColumnSelection),
    /// List the nodes of the cluster with their state and version
    ListNodes,
    /// List users with their tags and limits
    ListUsers,
    /// List permissions of all users or of one user
    ListPermissions { user: Option<String> },
    /// Create a user, without permissions
    #[command(
        after_help = "Example:\n  posthorn ctl add_user app --tags monitoring < password-file"
    )]
    AddUser {
        name: String,
        #[command(flatten)]
        secret: NewPassword,
        /// administrator, monitoring, policymaker, management
        #[arg(long, value_delimiter = ',')]
        tags: Vec<String>,
    },
    /// Change the password of a user
    ChangePassword {
        name: String,
        #[command(flatten)]
        secret: NewPassword,
    },
    /// Delete a user with its permissions
    DeleteUser { name: String },
    /// Replace the tags of a user; without a tag, remove all
    SetUserTags { name: String, tags: Vec<String> },
    /// Set the permissions of a user in a vhost, as regular expressions on names
    SetPermissions {
        user: String,
        configure: String,
        write: String,
        read: String,
        #[command(flatten)]
        at: VhostOption,
    },
    /// Remove the permissions of a user in a vhost
    ClearPermissions {
        user: String,
        #[command(flatten)]
        at: VhostOption,
    },
    /// Create a vhost, or change its description and tags
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
    /// Stop copying the messages of a vhost
    TraceOff(VhostOption),
    /// Delete a vhost with its queues, exchanges and permissions
    DeleteVhost { name: String },
    /// Declare a durable queue
    #[command(
        after_help = "Example:\n  posthorn ctl declare_queue orders --arguments '{\"x-max-length\": 1000}'"
    )]
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
    /// Delete a queue with its messages
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
    /// Delete a policy
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
    SetMemoryWatermark { fraction: f64 },
    /// Set the free disk space (bytes, or with a unit: 2GB, 512MiB) below which this node blocks publishers, until it restarts
    SetDiskFreeLimit { limit: String },
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

/// Runs one operation. Exit codes: 0 success, 1 rejected, failed or unhealthy, 2 invalid command
/// line, 69 node unreachable or not ready, 77 not permitted.
pub(crate) fn run(args: Args) -> ExitCode {
    let silence = (args.quiet, args.silent);
    let output = Output::new(args.output, silence, args.selection.clone());
    match operate(&args, &output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output.fail(&failure);
            ExitCode::from(failure.exit_code())
        }
    }
}

fn operate(args: &Args, output: &Output) -> Result<(), Failure> {
    if let Command::Contexts(command) = &args.command {
        return contexts::perform(output, command, options(args)?);
    }
    if let Command::Backup(command) = &args.command
        && let Some(result) = backup::perform_offline(output, command)
    {
        return result;
    }
    let interval = watching::interval(args.watch, &args.command)?;
    let client = client(args)?;
    let node_name = args.node_name.as_deref();
    node_name::check_before(&client, node_name, &args.command)?;
    match interval {
        Some(interval) => watching::watch(&client, output, &args.command, interval)?,
        None => perform(&client, output, &args.command)?,
    }
    node_name::check_after(&client, node_name, &args.command)
}

/// The options of the command line that a context stores.
fn options(args: &Args) -> Result<contexts::Context, Failure> {
    if args.as_password.is_some() {
        return Err(Failure::Usage(
            "contexts store no passwords: write the password to a file and give --password-file"
                .to_owned(),
        ));
    }
    Ok(contexts::Context {
        url: args.url.clone(),
        user: args.as_user.clone(),
        password_file: args.password_file.clone(),
        cacert: args.tls.cacert.clone(),
        cert: args.tls.cert.clone(),
        key: args.tls.key.clone(),
    })
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Options take precedence over the context, and a named context over the environment. The current
/// context counts only if no other address is given, so that its password goes to its own address.
fn client(args: &Args) -> Result<Client, Failure> {
    let named = args
        .context
        .clone()
        .or_else(|| variable("POSTHORN_CONTEXT"));
    let has_address = args.url.is_some() || variable("POSTHORN_URL").is_some();
    let context = match (&named, has_address) {
        (None, true) => contexts::Context::default(),
        _ => contexts::resolve(named.as_deref())?,
    };
    let setting = |option: &Option<String>, stored: &Option<String>, name: &str, default: &str| {
        let value = option.clone().or_else(|| stored.clone());
        let value = value.or_else(|| variable(name));
        value.unwrap_or_else(|| default.to_owned())
    };
    let tls = args.tls.clone().or(&context);
    if args.certificate_only && tls.cert.is_none() {
        let text = "--certificate-only needs a client certificate: give --cert and --key";
        return Err(Failure::Usage(text.to_owned()));
    }
    let password = match (
        &args.as_password,
        &args.password_file,
        &context.password_file,
    ) {
        (Some(password), _, _) => password.clone(),
        (None, Some(file), _) => password_in(file)?,
        (None, None, Some(file)) => password_in(file)?,
        _ => variable("POSTHORN_PASSWORD").unwrap_or_else(|| "guest".to_owned()),
    };
    Client::new(Endpoint {
        url: setting(
            &args.url,
            &context.url,
            "POSTHORN_URL",
            "http://127.0.0.1:15672",
        ),
        user: setting(&args.as_user, &context.user, "POSTHORN_USER", "guest"),
        password,
        certificate_only: args.certificate_only,
        timeout: Duration::from_secs(args.timeout),
        tls,
    })
}

fn password_in(file: &Path) -> Result<String, Failure> {
    let text = std::fs::read_to_string(file).map_err(|e| {
        Failure::Usage(format!(
            "the password file {} cannot be read: {e}",
            file.display()
        ))
    })?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

fn perform(client: &Client, output: &Output, command: &Command) -> Result<(), Failure> {
    match command {
        Command::Status => cluster::status(client, output),
        Command::Cluster(command) => cluster::perform(client, output, *command),
        Command::Doctor(options) => doctor::doctor(client, output, options),
        Command::Report(options) => report::report(client, output, options),
        Command::Top(options) => top::top(client, output, options),
        Command::Bench(options) => bench::bench(client, output, options),
        Command::Messages(command) => messages::perform(client, output, command),
        Command::Browse(command) => browse::perform(client, output, command),
        Command::Backup(command) => backup::perform(client, output, command),
        Command::Topology(command) => topology::perform(client, output, command),
        Command::Health => checks::health(client, output),
        Command::ListQueues { of, chosen } => {
            lists::queues(client, output, of.vhost.as_deref(), &chosen.columns)
        }
        Command::ListExchanges { of, chosen } => {
            lists::exchanges(client, output, of.vhost.as_deref(), &chosen.columns)
        }
        Command::ListBindings { of, chosen } => {
            lists::bindings(client, output, of.vhost.as_deref(), &chosen.columns)
        }
        Command::ListPolicies(of) => lists::policies(client, output, of.vhost.as_deref()),
        Command::ListVhosts(chosen) => lists::vhosts(client, output, &chosen.columns),
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
            for warning in changes::warnings(change)? {
                output.warn(&warning);
            }
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
