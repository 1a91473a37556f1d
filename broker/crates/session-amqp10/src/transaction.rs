//! Transactions (part 4 of the specification): messages and outcomes that take effect when the client commits them.
//!
//! A session buffers the work of its open transactions. A commit publishes the messages. When the queue has confirmed all
//! of them, it applies the outcomes, and the client hears of the commit after the queue has applied those too. So a crash
//! in between repeats messages, and none is lost.
//!
//! All work of a transaction has to be in one queue: there is no atomicity across queues, so a commit that spans several
//! is rolled back.

use crate::connection::{Amqp10Session, Link};
use crate::ended;
use crate::publish::{Publish, PublishError, PublishProperties, hand_over, publish_tag};
use crate::refusal::Refusal;
use crate::settle::delivery_outcome;
use crate::state::{DeliveryOutcome, StepContext};
use crate::unconfirmed::{PublishOutcome, QueueAnswer, Unconfirmed};
use crate::wait::{HeldAttach, WaitReason};
use amqp10::{AttachReply, IncomingDelivery, LinkId, SessionId, SettledDelivery, ShortBytes};
use codec_amqp10::{
    AnyTarget, Attach, Condition, Coordinator as CoordinatorTarget, Declare, Declared,
    DeliveryState, Descriptor, Discharge, Modified, Multiple, Outcome, Reader, SectionKind,
    SectionReader, Symbol, TransactionalState, Value,
};
use message::Message;
use metadata::{QueueId, QueueType};
use queue::{ConsumerId, Modification, QueueReply, RejectReason, RequestBody, SettlementOutcome};

/// Capabilities of the coordinator: transactions end with their session, which may have several.
const CAPABILITIES: [Symbol<'static>; 2] = [
    Symbol::from_static("amqp:local-transactions"),
    Symbol::from_static("amqp:multi-txns-per-ssn"),
];

/// The descriptor of the outcome rejected (part 3, section 3.4.3).
const REJECTED: &str = "amqp:rejected:list";

/// Codes and names of the types of requests (sections 4.5.2 and 4.5.3).
const DECLARE: (u64, &str) = (0x31, "amqp:declare:list");
const DISCHARGE: (u64, &str) = (0x32, "amqp:discharge:list");

/// The number of a transaction within its connection, which is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TransactionId(u64);

impl TransactionId {
    /// The transaction with these bytes as its id. None: no transaction has them.
    fn from_bytes(bytes: &[u8]) -> Option<TransactionId> {
        Some(TransactionId(u64::from_be_bytes(bytes.try_into().ok()?)))
    }

    fn to_bytes(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }
}

/// A message that is published at the commit.
#[derive(Debug)]
struct PendingMessage {
    message: Message,
    routes: Vec<QueueId>,
}

/// The outcome of a delivery that is applied at the commit.
#[derive(Debug)]
struct PendingSettlement {
    delivery: SettledDelivery,
    queue: QueueId,
    kind: QueueType,
    consumer: ConsumerId,
    outcome: DeliveryOutcome,
    /// The client has settled the delivery. Otherwise the server does so at the commit.
    is_settled: bool,
}

#[derive(Debug)]
struct Transaction {
    id: TransactionId,
    /// The link that declared it.
    coordinator: LinkId,
    messages: Vec<PendingMessage>,
    settlements: Vec<PendingSettlement>,
    /// Memory of the two lists.
    bytes: usize,
    /// The reason why it can only be rolled back.
    failure: Option<Refusal>,
}

impl Transaction {
    /// Lets the commit fail. The messages are not kept.
    fn fail(&mut self, refusal: Refusal) {
        self.messages = Vec::new();
        self.bytes = self.settlements.len() * size_of::<PendingSettlement>();
        self.failure.get_or_insert(refusal);
    }

    /// The only queue of the transaction, None if it has no work in a queue. The error says that there are several.
    fn queue(&self) -> Result<Option<QueueId>, Refusal> {
        let published = self.messages.iter().flat_map(|message| &message.routes);
        let settled = self.settlements.iter().map(|settlement| &settlement.queue);
        let mut all = published.chain(settled);
        let Some(first) = all.next() else {
            return Ok(None);
        };
        match all.all(|queue| queue == first) {
            true => Ok(Some(*first)),
            false => Err(rollback(
                "the transaction spans several queues, and only the work in one queue can be committed; use one \
                 transaction for each queue",
            )),
        }
    }
}

