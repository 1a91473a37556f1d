//! Links on which a client browses a queue: it gets copies of the ready messages, and the queue stays as it is.
//!
//! The link requests pages of messages from the owner of the queue, one at a time and only while the client can be sent more.
//! It goes through the queue in passes. The first pass shows the messages that are ready, by descending priority and then by
//! age. Each later pass shows those that were published since the pass before it began. So no message is shown twice, and the
//! link stores a position instead of the messages that it has shown.

use crate::consume::{is_temporary, send_delivery, trace_delivery};
use crate::ended;
use crate::filters::{self, SourceFilters};
use crate::refusal::Refusal;
use crate::state::{ConnectionState, StepContext};
use ::filter::Filter;
use amqp10::{Connection, CreditState, LinkId, SendError};
use bytes::Bytes;
use codec_amqp10::Condition;
use env::{Incarnation, NodeId, Time};
use message::Message;
use metadata::{Name, QueueId, QueueRecord, QueueType};
use queue::{
    BROWSE_PAGE_MESSAGES, BrowsePage, BrowsePosition, BrowseRequest, BrowsedMessage, BrowsedState,
    Delivery,
};
use session::{BrowseAnswer, BrowsedPage};
use std::collections::VecDeque;
use std::time::Duration;

/// The time until a link that has shown all messages looks for new ones. It doubles while there are none.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Most links of a connection that await or hold a page at a time. The others wait.
pub(crate) const MAX_PAGES: usize = 16;
/// Longest time until a link that has shown all messages looks for new ones.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The messages that a link has still to show.
#[derive(Clone, Copy, Debug, Default)]
struct Pass {
    /// The lowest number of this pass.
    least: u64,
    /// The highest number of this pass. `None`: its first page has not arrived, or an older version does not tell it.
    most: Option<u64>,
    /// Where the pass continues. `None`: at the head of the queue.
    from: Option<BrowsePosition>,
    /// The highest number that was read.
    highest: u64,
}

/// The effect of a page on a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PassProgress {
    /// The page is of a replica that lacks messages of the pass. It is ignored.
    Outdated,
    /// The pass continues.
    Partial,
    /// The pass is complete. `has_more`: messages were published since it began.
    Complete { has_more: bool },
}

impl Pass {
    /// Moves on behind a page.
    fn advance(&mut self, page: &BrowsePage) -> PassProgress {
        let known = self.most.unwrap_or(self.least.saturating_sub(1));
        if page.last_number.is_some_and(|last| last < known) {
            return PassProgress::Outdated;
        }
        if self.from.is_none() && self.most.is_none() {
            self.most = page.last_number;
        }
        let numbers = page.messages.iter().map(|browsed| browsed.at.number);
        self.highest = numbers.fold(self.highest, u64::max);
        if page.next.is_some() {
            debug_assert_ne!(page.next, self.from, "a page moves on");
            self.from = page.next;
            return PassProgress::Partial;
        }
        let most = self.most.unwrap_or(self.highest).max(known);
        *self = Pass {
            least: most.saturating_add(1),
            most: None,
            from: None,
            highest: self.highest,
        };
        let has_more = page.last_number.is_some_and(|last| last > most);
        PassProgress::Complete { has_more }
    }
}

/// The subject of a request that waits for its answer.
#[derive(Clone, Copy, Debug)]
enum Requested {
    /// The next page. `is_current`: requested after the last flow of the client.
    Page { is_current: bool },
    /// Bytes of the body of the first held message.
    Body,
}

/// The answer that the client expects to its flow.
#[derive(Clone, Copy, Debug, Default)]
struct ExpectedFlow {
    drain: bool,
    echo: bool,
}

/// Numbers of the links of a connection that browse, in the order of their turns. Most connections have none.
#[derive(Debug, Default)]
pub(crate) struct BrowserTurns(Option<Box<Turns>>);

#[derive(Debug, Default)]
struct Turns {
    numbers: Vec<u32>,
}

impl BrowserTurns {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        let turns = self.0.iter();
        turns.flat_map(|turns| turns.numbers.iter().copied())
    }

    pub(crate) fn push(&mut self, number: u32) {
        self.0.get_or_insert_default().numbers.push(number);
    }

    pub(crate) fn remove(&mut self, number: u32) {
        let Some(turns) = &mut self.0 else {
            return;
        };
        turns.numbers.retain(|browser| *browser != number);
        if turns.numbers.is_empty() {
            self.0 = None;
        }
    }

    /// The links in the order of this turn. Another one is the first each time, so that a link that fills the outbox does not
    /// starve the others.
    pub(crate) fn take_turn(&mut self) -> Vec<u32> {
        let Some(turns) = &mut self.0 else {
            return Vec::new();
        };
        turns.numbers.rotate_left(1);
        turns.numbers.clone()
    }
}

