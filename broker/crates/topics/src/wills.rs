//! Wills of clients whose node dies: each has a copy at a hub of another node, its keeper (docs/decisions/0012-mqtt-wills.md).
//!
//! The keeper of a will is the hub that would own the client's id if the client's node were gone ([`crate::claims`]): so it hears of it
//! when the client comes back elsewhere. What a broken link lost is made up for as there: when it is up again the keeper has forgotten
//! that hub's wills, and is told all of them anew.

pub(crate) mod word;

use crate::claims::word::ClientId;
use crate::{Place, SubscriberId, Will};
use env::planted::{self, Bug};
use env::{Incarnation, NodeId, Time};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use word::{WillWord, size_of_kept};

/// Bytes of other nodes' wills that a hub keeps at most; what is beyond that goes with its node, and is counted.
pub(crate) const KEPT_BYTES: usize = 64 << 20;

/// How long a node is out of reach before it counts as gone, as with messages for its hubs.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long after it was out of reach a node ends connections because of that.
const AFTERMATH: Duration = Duration::from_secs(60);

/// Words of a frame, and their bytes, at most.
const WORDS: usize = 512;
const WORDS_BYTES: usize = 256 << 10;

/// Wills that are published at one time.
const AT_ONCE: usize = 1024;

/// Where another hub's copy of a will is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    pub number: u64,
    pub keeper: Option<Place>,
    /// That one has asked for it, and may have it or not.
    pub again: bool,
}

/// Another hub's will.
pub(crate) struct Kept {
    id: ClientId,
    /// From when its node counts as gone.
    pub delay: Duration,
    pub will: Will,
}

#[derive(Default)]
pub(crate) struct Wills {
    /// The whole cluster understands words about wills.
    pub on: bool,
    /// Since when this node is not with a majority; None: it is.
    alone_since: Option<Time>,
    /// Until when connections end because this node was not with a majority, and the newest will of then: others have published it.
    aftermath: Option<(Time, u64)>,
    /// Of clients of this hub that have a will.
    pub told: BTreeMap<SubscriberId, Told>,
    /// Those whose keeper may have changed.
    pub untold: BTreeSet<SubscriberId>,
    last_number: u64,
    kept: BTreeMap<(Place, u64), Kept>,
    /// The newest one of each client.
    by_client: BTreeMap<ClientId, (Place, u64)>,
    kept_bytes: usize,
    /// Hubs of nodes that are out of reach, or of lives that are over, and that have wills here.
    gone: BTreeMap<Place, Time>,
    due: BTreeSet<(Time, Place, u64)>,
    outgoing: BTreeMap<Place, VecDeque<WillWord>>,
    /// Wills that there was no room for, since the start.
    pub not_kept: u64,
}

/// Of this hub's own clients.
impl Wills {
    pub fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    pub fn send(&mut self, to: Place, word: WillWord) {
        self.outgoing.entry(to).or_default().push_back(word);
    }

    /// A client has no will any more.
    pub fn drop(&mut self, who: SubscriberId) {
        self.untold.remove(&who);
        if let Some(told) = self.told.remove(&who)
            && let Some(keeper) = told.keeper
            && !planted::is(Bug::WillKeptOn)
        {
            let number = told.number;
            self.send(keeper, WillWord::Drop { number });
        }
    }

    /// A hub asks for all that is told to it.
    pub fn asked_by(&mut self, keeper: Place) {
        let all = self.told.iter_mut();
        for (who, told) in all.filter(|(_, told)| told.keeper == Some(keeper)) {
            told.again = true;
            self.untold.insert(*who);
        }
    }

    /// Words for other hubs than these are forgotten.
    pub fn only(&mut self, is_there: impl Fn(Place) -> bool) {
        self.outgoing.retain(|place, _| is_there(*place));
    }

    /// Words for another hub, a frame's worth.
    pub fn take(&mut self) -> Option<(Place, Vec<WillWord>)> {
        let mut first = self.outgoing.first_entry()?;
        let (place, all) = (*first.key(), first.get_mut());
        let (mut words, mut size) = (Vec::new(), 0);
        while size < WORDS_BYTES && words.len() < WORDS {
            let Some(word) = all.pop_front() else {
                break;
            };
            size += word.size();
            words.push(word);
        }
        if all.is_empty() {
            first.remove();
        }
        Some((place, words))
    }

    pub fn set_majority(&mut self, majority: bool, now: Time) {
        let before = self.alone_since;
        self.alone_since = (!majority).then(|| before.unwrap_or(now));
        if let (true, Some(since)) = (majority, before)
            && now >= since + PATIENCE
        {
            self.aftermath = Some((now + AFTERMATH, self.last_number));
        }
    }

    pub fn has_majority(&self) -> bool {
        self.alone_since.is_none()
    }

