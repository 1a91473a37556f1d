//! Outcomes of deliveries that clients send in disposition frames.

use crate::connection::{Amqp10Session, Link};
use crate::ended;
use crate::refusal::Refusal;
use crate::state::{DeliveryOutcome, StepContext};
use crate::values::to_table;
use amqp10::{SessionId, SettledDelivery};
use codec_amqp10::{Condition, DeliveryState, Modified, Outcome};
use queue::{Annotations, Modification, SettlementOutcome};

impl Amqp10Session {
    pub(crate) fn handle_disposition(
        &mut self,
        session: SessionId,
        delivery_state: Option<&DeliveryState<'_>>,
        is_settled: bool,
        deliveries: &[SettledDelivery],
        cx: &mut StepContext<'_>,
    ) {
        if let Some(DeliveryState::Transactional(state)) = delivery_state {
            let settled = self.settle_in_transaction(session, state, is_settled, deliveries);
            if let Err(refusal) = settled {
                self.end_session(session, &refusal, cx);
            } else if self.transactions.bytes() > 0 {
                cx.broker.note_held();
            }
            return;
        }
        let outcome = match delivery_outcome(delivery_state) {
            Ok(outcome) => outcome,
            Err(refusal) => return self.end_session(session, &refusal, cx),
        };
        let is_accepted = outcome == DeliveryOutcome::Settled(SettlementOutcome::Accepted);
        for delivery in deliveries {
            let Some(Link::Consumer(consumer)) = self.links.get(&delivery.link.number()) else {
                continue;
            };
            self.state
                .settle(consumer.queue, consumer.id, outcome.clone(), delivery.token);
            if is_accepted {
                let kind = consumer.kind;
                self.state.count(|counters| counters.of(kind).ack += 1);
            }
        }
        if !is_settled && let (Some(first), Some(last)) = (deliveries.first(), deliveries.last()) {
            let told = delivery_state.cloned().unwrap_or(DeliveryState::RELEASED);
            let out = cx.out.tail();
            ended(
                self.engine
                    .settle_sent(session, first.id, last.id, &told, out),
            );
        }
    }
}

/// The outcome for the queue. A delivery that is settled without an outcome has the default of the source, `released`.
pub(crate) fn delivery_outcome(
    delivery_state: Option<&DeliveryState<'_>>,
) -> Result<DeliveryOutcome, Refusal> {
    let outcome = match delivery_state {
        None | Some(DeliveryState::Received(_)) => &Outcome::Released,
        Some(DeliveryState::Outcome(outcome)) => outcome,
        Some(
            DeliveryState::Transactional(_) | DeliveryState::Declared(_) | DeliveryState::Other(_),
        ) => {
            return Err(Refusal::new(
                Condition::InvalidField,
                "disposition: field 'state': not an outcome of a message",
            ));
        }
    };
    Ok(DeliveryOutcome::Settled(match outcome {
        Outcome::Accepted => SettlementOutcome::Accepted,
        Outcome::Rejected(_) => SettlementOutcome::Rejected,
        Outcome::Released => SettlementOutcome::Released,
        Outcome::Modified(modified) => {
            return modification(modified).map(|m| DeliveryOutcome::Modified(Box::new(m)));
        }
    }))
}

/// Annotations that receivers may add have this prefix.
const ANNOTATION_PREFIX: &str = "x-";

fn modification(modified: &Modified<'_>) -> Result<Modification, Refusal> {
    let invalid = |text: String| {
        let text = format!("modified: field 'message-annotations': {text}");
        Refusal::new(Condition::InvalidField, text)
    };
    let mut table = to_table(modified.message_annotations.unwrap_or_default());
    // RabbitMQ ends the session because of other annotations; here they are left out.
    table
        .0
        .retain(|(key, _)| key.starts_with(ANNOTATION_PREFIX));
    Ok(Modification {
        delivery_failed: modified.delivery_failed,
        undeliverable_here: modified.undeliverable_here,
        annotations: Annotations::new(table).map_err(|error| invalid(error.to_string()))?,
    })
}
