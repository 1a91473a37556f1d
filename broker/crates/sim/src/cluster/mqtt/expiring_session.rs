//! Clients with expiring sessions (section 3.1.2.11.2). They stay away for shorter or longer than the Session Expiry
//! Interval, often with a delayed will (section 3.1.3.2.2). Some change the interval in DISCONNECT (section
//! 3.14.2.2.2).

use super::client::{
    ClientAction, ConnectOffer, FAULT_EFFECT_TIME, LONG_EXPIRY, MqttClient, RunContext,
};
use super::oracle::MqttOracle;
use super::tracked_message::MessageId;
use codec_mqtt::{Disconnect, Packet, Properties, ReasonCode};
use env::{Rng, SeededRng, Time};
use metadata::QueueId;
use std::time::Duration;

/// Topic of delayed wills.
pub(super) const DELAYED_WILL_TOPIC: &str = "w/2";
/// After a connection has lasted for this time, all its requests are processed, without faults.
const SETTLE_TIME: Duration = Duration::from_secs(1);
/// A client that returns this shortly before its session ends may find it or not.
const RETURN_TOLERANCE: Duration = Duration::from_millis(500);
/// Time after the expiry of a session until its queue is deleted on every node.
const DELETION_TIME: Duration = Duration::from_secs(2);
/// Time after the due time of a will that must not come.
const CHECK_TIME: Duration = Duration::from_millis(300);

/// Intervals of a CONNECT, in seconds.
#[derive(Clone, Copy, Debug, Default)]
struct SessionTerms {
    expiry: u32,
    /// Will Delay Interval, if there is a will.
    delay: Option<u32>,
}

/// How a client ends its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeaveMode {
    /// Close without DISCONNECT.
    Close,
    /// Connect again and abandon this connection.
    Reconnect,
    /// Send DISCONNECT.
    Disconnect {
        /// Request the will with reason code 0x04.
        will: bool,
        /// Another Session Expiry Interval than that of CONNECT.
        expiry: Option<u32>,
    },
}

/// When a client returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReturnTime {
    At(Time),
    /// After its session has expired.
    AfterExpiry,
}

/// What a client does once after the faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FinalScene {
    /// It returns before its will is due.
    BeforeWill,
    /// It returns with Clean Start before its will is due, which ends the session and publishes the will.
    CleanStart,
    /// It returns after its will was published and before its session expires.
    AfterWill,
    /// It returns after its session has expired.
    AfterExpiry,
}

/// Progress of the scene.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SceneState {
    #[default]
    Pending,
    Running(FinalScene),
    /// It has left as the scene requires, and checks messages until this time.
    Checking(Time),
}

/// A client's view of its session, and of the will that it left.
#[derive(Debug)]
pub(super) struct ExpiringSession {
    terms: SessionTerms,
    /// The expiry of the last accepted connection, and the minimum and maximum including connections that were not
    /// accepted.
    expiry: u32,
    min_expiry: u32,
    max_expiry: u32,
    /// Times of CONNECT and CONNACK of the last accepted connection.
    since: Time,
    accepted_at: Time,
    /// When that connection ended. `None`: it has not, or there was none.
    left_at: Option<Time>,
    /// The client ended it after `SETTLE_TIME`, and no connection has followed.
    is_clean_end: bool,
    /// Its session was not about to expire when it was accepted.
    is_certain: bool,
    /// When the last connection ended, accepted or not.
    last_ended: Time,
    /// The client ended the connection.
    is_leaving: bool,
    return_time: ReturnTime,
    /// A will of an earlier connection, which may be due or not.
    left_will: Option<MessageId>,
    /// Queue and term of its leader, and when they were first seen. A new leader measures the expiry from the
    /// beginning.
    leader: Option<(QueueId, u64)>,
    leader_since: Time,
    scene_state: SceneState,
}

impl Default for ExpiringSession {
    fn default() -> ExpiringSession {
        ExpiringSession {
            terms: SessionTerms::default(),
            expiry: 0,
            min_expiry: u32::MAX,
            max_expiry: 0,
            since: Time::ZERO,
            accepted_at: Time::ZERO,
            left_at: None,
            is_clean_end: false,
            is_certain: false,
            last_ended: Time::ZERO,
            is_leaving: false,
            return_time: ReturnTime::At(Time::ZERO),
            left_will: None,
            leader: None,
            leader_since: Time::ZERO,
            scene_state: SceneState::default(),
        }
    }
}

fn seconds(n: u32) -> Duration {
    Duration::from_secs(n.into())
}

fn millis(from: u64, spread: u64, rng: &mut SeededRng) -> Duration {
    Duration::from_millis(from + rng.below(spread))
}

