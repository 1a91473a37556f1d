//! What a connection holds that most do not: one pointer for those.

use crate::secure::Secure;
use bytes::BytesMut;

/// TLS, and bytes without the end of their frame.
#[derive(Default)]
pub(crate) struct Held(Option<Box<Inner>>);

#[derive(Default)]
struct Inner {
    secure: Option<Box<Secure>>,
    partial: BytesMut,
}

/// A partial frame in a buffer larger than this is moved to one of its own size.
const COMPACT_FROM: usize = 8 * 1024;

impl Held {
    pub fn new(secure: Option<Box<Secure>>) -> Held {
        Held(secure.map(|secure| {
            Box::new(Inner {
                secure: Some(secure),
                partial: BytesMut::new(),
            })
        }))
    }

    /// None: the connection has no TLS, or it is over.
    pub fn secure(&self) -> Option<&Secure> {
        self.0.as_ref()?.secure.as_deref()
    }

    pub fn secure_mut(&mut self) -> Option<&mut Secure> {
        self.0.as_mut()?.secure.as_deref_mut()
    }

    pub fn has_partial(&self) -> bool {
        self.0.as_ref().is_some_and(|held| !held.partial.is_empty())
    }

    /// None: the last frame was whole.
    pub fn take_partial(&mut self) -> Option<BytesMut> {
        let held = self.0.as_mut().filter(|held| !held.partial.is_empty())?;
        let partial = std::mem::take(&mut held.partial);
        self.0.take_if(|held| held.secure.is_none());
        Some(partial)
    }

    /// Keeps what a step left over, without holding a large buffer for it.
    pub fn keep(&mut self, rest: BytesMut) {
        if rest.is_empty() {
            return;
        }
        let is_large = rest.len() < COMPACT_FROM / 2 && rest.capacity() > COMPACT_FROM;
        self.0.get_or_insert_default().partial = match is_large {
            true => BytesMut::from(&rest[..]),
            false => rest,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_frame_is_kept_in_little_memory_and_given_back_once() {
        let mut held = Held::default();
        held.keep(BytesMut::new());
        assert!(held.0.is_none() && held.take_partial().is_none());
        let mut large = BytesMut::with_capacity(1 << 20);
        large.extend_from_slice(b"part");
        held.keep(large);
        assert!(held.has_partial());
        let partial = held.take_partial().expect("it was kept");
        assert_eq!(&partial[..], b"part");
        assert!(partial.capacity() < COMPACT_FROM);
        assert!(held.0.is_none() && !held.has_partial());
    }
}
