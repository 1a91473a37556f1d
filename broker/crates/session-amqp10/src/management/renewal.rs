//! Renewal of an access token: `PUT /auth/tokens`, as RabbitMQ's clients do.

use super::response::Response;
use super::{Next, RequestError};
use crate::connection::{Amqp10Session, Link};
use crate::publish::PublishTarget;
use crate::refusal::Refusal;
use crate::state::{PROTOCOL, StepContext};
use amqp10::LinkId;
use codec_amqp10::Condition;
use metadata::Right;
use operations::{OperationResult, Resource};
use session::{LoginAttempt, LoginVerdict, PasswordCheck};
use std::sync::Arc;

impl Amqp10Session {
    pub(super) fn plan_renewal(
        &self,
        token: &[u8],
        cx: &mut StepContext<'_>,
    ) -> Result<Next, RequestError> {
        let Some(identity) = self.state.identity.clone() else {
            let text = "the connection has no token to renew: it was opened with a password or a certificate";
            return Err(Response::error(400, text).into());
        };
        match cx.broker.renew(&identity, token) {
            PasswordCheck::Later => Ok(Next::Renew),
            PasswordCheck::Right => Ok(Next::Respond(Response::empty(204))),
            PasswordCheck::Wrong => Err(Response::error(403, "the token was refused").into()),
            PasswordCheck::Busy => {
                let text = "too many logins are waiting to be checked; try again";
                Err(Response::error(503, text).into())
            }
        }
    }

    /// Replaces the token, or closes the connection as RabbitMQ does.
    pub(crate) fn renew(&mut self, link: LinkId, verdict: LoginVerdict, cx: &mut StepContext<'_>) {
        let user = self.state.user.clone();
        let mechanism = self.mechanism.map_or("", auth::Mechanism::name);
        let (identity, why) = match verdict {
            LoginVerdict::Identified(identity) if identity.user == user => (Some(identity), None),
            LoginVerdict::Identified(other) => (
                None,
                Some(format!("the new token is of user '{}'", other.user).into()),
            ),
            LoginVerdict::Wrong(Some(why)) => (None, Some(why)),
            LoginVerdict::Wrong(None) | LoginVerdict::Right => {
                (None, Some(Arc::<str>::from("the new token is not valid")))
            }
        };
        cx.broker.note_login(&LoginAttempt {
            protocol: PROTOCOL,
            user: &user,
            mechanism,
            refusal: why.as_deref(),
        });
        let Some(identity) = identity else {
            let why = why.unwrap_or_default();
            tracing::warn!(peer = %self.peer, user = %user, why = %why, "secret update refused");
            let refusal = Refusal::new(Condition::UnauthorizedAccess, "credential update failed");
            return self.close(&refusal, cx);
        };
        let vhost = self.state.vhost.clone();
        let access = cx.broker.tree().access_of(&user, Some(&identity));
        if !access.has_vhost(&vhost) {
            let text = format!("access to vhost '{vhost}' refused for user '{user}'");
            cx.broker.note_refused_vhost(&user, &vhost, &text);
            return self.close(&Refusal::new(Condition::UnauthorizedAccess, text), cx);
        }
        self.set_identity(Some(Arc::new(identity.in_vhost(&vhost))), cx);
        self.respond(link, &Response::empty(204), cx);
        self.recheck_links(cx);
    }

    /// Ends the sessions of links that the user may not use any more.
    fn recheck_links(&mut self, cx: &mut StepContext<'_>) {
        let mut numbers: Vec<u32> = self.links.keys().copied().collect();
        numbers.sort_unstable();
        for number in numbers {
            let Some(link) = self.links.get_mut(&number) else {
                continue;
            };
            let caller = self.state.caller(cx.broker);
            let (id, result): (LinkId, OperationResult) = match link {
                Link::Publisher(publisher) => {
                    publisher.forget_permission();
                    let result = match &publisher.target {
                        PublishTarget::Fixed(to) => {
                            caller.check(Right::Write, Resource::Exchange(&to.exchange))
                        }
                        PublishTarget::PerMessage => Ok(()),
                    };
                    (publisher.link, result)
                }
                Link::Consumer(consumer) if !consumer.is_volatile => (
                    consumer.link,
                    caller.check(Right::Read, Resource::Queue(&consumer.queue_name)),
                ),
                Link::Browser(browser) => (
                    browser.link,
                    caller.check(Right::Read, Resource::Queue(&browser.queue_name)),
                ),
                Link::Consumer(_) | Link::Management(_) | Link::Coordinator(_) => continue,
            };
            if let (Err(error), Some(session)) = (result, self.session_of(id)) {
                self.end_session(session, &error.into(), cx);
            }
        }
    }
}
