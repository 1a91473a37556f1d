//! What a session writes, until its client has taken it.

use bytes::{Bytes, BytesMut};
use std::collections::VecDeque;

/// Bytes for the client: small ones copied together, large ones by reference, flushed with one writev. While it is empty it need
/// not own buffers: see [`BufferPool`].
#[derive(Debug, Default)]
pub struct Outbox {
    buffers: Option<Box<Buffers>>,
    /// Bytes taken from here so far.
    sent: u64,
}

#[derive(Debug, Default)]
struct Buffers {
    done: VecDeque<Bytes>,
    tail: BytesMut,
    /// Of what is in `done`.
    len: usize,
    /// Most that the tail ever had.
    high: usize,
}

impl Buffers {
    /// About so many bytes are kept with them.
    fn size(&self) -> usize {
        let places = self.done.capacity() * size_of::<Bytes>();
        self.high.max(places)
    }
}

/// A place in an [`Outbox`]; equal stamps: nothing was written in between, and the tail is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutboxPosition {
    /// Of the end, counted from the first byte ever.
    position: u64,
    /// With the position it says where the tail began: a later one begins behind that.
    tail: usize,
}

/// Bodies from this size on are sent by reference.
pub const BY_REFERENCE: usize = 4096;

static NOTHING: VecDeque<Bytes> = VecDeque::new();

impl Outbox {
    fn buffers(&mut self) -> &mut Buffers {
        self.buffers.get_or_insert_default()
    }

    /// The end of what goes out, for encoders.
    pub fn tail(&mut self) -> &mut BytesMut {
        &mut self.buffers().tail
    }

    pub fn push(&mut self, bytes: Bytes) {
        if bytes.len() < BY_REFERENCE {
            self.tail().extend_from_slice(&bytes);
        } else {
            self.close_tail();
            let buffers = self.buffers();
            buffers.len += bytes.len();
            buffers.done.push_back(bytes);
        }
    }

    /// The same; a large part is asked for by reference.
    pub fn push_part(&mut self, part: &[u8], by_reference: impl FnOnce() -> Bytes) {
        if part.len() < BY_REFERENCE {
            self.tail().extend_from_slice(part);
        } else {
            self.push(by_reference());
        }
    }

    fn close_tail(&mut self) {
        let Some(buffers) = self.buffers.as_deref_mut() else {
            return;
        };
        let len = buffers.tail.len();
        if len > 0 {
            buffers.len += len;
            buffers.high = buffers.high.max(len);
            buffers.done.push_back(buffers.tail.split().freeze());
        }
    }

    /// Where writing goes on. While the stamp stays the same, what was written last may still be changed in
    /// [`Outbox::tail`]: that is how confirms that come one by one leave as one.
    pub fn stamp(&self) -> OutboxPosition {
        OutboxPosition {
            position: self.sent + self.len() as u64,
            tail: self.buffers.as_ref().map_or(0, |b| b.tail.len()),
        }
    }

    /// Bytes taken from here so far, by whoever wrote them to the client.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Bytes not yet taken.
    pub fn len(&self) -> usize {
        self.buffers.as_ref().map_or(0, |b| b.len + b.tail.len())
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops everything that is not yet taken. The client may have received a part of a frame: nothing can follow it.
    pub fn clear(&mut self) {
        self.buffers = None;
    }

    /// Visits the pieces that were written by reference, which other outboxes may hold as well.
    pub fn visit_shared(&self, visit: &mut dyn FnMut(&[u8])) {
        let pieces = self.buffers.iter().flat_map(|b| &b.done);
        pieces
            .filter(|piece| piece.len() >= BY_REFERENCE)
            .for_each(|piece| visit(piece));
    }

    /// Puts bytes in front of what was written when there were `at` bytes ([`Outbox::len`]), of which nothing has been taken since.
    pub fn insert(&mut self, at: usize, bytes: &[u8]) {
        let Buffers {
            done, tail, len, ..
        } = self.buffers();
        if let Some(at) = at.checked_sub(*len) {
            let end = tail.len();
            let at = at.min(end);
            tail.extend_from_slice(bytes);
            tail.copy_within(at..end, at + bytes.len());
            if let Some(room) = tail.get_mut(at..at + bytes.len()) {
                room.copy_from_slice(bytes);
            }
            return;
        }
        let mut behind = *len - at;
        let mut place = done.len();
        // What is written in one step is at the end.
        while let Some(piece) = place.checked_sub(1).and_then(|i| done.get_mut(i)) {
            if piece.len() > behind {
                let after = piece.split_off(piece.len() - behind);
                if !after.is_empty() {
                    done.insert(place, after);
                }
                break;
            }
            behind -= piece.len();
            place -= 1;
        }
        *len += bytes.len();
        done.insert(place, Bytes::copy_from_slice(bytes));
    }

    /// The pieces in order, for writev; then [`Outbox::consume`] what was written.
    pub fn pieces(&mut self) -> &VecDeque<Bytes> {
        self.close_tail();
        self.buffers.as_ref().map_or(&NOTHING, |b| &b.done)
    }

    pub fn consume(&mut self, mut written: usize) {
        self.sent += written as u64;
        let Some(buffers) = self.buffers.as_deref_mut() else {
            return;
        };
        buffers.len -= written.min(buffers.len);
        while written > 0 {
            let Some(first) = buffers.done.front_mut() else {
                return;
            };
            if first.len() > written {
                let _ = first.split_to(written);
                return;
            }
            written -= first.len();
            buffers.done.pop_front();
        }
    }
}

/// Buffers that outboxes have while something is in them, and share otherwise: of a hundred thousand connections few write at
/// the same time.
#[derive(Debug, Default)]
pub struct BufferPool {
    #[expect(clippy::vec_box, reason = "the boxes go to outboxes and come back")]
    free: Vec<Box<Buffers>>,
    /// Those of them that are [`LARGE`].
    large: usize,
}

/// Buffers that are kept at the most.
const MOST: usize = 1024;
/// From this size on it is more than most connections need.
const LARGE: usize = 16 << 10;
/// Large ones that are kept at the most.
const MOST_LARGE: usize = 16;
/// Those of this size are not kept.
const HUGE: usize = 2 << 20;

impl BufferPool {
    /// Buffers for an outbox that is about to be written to, if it has none and there are any; otherwise it makes its own.
    pub fn lend(&mut self, out: &mut Outbox) {
        if out.buffers.is_none()
            && let Some(buffers) = self.free.pop()
        {
            self.large -= usize::from(buffers.size() >= LARGE);
            out.buffers = Some(buffers);
        }
    }

