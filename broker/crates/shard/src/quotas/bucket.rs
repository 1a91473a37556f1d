//! A bucket of tokens that refills at a shard's share of a rate.

use env::Time;

/// Levels are in billionths of a token: a rate of 1 per second adds one in each nanosecond.
const TOKEN: i128 = 1_000_000_000;

/// Tokens for messages or bytes. It holds the tokens of one second, at least one. It may be overdrawn.
#[derive(Debug)]
pub(crate) struct TokenBucket {
    /// Tokens per second for all shards together.
    rate: u64,
    /// Shards that share the rate.
    shards: u32,
    /// Negative: the bucket is overdrawn.
    level: i128,
    /// The time of the level.
    at: Time,
}

impl TokenBucket {
    /// A full bucket.
    pub(crate) fn new(now: Time, rate: u64, shards: u32) -> TokenBucket {
        debug_assert!(rate > 0 && shards > 0, "the bucket would never refill");
        let mut bucket = TokenBucket {
            rate,
            shards,
            level: 0,
            at: now,
        };
        bucket.level = bucket.capacity();
        bucket
    }

    fn capacity(&self) -> i128 {
        (i128::from(self.rate) * TOKEN / i128::from(self.shards)).max(TOKEN)
    }

    /// Changes the number of shards that share the rate.
    pub(crate) fn set_shards(&mut self, now: Time, shards: u32) {
        debug_assert!(shards > 0, "this shard is one of them");
        self.refill(now);
        self.shards = shards;
        self.level = self.level.min(self.capacity());
    }

    fn refill(&mut self, now: Time) {
        let elapsed = i128::from(now.0.saturating_sub(self.at.0));
        let tokens = elapsed.saturating_mul(self.rate.into()) / i128::from(self.shards);
        self.level = self.level.saturating_add(tokens).min(self.capacity());
        self.at = self.at.max(now);
    }

    /// Takes tokens, also those that are missing.
    pub(crate) fn take(&mut self, now: Time, tokens: u64) {
        self.refill(now);
        self.level -= i128::from(tokens) * TOKEN;
        debug_assert!(self.level <= self.capacity());
    }

    /// Whole tokens in the bucket.
    pub(crate) fn available(&mut self, now: Time) -> u64 {
        self.refill(now);
        u64::try_from(self.level / TOKEN).unwrap_or(0)
    }

    /// The time at which the deficit is refilled. None: there is no deficit.
    pub(crate) fn ready_at(&mut self, now: Time) -> Option<Time> {
        self.refill(now);
        if self.level >= 0 {
            return None;
        }
        let deficit = self.level.unsigned_abs();
        let nanoseconds = (deficit * u128::from(self.shards)).div_ceil(self.rate.into());
        let nanoseconds = u64::try_from(nanoseconds).unwrap_or(u64::MAX);
        Some(Time(self.at.0.saturating_add(nanoseconds)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(ms: u64) -> Time {
        Time::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn bucket_holds_the_tokens_of_one_second() {
        let mut bucket = TokenBucket::new(at(0), 100, 1);
        assert_eq!(bucket.available(at(0)), 100);
        assert_eq!(bucket.available(at(60_000)), 100);
        bucket.take(at(60_000), 30);
        assert_eq!(bucket.available(at(60_000)), 70);
        assert_eq!(bucket.available(at(60_100)), 80);
    }

    #[test]
    fn overdrawn_bucket_is_ready_when_the_deficit_is_refilled() {
        let mut bucket = TokenBucket::new(at(0), 100, 1);
        bucket.take(at(0), 100);
        assert_eq!(bucket.ready_at(at(0)), None, "empty and not overdrawn");
        bucket.take(at(0), 50);
        assert_eq!(bucket.ready_at(at(0)), Some(at(500)));
        assert_eq!(bucket.ready_at(at(499)), Some(at(500)));
        assert_eq!(bucket.ready_at(at(500)), None);
        assert_eq!(bucket.available(at(500)), 0);
    }

    #[test]
    fn shards_share_the_rate_and_each_has_at_least_one_token() {
        let mut bucket = TokenBucket::new(at(0), 90, 3);
        assert_eq!(bucket.available(at(0)), 30);
        bucket.take(at(0), 60);
        assert_eq!(bucket.ready_at(at(0)), Some(at(1000)));
        let mut slow = TokenBucket::new(at(0), 1, 4);
        assert_eq!(slow.available(at(0)), 1);
        slow.take(at(0), 2);
        assert_eq!(slow.ready_at(at(0)), Some(at(4000)));
    }

    #[test]
    fn bucket_with_a_smaller_share_loses_tokens_above_its_capacity() {
        let mut bucket = TokenBucket::new(at(0), 100, 1);
        bucket.set_shards(at(0), 2);
        assert_eq!(bucket.available(at(0)), 50);
        // The time before the change counts with the share before it.
        bucket.take(at(0), 50);
        bucket.set_shards(at(100), 1);
        assert_eq!(bucket.available(at(100)), 5);
        assert_eq!(bucket.available(at(200)), 15);
    }

    #[test]
    fn accepted_tokens_never_exceed_the_rate_by_more_than_the_burst() {
        for (rate, message) in [(1, 1), (7, 3), (1000, 1), (100_000, 65_536), (3, 1000)] {
            let mut bucket = TokenBucket::new(at(0), rate, 1);
            let (mut accepted, mut now) = (0_u64, at(0));
            let end = at(3_600_000);
            while now < end {
                match bucket.ready_at(now) {
                    Some(ready) => {
                        assert!(ready > now);
                        now = ready;
                    }
                    None => {
                        bucket.take(now, message);
                        accepted += message;
                    }
                }
            }
            let expected = rate * 3600;
            assert!(accepted >= expected, "{rate}: {accepted}");
            assert!(accepted <= expected + rate + message, "{rate}: {accepted}");
        }
    }

    #[test]
    fn extreme_rates_and_times_do_not_overflow() {
        let mut bucket = TokenBucket::new(Time::ZERO, i64::MAX as u64, 1);
        bucket.take(Time::ZERO, u64::MAX);
        bucket.take(Time::ZERO, u64::MAX);
        assert!(bucket.ready_at(Time::ZERO).is_some());
        assert_eq!(bucket.available(Time(u64::MAX)), i64::MAX as u64);
        let mut slow = TokenBucket::new(Time::ZERO, 1, 256);
        slow.take(Time::ZERO, u64::MAX);
        assert_eq!(slow.ready_at(Time::ZERO), Some(Time(u64::MAX)));
    }
}
