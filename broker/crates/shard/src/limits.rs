//! The limits of users, virtual hosts and the node's memory, and the counters that depend on logins.
//!
//! Owns: the logged-in sessions with their open channels, the usage that other shards announce ([`LimitUsage`]), the rate
//! limits of this shard ([`Quotas`]), password checks under way, the counters of sessions, the memory account of the shard, and the accounts whose connections must end.
//!
//! Inputs: what sessions do (log in, open a channel, count messages), usage frames of other shards, changes of users and
//! virtual hosts in the tree.
//!
//! Outputs: usage frames through the [`Context`], refusals as return values, [`RemovedAccount`]s that the loop takes one by
//! one.

use crate::ConnectionKey;
use crate::config::ShardConfig;
use crate::context::Context;
use crate::counters::Counters;
use crate::limit_usage::frame::{LimitUsageFrame, PublisherActivityFrame};
use crate::limit_usage::{LimitSubject, LimitUsage, OpenCounts};
use crate::logged_in::{EndedLogin, LoggedInSessions};
use crate::logins::{
    CheckId, IdentificationResult, LoginBackend, Logins, StartCheck, StartIdentification,
};
use crate::peers::Peers;
use crate::quotas::{self, Quotas};
use crate::sessions::key_of;
use crate::shard::Account;
use crate::shard::RemovedAccount;
use crate::stored_bytes::StoredBytesQuotas;
use crate::stored_bytes::frame::StoredBytesFrame;
use auth::PasswordHash;
use env::{NodeId, Time};
use metadata::{Change, MAX_CHANNELS, MAX_CONNECTIONS, Name, Tree, find_limit};
use session::{ChannelLimit, MessageCounters, PasswordCheck, SessionOwner};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of clients without a login that may send a large packet at the same time. A packet has 196 KiB at most by
/// default.
const MAX_UNKNOWN: u32 = 64;

pub(crate) struct Limits {
    sessions: LoggedInSessions,
    usage: LimitUsage,
    quotas: Quotas,
    stored_bytes: StoredBytesQuotas,
    /// Sessions have got rate limits, or have lost them, since [`Limits::take_quota_changes`].
    quotas_changed: bool,
    logins: Logins,
    counters: Counters,
    budget: Account,
    /// Clients without a login that send a large packet.
    unknown: u32,
    /// Accounts whose connections must be closed.
    removed: VecDeque<RemovedAccount>,
}

impl Limits {
    /// `key` as for [`Logins::new`].
    pub(crate) fn new(config: &ShardConfig, key: [u8; 32]) -> Limits {
        Limits {
            sessions: LoggedInSessions::default(),
            usage: LimitUsage::default(),
            quotas: Quotas::default(),
            stored_bytes: StoredBytesQuotas::default(),
            quotas_changed: false,
            logins: Logins::new(key),
            counters: Counters::default(),
            budget: Account::new(config.budget.clone(), config.shards),
            unknown: 0,
            removed: VecDeque::new(),
        }
    }

