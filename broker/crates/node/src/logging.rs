//! Logging: one line per event on standard error. Events are named by their field `event`. Levels
//! can be changed at runtime, for all categories or for one.

use crate::config::LogConfig;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::reload::Handle;
use tracing_subscriber::util::SubscriberInitExt;

/// Categories with their own level, with RabbitMQ's names where it has the same, and the crates in
/// each.
const CATEGORIES: &[(&str, &[&str])] = &[
    (
        "connection",
        &[
            "reactor",
            "amqp10",
            "session_amqp091",
            "session_amqp10",
            "session_mqtt",
            "session_stream",
            "session_websocket",
            "tls",
        ],
    ),
    ("queue", &["queue", "shard", "topics"]),
    ("cluster", &["consensus", "node"]),
    ("storage", &["segment", "wal"]),
    ("http", &["management"]),
];

/// Level names (including RabbitMQ's) and the tracing levels they map to.
const LEVELS: &[(&str, &str)] = &[
    ("none", "off"),
    ("critical", "error"),
    ("error", "error"),
    ("warning", "warn"),
    ("warn", "warn"),
    ("notice", "info"),
    ("info", "info"),
    ("debug", "debug"),
    ("trace", "trace"),
];

type ApplyFilter = Box<dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync>;

/// The log levels of the process.
pub struct LogLevelControl {
    apply: ApplyFilter,
    now: Mutex<LevelsByCategory>,
}

#[derive(Clone)]
struct LevelsByCategory {
    /// Level of categories without their own level.
    all: &'static str,
    categories: BTreeMap<&'static str, &'static str>,
}

impl LevelsByCategory {
    fn filter(&self) -> Result<EnvFilter, String> {
        let mut text = self.all.to_owned();
        for (category, crates) in CATEGORIES {
            if let Some(level) = self.categories.get(category) {
                for name in *crates {
                    text.push_str(&format!(",{name}={level}"));
                }
            }
        }
        EnvFilter::try_new(&text).map_err(|e| e.to_string())
    }

    fn shown(&self) -> Vec<(&'static str, &'static str)> {
        let level = |category| *self.categories.get(category).unwrap_or(&self.all);
        let each = CATEGORIES.iter().map(|(name, _)| (*name, level(name)));
        std::iter::once(("default", self.all)).chain(each).collect()
    }
}

fn level(name: &str) -> Result<&'static str, String> {
    let known = LEVELS.iter().find(|(known, _)| *known == name);
    known.map(|(_, level)| *level).ok_or_else(|| {
        let known: Vec<&str> = LEVELS.iter().map(|(known, _)| *known).collect();
        format!("log level '{name}' is not known: {}", known.join(", "))
    })
}

fn category(name: &str) -> Result<&'static str, String> {
    let known = CATEGORIES.iter().find(|(known, _)| *known == name);
    known.map(|(known, _)| *known).ok_or_else(|| {
        let known: Vec<&str> = CATEGORIES.iter().map(|(known, _)| *known).collect();
        let known = known.join(", ");
        format!("log category '{name}' is not known: {known}; all together without one")
    })
}

impl LogLevelControl {
    fn new(all: &'static str, apply: ApplyFilter) -> LogLevelControl {
        let categories = BTreeMap::new();
        LogLevelControl {
            apply,
            now: Mutex::new(LevelsByCategory { all, categories }),
        }
    }

    /// Sets the level of one category, or of all, until the process ends. An error lists the valid
    /// names.
    pub fn set(&self, name: Option<&str>, level_name: &str) -> Result<(), String> {
        let level_name = level(level_name)?;
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = now.clone();
        match name {
            Some(name) => drop(next.categories.insert(category(name)?, level_name)),
            None => {
                next.all = level_name;
                next.categories.clear();
            }
        }
        (self.apply)(next.filter()?)?;
        *now = next;
        Ok(())
    }

    /// The level of each category. `default` applies to events without a category.
    pub fn shown(&self) -> Vec<(&'static str, &'static str)> {
        let now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        now.shown()
    }
}

fn reload_filter<S: 'static>(handle: Handle<EnvFilter, S>) -> ApplyFilter {
    Box::new(move |filter| handle.reload(filter).map_err(|e| e.to_string()))
}

/// Writes one event per line. Control characters, which clients may put into names, are escaped.
struct EscapingWriter<W>(W);