fn rollback(text: impl Into<String>) -> Refusal {
    Refusal::new(Condition::TransactionRollback, text)
}

fn unknown(id: &[u8]) -> Refusal {
    let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let text = format!("there is no open transaction with the id {id} in this session");
    Refusal::new(Condition::TransactionUnknownId, text)
}

/// The open transactions of a connection.
#[derive(Debug, Default)]
pub(crate) struct Transactions {
    last: u64,
    open: Vec<Transaction>,
}

impl Transactions {
    /// The open transaction with this id, in the session with this channel.
    fn find(&mut self, id: &[u8], channel: u16) -> Result<&mut Transaction, Refusal> {
        let number = TransactionId::from_bytes(id);
        let mut open = self.open.iter_mut();
        let found =
            open.find(|open| Some(open.id) == number && open.coordinator.channel() == channel);
        found.ok_or_else(|| unknown(id))
    }

    /// Memory of all transactions in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.open.iter().map(|open| open.bytes).sum()
    }

    /// Messages and settlements of the open transactions of a session.
    pub(crate) fn counts(&self, channel: u16) -> (u64, u64) {
        let open = self.open.iter();
        let of_session = open.filter(|open| open.coordinator.channel() == channel);
        of_session.fold((0, 0), |(messages, settlements), open| {
            (
                messages + open.messages.len() as u64,
                settlements + open.settlements.len() as u64,
            )
        })
    }

    fn bytes_of(&self, channel: u16) -> usize {
        let open = self.open.iter();
        let of_session = open.filter(|open| open.coordinator.channel() == channel);
        of_session.map(|open| open.bytes).sum()
    }
}

/// A commit that some queue has not answered.
#[derive(Debug)]
struct Commit {
    /// The delivery with the request.
    discharge: u32,
    /// Messages that are not confirmed.
    missing: usize,
    /// Applied when all messages are confirmed.
    settlements: Vec<PendingSettlement>,
    failure: Option<Refusal>,
}

/// A link on which a client controls transactions. It is the publisher of the messages of commits.
#[derive(Debug)]
pub(crate) struct Coordinator {
    pub link: LinkId,
    /// The source of the link has the outcome rejected. Otherwise an error detaches the link (sections 4.2 and 4.3).
    can_reject: bool,
    pub unconfirmed: Unconfirmed,
    commits: Vec<Commit>,
}

/// A request to the coordinator.
enum Request {
    Declare,
    Discharge { id: ShortBytes, fail: bool },
}

fn read_request(message: &[u8]) -> Result<Request, Refusal> {
    let invalid = |text: String| Refusal::new(Condition::InvalidField, text);
    let not_a_request = || invalid("the coordinator takes a declare or a discharge only".into());
    let malformed =
        |error: codec_amqp10::DecodeError| Refusal::new(error.condition(), error.to_string());
    let mut body = None;
    for section in SectionReader::new(message) {
        let section = section.map_err(malformed)?;
        if section.kind == SectionKind::Value {
            body = message.get(section.value_range());
        }
    }
    let body = body.ok_or_else(not_a_request)?;
    let Value::Described(described) = Reader::new(body).read().map_err(malformed)? else {
        return Err(not_a_request());
    };
    let is = |(code, name): (u64, &str)| match described.descriptor {
        Descriptor::Code(other) => other == code,
        Descriptor::Symbol(other) => other.as_str() == name,
    };
    if is(DECLARE) {
        let declare: Declare<'_> = Reader::new(body).read().map_err(malformed)?;
        return match declare.global_id {
            None => Ok(Request::Declare),
            Some(_) => Err(Refusal::new(
                Condition::NotImplemented,
                "declare: field 'global-id': distributed transactions are not supported",
            )),
        };
    }
    if !is(DISCHARGE) {
        return Err(not_a_request());
    }
    let discharge: Discharge<'_> = Reader::new(body).read().map_err(malformed)?;
    let id = ShortBytes::new(discharge.txn_id).ok_or_else(|| unknown(&[]))?;
    let fail = discharge.fail;
    Ok(Request::Discharge { id, fail })
}

/// Returns true if the source of a link to the coordinator has the outcome rejected. Clients that list no outcomes expect it.
fn can_reject(attach: &Attach<'_>) -> bool {
    let outcomes = attach.source.as_ref().map(|source| source.outcomes);
    outcomes.is_none_or(|outcomes| outcomes.is_empty() || outcomes.contains(REJECTED))
}

