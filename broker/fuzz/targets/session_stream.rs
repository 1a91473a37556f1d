//! Whole sessions of the stream protocol on a node in memory: frames, events of the node and time, in any order. No panic, bounded
//! buffers, and what the session writes is whole frames that its client can read.
#![no_main]

#[path = "../../crates/session-stream/tests/fake/mod.rs"]
mod fake;
mod script;

use bytes::BytesMut;
use codec_stream::{
    ClientCommand as C, List, OffsetSpecification, Property, PublishedBody, PublishedMessage,
    PublishedMessages, ResponseCode, Trailing,
};
use fake::World;
use libfuzzer_sys::fuzz_target;
use metadata::Change;
use script::Script;
use session::{ControlEvent, Session, SessionState};
use session_stream::{Limits, StreamConfig};

/// `Limits::outbox` with what one step may add.
const OUTBOX: usize = (64 << 10) + (256 << 10);

const STREAMS: [&str; 5] = ["s", "new", "o-0", "missing", ""];

fn choice<T: Copy>(script: &mut Script<'_>, of: &[T]) -> T {
    of[usize::from(script.byte().unwrap_or(0)) % of.len()]
}

fn offset(script: &mut Script<'_>) -> OffsetSpecification {
    match script.byte().unwrap_or(0) % 6 {
        0 => OffsetSpecification::None,
        1 => OffsetSpecification::First,
        2 => OffsetSpecification::Last,
        3 => OffsetSpecification::Next,
        4 => OffsetSpecification::Offset(script.number()),
        _ => OffsetSpecification::Timestamp(script.number() as i64),
    }
}

fuzz_target!(|input: &[u8]| {
    let mut script = Script(input);
    let config = StreamConfig {
        limits: Limits {
            in_flight: 4096,
            outbox: 64 << 10,
            outbox_deliveries: 16 << 10,
            pending_requests: 8,
            ..Limits::default()
        },
        ..StreamConfig::default()
    };
    let mut world = match script.byte() {
        None => return,
        Some(0) => {
            let mut world = World::new(config);
            world.accept();
            world
        }
        Some(_) => World::open_with(config, "guest"),
    };
    world.connect("guest");
    while let Some(step) = script.byte() {
        take(&mut world, step, &mut script);
        for client in &world.clients {
            assert!(client.out.len() <= OUTBOX, "{} bytes", client.out.len());
            assert!(client.session.unfinished() <= 1 << 20);
        }
        if world.clients[0].state == SessionState::Closing {
            break;
        }
    }
    world.clients[0].is_deaf = false;
    world.pump();
    world.disconnect(0);
    world.disconnect(1);
    assert_eq!(world.broker.counters.publishers, 0);
    assert_eq!(world.broker.counters.consumers, 0);
});