    pub(crate) fn sessions(&self) -> &LoggedInSessions {
        &self.sessions
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(crate) fn budget(&mut self) -> &mut Account {
        &mut self.budget
    }

    /// See [`session::Broker::hold_unknown`].
    pub(crate) fn hold_unknown(&mut self, begins: bool) -> bool {
        if !begins {
            self.unknown = self.unknown.saturating_sub(1);
            return true;
        }
        let has_room = self.unknown < MAX_UNKNOWN;
        self.unknown += u32::from(has_room);
        has_room
    }

    /// See [`session::Broker::account`].
    pub(crate) fn owner(&mut self, user: &str, vhost: &str, tree: &Tree) -> Arc<SessionOwner> {
        self.sessions.shared(user, vhost, tree)
    }

    /// Logs a session in. Returns the user's connection limit as the error if it is reached.
    pub(crate) fn admit(
        &mut self,
        now: Time,
        tree: &Tree,
        number: u64,
        user: &str,
    ) -> Result<(), u64> {
        if let Some(limit) = user_limit(tree, user, MAX_CONNECTIONS)
            && self.open_by(user).connections >= limit
        {
            return Err(limit);
        }
        if let Some(ended) = self.sessions.log_in(key_of(number), user) {
            self.end_login(tree, ended);
        }
        self.counters.connections_opened += 1;
        self.note_user_usage(tree, number);
        let subject = LimitSubject::User(user.into());
        if quotas::has_rates(tree, &subject) {
            self.refresh_quota(now, tree, &subject);
        }
        Ok(())
    }

    /// As [`Limits::admit`] for the limit of a virtual host.
    pub(crate) fn admit_to(
        &mut self,
        now: Time,
        tree: &Tree,
        number: u64,
        vhost: &str,
    ) -> Result<(), u64> {
        let known = tree.vhost(vhost);
        if let Some(limit) = known.and_then(|v| v.limit(MAX_CONNECTIONS)) {
            let elsewhere = self.usage.elsewhere(&LimitSubject::Vhost(vhost.into()));
            let open = self.sessions.of_vhost(vhost).connections + elsewhere.connections;
            if open >= limit {
                return Err(limit);
            }
        }
        self.sessions.open_vhost(key_of(number), vhost);
        let subject = LimitSubject::Vhost(vhost.into());
        if quotas::has_rates(tree, &subject) {
            self.refresh_quota(now, tree, &subject);
        }
        self.usage.note(tree, subject);
        Ok(())
    }

    /// Counts one more channel. Returns the limit of the user or the virtual host as the error if it is reached.
    pub(crate) fn open_channel(&mut self, tree: &Tree, number: u64) -> Result<(), ChannelLimit> {
        let Some(user) = self.sessions.user_of(key_of(number)) else {
            return Ok(());
        };
        if let Some(limit) = user_limit(tree, user, MAX_CHANNELS)
            && self.open_by(user).channels >= limit
        {
            let of_vhost = false;
            return Err(ChannelLimit { of_vhost, limit });
        }
        if let Some(vhost) = self.sessions.vhost_of(key_of(number))
            && let Some(limit) = vhost_channel_limit(tree, vhost)
        {
            let elsewhere = self.usage.elsewhere(&LimitSubject::Vhost(vhost.clone()));
            if self.sessions.of_vhost(vhost).channels + elsewhere.channels >= limit {
                let of_vhost = true;
                return Err(ChannelLimit { of_vhost, limit });
            }
        }
        if self.sessions.count_channel(key_of(number), true) {
            self.counters.channels_opened += 1;
            self.note_channel_usage(tree, number);
        }
        Ok(())
    }

    pub(crate) fn close_channel(&mut self, tree: &Tree, number: u64) {
        if self.sessions.count_channel(key_of(number), false) {
            self.counters.channels_closed += 1;
            self.note_channel_usage(tree, number);
        }
    }

    /// Logs a session out that has ended.
    pub(crate) fn log_out(&mut self, tree: &Tree, number: u64) {
        self.logins.session_ended(number);
        if let Some(ended) = self.sessions.log_out(key_of(number)) {
            self.counters.connections_closed += 1;
            self.counters.channels_closed += u64::from(ended.channels);
            self.end_login(tree, ended);
        }
    }

    fn end_login(&mut self, tree: &Tree, ended: EndedLogin) {
        if let Some(at) = ended.counted {
            self.counters.leave(at);
        }
        self.usage.note(tree, LimitSubject::User(ended.user));
        if let Some(vhost) = ended.vhost {
            self.usage.note(tree, LimitSubject::Vhost(vhost));
        }
    }

    /// The user's open connections and channels in the cluster, as far as this shard knows.
    fn open_by(&self, user: &str) -> OpenCounts {
        self.sessions.of_user(user) + self.usage.elsewhere(&LimitSubject::User(user.into()))
    }

    fn note_user_usage(&mut self, tree: &Tree, number: u64) {
        if let Some(user) = self.sessions.user_of(key_of(number)) {
            self.usage.note(tree, LimitSubject::User(user.clone()));
        }
    }

    fn note_channel_usage(&mut self, tree: &Tree, number: u64) {
        self.note_user_usage(tree, number);
        if let Some(vhost) = self.sessions.vhost_of(key_of(number))
            && vhost_channel_limit(tree, vhost).is_some()
        {
            self.usage.note(tree, LimitSubject::Vhost(vhost.clone()));
        }
    }

    /// Brings the quota of a subject with sessions on this shard up to date with the tree.
    fn refresh_quota(&mut self, now: Time, tree: &Tree, subject: &LimitSubject) {
        let open = match subject {
            LimitSubject::User(name) => self.sessions.of_user(name),
            LimitSubject::Vhost(name) => self.sessions.of_vhost(name),
        };
        let before = self.quotas.index_of(subject);
        if before.is_none() && open.connections == 0 {
            return;
        }
        let shards = self.usage.publishing_elsewhere(subject).saturating_add(1);
        let quota = self.quotas.refresh(now, tree, subject, shards);
        match subject {
            LimitSubject::User(name) => self.sessions.set_user_quota(name, quota),
            LimitSubject::Vhost(name) => self.sessions.set_vhost_quota(name, quota),
        }
        self.quotas_changed |= quota != before;
    }

    /// The limits of a user or a virtual host may have changed: its usage and its publishers are announced.
    fn handle_new_limits(&mut self, now: Time, tree: &Tree, subject: LimitSubject) {
        match quotas::has_rates(tree, &subject) {
            true => self.usage.note_publishing(subject.clone()),
            false => self.usage.forget_publishing(&subject),
        }
        self.refresh_quota(now, tree, &subject);
        if let LimitSubject::Vhost(name) = &subject {
            self.stored_bytes.refresh(now, tree, name);
        }
        self.usage.note(tree, subject);
    }

    /// A change of the tree that was applied: new limits of a user or a virtual host are announced.
    pub(crate) fn handle_change(&mut self, now: Time, tree: &Tree, change: &Change) {
        let subject = match change {
            Change::SetVhostLimit { vhost, .. } => LimitSubject::Vhost(vhost.clone()),
            Change::SetUserLimit { user, .. } => LimitSubject::User(user.clone()),
            Change::PutUser(record) => LimitSubject::User(record.name.clone()),
            _ => return,
        };
        self.handle_new_limits(now, tree, subject);
    }

    /// The tree was replaced by a checkpoint.
    pub(crate) fn handle_new_tree(&mut self, now: Time, tree: &Tree) {
        self.counters.keep_vhosts(|name| tree.vhost_exists(name));
        self.announce_all_usage(tree);
        self.stored_bytes.refresh_all(now, tree);
        let (users, vhosts) = self.sessions.names();
        let users = users.cloned().map(LimitSubject::User);
        let with_sessions = users.chain(vhosts.cloned().map(LimitSubject::Vhost));
        let mut subjects = self.quotas.subjects();
        subjects.extend(with_sessions.filter(|subject| quotas::has_rates(tree, subject)));
        subjects.sort_unstable();
        subjects.dedup();
        for subject in subjects {
            self.handle_new_limits(now, tree, subject);
        }
    }

    pub(crate) fn handle_vhost_removed(&mut self, now: Time, tree: &Tree, name: Name) {
        self.counters.vhost_removed(&name);
        self.stored_bytes.forget(&name);
        let subject = LimitSubject::Vhost(name.clone());
        self.usage.forget(&subject);
        self.refresh_quota(now, tree, &subject);
        self.removed.push_back(RemovedAccount::Vhost(name));
    }

    pub(crate) fn handle_user_removed(&mut self, now: Time, tree: &Tree, name: Name) {
        let subject = LimitSubject::User(name.clone());
        self.usage.forget(&subject);
        self.refresh_quota(now, tree, &subject);
        self.removed.push_back(RemovedAccount::User(name));
    }

    /// The next account whose connections must be closed.
    pub(crate) fn next_removed(&mut self) -> Option<RemovedAccount> {
        self.removed.pop_front()
    }

    /// A node is linked. It gets the usage of this shard, and announces its own anew.
    /// A node is up, with this number of shards.
    pub(crate) fn handle_node_up(
        &mut self,
        ctx: &mut Context,
        tree: &Tree,
        (node, shards): (NodeId, u16),
    ) {
        self.handle_node_down(ctx.now(), node);
        let here = (&self.sessions, &self.quotas);
        self.usage.send_to(ctx, tree, here, (node, shards));
        self.stored_bytes.send_to(ctx, (node, shards));
    }

    pub(crate) fn handle_node_down(&mut self, now: Time, node: NodeId) {
        self.usage.forget_node(node);
        self.stored_bytes.forget_node(node);
        for subject in self.quotas.subjects() {
            self.update_share(now, &subject);
        }
    }

    /// The number of shards that share a rate limit may have changed.
    fn update_share(&mut self, now: Time, subject: &LimitSubject) {
        let shards = self.usage.publishing_elsewhere(subject).saturating_add(1);
        self.quotas.set_shards(now, subject, shards);
    }

    /// Another shard announces subjects with active publishers.
    pub(crate) fn handle_activity_frame(
        &mut self,
        now: Time,
        from: NodeId,
        frame: PublisherActivityFrame,
    ) {
        let subjects: Vec<_> = frame.subjects.iter().map(|(s, _)| s.clone()).collect();
        self.usage.hear_publishing(from, frame);
        for subject in subjects {
            self.update_share(now, &subject);
        }
    }

    /// Returns true if sessions have got rate limits, or have lost them, since the last call.
    pub(crate) fn take_quota_changes(&mut self) -> bool {
        std::mem::take(&mut self.quotas_changed)
    }

    /// Returns true if a rate limit applies to the session of a connection.
    pub(crate) fn has_quota(&self, key: ConnectionKey) -> bool {
        let quotas = self.sessions.quotas_of(key.0);
        quotas.iter().any(Option::is_some)
    }

    /// Takes the messages that a session has received from its quotas.
    pub(crate) fn charge(&mut self, now: Time, key: ConnectionKey, counted: &MessageCounters) {
        let quotas = self.sessions.quotas_of(key.0);
        let amount = (counted.publishes.received, counted.published_bytes);
        for subject in self
            .quotas
            .charge(now, quotas, amount)
            .into_iter()
            .flatten()
        {
            self.usage.note_publishing(subject);
        }
    }

    /// See [`Quotas::readable_bytes`].
    pub(crate) fn readable_bytes(&mut self, now: Time, key: ConnectionKey) -> Option<usize> {
        let quotas = self.sessions.quotas_of(key.0);
        self.quotas.readable_bytes(now, quotas)
    }

    /// Messages that all sessions with quotas have received.
    pub(crate) fn charged_messages(&self) -> u64 {
        self.quotas.charged()
    }

    /// See [`Quotas::note_input`].
    pub(crate) fn note_input(&mut self, key: ConnectionKey, messages: u64, bytes: usize) {
        let quotas = self.sessions.quotas_of(key.0);
        self.quotas.note_input(quotas, messages, bytes);
    }

    /// See [`Quotas::throttle`].
    pub(crate) fn throttle(&mut self, now: Time, key: ConnectionKey, number: u64) {
        let quotas = self.sessions.quotas_of(key.0);
        self.quotas.throttle(now, quotas, number);
    }

    /// See [`Quotas::forget_throttled`].
    pub(crate) fn forget_throttled(&mut self, now: Time, key: ConnectionKey, number: u64) {
        let quotas = self.sessions.quotas_of(key.0);
        self.quotas.forget_throttled(now, quotas, number);
    }

    /// Returns true if [`Limits::release_throttled`] has something to do.
    pub(crate) fn quotas_are_due(&self, now: Time) -> bool {
        self.quotas.wake_at().is_some_and(|at| at <= now)
    }

    /// Sessions whose connections are to be read again.
    pub(crate) fn release_throttled(&mut self, now: Time) -> Vec<u64> {
        for subject in self.quotas.tick(now) {
            self.usage.note_publishing(subject);
        }
        self.quotas.take_released()
    }

    /// The time for which connections were paused because of rate limits.
    pub(crate) fn quota_paused(&self, now: Time) -> Duration {
        self.quotas.paused(now)
    }

    /// The quotas of stored bytes.
    pub(crate) fn stored_bytes(&self) -> &StoredBytesQuotas {
        &self.stored_bytes
    }

    /// As [`Self::stored_bytes`].
    pub(crate) fn stored_bytes_mut(&mut self) -> &mut StoredBytesQuotas {
        &mut self.stored_bytes
    }

    /// Another shard announces what it stores.
    pub(crate) fn handle_stored_bytes(&mut self, from: NodeId, frame: StoredBytesFrame) {
        self.stored_bytes.hear(from, frame);
    }

    /// Why the publishers of a session's virtual host are blocked, other than by an alarm.
    pub(crate) fn blocked_by_quota(&self, number: u64) -> Option<&'static str> {
        let vhost = self.sessions.vhost_of(key_of(number))?;
        self.stored_bytes.blocked(vhost)
    }

