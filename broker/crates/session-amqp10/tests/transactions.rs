//! Transactions (part 4 of the specification).

use crate::fake::{Client, Seen, link, message};
use amqp10::{LinkId, SessionId};
use codec_amqp10::{
    AnyTarget, Attach, Coordinator, Declare, DeliveryState, Discharge, Encode, Modified, Multiple,
    Outcome, Performative, ReceiverSettleMode, Role, SectionKind, SenderSettleMode, Source, Symbol,
    Target, TransactionalState, Transfer, Value, encode_section_descriptor, encode_transfer_frame,
    parse_frame,
};
use metadata::QueueId;
use queue::{RejectReason, RequestBody, SettlementOutcome};
use session::Session;
use session_amqp10::{Amqp10Config, Limits};

/// A client that sends transfers with a transactional state, which the engine in its client role does not.
struct Controller {
    client: Client,
    session: SessionId,
    coordinator: LinkId,
    next_delivery: u32,
}

/// The state in a disposition of the server.
#[derive(Clone, Debug, PartialEq)]
enum Told {
    Declared(Vec<u8>),
    Accepted,
    Rejected(String),
    /// The presumptive outcome within a transaction.
    Presumed(Vec<u8>, String),
    Other(String),
}

fn told(state: Option<&DeliveryState<'_>>) -> Told {
    match state {
        Some(DeliveryState::Declared(declared)) => Told::Declared(declared.txn_id.to_vec()),
        Some(DeliveryState::Outcome(Outcome::Accepted)) => Told::Accepted,
        Some(DeliveryState::Outcome(Outcome::Rejected(Some(error)))) => {
            Told::Rejected(error.condition.symbol().as_str().into())
        }
        Some(DeliveryState::Transactional(state)) => Told::Presumed(
            state.txn_id.to_vec(),
            match &state.outcome {
                Some(Outcome::Accepted) => "accepted".into(),
                Some(Outcome::Released) => "released".into(),
                Some(Outcome::Rejected(_)) => "rejected".into(),
                other => format!("{other:?}"),
            },
        ),
        other => Told::Other(format!("{other:?}")),
    }
}

impl Controller {
    fn new() -> Controller {
        Controller::with(Limits::default())
    }

    fn with(limits: Limits) -> Controller {
        let config = Amqp10Config {
            limits,
            ..Amqp10Config::default()
        };
        let (mut client, session) = Client::open_with(config, "guest");
        let coordinator = attach_coordinator(&mut client, session);
        Controller {
            client,
            session,
            coordinator,
            next_delivery: 0,
        }
    }

    /// Sends a message and returns what the server tells of it meanwhile.
    fn transfer(
        &mut self,
        link: LinkId,
        payload: Vec<u8>,
        settled: bool,
        transaction: Option<&[u8]>,
    ) -> Vec<Told> {
        let id = self.next_delivery;
        self.next_delivery += 1;
        let state = transaction.map(|txn_id| {
            DeliveryState::Transactional(TransactionalState {
                txn_id,
                outcome: None,
            })
        });
        let tag = id.to_be_bytes();
        let mut transfer = Transfer {
            handle: link.handle(),
            delivery_id: Some(id),
            delivery_tag: Some(&tag),
            message_format: Some(0),
            settled: Some(settled),
            more: false,
            rcv_settle_mode: None,
            state,
            resume: false,
            aborted: false,
            batchable: false,
        };
        let mut frame = Vec::new();
        let channel = self.session.channel();
        encode_transfer_frame(&mut frame, channel, &mut transfer, &[payload], 0, 100_000);
        let before = self.client.received.len();
        self.client.raw(&frame);
        self.told_since(before)
    }

