//! The frames between a client with credit and its session: a kind and a fixed number of integers.

use super::CreditQueue;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::fmt::Debug;

/// How a client settles a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Accepted,
    Released,
    /// With the value of the one annotation, above 0.
    Modified {
        delivery_failed: bool,
        value: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientFrame {
    /// Declares the queue, and consumes from it.
    Open {
        queue: CreditQueue,
        consumes: bool,
    },
    Publish {
        number: u64,
    },
    Credit {
        request: u64,
        up_to: u64,
        drain: bool,
    },
    Settle {
        id: u64,
        outcome: Outcome,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerFrame {
    /// The queue is there, and the consumer if one was requested.
    Opened,
    /// The queue cannot be used, or the consumer has ended.
    Failed,
    Published {
        number: u64,
        confirmed: bool,
    },
    Delivered {
        id: u64,
        number: u64,
        /// 0: the message has no annotation.
        value: u64,
    },
    Credited {
        request: u64,
        last: u64,
        available: u64,
        drained: bool,
    },
}

/// A frame as integers.
pub(super) trait Frame: Sized + Debug {
    fn integers(&self) -> Vec<u64>;
    fn from_integers(integers: &[u64]) -> Option<Self>;
}

impl Frame for ClientFrame {
    fn integers(&self) -> Vec<u64> {
        match *self {
            ClientFrame::Open { queue, consumes } => vec![1, queue as u64, consumes.into()],
            ClientFrame::Publish { number } => vec![2, number],
            ClientFrame::Credit {
                request,
                up_to,
                drain,
            } => vec![3, request, up_to, drain.into()],
            ClientFrame::Settle { id, outcome } => match outcome {
                Outcome::Accepted => vec![4, id],
                Outcome::Released => vec![5, id],
                Outcome::Modified {
                    delivery_failed,
                    value,
                } => vec![6, id, delivery_failed.into(), value],
            },
        }
    }

    fn from_integers(integers: &[u64]) -> Option<ClientFrame> {
        let settle = |id, outcome| ClientFrame::Settle { id, outcome };
        Some(match *integers {
            [1, queue, consumes] => ClientFrame::Open {
                queue: CreditQueue::ALL.get(queue as usize).copied()?,
                consumes: consumes != 0,
            },
            [2, number] => ClientFrame::Publish { number },
            [3, request, up_to, drain] => ClientFrame::Credit {
                request,
                up_to,
                drain: drain != 0,
            },
            [4, id] => settle(id, Outcome::Accepted),
            [5, id] => settle(id, Outcome::Released),
            [6, id, delivery_failed, value] => settle(
                id,
                Outcome::Modified {
                    delivery_failed: delivery_failed != 0,
                    value,
                },
            ),
            _ => return None,
        })
    }
}

impl Frame for ServerFrame {
    fn integers(&self) -> Vec<u64> {
        match *self {
            ServerFrame::Opened => vec![1],
            ServerFrame::Failed => vec![2],
            ServerFrame::Published { number, confirmed } => vec![3, number, confirmed.into()],
            ServerFrame::Delivered { id, number, value } => vec![4, id, number, value],
            ServerFrame::Credited {
                request,
                last,
                available,
                drained,
            } => vec![5, request, last, available, drained.into()],
        }
    }

    fn from_integers(integers: &[u64]) -> Option<ServerFrame> {
        Some(match *integers {
            [1] => ServerFrame::Opened,
            [2] => ServerFrame::Failed,
            [3, number, confirmed] => ServerFrame::Published {
                number,
                confirmed: confirmed != 0,
            },
            [4, id, number, value] => ServerFrame::Delivered { id, number, value },
            [5, request, last, available, drained] => ServerFrame::Credited {
                request,
                last,
                available,
                drained: drained != 0,
            },
            _ => return None,
        })
    }
}

/// The number of integers, then the integers.
pub(super) fn encode(frame: &impl Frame) -> Bytes {
    let integers = frame.integers();
    let mut out = BytesMut::with_capacity(1 + 8 * integers.len());
    out.put_u8(integers.len() as u8);
    integers.iter().for_each(|integer| out.put_u64(*integer));
    out.freeze()
}

/// Takes the next frame from the front of the input. Some(Err): the bytes are none.
pub(super) fn decode<F: Frame>(input: &mut BytesMut) -> Option<Result<F, String>> {
    let count = usize::from(*input.first()?);
    if input.len() < 1 + 8 * count {
        return None;
    }
    input.advance(1);
    let integers: Vec<u64> = (0..count).map(|_| input.get_u64()).collect();
    let frame = F::from_integers(&integers);
    Some(frame.ok_or_else(|| format!("no frame of the credit protocol: {integers:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_back() {
        let value = 7;
        let delivery_failed = true;
        let frames = [
            ClientFrame::Open {
                queue: CreditQueue::Classic,
                consumes: true,
            },
            ClientFrame::Credit {
                request: 1,
                up_to: u64::MAX,
                drain: true,
            },
            ClientFrame::Settle {
                id: 3,
                outcome: Outcome::Modified {
                    delivery_failed,
                    value,
                },
            },
        ];
        let mut input = BytesMut::new();
        frames
            .iter()
            .for_each(|f| input.extend_from_slice(&encode(f)));
        for frame in frames {
            assert_eq!(decode(&mut input), Some(Ok(frame)));
        }
        assert_eq!(decode::<ClientFrame>(&mut input), None);
    }
}
