//! Settings that a node applies without a restart, and the comparison of changed sources with the running configuration.

use super::Config;
use super::effective::{AppliedSetting, EffectiveSetting, effective_settings};
use super::keys::find;
use super::load::{ConfigErrors, ConfigSources, IMPLIED, load_settings, replay};
use std::collections::{BTreeMap, BTreeSet};

/// Keys whose changes a reload applies. Each of them takes effect completely: a key belongs here only if every use of its
/// value follows a reload, for new connections where it concerns connections.
const LIVE_KEYS: &[&str] = &[
    "advertised_listeners.*",
    "advertised_nodes.*",
    "channel_max",
    "connection_max",
    "consumer_timeout",
    "disk_free_limit.absolute",
    "heartbeat",
    "log.level",
    "mqtt.mailbox_soft_limit",
    "mqtt.max_keep_alive_seconds",
    "mqtt.max_session_expiry_interval_seconds",
    "mqtt.prefetch",
    "mqtt.topic_alias_maximum",
    "stream.advertised_host",
    "stream.advertised_port",
    "stream.advertised_tls_host",
    "stream.advertised_tls_port",
    "stream.heartbeat",
    "vm_memory_high_watermark.relative",
];

/// Returns true if a reload applies changes of this key. `name` is a key as in a file, or one of the reference
/// (`advertised_listeners.*`).
pub fn is_live(name: &str) -> bool {
    let listed = find(name).map_or(name, |(key, _)| key.name);
    LIVE_KEYS.contains(&listed)
}

/// The configuration of a running node, with the settings from which it was built.
#[derive(Clone, Debug)]
pub struct RunningConfig {
    /// The configuration.
    pub config: Config,
    applied: Vec<AppliedSetting>,
    has_implied_listeners: bool,
    restart: BTreeSet<String>,
}

/// The result of a reload.
#[derive(Clone, Debug)]
pub struct Reload {
    /// The configuration with the changed live settings.
    pub running: RunningConfig,
    /// Keys of the live settings that changed.
    pub changed: BTreeSet<String>,
}

impl RunningConfig {
    /// Loads the configuration, or returns all errors.
    pub fn load(sources: &ConfigSources) -> Result<RunningConfig, ConfigErrors> {
        let loaded = load_settings(sources)?;
        Ok(RunningConfig {
            config: loaded.config,
            applied: loaded.applied,
            has_implied_listeners: loaded.has_implied_listeners,
            restart: BTreeSet::new(),
        })
    }

    /// The value and the source of each setting, as they apply now.
    pub fn settings(&self) -> Vec<EffectiveSetting> {
        let implied = if self.has_implied_listeners {
            IMPLIED
        } else {
            &[]
        };
        effective_settings(&self.applied, implied)
    }

    /// Keys whose values in the sources differ from the running ones and apply at the next start.
    pub fn restart_keys(&self) -> &BTreeSet<String> {
        &self.restart
    }

    /// Reads the sources again and applies changes of live settings to a copy. Returns all errors if the sources are invalid, or
    /// if the live settings do not fit the running ones.
    pub fn reload(&self, sources: &ConfigSources) -> Result<Reload, ConfigErrors> {
        let new = load_settings(sources)?.applied;
        let (live, fixed) = differences(&self.applied, &new);
        let is_kept = |setting: &&AppliedSetting| !is_live(&setting.key);
        let is_taken = |setting: &&AppliedSetting| is_live(&setting.key);
        let kept = self.applied.iter().filter(is_kept);
        let merged: Vec<_> = kept.chain(new.iter().filter(is_taken)).cloned().collect();
        let loaded = replay(merged, self.has_implied_listeners)?;
        Ok(Reload {
            running: RunningConfig {
                config: loaded.config,
                applied: loaded.applied,
                has_implied_listeners: self.has_implied_listeners,
                restart: fixed,
            },
            changed: live,
        })
    }
}

/// The keys whose values differ: those that a reload applies, and those that need a restart.
fn differences(
    old: &[AppliedSetting],
    new: &[AppliedSetting],
) -> (BTreeSet<String>, BTreeSet<String>) {
    let (old, new) = (values(old), values(new));
    let keys: BTreeSet<&str> = old.keys().chain(new.keys()).copied().collect();
    let differs = |key: &&str| old.get(key) != new.get(key) && !both_default(key, &old, &new);
    let changed = keys.into_iter().filter(differs).map(str::to_owned);
    changed.partition(|key| is_live(key))
}

