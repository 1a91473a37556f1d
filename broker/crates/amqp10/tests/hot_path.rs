//! Messages in both directions allocate nothing once the buffers have grown.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use amqp10::{
    AttachReply, Config, Connection, Event, LinkId, OpenReply, OutgoingDelivery, SaslDecision,
};
use bytes::{Bytes, BytesMut};
use codec_amqp10::{DeliveryState, Role};
use support::*;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of GlobalAlloc.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of GlobalAlloc.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn open_connection(out: &mut BytesMut) -> (Connection, Vec<LinkId>) {
    let config = Arc::new(Config::server("broker", &["ANONYMOUS"]));
    let mut connection = Connection::new(config, 0, out);
    let (bytes, mut links) = (prelude(), Vec::new());
    let mut input = &bytes[..];
    while let Some(event) = connection.poll(&mut input, 0, out) {
        match event {
            Event::SaslInit { pending, .. } => {
                connection.answer_sasl(pending, SaslDecision::Accept, out)
            }
            Event::OpenRequested { pending, .. } => {
                connection
                    .accept_open(pending, OpenReply::default(), out)
                    .expect("an open");
            }
            Event::AttachRequested { pending, .. } => {
                let attached = connection.accept_attach(pending, &AttachReply::default(), out);
                links.push(attached.expect("an attach").link);
            }
            _ => {}
        }
    }
    (connection, links)
}

#[test]
fn messages_in_both_directions_allocate_nothing() {
    let mut out = BytesMut::with_capacity(1 << 16);
    let (mut connection, links) = open_connection(&mut out);
    let message = [
        Bytes::from_static(b"header"),
        Bytes::from_static(b"bare message"),
    ];
    let rounds: Vec<(Vec<u8>, Vec<u8>, Vec<u8>)> = (0..2000u32)
        .map(|round| {
            let flow = flow_with(0, |flow| {
                flow.next_incoming_id = Some((u32::MAX - 3).wrapping_add(round));
                flow.next_outgoing_id = round;
                flow.handle = Some(1);
                flow.delivery_count = Some(round);
                flow.link_credit = Some(1);
            });
            let settled = disposition(
                0,
                Role::Receiver,
                round,
                None,
                true,
                Some(DeliveryState::ACCEPTED),
            );
            (transfer(0, 0, round, 12), flow, settled)
        })
        .collect();
    let (mut received, mut settled, mut counted) = (0, 0, 0);
    for (round, (transfer, flow, disposition)) in rounds.iter().enumerate() {
        if round == 1000 {
            counted = ALLOCATIONS.with(Cell::get);
        }
        out.clear();
        for bytes in [flow, transfer] {
            let mut input = &bytes[..];
            while let Some(event) = connection.poll(&mut input, 0, &mut out) {
                match event {
                    Event::MessageReceived { link, delivery } => {
                        received += 1;
                        connection
                            .settle_received(link, delivery.id, &DeliveryState::ACCEPTED, &mut out)
                            .expect("a delivery");
                    }
                    Event::CreditChanged { link, .. } => {
                        let delivery = OutgoingDelivery {
                            tag: b"tag",
                            message_format: 0,
                            settled: false,
                            parts: &message,
                            token: 1,
                        };
                        connection.send(link, &delivery, &mut out).expect("credit");
                        assert_eq!(link, links[1]);
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        connection.flush(0, &mut out);
        let mut input = &disposition[..];
        while let Some(event) = connection.poll(&mut input, 0, &mut out) {
            assert!(matches!(event, Event::Disposition { .. }), "{event:?}");
            settled += 1;
        }
    }
    let allocated = ALLOCATIONS.with(Cell::get) - counted;
    assert_eq!((received, settled, allocated), (2000, 2000, 0));
}
