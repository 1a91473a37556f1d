//! What went wrong and in which method, as channel.close and connection.close name it.

use crate::failure::{Code, Failure};
use codec_amqp091::{DecodeError, Method, Octets, Shown};

/// Octets of a method's arguments that are shown.
const MAX_SHOWN: usize = 64;

/// A failure and the method it belongs to.
#[derive(Debug)]
pub(crate) struct At {
    pub failure: Failure,
    pub ids: (u16, u16),
}

impl At {
    /// Bytes that are no method, or none that is known.
    pub fn undecodable(error: &DecodeError, payload: &[u8]) -> At {
        let unknown = |payload| format!("type 1, {}: unknown_frame", Shown::of(payload));
        let Some((head, arguments)) = payload.split_first_chunk::<4>() else {
            return At {
                failure: Failure::new(Code::FrameError, unknown(payload)),
                ids: (0, 0),
            };
        };
        let [c1, c0, m1, m0] = *head;
        let ids = (u16::from_be_bytes([c1, c0]), u16::from_be_bytes([m1, m0]));
        let (code, text, ids) = match error {
            DecodeError::UnknownMethod(..) => {
                let text = format!("cannot decode method: {error}");
                (Code::CommandInvalid, text, ids)
            }
            DecodeError::Utf8 => {
                let text = "Malformed UTF-8 in shortstr".to_owned();
                (Code::FrameError, text, (0, 0))
            }
            DecodeError::Short | DecodeError::Trailing(_) => {
                let shown = arguments.get(..MAX_SHOWN).unwrap_or(arguments);
                let text = format!("cannot decode {}", Octets(shown));
                (Code::FrameError, text, ids)
            }
            error => (
                Code::FrameError,
                format!("cannot decode method: {error}"),
                ids,
            ),
        };
        At {
            failure: Failure::new(code, text),
            ids,
        }
    }

    /// channel.open on a channel that is open, or was not closed to the end.
    pub fn opened_twice(open: &Method<'_>) -> At {
        At {
            failure: Failure::new(Code::ChannelError, "second 'channel.open' seen"),
            ids: open.ids(),
        }
    }
}
