//! The handshake from the protocol header to connection.open-ok (section 2.2.4): authentication,
//! tuning and access to the vhost.

use crate::connection::{AmqpSession, Phase, shutdown};
use crate::connection_state::{Capabilities, PROTOCOL, StepContext};
use crate::failure::{Failure, MethodResult, ReplyCode, refuse};
use crate::limits::SessionConfig;
use auth::Mechanism;
use bytes::BytesMut;
use codec_amqp091::{FRAME_MIN_SIZE, Method, table};
use message::{Table, Value};
use metadata::Identity;
use session::{
    AdmissionError, Login, LoginAttempt, LoginCheck, LoginOrigin, LoginVerdict, PasswordCheck,
};
use std::sync::Arc;
use std::time::Duration;

impl AmqpSession {
    pub(crate) fn send_start(&mut self, cx: &mut StepContext<'_>) {
        let mechanisms = self.mechanisms();
        let start = Method::ConnectionStart {
            version_major: 0,
            version_minor: 9,
            server_properties: server_properties(&self.config),
            mechanisms: mechanisms.as_bytes(),
            locales: b"en_US",
        };
        cx.send(0, &start);
        self.phase = Phase::Starting;
    }

    /// The mechanisms offered in connection.start.
    fn mechanisms(&self) -> String {
        let offered = self.config.logins.offered(self.config.tls.is_some());
        let names: Vec<&str> = offered.map(Mechanism::name).collect();
        names.join(" ")
    }

    /// Handles a method on channel 0 before the connection is open.
    pub(crate) fn handshake(
        &mut self,
        method: Method<'_>,
        cx: &mut StepContext<'_>,
    ) -> MethodResult {
        match (self.phase, method) {
            (
                Phase::Starting,
                Method::ConnectionStartOk {
                    client_properties,
                    mechanism,
                    response,
                    ..
                },
            ) => {
                self.read_client_properties(&client_properties);
                if self.is_stopping && self.conn.capabilities.authentication_failure_close {
                    return Err(shutdown());
                }
                self.log_in(mechanism, response, cx)
            }
            (
                Phase::Tuning,
                Method::ConnectionTuneOk {
                    channel_max,
                    frame_max,
                    heartbeat,
                },
            ) => self.tune(channel_max, frame_max, heartbeat),
            (Phase::Opening, Method::ConnectionOpen { virtual_host }) => {
                self.open(virtual_host, cx)
            }
            (phase, _) => {
                let state = match phase {
                    Phase::Opening => "opening",
                    Phase::Tuning => "tuning",
                    _ => "starting",
                };
                refuse!(
                    ChannelError,
                    "unexpected method in connection state {state}"
                )
            }
        }
    }

    /// Stores the client properties and capabilities.
    fn read_client_properties(&mut self, properties: &Table) {
        let has_capability = |name| match properties.get("capabilities") {
            Some(Value::Table(t)) => matches!(t.get(name), Some(Value::Bool(true))),
            _ => false,
        };
        let property_is = |name, known: &[&str]| {
            let value = properties.get(name).and_then(Value::as_str);
            value.is_some_and(|t| known.contains(&t))
        };
        self.conn.capabilities = Capabilities {
            consumer_cancel_notify: has_capability("consumer_cancel_notify"),
            connection_blocked: has_capability("connection.blocked"),
            authentication_failure_close: has_capability("authentication_failure_close"),
            flow: property_is("product", &["RabbitMQ"])
                && property_is("platform", &["Java", ".NET"]),
        };
        let mut encoded = BytesMut::new();
        table::encode(properties, &mut encoded);
        // Without the length prefix.
        self.client_properties = encoded.get(4..).unwrap_or_default().into();
        if let Some(name) = properties.get("connection_name").and_then(Value::as_str) {
            self.client_name = name.chars().take(MAX_CLIENT_NAME).collect();
        }
    }

    fn log_in(
        &mut self,
        mechanism: &str,
        response: &[u8],
        cx: &mut StepContext<'_>,
    ) -> MethodResult {
        let Some(parsed) = Mechanism::from_name(mechanism) else {
            refuse!(
                CommandInvalid,
                "unknown authentication mechanism '{mechanism}'"
            );
        };
        let logins = self.config.logins.clone();
        match logins.check(parsed, response, self.origin(), cx.broker) {
            LoginCheck::Accepted(login) => self.accept_login(login, cx),
            LoginCheck::Refused(login, why) => self.refuse_login(&login, &why, cx),
            LoginCheck::Pending(login) => {
                self.login = Some(Box::new(login));
                self.phase = Phase::Verifying;
                Ok(())
            }
            LoginCheck::Busy => refuse!(
                ConnectionForced,
                "too many logins are waiting to be checked; try again"
            ),
            LoginCheck::NotOffered => refuse!(
                CommandInvalid,
                "invalid authentication mechanism '{mechanism}'"
            ),
            // An undecodable response is not a refused login: the connection is closed without an
            // answer.
            LoginCheck::Malformed(error) => {
                let error = error.to_string();
                note_login(cx, "", mechanism, Some(&error));
                Err(Failure::new(ReplyCode::FrameError, error))
            }
        }
    }