fn take(world: &mut World, step: u8, script: &mut Script<'_>) {
    let at = usize::from(step >> 7);
    let correlation_id = 1;
    let id = script.byte().unwrap_or(0) % 4;
    let stream = choice(script, &STREAMS);
    let reference = choice(script, &["", "r", "group"]);
    match step % 32 {
        0 => world.send(
            at,
            &C::DeclarePublisher {
                correlation_id,
                publisher_id: id,
                reference,
                stream,
            },
        ),
        1..=4 => {
            let mut buffer = BytesMut::new();
            let body = script.bytes();
            let message = PublishedMessage {
                publishing_id: script.number(),
                filter: (step & 64 != 0).then_some("red"),
                body: match step & 32 {
                    0 => PublishedBody::Message(body),
                    _ => PublishedBody::SubBatch {
                        compression: id,
                        records: 1 + u16::from(id),
                        uncompressed_len: 5,
                        data: body,
                    },
                },
            };
            let messages = vec![message; 1 + usize::from(id)];
            let messages = PublishedMessages::encode(&messages, &mut buffer);
            world.send(
                at,
                &C::Publish {
                    publisher_id: id,
                    messages,
                },
            );
        }
        5..=7 => {
            let properties = [
                ("name", reference),
                ("single-active-consumer", "true"),
                ("super-stream", "o"),
                ("filter.0", "red"),
            ];
            let mask = script.byte().unwrap_or(0);
            let properties: Vec<Property<'_>> = (0..4)
                .filter(|bit| mask >> bit & 1 != 0)
                .map(|bit| Property {
                    key: properties[bit].0,
                    value: properties[bit].1,
                })
                .collect();
            let command = C::Subscribe {
                correlation_id,
                subscription_id: id,
                stream,
                offset: offset(script),
                credit: u16::from(script.byte().unwrap_or(0)),
                properties: Trailing(List::from(&properties[..])),
            };
            world.send(at, &command);
        }
        8 | 9 => {
            let credit = script.number() as u16;
            world.send(
                at,
                &C::Credit {
                    subscription_id: id,
                    credit,
                },
            );
        }
        10 => world.send(
            at,
            &C::Unsubscribe {
                correlation_id,
                subscription_id: id,
            },
        ),
        11 => world.send(
            at,
            &C::DeletePublisher {
                correlation_id,
                publisher_id: id,
            },
        ),
        12 => {
            let arguments = [Property {
                key: "max-length-bytes",
                value: reference,
            }];
            let arguments = &arguments[usize::from(id) % 2..];
            world.send(
                at,
                &C::Create {
                    correlation_id,
                    stream,
                    arguments: List::from(arguments),
                },
            );
        }
        13 => world.send(
            at,
            &C::Delete {
                correlation_id,
                stream,
            },
        ),
        14 => world.send(
            at,
            &C::CreateSuperStream {
                correlation_id,
                super_stream: "o",
                partitions: List::from(&["o-0", stream][..]),
                binding_keys: List::from(&["0", "1"][..]),
                arguments: List::from(&[][..]),
            },
        ),
        15 => world.send(
            at,
            &C::DeleteSuperStream {
                correlation_id,
                super_stream: choice(script, &["o", "amq.direct"]),
            },
        ),
        16 => {
            let update = script.number() as u32;
            let command = C::ConsumerUpdateResponse {
                correlation_id: update % 8,
                code: ResponseCode::OK,
                offset: offset(script),
            };
            world.send(at, &command);
        }
        17 => {
            let offset = script.number();
            world.send(
                at,
                &C::StoreOffset {
                    reference,
                    stream,
                    offset,
                },
            );
        }
        18 => world.send(
            at,
            &C::QueryOffset {
                correlation_id,
                reference,
                stream,
            },
        ),
        19 => world.send(
            at,
            &C::Metadata {
                correlation_id,
                streams: List::from(&STREAMS[..]),
            },
        ),
        20 => world.send(
            at,
            &C::Route {
                correlation_id,
                routing_key: "0",
                super_stream: choice(script, &["o", "amq.topic", ""]),
            },
        ),
        21 => {
            world.exchange_versions(at);
        }
        // A command with any fields.
        22 | 23 => {
            let fields = script.bytes();
            let mut frame = (4 + fields.len() as u32).to_be_bytes().to_vec();
            frame.extend_from_slice(&[step & 128, id * 8 + step % 8, 0, 1 + step % 2]);
            frame.extend_from_slice(fields);
            world.send_bytes(at, &frame);
        }
        24 => {
            let bytes = script.bytes();
            world.send_bytes(at, bytes);
        }
        25 => world.pass(script.byte().unwrap_or(0).into()),
        26 => world.clients[at].is_deaf = !world.clients[at].is_deaf,
        27 => {
            world.broker.holds_confirms = !world.broker.holds_confirms;
            world.broker.confirm_held();
        }
        28 => world.broker.is_silent = !world.broker.is_silent,
        29 => {
            world.broker.leader = choice(script, &[None, Some(fake::NODE), Some(fake::OTHER_NODE)]);
        }
        30 => {
            let change = Change::DeleteQueue {
                vhost: "/".into(),
                name: stream.into(),
                id: None,
            };
            if world.broker.tree.queue("/", stream).is_some() {
                world.broker.must(change);
            }
        }
        _ => {
            let number = 100 + at as u64;
            let event = match id {
                0 => ControlEvent::Blocked(Some("memory")),
                1 => ControlEvent::Blocked(None),
                2 => ControlEvent::Unblocked,
                _ => ControlEvent::Close {
                    text: "an operator".to_owned(),
                },
            };
            world.broker.events.push_back((number, event.into()));
        }
    }
    world.pump();
}
