//! Messages between routers about client ids. Integers are big-endian; a frame is a list of:
//!
//! ```text
//! kind u8 | vhost: u8 len, bytes | client: u16 len, bytes | number u64 | [Claim, Yield: clean u8 | Granted: stamp u64]
//!     | [GrantedWith: stamp u64, handover | FreeWith: handover]
//! handover: u16 len, bytes
//! 1 Claim, 2 Granted, 3 Lost, 4 Yield, 5 Free, 6 Hold, 7 ReportHolds (empty id, number 0), 8 GrantedWith, 9 FreeWith
//! ```
//!
//! `GrantedWith` and `FreeWith` are `Granted` and `Free` with a handover that is not empty. Nodes
//! send them only if the feature flag `mqtt_handover` is enabled.

use bytes::{BufMut, Bytes, BytesMut};
use std::sync::Arc;
use wire::{DecodeCause, Decoded, MediumText, Reader, ShortText, Wire, wire_struct};

/// A client id within a vhost.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId {
    /// The vhost of the client.
    pub vhost: Arc<str>,
    /// The client id.
    pub client: Arc<str>,
}

/// A message about one client id. A stamp identifies one holding of the id: later holdings have
/// larger stamps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimMessage {
    /// The client id that the message is about.
    pub id: ClientId,
    /// The claim, answer or report.
    pub verb: ClaimVerb,
}

/// Maximum size of a session's handover in bytes.
pub const HANDOVER_BYTES: usize = 32 << 10;

/// The statement of a [`ClaimMessage`] about its client id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimVerb {
    /// To the owner: this session wants the id. `clean`: its previous session must be discarded.
    Claim {
        /// The number of the claiming session.
        session: u64,
        /// True if the previous session must be discarded.
        clean: bool,
    },
    /// From the owner: the session holds the id. `handover`: session state from the previous
    /// holder; empty if there is none.
    Granted {
        /// The number of the claiming session.
        session: u64,
        /// The stamp of the holding.
        stamp: u64,
        /// State of the session; empty if there is none.
        handover: Bytes,
    },
    /// From the owner: a newer claim replaces this one, so the session must stop waiting.
    Lost {
        /// The number of the claiming session.
        session: u64,
    },
    /// From the owner: release the holding with this stamp and confirm with `Free`.
    Yield {
        /// The stamp of the holding.
        stamp: u64,
        /// True if the previous session must be discarded.
        clean: bool,
    },
    /// To the owner: this holding has ended. `handover`: session state for the next holder; empty
    /// if there is none.
    Free {
        /// The stamp of the holding.
        stamp: u64,
        /// State of the session; empty if there is none.
        handover: Bytes,
    },
    /// To the owner, which may not know it: this router holds the id.
    Hold {
        /// The stamp of the holding.
        stamp: u64,
    },
    /// To a holder: report all ids that you hold and that I own. The id of this message is empty.
    ReportHolds,
}

/// A frame of [`ClaimMessage`]s is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message about client ids from another router is malformed")]
pub struct ClaimMessageError;

const CLAIM: u8 = 1;
const GRANTED: u8 = 2;
const LOST: u8 = 3;
const YIELD: u8 = 4;
const FREE: u8 = 5;
const HOLD: u8 = 6;
const REPORT_HOLDS: u8 = 7;
const GRANTED_WITH: u8 = 8;
const FREE_WITH: u8 = 9;

impl ClaimMessage {
    /// Appends the message to a frame.
    pub fn encode(&self, out: &mut BytesMut) {
        let handover = self.verb.handover();
        let (kind, number) = match &self.verb {
            ClaimVerb::Claim { session, .. } => (CLAIM, *session),
            ClaimVerb::Granted { session, .. } if handover.is_empty() => (GRANTED, *session),
            ClaimVerb::Granted { session, .. } => (GRANTED_WITH, *session),
            ClaimVerb::Lost { session } => (LOST, *session),
            ClaimVerb::Yield { stamp, .. } => (YIELD, *stamp),
            ClaimVerb::Free { stamp, .. } if handover.is_empty() => (FREE, *stamp),
            ClaimVerb::Free { stamp, .. } => (FREE_WITH, *stamp),
            ClaimVerb::Hold { stamp } => (HOLD, *stamp),
            ClaimVerb::ReportHolds => (REPORT_HOLDS, 0),
        };
        out.put_u8(kind);
        self.id.put(out);
        out.put_u64(number);
        match &self.verb {
            ClaimVerb::Claim { clean, .. } | ClaimVerb::Yield { clean, .. } => {
                out.put_u8(u8::from(*clean));
            }
            ClaimVerb::Granted { stamp, .. } => out.put_u64(*stamp),
            _ => {}
        }
        if !handover.is_empty() {
            // At most `HANDOVER_BYTES`.
            out.put_u16(handover.len() as u16);
            out.put_slice(handover);
        }
    }