impl Amqp10Session {
    /// Attaches a link to the coordinator.
    pub(crate) fn attach_coordinator(
        &mut self,
        link: LinkId,
        attach: &Attach<'_>,
        held: HeldAttach,
        cx: &mut StepContext<'_>,
    ) {
        let reply = AttachReply {
            source: attach.source.clone(),
            target: Some(AnyTarget::Coordinator(CoordinatorTarget {
                capabilities: Multiple::new(&CAPABILITIES),
            })),
            ..AttachReply::default()
        };
        let accepted = self.engine.accept_attach(held.pending, &reply, cx.tail());
        if accepted.is_ok() {
            let coordinator = Coordinator {
                link,
                can_reject: can_reject(attach),
                unconfirmed: Unconfirmed::default(),
                commits: Vec::new(),
            };
            self.links
                .insert(link.number(), Link::Coordinator(Box::new(coordinator)));
        }
    }

    /// Handles a message to the coordinator.
    pub(crate) fn receive_coordination(
        &mut self,
        link: LinkId,
        delivery: &IncomingDelivery<'_>,
        cx: &mut StepContext<'_>,
    ) {
        if delivery.settled {
            let text =
                "a declare or discharge must be sent unsettled, because its outcome is the answer";
            let refusal = Refusal::new(Condition::NotAllowed, text);
            return self.detach(link, &refusal, cx);
        }
        let answered = match read_request(delivery.payload.as_ref()) {
            Ok(Request::Declare) => self.declare_transaction(link, delivery.id, cx),
            Ok(Request::Discharge { id, fail: true }) => self
                .roll_back(link, id.as_slice())
                .map(|()| self.answer_coordination(link, delivery.id, Ok(()), cx)),
            Ok(Request::Discharge { id, fail: false }) => {
                self.commit(link, id.as_slice(), delivery.id, cx)
            }
            Err(refusal) => Err(refusal),
        };
        if let Err(refusal) = answered {
            self.answer_coordination(link, delivery.id, Err(&refusal), cx);
        }
    }

    /// Accepts a request to the coordinator, or rejects it with the error. Where the client excludes the outcome rejected, the
    /// error detaches the link.
    fn answer_coordination(
        &mut self,
        link: LinkId,
        delivery: u32,
        result: Result<(), &Refusal>,
        cx: &mut StepContext<'_>,
    ) {
        let outcome = match result {
            Ok(()) => Outcome::Accepted,
            Err(refusal) if !self.can_reject(link) => return self.detach(link, refusal, cx),
            Err(refusal) => {
                tracing::info!(peer = %self.peer, user = %self.state.user, error = %refusal.text, "transaction refused");
                Outcome::Rejected(Some(refusal.to_error()))
            }
        };
        let outcome = DeliveryState::Outcome(outcome);
        ended(
            self.engine
                .settle_received(link, delivery, &outcome, cx.tail()),
        );
    }

    fn can_reject(&self, link: LinkId) -> bool {
        match self.links.get(&link.number()) {
            Some(Link::Coordinator(coordinator)) => coordinator.can_reject,
            _ => true,
        }
    }

    fn declare_transaction(
        &mut self,
        link: LinkId,
        delivery: u32,
        cx: &mut StepContext<'_>,
    ) -> Result<(), Refusal> {
        let limit = self.state.settings.limits.transactions;
        let is_of_session = |open: &&Transaction| open.coordinator.channel() == link.channel();
        if self.transactions.open.iter().filter(is_of_session).count() >= limit {
            let text = format!(
                "the session has {limit} open transactions, which is the limit; discharge one of them"
            );
            return Err(Refusal::new(Condition::ResourceLimitExceeded, text));
        }
        self.transactions.last += 1;
        let id = TransactionId(self.transactions.last);
        self.transactions.open.push(Transaction {
            id,
            coordinator: link,
            messages: Vec::new(),
            settlements: Vec::new(),
            bytes: 0,
            failure: None,
        });
        let bytes = id.to_bytes();
        let declared = DeliveryState::Declared(Declared { txn_id: &bytes });
        ended(
            self.engine
                .settle_received(link, delivery, &declared, cx.tail()),
        );
        Ok(())
    }

