//! The values of all settings with their sources.

use super::keys::keys;
use super::load::SettingOrigin;
use std::collections::BTreeMap;

/// Shown instead of a secret.
const MASK: &str = "********";

/// The source of a value that no file, variable or option sets.
const DEFAULT: &str = "default";

/// A value that one source sets.
#[derive(Clone, Debug)]
pub(super) struct AppliedSetting {
    pub(super) key: String,
    pub(super) value: String,
    pub(super) origin: SettingOrigin,
}

/// A setting and the source of its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectiveSetting {
    /// The key as in a file.
    pub key: String,
    /// The value as in a file. Passwords are masked.
    pub value: String,
    /// `default`, a line of a file (`FILE:LINE`), `environment NAME` or `--set KEY`.
    pub source: String,
}

/// Returns true if values of the key must not be shown.
pub(super) fn is_secret(key: &str) -> bool {
    key.contains("pass") || key.ends_with("_secret") || key.starts_with("opentelemetry.headers.")
}

fn shown(key: &str, value: &str) -> String {
    // A switch such as `mqtt.allow_user_name_without_password` reveals nothing.
    let is_open = matches!(value, "" | "true" | "false");
    match is_secret(key) && !is_open {
        true => MASK.to_owned(),
        false => value.to_owned(),
    }
}

/// All keys in the order of the reference. A key that ends with `.*` appears once for each setting that
/// matches it. `implied` has defaults that depend on other settings.
pub(super) fn effective_settings(
    applied: &[AppliedSetting],
    implied: &[(&str, &str)],
) -> Vec<EffectiveSetting> {
    // Later sources win.
    let last: BTreeMap<&str, &AppliedSetting> =
        applied.iter().map(|a| (a.key.as_str(), a)).collect();
    let of_source = |applied: &AppliedSetting| EffectiveSetting {
        key: applied.key.clone(),
        value: shown(&applied.key, &applied.value),
        source: applied.origin.to_string(),
    };
    let mut settings = Vec::new();
    for key in keys() {
        if let Some(prefix) = key.name.strip_suffix('*') {
            let is_own = |name: &str| name.starts_with(prefix) && keys().all(|k| k.name != name);
            let matching = last.iter().filter(|(name, _)| is_own(name));
            settings.extend(matching.map(|(_, applied)| of_source(applied)));
        } else if let Some(applied) = last.get(key.name) {
            settings.push(of_source(applied));
        } else {
            let implied = implied.iter().find(|(name, _)| *name == key.name);
            let value = implied.map_or(key.default, |(_, value)| value);
            settings.push(EffectiveSetting {
                key: key.name.to_owned(),
                value: shown(key.name, value),
                source: DEFAULT.to_owned(),
            });
        }
    }
    settings
}
