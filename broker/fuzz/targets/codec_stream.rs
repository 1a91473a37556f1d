//! Frames of the stream protocol: no panic, and a command that is decoded means the same after it is written and read again.
#![no_main]

use bytes::BytesMut;
use codec_stream::{ClientCommand, ServerCommand, split_frame};
use libfuzzer_sys::fuzz_target;

const FRAME_MAX: u32 = 1 << 20;

fuzz_target!(|input: &[u8]| {
    command(input);
    let mut rest = input;
    while let Ok(Some((frame, len))) = split_frame(rest, FRAME_MAX) {
        assert!(len == frame.len() + 4 && len <= rest.len());
        command(frame);
        rest = &rest[len..];
    }
});

fn command(frame: &[u8]) {
    if let Ok(command) = ClientCommand::decode(frame) {
        let mut out = BytesMut::new();
        command.encode(&mut out);
        assert_eq!(ClientCommand::decode(whole(&out)), Ok(command));
        if let ClientCommand::Publish { messages, .. } = command {
            let read = messages.iter().collect::<Vec<_>>();
            assert!(read.len() <= messages.len());
            let failed = read.iter().filter(|message| message.is_err()).count();
            assert!(failed <= 1 && (failed == 1 || read.len() == messages.len()));
        }
    }
    if let Ok(command) = ServerCommand::decode(frame) {
        let mut out = BytesMut::new();
        command.encode(&mut out);
        assert_eq!(ServerCommand::decode(whole(&out)), Ok(command));
    }
}

fn whole(bytes: &[u8]) -> &[u8] {
    let (frame, len) = split_frame(bytes, 0).expect("valid").expect("complete");
    assert_eq!(len, bytes.len());
    frame
}
