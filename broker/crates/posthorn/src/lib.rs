//! The program: `posthorn serve` runs a node, `posthorn ctl` operates one, `posthorn config` checks and explains its configuration.
#![forbid(unsafe_code)]

const _: () = assert!(
    !env::planted::POSSIBLE,
    "bugs that the simulator is tested with are no part of the program: build without the feature `planted`"
);

mod control_plane;
mod ctl;
mod program;
mod serve;

pub use program::{NEXT, PROGRAM};

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use metadata::features::Program;
use node::config::{Sources, load, reference};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The configuration is wrong: nothing was started.
const EXIT_CONFIG: u8 = 2;

/// The node could not start, or had to end.
const EXIT_FAILED: u8 = 1;

#[derive(Parser)]
#[command(name = "posthorn", about = "A message broker")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run one node, alone unless it is configured to be of a cluster
    Serve(ServeArgs),
    /// Operations on a running node, over its management API
    Ctl(ctl::Args),
    /// Check or explain the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
}

#[derive(Args)]
struct ServeArgs {
    /// Configuration file; `conf.d/*.conf` beside it is read too
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Directory of everything the node keeps
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// One setting, over all other sources
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Gets the ports as JSON when all listeners are up
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

/// Does what the command line says; `arguments` begin with the program's name.
pub fn run(arguments: impl Iterator<Item = OsString>, program: Program) -> ExitCode {
    let command_line = Cli::command().version(program.version);
    let matches = command_line.get_matches_from(ctl::arguments(arguments));
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match cli.command {
        Command::Serve(args) => serve::serve(args, program),
        Command::Ctl(args) => ctl::run(args),
        Command::Config(ConfigCommand::Check { file }) => check(file),
        Command::Config(ConfigCommand::Reference) => {
            print!("{}", reference());
            ExitCode::SUCCESS
        }
    }
}

fn check(file: PathBuf) -> ExitCode {
    let name = file.display().to_string();
    let sources = Sources {
        file: Some(file),
        ..Sources::default()
    };
    match load(&sources) {
        Ok(_) => {
            println!("{name}: good");
            ExitCode::SUCCESS
        }
        Err(errors) => {
            eprintln!("{errors}");
            ExitCode::from(EXIT_CONFIG)
        }
    }
}