impl FinalScene {
    fn pick(rng: &mut SeededRng) -> FinalScene {
        match rng.below(5) {
            0 => FinalScene::BeforeWill,
            1 => FinalScene::CleanStart,
            2 => FinalScene::AfterWill,
            _ => FinalScene::AfterExpiry,
        }
    }

    fn terms(self, rng: &mut SeededRng) -> SessionTerms {
        let (expiry, delay) = match self {
            FinalScene::BeforeWill | FinalScene::CleanStart => (3, Some(2)),
            FinalScene::AfterWill => (if rng.chance(1, 2) { 4 } else { 1 }, Some(1)),
            FinalScene::AfterExpiry => (1, [None, Some(0), Some(3)][rng.below(3) as usize]),
        };
        SessionTerms { expiry, delay }
    }

    fn leave_mode(self, terms: SessionTerms, rng: &mut SeededRng) -> LeaveMode {
        let disconnect = |will, expiry| LeaveMode::Disconnect { will, expiry };
        match self {
            FinalScene::BeforeWill => match rng.below(3) {
                0 => LeaveMode::Reconnect,
                1 => disconnect(true, None),
                _ => LeaveMode::Close,
            },
            FinalScene::CleanStart => LeaveMode::Close,
            // Longer than the expiry of CONNECT.
            FinalScene::AfterWill if terms.expiry == 1 => disconnect(true, Some(4)),
            FinalScene::AfterWill => LeaveMode::Close,
            FinalScene::AfterExpiry => match rng.below(4) {
                0 => disconnect(false, Some(0)),
                1 => disconnect(true, Some(2)),
                2 => disconnect(false, None),
                _ => LeaveMode::Close,
            },
        }
    }

    fn return_time(self, now: Time, rng: &mut SeededRng) -> ReturnTime {
        match self {
            FinalScene::BeforeWill | FinalScene::CleanStart => {
                ReturnTime::At(now + millis(50, 900, rng))
            }
            FinalScene::AfterWill => ReturnTime::At(now + millis(1500, 500, rng)),
            FinalScene::AfterExpiry => ReturnTime::AfterExpiry,
        }
    }
}

impl MqttClient {
    /// The contents of its next CONNECT.
    pub(super) fn expiring_session_offer(&mut self, cx: &mut RunContext<'_>) -> ConnectOffer {
        let is_calm = cx
            .faults_ended_at
            .is_some_and(|faults_ended_at| cx.now >= faults_ended_at + FAULT_EFFECT_TIME);
        let rng = &mut self.rng;
        let state = &mut self.expiring_session;
        if is_calm && state.scene_state == SceneState::Pending {
            state.scene_state = SceneState::Running(FinalScene::pick(rng));
        }
        let terms = match state.scene_state {
            SceneState::Running(scene) => scene.terms(rng),
            SceneState::Checking(_) => SessionTerms {
                expiry: LONG_EXPIRY,
                delay: None,
            },
            SceneState::Pending => SessionTerms {
                expiry: 1 + rng.below(3) as u32,
                delay: rng.chance(2, 3).then(|| rng.below(5) as u32),
            },
        };
        state.terms = terms;
        state.min_expiry = state.min_expiry.min(terms.expiry);
        state.max_expiry = state.max_expiry.max(terms.expiry);
        state.return_time = ReturnTime::At(cx.now);
        if let (true, Some(id)) = (self.clean_start, state.left_will) {
            cx.mqtt_oracle.delayed_will_due_now(cx.now, id);
        }
        let will = terms.delay.map(|delay| {
            let id = self.single_message();
            let wait = seconds(delay.min(terms.expiry));
            cx.mqtt_oracle
                .delayed_will_set(cx.now, id, DELAYED_WILL_TOPIC, wait);
            id
        });
        ConnectOffer {
            expiry: terms.expiry,
            will,
            topic: DELAYED_WILL_TOPIC,
            delay: terms.delay,
        }
    }

    /// Handles CONNACK. Returns true if the session may be another one than the client knows.
    pub(super) fn expiring_session_accepted(
        &mut self,
        (present, clean_start): (bool, bool),
        cx: &mut RunContext<'_>,
    ) -> Result<bool, String> {
        let connected_at = self.link.as_ref().map_or(cx.now, |link| link.since);
        let is_late = self.has_session_expired(connected_at, cx.mqtt_oracle);
        let state = &mut self.expiring_session;
        let is_calm = cx.mqtt_oracle.no_faults_since(state.since);
        let left_at = state.left_at.take();
        let within = |expiry| {
            left_at.is_some_and(|left_at| cx.now + RETURN_TOLERANCE < left_at + seconds(expiry))
        };
        let is_in_time = within(state.expiry) && state.is_clean_end && is_calm;
        if present && is_late {
            return Err(format!(
                "came back at {connected_at:?} to a session that was over, and it is there: {state:?}"
            ));
        }
        if !present && !clean_start && is_in_time {
            return Err(format!(
                "came back in time, and its session is gone: {state:?}"
            ));
        }
        if let (Some(id), false) = (state.left_will.take(), clean_start) {
            cx.mqtt_oracle
                .client_returned_before_will(cx.now, id, connected_at);
        }
        // The part of the session that is in memory also expires.
        if !(present && within(state.min_expiry)) {
            self.epoch += 1;
        }
        state.is_certain = is_in_time || !present;
        state.since = connected_at;
        state.accepted_at = cx.now;
        (state.is_clean_end, state.is_leaving) = (false, false);
        state.expiry = state.terms.expiry;
        state.min_expiry = state.expiry;
        let is_other = present && !is_in_time && !self.has_known_subscriptions(cx);
        Ok(is_other)
    }

