//! Messages from clients: to the link that takes them, and the answers of their queues.

use super::{Amqp10Session, Link};
use crate::ended;
use crate::publish::{Publish, PublishError, split_tag};
use crate::refusal::Refusal;
use crate::state::StepContext;
use crate::unconfirmed::QueueAnswer;
use crate::wait::{HeldMessage, WaitReason};
use amqp10::{IncomingDelivery, LinkId, Payload};
use bytes::Bytes;
use codec_amqp10::{Condition, DeliveryState};
use env::planted::{self, Bug};
use session::PublishTag;

impl Amqp10Session {
    pub(super) fn receive_message(
        &mut self,
        link: LinkId,
        delivery: &IncomingDelivery<'_>,
        cx: &mut StepContext<'_>,
    ) {
        if matches!(delivery.payload, Payload::Collected(_)) {
            self.state.finished = self.state.finished.wrapping_add(1);
        }
        if delivery.message_format != 0 {
            let text = format!(
                "transfer: field 'message-format': {} is not supported",
                delivery.message_format
            );
            let refusal = Refusal::new(Condition::NotImplemented, text);
            return self.detach(link, &refusal, cx);
        }
        match self.links.get(&link.number()) {
            Some(Link::Management(_) | Link::Coordinator(_)) if delivery.transaction.is_some() => {
                let text = "only messages to queues and exchanges can belong to a transaction";
                let refusal = Refusal::new(Condition::NotImplemented, text);
                return self.detach(link, &refusal, cx);
            }
            Some(Link::Management(_)) => {
                return self.receive_request(link, delivery.id, delivery.payload.as_ref(), cx);
            }
            Some(Link::Coordinator(_)) => return self.receive_coordination(link, delivery, cx),
            _ => {}
        }
        let publish = Publish {
            delivery: delivery.id,
            is_settled: delivery.settled,
            transaction: delivery.transaction.as_ref(),
            payload: delivery.payload.as_ref(),
        };
        if planted::is(Bug::TransfersTwice) && matches!(delivery.payload, Payload::Collected(_)) {
            self.publish(link, publish, cx);
        }
        self.publish(link, publish, cx);
    }

    fn publish(&mut self, link: LinkId, publish: Publish<'_>, cx: &mut StepContext<'_>) {
        match self.try_publish(link, publish, cx) {
            Ok(()) => {}
            Err(PublishError::Unknown(name, _)) => {
                let held = HeldMessage {
                    link,
                    delivery: publish.delivery,
                    is_settled: publish.is_settled,
                    transaction: publish.transaction.copied(),
                    payload: Bytes::copy_from_slice(publish.payload),
                };
                let reason = WaitReason::RetryPublish(Box::new(held));
                self.state.catch_up(name, link.number(), reason, cx);
            }
            Err(error) => self.handle_publish_error(link, publish, error, cx),
        }
    }

    fn try_publish(
        &mut self,
        link: LinkId,
        publish: Publish<'_>,
        cx: &mut StepContext<'_>,
    ) -> Result<(), PublishError> {
        if let Some(transaction) = publish.transaction {
            return self.publish_in_transaction(link, *transaction, publish, cx);
        }
        match self.links.get_mut(&link.number()) {
            Some(Link::Publisher(publisher)) => {
                publisher.publish(publish, &mut self.engine, &mut self.state, cx)
            }
            _ => Ok(()),
        }
    }

    fn handle_publish_error(
        &mut self,
        link: LinkId,
        publish: Publish<'_>,
        error: PublishError,
        cx: &mut StepContext<'_>,
    ) {
        match error {
            // The tree has caught up.
            PublishError::Unknown(_, error) => self.handle_publish_error(link, publish, *error, cx),
            PublishError::Unroutable => {
                let released = DeliveryState::RELEASED;
                ended(self.engine.settle_received(
                    link,
                    publish.delivery,
                    &released,
                    cx.out.tail(),
                ));
            }
            PublishError::EndSession(refusal) => {
                if let Some(session) = self.session_of(link) {
                    self.end_session(session, &refusal, cx);
                }
            }
            PublishError::Rejected(refusal) if !publish.is_settled => {
                let error = Some(refusal.to_error());
                let outcome = DeliveryState::Outcome(codec_amqp10::Outcome::Rejected(error));
                ended(
                    self.engine
                        .settle_received(link, publish.delivery, &outcome, cx.out.tail()),
                );
            }
            // The client does not want to know the outcome, so only a detach can tell it.
            PublishError::Rejected(refusal) => self.detach(link, &refusal, cx),
            PublishError::Detach(refusal) => self.detach(link, &refusal, cx),
            PublishError::ReleaseAndDetach(refusal) => {
                let released = DeliveryState::RELEASED;
                ended(self.engine.settle_received(
                    link,
                    publish.delivery,
                    &released,
                    cx.out.tail(),
                ));
                self.detach(link, &refusal, cx);
            }
        }
    }

    pub(super) fn record_answer(
        &mut self,
        tag: PublishTag,
        answer: QueueAnswer,
        cx: &mut StepContext<'_>,
    ) {
        let (link, number) = split_tag(tag);
        match self.links.get_mut(&link) {
            Some(Link::Publisher(publisher)) => {
                publisher.record_answer(number, answer, &mut self.engine, &mut self.state, cx);
            }
            Some(Link::Coordinator(_)) => self.record_commit_answer(link, number, answer, cx),
            _ => {}
        }
    }

    /// Detaches the link of a publish whose target queue was deleted.
    pub(super) fn detach_if_target_is_deleted(
        &mut self,
        tag: PublishTag,
        cx: &mut StepContext<'_>,
    ) {
        let Some(Link::Publisher(publisher)) = self.links.get(&split_tag(tag).0) else {
            return;
        };
        let link = publisher.link;
        if let Err(refusal) = publisher.check_target(&self.state, cx) {
            self.detach(link, &refusal, cx);
        }
    }

    pub(super) fn retry_publish(&mut self, held: &HeldMessage, cx: &mut StepContext<'_>) {
        let publish = Publish {
            delivery: held.delivery,
            is_settled: held.is_settled,
            transaction: held.transaction.as_ref(),
            payload: &held.payload,
        };
        if let Err(error) = self.try_publish(held.link, publish, cx) {
            self.handle_publish_error(held.link, publish, error, cx);
        }
    }
}