    /// Publishes a message within a transaction.
    pub(crate) fn publish_in_transaction(
        &mut self,
        link: LinkId,
        id: ShortBytes,
        publish: Publish<'_>,
        cx: &mut StepContext<'_>,
    ) -> Result<(), PublishError> {
        let channel = link.channel();
        let id = id.as_slice();
        self.transactions
            .find(id, channel)
            .map_err(PublishError::Detach)?;
        let Some(Link::Publisher(publisher)) = self.links.get_mut(&link.number()) else {
            return Ok(());
        };
        let (message, routes) = publisher.route(publish.payload, true, &mut self.state, cx)?;
        let is_unroutable = routes.is_empty() && message.exchange().is_empty();
        let size =
            message.as_bytes().len() + size_of_val(&routes[..]) + size_of::<PendingMessage>();
        let limit = self.state.settings.limits.transaction_bytes;
        let is_too_large = self.transactions.bytes_of(channel) + size > limit;
        let transaction = self
            .transactions
            .find(id, channel)
            .map_err(PublishError::Detach)?;
        // The presumptive outcome (section 4.4.1).
        let too_large;
        let outcome = if is_unroutable {
            Outcome::Released
        } else if is_too_large {
            let text = format!(
                "the transactions of a session may have at most {limit} bytes; commit more often"
            );
            too_large = Refusal::new(Condition::ResourceLimitExceeded, text);
            transaction.fail(too_large.clone());
            Outcome::Rejected(Some(too_large.to_error()))
        } else {
            if transaction.failure.is_none() {
                transaction.bytes += size;
                let routes = routes.clone();
                transaction
                    .messages
                    .push(PendingMessage { message, routes });
            }
            Outcome::Accepted
        };
        self.state.routes = routes;
        let told = DeliveryState::Transactional(TransactionalState {
            txn_id: id,
            outcome: Some(outcome),
        });
        ended(
            self.engine
                .settle_received(link, publish.delivery, &told, cx.tail()),
        );
        Ok(())
    }

    /// Records outcomes of deliveries that a transaction applies.
    pub(crate) fn settle_in_transaction(
        &mut self,
        session: SessionId,
        state: &TransactionalState<'_>,
        is_settled: bool,
        deliveries: &[SettledDelivery],
    ) -> Result<(), Refusal> {
        let told = state.outcome.clone().map(DeliveryState::Outcome);
        let outcome = delivery_outcome(told.as_ref())?;
        let channel = session.channel();
        let limit = self.state.settings.limits.transaction_bytes;
        let used = self.transactions.bytes_of(channel);
        let transaction = self.transactions.find(state.txn_id, channel)?;
        let annotations = match &outcome {
            DeliveryOutcome::Modified(modification) => modification.annotations.bytes(),
            DeliveryOutcome::Settled(_) => 0,
        };
        for delivery in deliveries {
            let Some(Link::Consumer(consumer)) = self.links.get(&delivery.link.number()) else {
                continue;
            };
            transaction.bytes += size_of::<PendingSettlement>() + annotations;
            transaction.settlements.push(PendingSettlement {
                delivery: *delivery,
                queue: consumer.queue,
                kind: consumer.kind,
                consumer: consumer.id,
                outcome: outcome.clone(),
                is_settled,
            });
        }
        let added = deliveries.len() * (size_of::<PendingSettlement>() + annotations);
        if used + added > limit {
            let text = format!(
                "the transactions of a session may have at most {limit} bytes; commit more often"
            );
            transaction.fail(Refusal::new(Condition::ResourceLimitExceeded, text));
        }
        Ok(())
    }

    /// Takes an open transaction of the coordinator.
    fn take_transaction(&mut self, link: LinkId, id: &[u8]) -> Result<Transaction, Refusal> {
        let id = self.transactions.find(id, link.channel())?.id;
        let open = &mut self.transactions.open;
        let found = open.iter().position(|open| open.id == id);
        match found {
            Some(at) => Ok(open.swap_remove(at)),
            None => Err(unknown(&id.to_bytes())),
        }
    }

    fn roll_back(&mut self, link: LinkId, id: &[u8]) -> Result<(), Refusal> {
        let transaction = self.take_transaction(link, id)?;
        self.give_back(&transaction.settlements);
        Ok(())
    }