    /// The states in the server's dispositions of received messages since this position.
    fn told_since(&self, position: usize) -> Vec<Told> {
        let mut rest = &self.client.received[position..];
        let mut all = Vec::new();
        while let Ok(Some(frame)) = parse_frame(rest, u32::MAX) {
            rest = &rest[frame.size..];
            if let Ok((Performative::Disposition(disposition), _)) =
                Performative::decode(frame.body)
                && disposition.role == Role::Receiver
            {
                assert!(disposition.settled);
                all.push(told(disposition.state.as_ref()));
            }
        }
        all
    }

    fn declare(&mut self) -> Vec<u8> {
        match &self.ask(&Declare { global_id: None })[..] {
            [Told::Declared(id)] => id.clone(),
            other => panic!("{other:?}"),
        }
    }

    fn ask(&mut self, request: &impl Encode) -> Vec<Told> {
        self.transfer(self.coordinator, value(request), false, None)
    }

    fn discharge(&mut self, id: &[u8], fail: bool) -> Vec<Told> {
        self.ask(&Discharge { txn_id: id, fail })
    }

    fn publish(&mut self, link: LinkId, body: &str, id: &[u8]) -> Vec<Told> {
        self.transfer(link, message(None, body), false, Some(id))
    }

    fn retire(&mut self, link: LinkId, delivery: u32, id: &[u8], outcome: Outcome<'_>) {
        let state = DeliveryState::Transactional(TransactionalState {
            txn_id: id,
            outcome: Some(outcome),
        });
        self.client.settle(link, delivery, &state);
    }

    fn ready(&self, queue: QueueId) -> usize {
        self.client.broker.queues[&queue].ready.len()
    }

    /// Outcomes that were sent to queues, without those that give back what was not sent.
    fn settlements(&self) -> Vec<SettlementOutcome> {
        let requests = self.client.broker.requests.iter();
        let outcomes = requests.filter_map(|(_, body)| match body {
            RequestBody::Settle { outcome, .. } => Some(*outcome),
            // A failed delivery is requeued.
            RequestBody::Modify { modification, .. } if modification.delivery_failed => {
                Some(SettlementOutcome::Requeue)
            }
            _ => None,
        });
        outcomes.collect()
    }
}

fn attach_coordinator(client: &mut Client, session: SessionId) -> LinkId {
    attach_coordinator_with(client, session, "coordinator", Multiple::NONE)
}

/// Attaches a link to the coordinator whose source has these outcomes.
fn attach_coordinator_with(
    client: &mut Client,
    session: SessionId,
    name: &str,
    outcomes: Multiple<'_>,
) -> LinkId {
    let attach = Attach {
        source: Some(Source {
            outcomes,
            ..Source::default()
        }),
        target: Some(AnyTarget::Coordinator(Coordinator {
            capabilities: Multiple::NONE,
        })),
        ..link(name, Role::Sender)
    };
    let coordinator = client.attach(session, &attach);
    client.expect(Seen::Attached(coordinator));
    match client.answer(coordinator).target {
        Some(AnyTarget::Coordinator(offered)) => {
            assert!(offered.capabilities.contains("amqp:local-transactions"));
        }
        other => panic!("{other:?}"),
    }
    coordinator
}

fn value(body: &impl Encode) -> Vec<u8> {
    let mut message = Vec::new();
    encode_section_descriptor(&mut message, SectionKind::Value);
    body.encode(&mut message);
    message
}

fn presumed(id: &[u8], outcome: &str) -> Vec<Told> {
    vec![Told::Presumed(id.to_vec(), outcome.into())]
}

fn rejected(condition: &str) -> Vec<Told> {
    vec![Told::Rejected(format!("amqp:{condition}"))]
}

