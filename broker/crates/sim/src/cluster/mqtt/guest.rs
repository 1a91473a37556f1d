//! Clients whose sessions run out (section 3.1.2.11.2): they stay away for shorter or for longer than that, often with a will that
//! waits (section 3.1.3.2.2), and some name another interval as they leave (section 3.14.2.2.2).

use super::book::Book;
use super::device::{CALMING, Cx, Device, EXPIRY, Offer, Wish};
use super::post::PostId;
use codec_mqtt::{Disconnect, Packet, Properties, Reason};
use env::{Rng, SeededRng, Time};
use metadata::QueueId;
use std::time::Duration;

/// The topic of wills that wait.
pub const WAITING: &str = "w/2";
/// A connection that lasted for this long had all done that it asked for, when nothing was wrong.
const SETTLED: Duration = Duration::from_secs(1);
/// Who comes back within this of its session's end may find it or not.
const EARLY: Duration = Duration::from_millis(500);
/// After a session's time is over, until its queue is gone everywhere.
const SLACK: Duration = Duration::from_secs(2);
/// After a will was due that is not to come.
const LISTENING: Duration = Duration::from_millis(300);

/// What a connection asks for, in seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Terms {
    expiry: u32,
    /// Of the will, if there is one.
    delay: Option<u32>,
}

/// How a client leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    /// Without a word.
    Breaks,
    /// For another connection, with this one left open.
    MovesOn,
    /// With DISCONNECT.
    Says {
        /// The will is to be published all the same (reason 0x04).
        will: bool,
        /// Another expiry than that of CONNECT.
        expiry: Option<u32>,
    },
}

/// When a client comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Return {
    At(Time),
    /// When its session must be over.
    Late,
}

/// What a client does once when all is quiet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scene {
    /// It is back before its will is due.
    Short,
    /// It begins anew before its will is due: that ends the session and the wait.
    Clean,
    /// It is back when its will has come, and before its session is over.
    Willed,
    /// It is back when its session is over.
    Long,
}

/// How far that is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Play {
    #[default]
    Ahead,
    On(Scene),
    /// It has left as the scene wants it, and listens until then.
    Back(Time),
}

/// What such a client knows of its session, and of the will that it left.
#[derive(Debug)]
pub struct Stay {
    terms: Terms,
    /// The expiry that a connection named last which was accepted; with what those named that were not, at least and at most.
    said: u32,
    low: u32,
    high: u32,
    /// CONNECT and CONNACK of the last connection that was accepted.
    since: Time,
    accepted: Time,
    /// When that ended. None: none did yet, or it has not.
    left: Option<Time>,
    /// It ended as its client wanted, after long enough, and is the last that there was.
    firm: bool,
    /// Its session was not about to be over as it was accepted.
    sure: bool,
    /// When the last connection ended, accepted or not.
    tried: Time,
    /// It was the client that ended it.
    leaving: bool,
    back: Return,
    /// Of an earlier connection: it may be due or not.
    waiting: Option<PostId>,
    /// Its queue and the term of that one's leader, and when they were seen first: whoever leads begins to count the session's time anew.
    leader: Option<(QueueId, u64)>,
    led: Time,
    play: Play,
}

impl Default for Stay {
    fn default() -> Stay {
        Stay {
            terms: Terms::default(),
            said: 0,
            low: u32::MAX,
            high: 0,
            since: Time::ZERO,
            accepted: Time::ZERO,
            left: None,
            firm: false,
            sure: false,
            tried: Time::ZERO,
            leaving: false,
            back: Return::At(Time::ZERO),
            waiting: None,
            leader: None,
            led: Time::ZERO,
            play: Play::default(),
        }
    }
}

fn seconds(n: u32) -> Duration {
    Duration::from_secs(n.into())
}

fn millis(from: u64, below: u64, rng: &mut SeededRng) -> Duration {
    Duration::from_millis(from + rng.below(below))
}

