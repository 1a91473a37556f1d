//! What hubs of the cluster say to each other. Within [`crate::frame::Frame`]; integers big-endian.

use crate::frame::{FrameError, u8, u16, u64};
use bytes::{BufMut, Bytes, BytesMut};
use env::Incarnation;

/// From one hub to another: both are of one life of their nodes, and what was for another life is not heard.
#[derive(Clone, Debug, PartialEq)]
pub struct RouterFrame {
    /// The node is the one that the frame comes from.
    pub from: (Incarnation, u16),
    pub to: Incarnation,
    pub peer_message: RouterMessage,
}

#[derive(Clone, Debug, PartialEq)]
pub enum RouterMessage {
    /// About subscriptions and messages.
    Topics(topics::PeerMessage),
    /// About client ids.
    Claims(Vec<topics::ClaimMessage>),
    /// About wills.
    Wills(Vec<topics::WillMessage>),
}

const TOPICS: u8 = 1;
const CLAIMS: u8 = 2;
const WILLS: u8 = 3;

impl RouterFrame {
    pub fn encode(&self, out: &mut BytesMut) {
        out.put_u64(self.from.0.0);
        out.put_u16(self.from.1);
        out.put_u64(self.to.0);
        match &self.peer_message {
            RouterMessage::Topics(peer_message) => {
                out.put_u8(TOPICS);
                peer_message.encode(out);
            }
            RouterMessage::Claims(peer_messages) => {
                out.put_u8(CLAIMS);
                peer_messages
                    .iter()
                    .for_each(|peer_message| peer_message.encode(out));
            }
            RouterMessage::Wills(peer_messages) => {
                out.put_u8(WILLS);
                peer_messages
                    .iter()
                    .for_each(|peer_message| peer_message.encode(out));
            }
        }
    }

    pub fn decode(mut frame: Bytes) -> Result<RouterFrame, FrameError> {
        let from = (Incarnation(u64(&mut frame)?), u16(&mut frame)?);
        let to = Incarnation(u64(&mut frame)?);
        let peer_message = match u8(&mut frame)? {
            TOPICS => {
                RouterMessage::Topics(topics::PeerMessage::decode(frame).map_err(|_| FrameError)?)
            }
            CLAIMS => {
                let peer_messages = topics::ClaimMessage::decode_all(frame);
                RouterMessage::Claims(peer_messages.map_err(|_| FrameError)?)
            }
            WILLS => {
                let peer_messages = topics::WillMessage::decode_all(frame);
                RouterMessage::Wills(peer_messages.map_err(|_| FrameError)?)
            }
            _ => return Err(FrameError),
        };
        Ok(RouterFrame {
            from,
            to,
            peer_message,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use topics::{PeerMessage, PeerState};

    #[test]
    fn a_frame_returns_and_a_cut_one_does_not() {
        let state = PeerState {
            ask: true,
            routes: 7,
            ..PeerState::default()
        };
        let frame = RouterFrame {
            from: (Incarnation(3), 1),
            to: Incarnation(4),
            peer_message: RouterMessage::Topics(PeerMessage::State(state)),
        };
        let mut out = BytesMut::new();
        frame.encode(&mut out);
        let bytes = out.freeze();
        assert_eq!(RouterFrame::decode(bytes.clone()), Ok(frame));
        for cut in 0..bytes.len() {
            assert!(RouterFrame::decode(bytes.slice(..cut)).is_err());
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..120), kind in 0u8..5) {
            let mut whole = vec![0; 18];
            whole.push(kind);
            whole.extend(bytes);
            let _ = RouterFrame::decode(Bytes::from(whole));
        }
    }
}
