//! Memory budget of HTTP clients, authenticated or not.

/// HTTP may use 1/`DIVISOR` of the process's memory limit.
const DIVISOR: u64 = 16;
/// Bounds of the HTTP budget, in bytes.
const MIN_BYTES: u64 = 4 << 20;
const MAX_BYTES: u64 = 256 << 20;
/// Assumed memory limit if none is configured, in bytes.
const DEFAULT_LIMIT: u64 = 1 << 30;
/// Upper bound of the memory of one connection: request head, response buffer, both again for TLS,
/// and its task.
const CONNECTION_BYTES: u64 = 64 << 10;
/// Memory of a page of messages, as a multiple of its length: with the answer of the node that has them, in base64.
const REPLY_FACTOR: usize = 3;
/// Memory of a parsed JSON body, as a multiple of its length.
const PARSED_FACTOR: usize = 4;

/// Memory budget in bytes for all HTTP connections and request bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpMemory(u64);

impl HttpMemory {
    /// Derives the budget from the memory limit of the process in bytes.
    pub fn of_limit(limit: Option<u64>) -> HttpMemory {
        let limit = limit.unwrap_or(DEFAULT_LIMIT);
        HttpMemory((limit / DIVISOR).clamp(MIN_BYTES, MAX_BYTES))
    }

    /// Maximum number of connections: they use half of the budget.
    pub(crate) fn connections(self) -> usize {
        usize::try_from(self.0 / 2 / CONNECTION_BYTES).unwrap_or(usize::MAX)
    }

    /// Budget for bodies, the other half, in KiB (the unit of [`HttpMemory::body_cost`]).
    pub(crate) fn bodies(self) -> usize {
        usize::try_from(self.0 / 2 / 1024).unwrap_or(usize::MAX)
    }

    /// Memory in KiB that a body of `bytes` bytes uses while its request is served. Capped so that
    /// a single body is always admitted.
    pub(crate) fn body_cost(self, bytes: usize) -> u32 {
        self.cost(bytes, PARSED_FACTOR)
    }

    /// Memory in KiB that an answer with `bytes` bytes of messages uses. Capped like a body.
    pub(crate) fn reply_cost(self, bytes: usize) -> u32 {
        self.cost(bytes, REPLY_FACTOR)
    }

    fn cost(self, bytes: usize, factor: usize) -> u32 {
        let cost = bytes.saturating_mul(factor).div_ceil(1024);
        u32::try_from(cost.min(self.bodies())).unwrap_or(u32::MAX)
    }
}

impl Default for HttpMemory {
    fn default() -> HttpMemory {
        HttpMemory::of_limit(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_and_bodies_stay_within_budget() {
        for limit in [64 << 20, 256 << 20, 512 << 20, 4 << 30, 1 << 40] {
            let memory = HttpMemory::of_limit(Some(limit));
            let connections = memory.connections() as u64 * CONNECTION_BYTES;
            let bodies = memory.bodies() as u64 * 1024;
            assert!(
                connections + bodies <= (limit / DIVISOR).clamp(MIN_BYTES, MAX_BYTES),
                "{limit}"
            );
            assert!(memory.connections() >= 32, "{limit}");
            let largest = memory.body_cost(crate::MAX_DEFINITIONS) as usize;
            assert!(largest <= memory.bodies(), "{limit}");
        }
        assert_eq!(HttpMemory::of_limit(Some(512 << 20)).connections(), 256);
    }
}
