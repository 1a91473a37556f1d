//! SASL and the open frame.

use crate::config::connection_properties;
use crate::connection::{Amqp10Session, Phase};
use crate::ended;
use crate::refusal::Refusal;
use crate::state::{PROTOCOL, StepContext};
use crate::values::to_table;
use amqp10::{OpenReply, PendingOpen, PendingSasl, SaslDecision};
use auth::Mechanism;
use codec_amqp10::{Condition, Map, Multiple, Open, Reader, Symbol};
use metadata::Identity;
use metadata::features::SCHEDULED_DELIVERY;
use session::{
    AdmissionError, Login, LoginAttempt, LoginCheck, LoginOrigin, LoginVerdict, SILENT_CLOSE_DELAY,
};
use std::sync::Arc;

/// Prefix of host names that name a vhost.
const VHOST_PREFIX: &str = "vhost:";

/// Longest container id that is kept for listings, in characters.
const MAX_CONTAINER_ID: usize = 255;

/// Extensions that the server offers: management over a pair of links, the anonymous terminus, and the time of delivery
/// of a message, which JMS clients do not set otherwise. The last one needs its feature flag.
const CAPABILITIES: [Symbol<'static>; 3] = [
    Symbol::from_static("LINK_PAIR_V1_0"),
    Symbol::from_static("ANONYMOUS-RELAY"),
    Symbol::from_static("DELAYED_DELIVERY"),
];

impl Amqp10Session {
    pub(crate) fn log_in(
        &mut self,
        mechanism: &str,
        response: &[u8],
        pending: PendingSasl,
        cx: &mut StepContext<'_>,
    ) {
        let settings = self.state.settings.clone();
        let check = match Mechanism::from_name(mechanism) {
            Some(mechanism) => settings
                .logins
                .check(mechanism, response, self.origin(), cx.broker),
            None => LoginCheck::NotOffered,
        };
        match check {
            LoginCheck::Accepted(login) => self.accept_login(login, pending, cx),
            LoginCheck::Pending(login) => self.login = Some(Box::new((pending, login))),
            LoginCheck::Refused(login, why) => {
                self.refuse_login((&login.user, mechanism), &why, pending, cx);
            }
            LoginCheck::Malformed(error) => {
                self.refuse_login(("", mechanism), &error.to_string(), pending, cx);
            }
            LoginCheck::NotOffered => {
                let why = "the mechanism is not offered";
                self.refuse_login(("", mechanism), why, pending, cx);
            }
            LoginCheck::Busy => {
                self.engine
                    .answer_sasl(pending, SaslDecision::TemporaryError, cx.tail());
            }
        }
    }

    fn accept_login(&mut self, login: Login, pending: PendingSasl, cx: &mut StepContext<'_>) {
        cx.broker.note_login(&LoginAttempt {
            protocol: PROTOCOL,
            user: &login.user,
            mechanism: login.mechanism.name(),
            refusal: None,
        });
        self.state.user = login.user.as_str().into();
        self.mechanism = Some(login.mechanism);
        self.set_identity(login.identity, cx);
        self.engine
            .answer_sasl(pending, SaslDecision::Accept, cx.tail());
    }

    pub(crate) fn set_identity(
        &mut self,
        identity: Option<Arc<Identity>>,
        cx: &mut StepContext<'_>,
    ) {
        self.state.identity = identity;
        let caller = self.state.caller(cx.broker);
        self.state.impersonator = caller.access().has_tag("impersonator");
    }

