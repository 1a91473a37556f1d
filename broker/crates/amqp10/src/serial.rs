use std::cmp::Ordering;

/// A serial number of 32 bits (RFC 1982, section 2.8.10): it wraps, and is compared within half of its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Serial(pub u32);

impl Serial {
    /// The number `count` after this one.
    #[inline]
    #[must_use]
    pub fn plus(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count))
    }

    /// The next number.
    #[inline]
    #[must_use]
    pub fn next(self) -> Self {
        self.plus(1)
    }

    /// The distance from `other` to this number; negative if this one comes before.
    #[inline]
    pub fn since(self, other: Self) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }
}

impl PartialOrd for Serial {
    /// None for numbers that are half of the range apart: RFC 1982 leaves their order undefined.
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        match self.since(*other) {
            i32::MIN => None,
            distance => Some(distance.cmp(&0)),
        }
    }
}

/// `credit(snd) = delivery-count(rcv) + credit(rcv) - delivery-count(snd)` (section 2.6.7); 0 if the sender is ahead of it.
#[inline]
pub(crate) fn sender_credit(
    receiver_count: Serial,
    receiver_credit: u32,
    sender_count: Serial,
) -> u32 {
    let credit = i64::from(receiver_credit) + i64::from(receiver_count.since(sender_count));
    credit.clamp(0, i64::from(u32::MAX)) as u32
}

/// `remote-incoming-window = next-incoming-id(flow) + incoming-window(flow) - next-outgoing-id` (section 2.5.6).
#[inline]
pub(crate) fn remote_window(next_incoming: Serial, window: u32, next_outgoing: Serial) -> u32 {
    // The same arithmetic with other names.
    sender_credit(next_incoming, window, next_outgoing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_wraps_and_is_undefined_at_half_of_the_range() {
        assert!(Serial(0) > Serial(u32::MAX));
        assert!(Serial(u32::MAX) < Serial(5));
        assert_eq!(Serial(u32::MAX).next(), Serial(0));
        assert_eq!(Serial(3).since(Serial(u32::MAX)), 4);
        assert_eq!(Serial(u32::MAX).since(Serial(3)), -4);
        assert_eq!(Serial(0).partial_cmp(&Serial(1 << 31)), None);
        assert_eq!(Serial(7).partial_cmp(&Serial(7)), Some(Ordering::Equal));
    }

    #[test]
    fn credit_subtracts_what_is_in_flight() {
        assert_eq!(sender_credit(Serial(10), 5, Serial(10)), 5);
        assert_eq!(sender_credit(Serial(10), 5, Serial(13)), 2);
        assert_eq!(sender_credit(Serial(10), 5, Serial(15)), 0);
        assert_eq!(sender_credit(Serial(10), 5, Serial(16)), 0);
        assert_eq!(sender_credit(Serial(u32::MAX - 1), 5, Serial(1)), 2);
        assert_eq!(sender_credit(Serial(0), u32::MAX, Serial(0)), u32::MAX);
        assert_eq!(sender_credit(Serial(9), u32::MAX, Serial(0)), u32::MAX);
    }
}
