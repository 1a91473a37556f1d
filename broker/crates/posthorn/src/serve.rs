//! `posthorn serve`: loads the configuration, starts logging and signal handling, and runs a node.

use crate::control_plane;
use crate::protocols::reloadable_registrations;
use crate::reload::{Reloader, StartOptions};
use crate::{EXIT_CONFIG, EXIT_FAILED, ServeArgs};
use management::LiveSettings;
use metadata::features::Version;
use node::config::{ConfigSources, RunningConfig};
use node::logging::LogLevelControl;
use node::{NodeParts, ShardMaterial, ThreadNotification};
use shard::ShardDriver;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;
use std::process::ExitCode;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

pub(crate) fn serve(args: ServeArgs, version: Version) -> ExitCode {
    let ready_file = args.ready_file.clone();
    let options = start_options(args);
    let running = match options.load() {
        Ok(running) => running,
        Err(errors) => {
            eprintln!("{errors}");
            return ExitCode::from(EXIT_CONFIG);
        }
    };
    let levels = match node::logging::init(&running.config.log) {
        Ok(levels) => levels,
        Err(error) => {
            eprintln!("log: {error}");
            return ExitCode::from(EXIT_CONFIG);
        }
    };
    abort_on_panic();
    match run(options, running, version, levels, ready_file) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(event = "node.failed", error);
            eprintln!("posthorn: {error}");
            ExitCode::from(EXIT_FAILED)
        }
    }
}

fn start_options(args: ServeArgs) -> StartOptions {
    let variables = std::env::vars_os()
        .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
    StartOptions {
        sources: ConfigSources {
            file: args.config,
            environment: variables.collect(),
            flags: args.set,
        },
        data_dir: args.data_dir,
    }
}

fn run(
    options: StartOptions,
    running: RunningConfig,
    version: Version,
    levels: Arc<LogLevelControl>,
    ready_file: Option<std::path::PathBuf>,
) -> Result<(), String> {
    let (notices, inbox) = channel();
    let config = running.config.clone();
    let (registrations, protocols) = reloadable_registrations(&config);
    let settings = options.settings(&running);
    let reloader = Arc::new(Reloader {
        options,
        running: Mutex::new(running),
        levels,
        protocols,
        shown: LiveSettings::new(settings, config.limits.consumer_timeout_ms),
        notices: notices.clone(),
    });
    watch_signals(notices.clone(), reloader.clone()).map_err(|e| format!("signals: {e}"))?;
    let parts = NodeParts {
        protocols: registrations,
        config,
        version,
        make_shard: Arc::new(make_shard),
        serve_control: Some(Box::new(|parts| control_plane::serve(parts, reloader))),
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
        identification,
        audit,
        spans,
        now,
        wall,
    } = material;
    let shard = shard::Shard::new(config, recovered, disk, now, wall);
    let mut shard = shard.map_err(|e| e.to_string())?;
    shard.check_elsewhere(checks);
    if let Some((backends, identify)) = identification {
        shard.identify_with(backends, identify);
    }
    if let Some(audit) = audit {
        shard.audit_to(audit);
    }
    if let Some(spans) = spans {
        shard.record_spans(spans);
    }
    Ok(Box::new(shard))
}

/// SIGHUP reloads the configuration and opens the file of the audit log again. The first SIGTERM or SIGINT drains the node, the second one exits at once.
fn watch_signals(
    notices: Sender<ThreadNotification>,
    reloader: Arc<Reloader>,
) -> std::io::Result<()> {
    // Exceeding the file size limit must fail the write (EFBIG) instead of killing the process.
    signal_hook::flag::register(SIGXFSZ, Arc::default())?;
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            let mut stops = 0u32;
            for signal in signals.forever() {
                if signal == SIGHUP {
                    reloader.reload_on_signal();
                    // The receiver is gone if the node has already stopped.
                    let _ = notices.send(ThreadNotification::ReopenAuditLog);
                    continue;
                }
                tracing::info!(event = "node.signal", signal, count = stops);
                // The receiver is gone if the node has already stopped.
                if stops > 0 || notices.send(ThreadNotification::Stop).is_err() {
                    std::process::exit(128 + signal);
                }
                stops += 1;
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
