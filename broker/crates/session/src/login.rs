//! The login of AMQP clients. AMQP 0.9.1 and 1.0 share these checks; each protocol reports the result in its own way.

use crate::{Broker, PasswordCheck};
use auth::{Credentials, Mechanism, SaslError, TlsPeer};
use metadata::{Identity, Name};
use std::sync::Arc;
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
    /// Passwords may be checked by external backends, which decide about the name of the user.
    pub has_external_backend: bool,
    /// Users of the metadata may log in.
    pub has_internal_backend: bool,
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
            has_external_backend: false,
            has_internal_backend: true,
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
    /// The identity from an external backend. None: the metadata has the user.
    pub identity: Option<Arc<Identity>>,
}

/// The result of a password check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoginVerdict {
    /// The password of the user in the metadata matches.
    Right,
    /// An external backend knows the user.
    Identified(Arc<Identity>),
    /// No backend accepts the password. The reason is for the log only; None: the password is wrong.
    Wrong(Option<Arc<str>>),
}

impl From<bool> for LoginVerdict {
    fn from(is_right: bool) -> LoginVerdict {
        match is_right {
            true => LoginVerdict::Right,
            false => LoginVerdict::Wrong(None),
        }
    }
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

/// A login attempt that was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoginAttempt<'a> {
    /// The label of the protocol in metrics.
    pub protocol: &'static str,
    /// The user that the client named. Empty: unknown.
    pub user: &'a str,
    /// The name of the mechanism. Empty: the protocol has none.
    pub mechanism: &'a str,
    /// The reason of a refusal. None: the login was accepted.
    pub refusal: Option<&'a str>,
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
        let login = Login {
            mechanism,
            user,
            identity: None,
        };
        if password.is_empty() {
            let why = format!("user '{}' gave an empty password", login.user);
            return LoginCheck::Refused(login, why);
        }
        // Another backend may know the password of another user.
        if !self.has_external_backend
            && let Err(why) = self.check_loopback_only(&login.user, origin)
        {
            return LoginCheck::Refused(login, why);
        }
        // For an unknown user a decoy hash is verified, so that the check takes as long.
        let record = broker.tree().user(&login.user);
        let hash = record.and_then(|record| record.password.clone());
        let hash = hash.unwrap_or_else(auth::decoy);
        match broker.verify(&login.user, &hash, &password) {
            PasswordCheck::Right => self.decide(login, LoginVerdict::Right, origin),
            PasswordCheck::Wrong => self.decide(login, LoginVerdict::Wrong(None), origin),
            PasswordCheck::Later => LoginCheck::Pending(login),
            PasswordCheck::Busy => LoginCheck::Busy,
        }
    }

    /// Decides about a login whose password was checked: [`LoginCheck::Accepted`] or [`LoginCheck::Refused`].
    pub fn decide(
        &self,
        mut login: Login,
        verdict: LoginVerdict,
        origin: LoginOrigin<'_>,
    ) -> LoginCheck {
        match verdict {
            LoginVerdict::Right => {}
            LoginVerdict::Identified(identity) => {
                login.user = identity.user.to_string();
                login.identity = Some(identity);
            }
            LoginVerdict::Wrong(why) => {
                let why = why.map_or_else(|| login.wrong_password(), |why| why.to_string());
                return LoginCheck::Refused(login, why);
            }
        }
        match self.check_loopback_only(&login.user, origin) {
            Ok(()) => LoginCheck::Accepted(login),
            Err(why) => LoginCheck::Refused(login, why),
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
            identity: None,
        };
        let unknown = || {
            if !self.has_internal_backend {
                return Some("`auth_backends` has no backend that knows users by name".to_owned());
            }
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

/// Checks whether an authenticated user may open a connection to a vhost, and counts the connection. Records a refusal.
pub fn admit(
    broker: &mut dyn Broker,
    (user, identity): (&Name, Option<&Identity>),
    vhost: &str,
) -> Result<(), AdmissionError> {
    check_admission(broker, (user, identity), vhost)
        .inspect_err(|error| broker.note_refused_vhost(user, vhost, &error.to_string()))
}

fn check_admission(
    broker: &mut dyn Broker,
    (user, identity): (&Name, Option<&Identity>),
    vhost: &str,
) -> Result<(), AdmissionError> {
    let (user, name) = (user.clone(), Name::from(vhost));
    if broker.draining() {
        return Err(AdmissionError::Draining);
    }
    if !broker.tree().vhost_exists(vhost) {
        return Err(AdmissionError::UnknownVhost { vhost: name });
    }
    if !broker.tree().access_of(&user, identity).has_vhost(vhost) {
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
