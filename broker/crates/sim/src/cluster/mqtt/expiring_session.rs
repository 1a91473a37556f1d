//! Clients whose sessions run out (section 3.1.2.11.2): they stay away for shorter or for longer than that, often with a will that
//! waits (section 3.1.3.2.2), and some name another interval as they leave (section 3.14.2.2.2).

use super::client::{CALMING, ClientAction, ConnectOffer, EXPIRY, MqttClient, RunContext};
use super::oracle::MqttOracle;
use super::tracked_message::MessageId;
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
struct SessionTerms {
    expiry: u32,
    /// Of the will, if there is one.
    delay: Option<u32>,
}

/// How a client leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeaveMode {
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
enum ReturnTime {
    At(Time),
    /// When its session must be over.
    Late,
}

/// What a client does once when all is quiet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FinalScene {
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
enum SceneState {
    #[default]
    Ahead,
    On(FinalScene),
    /// It has left as the scene wants it, and listens until then.
    Back(Time),
}

/// What such a client knows of its session, and of the will that it left.
#[derive(Debug)]
pub struct ExpiringSession {
    terms: SessionTerms,
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
    back: ReturnTime,
    /// Of an earlier connection: it may be due or not.
    waiting: Option<MessageId>,
    /// Its queue and the term of that one's leader, and when they were seen first: whoever leads begins to count the session's time anew.
    leader: Option<(QueueId, u64)>,
    led: Time,
    play: SceneState,
}

impl Default for ExpiringSession {
    fn default() -> ExpiringSession {
        ExpiringSession {
            terms: SessionTerms::default(),
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
            back: ReturnTime::At(Time::ZERO),
            waiting: None,
            leader: None,
            led: Time::ZERO,
            play: SceneState::default(),
        }
    }
}

fn seconds(n: u32) -> Duration {
    Duration::from_secs(n.into())
}

fn millis(from: u64, below: u64, rng: &mut SeededRng) -> Duration {
    Duration::from_millis(from + rng.below(below))
}

impl FinalScene {
    fn pick(rng: &mut SeededRng) -> FinalScene {
        match rng.below(5) {
            0 => FinalScene::Short,
            1 => FinalScene::Clean,
            2 => FinalScene::Willed,
            _ => FinalScene::Long,
        }
    }

    fn terms(self, rng: &mut SeededRng) -> SessionTerms {
        let (expiry, delay) = match self {
            FinalScene::Short | FinalScene::Clean => (3, Some(2)),
            FinalScene::Willed => (if rng.chance(1, 2) { 4 } else { 1 }, Some(1)),
            FinalScene::Long => (1, [None, Some(0), Some(3)][rng.below(3) as usize]),
        };
        SessionTerms { expiry, delay }
    }

    fn leaving(self, terms: SessionTerms, rng: &mut SeededRng) -> LeaveMode {
        let says = |will, expiry| LeaveMode::Says { will, expiry };
        match self {
            FinalScene::Short => match rng.below(3) {
                0 => LeaveMode::MovesOn,
                1 => says(true, None),
                _ => LeaveMode::Breaks,
            },
            FinalScene::Clean => LeaveMode::Breaks,
            // Longer than CONNECT had it.
            FinalScene::Willed if terms.expiry == 1 => says(true, Some(4)),
            FinalScene::Willed => LeaveMode::Breaks,
            FinalScene::Long => match rng.below(4) {
                0 => says(false, Some(0)),
                1 => says(true, Some(2)),
                2 => says(false, None),
                _ => LeaveMode::Breaks,
            },
        }
    }

    fn back(self, now: Time, rng: &mut SeededRng) -> ReturnTime {
        match self {
            FinalScene::Short | FinalScene::Clean => ReturnTime::At(now + millis(50, 900, rng)),
            FinalScene::Willed => ReturnTime::At(now + millis(1500, 500, rng)),
            FinalScene::Long => ReturnTime::Late,
        }
    }
}

