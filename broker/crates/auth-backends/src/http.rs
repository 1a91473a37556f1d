//! Passwords that an HTTP server checks, with RabbitMQ's requests and answers.

use crate::password_backend::{AcceptedLogin, MAX_NAME, MAX_TAGS, PasswordChecker};
use crate::provider::agent;
use metadata::{IdentityPermissions, Name};
use std::io;
use std::path::PathBuf;

/// Most bytes of an answer.
const MAX_ANSWER_BYTES: u64 = 64 * 1024;

/// Settings of password checks over HTTP. Names are those of RabbitMQ's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpSettings {
    /// URL that answers whether a user has a password.
    pub user_path: String,
    /// The request is a POST with a form. Otherwise it is a GET with a query.
    pub is_post: bool,
    /// Certificates of the authorities that the server is verified with. None: those of the operating system.
    pub cacertfile: Option<PathBuf>,
    /// The certificate of the server is verified.
    pub verify_peer: bool,
}

impl Default for HttpSettings {
    fn default() -> HttpSettings {
        HttpSettings {
            user_path: String::new(),
            is_post: false,
            cacertfile: None,
            verify_peer: true,
        }
    }
}

/// Checks passwords with an HTTP server.
pub(crate) struct HttpChecker {
    settings: HttpSettings,
    agent: ureq::Agent,
}

impl HttpChecker {
    pub(crate) fn new(settings: &HttpSettings) -> io::Result<HttpChecker> {
        let is_secure = !settings.user_path.starts_with("http://");
        let cacertfile = settings.cacertfile.as_deref();
        let agent = agent(cacertfile, settings.verify_peer, is_secure, false).map_err(|error| {
            io::Error::other(format!("`auth_http.ssl_options.cacertfile`: {error}"))
        })?;
        Ok(HttpChecker {
            settings: settings.clone(),
            agent,
        })
    }
}

impl PasswordChecker for HttpChecker {
    fn name(&self) -> &'static str {
        "http"
    }

    /// Errors have no part of the request, which has the password.
    fn check(&self, user: &str, password: &[u8]) -> Result<AcceptedLogin, String> {
        let password = std::str::from_utf8(password).map_err(|_| "the password is not UTF-8")?;
        let fields = [("username", user), ("password", password)];
        let url = &self.settings.user_path;
        let response = match self.settings.is_post {
            true => self.agent.post(url).send_form(fields),
            false => self.agent.get(url).query_pairs(fields).call(),
        };
        let mut response = response.map_err(|error| match error {
            // The URI in this error has the query.
            ureq::Error::BadUri(_) => "the server cannot be asked".to_owned(),
            error => format!("the server cannot be asked: {error}"),
        })?;
        let status = response.status().as_u16();
        if !matches!(status, 200 | 201) {
            return Err(format!("the server answers with status {status}"));
        }
        let body = response.body_mut().with_config().limit(MAX_ANSWER_BYTES);
        let body = body
            .read_to_string()
            .map_err(|error| format!("the answer cannot be read: {error}"))?;
        Ok(AcceptedLogin {
            tags: parse_answer(&body)?,
            permissions: IdentityPermissions::Stored,
        })
    }
}

/// Reads `allow`, with tags that may follow, or `deny`.
fn parse_answer(body: &str) -> Result<Vec<Name>, String> {
    let mut words = body.split_ascii_whitespace();
    let verdict = words.next().unwrap_or_default();
    if verdict.eq_ignore_ascii_case("deny") {
        return Err("the server denies the login".to_owned());
    }
    if !verdict.eq_ignore_ascii_case("allow") {
        return Err("the answer is neither 'allow' nor 'deny'".to_owned());
    }
    let tags = words.filter(|tag| tag.len() <= MAX_NAME).take(MAX_TAGS);
    Ok(tags.map(Name::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_allow_with_tags_or_deny() {
        assert_eq!(parse_answer("allow"), Ok(Vec::new()));
        let tags = Ok(vec!["administrator".into(), "x".into()]);
        assert_eq!(parse_answer(" Allow administrator x\n"), tags);
        for refused in ["deny", "DENY\n", "", "allowed", "ok", "deny allow"] {
            assert!(parse_answer(refused).is_err(), "{refused}");
        }
        let many = format!("allow {}", "t ".repeat(1000));
        assert_eq!(parse_answer(&many).map(|tags| tags.len()), Ok(MAX_TAGS));
    }
}
