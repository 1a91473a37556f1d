//! One audit record and its JSON form.

use crate::Operation;
use env::WallTime;
use metadata::Name;
use serde_json::{Map, Value};
use std::net::SocketAddr;

/// Longest text of a record, in bytes. Longer ones are cut.
pub const MAX_TEXT: usize = 1024;

/// Result of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The operation was carried out.
    Ok,
    /// The client may not do it. The text is the reason.
    Refused(String),
    /// It failed for another reason: the object does not exist, or the cluster cannot decide.
    Failed(String),
}

/// The client of an operation. Default: the node itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Client {
    /// The user. Empty: not known, or none.
    pub user: String,
    /// The label of the protocol in metrics, `http`, or `cluster` for the node itself.
    pub protocol: &'static str,
    /// The address of the client.
    pub peer: Option<SocketAddr>,
    /// The name of the connection in listings. Empty over HTTP.
    pub connection: String,
    /// The connection is encrypted.
    pub tls: bool,
}

/// An audit record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRecord {
    /// The client.
    pub client: Client,
    /// The operation.
    pub operation: Operation,
    /// The virtual host, if the object is in one.
    pub vhost: Option<Name>,
    /// The name of the object. Empty: the operation has none.
    pub name: String,
    /// More about the operation. Never a password.
    pub details: Vec<(&'static str, String)>,
    /// The result.
    pub outcome: Outcome,
}

impl AuditRecord {
    /// The memory that the record occupies, in bytes.
    pub fn size(&self) -> usize {
        let texts = [&self.client.user, &self.client.connection, &self.name];
        let texts: usize = texts.iter().map(|text| text.len()).sum();
        let details = self.details.iter();
        let details: usize = details.map(|(_, v)| v.len() + size_of_val(v) + 16).sum();
        let error = match &self.outcome {
            Outcome::Ok => 0,
            Outcome::Refused(text) | Outcome::Failed(text) => text.len(),
        };
        size_of::<AuditRecord>() + texts + details + error
    }

    /// Cuts the texts to [`MAX_TEXT`].
    pub(crate) fn cut(&mut self) {
        cut(&mut self.client.user);
        cut(&mut self.client.connection);
        cut(&mut self.name);
        for (_, value) in &mut self.details {
            cut(value);
        }
        if let Outcome::Refused(text) | Outcome::Failed(text) = &mut self.outcome {
            cut(text);
        }
    }

    /// The record as a JSON object. Fields without a value are left out.
    pub fn json(&self, node: &str, at: WallTime) -> Value {
        let mut object = Map::new();
        let mut set = |key: &str, value: &str| {
            if !value.is_empty() {
                object.insert(key.to_owned(), value.into());
            }
        };
        set("time", &rfc3339(at));
        set("node", node);
        set("operation", self.operation.name());
        let (outcome, error) = match &self.outcome {
            Outcome::Ok => ("ok", ""),
            Outcome::Refused(text) => ("refused", text.as_str()),
            Outcome::Failed(text) => ("failed", text.as_str()),
        };
        set("outcome", outcome);
        set("error", error);
        set("user", &self.client.user);
        set("protocol", self.client.protocol);
        let peer = self.client.peer.map(|peer| peer.to_string());
        set("peer", peer.as_deref().unwrap_or_default());
        set("connection", &self.client.connection);
        set("vhost", self.vhost.as_deref().unwrap_or_default());
        set("name", &self.name);
        if self.client.peer.is_some() {
            object.insert("tls".to_owned(), self.client.tls.into());
        }
        if !self.details.is_empty() {
            let details = self.details.iter();
            let details: Map<String, Value> = details
                .map(|(key, value)| ((*key).to_owned(), value.as_str().into()))
                .collect();
            object.insert("details".to_owned(), details.into());
        }
        object.into()
    }
}

fn cut(text: &mut String) {
    if text.len() > MAX_TEXT {
        text.truncate(text.floor_char_boundary(MAX_TEXT));
        text.push('\u{2026}');
        text.shrink_to_fit();
    }
}

/// A time in UTC, with milliseconds.
pub fn rfc3339(at: WallTime) -> String {
    let (days, of_day) = (at.0 / 86_400_000, at.0 % 86_400_000);
    let (year, month, day) = civil_date(days);
    let (seconds, millis) = (of_day / 1000, of_day % 1000);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// Year, month and day in the Gregorian calendar of a day since 1970-01-01. Counts in eras of 400 years that begin on
/// the first of March, so that the leap day is the last one of its year.
fn civil_date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rendered_in_utc() {
        let of = |millis| rfc3339(WallTime(millis));
        assert_eq!(of(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(of(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(of(1_709_251_199_999), "2024-02-29T23:59:59.999Z");
        assert_eq!(of(4_107_542_400_000), "2100-03-01T00:00:00.000Z");
    }

    #[test]
    fn record_names_client_object_and_outcome() {
        let mut record = AuditRecord {
            client: Client {
                user: "u".into(),
                protocol: "amqp091",
                peer: Some(([127, 0, 0, 1], 5).into()),
                connection: "c".into(),
                tls: true,
            },
            operation: Operation::QueueDelete,
            vhost: Some("/".into()),
            name: "q\n".into(),
            details: vec![("k", "\u{e4}".repeat(MAX_TEXT))],
            outcome: Outcome::Refused("no".into()),
        };
        let before = record.size();
        record.cut();
        assert!(record.size() < before);
        let json = record.json("n", WallTime(0));
        let details = format!("{}\u{2026}", "\u{e4}".repeat(MAX_TEXT / 2));
        let expected = serde_json::json!({
            "time": "1970-01-01T00:00:00.000Z", "node": "n", "operation": "queue.delete",
            "outcome": "refused", "error": "no", "user": "u", "protocol": "amqp091",
            "peer": "127.0.0.1:5", "connection": "c", "vhost": "/", "name": "q\n", "tls": true,
            "details": {"k": details},
        });
        assert_eq!(json, expected);
        assert!(!json.to_string().contains('\n'), "a record is one line");
    }
}
