//! `posthorn serve`: loads the configuration, starts logging and signal handling, and runs a node.

use crate::control_plane::{self, ControlSettings};
use crate::protocols::{check_advertised_listeners, registrations};
use crate::{EXIT_CONFIG, EXIT_FAILED, ServeArgs};
use metadata::features::Version;
use node::config::{Config, ConfigErrors, ConfigSources, EffectiveSetting, load_effective};
use node::{NodeParts, ShardMaterial, ThreadNotification};
use shard::ShardDriver;
use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

pub(crate) fn serve(args: ServeArgs, version: Version) -> ExitCode {
    let ready_file = args.ready_file.clone();
    let (config, settings) = match configuration(args) {
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
    abort_on_panic();
    let control = ControlSettings { levels, settings };
    match run(config, version, control, ready_file) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(event = "node.failed", error);
            eprintln!("posthorn: {error}");
            ExitCode::from(EXIT_FAILED)
        }
    }
}

fn configuration(args: ServeArgs) -> Result<(Config, Vec<EffectiveSetting>), String> {
    let variables = std::env::vars_os()
        .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
    let (mut config, mut settings) = load_effective(&ConfigSources {
        file: args.config,
        environment: variables.collect(),
        flags: args.set,
    })
    .map_err(|errors: ConfigErrors| errors.to_string())?;
    check_advertised_listeners(&config)?;
    if let Some(dir) = args.data_dir {
        if let Some(setting) = settings.iter_mut().find(|s| s.key == "data_dir") {
            setting.value = dir.display().to_string();
            setting.source = "--data-dir".to_owned();
        }
        config.data_dir = dir;
    }
    Ok((config, settings))
}

fn run(
    config: Config,
    version: Version,
    control: ControlSettings,
    ready_file: Option<std::path::PathBuf>,
) -> Result<(), String> {
    let (notices, inbox) = channel();
    watch_signals(notices.clone()).map_err(|e| format!("signals: {e}"))?;
    let parts = NodeParts {
        protocols: registrations(&config),
        config,
        version,
        make_shard: Arc::new(make_shard),
        serve_control: Some(Box::new(|parts| control_plane::serve(parts, control))),
        ready_file,
    };
    node::run(parts, (notices, inbox)).map_err(|e| e.to_string())
}

/// Creates the production shard; the `node` crate knows only the trait.
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

/// The first SIGTERM or SIGINT drains the node, the second one exits at once.
fn watch_signals(notices: Sender<ThreadNotification>) -> std::io::Result<()> {
    // Exceeding the file size limit must fail the write (EFBIG) instead of killing the process.
    signal_hook::flag::register(SIGXFSZ, Arc::default())?;
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for (count, signal) in signals.forever().enumerate() {
                tracing::info!(event = "node.signal", signal, count);
                // The receiver is gone if the node has already stopped.
                if count > 0 || notices.send(ThreadNotification::Stop).is_err() {
                    std::process::exit(128 + signal);
                }
            }
        })?;
    Ok(())
}

/// Without this, a panicked thread would leave a half-working node. Abort the whole process, so
/// that other nodes take over.
fn abort_on_panic() {
    let default_hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        default_hook(info);
        std::process::abort();
    }));
}
