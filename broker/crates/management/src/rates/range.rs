//! The time range of samples that a request asks for: `msg_rates_age=60&msg_rates_incr=5`, both in
//! seconds.

use crate::access::AuthenticatedRequest;
use crate::error::ApiError;
use crate::page::Query;
use env::WallTime;

/// Maximum number of samples of one value.
const MAX_SAMPLES: u64 = 500;

/// Both fields are in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    age: u64,
    step: u64,
}

impl Range {
    /// Parses the range for `lengths`, `msg_rates` or `data_rates`. As in RabbitMQ, both parameters
    /// are required and invalid numbers are ignored.
    pub(crate) fn of(query: &Query, kind: &str) -> Result<Option<Range>, ApiError> {
        let number = |name: &str| query.get(&format!("{kind}_{name}"))?.parse().ok();
        match (number("age"), number("incr")) {
            (Some(age), Some(step)) => Range::new(age, step),
            _ => Ok(None),
        }
    }

    /// Creates a range from seconds. None if `step` is 0.
    pub(super) fn new(age: u64, step: u64) -> Result<Option<Range>, ApiError> {
        if step == 0 {
            return Ok(None);
        }
        if age / step > MAX_SAMPLES {
            let why = format!("Invalid range parameters: age {age}, incr {step}");
            return Err(ApiError::range(why));
        }
        let milliseconds = |seconds: u64| seconds.saturating_mul(1000);
        Ok(Some(Range {
            age: milliseconds(age),
            step: milliseconds(step),
        }))
    }

    /// Timestamps that are multiples of the step, newest first.
    pub(super) fn points(self, now: WallTime) -> impl Iterator<Item = u64> {
        let last = now.0 / self.step * self.step;
        (0..=self.age / self.step).map_while(move |n| last.checked_sub(n * self.step))
    }
}

/// The ranges of samples that a request for queues or virtual hosts asks for.
#[derive(Default)]
pub(crate) struct Samples {
    pub(crate) lengths: Option<Range>,
    pub(crate) counts: Option<Range>,
}

impl Samples {
    pub(crate) fn of(call: &AuthenticatedRequest) -> Result<Samples, ApiError> {
        Ok(Samples {
            lengths: Range::of(&call.query, "lengths")?,
            counts: Range::of(&call.query, "msg_rates")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_needs_both_parameters_and_is_bounded() {
        let of = |text: &str| Range::of(&Query::parse(Some(text)), "lengths");
        let range = Range {
            age: 60_000,
            step: 5_000,
        };
        assert_eq!(of("lengths_age=60&lengths_incr=5"), Ok(Some(range)));
        for incomplete in [
            "lengths_age=60",
            "lengths_incr=5",
            "lengths_age=60&lengths_incr=0",
            "lengths_age=-60&lengths_incr=5",
            "lengths_age=x&lengths_incr=5",
            "msg_rates_age=60&msg_rates_incr=5",
        ] {
            assert_eq!(of(incomplete), Ok(None), "{incomplete}");
        }
        assert!(of("lengths_age=2500&lengths_incr=5").is_ok());
        assert!(of("lengths_age=2505&lengths_incr=5").is_err());
        let largest = format!("lengths_age={0}&lengths_incr={0}", u64::MAX);
        assert_eq!(
            of(&largest).unwrap().unwrap().points(WallTime(7)).count(),
            1
        );
    }

    #[test]
    fn points_are_multiples_of_the_step() {
        let range = Range { age: 10, step: 5 };
        let points = |now| range.points(WallTime(now)).collect::<Vec<_>>();
        assert_eq!(points(23), [20, 15, 10]);
        assert_eq!(points(7), [5, 0], "there is nothing before the beginning");
    }
}
