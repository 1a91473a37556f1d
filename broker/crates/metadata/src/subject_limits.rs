//! Names and values of the limits that a virtual host or a user may have.

use crate::features::QUOTAS;
use crate::{ChangeError, Tree};

/// Connections that may be open.
pub const MAX_CONNECTIONS: &str = "max-connections";
/// Channels and AMQP 1.0 sessions that may be open.
pub const MAX_CHANNELS: &str = "max-channels";
/// Queues that may exist. Only of virtual hosts.
pub const MAX_QUEUES: &str = "max-queues";
/// Published messages per second.
pub const MAX_MESSAGE_RATE: &str = "max-message-rate";
/// Bytes of bodies and properties of published messages per second.
pub const MAX_BYTE_RATE: &str = "max-byte-rate";

/// Body bytes of messages that the queues of a virtual host store. Only of virtual hosts.
pub const MAX_STORED_BYTES: &str = "max-stored-bytes";

/// Limits that a virtual host may have.
pub const VHOST_LIMITS: &[&str] = &[
    MAX_CONNECTIONS,
    MAX_QUEUES,
    MAX_CHANNELS,
    MAX_MESSAGE_RATE,
    MAX_BYTE_RATE,
    MAX_STORED_BYTES,
];

/// Limits that a user may have.
pub const USER_LIMITS: &[&str] = &[
    MAX_CONNECTIONS,
    MAX_CHANNELS,
    MAX_MESSAGE_RATE,
    MAX_BYTE_RATE,
];

/// The limit with this name, of a virtual host or a user. `None`: no limit, which is also the meaning of a negative value.
pub fn find_limit(limits: &[(crate::Name, i64)], name: &str) -> Option<u64> {
    let (_, limit) = limits.iter().find(|(known, _)| &**known == name)?;
    u64::try_from(*limit).ok()
}

/// Returns true for limits that slow publishers down or block them, where the others refuse what exceeds them.
fn is_quota(limit: &str) -> bool {
    matches!(limit, MAX_MESSAGE_RATE | MAX_BYTE_RATE | MAX_STORED_BYTES)
}

/// What a limit belongs to.
#[derive(Clone, Copy)]
pub(crate) enum LimitHolder<'a> {
    Vhost(&'a str),
    User(&'a str),
}

impl LimitHolder<'_> {
    fn kind(self) -> &'static str {
        match self {
            LimitHolder::Vhost(_) => "vhost",
            LimitHolder::User(_) => "user",
        }
    }

    fn name(&self) -> &str {
        match self {
            LimitHolder::Vhost(name) | LimitHolder::User(name) => name,
        }
    }

    fn known_limits(self) -> &'static [&'static str] {
        match self {
            LimitHolder::Vhost(_) => VHOST_LIMITS,
            LimitHolder::User(_) => USER_LIMITS,
        }
    }

    /// Returns true if versions before the feature flag `quotas` do not know the limit.
    fn needs_flag(self, limit: &str) -> bool {
        is_quota(limit) || matches!(self, LimitHolder::Vhost(_)) && limit == MAX_CHANNELS
    }
}

impl Tree {
    /// Checks a limit that is to be set, or cleared if there is no value.
    pub(crate) fn check_limit(
        &self,
        holder: LimitHolder<'_>,
        limit: &str,
        value: Option<i64>,
    ) -> Result<(), ChangeError> {
        let (kind, name, known) = (holder.kind(), holder.name(), holder.known_limits());
        if !known.contains(&limit) {
            return Err(ChangeError::Invalid(format!(
                "unrecognised {kind} limit '{limit}': {} are known",
                known.join(", ")
            )));
        }
        let Some(value) = value else {
            return Ok(());
        };
        if holder.needs_flag(limit) && !self.feature_enabled(QUOTAS.name) {
            return Err(ChangeError::PreconditionFailed(format!(
                "{limit} of {kind} '{name}' needs the feature flag '{}', which is disabled: enable it after all nodes are upgraded",
                QUOTAS.name
            )));
        }
        if is_quota(limit) && value == 0 {
            return Err(ChangeError::Invalid(format!(
                "{limit} of {kind} '{name}' must not be 0, because publishers would wait for ever: set at least 1, or -1 for no limit"
            )));
        }
        Ok(())
    }
}
