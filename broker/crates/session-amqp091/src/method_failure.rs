//! A failure with the method that caused it, for channel.close and connection.close.

use crate::failure::{Failure, ReplyCode};
use codec_amqp091::{DecodeError, Method, Octets, Shown};

/// Maximum number of argument octets in an error text.
const MAX_SHOWN: usize = 64;

/// A failure and the class and method id that caused it.
#[derive(Debug)]
pub(crate) struct MethodFailure {
    pub failure: Failure,
    pub ids: (u16, u16),
}

impl MethodFailure {
    /// The failure for a payload that is not a known method.
    pub(crate) fn undecodable(error: &DecodeError, payload: &[u8]) -> MethodFailure {
        let unknown = |payload| format!("type 1, {}: unknown_frame", Shown::of(payload));
        let Some((head, arguments)) = payload.split_first_chunk::<4>() else {
            return MethodFailure {
                failure: Failure::new(ReplyCode::FrameError, unknown(payload)),
                ids: (0, 0),
            };
        };
        let [c1, c0, m1, m0] = *head;
        let ids = (u16::from_be_bytes([c1, c0]), u16::from_be_bytes([m1, m0]));
        let (code, text, ids) = match error {
            DecodeError::UnknownMethod(..) => {
                let text = format!("cannot decode method: {error}");
                (ReplyCode::CommandInvalid, text, ids)
            }
            DecodeError::Utf8 => {
                let text = "Malformed UTF-8 in shortstr".to_owned();
                (ReplyCode::FrameError, text, (0, 0))
            }
            DecodeError::Short | DecodeError::Trailing(_) => {
                let shown = arguments.get(..MAX_SHOWN).unwrap_or(arguments);
                let text = format!("cannot decode {}", Octets(shown));
                (ReplyCode::FrameError, text, ids)
            }
            error => (
                ReplyCode::FrameError,
                format!("cannot decode method: {error}"),
                ids,
            ),
        };
        MethodFailure {
            failure: Failure::new(code, text),
            ids,
        }
    }

    /// The failure for channel.open on a channel that is open or closing.
    pub(crate) fn opened_twice(open: &Method<'_>) -> MethodFailure {
        MethodFailure {
            failure: Failure::new(ReplyCode::ChannelError, "second 'channel.open' seen"),
            ids: open.ids(),
        }
    }
}
