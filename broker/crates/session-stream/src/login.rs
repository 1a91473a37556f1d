//! The SASL exchange, renewals of credentials, and the access to the virtual host.

use crate::config::PROTOCOL;
use crate::connection::ConnectionConfig;
use crate::session::{Phase, Refusal, StepContext, StreamSession, count_error};
use auth::Mechanism;
use codec_stream::{Property, ResponseCode};
use metadata::Right;
use operations::Resource;
use session::{
    AdmissionError, Login, LoginAttempt, LoginCheck, LoginOrigin, LoginVerdict, SILENT_CLOSE_DELAY,
};
use std::sync::Arc;

impl StreamSession {
    pub(crate) fn log_in(&mut self, mechanism: &str, response: &[u8], cx: &mut StepContext<'_>) {
        let settings = self.settings.clone();
        let check = match Mechanism::from_name(mechanism) {
            Some(mechanism) if self.mechanism.is_some_and(|first| first != mechanism) => {
                let code = ResponseCode::SASL_CANNOT_CHANGE_MECHANISM;
                let attempt = ("", mechanism.name());
                return self.refuse_login(attempt, "another mechanism than before", code, cx);
            }
            Some(mechanism) => settings
                .logins
                .check(mechanism, response, self.origin(), cx.broker),
            None => LoginCheck::NotOffered,
        };
        self.conclude_login(mechanism, check, cx);
    }