    /// Requeues the deliveries that the client has settled. It can choose another outcome for the others
    /// (section 4.4.2).
    fn give_back(&mut self, settlements: &[PendingSettlement]) {
        for settlement in settlements.iter().filter(|s| s.is_settled) {
            let outcome = DeliveryOutcome::Modified(Box::new(Modification::failed()));
            let token = settlement.delivery.token;
            self.state
                .settle(settlement.queue, settlement.consumer, outcome, token);
        }
    }

    fn commit(
        &mut self,
        link: LinkId,
        id: &[u8],
        discharge: u32,
        cx: &mut StepContext<'_>,
    ) -> Result<(), Refusal> {
        let mut transaction = self.take_transaction(link, id)?;
        let failure = match transaction.failure.take() {
            Some(failure) => Some(failure),
            None => transaction.queue().err(),
        };
        if let Some(failure) = failure {
            self.give_back(&transaction.settlements);
            let text = format!("the transaction was rolled back: {}", failure.text);
            return Err(rollback(text));
        }
        let Some(Link::Coordinator(coordinator)) = self.links.get_mut(&link.number()) else {
            debug_assert!(false, "a coordinator receives its requests");
            return Ok(());
        };
        let mut missing = 0;
        let mut refused = Vec::new();
        for PendingMessage {
            message,
            mut routes,
        } in transaction.messages
        {
            // The message was routed when it was sent. Skip a queue that was deleted since.
            routes.retain(|queue| cx.broker.tree().queue_by_id(*queue).is_some());
            let size = u32::try_from(message.as_bytes().len()).unwrap_or(u32::MAX);
            let number = coordinator.unconfirmed.next();
            let tag = publish_tag(link.number(), number);
            let origin = PublishProperties {
                channel: link.channel(),
                is_settled: false,
                is_counted: false,
            };
            let handed = hand_over(message, &mut routes, tag, origin, &mut self.state, cx);
            if handed.answers > 0 {
                missing += 1;
                coordinator
                    .unconfirmed
                    .push(discharge, false, size, handed.answers);
                self.state.add_in_flight(size);
            }
            if handed.is_refused {
                refused.push(number);
            }
        }
        coordinator.commits.push(Commit {
            discharge,
            missing,
            settlements: transaction.settlements,
            failure: None,
        });
        for number in refused {
            let answer = QueueAnswer::Rejected(QueueId::NONE, RejectReason::Unavailable);
            self.record_commit_answer(link.number(), number, answer, cx);
        }
        self.finish_commits(link.number(), cx);
        Ok(())
    }

    /// Records the answer of a queue to a message of a commit.
    pub(crate) fn record_commit_answer(
        &mut self,
        link: u32,
        number: u32,
        answer: QueueAnswer,
        cx: &mut StepContext<'_>,
    ) {
        let Some(Link::Coordinator(coordinator)) = self.links.get_mut(&link) else {
            return;
        };
        let Some(settled) = coordinator.unconfirmed.record_answer(number, answer) else {
            return;
        };
        self.state.remove_in_flight(settled.size as usize);
        let mut commits = coordinator.commits.iter_mut();
        let Some(commit) = commits.find(|commit| commit.discharge == settled.delivery) else {
            debug_assert!(false, "a commit ends after its messages");
            return;
        };
        commit.missing -= 1;
        let text = match settled.outcome {
            PublishOutcome::Accepted => {
                self.state
                    .count(|counters| counters.publishes.confirmed += 1);
                None
            }
            PublishOutcome::Released => Some("the queue was deleted".to_owned()),
            PublishOutcome::Rejected(queue, why) => {
                let record = cx.broker.tree().queue_by_id(queue);
                let name = record.map_or("", |record| &*record.name);
                Some(match why {
                    RejectReason::MaxLength => {
                        format!("queue '{name}' rejected a message: its maximum length is reached")
                    }
                    RejectReason::Unavailable => {
                        format!("queue '{name}' rejected a message: it is unavailable")
                    }
                })
            }
        };
        if let Some(text) = text {
            commit.failure.get_or_insert_with(|| {
                rollback(format!(
                    "the transaction was rolled back: {text}; other messages of it may have been published"
                ))
            });
        }
        if commit.missing == 0 {
            self.finish_commits(link, cx);
        }
    }