impl MqttClient {
    /// What its next connection asks for.
    pub(super) fn visits(&mut self, cx: &mut RunContext<'_>) -> ConnectOffer {
        let calm = cx.quiet.is_some_and(|quiet| cx.now >= quiet + CALMING);
        let rng = &mut self.rng;
        let stay = &mut self.stay;
        if calm && stay.play == SceneState::Ahead {
            stay.play = SceneState::On(FinalScene::pick(rng));
        }
        let terms = match stay.play {
            SceneState::On(scene) => scene.terms(rng),
            SceneState::Back(_) => SessionTerms {
                expiry: EXPIRY,
                delay: None,
            },
            SceneState::Ahead => SessionTerms {
                expiry: 1 + rng.below(3) as u32,
                delay: rng.chance(2, 3).then(|| rng.below(5) as u32),
            },
        };
        stay.terms = terms;
        stay.low = stay.low.min(terms.expiry);
        stay.high = stay.high.max(terms.expiry);
        stay.back = ReturnTime::At(cx.now);
        if let (true, Some(id)) = (self.anew, stay.waiting) {
            cx.mqtt_oracle.will_may_come(cx.now, id);
        }
        let will = terms.delay.map(|delay| {
            let id = self.lone_post();
            let wait = seconds(delay.min(terms.expiry));
            cx.mqtt_oracle.will_is_held(cx.now, id, WAITING, wait);
            id
        });
        ConnectOffer {
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
        cx: &mut RunContext<'_>,
    ) -> Result<bool, String> {
        let asked = self.link.as_ref().map_or(cx.now, |link| link.since);
        let late = self.is_overdue(asked, cx.mqtt_oracle);
        let stay = &mut self.stay;
        let calm = cx.mqtt_oracle.calm_since(stay.since);
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
            cx.mqtt_oracle.will_is_spared(cx.now, id, asked);
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
    fn is_the_same(&self, cx: &RunContext<'_>) -> bool {
        let queue = self.queue().unwrap_or_default();
        let mut filters = self.plan.filters.iter();
        filters.all(|(filter, _)| {
            cx.mqtt_oracle
                .subscribed_since(self.number, filter)
                .is_none()
                || (cx.knows)(&queue, filter).is_some()
        })
    }

    /// The server says that the session was ended: when its time was over.
    pub(super) fn is_put_out(&mut self, cx: &RunContext<'_>) -> Result<(), String> {
        let stay = &self.stay;
        match stay.sure && cx.mqtt_oracle.calm_since(stay.since) {
            true => Err(format!(
                "its session was ended while it was there: {stay:?}"
            )),
            false => Ok(()),
        }
    }

    /// Its turn.
    pub(super) fn visit(&mut self, cx: &mut RunContext<'_>) -> ClientAction {
        match cx.quiet {
            Some(quiet) => self.visit_last(quiet, cx),
            None if self.rng.below(12) > 0 => ClientAction::GoOn,
            None => {
                let (leaving, back) = self.plan_to_leave(cx.now);
                self.anew = self.rng.chance(1, 6);
                self.go(leaving, back, cx)
            }
        }
    }

    fn plan_to_leave(&mut self, now: Time) -> (LeaveMode, ReturnTime) {
        let (rng, stay) = (&mut self.rng, &self.stay);
        let other = |rng: &mut SeededRng| rng.chance(1, 2).then(|| rng.below(4) as u32);
        let leaving = match rng.below(8) {
            0..3 => LeaveMode::Breaks,
            3 => LeaveMode::MovesOn,
            n => LeaveMode::Says {
                will: n < 6,
                expiry: other(rng),
            },
        };
        let expiry = match leaving {
            LeaveMode::Says {
                expiry: Some(n), ..
            } => n,
            _ => stay.said,
        };
        let time = u64::from(expiry) * 1000;
        let back = match rng.below(4) {
            0 | 1 => ReturnTime::At(now + millis(0, time + 1, rng)),
            2 => ReturnTime::At(now + millis(time, 3000, rng)),
            _ => ReturnTime::Late,
        };
        (leaving, back)
    }

    /// When all is quiet.
    fn visit_last(&mut self, quiet: Time, cx: &mut RunContext<'_>) -> ClientAction {
        match self.stay.play {
            SceneState::Ahead if cx.now >= quiet + CALMING => {
                let (will, expiry) = (false, None);
                self.anew = false;
                self.go(LeaveMode::Says { will, expiry }, ReturnTime::At(cx.now), cx)
            }
            SceneState::On(scene) if self.has_settled(cx) => {
                let leaving = scene.leaving(self.stay.terms, &mut self.rng);
                let back = scene.back(cx.now, &mut self.rng);
                self.anew = scene == FinalScene::Clean;
                let waits = match scene {
                    FinalScene::Short => seconds(self.stay.terms.delay.unwrap_or(0)) + LISTENING,
                    _ => Duration::ZERO,
                };
                self.stay.play = SceneState::Back(cx.now + waits);
                self.go(leaving, back, cx)
            }
            SceneState::Back(until) if cx.now >= until => {
                self.closing.moved = true;
                ClientAction::GoOn
            }
            _ => ClientAction::GoOn,
        }
    }

    fn has_settled(&self, cx: &RunContext<'_>) -> bool {
        let mut filters = self.plan.filters.iter();
        cx.now >= self.stay.accepted + SETTLED
            && filters.all(|(f, _)| cx.mqtt_oracle.subscribed_since(self.number, f).is_some())
    }

    fn go(
        &mut self,
        leaving: LeaveMode,
        back: ReturnTime,
        cx: &mut RunContext<'_>,
    ) -> ClientAction {
        let mut published = true;
        if self.has_settled(cx) && cx.mqtt_oracle.calm_since(self.stay.since) {
            // Nothing of earlier connections is on its way any more.
            self.stay.high = self.stay.said;
        }
        if let LeaveMode::Says { will, expiry } = leaving {
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
                cx.mqtt_oracle
                    .will_is_left(cx.now, id, seconds(wait), cx.knows);
                stay.waiting = Some(id);
            }
            Some(id) => cx.mqtt_oracle.will_is_cancelled(stay.since, id),
            None => {}
        }
        stay.leaving = true;
        stay.back = back;
        match leaving {
            LeaveMode::MovesOn => ClientAction::MoveOn,
            _ => ClientAction::HangUp,
        }
    }

    /// Its connection is gone, or left; `open`: it had been accepted.
    pub(super) fn has_gone(&mut self, open: bool, cx: &mut RunContext<'_>) {
        let stay = &mut self.stay;
        stay.tried = cx.now;
        if open {
            stay.left = Some(cx.now);
            stay.firm = stay.leaving && cx.now >= stay.accepted + SETTLED;
        } else {
            // Nobody knows what the server made of it.
            stay.firm = false;
            if let Some(id) = stay.waiting.take() {
                cx.mqtt_oracle.unknown(id);
            }
        }
        if let Some(id) = self.will.take() {
            cx.mqtt_oracle.unknown(id);
        }
    }

    /// It does not come back yet.
    pub(super) fn is_away(&self, cx: &RunContext<'_>) -> bool {
        if !self.plan.expiring_session || self.stay.left.is_none() {
            return false;
        }
        // A connection that it left may go on until it has another one.
        let left_open = cx.quiet.is_some() && !self.ghosts.is_empty();
        match self.stay.back {
            _ if left_open => false,
            ReturnTime::At(at) => cx.now < at,
            ReturnTime::Late => !self.is_overdue(cx.now, cx.mqtt_oracle),
        }
    }

    /// Its session is over, whatever was wrong meanwhile.
    pub(super) fn is_overdue(&self, now: Time, mqtt_oracle: &MqttOracle) -> bool {
        let stay = &self.stay;
        let from = stay.tried.max(mqtt_oracle.disturbed).max(stay.led);
        stay.left.is_some() && self.ghosts.is_empty() && now > from + seconds(stay.high) + SLACK
    }

    /// Its session is over and it has not come back: the session's queue is to be gone.
    pub(super) fn has_outstayed(&self, now: Time, mqtt_oracle: &MqttOracle) -> bool {
        self.plan.expiring_session && self.link.is_none() && self.is_overdue(now, mqtt_oracle)
    }

    /// Its queue, and the term of whoever leads that.
    pub(super) fn is_led(&mut self, now: Time, leader: (QueueId, u64)) {
        if self.stay.leader.is_none_or(|last| last < leader) {
            (self.stay.leader, self.stay.led) = (Some(leader), now);
        }
    }

    /// Somebody is to publish for it.
    pub(super) fn listens(&self) -> bool {
        let gone =
            self.plan.expiring_session && self.link.is_none() && self.stay.back == ReturnTime::Late;
        !self.plan.filters.is_empty() && self.plan.looks.is_none() && !gone
    }
}
