//! The log: one line per event on standard error, events named by their field `event`.

use crate::config::LogConfig;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt;

/// Sets the process's log up; once, before threads start.
pub fn init(config: &LogConfig) -> Result<(), String> {
    let filter = EnvFilter::try_new(&config.level).map_err(|e| e.to_string())?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_thread_names(true);
    let set = if config.json {
        builder.json().flatten_event(true).finish().try_init()
    } else {
        builder.finish().try_init()
    };
    set.map_err(|e| e.to_string())
}