impl Scene {
    fn pick(rng: &mut SeededRng) -> Scene {
        match rng.below(5) {
            0 => Scene::Short,
            1 => Scene::Clean,
            2 => Scene::Willed,
            _ => Scene::Long,
        }
    }

    fn terms(self, rng: &mut SeededRng) -> Terms {
        let (expiry, delay) = match self {
            Scene::Short | Scene::Clean => (3, Some(2)),
            Scene::Willed => (if rng.chance(1, 2) { 4 } else { 1 }, Some(1)),
            Scene::Long => (1, [None, Some(0), Some(3)][rng.below(3) as usize]),
        };
        Terms { expiry, delay }
    }

    fn leaving(self, terms: Terms, rng: &mut SeededRng) -> Leaving {
        let says = |will, expiry| Leaving::Says { will, expiry };
        match self {
            Scene::Short => match rng.below(3) {
                0 => Leaving::MovesOn,
                1 => says(true, None),
                _ => Leaving::Breaks,
            },
            Scene::Clean => Leaving::Breaks,
            // Longer than CONNECT had it.
            Scene::Willed if terms.expiry == 1 => says(true, Some(4)),
            Scene::Willed => Leaving::Breaks,
            Scene::Long => match rng.below(4) {
                0 => says(false, Some(0)),
                1 => says(true, Some(2)),
                2 => says(false, None),
                _ => Leaving::Breaks,
            },
        }
    }

    fn back(self, now: Time, rng: &mut SeededRng) -> Return {
        match self {
            Scene::Short | Scene::Clean => Return::At(now + millis(50, 900, rng)),
            Scene::Willed => Return::At(now + millis(1500, 500, rng)),
            Scene::Long => Return::Late,
        }
    }
}

impl Device {
    /// What its next connection asks for.
    pub(super) fn visits(&mut self, cx: &mut Cx<'_>) -> Offer {
        let calm = cx.quiet.is_some_and(|quiet| cx.now >= quiet + CALMING);
        let rng = &mut self.rng;
        let stay = &mut self.stay;
        if calm && stay.play == Play::Ahead {
            stay.play = Play::On(Scene::pick(rng));
        }
        let terms = match stay.play {
            Play::On(scene) => scene.terms(rng),
            Play::Back(_) => Terms {
                expiry: EXPIRY,
                delay: None,
            },
            Play::Ahead => Terms {
                expiry: 1 + rng.below(3) as u32,
                delay: rng.chance(2, 3).then(|| rng.below(5) as u32),
            },
        };
        stay.terms = terms;
        stay.low = stay.low.min(terms.expiry);
        stay.high = stay.high.max(terms.expiry);
        stay.back = Return::At(cx.now);
        if let (true, Some(id)) = (self.anew, stay.waiting) {
            cx.book.will_may_come(cx.now, id);
        }
        let will = terms.delay.map(|delay| {
            let id = self.lone_post();
            let wait = seconds(delay.min(terms.expiry));
            cx.book.will_is_held(cx.now, id, WAITING, wait);
            id
        });
        Offer {
            expiry: terms.expiry,
            will,
            topic: WAITING,
            delay: terms.delay,
        }
    }

    /// CONNACK has come. True: the session is another one than the client knows of.
    pub(super) fn is_let_in(
        &mut self,
        (present, anew): (bool, bool),
        cx: &mut Cx<'_>,
    ) -> Result<bool, String> {
        let asked = self.link.as_ref().map_or(cx.now, |link| link.since);
        let late = self.is_overdue(asked, cx.book);
        let stay = &mut self.stay;
        let calm = cx.book.calm_since(stay.since);
        let left = stay.left.take();
        let within = |expiry| left.is_some_and(|left| cx.now + EARLY < left + seconds(expiry));
        let in_time = within(stay.said) && stay.firm && calm;
        if present && late {
            return Err(format!(
                "came back at {asked:?} to a session that was over, and it is there: {stay:?}"
            ));
        }
        if !present && !anew && in_time {
            return Err(format!(
                "came back in time, and its session is gone: {stay:?}"
            ));
        }
        if let (Some(id), false) = (stay.waiting.take(), anew) {
            cx.book.will_is_spared(cx.now, id, asked);
        }
        // What of the session was in memory has its time as well.
        if !(present && within(stay.low)) {
            self.epoch += 1;
        }
        stay.sure = in_time || !present;
        stay.since = asked;
        stay.accepted = cx.now;
        (stay.firm, stay.leaving) = (false, false);
        stay.said = stay.terms.expiry;
        stay.low = stay.said;
        let other = present && !in_time && !self.is_the_same(cx);
        Ok(other)
    }

