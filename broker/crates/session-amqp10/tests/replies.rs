//! Direct reply-to.

use crate::fake::{Client, Seen, link, message};
use amqp10::{LinkId, SessionId};
use codec_amqp10::{
    AnyTarget, Attach, Durability, ExpiryPolicy, Multiple, Role, SenderSettleMode, Source, Symbol,
    Target, Value,
};
use metadata::Change;
use session_amqp10::Amqp10Config;

const VOLATILE: [Symbol<'static>; 1] = [Symbol::from_static("rabbitmq:volatile-queue")];

fn source() -> Source<'static> {
    Source {
        dynamic: true,
        expiry_policy: ExpiryPolicy::LinkDetach,
        capabilities: Multiple::new(&VOLATILE),
        ..Source::default()
    }
}

fn attach(client: &mut Client, session: SessionId, name: &str, source: Source<'_>) -> LinkId {
    let attach = Attach {
        source: Some(source),
        target: Some(AnyTarget::Target(Target::default())),
        snd_settle_mode: SenderSettleMode::Settled,
        ..link(name, Role::Receiver)
    };
    client.attach(session, &attach)
}

fn requester(client: &mut Client, session: SessionId, name: &str) -> (LinkId, String) {
    let link = attach(client, session, name, source());
    client.expect(Seen::Attached(link));
    (link, client.source_address(link))
}

fn accepted(id: u32) -> Seen {
    Seen::Outcome(id, "accepted".into())
}

#[test]
fn replies_reach_the_receiver_within_its_credit() {
    let (mut client, session) = Client::open();
    let (link, address) = requester(&mut client, session, "replies");
    assert!(
        address.starts_with("/queues/amq.rabbitmq.reply-to."),
        "{address}"
    );
    let answer = client.answer(link);
    let source = answer.source.unwrap();
    assert!(source.dynamic && source.capabilities.contains("rabbitmq:volatile-queue"));
    assert_eq!(source.expiry_policy, ExpiryPolicy::LinkDetach);
    assert_eq!(answer.snd_settle_mode, SenderSettleMode::Settled);
    client.credit(link, 2, false);
    client.nothing_seen();

    let (other, other_address) = requester(&mut client, session, "others");
    assert_ne!(address, other_address);
    client.credit(other, 1, false);
    let fixed = client.publisher(session, &address);
    let anonymous = client.try_publisher(session, None);
    client.expect(Seen::Attached(anonymous));
    let id = client.send(fixed, "a");
    client.expect_message("a");
    client.expect(accepted(id));
    let id = client.send_message(anonymous, message(Some(&other_address), "b"), false);
    client.expect_message("b");
    client.expect(accepted(id));
    client.send_message(anonymous, message(Some(&address), "c"), true);
    client.expect_message("c");
    // Without credit the reply is accepted and dropped.
    let id = client.send(fixed, "d");
    client.expect(accepted(id));
    client.credit(link, 10, true);
    client.expect(Seen::Drained(link));
    let id = client.send(fixed, "e");
    client.expect(accepted(id));
    client.credit(link, 1, false);
    client.nothing_seen();
    let id = client.send(fixed, "f");
    client.expect_message("f");
    client.expect(accepted(id));
    let queue = client.broker.queues.values().next().unwrap();
    assert!(queue.ready.is_empty() && queue.consumers.values().all(|c| c.out.is_empty()));
}

#[test]
fn reply_address_is_unknown_after_the_receiver_has_detached() {
    let (mut client, session) = Client::open();
    let (link, address) = requester(&mut client, session, "replies");
    let anonymous = client.try_publisher(session, None);
    client.expect(Seen::Attached(anonymous));
    client.detach(link);
    let deleted = |change: &Change| matches!(change, Change::DeleteQueue { .. });
    assert!(client.broker.changes.iter().any(deleted));
    let id = client.send_message(anonymous, message(Some(&address), "a"), false);
    client.expect(Seen::Outcome(id, "released".into()));
    let other = client.begin();
    client.try_publisher(other, Some(&address));
    client.expect_refused("amqp:not-found");
}

#[test]
fn reply_waits_for_the_log_if_the_tree_may_be_outdated() {
    let (mut client, session) = Client::open();
    let anonymous = client.try_publisher(session, None);
    client.expect(Seen::Attached(anonymous));
    client.broker.is_single_node = false;
    client.broker.hold_log = true;
    let name = "amq.rabbitmq.reply-to.a.b";
    let to = format!("/queues/{name}");
    let id = client.send_message(anonymous, message(Some(&to), "a"), false);
    client.nothing_seen();
    client.broker.hold_log = false;
    client.declare(name);
    assert!(client.broker.apply_next());
    client.deliver_events();
    client.pump();
    client.expect(accepted(id));
    // A queue that does not exist is unroutable, once.
    let missing = "/queues/amq.rabbitmq.reply-to.x.y";
    let id = client.send_message(anonymous, message(Some(missing), "b"), false);
    client.expect(Seen::Outcome(id, "released".into()));
    client.nothing_seen();
}

#[test]
fn direct_replies_need_no_permissions() {
    let (mut client, session) = Client::open_with(Amqp10Config::default(), "small");
    requester(&mut client, session, "replies");
}

#[test]
fn receiver_of_direct_replies_must_ask_for_a_volatile_source() {
    for wrong in [
        Source {
            address: Some(Value::String("/queues/amq.rabbitmq.reply-to")),
            ..source()
        },
        Source {
            durable: Durability::Configuration,
            ..source()
        },
        Source {
            expiry_policy: ExpiryPolicy::SessionEnd,
            ..source()
        },
        Source {
            timeout: 1,
            ..source()
        },
    ] {
        let (mut client, session) = Client::open();
        attach(&mut client, session, "replies", wrong);
        client.expect_refused("amqp:invalid-field");
    }
    let (mut client, session) = Client::open();
    let unsettled = Attach {
        source: Some(source()),
        target: Some(AnyTarget::Target(Target::default())),
        snd_settle_mode: SenderSettleMode::Unsettled,
        ..link("replies", Role::Receiver)
    };
    client.attach(session, &unsettled);
    client.expect_refused("amqp:invalid-field");
    // The queue of another link cannot be consumed.
    let (mut client, session) = Client::open();
    let (_, address) = requester(&mut client, session, "replies");
    client.try_consumer(session, &address, SenderSettleMode::Settled);
    client.expect_refused("amqp:not-found");
}
