//! Memory that HTTP clients may make a node use, known users or not.

/// HTTP gets this part of the memory that the process may use.
const DIVISOR: u64 = 16;
/// Least and most that HTTP gets, in bytes.
const LEAST: u64 = 4 << 20;
const MOST: u64 = 256 << 20;
/// Memory limit of a process where none is configured, in bytes.
const UNKNOWN_LIMIT: u64 = 1 << 30;
/// The most memory that one connection takes: a head, an answer's buffer, both again under TLS, and its task.
const CONNECTION: u64 = 64 << 10;
/// The JSON of a body takes so many times the memory of its text.
const PARSED_FACTOR: usize = 4;

/// Bytes for all HTTP connections and for all bodies of requests together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpMemory(u64);

impl HttpMemory {
    /// Derived from the bytes that the process may use.
    pub fn of_limit(limit: Option<u64>) -> HttpMemory {
        let limit = limit.unwrap_or(UNKNOWN_LIMIT);
        HttpMemory((limit / DIVISOR).clamp(LEAST, MOST))
    }

    /// Half of it is for connections.
    pub(crate) fn connections(self) -> usize {
        usize::try_from(self.0 / 2 / CONNECTION).unwrap_or(usize::MAX)
    }

    /// Half of it is for bodies, in [`HttpMemory::body_cost`]'s unit.
    pub(crate) fn bodies(self) -> usize {
        usize::try_from(self.0 / 2 / 1024).unwrap_or(usize::MAX)
    }

    /// Memory that a body of `length` bytes takes while its request is served, in KiB. One body is always let in.
    pub(crate) fn body_cost(self, bytes: usize) -> u32 {
        let cost = bytes.saturating_mul(PARSED_FACTOR).div_ceil(1024);
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
    fn connections_and_bodies_stay_within_a_part_of_the_limit() {
        for limit in [64 << 20, 256 << 20, 512 << 20, 4 << 30, 1 << 40] {
            let memory = HttpMemory::of_limit(Some(limit));
            let connections = memory.connections() as u64 * CONNECTION;
            let bodies = memory.bodies() as u64 * 1024;
            assert!(
                connections + bodies <= (limit / DIVISOR).clamp(LEAST, MOST),
                "{limit}"
            );
            assert!(memory.connections() >= 32, "{limit}");
            let largest = memory.body_cost(crate::MAX_DEFINITIONS) as usize;
            assert!(largest <= memory.bodies(), "{limit}");
        }
        assert_eq!(HttpMemory::of_limit(Some(512 << 20)).connections(), 256);
    }
}