    /// Takes the buffers of an outbox that is empty.
    pub fn take_back(&mut self, out: &mut Outbox) {
        let Some(buffers) = out.buffers.take_if(|b| b.len == 0 && b.tail.is_empty()) else {
            return;
        };
        let size = buffers.size();
        let large = size >= LARGE;
        if self.free.len() < MOST && size < HUGE && (!large || self.large < MOST_LARGE) {
            self.large += usize::from(large);
            self.free.push(buffers);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_in_front_of_what_was_written_since() {
        let large = vec![b'L'; BY_REFERENCE];
        for by_reference in [false, true] {
            for waits in [&b""[..], b"before"] {
                let mut out = Outbox::default();
                out.tail().extend_from_slice(waits);
                let before = out.len();
                let mut written = Vec::from(*b"one");
                out.tail().extend_from_slice(b"one");
                if by_reference {
                    out.push(Bytes::from(large.clone()));
                    written.extend_from_slice(&large);
                }
                out.tail().extend_from_slice(b"two");
                written.extend_from_slice(b"two");
                out.insert(before, b"<header>");
                let all: Vec<u8> = out.pieces().iter().flatten().copied().collect();
                assert_eq!(all, [waits, b"<header>", &written].concat());
                assert_eq!(out.len(), all.len());
            }
        }
        let mut out = Outbox::default();
        out.push(Bytes::from(large.clone()));
        let before = out.len();
        out.push(Bytes::from(large.clone()));
        out.insert(before, b"-");
        let all: Vec<u8> = out.pieces().iter().flatten().copied().collect();
        assert_eq!(all, [&large[..], b"-", &large].concat());
    }

    #[test]
    fn a_stamp_changes_with_every_write_and_every_take() {
        let mut out = Outbox::default();
        out.tail().extend_from_slice(b"one");
        let stamp = out.stamp();
        assert_eq!(out.stamp(), stamp);
        out.tail().extend_from_slice(b"two");
        assert_ne!(out.stamp(), stamp);
        let stamp = out.stamp();
        assert_eq!(out.pieces().len(), 1);
        out.tail().extend_from_slice(b"onetwo");
        assert_eq!(out.len(), 12);
        assert_ne!(out.stamp(), stamp, "as long, but not the same bytes");
        let stamp = out.stamp();
        out.push(Bytes::from(vec![0; BY_REFERENCE]));
        assert_ne!(out.stamp(), stamp);
        out.consume(12 + BY_REFERENCE);
        assert!(out.is_empty());
    }

    #[test]
    fn buffers_go_from_one_to_the_next_and_few_large_ones_are_kept() {
        let mut spares = BufferPool::default();
        let (mut one, mut other) = (Outbox::default(), Outbox::default());
        spares.lend(&mut one);
        one.tail().extend_from_slice(b"one");
        spares.take_back(&mut one);
        assert_eq!(one.len(), 3, "what is not written stays");
        assert_eq!(one.pieces().len(), 1);
        let stamp = one.stamp();
        one.consume(3);
        spares.take_back(&mut one);
        assert_eq!((one.len(), one.sent(), spares.free.len()), (0, 3, 1));
        spares.lend(&mut other);
        other.tail().extend_from_slice(b"other");
        assert_eq!((other.len(), other.sent(), spares.free.len()), (5, 0, 0));
        one.tail().extend_from_slice(b"");
        assert_eq!(one.stamp(), stamp, "nothing was written since");
        assert!(one.pieces().is_empty());
        let mut all: Vec<Outbox> = (0..2 * MOST).map(|_| Outbox::default()).collect();
        for (n, out) in all.iter_mut().enumerate() {
            let size = if n < 2 * MOST_LARGE { LARGE } else { 1 };
            out.tail().extend_from_slice(&vec![0; size]);
            out.pieces();
            out.consume(size);
            spares.take_back(out);
        }
        assert_eq!((spares.free.len(), spares.large), (MOST, MOST_LARGE));
        spares.free.truncate(MOST_LARGE);
        for out in &mut all {
            spares.lend(out);
        }
        assert_eq!((spares.free.len(), spares.large), (0, 0));
        one.push(Bytes::from(vec![0; HUGE]));
        one.tail().extend_from_slice(&vec![0; HUGE]);
        one.pieces();
        one.consume(2 * HUGE);
        spares.take_back(&mut one);
        assert_eq!(spares.free.len(), 0, "too large to be kept");
    }
}