impl<W: Write> Write for EscapingWriter<W> {
    /// Writes a complete event including its line feed.
    fn write(&mut self, event: &[u8]) -> std::io::Result<usize> {
        self.0.write_all(&escape(event))?;
        Ok(event.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

/// Returns true for characters that change how the log is displayed: line breaks, control
/// characters and text direction marks.
fn is_unsafe(c: char) -> bool {
    let changes_direction =
        matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') || changes_direction
}

fn escape(event: &[u8]) -> Cow<'_, [u8]> {
    let (line, end) = match event.strip_suffix(b"\n") {
        Some(line) => (line, "\n"),
        None => (event, ""),
    };
    let text = String::from_utf8_lossy(line);
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(event);
    }
    let mut escaped = String::with_capacity(event.len() + 16);
    for c in text.chars() {
        match is_unsafe(c) {
            true => escaped.extend(c.escape_default()),
            false => escaped.push(c),
        }
    }
    escaped.push_str(end);
    Cow::Owned(escaped.into_bytes())
}

/// Initializes logging. Called once, before threads are started.
pub fn init(config: &LogConfig) -> Result<Arc<LogLevelControl>, String> {
    let all = level(&config.level)?;
    let filter = EnvFilter::try_new(all).map_err(|e| e.to_string())?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| EscapingWriter(std::io::stderr()))
        .with_ansi(false)
        .with_thread_names(true);
    let (set, apply) = if config.json {
        let builder = builder.json().flatten_event(true).with_filter_reloading();
        let apply = reload_filter(builder.reload_handle());
        (builder.finish().try_init(), apply)
    } else {
        let builder = builder.with_filter_reloading();
        let apply = reload_filter(builder.reload_handle());
        (builder.finish().try_init(), apply)
    };
    set.map_err(|e| e.to_string())?;
    Ok(Arc::new(LogLevelControl::new(all, apply)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels() -> (LogLevelControl, Arc<Mutex<Vec<String>>>) {
        let applied = Arc::new(Mutex::new(Vec::new()));
        let recorded = applied.clone();
        let apply = move |filter: EnvFilter| {
            recorded.lock().unwrap().push(filter.to_string());
            Ok(())
        };
        (LogLevelControl::new("info", Box::new(apply)), applied)
    }

    #[test]
    fn category_keeps_its_level_until_all_are_set() {
        let (levels, applied) = levels();
        levels.set(Some("storage"), "debug").unwrap();
        levels.set(Some("http"), "none").unwrap();
        let name = |name: &str| {
            let shown = levels.shown();
            let found = shown.iter().find(|(known, _)| *known == name);
            found.map(|(_, level)| *level)
        };
        assert_eq!(name("default"), Some("info"));
        assert_eq!(
            (name("storage"), name("http")),
            (Some("debug"), Some("off"))
        );
        assert_eq!(name("queue"), Some("info"));
        let last = applied.lock().unwrap().last().cloned().unwrap();
        let mut parts: Vec<&str> = last.split(',').collect();
        parts.sort_unstable();
        assert_eq!(
            parts,
            ["info", "management=off", "segment=debug", "wal=debug"]
        );
        levels.set(None, "warning").unwrap();
        assert!(levels.shown().iter().all(|(_, level)| *level == "warn"));
        assert_eq!(applied.lock().unwrap().last().unwrap(), "warn");
    }

    #[test]
    fn unknown_names_are_refused_and_change_nothing() {
        let (levels, applied) = levels();
        let before = levels.shown();
        let error = levels.set(None, "loud").unwrap_err();
        assert!(
            error.contains("'loud'") && error.contains("warning"),
            "{error}"
        );
        let error = levels.set(Some("kitchen"), "info").unwrap_err();
        assert!(
            error.contains("'kitchen'") && error.contains("storage"),
            "{error}"
        );
        assert!(levels.set(Some("http=trace,wal"), "info").is_err());
        assert_eq!(levels.shown(), before);
        assert!(applied.lock().unwrap().is_empty());
    }

    /// A renamed crate would silently lose its category.
    #[test]
    fn categories_name_existing_crates() {
        let crates = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        for name in CATEGORIES.iter().flat_map(|(_, names)| *names) {
            let path = format!("{crates}/{}", name.replace('_', "-"));
            assert!(std::path::Path::new(&path).is_dir(), "{path}");
        }
    }

    /// Formats an event in the text format.
    fn logged(name: &str) -> String {
        #[derive(Clone, Default)]
        struct Lines(Arc<Mutex<Vec<u8>>>);
        impl Write for Lines {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.lock().unwrap().extend_from_slice(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let lines = Lines::default();
        let written = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || EscapingWriter(lines.clone()))
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(user = %name, why = name, "refused {name}");
        });
        let written = written.0.lock().unwrap().clone();
        String::from_utf8(written).unwrap()
    }

    #[test]
    fn client_names_cannot_forge_log_lines() {
        let forged =
            "PLAIN\r\n2026-01-01T00:00:00Z  INFO node: forged\u{1b}[2J\u{85}\u{2028}\u{202e}\u{0}";
        let line = logged(forged);
        assert_eq!(line.matches('\n').count(), 1, "{line:?}");
        assert!(
            line.ends_with('\n') && !line.trim_end_matches('\n').contains(is_unsafe),
            "{line:?}"
        );
        assert!(line.contains("PLAIN\\r\\n2026"), "{line:?}");
        let usual = logged("b\u{fc}ro/\u{65e5}");
        assert!(usual.contains("user=b\u{fc}ro/\u{65e5}"), "{usual:?}");
    }
}
