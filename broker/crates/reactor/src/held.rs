//! Rarely used state of a connection, behind one pointer.

use crate::scratch::READ_CHUNK;
use crate::secure::TlsConnection;
use bytes::BytesMut;

/// The TLS state and an incomplete frame.
#[derive(Default)]
pub(crate) struct TlsAndPartialFrame(Option<Box<AllocatedState>>);

#[derive(Default)]
struct AllocatedState {
    secure: Option<Box<TlsConnection>>,
    partial: BytesMut,
}

/// Size in bytes up to which an incomplete frame is copied in front of the next read. A larger one
/// grows in its own buffer.
const SMALL_PARTIAL: usize = 4 * 1024;

impl TlsAndPartialFrame {
    pub(crate) fn new(secure: Option<Box<TlsConnection>>) -> TlsAndPartialFrame {
        TlsAndPartialFrame(secure.map(|secure| {
            Box::new(AllocatedState {
                secure: Some(secure),
                partial: BytesMut::new(),
            })
        }))
    }

    /// The TLS state; None for a connection without TLS.
    pub(crate) fn secure(&self) -> Option<&TlsConnection> {
        self.0.as_ref()?.secure.as_deref()
    }

    pub(crate) fn secure_mut(&mut self) -> Option<&mut TlsConnection> {
        self.0.as_mut()?.secure.as_deref_mut()
    }

    pub(crate) fn has_partial(&self) -> bool {
        self.0.as_ref().is_some_and(|held| !held.partial.is_empty())
    }

    /// Takes the incomplete frame, if there is one.
    pub(crate) fn take_partial(&mut self) -> Option<BytesMut> {
        let held = self.0.as_mut().filter(|held| !held.partial.is_empty())?;
        let partial = std::mem::take(&mut held.partial);
        self.0.take_if(|held| held.secure.is_none());
        Some(partial)
    }

    /// An incomplete frame to copy in front of the next read. Empty if there is none or if it is
    /// large.
    pub(crate) fn small_partial(&self) -> &[u8] {
        let held = self
            .0
            .as_ref()
            .filter(|held| held.partial.len() <= SMALL_PARTIAL);
        held.map_or(&[], |held| &held.partial)
    }

    /// Stores the input that a step left over. `is_own`: it is in a buffer that held an incomplete
    /// frame before. Otherwise it is a slice of the thread's shared read buffer, and a small slice
    /// would keep that whole buffer allocated.
    pub(crate) fn store_partial(&mut self, rest: BytesMut, is_own: bool) {
        if rest.is_empty() {
            return;
        }
        let is_compact = match is_own {
            true => rest.capacity() <= 2 * rest.len(),
            // A copy would cost more than it saves.
            false => rest.len() >= READ_CHUNK / 2,
        };
        self.0.get_or_insert_default().partial = match is_compact {
            true => rest,
            false => BytesMut::from(&rest[..]),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_frame_is_stored_compactly_and_taken_once() {
        let mut held = TlsAndPartialFrame::default();
        held.store_partial(BytesMut::new(), false);
        assert!(held.0.is_none() && held.take_partial().is_none());
        for is_own in [false, true] {
            let mut large = BytesMut::with_capacity(1 << 20);
            large.extend_from_slice(b"part");
            held.store_partial(large, is_own);
            assert!(held.has_partial());
            assert_eq!(held.small_partial(), b"part");
            let partial = held.take_partial().expect("a partial frame");
            assert_eq!(&partial[..], b"part");
            assert!(partial.capacity() <= 64, "{}", partial.capacity());
            assert!(held.0.is_none() && !held.has_partial());
        }
    }

    #[test]
    fn partial_frame_does_not_retain_the_read_buffer() -> std::io::Result<()> {
        let mut scratch = crate::scratch::Scratch::default();
        let mut held = TlsAndPartialFrame::default();
        let Some((mut read, _)) = scratch.read(b"", &mut &b"a whole frame and a part"[..])? else {
            panic!("24 bytes were read");
        };
        let rest = read.split_off(20);
        let start = rest.as_ptr();
        drop(read);
        held.store_partial(rest, false);
        assert_eq!(held.small_partial(), b"part");
        assert_ne!(
            held.small_partial().as_ptr(),
            start,
            "it is still in the read buffer"
        );
        Ok(())
    }

    #[test]
    fn large_partial_frame_grows_in_its_own_buffer() {
        let mut held = TlsAndPartialFrame::default();
        let mut large = BytesMut::new();
        large.extend_from_slice(&vec![1; 3 * SMALL_PARTIAL]);
        let start = large.as_ptr();
        held.store_partial(large, true);
        assert!(held.small_partial().is_empty());
        let partial = held.take_partial().expect("a partial frame");
        assert_eq!(partial.as_ptr(), start, "not copied");
    }
}