    fn origin(&self) -> LoginOrigin<'_> {
        LoginOrigin {
            tls: self.tls.as_deref(),
            is_loopback: self.is_loopback,
        }
    }

    /// Refuses a login. The reason is logged but not sent to the client. The socket closes after a delay, to slow down
    /// password guessing.
    pub(crate) fn refuse_login(
        &mut self,
        (user, mechanism): (&str, &str),
        why: &str,
        pending: PendingSasl,
        cx: &mut StepContext<'_>,
    ) {
        cx.broker.note_login(&LoginAttempt {
            protocol: PROTOCOL,
            user,
            mechanism,
            refusal: Some(why),
        });
        tracing::warn!(peer = %self.peer, mechanism, why, "login refused");
        self.engine
            .answer_sasl(pending, SaslDecision::Reject, cx.tail());
        self.phase = Phase::Lingering(cx.broker.now() + SILENT_CLOSE_DELAY);
    }

    /// Ends a login whose password is being checked, since the node stops. The client would take the end of
    /// the connection for a refusal of its password.
    pub(crate) fn postpone_login(&mut self, cx: &mut StepContext<'_>) {
        if let Some(login) = self.login.take() {
            let (pending, _) = *login;
            self.engine
                .answer_sasl(pending, SaslDecision::TemporaryError, cx.tail());
        }
    }

    /// Handles the result of a password check.
    pub(crate) fn handle_verified(&mut self, verdict: LoginVerdict, cx: &mut StepContext<'_>) {
        if let Some(link) = self.renewal.take() {
            return self.renew(link, verdict, cx);
        }
        let Some(login) = self.login.take() else {
            return;
        };
        let (pending, login) = *login;
        let settings = self.state.settings.clone();
        match settings.logins.decide(login, verdict, self.origin()) {
            LoginCheck::Accepted(login) => self.accept_login(login, pending, cx),
            LoginCheck::Refused(login, why) => {
                let attempt = (&*login.user, login.mechanism.name());
                self.refuse_login(attempt, &why, pending, cx);
            }
            _ => {}
        }
    }

    pub(crate) fn open(&mut self, open: &Open<'_>, pending: PendingOpen, cx: &mut StepContext<'_>) {
        let node = cx.broker.tree().node(cx.broker.id().node);
        let node = node.map_or("", |node| &*node.name);
        let properties = connection_properties(&self.state.settings.properties, node);
        let capabilities = match cx.broker.tree().feature_enabled(SCHEDULED_DELIVERY.name) {
            true => &CAPABILITIES[..],
            false => &CAPABILITIES[..CAPABILITIES.len() - 1],
        };
        let reply = OpenReply {
            offered_capabilities: Multiple::new(capabilities),
            properties: Reader::new(&properties).read::<Map<'_>>().ok(),
        };
        let vhost = match open
            .hostname
            .and_then(|name| name.strip_prefix(VHOST_PREFIX))
        {
            Some(vhost) => vhost.into(),
            None => self.state.settings.default_vhost.clone(),
        };
        let user = (&self.state.user, self.state.identity.as_deref());
        if let Err(error) = session::admit(cx.broker, user, &vhost) {
            let condition = match error {
                AdmissionError::Draining => Condition::InternalError,
                AdmissionError::UnknownVhost { .. } => Condition::NotFound,
                AdmissionError::NoAccess { .. } => Condition::UnauthorizedAccess,
                AdmissionError::UserLimit { .. } | AdmissionError::VhostLimit { .. } => {
                    Condition::ResourceLimitExceeded
                }
            };
            let refusal = Refusal::new(condition, error.to_string());
            tracing::info!(peer = %self.peer, user = %self.state.user, error = %refusal.text, "open refused");
            // RabbitMQ's Java client fails to report the error of a connection without properties.
            self.engine
                .refuse_open(pending, reply, &refusal.to_error(), cx.tail());
            return;
        }
        let identity = self.state.identity.take();
        self.state.identity = identity.map(|identity| Arc::new(identity.in_vhost(&vhost)));
        self.state.vhost = vhost;
        self.client_name = open.container_id.chars().take(MAX_CONTAINER_ID).collect();
        self.client_properties = open.properties.map(to_table).map(Box::new);
        self.frame_max = open.max_frame_size.min(self.state.settings.limits.frame);
        ended(self.engine.accept_open(pending, reply, cx.tail()));
        self.phase = Phase::Open;
        self.set_alarm(cx.broker.publishers_blocked(), cx);
    }
}