    pub(crate) fn handle_usage_frame(&mut self, from: NodeId, frame: LimitUsageFrame) {
        self.usage.hear(from, frame);
    }

    pub(crate) fn announce_all_usage(&mut self, tree: &Tree) {
        self.usage.note_all(tree, &self.sessions);
    }

    /// Announces the changed usage at the end of a turn.
    pub(crate) fn flush(&mut self, ctx: &mut Context, tree: &Tree, peers: &Peers) {
        let here = (&self.sessions, &self.quotas);
        self.usage.flush(ctx, tree, here, peers);
    }

    pub(crate) fn check_passwords_with(&mut self, start: StartCheck) {
        self.logins.check_elsewhere(start);
    }

    /// See [`Logins::verify`].
    pub(crate) fn verify(
        &mut self,
        now: Time,
        client: (u64, SocketAddr),
        user: &str,
        hash_and_password: (&PasswordHash, &[u8]),
    ) -> PasswordCheck {
        self.logins.verify(now, client, user, hash_and_password)
    }

    /// The result of a password check: notifies the sessions that wait for it. A refusal may be held back until [`Limits::tick`].
    pub(crate) fn handle_check_result(&mut self, ctx: &mut Context, id: CheckId, right: bool) {
        for (session, verdict) in self.logins.checked(ctx.now(), id, right) {
            // A session that has ended meanwhile ignores it.
            ctx.notify(session, session::ControlEvent::Verified { verdict }.into());
        }
    }