#[test]
fn messages_reach_the_queue_at_the_commit_only() {
    let mut controller = Controller::new();
    let queue = controller.client.declare("q");
    let link = controller.client.publisher(controller.session, "/queues/q");
    let id = controller.declare();
    let other = controller.declare();
    assert_ne!(id, other);
    assert_eq!(
        controller.publish(link, "a", &id),
        presumed(&id, "accepted")
    );
    assert_eq!(
        controller.publish(link, "b", &other),
        presumed(&other, "accepted")
    );
    assert_eq!(
        controller.publish(link, "c", &id),
        presumed(&id, "accepted")
    );
    assert!(controller.client.session.unfinished() > 0);
    assert_eq!(controller.ready(queue), 0);
    // The commit is answered when the queue has confirmed every message.
    controller.client.broker.silent = true;
    assert_eq!(controller.discharge(&id, false), []);
    let before = controller.client.received.len();
    controller.client.broker.silent = false;
    controller.client.broker.settle_publishes();
    controller.client.deliver_events();
    controller.client.pump();
    assert_eq!(controller.told_since(before), [Told::Accepted]);
    assert_eq!(controller.ready(queue), 2);
    assert_eq!(controller.discharge(&other, true), [Told::Accepted]);
    assert_eq!(controller.ready(queue), 2);
    assert_eq!(controller.client.session.unfinished(), 0);
    let publishes = &controller.client.broker.message_counters.publishes;
    assert_eq!((publishes.received, publishes.confirmed), (2, 2));
    // Both are over.
    for id in [&id, &other] {
        let unknown = rejected("transaction:unknown-id");
        assert_eq!(controller.discharge(id, false), unknown);
    }
}

#[test]
fn outcomes_are_applied_at_the_commit_after_the_messages() {
    let mut controller = Controller::new();
    controller.client.declare("q");
    let publisher = controller.client.publisher(controller.session, "/queues/q");
    controller.transfer(publisher, message(None, "a"), true, None);
    controller.transfer(publisher, message(None, "b"), true, None);
    let consumer = controller.client.consumer(controller.session, "/queues/q");
    controller.client.credit(consumer, 2, false);
    let a = controller.client.expect_message("a");
    let b = controller.client.expect_message("b");
    let id = controller.declare();
    controller.retire(consumer, a, &id, Outcome::Accepted);
    let failed = Modified {
        delivery_failed: true,
        undeliverable_here: true,
        message_annotations: None,
    };
    controller.retire(consumer, b, &id, Outcome::Modified(failed));
    controller.publish(publisher, "c", &id);
    assert_eq!(controller.settlements(), []);
    controller.client.broker.requests.clear();
    assert_eq!(controller.discharge(&id, false), [Told::Accepted]);
    let requests: Vec<_> = controller
        .client
        .broker
        .requests
        .iter()
        .map(|(_, body)| body)
        .collect();
    assert!(
        matches!(
            requests[..],
            [
                RequestBody::Settle {
                    outcome: SettlementOutcome::Accepted,
                    ..
                },
                RequestBody::Modify { .. },
                RequestBody::Stat
            ]
        ),
        "{requests:?}"
    );
}

#[test]
fn rollback_returns_settled_deliveries_to_the_queue() {
    let mut controller = Controller::new();
    controller.client.declare("q");
    let publisher = controller.client.publisher(controller.session, "/queues/q");
    controller.transfer(publisher, message(None, "a"), true, None);
    let consumer = controller.client.consumer(controller.session, "/queues/q");
    controller.client.credit(consumer, 1, false);
    let a = controller.client.expect_message("a");
    let id = controller.declare();
    controller.retire(consumer, a, &id, Outcome::Accepted);
    assert_eq!(controller.discharge(&id, true), [Told::Accepted]);
    assert_eq!(controller.settlements(), [SettlementOutcome::Requeue]);
    controller.client.credit(consumer, 1, false);
    controller.client.expect_message("a");
}

