//! `posthorn serve`: configuration, log, signals, and then a node.

use crate::control_plane;
use crate::protocols::registrations;
use crate::{EXIT_CONFIG, EXIT_FAILED, ServeArgs};
use metadata::features::Version;
use node::config::{Config, ConfigErrors, Sources, load};
use node::logging::Levels;
use node::{NodeParts, Notice, ShardMaterial};
use shard::ShardDriver;
use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

pub fn serve(args: ServeArgs, program: Version) -> ExitCode {
    let ready_file = args.ready_file.clone();
    let config = match configuration(args) {
        Ok(config) => config,
        Err(errors) => {
            eprintln!("{errors}");
            return ExitCode::from(EXIT_CONFIG);
        }
    };
    let levels = match node::logging::init(&config.log) {
        Ok(levels) => levels,
        Err(error) => {
            eprintln!("log: {error}");
            return ExitCode::from(EXIT_CONFIG);
        }
    };
    end_on_panic();
    match run(config, program, levels, ready_file) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(event = "node.failed", error);
            eprintln!("posthorn: {error}");
            ExitCode::from(EXIT_FAILED)
        }
    }
}

fn configuration(args: ServeArgs) -> Result<Config, ConfigErrors> {
    let strings = std::env::vars_os()
        .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
    let mut config = load(&Sources {
        file: args.config,
        environment: strings.collect(),
        flags: args.set,
    })?;
    if let Some(dir) = args.data_dir {
        config.data_dir = dir;
    }
    Ok(config)
}

fn run(
    config: Config,
    program: Version,
    levels: Arc<Levels>,
    ready_file: Option<std::path::PathBuf>,
) -> Result<(), String> {
    let (notices, inbox) = channel();
    watch_signals(notices.clone()).map_err(|e| format!("signals: {e}"))?;
    let parts = NodeParts {
        protocols: registrations(&config),
        config,
        program,
        make_shard: Arc::new(make_shard),
        serve_control: Some(Box::new(|parts| control_plane::serve(parts, levels))),
        ready_file,
    };
    node::run(parts, (notices, inbox)).map_err(|e| e.to_string())
}

/// The shard of the product; the node itself knows only the trait.
fn make_shard(material: ShardMaterial) -> Result<Box<dyn ShardDriver>, String> {
    let ShardMaterial {
        config,
        recovered,
        disk,
        checks,
        now,
        wall,
    } = material;
    let shard = shard::Shard::new(config, recovered, disk, now, wall);
    let mut shard = shard.map_err(|e| e.to_string())?;
    shard.check_elsewhere(checks);
    Ok(Box::new(shard))
}

/// The first SIGTERM or SIGINT drains, the second ends the process at once.
fn watch_signals(notices: Sender<Notice>) -> std::io::Result<()> {
    // A file over its size limit is to be an error of the write (EFBIG), not the end of the process.
    signal_hook::flag::register(SIGXFSZ, Arc::default())?;
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for (count, signal) in signals.forever().enumerate() {
                tracing::info!(event = "node.signal", signal, count);
                // No receiver: the node has ended by itself.
                if count > 0 || notices.send(Notice::Stop).is_err() {
                    std::process::exit(128 + signal);
                }
            }
        })?;
    Ok(())
}

/// A thread that is gone would leave a node that half works: the whole process ends, and others take over.
fn end_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        print(info);
        std::process::abort();
    }));
}