    /// Whether another node has published this will because this one was out of reach.
    pub fn was_published(&self, who: SubscriberId, now: Time) -> bool {
        let Some(told) = self.told.get(&who) else {
            return false;
        };
        let alone = self.alone_since.is_some_and(|at| now >= at + PATIENCE);
        let after = self.aftermath;
        alone || after.is_some_and(|(until, newest)| now < until && told.number <= newest)
    }
}

/// Of other hubs' clients.
impl Wills {
    /// A hub that is there wants this kept, or no more.
    pub fn hear(&mut self, from: Place, word: WillWord) {
        match word {
            WillWord::Drop { number } => drop(self.forget((from, number))),
            WillWord::Keep {
                number,
                id,
                delay,
                will,
            } => {
                self.forget((from, number));
                // Its client is there now.
                if let Some(older) = self.by_client.get(&id).copied() {
                    self.forget(older);
                }
                let size = size_of_kept(&id, &will);
                if self.kept_bytes + size > KEPT_BYTES {
                    self.not_kept += 1;
                    return;
                }
                self.kept_bytes += size;
                self.by_client.insert(id.clone(), (from, number));
                let delay = Duration::from_secs(delay.into());
                self.kept.insert((from, number), Kept { id, delay, will });
            }
        }
    }

    fn forget(&mut self, which: (Place, u64)) -> Option<Kept> {
        let kept = self.kept.remove(&which)?;
        self.kept_bytes -= size_of_kept(&kept.id, &kept.will);
        if self.by_client.get(&kept.id) == Some(&which) {
            self.by_client.remove(&kept.id);
        }
        let (place, number) = which;
        if let Some(since) = self.gone.get(&place) {
            self.due
                .remove(&(*since + PATIENCE + kept.delay, place, number));
            if self.of(place).next().is_none() {
                self.gone.remove(&place);
            }
        }
        Some(kept)
    }

    fn of(&self, place: Place) -> impl Iterator<Item = (u64, &Kept)> {
        let all = self.kept.range((place, 0)..=(place, u64::MAX));
        all.map(|((_, number), kept)| (*number, kept))
    }

    /// The hubs of a node that have wills here.
    fn places(&self, node: NodeId) -> Vec<Place> {
        let mut all: Vec<Place> = self.kept.keys().map(|(place, _)| *place).collect();
        all.dedup();
        all.retain(|place| place.node == node);
        all
    }

    /// A node is out of reach.
    pub fn part(&mut self, node: NodeId, now: Time) {
        for place in self.places(node) {
            self.mourn(place, now);
        }
    }

    fn mourn(&mut self, place: Place, now: Time) {
        if self.gone.contains_key(&place) {
            return;
        }
        self.gone.insert(place, now);
        let due = |(number, kept): (u64, &Kept)| (now + PATIENCE + kept.delay, place, number);
        let due: Vec<_> = self.of(place).map(due).collect();
        self.due.extend(due);
    }

    /// A node is up in this life (None: it never comes back): it tells its wills anew, and clients of its other lives are gone.
    pub fn meet(&mut self, node: NodeId, life: Option<Incarnation>, now: Time) {
        for place in self.places(node) {
            if Some(place.incarnation) != life {
                self.mourn(place, now);
                continue;
            }
            let numbers: Vec<u64> = self.of(place).map(|(number, _)| number).collect();
            for number in numbers {
                self.forget((place, number));
            }
        }
    }

    /// A client's newest connection is at this hub: what an older one's will was, if it was kept here.
    pub fn client_is_at(&mut self, id: &ClientId, place: Place) -> Option<Kept> {
        let which = *self.by_client.get(id)?;
        if which.0 == place {
            return None;
        }
        self.forget(which)
    }

    /// Whether what this node knows of the others matters.
    pub fn waits_for_majority(&self) -> bool {
        !self.due.is_empty()
    }

    /// Wills to be published now, with their clients.
    pub fn overdue(&mut self, now: Time) -> Vec<(ClientId, Will)> {
        let mut all = Vec::new();
        while self.has_majority()
            && !planted::is(Bug::WillOfTheDead)
            && all.len() < AT_ONCE
            && let Some(&(at, place, number)) = self.due.first()
            && at <= now
        {
            self.due.pop_first();
            if let Some(kept) = self.forget((place, number)) {
                all.push((kept.id, kept.will));
            }
        }
        all
    }

    pub fn wake_at(&self, now: Time) -> Option<Time> {
        if !self.untold.is_empty() {
            return Some(now);
        }
        let first = self.due.first().map(|(at, _, _)| *at);
        first.filter(|_| self.has_majority())
    }

    /// How many are kept for others.
    pub fn kept(&self) -> usize {
        self.kept.len()
    }
}
