//! Removes secrets from documents that leave the organization.

use serde_json::Value as Json;

const MASK: &str = "********";

/// Parts of member names whose values are secret.
const SECRET_NAMES: [&str; 6] = [
    "pass",
    "secret",
    "token",
    "credential",
    "private",
    "authorization",
];

/// Masks values of members with such names, and the user information of URLs.
pub(crate) fn redact(value: &mut Json) {
    match value {
        Json::Object(members) => {
            for (name, value) in members {
                let name = name.to_lowercase();
                let is_secret = SECRET_NAMES.iter().any(|part| name.contains(part));
                match value {
                    // Counters and switches such as `password_logins` reveal nothing.
                    Json::Null | Json::Bool(_) | Json::Number(_) => {}
                    secret if is_secret => *secret = Json::from(MASK),
                    other => redact(other),
                }
            }
        }
        Json::Array(items) => items.iter_mut().for_each(redact),
        Json::String(text) => *text = without_user_information(text),
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}

/// `amqp://user:password@host` becomes `amqp://********@host`.
fn without_user_information(text: &str) -> String {
    let mut redacted = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("://") {
        redacted.push_str(before);
        redacted.push_str("://");
        let end = after.find(|c: char| matches!(c, '/' | '?' | '#') || c.is_whitespace());
        let (authority, remaining) = after.split_at(end.unwrap_or(after.len()));
        // The last @ ends the user information; a password may contain others.
        match authority.rsplit_once('@') {
            Some((_, host)) => {
                redacted.push_str(MASK);
                redacted.push('@');
                redacted.push_str(host);
            }
            None => redacted.push_str(authority),
        }
        rest = remaining;
    }
    redacted.push_str(rest);
    redacted
}

#[cfg(test)]
mod unit {
    use super::*;
    use serde_json::json;

    #[test]
    fn secrets_are_masked_wherever_they_are() {
        let mut document = json!([{
            "name": "a",
            "password_hash": "hash",
            "definition": {"uri": "amqp://u:p@ss@host/v and http://host", "Secret-Key": ["x"]},
            "auth_attempts": {"token": 3},
        }]);
        redact(&mut document);
        assert_eq!(
            document,
            json!([{
                "name": "a",
                "password_hash": MASK,
                "definition": {"uri": format!("amqp://{MASK}@host/v and http://host"), "Secret-Key": MASK},
                "auth_attempts": {"token": 3},
            }])
        );
    }
}
