//! The login of AMQP clients. AMQP 0.9.1 and 1.0 share these checks; each protocol reports the result in its own way.

use crate::{Broker, PasswordCheck};
use auth::{Credentials, Mechanism, SaslError, TlsPeer};
use metadata::Name;
use std::time::Duration;

/// Delay before the socket of a failed login is closed, to slow down password guessing.
pub const SILENT_CLOSE_DELAY: Duration = Duration::from_secs(3);

/// Authentication configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginConfig {
    /// Offered mechanisms, in order of preference (`auth_mechanisms`). EXTERNAL is offered over TLS
    /// only.
    pub mechanisms: Vec<Mechanism>,
    /// Users that may log in over loopback only (`loopback_users`).
    pub loopback_users: Vec<Name>,
    /// The credentials for SASL ANONYMOUS (`anonymous_login_user`, `anonymous_login_pass`). None:
    /// not offered.
    pub anonymous: Option<Credentials>,
}

impl Default for LoginConfig {
    fn default() -> Self {
        LoginConfig {
            mechanisms: Mechanism::DEFAULT.to_vec(),
            loopback_users: vec!["guest".into()],
            anonymous: Some(Credentials {
                user: "guest".into(),
                password: b"guest".to_vec(),
            }),
        }
    }
}

/// The connection over which a client logs in.
#[derive(Clone, Copy, Debug)]
pub struct LoginOrigin<'a> {
    /// The client's TLS parameters and certificate. None: no TLS.
    pub tls: Option<&'a TlsPeer>,
    /// The client is on this machine.
    pub is_loopback: bool,
}

/// A login that was checked, or whose password check is pending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    /// The mechanism of the login.
    pub mechanism: Mechanism,
    /// The user that logs in.
    pub user: String,
}

impl Login {
    /// The reason for the log when the password is wrong.
    pub fn wrong_password(&self) -> String {
        format!(
            "user '{}' does not exist, has no password or gave a wrong one",
            self.user
        )
    }
}

/// The result of [`LoginConfig::check`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoginCheck {
    /// The client is the user.
    Accepted(Login),
    /// The password is being checked; [`ControlEvent::Verified`](crate::ControlEvent::Verified) follows.
    Pending(Login),
    /// Too many password checks are pending. The client should retry later.
    Busy,
    /// The login is refused. The reason is for the log only.
    Refused(Login, String),
    /// The mechanism is not offered.
    NotOffered,
    /// The response does not have the form of the mechanism.
    Malformed(SaslError),
}

impl LoginConfig {
    /// The mechanisms offered on a connection. EXTERNAL is offered even to a client without a
    /// certificate, because the refusal names the missing certificate.
    pub fn offered(&self, has_tls: bool) -> impl Iterator<Item = Mechanism> {
        let is_offered = move |mechanism: &Mechanism| match mechanism {
            Mechanism::External => has_tls,
            Mechanism::Anonymous => self.anonymous.is_some(),
            Mechanism::Plain | Mechanism::Amqplain => true,
        };
        self.mechanisms.iter().copied().filter(is_offered)
    }

    /// Checks the response of a client that chose a mechanism.
    pub fn check(
        &self,
        mechanism: Mechanism,
        response: &[u8],
        origin: LoginOrigin<'_>,
        broker: &mut dyn Broker,
    ) -> LoginCheck {
        let is_offered = self.mechanisms.contains(&mechanism);
        let credentials = match (mechanism, &self.anonymous) {
            (Mechanism::External, _) if is_offered => return self.check_external(origin, broker),
            (Mechanism::Plain, _) if is_offered => auth::plain(response),
            (Mechanism::Amqplain, _) if is_offered => auth::amqplain(response),
            (Mechanism::Anonymous, Some(credentials)) if is_offered => Ok(credentials.clone()),
            _ => return LoginCheck::NotOffered,
        };
        let Credentials { user, password } = match credentials {
            Ok(credentials) => credentials,
            Err(error) => return LoginCheck::Malformed(error),
        };
        let login = Login { mechanism, user };
        if password.is_empty() {
            let why = format!("user '{}' gave an empty password", login.user);
            return LoginCheck::Refused(login, why);
        }
        if let Err(why) = self.check_loopback_only(&login.user, origin) {
            return LoginCheck::Refused(login, why);
        }
        // For an unknown user a decoy hash is verified, so that the check takes as long.
        let record = broker.tree().user(&login.user);
        let hash = record.and_then(|record| record.password.clone());
        let hash = hash.unwrap_or_else(auth::decoy);
        match broker.verify(&login.user, &hash, &password) {
            PasswordCheck::Right => LoginCheck::Accepted(login),
            PasswordCheck::Wrong => {
                let why = login.wrong_password();
                LoginCheck::Refused(login, why)
            }
            PasswordCheck::Later => LoginCheck::Pending(login),
            PasswordCheck::Busy => LoginCheck::Busy,
        }
    }

