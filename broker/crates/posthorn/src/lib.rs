//! The `posthorn` binary: `posthorn serve` runs a node, `posthorn ctl` operates one, `posthorn
//! config` checks and explains its configuration, `posthorn completion` prints shell completions.
#![deny(missing_docs, unreachable_pub)]
#![forbid(unsafe_code)]

const _: () = assert!(
    !env::planted::POSSIBLE,
    "a release must not contain planted bugs of the simulator: build without the feature `planted`"
);

mod amqp;
mod control_plane;
mod ctl;
mod program;
mod protocols;
mod reload;
mod serve;

pub use program::{NEXT, PROGRAM};

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use metadata::features::Version;
use node::config::{ConfigSources, load, reference};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Exit code for an invalid configuration: nothing was started.
const EXIT_CONFIG: u8 = 2;

/// Exit code for a node that could not start or had to stop.
const EXIT_FAILED: u8 = 1;

#[derive(Parser)]
#[command(name = "posthorn", about = "A message broker")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a node; it is standalone unless the configuration names a cluster
    Serve(ServeArgs),
    /// Operate a running node over its management API
    Ctl(Box<ctl::Args>),
    /// Check or explain the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print a shell completion script
    Completion {
        shell: Shell,
        /// Name of the binary to complete
        #[arg(long = "for", value_enum, default_value_t = BinaryName::Posthorn)]
        binary_name: BinaryName,
    },
}

/// The names of the binary; all except `posthorn` imply `posthorn ctl`.
#[derive(Clone, Copy, ValueEnum)]
enum BinaryName {
    Posthorn,
    Posthornctl,
    Rabbitmqctl,
}

#[derive(Args)]
struct ServeArgs {
    /// Configuration file; `conf.d/*.conf` beside it is read too
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Data directory of the node
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// One setting, which takes precedence over all other sources
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// File to write the ports to as JSON once all listeners are up
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
}

#[derive(Subcommand)]
enum ConfigCommand {
    /// Check a configuration file, with `conf.d/*.conf` beside it
    Check {
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Print every key with its default and meaning, as Markdown
    Reference,
}

/// Runs the command line. `arguments` start with the name of the binary.
pub fn run(arguments: impl Iterator<Item = OsString>, program: Version) -> ExitCode {
    env::real::limit_host_lookup();
    let command_line = Cli::command().version(program.version);
    let arguments = ctl::arguments(arguments);
    let matches = command_line.clone().try_get_matches_from(&arguments);
    let cli = match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => {
            let ctl = arguments.get(1).filter(|word| *word == "ctl");
            let ctl = ctl.and_then(|_| command_line.find_subcommand("ctl"));
            let commands = ctl.unwrap_or(&command_line).get_subcommands();
            let commands: Vec<&str> = commands.map(clap::Command::get_name).collect();
            return ctl::report_usage(error, &arguments, &commands);
        }
    };
    match cli.command {
        Command::Serve(args) => serve::serve(args, program),
        Command::Ctl(args) => ctl::run(*args),
        Command::Config(ConfigCommand::Check { file }) => check(file),
        Command::Config(ConfigCommand::Reference) => {
            print!("{}", reference());
            ExitCode::SUCCESS
        }
        Command::Completion { shell, binary_name } => {
            print!("{}", completion(shell, binary_name));
            ExitCode::SUCCESS
        }
    }
}

/// Generates a completion script from the command definitions.
fn completion(shell: Shell, binary_name: BinaryName) -> String {
    let program = Cli::command();
    let ctl = |name: &'static str| {
        let ctl = program.find_subcommand("ctl").cloned();
        (name, ctl.unwrap_or_default().name(name).bin_name(name))
    };
    let (name, mut command) = match binary_name {
        BinaryName::Posthorn => ("posthorn", program.clone()),
        BinaryName::Posthornctl => ctl("posthornctl"),
        BinaryName::Rabbitmqctl => ctl("rabbitmqctl"),
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

fn check(file: PathBuf) -> ExitCode {
    let name = file.display().to_string();
    let sources = ConfigSources {
        file: Some(file),
        ..ConfigSources::default()
    };
    let loaded = load(&sources).map_err(|errors| errors.to_string());
    let checked = loaded.and_then(|config| protocols::check_advertised_listeners(&config));
    match checked {
        Ok(()) => {
            println!("{name}: valid");
            ExitCode::SUCCESS
        }
        Err(errors) => {
            eprintln!("{errors}");
            ExitCode::from(EXIT_CONFIG)
        }
    }
}