    /// Whether the session has the subscriptions that the client knows. An earlier CONNECT without an answer may have
    /// started another session.
    fn has_known_subscriptions(&self, cx: &RunContext<'_>) -> bool {
        let queue = self.queue().unwrap_or_default();
        let mut filters = self.plan.filters.iter();
        filters.all(|(filter, _)| {
            cx.mqtt_oracle
                .subscribed_since(self.number, filter)
                .is_none()
                || (cx.find_bound_queue)(&queue, filter).is_some()
        })
    }

    /// The server reports that it ended the session, which is right only after its expiry.
    pub(super) fn expiring_session_ended(&mut self, cx: &RunContext<'_>) -> Result<(), String> {
        let state = &self.expiring_session;
        match state.is_certain && cx.mqtt_oracle.no_faults_since(state.since) {
            true => Err(format!(
                "its session was ended while it was there: {state:?}"
            )),
            false => Ok(()),
        }
    }

    /// Its turn.
    pub(super) fn act_with_expiring_session(&mut self, cx: &mut RunContext<'_>) -> ClientAction {
        match cx.faults_ended_at {
            Some(faults_ended_at) => self.act_after_faults(faults_ended_at, cx),
            None if self.rng.below(12) > 0 => ClientAction::Continue,
            None => {
                let (leave_mode, return_time) = self.plan_departure(cx.now);
                self.clean_start = self.rng.chance(1, 6);
                self.leave_connection(leave_mode, return_time, cx)
            }
        }
    }

    fn plan_departure(&mut self, now: Time) -> (LeaveMode, ReturnTime) {
        let (rng, state) = (&mut self.rng, &self.expiring_session);
        let random_expiry = |rng: &mut SeededRng| rng.chance(1, 2).then(|| rng.below(4) as u32);
        let leave_mode = match rng.below(8) {
            0..3 => LeaveMode::Close,
            3 => LeaveMode::Reconnect,
            n => LeaveMode::Disconnect {
                will: n < 6,
                expiry: random_expiry(rng),
            },
        };
        let expiry = match leave_mode {
            LeaveMode::Disconnect {
                expiry: Some(n), ..
            } => n,
            _ => state.expiry,
        };
        let expiry_ms = u64::from(expiry) * 1000;
        let return_time = match rng.below(4) {
            0 | 1 => ReturnTime::At(now + millis(0, expiry_ms + 1, rng)),
            2 => ReturnTime::At(now + millis(expiry_ms, 3000, rng)),
            _ => ReturnTime::AfterExpiry,
        };
        (leave_mode, return_time)
    }

    /// Its turn after the faults.
    fn act_after_faults(&mut self, faults_ended_at: Time, cx: &mut RunContext<'_>) -> ClientAction {
        match self.expiring_session.scene_state {
            SceneState::Pending if cx.now >= faults_ended_at + FAULT_EFFECT_TIME => {
                let (will, expiry) = (false, None);
                self.clean_start = false;
                self.leave_connection(
                    LeaveMode::Disconnect { will, expiry },
                    ReturnTime::At(cx.now),
                    cx,
                )
            }
            SceneState::Running(scene) if self.has_settled(cx) => {
                let leave_mode = scene.leave_mode(self.expiring_session.terms, &mut self.rng);
                let return_time = scene.return_time(cx.now, &mut self.rng);
                self.clean_start = scene == FinalScene::CleanStart;
                let check_time = match scene {
                    FinalScene::BeforeWill => {
                        seconds(self.expiring_session.terms.delay.unwrap_or(0)) + CHECK_TIME
                    }
                    _ => Duration::ZERO,
                };
                self.expiring_session.scene_state = SceneState::Checking(cx.now + check_time);
                self.leave_connection(leave_mode, return_time, cx)
            }
            SceneState::Checking(until) if cx.now >= until => {
                self.final_phase.has_reconnected = true;
                ClientAction::Continue
            }
            _ => ClientAction::Continue,
        }
    }