    /// SASL EXTERNAL: the user name comes from the client certificate, which TLS has verified.
    fn check_external(&self, origin: LoginOrigin<'_>, broker: &dyn Broker) -> LoginCheck {
        let name = match origin.tls {
            None => Err("not a TLS connection"),
            Some(TlsPeer { subject: None, .. }) => Err("the client showed no certificate"),
            Some(TlsPeer { name: None, .. }) => Err("its certificate has no name for a user"),
            Some(TlsPeer {
                name: Some(name), ..
            }) => Ok(name.to_string()),
        };
        let (user, why) = match name {
            Ok(name) => (name, None),
            Err(why) => (String::new(), Some(why.to_owned())),
        };
        let login = Login {
            mechanism: Mechanism::External,
            user,
        };
        let unknown = || {
            let is_unknown = broker.tree().user(&login.user).is_none();
            is_unknown.then(|| format!("user '{}' does not exist", login.user))
        };
        let why = why
            .or_else(unknown)
            .or_else(|| self.check_loopback_only(&login.user, origin).err());
        match why {
            None => LoginCheck::Accepted(login),
            Some(why) => LoginCheck::Refused(login, why),
        }
    }

    /// Refuses users that may log in over loopback only.
    fn check_loopback_only(&self, user: &str, origin: LoginOrigin<'_>) -> Result<(), String> {
        let is_restricted = self.loopback_users.iter().any(|name| **name == *user);
        if !origin.is_loopback && is_restricted {
            return Err(format!("user '{user}' can only connect via localhost"));
        }
        Ok(())
    }
}

/// The reason why an authenticated client may not open a connection to a vhost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdmissionError {
    /// The node accepts no new connections.
    #[error("the node is shutting down or in maintenance mode")]
    Draining,
    /// The vhost does not exist.
    #[error("vhost {vhost} not found")]
    UnknownVhost {
        /// The vhost.
        vhost: Name,
    },
    /// The user has no permissions in the vhost.
    #[error("access to vhost '{vhost}' refused for user '{user}'")]
    NoAccess {
        /// The vhost.
        vhost: Name,
        /// The user.
        user: Name,
    },
    /// The user has as many connections as its limit allows.
    #[error("connection refused for user '{user}': user connection limit ({limit}) is reached")]
    UserLimit {
        /// The user.
        user: Name,
        /// The limit.
        limit: u64,
    },
    /// The vhost has as many connections as its limit allows.
    #[error(
        "access to vhost '{vhost}' refused for user '{user}': connection limit ({limit}) is reached"
    )]
    VhostLimit {
        /// The vhost.
        vhost: Name,
        /// The user.
        user: Name,
        /// The limit.
        limit: u64,
    },
}

/// Checks whether an authenticated user may open a connection to a vhost, and counts the connection.
pub fn admit(broker: &mut dyn Broker, user: &Name, vhost: &str) -> Result<(), AdmissionError> {
    let (user, name) = (user.clone(), Name::from(vhost));
    if broker.draining() {
        return Err(AdmissionError::Draining);
    }
    if !broker.tree().vhost_exists(vhost) {
        return Err(AdmissionError::UnknownVhost { vhost: name });
    }
    if !broker.tree().vhost_access(&user, vhost) {
        return Err(AdmissionError::NoAccess { vhost: name, user });
    }
    if let Err(limit) = broker.admit(&user) {
        return Err(AdmissionError::UserLimit { user, limit });
    }
    broker
        .admit_to(vhost)
        .map_err(|limit| AdmissionError::VhostLimit {
            vhost: name,
            user,
            limit,
        })
}