    /// Applies the outcomes of commits whose messages are confirmed.
    fn finish_commits(&mut self, number: u32, cx: &mut StepContext<'_>) {
        loop {
            let Some(Link::Coordinator(coordinator)) = self.links.get_mut(&number) else {
                return;
            };
            let link = coordinator.link;
            let commits = &mut coordinator.commits;
            let Some(at) = commits.iter().position(|commit| commit.missing == 0) else {
                return;
            };
            let commit = commits.swap_remove(at);
            if let Some(failure) = commit.failure {
                self.give_back(&commit.settlements);
                self.answer_coordination(link, commit.discharge, Err(&failure), cx);
                continue;
            }
            let Some(queue) = commit
                .settlements
                .first()
                .map(|settlement| settlement.queue)
            else {
                self.answer_coordination(link, commit.discharge, Ok(()), cx);
                continue;
            };
            for settlement in commit.settlements {
                self.apply(settlement, cx);
            }
            // The queue answers after it has applied the outcomes.
            let reason = WaitReason::Commit(link, commit.discharge);
            self.state
                .request(queue, RequestBody::Stat, number, reason, cx);
        }
    }

    /// Applies an outcome, and settles the delivery if the client has not done so.
    fn apply(&mut self, settlement: PendingSettlement, cx: &mut StepContext<'_>) {
        let PendingSettlement {
            delivery,
            queue,
            kind,
            consumer,
            outcome,
            is_settled,
        } = settlement;
        let told = match &outcome {
            DeliveryOutcome::Settled(SettlementOutcome::Accepted) => {
                self.state.count(|counters| counters.of(kind).ack += 1);
                Outcome::Accepted
            }
            DeliveryOutcome::Settled(SettlementOutcome::Rejected) => Outcome::Rejected(None),
            DeliveryOutcome::Settled(_) => Outcome::Released,
            DeliveryOutcome::Modified(modification) => Outcome::Modified(Modified {
                delivery_failed: modification.delivery_failed,
                undeliverable_here: modification.undeliverable_here,
                message_annotations: None,
            }),
        };
        self.state.settle(queue, consumer, outcome, delivery.token);
        if !is_settled && let Some(session) = self.session_of(delivery.link) {
            let told = DeliveryState::Outcome(told);
            ended(
                self.engine
                    .settle_sent(session, delivery.id, delivery.id, &told, cx.tail()),
            );
        }
    }

    /// Handles the answer of the queue that has applied the outcomes of a commit.
    pub(crate) fn handle_committed(
        &mut self,
        link: LinkId,
        discharge: u32,
        answer: QueueReply,
        cx: &mut StepContext<'_>,
    ) {
        let refusal = match answer {
            QueueReply::Refused { text, .. } => {
                Some(rollback(format!("the transaction was rolled back: {text}")))
            }
            _ => None,
        };
        let result = refusal.as_ref().map_or(Ok(()), Err);
        self.answer_coordination(link, discharge, result, cx);
    }

    /// Lets transactions fail that have settled deliveries of a link that has ended: these return to their queue.
    pub(crate) fn fail_transactions_of(&mut self, consumer: LinkId) {
        let is_of_link = |settlement: &PendingSettlement| settlement.delivery.link == consumer;
        let refusal = || rollback("a link with deliveries of the transaction was detached");
        for transaction in &mut self.transactions.open {
            if transaction.settlements.iter().any(is_of_link) {
                transaction.settlements.retain(|s| !is_of_link(s));
                transaction.fail(refusal());
            }
        }
        for link in self.links.values_mut() {
            let Link::Coordinator(coordinator) = link else {
                continue;
            };
            for commit in &mut coordinator.commits {
                if commit.settlements.iter().any(is_of_link) {
                    commit.settlements.retain(|s| !is_of_link(s));
                    commit.failure.get_or_insert_with(refusal);
                }
            }
        }
    }

    /// Rolls the transactions of a coordinator back whose link has ended (section 4.2).
    pub(crate) fn remove_coordinator(&mut self, coordinator: &Coordinator) {
        self.state.remove_in_flight(coordinator.unconfirmed.bytes());
        for commit in &coordinator.commits {
            self.give_back(&commit.settlements);
        }
        let open = std::mem::take(&mut self.transactions.open);
        let is_of_link = |open: &Transaction| open.coordinator == coordinator.link;
        let (of_link, others): (Vec<_>, Vec<_>) = open.into_iter().partition(is_of_link);
        self.transactions.open = others;
        for transaction in &of_link {
            self.give_back(&transaction.settlements);
        }
    }
}
