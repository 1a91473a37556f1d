//! What hubs of the cluster say to each other. Within [`crate::frame::Frame`]; integers big-endian.

use crate::frame::{FrameError, u8, u16, u64};
use bytes::{BufMut, Bytes, BytesMut};
use env::Incarnation;

/// From one hub to another: both are of one life of their nodes, and what was for another life is not heard.
#[derive(Clone, Debug, PartialEq)]
pub struct HubFrame {
    /// The node is the one that the frame comes from.
    pub from: (Incarnation, u16),
    pub to: Incarnation,
    pub word: HubWord,
}

#[derive(Clone, Debug, PartialEq)]
pub enum HubWord {
    /// About subscriptions and messages.
    Topics(topics::Word),
    /// About client ids.
    Claims(Vec<topics::ClaimWord>),
    /// About wills.
    Wills(Vec<topics::WillWord>),
}

const TOPICS: u8 = 1;
const CLAIMS: u8 = 2;
const WILLS: u8 = 3;

impl HubFrame {
    pub fn encode(&self, out: &mut BytesMut) {
        out.put_u64(self.from.0.0);
        out.put_u16(self.from.1);
        out.put_u64(self.to.0);
        match &self.word {
            HubWord::Topics(word) => {
                out.put_u8(TOPICS);
                word.encode(out);
            }
            HubWord::Claims(words) => {
                out.put_u8(CLAIMS);
                words.iter().for_each(|word| word.encode(out));
            }
            HubWord::Wills(words) => {
                out.put_u8(WILLS);
                words.iter().for_each(|word| word.encode(out));
            }
        }
    }

    pub fn decode(mut frame: Bytes) -> Result<HubFrame, FrameError> {
        let from = (Incarnation(u64(&mut frame)?), u16(&mut frame)?);
        let to = Incarnation(u64(&mut frame)?);
        let word = match u8(&mut frame)? {
            TOPICS => HubWord::Topics(topics::Word::decode(frame).map_err(|_| FrameError)?),
            CLAIMS => {
                let words = topics::ClaimWord::decode_all(frame);
                HubWord::Claims(words.map_err(|_| FrameError)?)
            }
            WILLS => {
                let words = topics::WillWord::decode_all(frame);
                HubWord::Wills(words.map_err(|_| FrameError)?)
            }
            _ => return Err(FrameError),
        };
        Ok(HubFrame { from, to, word })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use topics::{State, Word};

    #[test]
    fn a_frame_returns_and_a_cut_one_does_not() {
        let state = State {
            ask: true,
            routes: 7,
            ..State::default()
        };
        let frame = HubFrame {
            from: (Incarnation(3), 1),
            to: Incarnation(4),
            word: HubWord::Topics(Word::State(state)),
        };
        let mut out = BytesMut::new();
        frame.encode(&mut out);
        let bytes = out.freeze();
        assert_eq!(HubFrame::decode(bytes.clone()), Ok(frame));
        for cut in 0..bytes.len() {
            assert!(HubFrame::decode(bytes.slice(..cut)).is_err());
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..120), kind in 0u8..5) {
            let mut whole = vec![0; 18];
            whole.push(kind);
            whole.extend(bytes);
            let _ = HubFrame::decode(Bytes::from(whole));
        }
    }
}
