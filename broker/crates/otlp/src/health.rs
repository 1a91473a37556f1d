//! Logs when exports begin to fail and when they succeed again, once for each change.

use crate::client::ExportOutcome;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Health {
    #[default]
    Good,
    Unreachable,
    Refusing,
}

/// The state of the exports of one signal.
pub(crate) struct ExportHealth {
    signal: &'static str,
    url: String,
    health: Health,
    is_dropping: bool,
}

impl ExportHealth {
    pub(crate) fn new(signal: &'static str, url: &str) -> ExportHealth {
        ExportHealth {
            signal,
            url: url.to_owned(),
            health: Health::Good,
            is_dropping: false,
        }
    }

    pub(crate) fn note(&mut self, outcome: &ExportOutcome) {
        let (health, text) = match outcome {
            ExportOutcome::Accepted { rejected: 0, .. } => (Health::Good, ""),
            ExportOutcome::Accepted { text, .. } => (Health::Refusing, text.as_str()),
            ExportOutcome::Later(text, _) => (Health::Unreachable, text.as_str()),
            ExportOutcome::Refused(text) => (Health::Refusing, text.as_str()),
        };
        if health == self.health {
            return;
        }
        self.health = health;
        let (signal, url) = (self.signal, &self.url);
        match health {
            Health::Good => tracing::info!(event = "otlp.accepted_again", signal, url),
            Health::Unreachable => {
                tracing::warn!(event = "otlp.unreachable", signal, url, error = text);
            }
            Health::Refusing => {
                tracing::warn!(event = "otlp.refused", signal, url, error = text);
            }
        }
    }

    /// `is_dropping`: spans were dropped since the last call.
    pub(crate) fn note_dropped(&mut self, is_dropping: bool, total: u64) {
        if is_dropping && !self.is_dropping {
            tracing::warn!(
                event = "otlp.spans_dropped",
                total,
                "the collector does not keep up, or opentelemetry.traces.buffer is too small"
            );
        }
        self.is_dropping = is_dropping;
    }
}