    /// Decodes all messages of a frame.
    ///
    /// # Errors
    ///
    /// If the frame is malformed.
    pub fn decode_all(frame: Bytes) -> Result<Vec<ClaimMessage>, ClaimMessageError> {
        let mut from = Reader::new("message about client ids", &frame);
        let mut all = Vec::new();
        while !from.is_empty() {
            all.push(ClaimMessage::decode(&mut from).map_err(|_| ClaimMessageError)?);
        }
        Ok(all)
    }

    fn decode(from: &mut Reader<'_>) -> Decoded<ClaimMessage> {
        let kind = from.u8()?;
        let id = from.get()?;
        let number = from.get()?;
        let verb = match kind {
            CLAIM => ClaimVerb::Claim {
                session: number,
                clean: from.get()?,
            },
            GRANTED | GRANTED_WITH => ClaimVerb::Granted {
                session: number,
                stamp: from.get()?,
                handover: handover(kind == GRANTED_WITH, from)?,
            },
            LOST => ClaimVerb::Lost { session: number },
            YIELD => ClaimVerb::Yield {
                stamp: number,
                clean: from.get()?,
            },
            FREE | FREE_WITH => ClaimVerb::Free {
                stamp: number,
                handover: handover(kind == FREE_WITH, from)?,
            },
            HOLD => ClaimVerb::Hold { stamp: number },
            REPORT_HOLDS => ClaimVerb::ReportHolds,
            other => return Err(from.error(DecodeCause::Tag("a claim", other))),
        };
        Ok(ClaimMessage { id, verb })
    }
}

// Vhost names have at most 255 bytes, client ids at most 65,535.
wire_struct!(ClientId {
    vhost: Arc<str> as ShortText,
    client: Arc<str> as MediumText,
});

impl ClaimVerb {
    /// The session state in the message; empty if there is none.
    pub fn handover(&self) -> &Bytes {
        static NONE: Bytes = Bytes::new();
        match self {
            ClaimVerb::Granted { handover, .. } | ClaimVerb::Free { handover, .. } => handover,
            _ => &NONE,
        }
    }
}

fn handover(is_present: bool, from: &mut Reader<'_>) -> Decoded<Bytes> {
    if !is_present {
        return Ok(Bytes::new());
    }
    let length = usize::from(from.get::<u16>()?);
    if length == 0 || length > HANDOVER_BYTES {
        return Err(from.error(DecodeCause::Limit));
    }
    // Copy, because the frame may be much larger.
    from.take(length).map(Bytes::copy_from_slice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn verbs() -> impl Strategy<Value = ClaimVerb> {
        let handover = prop::collection::vec(any::<u8>(), 0..9).prop_map(Bytes::from);
        let all = (0..7, any::<u64>(), any::<u64>(), any::<bool>(), handover);
        all.prop_map(|(kind, n, stamp, clean, handover)| match kind {
            0 => ClaimVerb::Claim { session: n, clean },
            1 => ClaimVerb::Granted {
                session: n,
                stamp,
                handover,
            },
            2 => ClaimVerb::Lost { session: n },
            3 => ClaimVerb::Yield { stamp, clean },
            4 => ClaimVerb::Free { stamp, handover },
            5 => ClaimVerb::Hold { stamp },
            _ => ClaimVerb::ReportHolds,
        })
    }

    proptest! {
        #[test]
        fn messages_roundtrip_and_truncated_ones_fail(
            list in prop::collection::vec(("[a-z/]{0,8}", "\\PC{0,12}", verbs()), 1..6),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut out = BytesMut::new();
            let mut ends = vec![0];
            let all: Vec<ClaimMessage> = list
                .into_iter()
                .map(|(vhost, client, verb)| {
                    let id = ClientId { vhost: vhost.into(), client: client.into() };
                    ClaimMessage { id, verb }
                })
                .collect();
            for message in &all {
                message.encode(&mut out);
                ends.push(out.len());
            }
            let bytes = out.freeze();
            prop_assert_eq!(ClaimMessage::decode_all(bytes.clone()), Ok(all));
            let cut = cut.index(bytes.len());
            let some = ClaimMessage::decode_all(bytes.slice(..cut));
            prop_assert_eq!(some.is_ok(), ends.contains(&cut));
        }

        #[test]
        fn handover_size_is_limited(length in 1..=u16::MAX) {
            let free = |handover| {
                let verb = ClaimVerb::Free { stamp: 1, handover };
                let mut out = BytesMut::new();
                ClaimMessage { id: ClientId::default(), verb }.encode(&mut out);
                ClaimMessage::decode_all(out.freeze())
            };
            let decoded = free(Bytes::from(vec![7; length.into()]));
            prop_assert_eq!(decoded.is_ok(), usize::from(length) <= HANDOVER_BYTES);
        }

        #[test]
        fn decode_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = ClaimMessage::decode_all(Bytes::from(bytes));
        }
    }
}