/// Returns true if one side states the default and the other one nothing.
fn both_default(key: &str, old: &BTreeMap<&str, &str>, new: &BTreeMap<&str, &str>) -> bool {
    let default = find(key).map_or("", |(known, _)| known.default);
    let of = |side: &BTreeMap<&str, &str>| side.get(key).copied().unwrap_or(default).to_owned();
    of(old) == of(new)
}

/// The last value of each key.
fn values(applied: &[AppliedSetting]) -> BTreeMap<&str, &str> {
    applied
        .iter()
        .map(|setting| (setting.key.as_str(), setting.value.as_str()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::keys::keys;

    fn sources(flags: &[&str]) -> ConfigSources {
        ConfigSources {
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            ..ConfigSources::default()
        }
    }

    fn names(keys: &BTreeSet<String>) -> Vec<&str> {
        keys.iter().map(String::as_str).collect()
    }

    #[test]
    fn live_keys_exist_and_are_in_order() {
        for name in LIVE_KEYS {
            assert!(keys().any(|key| key.name == *name), "{name}");
        }
        assert!(LIVE_KEYS.is_sorted());
        assert!(is_live("advertised_nodes.c-0.stream"));
        assert!(!is_live("cluster.name") && !is_live("no.such.key"));
    }

    #[test]
    fn reload_applies_live_settings_and_lists_the_others() -> Result<(), ConfigErrors> {
        let running = RunningConfig::load(&sources(&["heartbeat=10", "frame_max=9000"]))?;
        let reload = running.reload(&sources(&[
            "heartbeat=20",
            "frame_max=9001",
            "channel_max=7",
            "cluster.name=other",
        ]))?;
        assert_eq!(names(&reload.changed), ["channel_max", "heartbeat"]);
        let restart = reload.running.restart_keys();
        assert_eq!(names(restart), ["cluster.name", "frame_max"]);
        let limits = &reload.running.config.limits;
        assert_eq!((limits.heartbeat_s, limits.channel_max), (20, 7));
        assert_eq!(limits.frame_max, 9000, "the running value");
        assert_eq!(reload.running.config.cluster.name, "posthorn");
        let shown = reload.running.settings();
        let of = |key: &str| shown.iter().find(|setting| setting.key == key);
        assert_eq!(of("frame_max").map(|s| &*s.value), Some("9000"));
        assert_eq!(of("heartbeat").map(|s| &*s.value), Some("20"));
        Ok(())
    }

    #[test]
    fn removed_live_setting_returns_to_its_default() -> Result<(), ConfigErrors> {
        let running = RunningConfig::load(&sources(&[
            "heartbeat=10",
            "advertised_nodes.n.stream=host:1",
            "channel_max=2047",
        ]))?;
        let reload = running.reload(&sources(&["frame_max=131072"]))?;
        assert_eq!(
            names(&reload.changed),
            ["advertised_nodes.n.stream", "heartbeat"]
        );
        assert!(reload.running.restart_keys().is_empty());
        let fresh = RunningConfig::load(&sources(&[]))?;
        assert_eq!(reload.running.config, fresh.config);
        Ok(())
    }

    #[test]
    fn restart_keys_are_forgotten_once_the_sources_have_the_running_value()
    -> Result<(), ConfigErrors> {
        let running = RunningConfig::load(&sources(&["frame_max=9000"]))?;
        let changed = running.reload(&sources(&["frame_max=9001"]))?.running;
        assert_eq!(names(changed.restart_keys()), ["frame_max"]);
        let back = changed.reload(&sources(&["frame_max=9000"]))?.running;
        assert!(back.restart_keys().is_empty());
        Ok(())
    }

    #[test]
    fn invalid_sources_change_nothing() -> Result<(), ConfigErrors> {
        let running = RunningConfig::load(&sources(&["heartbeat=10"]))?;
        let error = running.reload(&sources(&["heartbeat=20", "frame_max=1"]));
        let text = error.expect_err("frame_max is too small").to_string();
        assert!(text.contains("frame_max"), "{text}");
        assert_eq!(running.config.limits.heartbeat_s, 10);
        Ok(())
    }
}
