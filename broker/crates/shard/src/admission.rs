//! Admission of connections and channels against the limits of users and virtual hosts.

use crate::core::Core;
use crate::limit_usage::{LimitSubject, OpenCounts};
use crate::logged_in::EndedLogin;
use crate::sessions::key_of;

impl Core {
    /// Whether this user may open one more connection; the limit when it may not.
    pub fn admit(&mut self, number: u64, user: &str) -> Result<(), u64> {
        if let Some(limit) = self.user_limit(user, "max-connections")
            && self.open_by(user).connections >= limit
        {
            return Err(limit);
        }
        if let Some(left) = self.accounts.log_in(key_of(number), user) {
            self.left(left);
        }
        self.all_counters.connections_opened += 1;
        self.user_counts(number);
        Ok(())
    }

    /// As [`Core::admit`] for the vhost's limit.
    pub fn admit_to(&mut self, number: u64, vhost: &str) -> Result<(), u64> {
        let known = self.tree.vhost(vhost);
        if let Some(limit) = known.and_then(|v| v.limit("max-connections")) {
            let elsewhere = self
                .limit_usage
                .elsewhere(&LimitSubject::Vhost(vhost.into()));
            let open = self.accounts.of_vhost(vhost).connections + elsewhere.connections;
            if open >= limit {
                return Err(limit);
            }
        }
        self.accounts.open_vhost(key_of(number), vhost);
        self.note_use(LimitSubject::Vhost(vhost.into()));
        Ok(())
    }

    pub fn open_channel(&mut self, number: u64) -> Result<(), u64> {
        let Some(user) = self.accounts.user_of(key_of(number)) else {
            return Ok(());
        };
        if let Some(limit) = self.user_limit(user, "max-channels")
            && self.open_by(user).channels >= limit
        {
            return Err(limit);
        }
        if self.accounts.count_channel(key_of(number), true) {
            self.all_counters.channels_opened += 1;
            self.user_counts(number);
        }
        Ok(())
    }

    pub fn close_channel(&mut self, number: u64) {
        if self.accounts.count_channel(key_of(number), false) {
            self.all_counters.channels_closed += 1;
            self.user_counts(number);
        }
    }

    /// The session is over.
    pub fn log_out(&mut self, number: u64) {
        if let Some(left) = self.accounts.log_out(key_of(number)) {
            self.all_counters.connections_closed += 1;
            self.all_counters.channels_closed += u64::from(left.channels);
            self.left(left);
        }
    }

    fn left(&mut self, left: EndedLogin) {
        if let Some(at) = left.counted {
            self.all_counters.leave(at);
        }
        self.note_use(LimitSubject::User(left.user));
        if let Some(vhost) = left.vhost {
            self.note_use(LimitSubject::Vhost(vhost));
        }
    }

    /// In the cluster, as far as it is known here.
    fn open_by(&self, user: &str) -> OpenCounts {
        self.accounts.of_user(user) + self.limit_usage.elsewhere(&LimitSubject::User(user.into()))
    }

    fn user_counts(&mut self, number: u64) {
        if let Some(user) = self.accounts.user_of(key_of(number)) {
            self.note_use(LimitSubject::User(user.clone()));
        }
    }

    /// None: no limit; a negative one is none.
    fn user_limit(&self, user: &str, name: &str) -> Option<u64> {
        let limits = &self.tree.user(user)?.limits;
        let limit = limits.iter().find(|(known, _)| &**known == name)?.1;
        u64::try_from(limit).ok()
    }
}