    fn origin(&self) -> LoginOrigin<'_> {
        LoginOrigin {
            tls: self.tls.as_deref(),
            is_loopback: self.is_loopback,
        }
    }

    fn conclude_login(&mut self, mechanism: &str, check: LoginCheck, cx: &mut StepContext<'_>) {
        match check {
            LoginCheck::Accepted(login) => self.accept_login(login, cx),
            LoginCheck::Pending(login) => self.login = Some(login),
            LoginCheck::Refused(login, why) => {
                let mut restricted = self.settings.logins.loopback_users.iter();
                let code = match !self.is_loopback && restricted.any(|name| **name == *login.user) {
                    true => ResponseCode::SASL_AUTHENTICATION_FAILURE_LOOPBACK,
                    false => ResponseCode::AUTHENTICATION_FAILURE,
                };
                self.refuse_login((&login.user, mechanism), &why, code, cx);
            }
            LoginCheck::Malformed(error) => {
                let code = ResponseCode::SASL_ERROR;
                self.refuse_login(("", mechanism), &error.to_string(), code, cx);
            }
            LoginCheck::NotOffered => {
                let code = ResponseCode::SASL_MECHANISM_NOT_SUPPORTED;
                let why = "the mechanism is not offered";
                self.refuse_login(("", mechanism), why, code, cx);
            }
            LoginCheck::Busy => {
                let code = ResponseCode::INTERNAL_ERROR;
                let why = "too many logins are pending";
                self.refuse_login(("", mechanism), why, code, cx);
            }
        }
    }

    fn accept_login(&mut self, login: Login, cx: &mut StepContext<'_>) {
        let is_renewal = self.connection.is_open();
        if is_renewal && *login.user != *self.user {
            let why = format!(
                "user '{}' logs in on a connection of '{}'",
                login.user, self.user
            );
            let code = ResponseCode::SASL_CANNOT_CHANGE_USERNAME;
            let attempt = (&*login.user, login.mechanism.name());
            return self.refuse_login(attempt, &why, code, cx);
        }
        cx.broker.note_login(&LoginAttempt {
            protocol: PROTOCOL,
            user: &login.user,
            mechanism: login.mechanism.name(),
            refusal: None,
        });
        self.user = login.user.as_str().into();
        self.mechanism = Some(login.mechanism);
        self.identity = match is_renewal {
            true => login
                .identity
                .map(|all| Arc::new(all.in_vhost(&self.vhost))),
            false => login.identity,
        };
        let has_vhost = self.caller(cx.broker).access().has_vhost(&self.vhost);
        let mut code = ResponseCode::OK;
        if is_renewal && !has_vhost {
            code = ResponseCode::VIRTUAL_HOST_ACCESS_FAILURE;
        }
        self.answer_login(code, cx);
        match code {
            ResponseCode::OK if is_renewal => self.check_permissions(cx),
            ResponseCode::OK => {}
            _ => self.end(cx),
        }
    }

    /// Sends the response to a login, and what follows it.
    fn answer_login(&mut self, code: ResponseCode, cx: &mut StepContext<'_>) {
        count_error(code, cx);
        let config = ConnectionConfig {
            frame_max: self.settings.limits.frame,
            heartbeat: self.settings.limits.heartbeat,
            properties: &[],
            mechanisms: &[],
        };
        self.connection.authenticated(&config, code, cx.out.tail());
    }

    /// Refuses a login. The reason is logged but not sent to the client. The response waits, to slow down password
    /// guessing.
    fn refuse_login(
        &mut self,
        (user, mechanism): (&str, &str),
        why: &str,
        code: ResponseCode,
        cx: &mut StepContext<'_>,
    ) {
        cx.broker.note_login(&LoginAttempt {
            protocol: PROTOCOL,
            user,
            mechanism,
            refusal: Some(why),
        });
        tracing::warn!(peer = %self.peer, mechanism, why, "login refused");
        self.phase = Phase::Refusing(cx.broker.now() + SILENT_CLOSE_DELAY, Refusal::Login(code));
    }

    /// Handles the result of a password check.
    pub(crate) fn handle_verified(&mut self, verdict: LoginVerdict, cx: &mut StepContext<'_>) {
        let Some(login) = self.login.take() else {
            return;
        };
        let mechanism = login.mechanism.name();
        let settings = self.settings.clone();
        let check = settings.logins.decide(login, verdict, self.origin());
        self.conclude_login(mechanism, check, cx);
    }

    /// Closes the connection of a user whose identity was not renewed.
    pub(crate) fn expire(&mut self, cx: &mut StepContext<'_>) {
        if self.phase != Phase::Open {
            return self.end(cx);
        }
        let why = "credential expired";
        tracing::info!(peer = %self.peer, user = %self.user, why, "connection closed");
        let code = ResponseCode::AUTHENTICATION_FAILURE;
        self.connection.close(code, why, cx.out.tail());
        self.begin_closing(cx);
    }

    /// Opens the virtual host. Every refusal has the same code, because the protocol has no other.
    pub(crate) fn open(&mut self, vhost: &str, cx: &mut StepContext<'_>) {
        let user = self.user.clone();
        let identity = self.identity.clone();
        if let Err(error) = session::admit(cx.broker, (&user, identity.as_deref()), vhost) {
            tracing::info!(peer = %self.peer, user = %user, %error, "open refused");
            let until = match error {
                AdmissionError::UnknownVhost { .. } | AdmissionError::NoAccess { .. } => {
                    cx.broker.now() + SILENT_CLOSE_DELAY
                }
                _ => cx.broker.now(),
            };
            let code = ResponseCode::VIRTUAL_HOST_ACCESS_FAILURE;
            self.phase = Phase::Refusing(until, Refusal::Open(code));
            if until == cx.broker.now() {
                self.send_refusal(cx);
            }
            return;
        }
        self.vhost = vhost.into();
        self.identity = identity.map(|identity| Arc::new(identity.in_vhost(vhost)));
        let address = self.address_of(cx.broker.id().node, cx.broker);
        let (host, port) = address.unwrap_or_else(|| {
            let local = self.local;
            (local.ip().to_string().into(), local.port())
        });
        let port = port.to_string();
        let properties = [
            Property {
                key: "advertised_host",
                value: &host,
            },
            Property {
                key: "advertised_port",
                value: &port,
            },
        ];
        self.connection
            .opened(ResponseCode::OK, &properties, cx.out.tail());
        self.phase = Phase::Open;
        self.is_counted = true;
        cx.broker.count_stream_connection(1);
        self.is_alarmed = cx.broker.publishers_blocked().is_some();
    }

    /// Sends the response to a login or an open that was refused.
    pub(crate) fn send_refusal(&mut self, cx: &mut StepContext<'_>) {
        let Phase::Refusing(_, refusal) = self.phase else {
            return;
        };
        match refusal {
            Refusal::Login(code) => self.answer_login(code, cx),
            Refusal::Open(code) => {
                count_error(code, cx);
                self.connection.opened(code, &[], cx.out.tail());
            }
        }
        self.end(cx);
    }

    /// Drops the publishers and consumers that the user may not have any more.
    fn check_permissions(&mut self, cx: &mut StepContext<'_>) {
        let mut refused = Vec::new();
        for (right, stream) in self.used_streams() {
            let caller = self.caller(cx.broker);
            if caller.check(right, Resource::Queue(&stream)).is_err() && !refused.contains(&stream)
            {
                refused.push(stream);
            }
        }
        for stream in refused {
            self.drop_stream(&stream, cx);
        }
    }

    /// The streams of publishers and consumers, with the right that these need.
    fn used_streams(&self) -> Vec<(Right, metadata::Name)> {
        let publishers = self.publishers.values();
        let consumers = self.consumers.values();
        let written = publishers.map(|publisher| (Right::Write, publisher.stream.clone()));
        let read = consumers.map(|consumer| (Right::Read, consumer.stream.clone()));
        written.chain(read).collect()
    }
}