#[test]
fn unsettled_deliveries_stay_with_the_client_after_a_rollback() {
    let mut controller = Controller::new();
    controller.client.declare("q");
    let publisher = controller.client.publisher(controller.session, "/queues/q");
    controller.transfer(publisher, message(None, "a"), true, None);
    // In this mode the receiver leaves the settlement to the sender.
    let attach = Attach {
        source: Some(Source {
            address: Some(Value::String("/queues/q")),
            ..Source::default()
        }),
        target: Some(AnyTarget::Target(Target::default())),
        snd_settle_mode: SenderSettleMode::Unsettled,
        rcv_settle_mode: ReceiverSettleMode::Second,
        ..link("second", Role::Receiver)
    };
    let consumer = controller.client.attach(controller.session, &attach);
    controller.client.expect(Seen::Attached(consumer));
    controller.client.credit(consumer, 1, false);
    let a = controller.client.expect_message("a");
    let id = controller.declare();
    controller.retire(consumer, a, &id, Outcome::Accepted);
    assert_eq!(controller.discharge(&id, true), [Told::Accepted]);
    assert_eq!(controller.settlements(), []);
}

#[test]
fn transaction_that_spans_queues_is_rolled_back() {
    let mut controller = Controller::new();
    let queues = ["q", "r"].map(|name| controller.client.declare(name));
    let to_q = controller.client.publisher(controller.session, "/queues/q");
    let to_r = controller.client.publisher(controller.session, "/queues/r");
    let id = controller.declare();
    controller.publish(to_q, "a", &id);
    controller.publish(to_r, "b", &id);
    let rolled_back = rejected("transaction:rollback");
    assert_eq!(controller.discharge(&id, false), rolled_back);
    assert_eq!(queues.map(|queue| controller.ready(queue)), [0, 0]);

    controller.transfer(to_q, message(None, "c"), true, None);
    let consumer = controller.client.consumer(controller.session, "/queues/q");
    controller.client.credit(consumer, 1, false);
    let c = controller.client.expect_message("c");
    let id = controller.declare();
    controller.retire(consumer, c, &id, Outcome::Accepted);
    controller.publish(to_r, "d", &id);
    assert_eq!(controller.discharge(&id, false), rolled_back);
    assert_eq!(controller.settlements(), [SettlementOutcome::Requeue]);
    assert_eq!(controller.ready(queues[1]), 0);
}

#[test]
fn commit_fails_if_the_queue_rejects_a_message() {
    let mut controller = Controller::new();
    controller.client.declare("q");
    let publisher = controller.client.publisher(controller.session, "/queues/q");
    controller.transfer(publisher, message(None, "a"), true, None);
    let consumer = controller.client.consumer(controller.session, "/queues/q");
    controller.client.credit(consumer, 1, false);
    let a = controller.client.expect_message("a");
    let id = controller.declare();
    controller.retire(consumer, a, &id, Outcome::Accepted);
    controller.publish(publisher, "b", &id);
    controller.client.broker.reject = Some(RejectReason::MaxLength);
    let rolled_back = rejected("transaction:rollback");
    assert_eq!(controller.discharge(&id, false), rolled_back);
    assert_eq!(controller.settlements(), [SettlementOutcome::Requeue]);
}

#[test]
fn detach_of_the_coordinator_rolls_its_transactions_back() {
    let mut controller = Controller::new();
    let queue = controller.client.declare("q");
    let publisher = controller.client.publisher(controller.session, "/queues/q");
    let id = controller.declare();
    controller.publish(publisher, "a", &id);
    let coordinator = controller.coordinator;
    controller.client.detach(coordinator);
    assert_eq!(controller.client.session.unfinished(), 0);
    assert_eq!(controller.ready(queue), 0);
    // Further work of the transaction fails.
    controller.publish(publisher, "b", &id);
    let unknown = Seen::Detached(Some("amqp:transaction:unknown-id".into()));
    controller.client.expect(unknown);
}

