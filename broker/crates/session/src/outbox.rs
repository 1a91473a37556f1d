//! Buffers for a session's output until the socket has accepted it.

use bytes::{Bytes, BytesMut};
use std::collections::VecDeque;

/// Output for the client, flushed with one writev. Small parts are copied into a common buffer,
/// large parts are kept by reference. An empty outbox need not own buffers; see [`BufferPool`].
#[derive(Debug, Default)]
pub struct Outbox {
    buffers: Option<Box<Buffers>>,
    /// Bytes consumed since the connection began.
    sent: u64,
}

#[derive(Debug, Default)]
struct Buffers {
    done: VecDeque<Bytes>,
    tail: BytesMut,
    /// Bytes in `done`.
    len: usize,
    /// The largest size that `tail` ever had.
    high: usize,
}

impl Buffers {
    /// Approximate memory in bytes that these buffers keep allocated.
    fn size(&self) -> usize {
        let slots = self.done.capacity() * size_of::<Bytes>();
        self.high.max(slots)
    }
}

/// A position in an [`Outbox`]. Equal positions mean that nothing was written or consumed in
/// between and the tail is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutboxPosition {
    /// Offset of the end, counted from the first byte of the connection.
    position: u64,
    /// Length of the tail. Together with `position` it gives the start of the tail, so a new tail
    /// gives a different value.
    tail: usize,
}

/// Parts of at least this many bytes are sent by reference.
pub const BY_REFERENCE: usize = 4096;

static EMPTY: VecDeque<Bytes> = VecDeque::new();

impl Outbox {
    fn buffers(&mut self) -> &mut Buffers {
        self.buffers.get_or_insert_default()
    }

    /// The common buffer at the end, for encoders.
    pub fn tail(&mut self) -> &mut BytesMut {
        &mut self.buffers().tail
    }

    /// Appends bytes, by reference from [`BY_REFERENCE`] bytes on.
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

    /// As [`Outbox::push`], but makes the shared [`Bytes`] only for a large part.
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

    /// The current write position. While it is unchanged, the last bytes in [`Outbox::tail`] may
    /// still be replaced; consecutive confirms are merged that way.
    pub fn position(&self) -> OutboxPosition {
        OutboxPosition {
            position: self.sent + self.len() as u64,
            tail: self.buffers.as_ref().map_or(0, |b| b.tail.len()),
        }
    }

    /// Bytes consumed since the connection began.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Bytes not yet consumed.
    pub fn len(&self) -> usize {
        self.buffers.as_ref().map_or(0, |b| b.len + b.tail.len())
    }

    /// Returns true if every byte was consumed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops all unsent output. The client may have received part of a frame, so nothing may be
    /// written afterwards.
    pub fn clear(&mut self) {
        self.buffers = None;
    }

    /// Visits the parts that are kept by reference and that other outboxes may share.
    pub fn visit_shared(&self, visit: &mut dyn FnMut(&[u8])) {
        let pieces = self.buffers.iter().flat_map(|b| &b.done);
        pieces
            .filter(|piece| piece.len() >= BY_REFERENCE)
            .for_each(|piece| visit(piece));
    }

    /// Inserts bytes at the offset `at`, a value of [`Outbox::len`] since which nothing was
    /// consumed.
    pub fn insert(&mut self, at: usize, bytes: &[u8]) {
        debug_assert!(at <= self.len(), "offset {at} is beyond the end");
        let Buffers {
            done, tail, len, ..
        } = self.buffers();
        if let Some(at) = at.checked_sub(*len) {
            let end = tail.len();
            let at = at.min(end);
            tail.extend_from_slice(bytes);
            tail.copy_within(at..end, at + bytes.len());
            if let Some(gap) = tail.get_mut(at..at + bytes.len()) {
                gap.copy_from_slice(bytes);
            }
            return;
        }
        let mut after_at = *len - at;
        let mut index = done.len();
        // Searches from the end, because the bytes of the current step are there.
        while let Some(piece) = index.checked_sub(1).and_then(|i| done.get_mut(i)) {
            if piece.len() > after_at {
                let rest = piece.split_off(piece.len() - after_at);
                if !rest.is_empty() {
                    done.insert(index, rest);
                }
                break;
            }
            after_at -= piece.len();
            index -= 1;
        }
        *len += bytes.len();
        done.insert(index, Bytes::copy_from_slice(bytes));
    }

    /// The parts in order, for writev. Report the written bytes with [`Outbox::consume`].
    pub fn pieces(&mut self) -> &VecDeque<Bytes> {
        self.close_tail();
        self.buffers.as_ref().map_or(&EMPTY, |b| &b.done)
    }

