//! What a connection holds that most do not: one pointer for those.

use crate::scratch::READ_CHUNK;
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

/// The next bytes are read behind a copy of a partial frame up to this size: a larger one grows in its own buffer.
const SMALL: usize = 4 * 1024;

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

    /// A partial frame that is to be copied in front of the next bytes; empty: there is none, or it is large.
    pub fn small_partial(&self) -> &[u8] {
        let held = self.0.as_ref().filter(|held| held.partial.len() <= SMALL);
        held.map_or(&[], |held| &held.partial)
    }

    /// Keeps what a step left over. `is_own`: it is in a buffer that was a partial frame before. Otherwise it is a slice of the buffer
    /// that all connections of the thread read into, and a small one would keep all of that in memory.
    pub fn keep(&mut self, rest: BytesMut, is_own: bool) {
        if rest.is_empty() {
            return;
        }
        let fits = match is_own {
            true => rest.capacity() <= 2 * rest.len(),
            // Then a copy would cost more than it saves.
            false => rest.len() >= READ_CHUNK / 2,
        };
        self.0.get_or_insert_default().partial = match fits {
            true => rest,
            false => BytesMut::from(&rest[..]),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_frame_is_kept_in_little_memory_and_given_back_once() {
        let mut held = Held::default();
        held.keep(BytesMut::new(), false);
        assert!(held.0.is_none() && held.take_partial().is_none());
        for is_own in [false, true] {
            let mut large = BytesMut::with_capacity(1 << 20);
            large.extend_from_slice(b"part");
            held.keep(large, is_own);
            assert!(held.has_partial());
            assert_eq!(held.small_partial(), b"part");
            let partial = held.take_partial().expect("it was kept");
            assert_eq!(&partial[..], b"part");
            assert!(partial.capacity() <= 64, "{}", partial.capacity());
            assert!(held.0.is_none() && !held.has_partial());
        }
    }

    #[test]
    fn a_partial_frame_does_not_keep_the_read_buffer() -> std::io::Result<()> {
        let mut scratch = crate::scratch::Scratch::default();
        let mut held = Held::default();
        let Some((mut read, _)) = scratch.read(b"", &mut &b"a whole frame and a part"[..])? else {
            panic!("24 bytes were read");
        };
        let rest = read.split_off(20);
        let start = rest.as_ptr();
        drop(read);
        held.keep(rest, false);
        assert_eq!(held.small_partial(), b"part");
        assert_ne!(
            held.small_partial().as_ptr(),
            start,
            "it is still in the read buffer"
        );
        Ok(())
    }

    #[test]
    fn a_large_partial_frame_grows_in_its_own_buffer() {
        let mut held = Held::default();
        let mut large = BytesMut::new();
        large.extend_from_slice(&vec![1; 3 * SMALL]);
        let start = large.as_ptr();
        held.keep(large, true);
        assert!(held.small_partial().is_empty());
        let partial = held.take_partial().expect("it was kept");
        assert_eq!(partial.as_ptr(), start, "not copied");
    }
}
