//! `Get` while the session's node is suspected: get-empty is reported only if the queue was empty.

use super::{ClientEvent, QueueClient};
use crate::model::number;
use crate::quorum::tests::{Rig, session, settings};
use crate::quorum::{Batch, Command};
use crate::{
    ConsumerId, QueueEvent, QueueMessage, QueueOutput, QueueReply, QueueType, Request, RequestBody,
    SessionId,
};
use env::{Time, WallTime};

const ME: u64 = 1;
const GET: RequestBody = RequestBody::Get {
    consumer: ConsumerId(7),
    no_ack: false,
};

fn client() -> QueueClient<u64> {
    let owner = session(0).node;
    QueueClient::new(
        session(ME),
        QueueType::Quorum,
        vec![owner],
        Some(owner),
        Time(1),
    )
}

fn requests(client: &mut QueueClient<u64>) -> Vec<Request> {
    let mut all = Vec::new();
    while let Some(item) = client.poll_send() {
        if let QueueMessage::Request(request) = item {
            all.push(request);
        }
    }
    all
}

/// Applies the requests that the client sends.
fn apply(client: &mut QueueClient<u64>, rig: &mut Rig) -> QueueOutput {
    let requests = requests(client);
    assert!(!requests.is_empty(), "the client sends nothing");
    apply_requests(&requests, rig)
}

fn apply_requests(requests: &[Request], rig: &mut Rig) -> QueueOutput {
    let mut batch = Batch::default();
    requests.iter().for_each(|request| batch.push(request));
    let command = batch.take(WallTime(rig.wall)).unwrap();
    rig.command(command)
}

fn handle_event(client: &mut QueueClient<u64>, out: QueueOutput) -> Vec<ClientEvent<u64>> {
    let mut events = Vec::new();
    let is_mine = |s: SessionId| s == session(ME);
    for addressed in out.events.into_iter().filter(|a| is_mine(a.session)) {
        let owner = client.owner().unwrap();
        client.event(Time(2), owner, addressed.event, &mut events);
    }
    events
}

fn got(events: &[ClientEvent<u64>]) -> Vec<u64> {
    let numbers = |t: &ClientEvent<u64>| match t {
        ClientEvent::Deliver { deliveries, .. } => {
            deliveries.iter().map(|d| number(&d.message)).collect()
        }
        _ => Vec::new(),
    };
    events.iter().flat_map(numbers).collect()
}

/// The queue suspects the session's node, and then trusts it again.
fn suspect(rig: &mut Rig) {
    rig.command(Command::NodeSuspected(session(ME).node).encode());
    rig.command(Command::NodeTrusted(session(ME).node).encode());
}

#[test]
fn repeated_get_takes_another_message_if_its_own_was_requeued() {
    let (mut client, mut rig) = (client(), Rig::new(settings()));
    rig.publish([1]);
    let pending = client.request(GET);
    let lost = apply(&mut client, &mut rig);
    assert!(!lost.events.is_empty());
    suspect(&mut rig);
    assert_eq!(rig.machine.stats().ready, 1);
    client.link_restored(Time(2));
    let out = apply(&mut client, &mut rig);
    assert_eq!(handle_event(&mut client, out), [], "the queue is not empty");
    // The second attempt gets the requeued message.
    let out = apply(&mut client, &mut rig);
    assert_eq!(got(&handle_event(&mut client, out)), [1]);
    assert!(client.is_idle());
    assert_eq!(pending, 1);
}

#[test]
fn repeated_get_of_an_empty_queue_is_answered_under_its_first_number() {
    let (mut client, mut rig) = (client(), Rig::new(settings()));
    rig.publish([1]);
    let pending = client.request(GET);
    apply(&mut client, &mut rig);
    suspect(&mut rig);
    rig.one(2, RequestBody::Purge);
    client.link_restored(Time(2));
    let out = apply(&mut client, &mut rig);
    assert_eq!(handle_event(&mut client, out), []);
    let out = apply(&mut client, &mut rig);
    let empty = ClientEvent::Answer {
        seq: pending,
        answer: QueueReply::Empty,
    };
    assert_eq!(handle_event(&mut client, out), [empty]);
    assert!(client.is_idle());
}

#[test]
fn late_copy_of_an_answered_get_takes_no_message() {
    let (mut client, mut rig) = (client(), Rig::new(settings()));
    rig.publish([1, 2]);
    client.request(GET);
    let copy = requests(&mut client);
    let out = apply_requests(&copy, &mut rig);
    assert_eq!(got(&handle_event(&mut client, out)), [1]);
    suspect(&mut rig);
    let out = apply_requests(&copy, &mut rig);
    assert_eq!(handle_event(&mut client, out), []);
    assert_eq!(requests(&mut client), []);
    assert_eq!(rig.machine.stats().ready, 2);
    assert_eq!(rig.machine.stats().unacknowledged, 0);
}

#[test]
fn get_is_not_repeated_after_the_close_of_its_session() {
    let (mut client, mut rig) = (client(), Rig::new(settings()));
    rig.publish([1]);
    client.request(GET);
    apply(&mut client, &mut rig);
    suspect(&mut rig);
    client.request(RequestBody::Close);
    client.link_restored(Time(2));
    let out = apply(&mut client, &mut rig);
    handle_event(&mut client, out);
    assert_eq!(requests(&mut client), []);
    assert!(client.is_idle());
}

#[test]
fn duplicate_answers_of_a_repeated_get_cause_one_repetition() {
    let (mut client, mut rig) = (client(), Rig::new(settings()));
    rig.publish([1]);
    client.request(GET);
    apply(&mut client, &mut rig);
    suspect(&mut rig);
    client.link_restored(Time(2));
    let copy = requests(&mut client);
    let out = apply_requests(&copy, &mut rig);
    handle_event(&mut client, out);
    let out = apply_requests(&copy, &mut rig);
    assert!(matches!(out.events[0].event, QueueEvent::Resumed { .. }));
    assert_eq!(handle_event(&mut client, out), []);
    let second = requests(&mut client);
    assert_eq!(second.len(), 1);
    let out = apply_requests(&second, &mut rig);
    assert_eq!(got(&handle_event(&mut client, out)), [1]);
    assert!(client.is_idle());
}