    /// The session has the subscriptions that the client knows of. An earlier CONNECT whose answer was lost may have begun another one.
    fn is_the_same(&self, cx: &Cx<'_>) -> bool {
        let queue = self.queue().unwrap_or_default();
        let mut filters = self.plan.filters.iter();
        filters.all(|(filter, _)| {
            cx.book.subscribed_since(self.number, filter).is_none()
                || (cx.knows)(&queue, filter).is_some()
        })
    }

    /// The server says that the session was ended: when its time was over.
    pub(super) fn is_put_out(&mut self, cx: &Cx<'_>) -> Result<(), String> {
        let stay = &self.stay;
        match stay.sure && cx.book.calm_since(stay.since) {
            true => Err(format!(
                "its session was ended while it was there: {stay:?}"
            )),
            false => Ok(()),
        }
    }

    /// Its turn.
    pub(super) fn visit(&mut self, cx: &mut Cx<'_>) -> Wish {
        match cx.quiet {
            Some(quiet) => self.visit_last(quiet, cx),
            None if self.rng.below(12) > 0 => Wish::GoOn,
            None => {
                let (leaving, back) = self.plan_to_leave(cx.now);
                self.anew = self.rng.chance(1, 6);
                self.go(leaving, back, cx)
            }
        }
    }

    fn plan_to_leave(&mut self, now: Time) -> (Leaving, Return) {
        let (rng, stay) = (&mut self.rng, &self.stay);
        let other = |rng: &mut SeededRng| rng.chance(1, 2).then(|| rng.below(4) as u32);
        let leaving = match rng.below(8) {
            0..3 => Leaving::Breaks,
            3 => Leaving::MovesOn,
            n => Leaving::Says {
                will: n < 6,
                expiry: other(rng),
            },
        };
        let expiry = match leaving {
            Leaving::Says {
                expiry: Some(n), ..
            } => n,
            _ => stay.said,
        };
        let time = u64::from(expiry) * 1000;
        let back = match rng.below(4) {
            0 | 1 => Return::At(now + millis(0, time + 1, rng)),
            2 => Return::At(now + millis(time, 3000, rng)),
            _ => Return::Late,
        };
        (leaving, back)
    }

    /// When all is quiet.
    fn visit_last(&mut self, quiet: Time, cx: &mut Cx<'_>) -> Wish {
        match self.stay.play {
            Play::Ahead if cx.now >= quiet + CALMING => {
                let (will, expiry) = (false, None);
                self.anew = false;
                self.go(Leaving::Says { will, expiry }, Return::At(cx.now), cx)
            }
            Play::On(scene) if self.has_settled(cx) => {
                let leaving = scene.leaving(self.stay.terms, &mut self.rng);
                let back = scene.back(cx.now, &mut self.rng);
                self.anew = scene == Scene::Clean;
                let waits = match scene {
                    Scene::Short => seconds(self.stay.terms.delay.unwrap_or(0)) + LISTENING,
                    _ => Duration::ZERO,
                };
                self.stay.play = Play::Back(cx.now + waits);
                self.go(leaving, back, cx)
            }
            Play::Back(until) if cx.now >= until => {
                self.closing.moved = true;
                Wish::GoOn
            }
            _ => Wish::GoOn,
        }
    }