#[test]
fn detach_of_a_consumer_fails_the_transactions_with_its_deliveries() {
    let mut controller = Controller::new();
    let queue = controller.client.declare("q");
    let publisher = controller.client.publisher(controller.session, "/queues/q");
    controller.transfer(publisher, message(None, "a"), true, None);
    let consumer = controller.client.consumer(controller.session, "/queues/q");
    controller.client.credit(consumer, 1, false);
    let a = controller.client.expect_message("a");
    let id = controller.declare();
    controller.retire(consumer, a, &id, Outcome::Accepted);
    controller.client.detach(consumer);
    assert_eq!(controller.ready(queue), 1);
    let rolled_back = rejected("transaction:rollback");
    assert_eq!(controller.discharge(&id, false), rolled_back);
    assert_eq!(controller.ready(queue), 1);
}

#[test]
fn transactions_of_a_session_are_limited_in_number_and_size() {
    let mut controller = Controller::with(Limits {
        transactions: 2,
        transaction_bytes: 4000,
        ..Limits::default()
    });
    let queue = controller.client.declare("q");
    let publisher = controller.client.publisher(controller.session, "/queues/q");
    let (first, second) = (controller.declare(), controller.declare());
    let declare = Declare { global_id: None };
    let exceeded = rejected("resource-limit-exceeded");
    assert_eq!(controller.ask(&declare), exceeded);
    let body = "x".repeat(3000);
    controller.publish(publisher, &body, &first);
    let too_large = controller.publish(publisher, &body, &second);
    assert_eq!(too_large, presumed(&second, "rejected"));
    let rolled_back = rejected("transaction:rollback");
    assert_eq!(controller.discharge(&second, false), rolled_back);
    assert_eq!(controller.discharge(&first, false), [Told::Accepted]);
    assert_eq!(controller.ready(queue), 1);
    // There is room again.
    let third = controller.declare();
    assert_eq!(
        controller.publish(publisher, &body, &third),
        presumed(&third, "accepted")
    );
}

#[test]
fn transactions_belong_to_their_session() {
    let mut controller = Controller::new();
    controller.client.declare("q");
    let id = controller.declare();
    controller.session = controller.client.begin();
    let publisher = controller.client.publisher(controller.session, "/queues/q");
    controller.publish(publisher, "a", &id);
    let unknown = Seen::Detached(Some("amqp:transaction:unknown-id".into()));
    controller.client.expect(unknown);
}

#[test]
fn malformed_requests_are_rejected_and_settled_ones_detach_the_coordinator() {
    let mut controller = Controller::new();
    for (payload, condition) in [
        (message(None, "text"), "invalid-field"),
        (value(&"text"), "invalid-field"),
        (value(&DeliveryState::RELEASED), "invalid-field"),
        (
            value(&Declare {
                global_id: Some(Value::Uint(1)),
            }),
            "not-implemented",
        ),
        (
            value(&Discharge {
                txn_id: b"no such transaction",
                fail: false,
            }),
            "transaction:unknown-id",
        ),
        (
            value(&Discharge {
                txn_id: &[0; 40],
                fail: true,
            }),
            "transaction:unknown-id",
        ),
    ] {
        let told = controller.transfer(controller.coordinator, payload, false, None);
        assert_eq!(told, rejected(condition));
    }
    let declare = value(&Declare { global_id: None });
    controller.transfer(controller.coordinator, declare, true, None);
    let detached = Seen::Detached(Some("amqp:not-allowed".into()));
    controller.client.expect(detached);
}

#[test]
fn errors_detach_a_coordinator_whose_source_excludes_the_outcome_rejected() {
    let accepted = [Symbol::from_static("amqp:accepted:list")];
    let request = value(&Discharge {
        txn_id: b"no such transaction",
        fail: false,
    });
    let mut controller = Controller::new();
    let (client, session) = (&mut controller.client, controller.session);
    let coordinator = attach_coordinator_with(client, session, "other", Multiple::new(&accepted));
    assert_eq!(controller.transfer(coordinator, request, false, None), []);
    let unknown = Seen::Detached(Some("amqp:transaction:unknown-id".into()));
    controller.client.expect(unknown);
}
