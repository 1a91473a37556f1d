//! The reload of the configuration: SIGHUP, and `POST /api/nodes/{node}/configuration/reload`.

use crate::protocols::{ReloadableProtocol, check_advertised_listeners, registrations};
use management::{LiveSettings, Reloaded, Setting};
use node::ThreadNotification;
use node::config::{Config, ConfigSources, RunningConfig, is_live};
use node::logging::LogLevelControl;
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

/// The command line and the environment of the process, from which its configuration follows.
pub(crate) struct StartOptions {
    pub(crate) sources: ConfigSources,
    /// `--data-dir`, which takes precedence over all sources.
    pub(crate) data_dir: Option<PathBuf>,
}

impl StartOptions {
    /// Loads the configuration; an error lists all invalid settings.
    pub(crate) fn load(&self) -> Result<RunningConfig, String> {
        let running = RunningConfig::load(&self.sources).map_err(|e| e.to_string())?;
        self.complete(running)
    }

    fn complete(&self, mut running: RunningConfig) -> Result<RunningConfig, String> {
        check_advertised_listeners(&running.config)?;
        if let Some(dir) = &self.data_dir {
            running.config.data_dir = dir.clone();
        }
        Ok(running)
    }

    /// The settings for the HTTP API.
    pub(crate) fn settings(&self, running: &RunningConfig) -> Vec<Setting> {
        let restart = running.restart_keys();
        let settings = running.settings().into_iter();
        let mut shown: Vec<Setting> = settings
            .map(|setting| Setting {
                live: is_live(&setting.key),
                restart: restart.contains(&setting.key),
                key: setting.key,
                value: setting.value,
                source: setting.source,
            })
            .collect();
        if let Some(dir) = &self.data_dir
            && let Some(setting) = shown.iter_mut().find(|s| s.key == "data_dir")
        {
            setting.value = dir.display().to_string();
            setting.source = "--data-dir".to_owned();
            setting.restart = false;
        }
        shown
    }
}

/// The parts of a running node that a reload changes.
pub(crate) struct Reloader {
    pub(crate) options: StartOptions,
    pub(crate) running: Mutex<RunningConfig>,
    pub(crate) levels: Arc<LogLevelControl>,
    pub(crate) protocols: Vec<Arc<ReloadableProtocol>>,
    pub(crate) shown: LiveSettings,
    pub(crate) notices: Sender<ThreadNotification>,
}

impl Reloader {
    /// Reads the sources again and applies changes of live settings. An error lists the invalid settings; the node keeps its
    /// settings then.
    pub(crate) fn reload(&self) -> Result<Reloaded, String> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let reload = running.reload(&self.options.sources);
        let reload = reload.map_err(|errors| errors.to_string())?;
        let next = self.options.complete(reload.running)?;
        let level = &next.config.log.level;
        if *level != running.config.log.level {
            self.levels.set(None, level)?;
        }
        for (protocol, new) in self.protocols.iter().zip(registrations(&next.config)) {
            protocol.replace(new.protocol);
        }
        let timeout = next.config.limits.consumer_timeout_ms;
        self.shown.replace(self.options.settings(&next), timeout);
        // The receiver is gone if the node is stopping.
        let _ = self
            .notices
            .send(ThreadNotification::Reloaded(boxed(&next)));
        let reloaded = Reloaded {
            changed: reload.changed.into_iter().collect(),
            restart: next.restart_keys().iter().cloned().collect(),
        };
        *running = next;
        tracing::info!(
            event = "config.reloaded",
            changed = reloaded.changed.join(","),
            need_restart = reloaded.restart.join(",")
        );
        Ok(reloaded)
    }

    /// Reloads on SIGHUP, which has nobody to answer: the log has the result.
    pub(crate) fn reload_on_signal(&self) {
        if let Err(error) = self.reload() {
            tracing::error!(event = "config.reload_failed", error);
        }
    }
}

fn boxed(running: &RunningConfig) -> Box<Config> {
    Box::new(running.config.clone())
}
