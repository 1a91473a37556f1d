//! Frames: a size and a command.

use crate::FrameError;

/// Length of the size field in bytes.
pub const SIZE_BYTES: usize = 4;
/// Fewest bytes of a frame: a key and a version.
const MIN_FRAME_BYTES: u32 = 4;
/// Smallest maximum frame size that may be negotiated, in bytes.
pub const MIN_FRAME_MAX: u32 = 8192;
/// Default maximum frame size in bytes.
pub const DEFAULT_FRAME_MAX: u32 = 1 << 20;
/// Maximum frame size in bytes if none was negotiated: 0 means no limit in the protocol, but every buffer has one.
pub const MAX_FRAME_MAX: u32 = 512 << 20;

/// Splits the first frame off `bytes`. Returns the frame without its size field, and the number of bytes that it takes
/// with it; `None` if the frame is not complete.
///
/// # Errors
///
/// As soon as the size is known. `limit` is the negotiated maximum in bytes; 0 stands for [`MAX_FRAME_MAX`].
pub fn split_frame(bytes: &[u8], limit: u32) -> Result<Option<(&[u8], usize)>, FrameError> {
    let limit = match limit {
        0 => MAX_FRAME_MAX,
        limit => limit,
    };
    let Some((size, rest)) = bytes.split_first_chunk::<SIZE_BYTES>() else {
        return Ok(None);
    };
    let size = u32::from_be_bytes(*size);
    if size > limit {
        return Err(FrameError::TooLarge { size, limit });
    }
    if size < MIN_FRAME_BYTES {
        return Err(FrameError::TooShort { size });
    }
    let frame = rest.get(..size as usize);
    Ok(frame.map(|frame| (frame, SIZE_BYTES + frame.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_split_once_they_are_complete() {
        let bytes = b"\0\0\0\x04\0\x17\0\x01rest";
        for len in 0..8 {
            assert_eq!(split_frame(&bytes[..len], 100), Ok(None));
        }
        assert_eq!(split_frame(bytes, 100), Ok(Some((&b"\0\x17\0\x01"[..], 8))));
    }

    #[test]
    fn sizes_out_of_range_are_refused_at_once() {
        let too_large = |size, limit| Err(FrameError::TooLarge { size, limit });
        assert_eq!(split_frame(&[0, 0, 0, 101], 100), too_large(101, 100));
        assert_eq!(
            split_frame(&[0xFF; 4], 0),
            too_large(u32::MAX, MAX_FRAME_MAX)
        );
        assert_eq!(
            split_frame(&[0, 0, 0, 3], 0),
            Err(FrameError::TooShort { size: 3 })
        );
        assert_eq!(split_frame(&[0, 0, 0, 100], 100), Ok(None));
    }
}
