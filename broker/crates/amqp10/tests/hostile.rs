//! Changed, cut and shuffled frames: the engine neither panics nor keeps more than its limits, and reads the same whatever the pieces
//! in which the bytes come.

use crate::support::*;
use codec_amqp10::{DeliveryState, Role};
use proptest::prelude::*;

/// One frame that fits in some state.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let handle = || prop_oneof![4 => 0..4u32, 1 => Just(8u32)];
    let channel = || prop_oneof![6 => 0..3u16, 1 => Just(4u16)];
    let id = || prop_oneof![8 => 0..20u32, 1 => any::<u32>()];
    prop_oneof![
        8 => (channel(), handle(), prop::option::weighted(0.8, id()), 0..450usize, any::<bool>())
            .prop_map(|(channel, handle, id, size, more)| part(channel, handle, id, size, more)),
        2 => (channel(), handle(), id()).prop_map(|(channel, handle, id)| transfer_with(channel, handle, id, 3, |transfer| transfer.aborted = true)),
        4 => (channel(), prop::option::of(handle()), prop::option::of(id()), prop::option::of(0..9u32), any::<(bool, bool)>(), prop::option::weighted(0.2, id()))
            .prop_map(|(channel, handle, count, credit, (drain, echo), next)| flow_with(channel, |flow| {
                flow.handle = handle;
                flow.delivery_count = count;
                flow.link_credit = credit;
                flow.drain = drain;
                flow.echo = echo;
                flow.next_incoming_id = next;
            })),
        4 => (channel(), any::<bool>(), id(), prop::option::of(id()), any::<bool>())
            .prop_map(|(channel, receiver, first, last, settled)| {
                let role = if receiver { Role::Receiver } else { Role::Sender };
                disposition(channel, role, first, last, settled, Some(DeliveryState::ACCEPTED))
            }),
        2 => (channel(), handle(), prop::sample::select(vec!["in", "out", "refused", "later", "x"]), any::<bool>())
            .prop_map(|(channel, handle, name, sends)| attach(channel, handle, name, if sends { Role::Sender } else { Role::Receiver })),
        2 => (channel(), handle(), any::<bool>()).prop_map(|(channel, handle, closed)| detach(channel, handle, closed)),
        1 => channel().prop_map(begin),
        1 => channel().prop_map(end),
        1 => Just(heartbeat()),
    ]
}

fn changed_frames() -> impl Strategy<Value = Vec<u8>> {
    (
        frames(),
        prop::option::weighted(0.15, (any::<prop::sample::Index>(), any::<u8>())),
    )
        .prop_map(|(mut frame, change)| {
            if let Some((at, byte)) = change {
                let at = at.index(frame.len());
                frame[at] = byte;
            }
            frame
        })
}

/// Runs the bytes in pieces of the given sizes, with commands of a broker in between that depend on the bytes alone.
fn run(frames: &[Vec<u8>], pieces: &[usize]) -> Vec<String> {
    let mut harness = Harness::running(config());
    let mut sizes = pieces.iter().copied().cycle();
    for (turn, frame) in frames.iter().enumerate() {
        let mut rest = &frame[..];
        while !rest.is_empty() {
            let (piece, left) =
                rest.split_at(sizes.next().unwrap_or(rest.len()).clamp(1, rest.len()));
            harness.run(Step::In(piece.to_vec()));
            rest = left;
        }
        let limits = config();
        assert!(harness.connection.unfinished_size() <= limits.max_unfinished_size);
        assert!(harness.input.len() <= limits.max_frame_size as usize);
        for session in harness.connection.sessions() {
            assert!(session.incoming_window <= limits.incoming_window);
            assert!(session.unsettled_outgoing <= limits.max_unsettled);
            assert!(session.links.len() <= usize::from(limits.handle_max) + 1);
            let unsettled: u32 = session.links.iter().map(|link| link.unsettled).sum();
            assert!(
                session.unsettled_incoming <= unsettled as usize,
                "{session:?}"
            );
            for link in &session.links {
                assert!(link.unfinished_size as u64 <= limits.max_message_size);
                if link.role == Role::Receiver {
                    assert!(link.credit <= limits.link_credit);
                    assert!(link.unsettled < 2 * limits.link_credit, "{link:?}");
                }
            }
        }
        match turn % 4 {
            0 => harness.run(Step::Send(turn * 37 % 900)),
            1 => harness.run(Step::Settle(turn as u32 / 2, DeliveryState::ACCEPTED)),
            2 => harness.run(Step::Drained),
            _ => harness.run(Step::Flush),
        }
    }
    harness.trace
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn hostile_frames_stay_within_limits_and_pieces_do_not_matter(
        frames in prop::collection::vec(changed_frames(), 1..40),
        pieces in prop::collection::vec(1..60usize, 1..8),
    ) {
        let whole = run(&frames, &[usize::MAX]);
        prop_assert_eq!(run(&frames, &pieces), whole);
    }

    #[test]
    fn hostile_bytes_before_the_open_do_not_panic(
        cut in any::<prop::sample::Index>(), bytes in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        let prelude = prelude();
        let mut harness = Harness::new(config());
        harness.receive(&prelude[..cut.index(prelude.len())]);
        harness.receive(&bytes);
        harness.run(Step::Flush);
        harness.run(Step::Tick(20_000));
    }
}
