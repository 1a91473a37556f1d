//! Routes dead letters: from the queues that drop messages to their targets, and the confirms of the targets back.

use super::ShardState;
use crate::dead_letter::{BATCH, BATCH_BYTES, Confirmation, HeldDeadLetter};
use crate::sessions::InternalSession;
use env::planted::{self, Bug};
use message::{DeadReason, Message};
use metadata::QueueId;
use queue::QueueOutput;
use queue::client::ClientEvent;
use queue::quorum::DeadRead;
use session::PublishTag;

impl ShardState {
    /// Publishes the dead letters of queues. Returns true if there were any.
    pub fn pass_on_dead(&mut self) -> bool {
        if !self.queues.local().has_dying() && !self.dead_letters.has_sources() {
            return false;
        }
        let mut worked = false;
        while let Some(queue) = self.queues.local_mut().next_dying() {
            self.dead_letters.note(queue);
        }
        while let Some(queue) = self.dead_letters.next_source() {
            worked |= self.pass_on_from(queue);
        }
        worked
    }

    fn pass_on_from(&mut self, queue: QueueId) -> bool {
        let mut worked = self.retry_dead_letters(queue);
        let mut out = QueueOutput::default();
        if self.pass_on_held(queue) {
            self.queues
                .local_mut()
                .take_dead(queue, BATCH, BATCH_BYTES, &mut out);
            let taken = out.dead.len() + out.kept_dead.len();
            worked |= taken > 0;
            self.dead_letters.count_taken(taken);
        }
        for (id, reason, message) in out.kept_dead {
            // An earlier leadership may have left an entry.
            self.dead_letters.drop_pending(queue, id);
            self.pass_on_confirmed(queue, id, (reason, &message));
        }
        if self.dead_letters.hold(queue, out.dead) {
            self.pass_on_held(queue);
        }
        worked
    }

    /// Publishes messages at most once. Returns false if the source has to wait.
    fn pass_on_held(&mut self, queue: QueueId) -> bool {
        let session = InternalSession::DeadLetters.number(self.ctx.shard());
        let no_confirm = PublishTag::NO_CONFIRM;
        loop {
            let clients = self.queues.clients();
            let next = self
                .dead_letters
                .next_held(&self.ctx, self.metadata.tree(), clients, queue);
            let mut letter = match next {
                HeldDeadLetter::None => return true,
                HeldDeadLetter::Stalled => return false,
                HeldDeadLetter::Ready(letter) => letter,
            };
            let mut routes = std::mem::take(&mut letter.routes);
            let published = (letter.vhost(), &letter.message);
            let announced = self.announce(session, no_confirm, published, &mut routes);
            letter.routes = routes;
            self.dead_letters
                .record_unconfirmed(queue, &letter, announced.receivers);
            for target in &letter.routes {
                if letter.goes_to(self.queues.clients(), session, *target) {
                    let message = letter.message.clone();
                    self.publish(session, *target, no_confirm, message);
                }
            }
        }
    }

    /// Retries messages that could not be published at least once before.
    fn retry_dead_letters(&mut self, queue: QueueId) -> bool {
        let retries = self.dead_letters.take_retries(queue);
        let worked = !retries.is_empty();
        for id in retries {
            match self.queues.local_mut().read_dead(queue, id) {
                DeadRead::Message(reason, message) => {
                    self.pass_on_confirmed(queue, id, (reason, &message));
                }
                DeadRead::Gone => self.dead_letters.drop_pending(queue, id),
                DeadRead::Shortage => self.dead_letters.try_again(queue, id, self.ctx.now()),
            }
        }
        worked
    }

    /// Publishes a message at least once.
    fn pass_on_confirmed(&mut self, queue: QueueId, id: u64, dead: (DeadReason, &Message)) {
        let session = InternalSession::DeadLetters.number(self.ctx.shard());
        let clients = self.queues.clients();
        let prepared =
            self.dead_letters
                .prepare(&self.ctx, self.metadata.tree(), clients, (queue, id), dead);
        let Some(mut letter) = prepared else {
            return;
        };
        let announced = letter.needs_announcement.then(|| {
            let mut picked = Vec::new();
            let published = (letter.vhost(), &letter.message);
            let outcome = self.announce(session, letter.tag, published, &mut picked);
            letter.routes.extend(picked);
            outcome
        });
        let now = self.ctx.now();
        let recorded = self
            .dead_letters
            .record_prepared(now, (queue, id), &mut letter, announced);
        match recorded {
            None => return,
            Some(Confirmation::Complete) => return self.complete_dead_letter(queue, id),
            Some(Confirmation::Awaited) => {}
        }
        let is_lost = planted::is(Bug::DeadLetterLost) && !letter.routes.is_empty();
        for target in &letter.routes {
            self.publish(session, *target, letter.tag, letter.message.clone());
        }
        if is_lost {
            self.complete_dead_letter(queue, id);
        }
    }

    fn complete_dead_letter(&mut self, queue: QueueId, id: u64) {
        self.dead_letters.complete(queue, id);
        self.queues.local_mut().passed_on(queue, id);
    }

    pub fn handle_dead_letter_event(&mut self, target: QueueId, event: &ClientEvent<PublishTag>) {
        let now = self.ctx.now();
        if let Some((queue, id)) = self.dead_letters.handle_target_event(now, target, event) {
            self.complete_dead_letter(queue, id);
        }
    }

    /// Another shard has a dead letter for its subscribers.
    pub fn handle_dead_letter_announced(&mut self, tag: u64) {
        if let Some((queue, id)) = self.dead_letters.handle_announcement_confirmed(tag) {
            self.complete_dead_letter(queue, id);
        }
    }
}