    fn has_settled(&self, cx: &Cx<'_>) -> bool {
        let mut filters = self.plan.filters.iter();
        cx.now >= self.stay.accepted + SETTLED
            && filters.all(|(f, _)| cx.book.subscribed_since(self.number, f).is_some())
    }

    fn go(&mut self, leaving: Leaving, back: Return, cx: &mut Cx<'_>) -> Wish {
        let mut published = true;
        if self.has_settled(cx) && cx.book.calm_since(self.stay.since) {
            // Nothing of earlier connections is on its way any more.
            self.stay.high = self.stay.said;
        }
        if let Leaving::Says { will, expiry } = leaving {
            published = will;
            let stay = &mut self.stay;
            if let Some(n) = expiry {
                stay.said = n;
                (stay.low, stay.high) = (stay.low.min(n), stay.high.max(n));
            }
            self.say(&Packet::Disconnect(Disconnect {
                reason: match will {
                    true => Reason::DisconnectWithWill,
                    false => Reason::Success,
                },
                properties: Properties {
                    session_expiry: expiry,
                    ..Properties::default()
                },
            }));
        }
        let stay = &mut self.stay;
        match self.will.take() {
            Some(id) if published => {
                let wait = stay.terms.delay.unwrap_or(0).min(stay.said);
                cx.book.will_is_left(cx.now, id, seconds(wait), cx.knows);
                stay.waiting = Some(id);
            }
            Some(id) => cx.book.will_is_cancelled(stay.since, id),
            None => {}
        }
        stay.leaving = true;
        stay.back = back;
        match leaving {
            Leaving::MovesOn => Wish::MoveOn,
            _ => Wish::HangUp,
        }
    }

    /// Its connection is gone, or left; `open`: it had been accepted.
    pub(super) fn has_gone(&mut self, open: bool, cx: &mut Cx<'_>) {
        let stay = &mut self.stay;
        stay.tried = cx.now;
        if open {
            stay.left = Some(cx.now);
            stay.firm = stay.leaving && cx.now >= stay.accepted + SETTLED;
        } else {
            // Nobody knows what the server made of it.
            stay.firm = false;
            if let Some(id) = stay.waiting.take() {
                cx.book.unknown(id);
            }
        }
        if let Some(id) = self.will.take() {
            cx.book.unknown(id);
        }
    }

    /// It does not come back yet.
    pub(super) fn is_away(&self, cx: &Cx<'_>) -> bool {
        if !self.plan.guest || self.stay.left.is_none() {
            return false;
        }
        // A connection that it left may go on until it has another one.
        let left_open = cx.quiet.is_some() && !self.ghosts.is_empty();
        match self.stay.back {
            _ if left_open => false,
            Return::At(at) => cx.now < at,
            Return::Late => !self.is_overdue(cx.now, cx.book),
        }
    }

    /// Its session is over, whatever was wrong meanwhile.
    pub(super) fn is_overdue(&self, now: Time, book: &Book) -> bool {
        let stay = &self.stay;
        let from = stay.tried.max(book.disturbed).max(stay.led);
        stay.left.is_some() && self.ghosts.is_empty() && now > from + seconds(stay.high) + SLACK
    }

    /// Its session is over and it has not come back: the session's queue is to be gone.
    pub(super) fn has_outstayed(&self, now: Time, book: &Book) -> bool {
        self.plan.guest && self.link.is_none() && self.is_overdue(now, book)
    }

    /// Its queue, and the term of whoever leads that.
    pub(super) fn is_led(&mut self, now: Time, leader: (QueueId, u64)) {
        if self.stay.leader.is_none_or(|last| last < leader) {
            (self.stay.leader, self.stay.led) = (Some(leader), now);
        }
    }

    /// Somebody is to publish for it.
    pub(super) fn listens(&self) -> bool {
        let gone = self.plan.guest && self.link.is_none() && self.stay.back == Return::Late;
        !self.plan.filters.is_empty() && self.plan.looks.is_none() && !gone
    }
}