    pub(crate) fn identify_with(
        &mut self,
        backends: Arc<[LoginBackend]>,
        identify: StartIdentification,
    ) {
        self.logins.identify_with(backends, identify);
    }

    /// See [`Logins::renew`].
    pub(crate) fn renew(
        &mut self,
        client: (u64, SocketAddr),
        identity: &metadata::Identity,
        secret: &[u8],
    ) -> PasswordCheck {
        self.logins.renew(client, identity, secret)
    }

    /// The answer of an external backend.
    pub(crate) fn handle_identified(
        &mut self,
        ctx: &mut Context,
        id: u64,
        result: IdentificationResult,
    ) {
        let times = (ctx.now(), ctx.wall());
        if let Some((session, verdict)) = self.logins.identified(times, id, result) {
            ctx.notify(session, session::ControlEvent::Verified { verdict }.into());
        }
    }

    pub(crate) fn count_login(&mut self, protocol: &'static str, succeeded: bool) {
        self.counters.count_login(protocol, succeeded);
    }

    pub(crate) fn count_stream_connection(&mut self, change: i64) {
        self.counters.count_stream_connection(change);
    }

    pub(crate) fn count_stream_error(&mut self, error: &'static str) {
        self.counters.count_stream_error(error);
    }

    /// Adds the messages that a session has counted since its last call.
    pub(crate) fn count_messages(
        &mut self,
        tree: &Tree,
        number: u64,
        protocol: &'static str,
        counted: &MessageCounters,
    ) {
        let key = key_of(number);
        let at = match self.sessions.counted_at(key) {
            Some(at) => at,
            None => match self.sessions.vhost_of(key) {
                Some(vhost) if tree.vhost_exists(vhost) => {
                    let at = self.counters.join(protocol, vhost);
                    self.sessions.count_at(key, at);
                    at
                }
                _ => return self.counters.add(protocol, counted),
            },
        };
        self.counters.add_at(at, counted);
    }

