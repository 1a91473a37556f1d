//! Keys of the memory budget for unauthenticated, incomplete and unread client data.

use super::keys::{ConfigKey, number};
use super::values::{parse_bytes, parse_ms};
use shard::MemoryBudget;
use std::time::Duration;

/// Shares of the memory limit and of the budget are fractions of 1.
#[derive(Clone, Debug, PartialEq)]
pub struct BudgetConfig {
    /// Share of the memory limit.
    pub relative: f64,
    /// In bytes; overrides `relative`.
    pub absolute: Option<u64>,
    /// Share of the budget.
    pub unauthenticated: f64,
    /// Share of the budget.
    pub per_connection: f64,
    /// Share of the budget.
    pub per_address: f64,
    /// None: no timeout.
    pub unfinished_timeout: Option<Duration>,
}

impl Default for BudgetConfig {
    fn default() -> BudgetConfig {
        BudgetConfig {
            relative: 0.2,
            absolute: None,
            unauthenticated: 0.25,
            per_connection: 0.125,
            per_address: 0.5,
            unfinished_timeout: Some(Duration::from_secs(30)),
        }
    }
}

impl BudgetConfig {
    /// The budget of a process with this memory limit, if known.
    pub fn of(&self, memory_limit: Option<u64>) -> MemoryBudget {
        // f64 is exact up to 2^52 bytes.
        let share = |of: usize, share: f64| (of as f64 * share) as usize;
        let relative = memory_limit.map(|limit| (limit as f64 * self.relative) as u64);
        let bytes = self.absolute.or(relative);
        let bytes = bytes.map_or(usize::MAX, |b| usize::try_from(b).unwrap_or(usize::MAX));
        MemoryBudget {
            bytes,
            unauthenticated: share(bytes, self.unauthenticated),
            per_connection: share(bytes, self.per_connection),
            per_address: share(bytes, self.per_address),
            unfinished_timeout: self.unfinished_timeout,
            node: Default::default(),
        }
    }
}

const SHARE: &str = "a share between 0.01 and 1";

fn share(text: &str) -> Option<f64> {
    number(text, 0.01, 1.0)
}

pub(super) const BUDGET_KEYS: &[ConfigKey] = &[
    ConfigKey {
        name: "memory_budget.relative",
        accepts: "a share between 0.01 and 0.9",
        default: "0.2",
        doc: "Share of the memory limit (cgroup's, or the machine's memory) for data that clients leave unauthenticated, \
              unfinished or unread. When it is exceeded, the connections that hold most are closed, without a login first. Keep \
              it well below `vm_memory_high_watermark.relative`.",
        set: |c, _, v| number(v, 0.01, 0.9).map(|n| c.memory_budget.relative = n),
    },
    ConfigKey {
        name: "memory_budget.absolute",
        accepts: "1 MiB or more, in bytes or with a unit",
        default: "",
        doc: "The same in bytes, instead of `memory_budget.relative`.",
        set: |c, _, v| {
            let bytes = parse_bytes(v).filter(|b| *b >= 1 << 20)?;
            c.memory_budget.absolute = Some(bytes);
            Some(())
        },
    },
    ConfigKey {
        name: "memory_budget.unauthenticated",
        accepts: SHARE,
        default: "0.25",
        doc: "Share of the memory budget that clients may hold in all before they have logged in.",
        set: |c, _, v| share(v).map(|n| c.memory_budget.unauthenticated = n),
    },
    ConfigKey {
        name: "memory_budget.per_connection",
        accepts: SHARE,
        default: "0.125",
        doc: "Share of the memory budget for one connection. MQTT messages of QoS 0 beyond it are dropped for a client that does not \
              read; when the budget is exceeded, the connection that is furthest above it is closed first.",
        set: |c, _, v| share(v).map(|n| c.memory_budget.per_connection = n),
    },
    ConfigKey {
        name: "memory_budget.per_address",
        accepts: SHARE,
        default: "0.5",
        doc: "Share of the memory budget for all connections from one address. When the budget is exceeded, connections from the \
              address that is furthest above it are closed first.",
        set: |c, _, v| share(v).map(|n| c.memory_budget.per_address = n),
    },
    ConfigKey {
        name: "memory_budget.unfinished_timeout",
        accepts: "milliseconds, 1000 to 86400000; 0: no timeout",
        default: "30000",
        doc: "How long a client that has logged in may leave a message unfinished without continuing it. Then its connection is closed.",
        set: |c, _, v| {
            c.memory_budget.unfinished_timeout = match v {
                "0" => None,
                v => Some(parse_ms(v, 1000, 86_400_000)?),
            };
            Some(())
        },
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_suit_a_small_container() {
        let budget = BudgetConfig::default().of(Some(256 << 20));
        assert_eq!(budget.bytes >> 20, 51);
        assert_eq!(budget.unauthenticated >> 20, 12);
        assert_eq!(budget.per_connection >> 20, 6);
        assert_eq!(budget.per_address >> 20, 25);
    }

    #[test]
    fn absolute_bytes_win_over_the_share() {
        let config = BudgetConfig {
            absolute: Some(8 << 20),
            ..BudgetConfig::default()
        };
        assert_eq!(config.of(Some(256 << 20)).bytes, 8 << 20);
        assert_eq!(BudgetConfig::default().of(None).bytes, usize::MAX);
    }
}