    fn has_settled(&self, cx: &RunContext<'_>) -> bool {
        let mut filters = self.plan.filters.iter();
        cx.now >= self.expiring_session.accepted_at + SETTLE_TIME
            && filters.all(|(f, _)| cx.mqtt_oracle.subscribed_since(self.number, f).is_some())
    }

    fn leave_connection(
        &mut self,
        leave_mode: LeaveMode,
        return_time: ReturnTime,
        cx: &mut RunContext<'_>,
    ) -> ClientAction {
        let mut publishes_will = true;
        if self.has_settled(cx) && cx.mqtt_oracle.no_faults_since(self.expiring_session.since) {
            // All requests of earlier connections are processed.
            self.expiring_session.max_expiry = self.expiring_session.expiry;
        }
        if let LeaveMode::Disconnect { will, expiry } = leave_mode {
            publishes_will = will;
            let state = &mut self.expiring_session;
            if let Some(n) = expiry {
                state.expiry = n;
                (state.min_expiry, state.max_expiry) =
                    (state.min_expiry.min(n), state.max_expiry.max(n));
            }
            self.send(&Packet::Disconnect(Disconnect {
                reason: match will {
                    true => ReasonCode::DisconnectWithWill,
                    false => ReasonCode::Success,
                },
                properties: Properties {
                    session_expiry: expiry,
                    ..Properties::default()
                },
            }));
        }
        let state = &mut self.expiring_session;
        match self.will.take() {
            Some(id) if publishes_will => {
                let wait = state.terms.delay.unwrap_or(0).min(state.expiry);
                cx.mqtt_oracle
                    .delayed_will_left(cx.now, id, seconds(wait), cx.find_bound_queue);
                state.left_will = Some(id);
            }
            Some(id) => cx.mqtt_oracle.will_cancelled(state.since, id),
            None => {}
        }
        state.is_leaving = true;
        state.return_time = return_time;
        match leave_mode {
            LeaveMode::Reconnect => ClientAction::Reconnect,
            _ => ClientAction::Disconnect,
        }
    }

    /// Handles the end of a connection. `open`: it had been accepted.
    pub(super) fn expiring_session_disconnected(&mut self, open: bool, cx: &mut RunContext<'_>) {
        let state = &mut self.expiring_session;
        state.last_ended = cx.now;
        if open {
            state.left_at = Some(cx.now);
            state.is_clean_end = state.is_leaving && cx.now >= state.accepted_at + SETTLE_TIME;
        } else {
            // The effect of this connection on the session is not known.
            state.is_clean_end = false;
            if let Some(id) = state.left_will.take() {
                cx.mqtt_oracle.unknown(id);
            }
        }
        if let Some(id) = self.will.take() {
            cx.mqtt_oracle.unknown(id);
        }
    }

    /// Whether the client stays away.
    pub(super) fn is_away(&self, cx: &RunContext<'_>) -> bool {
        if !self.plan.expiring_session || self.expiring_session.left_at.is_none() {
            return false;
        }
        // An abandoned connection may last until the client has another one.
        let has_abandoned = cx.faults_ended_at.is_some() && !self.abandoned.is_empty();
        match self.expiring_session.return_time {
            _ if has_abandoned => false,
            ReturnTime::At(at) => cx.now < at,
            ReturnTime::AfterExpiry => !self.has_session_expired(cx.now, cx.mqtt_oracle),
        }
    }

    /// Whether its session has expired, in spite of any fault since.
    pub(super) fn has_session_expired(&self, now: Time, mqtt_oracle: &MqttOracle) -> bool {
        let state = &self.expiring_session;
        let latest = state
            .last_ended
            .max(mqtt_oracle.faults_until)
            .max(state.leader_since);
        state.left_at.is_some()
            && self.abandoned.is_empty()
            && now > latest + seconds(state.max_expiry) + DELETION_TIME
    }

    /// Whether its session has expired and it has not returned, so that the queue of the session must not exist.
    pub(super) fn has_expired(&self, now: Time, mqtt_oracle: &MqttOracle) -> bool {
        self.plan.expiring_session
            && self.link.is_none()
            && self.has_session_expired(now, mqtt_oracle)
    }

    /// Records its queue and the term of the queue's leader.
    pub(super) fn record_leader(&mut self, now: Time, leader: (QueueId, u64)) {
        if self
            .expiring_session
            .leader
            .is_none_or(|last| last < leader)
        {
            (
                self.expiring_session.leader,
                self.expiring_session.leader_since,
            ) = (Some(leader), now);
        }
    }

    /// Whether messages must be published for it.
    pub(super) fn expects_messages(&self) -> bool {
        let is_away_after_expiry = self.plan.expiring_session
            && self.link.is_none()
            && self.expiring_session.return_time == ReturnTime::AfterExpiry;
        !self.plan.filters.is_empty()
            && self.plan.inspects_retained.is_none()
            && !is_away_after_expiry
    }
}