    /// Removes bytes that the socket has accepted.
    pub fn consume(&mut self, mut written: usize) {
        debug_assert!(written <= self.len(), "consumed more than was written");
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

/// Buffers that outboxes borrow while they are not empty. Few of a hundred thousand connections
/// write at the same time.
#[derive(Debug, Default)]
pub struct BufferPool {
    #[expect(clippy::vec_box, reason = "the boxes go to outboxes and come back")]
    free: Vec<Box<Buffers>>,
    /// Number of buffers in `free` that have at least [`LARGE`] bytes.
    large: usize,
}

/// Most buffers that the pool keeps.
const MAX_BUFFERS: usize = 1024;
/// Size in bytes above the needs of most connections.
const LARGE: usize = 16 << 10;
/// Most large buffers that the pool keeps.
const MAX_LARGE: usize = 16;
/// Buffers of at least this size in bytes are freed.
const HUGE: usize = 2 << 20;

impl BufferPool {
    /// Gives buffers to an outbox that has none and is about to be written to. If the pool is
    /// empty, the outbox allocates its own.
    pub fn lend(&mut self, out: &mut Outbox) {
        if out.buffers.is_none()
            && let Some(buffers) = self.free.pop()
        {
            debug_assert!(
                self.large <= self.free.len() + 1,
                "{} large buffers among {} free ones",
                self.large,
                self.free.len()
            );
            self.large -= usize::from(buffers.size() >= LARGE);
            out.buffers = Some(buffers);
        }
    }

    /// Takes the buffers back from an empty outbox.
    pub fn take_back(&mut self, out: &mut Outbox) {
        let Some(buffers) = out.buffers.take_if(|b| b.len == 0 && b.tail.is_empty()) else {
            return;
        };
        let size = buffers.size();
        let large = size >= LARGE;
        if self.free.len() < MAX_BUFFERS && size < HUGE && (!large || self.large < MAX_LARGE) {
            debug_assert!(
                buffers.len == 0 && buffers.done.is_empty(),
                "a pooled buffer still holds {} bytes of a client",
                buffers.len
            );
            self.large += usize::from(large);
            self.free.push(buffers);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn insert_places_bytes_at_an_earlier_offset() {
        let large = vec![b'L'; BY_REFERENCE];
        for by_reference in [false, true] {
            for pending in [&b""[..], b"before"] {
                let mut out = Outbox::default();
                out.tail().extend_from_slice(pending);
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
                assert_eq!(all, [pending, b"<header>", &written].concat());
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
    fn position_changes_with_every_write_and_consume() {
        let mut out = Outbox::default();
        out.tail().extend_from_slice(b"one");
        let position = out.position();
        assert_eq!(out.position(), position);
        out.tail().extend_from_slice(b"two");
        assert_ne!(out.position(), position);
        let position = out.position();
        assert_eq!(out.pieces().len(), 1);
        out.tail().extend_from_slice(b"onetwo");
        assert_eq!(out.len(), 12);
        assert_ne!(out.position(), position, "same length, different bytes");
        let position = out.position();
        out.push(Bytes::from(vec![0; BY_REFERENCE]));
        assert_ne!(out.position(), position);
        out.consume(12 + BY_REFERENCE);
        assert!(out.is_empty());
    }

    #[test]
    fn pool_reuses_buffers_and_keeps_few_large_ones() {
        let mut pool = BufferPool::default();
        let (mut one, mut other) = (Outbox::default(), Outbox::default());
        pool.lend(&mut one);
        one.tail().extend_from_slice(b"one");
        pool.take_back(&mut one);
        assert_eq!(one.len(), 3, "unsent bytes are kept");
        assert_eq!(one.pieces().len(), 1);
        let position = one.position();
        one.consume(3);
        pool.take_back(&mut one);
        assert_eq!((one.len(), one.sent(), pool.free.len()), (0, 3, 1));
        pool.lend(&mut other);
        other.tail().extend_from_slice(b"other");
        assert_eq!((other.len(), other.sent(), pool.free.len()), (5, 0, 0));
        one.tail().extend_from_slice(b"");
        assert_eq!(one.position(), position, "nothing was written in between");
        assert!(one.pieces().is_empty());
        let mut all: Vec<Outbox> = (0..2 * MAX_BUFFERS).map(|_| Outbox::default()).collect();
        for (n, out) in all.iter_mut().enumerate() {
            let size = if n < 2 * MAX_LARGE { LARGE } else { 1 };
            out.tail().extend_from_slice(&vec![0; size]);
            out.pieces();
            out.consume(size);
            pool.take_back(out);
        }
        assert_eq!((pool.free.len(), pool.large), (MAX_BUFFERS, MAX_LARGE));
        pool.free.truncate(MAX_LARGE);
        for out in &mut all {
            pool.lend(out);
        }
        assert_eq!((pool.free.len(), pool.large), (0, 0));
        one.push(Bytes::from(vec![0; HUGE]));
        one.tail().extend_from_slice(&vec![0; HUGE]);
        one.pieces();
        one.consume(2 * HUGE);
        pool.take_back(&mut one);
        assert_eq!(pool.free.len(), 0, "too large for the pool");
    }
}