    /// Adds messages of a virtual host that belong to no connection.
    pub(crate) fn count_internal_messages(
        &mut self,
        tree: &Tree,
        vhost: &Name,
        protocol: &'static str,
        counted: &MessageCounters,
    ) {
        if !tree.vhost_exists(vhost) {
            return self.counters.add(protocol, counted);
        }
        let at = self.counters.join(protocol, vhost);
        self.counters.add_at(at, counted);
        self.counters.leave(at);
    }

    /// Gives the refusals of logins that were held back until now, and ends sessions whose identity has expired.
    pub(crate) fn tick(&mut self, ctx: &mut Context) {
        if !self.logins.has_timers() {
            return;
        }
        for (session, verdict) in self.logins.due(ctx.now()) {
            // A session that has ended meanwhile ignores it.
            ctx.notify(session, session::ControlEvent::Verified { verdict }.into());
        }
        for session in self.logins.expired(ctx.now()) {
            ctx.notify(session, session::ControlEvent::Expired.into());
        }
    }

    pub(crate) fn wake_at(&self) -> Option<Time> {
        let times = [
            self.logins.wake_at(),
            self.usage.wake_at(),
            self.quotas.wake_at(),
            self.stored_bytes.wake_at(),
        ];
        Time::earliest(times)
    }
}

/// `None`: the user has no such limit. A negative one counts as none.
fn user_limit(tree: &Tree, user: &str, name: &str) -> Option<u64> {
    find_limit(&tree.user(user)?.limits, name)
}

fn vhost_channel_limit(tree: &Tree, vhost: &str) -> Option<u64> {
    tree.vhost(vhost)?.limit(MAX_CHANNELS)
}