#[derive(Debug)]
pub(crate) struct Browser {
    pub link: LinkId,
    pub queue: QueueId,
    pub queue_name: Name,
    kind: QueueType,
    /// Copies are sent settled.
    pub is_settled: bool,
    /// Messages that do not satisfy all of them are not shown.
    conditions: Vec<Filter>,
    /// The same for listings, encoded.
    pub listed_filters: Option<Box<[u8]>>,
    /// Copies that the client may still be sent.
    credit: u32,
    expected: ExpectedFlow,
    /// The number of copies that were sent.
    sent: u64,
    pass: Pass,
    /// The pass of the held messages.
    held_pass: Pass,
    /// Messages of the last page that wait for the client. Only the last one can lack a part of its body.
    held: VecDeque<BrowsedMessage>,
    /// The first held message as far as it has arrived, if its body comes in parts.
    partial: Vec<u8>,
    /// Where to look for the next part. `None`: at the position of the message.
    part_from: Option<BrowsePosition>,
    requested: Option<(u64, Requested)>,
    /// All messages that were ready at the client's last flow were shown or are held.
    is_exhausted: bool,
    /// No request before this time.
    paused_until: Option<Time>,
    pause: Duration,
    /// Since when requests fail.
    failing_since: Option<Time>,
    /// The process that has sent the last page.
    owner: Option<(NodeId, Incarnation)>,
    /// Other links of the connection have all pages.
    waits_for_page: bool,
}

/// The reason why a link ends.
#[derive(Debug)]
pub(crate) enum BrowseEnd {
    /// The queue was deleted.
    Deleted,
    Refused(Refusal),
    /// The message cannot be sent.
    Send(SendError),
}

impl Browser {
    pub(crate) fn new(
        link: LinkId,
        record: &QueueRecord,
        is_settled: bool,
        filters: SourceFilters,
    ) -> Browser {
        Browser {
            link,
            queue: record.id,
            queue_name: record.name.clone(),
            kind: record.kind,
            is_settled,
            conditions: filters.conditions,
            listed_filters: filters::keep_listed(filters.effective),
            credit: 0,
            expected: ExpectedFlow::default(),
            sent: 0,
            pass: Pass::default(),
            held_pass: Pass::default(),
            held: VecDeque::new(),
            partial: Vec::new(),
            part_from: None,
            requested: None,
            is_exhausted: false,
            paused_until: None,
            pause: FIRST_PAUSE,
            failing_since: None,
            owner: None,
            waits_for_page: false,
        }
    }

    /// Returns true if the link awaits or holds a page.
    pub(crate) fn has_page(&self) -> bool {
        self.requested.is_some() || !self.held.is_empty()
    }

    /// Returns true if the link could request a page if other links had fewer.
    pub(crate) fn waits_for_page(&self) -> bool {
        self.waits_for_page
    }

    /// Takes over the credit of the client.
    pub(crate) fn set_credit(&mut self, credit: CreditState) {
        self.credit = credit.credit;
        self.expected.drain = credit.drain;
        self.expected.echo |= credit.echo;
        self.is_exhausted = false;
        if let Some((_, Requested::Page { is_current })) = &mut self.requested {
            *is_current = false;
        }
        if self.failing_since.is_none() {
            self.paused_until = None;
        }
    }

    /// Messages that wait for the client, as far as they have arrived.
    pub(crate) fn held(&self) -> impl Iterator<Item = &Message> {
        self.held.iter().map(|browsed| &browsed.message)
    }

    /// Bytes of a message of which parts have arrived.
    pub(crate) fn partial_bytes(&self) -> usize {
        self.partial.len()
    }

    /// Returns true if the link waits for the answer with this token.
    pub(crate) fn awaits(&self, token: u64) -> bool {
        matches!(self.requested, Some((requested, _)) if requested == token)
    }

    /// The time of the next request.
    pub(crate) fn wake_at(&self) -> Option<Time> {
        let is_waiting = self.requested.is_none() && self.credit > 0;
        self.paused_until.filter(|_| is_waiting)
    }

