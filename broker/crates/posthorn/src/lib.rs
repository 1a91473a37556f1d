//! The program: `posthorn serve` runs a node, `posthorn ctl` operates one, `posthorn config` checks and explains its configuration,
//! `posthorn completion` tells shells of all that.
#![forbid(unsafe_code)]

const _: () = assert!(
    !env::planted::POSSIBLE,
    "bugs that the simulator is tested with are no part of the program: build without the feature `planted`"
);

mod control_plane;
mod ctl;
mod program;
mod protocols;
mod serve;

pub use program::{NEXT, PROGRAM};

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use metadata::features::Version;
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
    /// Operate a running node over its management API
    Ctl(Box<ctl::Args>),
    /// Check or explain the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print a script with which a shell completes commands and options
    Completion {
        shell: Shell,
        /// The name under which the program is called
        #[arg(long = "for", value_enum, default_value_t = CalledAs::Posthorn)]
        called: CalledAs,
    },
}

/// The program, and the names under which it is `posthorn ctl`.
#[derive(Clone, Copy, ValueEnum)]
enum CalledAs {
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
    /// File that receives the ports as JSON when all listeners are up
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
pub fn run(arguments: impl Iterator<Item = OsString>, program: Version) -> ExitCode {
    let command_line = Cli::command().version(program.version);
    let matches = command_line.get_matches_from(ctl::arguments(arguments));
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match cli.command {
        Command::Serve(args) => serve::serve(args, program),
        Command::Ctl(args) => ctl::run(*args),
        Command::Config(ConfigCommand::Check { file }) => check(file),
        Command::Config(ConfigCommand::Reference) => {
            print!("{}", reference());
            ExitCode::SUCCESS
        }
        Command::Completion { shell, called } => {
            print!("{}", completion(shell, called));
            ExitCode::SUCCESS
        }
    }
}

/// A script for the shell, made from the commands themselves.
fn completion(shell: Shell, called: CalledAs) -> String {
    let program = Cli::command();
    let ctl = |name: &'static str| {
        let ctl = program.find_subcommand("ctl").cloned();
        (name, ctl.unwrap_or_default().name(name).bin_name(name))
    };
    let (name, mut command) = match called {
        CalledAs::Posthorn => ("posthorn", program.clone()),
        CalledAs::Posthornctl => ctl("posthornctl"),
        CalledAs::Rabbitmqctl => ctl("rabbitmqctl"),
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    String::from_utf8_lossy(&script).into_owned()
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
