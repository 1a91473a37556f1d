//! SASL mechanisms: parse a client's response. The caller verifies the credentials.

/// Longest accepted response in bytes; connection.start-ok is limited by the initial frame size anyway.
const MAX_RESPONSE: usize = 16 * 1024;

/// SASL mechanisms of AMQP clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mechanism {
    /// RFC 4616: user and password in clear text.
    Plain,
    /// RabbitMQ's own mechanism: user and password as an AMQP table.
    Amqplain,
    /// The user is named by the client certificate.
    External,
    /// No credentials: the client gets the configured anonymous user.
    Anonymous,
}

impl Mechanism {
    /// The mechanisms offered by default.
    pub const DEFAULT: [Mechanism; 3] =
        [Mechanism::Plain, Mechanism::Amqplain, Mechanism::Anonymous];

    /// The name in `connection.start` and in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Mechanism::Plain => "PLAIN",
            Mechanism::Amqplain => "AMQPLAIN",
            Mechanism::External => "EXTERNAL",
            Mechanism::Anonymous => "ANONYMOUS",
        }
    }

    /// Returns the mechanism with that name, which is case-sensitive, or `None`.
    pub fn from_name(name: &str) -> Option<Mechanism> {
        [
            Mechanism::Plain,
            Mechanism::Amqplain,
            Mechanism::External,
            Mechanism::Anonymous,
        ]
        .into_iter()
        .find(|m| m.name() == name)
    }
}

/// A user name and a password. `Debug` does not print the password.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// User name, not checked for existence.
    pub user: String,
    /// Password bytes as sent, not necessarily UTF-8.
    pub password: Vec<u8>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Credentials({:?}, ..)", self.user)
    }
}

/// Why a response contains no credentials.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SaslError {
    /// Longer than the limit; nothing was parsed.
    #[error("the response is longer than {MAX_RESPONSE} bytes")]
    Long,
    /// Not in the form of the mechanism, or the user name is not UTF-8.
    #[error("the response does not have the form of the mechanism")]
    Malformed,
}

/// Parses PLAIN (RFC 4616): authorization identity, NUL, user, NUL, password. Acting for another user is not
/// supported: as in RabbitMQ, the authorization identity must be empty.
pub fn plain(response: &[u8]) -> Result<Credentials, SaslError> {
    if response.len() > MAX_RESPONSE {
        return Err(SaslError::Long);
    }
    let mut parts = response.split(|b| *b == 0);
    let (Some(b""), Some(user), Some(password), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(SaslError::Malformed);
    };
    credentials(user, password)
}

/// Parses AMQPLAIN, from AMQP 0.8: a field table without its length, with LOGIN and PASSWORD as long strings.
pub fn amqplain(response: &[u8]) -> Result<Credentials, SaslError> {
    if response.len() > MAX_RESPONSE {
        return Err(SaslError::Long);
    }
    let (mut login, mut password) = (None, None);
    let mut rest = response;
    while !rest.is_empty() {
        let (key, value, after) = long_string_field(rest).ok_or(SaslError::Malformed)?;
        match key {
            b"LOGIN" => login = Some(value),
            b"PASSWORD" => password = Some(value),
            _ => {}
        }
        rest = after;
    }
    match (login, password) {
        (Some(login), Some(password)) => credentials(login, password),
        _ => Err(SaslError::Malformed),
    }
}

/// Splits off a field with a long string value: its name, its value and the rest.
fn long_string_field(from: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (len, rest) = from.split_first()?;
    let (key, rest) = rest.split_at_checked(usize::from(*len))?;
    let rest = rest.strip_prefix(b"S")?;
    let (len, rest) = rest.split_first_chunk::<4>()?;
    let len = usize::try_from(u32::from_be_bytes(*len)).ok()?;
    let (value, rest) = rest.split_at_checked(len)?;
    Some((key, value, rest))
}

fn credentials(user: &[u8], password: &[u8]) -> Result<Credentials, SaslError> {
    let user = std::str::from_utf8(user).map_err(|_| SaslError::Malformed)?;
    Ok(Credentials {
        user: user.to_owned(),
        password: password.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn plain_response_is_parsed() {
        let parsed = plain(b"\0guest\0pass").unwrap();
        assert_eq!(
            (parsed.user.as_str(), &parsed.password[..]),
            ("guest", &b"pass"[..])
        );
        assert_eq!(plain(b"\0guest\0").unwrap().password, b"");
        for malformed in [
            &b""[..],
            b"guest",
            b"\0guest",
            b"\0a\0b\0c",
            b"\0\xff\0x",
            b"guest\0guest\0pass",
        ] {
            assert_eq!(plain(malformed), Err(SaslError::Malformed), "{malformed:?}");
        }
        assert!(!format!("{parsed:?}").contains("pass"));
    }

    #[test]
    fn amqplain_response_is_parsed() {
        let parsed = amqplain(b"\x05LOGINS\0\0\0\x05guest\x08PASSWORDS\0\0\0\x04pass").unwrap();
        assert_eq!(
            (parsed.user.as_str(), &parsed.password[..]),
            ("guest", &b"pass"[..])
        );
        assert!(amqplain(b"\x05LOGINS\0\0\0\x05guest").is_err());
        assert!(amqplain(b"\x05LOGINI\0\0\0\x05").is_err());
    }

    #[test]
    fn mechanism_names_round_trip() {
        for m in ["PLAIN", "AMQPLAIN", "EXTERNAL", "ANONYMOUS"] {
            assert_eq!(Mechanism::from_name(m).unwrap().name(), m);
        }
        assert_eq!(Mechanism::from_name("plain"), None);
    }

    proptest! {
        #[test]
        fn arbitrary_responses_do_not_panic(response: Vec<u8>) {
            let _ = (plain(&response), amqplain(&response));
        }
    }
}