    /// Handles the result of a password check.
    pub(crate) fn handle_verified(&mut self, verdict: LoginVerdict, cx: &mut StepContext<'_>) {
        let Some(login) = self.login.take() else {
            return;
        };
        match self.phase {
            Phase::Verifying => {
                let logins = self.config.logins.clone();
                let outcome = match logins.decide(*login, verdict, self.origin()) {
                    LoginCheck::Accepted(login) => self.accept_login(login, cx),
                    LoginCheck::Refused(login, why) => self.refuse_login(&login, &why, cx),
                    _ => Ok(()),
                };
                if let Err(failure) = outcome {
                    self.refuse(&failure, START_OK, cx);
                }
            }
            Phase::Running => {
                if let Err(failure) = self.renew(verdict, cx) {
                    self.refuse(&failure, UPDATE_SECRET, cx);
                }
            }
            _ => {}
        }
    }

    fn origin(&self) -> LoginOrigin<'_> {
        LoginOrigin {
            tls: self.config.tls.as_deref(),
            is_loopback: self.config.peer_is_loopback,
        }
    }

    /// Refuses a login. The reason is logged but not sent to the client.
    fn refuse_login(&self, login: &Login, why: &str, cx: &mut StepContext<'_>) -> MethodResult {
        let mechanism = login.mechanism.name();
        note_login(cx, &login.user, mechanism, Some(why));
        tracing::warn!(peer = %self.config.peer, mechanism, why, "login refused");
        refuse!(
            AccessRefused,
            "Login was refused using authentication mechanism {mechanism}. For details see the broker logfile."
        );
    }

    /// Completes the authentication and sends connection.tune.
    fn accept_login(&mut self, login: Login, cx: &mut StepContext<'_>) -> MethodResult {
        note_login(cx, &login.user, login.mechanism.name(), None);
        self.conn.user = login.user.as_str().into();
        self.mechanism = Some(login.mechanism);
        self.set_identity(login.identity, cx);
        let limits = &self.config.limits;
        let tune = Method::ConnectionTune {
            channel_max: limits.channel_max,
            frame_max: limits.frame_max,
            heartbeat: limits.heartbeat,
        };
        cx.send(0, &tune);
        self.phase = Phase::Tuning;
        Ok(())
    }

    fn set_identity(&mut self, identity: Option<Arc<Identity>>, cx: &StepContext<'_>) {
        self.conn.identity = identity;
        self.conn.writable = None;
        let (user, identity) = (&self.conn.user, self.conn.identity.as_deref());
        let access = cx.broker.tree().access_of(user, identity);
        self.conn.impersonator = access.has_tag("impersonator");
    }

    fn tune(&mut self, channel_max: u16, frame_max: u32, heartbeat: u16) -> MethodResult {
        let limits = &self.config.limits;
        check_negotiated("frame_max", FRAME_MIN_SIZE, limits.frame_max, frame_max)?;
        check_negotiated(
            "channel_max",
            1,
            limits.channel_max.into(),
            channel_max.into(),
        )?;
        self.conn.frame_max = frame_max;
        self.channel_max = channel_max;
        self.heartbeat = Duration::from_secs(heartbeat.into());
        self.phase = Phase::Opening;
        Ok(())
    }

    fn open(&mut self, vhost: &str, cx: &mut StepContext<'_>) -> MethodResult {
        let user = self.conn.user.clone();
        let identity = self.conn.identity.clone();
        session::admit(cx.broker, (&user, identity.as_deref()), vhost).map_err(|error| {
            let code = match error {
                AdmissionError::Draining => ReplyCode::ConnectionForced,
                _ => ReplyCode::NotAllowed,
            };
            Failure::new(code, error.to_string())
        })?;
        self.conn.vhost = vhost.into();
        self.conn.identity = identity.map(|identity| Arc::new(identity.in_vhost(vhost)));
        cx.send(0, &Method::ConnectionOpenOk {});
        self.phase = Phase::Running;
        self.deadline = None;
        self.conn.alarm = cx.broker.publishers_blocked();
        Ok(())
    }

    /// Handles connection.update-secret, which renews an expiring login. A password login does not
    /// expire; as in RabbitMQ, any secret is accepted then.
    pub(crate) fn update_secret(
        &mut self,
        secret: &[u8],
        reason: &str,
        cx: &mut StepContext<'_>,
    ) -> MethodResult {
        tracing::info!(peer = %self.config.peer, user = %self.conn.user, reason, "secret update requested");
        let Some(identity) = self.conn.identity.clone() else {
            cx.send(0, &Method::ConnectionUpdateSecretOk {});
            return Ok(());
        };
        match cx.broker.renew(&identity, secret) {
            PasswordCheck::Later => {
                self.login = Some(Box::new(Login {
                    mechanism: self.mechanism.unwrap_or(Mechanism::Plain),
                    user: self.conn.user.to_string(),
                    identity: None,
                }));
                Ok(())
            }
            PasswordCheck::Right => self.renew(LoginVerdict::Identified(identity), cx),
            PasswordCheck::Wrong => self.renew(LoginVerdict::Wrong(None), cx),
            PasswordCheck::Busy => refuse!(
                ConnectionForced,
                "too many logins are waiting to be checked; try again"
            ),
        }
    }

    /// Replaces the identity after connection.update-secret, or closes the connection as RabbitMQ does.
    fn renew(&mut self, verdict: LoginVerdict, cx: &mut StepContext<'_>) -> MethodResult {
        let user = self.conn.user.clone();
        let mechanism = self.mechanism.map_or("", Mechanism::name);
        let identity = match verdict {
            LoginVerdict::Identified(identity) if identity.user == user => identity,
            refused => {
                let why = match refused {
                    LoginVerdict::Identified(other) => {
                        format!("the new secret is of user '{}'", other.user)
                    }
                    LoginVerdict::Wrong(Some(why)) => why.to_string(),
                    _ => "the new secret is not valid".to_owned(),
                };
                note_login(cx, &user, mechanism, Some(&why));
                tracing::warn!(peer = %self.config.peer, user = %user, why, "secret update refused");
                refuse!(NotAllowed, "New secret was refused by one of the backends");
            }
        };
        note_login(cx, &user, mechanism, None);
        let vhost = self.conn.vhost.clone();
        let access = cx.broker.tree().access_of(&user, Some(&identity));
        if !access.has_vhost(&vhost) {
            let text = format!("access to vhost '{vhost}' refused for user '{user}'");
            cx.broker.note_refused_vhost(&user, &vhost, &text);
            refuse!(NotAllowed, "{text}");
        }
        self.set_identity(Some(Arc::new(identity.in_vhost(&vhost))), cx);
        cx.send(0, &Method::ConnectionUpdateSecretOk {});
        Ok(())
    }
}