    /// Handles an answer to [`session::Broker::browse`]. Call [`run`](Self::run) afterwards.
    pub(crate) fn handle_answer(
        &mut self,
        answer: BrowseAnswer,
        state: &ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> Result<(), BrowseEnd> {
        let Some((_, requested)) = self.requested.take() else {
            debug_assert!(false, "an answer has its request");
            return Ok(());
        };
        let page = match answer.page {
            Ok(page) => page,
            Err(error) => return self.fail(&error, state, cx),
        };
        let BrowsedPage {
            owner,
            incarnation,
            page,
        } = page;
        let before = self.owner.replace((owner, incarnation));
        // A process that has ended may have lost messages, and gives their numbers to new ones.
        if !self.kind.is_replicated() && before.is_some_and(|before| Some(before) != self.owner) {
            let text = format!(
                "the node of queue '{}' in vhost '{}' has restarted, so the position of the browser is lost; attach again",
                self.queue_name, state.vhost
            );
            return Err(refused(text));
        }
        match requested {
            Requested::Page { is_current } => self.add_page(page, is_current, state, cx),
            Requested::Body => self.add_part(page, state, cx),
        }
    }

    fn add_page(
        &mut self,
        page: BrowsePage,
        is_current: bool,
        state: &ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> Result<(), BrowseEnd> {
        let mut held_pass = self.pass;
        let progress = self.pass.advance(&page);
        if progress == PassProgress::Outdated {
            return self.fail("the node that leads it has not applied its log", state, cx);
        }
        self.failing_since = None;
        held_pass.most = held_pass.most.or(page.last_number);
        self.held_pass = held_pass;
        let now_ms = cx.broker.wall().0;
        for browsed in page.messages {
            let is_shown = browsed.state == BrowsedState::Ready
                && filters::matches(&self.conditions, &browsed.message, now_ms);
            if is_shown {
                self.held.push_back(browsed);
            }
        }
        if !self.held.is_empty() {
            self.pause = FIRST_PAUSE;
            cx.broker.note_held();
        }
        let is_complete = progress == PassProgress::Complete { has_more: false };
        self.is_exhausted = is_complete && is_current;
        // A drain needs a page that was requested after it.
        if is_complete && (is_current || !self.expected.drain) {
            self.paused_until = Some(cx.broker.now() + self.pause);
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        }
        Ok(())
    }

    /// Adds bytes to the body of the first held message.
    fn add_part(
        &mut self,
        page: BrowsePage,
        state: &ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> Result<(), BrowseEnd> {
        self.failing_since = None;
        let Some(first) = self.held.front_mut() else {
            debug_assert!(false, "a part belongs to a held message");
            return Ok(());
        };
        let part = page.messages.into_iter().next();
        let part = part.filter(|part| part.at.number == first.at.number);
        let (part, next) = match (part, page.next) {
            (Some(part), _) => (part, None),
            (None, Some(next)) => {
                self.part_from = Some(next);
                return Ok(());
            }
            (None, None) => {
                // It has left the queue.
                self.held.pop_front();
                self.partial = Vec::new();
                return Ok(());
            }
        };
        self.part_from = next;
        if self.partial.is_empty() {
            self.partial = first.message.as_bytes().to_vec();
        }
        let head = first.message.as_bytes().len() - first.message.body_len();
        let have = self.partial.len() - head;
        if part.body_start as usize != have || part.message.body().is_empty() {
            let text = format!(
                "queue '{}' in vhost '{}': the node that has message {} runs an older version, which does not send all of \
                 its {} bytes; finish the upgrade first",
                self.queue_name, state.vhost, first.at.number, first.body_len
            );
            return Err(refused(text));
        }
        self.partial.extend_from_slice(part.message.body());
        if self.partial.len() - head < first.body_len as usize {
            cx.broker.note_held();
            return Ok(());
        }
        match Message::decode(Bytes::from(std::mem::take(&mut self.partial))) {
            Ok(message) => first.message = message,
            Err(error) => {
                let text = format!(
                    "queue '{}' in vhost '{}': message {} cannot be decoded: {error}",
                    self.queue_name, state.vhost, first.at.number
                );
                return Err(refused(text));
            }
        }
        Ok(())
    }

    /// Tries again later, unless that has been done for too long.
    fn fail(
        &mut self,
        error: &str,
        state: &ConnectionState,
        cx: &StepContext<'_>,
    ) -> Result<(), BrowseEnd> {
        let now = cx.broker.now();
        let since = *self.failing_since.get_or_insert(now);
        if now >= since + state.settings.limits.operation {
            let text = format!(
                "queue '{}' in vhost '{}' cannot be browsed: {error}",
                self.queue_name, state.vhost
            );
            return Err(refused(text));
        }
        // It may lead no more.
        self.owner = self.owner.filter(|_| !self.kind.is_replicated());
        self.paused_until = Some(now + FIRST_PAUSE);
        Ok(())
    }

    /// Forgets the held messages. The next page begins with the first of them.
    fn rewind(&mut self) {
        if let Some(first) = self.held.front() {
            self.pass = Pass {
                from: Some(first.at),
                highest: self.pass.highest,
                ..self.held_pass
            };
            self.held = VecDeque::new();
            self.partial = Vec::new();
            self.part_from = None;
            self.is_exhausted = false;
            self.paused_until = self.paused_until.filter(|_| self.failing_since.is_some());
        }
    }

    /// Sends held messages, answers the client's flow and requests more, as far as possible. `may_request`: the link may request
    /// a page if it has none.
    pub(crate) fn run(
        &mut self,
        may_request: bool,
        engine: &mut Connection,
        state: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> Result<(), BrowseEnd> {
        while let Some(first) = self.held.front() {
            if (first.message.body_len() as u64) < first.body_len {
                break;
            }
            match self.send_first(engine, state, cx) {
                Ok(()) => {}
                Err(error) if is_temporary(&error) => break,
                Err(error) => return Err(BrowseEnd::Send(error)),
            }
        }
        if self.held.is_empty() && self.held.capacity() > BROWSE_PAGE_MESSAGES as usize {
            self.held.shrink_to(0);
        }
        self.waits_for_page = false;
        self.answer_flow(engine, cx);
        if self.requested.is_some() {
            return Ok(());
        }
        if self.credit == 0 {
            self.rewind();
            return Ok(());
        }
        match engine.check_send(self.link, self.is_settled, cx.tail()) {
            Ok(()) => {}
            Err(error) if is_temporary(&error) => return Ok(()),
            Err(error) => return Err(BrowseEnd::Send(error)),
        }
        // The pause of a link that has shown all messages does not delay the rest of a body.
        let is_waiting = self.held.is_empty() || self.failing_since.is_some();
        let pause = self.paused_until.filter(|_| is_waiting);
        if pause.is_some_and(|until| cx.broker.now() < until) {
            return Ok(());
        }
        self.waits_for_page = !may_request && self.held.is_empty();
        if self.waits_for_page {
            return Ok(());
        }
        self.paused_until = None;
        self.request(state, cx)
    }

    fn request(
        &mut self,
        state: &ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> Result<(), BrowseEnd> {
        let Some(record) = cx.broker.tree().queue_by_id(self.queue) else {
            return Err(BrowseEnd::Deleted);
        };
        let home = cx.broker.unreachable_home(record);
        let available = state.caller(cx.broker).check_available(record, home);
        available.map_err(|error| BrowseEnd::Refused(error.into()))?;
        let (request, requested) = match self.held.front() {
            Some(first) => {
                let request = BrowseRequest {
                    from: Some(self.part_from.unwrap_or(first.at)),
                    least: first.at.number,
                    most: first.at.number,
                    messages: 1,
                    body_bytes: u32::MAX,
                    body_start: self.next_byte(first),
                    // A consumer may have it meanwhile.
                    state: None,
                    unexpired_at: None,
                };
                (request, Requested::Body)
            }
            None => {
                // Without conditions each message takes credit.
                let messages = match self.conditions.is_empty() {
                    true => self.credit.min(BROWSE_PAGE_MESSAGES),
                    false => BROWSE_PAGE_MESSAGES,
                };
                let request = BrowseRequest {
                    from: self.pass.from,
                    least: self.pass.least,
                    most: self.pass.most.unwrap_or(u64::MAX),
                    messages,
                    body_bytes: u32::MAX,
                    body_start: 0,
                    state: Some(BrowsedState::Ready),
                    unexpired_at: Some(cx.broker.wall().0),
                };
                (request, Requested::Page { is_current: true })
            }
        };
        let owner = self.owner.map(|(node, _)| node);
        let token = cx.broker.browse(self.queue, &request, owner);
        self.requested = Some((token, requested));
        Ok(())
    }

    /// The bytes of the body of the first held message that have arrived.
    fn next_byte(&self, first: &BrowsedMessage) -> u32 {
        let body = first.message.body_len();
        let head = first.message.as_bytes().len() - body;
        let have = self.partial.len().checked_sub(head).unwrap_or(body);
        u32::try_from(have).unwrap_or(u32::MAX)
    }

    fn send_first(
        &mut self,
        engine: &mut Connection,
        state: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> Result<(), SendError> {
        // Before the message is taken out.
        engine.check_send(self.link, self.is_settled, cx.tail())?;
        let Some(first) = self.held.pop_front() else {
            return Ok(());
        };
        let delivery = Delivery {
            id: self.sent + 1,
            redelivered: first.redelivered,
            attempts: first.failed,
            acquired: first.acquired,
            left: 0,
            message: first.message,
            annotations: None,
        };
        send_delivery(self.link, self.is_settled, &delivery, engine, state, cx)?;
        self.sent += 1;
        self.credit = self.credit.saturating_sub(1);
        // The queue awaits no acknowledgement.
        state.count_delivery(self.kind, &delivery, true);
        if cx.broker.tree().traces() {
            trace_delivery(self.link, self.queue, &delivery, None, state, cx);
        }
        Ok(())
    }

    /// Answers the client's flow.
    fn answer_flow(&mut self, engine: &mut Connection, cx: &mut StepContext<'_>) {
        let is_drained = self.credit == 0 || (self.is_exhausted && self.held.is_empty());
        if self.expected.drain {
            if is_drained {
                self.credit = 0;
                self.expected = ExpectedFlow::default();
                ended(engine.drained(self.link, cx.tail()));
            }
        } else if std::mem::take(&mut self.expected.echo) {
            ended(engine.report_flow(self.link, false, cx.tail()));
        }
    }
}

fn refused(text: String) -> BrowseEnd {
    BrowseEnd::Refused(Refusal::new(Condition::InternalError, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use env::WallTime;
    use message::{MessageBuilder, Protocol};

    fn message(number: u64, level: u8) -> BrowsedMessage {
        let builder = MessageBuilder {
            protocol: Protocol::Amqp10,
            durable: true,
            priority: None,
            ttl_ms: None,
            received: WallTime(1),
            exchange: "",
            routing_keys: &["q"],
            properties: b"",
        };
        let body: &[u8] = b"\x00\x53\x77\x40";
        BrowsedMessage {
            at: BrowsePosition {
                level,
                number,
                ..BrowsePosition::default()
            },
            state: BrowsedState::Ready,
            due_at: None,
            redelivered: false,
            failed: None,
            acquired: 0,
            body_len: body.len() as u64,
            body_start: 0,
            message: builder.build(body.len(), [body]).unwrap(),
        }
    }

    fn page(numbers: &[u64], next: Option<u64>, last_number: Option<u64>) -> BrowsePage {
        let at = |number| BrowsePosition {
            number,
            ..BrowsePosition::default()
        };
        BrowsePage {
            messages: numbers.iter().map(|number| message(*number, 0)).collect(),
            next: next.map(at),
            last_number,
        }
    }

    #[test]
    fn pass_ends_with_the_messages_that_were_there_when_it_began() {
        let mut pass = Pass::default();
        let first = page(&[1, 2], Some(3), Some(4));
        assert_eq!(pass.advance(&first), PassProgress::Partial);
        assert_eq!(pass.most, Some(4));
        let second = page(&[3, 4], None, Some(9));
        let complete = PassProgress::Complete { has_more: true };
        assert_eq!(pass.advance(&second), complete);
        assert_eq!((pass.least, pass.most), (5, None));
        let third = page(&[5, 9], None, Some(9));
        let complete = PassProgress::Complete { has_more: false };
        assert_eq!(pass.advance(&third), complete);
        assert_eq!(pass.advance(&page(&[], None, Some(9))), complete);
        assert_eq!(pass.least, 10);
    }

    #[test]
    fn page_of_a_replica_that_lacks_messages_is_ignored() {
        let mut pass = Pass::default();
        pass.advance(&page(&[1, 2], Some(3), Some(4)));
        let outdated = page(&[3], None, Some(3));
        assert_eq!(pass.advance(&outdated), PassProgress::Outdated);
        assert_eq!(
            (pass.most, pass.from.map(|from| from.number)),
            (Some(4), Some(3))
        );
        pass.advance(&page(&[3, 4], None, Some(4)));
        assert_eq!(pass.advance(&outdated), PassProgress::Outdated);
        assert_eq!(pass.least, 5);
    }

    #[test]
    fn pages_of_an_older_version_are_shown_once() {
        let mut pass = Pass::default();
        pass.advance(&page(&[1, 2], Some(3), None));
        let complete = PassProgress::Complete { has_more: false };
        assert_eq!(pass.advance(&page(&[3, 7], None, None)), complete);
        assert_eq!(pass.least, 8);
        assert_eq!(pass.advance(&page(&[], None, None)), complete);
        assert_eq!(pass.least, 8);
    }
}
