//! What the cluster still owes, and what may account for a message that does not come.

use super::super::letter::LetterId;
use super::{Character, DELIVERY_LIMIT, Fate, Ledger, Letter, Outcome};
use env::Time;

impl Ledger {
    /// Messages that the cluster still owes, and how many there are.
    pub fn owed(&self, now: Time) -> (u64, Vec<(LetterId, String)>) {
        let (mut count, mut some) = (0, Vec::new());
        for (id, letter) in &self.letters {
            let open = match letter.fate {
                Fate::Waits | Fate::Out(..) | Fate::Condemned(..) | Fate::Dead => true,
                Fate::Settled(..) | Fate::Doubtful | Fate::Gone(_) => false,
            };
            let owed = letter.outcome == Outcome::Confirmed && open;
            if owed && !self.excused(now, *id, letter) {
                count += 1;
                if some.len() < 5 {
                    let name = self.queues.get(letter.queue).map(|q| q.name.clone());
                    some.push((*id, format!("{} {letter:?}", name.unwrap_or_default())));
                }
            }
        }
        (count, some)
    }

    /// Whether something that was done to its queue may account for it.
    fn excused(&self, now: Time, id: LetterId, letter: &Letter) -> bool {
        let Some(queue) = self.queues.get(letter.queue) else {
            return false;
        };
        let lost = !queue.quorum && !id.persistent();
        if lost && self.ended.values().any(|end| *end >= letter.sent) {
            return true;
        }
        if !queue.quorum && self.powerless >= letter.sent {
            return true;
        }
        let mortal = queue.character == Character::Mortal;
        if queue.quorum && !mortal && letter.attempts + 1 >= DELIVERY_LIMIT {
            return true;
        }
        let mut windows = self.windows.iter().filter(|w| w.queue == letter.queue);
        let taken = windows.any(|w| {
            let until = w.until.unwrap_or(now);
            let there = letter.sent <= until && letter.last.is_none_or(|last| last <= until);
            there && (w.deletes || !letter.held_through(w))
        });
        if taken {
            return true;
        }
        match queue.character {
            Character::Plain
            | Character::Refusing(_)
            | Character::Mortal
            | Character::Purged
            | Character::Recreated => false,
            Character::Short(most) => self.could_be_with(letter) > most,
            Character::Brief(life) => self.clocks_jump || now.since(letter.sent) >= life,
        }
    }

    /// Messages, this one among them, that its queue may have had at the same time.
    fn could_be_with(&self, letter: &Letter) -> u64 {
        let same = self.letters.values().filter(|l| l.queue == letter.queue);
        same.filter(|l| !matches!(l.fate, Fate::Gone(at) if at < letter.sent))
            .count() as u64
    }
}