/// Class and method id of connection.start-ok.
const START_OK: (u16, u16) = (10, 11);

/// Class and method id of connection.update-secret.
const UPDATE_SECRET: (u16, u16) = (10, 70);

/// The name of this broker in the property `platform`. Clients evaluate `product` and `version`,
/// but only display `platform`.
const PLATFORM: &str = concat!("Posthorn ", env!("CARGO_PKG_VERSION"));

/// Maximum length of `connection_name` in characters; the rest is cut off.
const MAX_CLIENT_NAME: usize = 255;

/// Checks a value from connection.tune-ok against the minimum and the offered value. 0 would mean
/// unlimited and is refused.
fn check_negotiated(field: &str, min: u32, offered: u32, chosen: u32) -> MethodResult {
    let (detail, word, bound, limit) = match chosen {
        0 => (" (no limit)", "higher", "maximum", offered),
        c if c < min => ("", "lower", "minimum", min),
        c if c > offered => ("", "higher", "maximum", offered),
        _ => return Ok(()),
    };
    Err(Failure::new(
        ReplyCode::NotAllowed,
        format!(
            "negotiated {field} = {chosen}{detail} is {word} than the {bound} allowed value ({limit})"
        ),
    ))
}

fn server_properties(config: &SessionConfig) -> Table {
    let mut capabilities = Table::default();
    for name in [
        "publisher_confirms",
        "exchange_exchange_bindings",
        "basic.nack",
        "consumer_cancel_notify",
        "connection.blocked",
        "consumer_priorities",
        "authentication_failure_close",
        "per_consumer_qos",
        "direct_reply_to",
    ] {
        capabilities.set(name, Value::Bool(true));
    }
    let mut properties = Table::default();
    properties.set("capabilities", Value::Table(capabilities));
    properties.set("cluster_name", (*config.server_name).into());
    properties.set("copyright", "The Posthorn authors".into());
    properties.set(
        "information",
        "Licensed under the Apache License 2.0".into(),
    );
    properties.set("platform", PLATFORM.into());
    properties.set("product", (*config.product).into());
    properties.set("product_version", env!("CARGO_PKG_VERSION").into());
    properties.set("version", (*config.version).into());
    properties
}

fn note_login(cx: &mut StepContext<'_>, user: &str, mechanism: &str, refusal: Option<&str>) {
    cx.broker.note_login(&LoginAttempt {
        protocol: PROTOCOL,
        user,
        mechanism,
        refusal,
    });
}
