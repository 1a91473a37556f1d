//! Permissions and statuses of the management node.

use crate::fake::{Client, Seen};
use amqp10::{LinkId, SessionId};
use codec_amqp10::{
    AnyTarget, Attach, Encode, Map, Output, Properties, Reader, Role, SectionKind, Sections,
    SenderSettleMode, Source, Symbol, Target, Value, encode_section_descriptor, map,
};
use metadata::{Change, PermissionRecord};
use session_amqp10::Amqp10Config;

const NODE: Value<'static> = Value::String("/management");

/// A link of the pair.
fn half(client: &mut Client, session: SessionId, role: Role) -> LinkId {
    let mut encoded = Vec::new();
    let mut entries = map(&mut encoded);
    entries.push(&Symbol::from_static("paired"));
    entries.push(&true);
    entries.finish();
    let address = |own: Role| (own == role).then_some(NODE);
    let attach = Attach {
        source: Some(Source {
            address: address(Role::Receiver),
            ..Source::default()
        }),
        target: Some(AnyTarget::Target(Target {
            address: address(Role::Sender),
            ..Target::default()
        })),
        snd_settle_mode: SenderSettleMode::Settled,
        properties: Reader::new(&encoded).read::<Map<'_>>().ok(),
        ..crate::fake::link("pair", role)
    };
    let link = client.attach(session, &attach);
    client.expect(Seen::Attached(link));
    link
}

/// A client with this user and the link for its requests. Its responses have credit.
fn manager(user: &str) -> (Client, LinkId) {
    let (mut client, session) = Client::open_with(Amqp10Config::default(), user);
    let requests = half(&mut client, session, Role::Sender);
    let responses = half(&mut client, session, Role::Receiver);
    client.credit(responses, 100, false);
    (client, requests)
}

fn send(client: &mut Client, link: LinkId, method: &str, path: &str, body: &impl Encode) {
    let mut message = Vec::new();
    let properties = Properties {
        message_id: Some(Value::Ulong(1)),
        to: Some(path),
        subject: Some(method),
        reply_to: Some("$me"),
        ..Properties::default()
    };
    properties.encode(&mut message);
    encode_section_descriptor(&mut message, SectionKind::Value);
    body.encode(&mut message);
    client.send_message(link, message, true);
}

/// The status of the response to a request.
fn status(
    client: &mut Client,
    link: LinkId,
    method: &str,
    path: &str,
    body: &impl Encode,
) -> String {
    send(client, link, method, path, body);
    match client.seen.pop_front() {
        Some(Seen::Message { payload, .. }) => {
            let sections = Sections::parse(&payload).unwrap();
            let properties = sections.read_properties(&payload).unwrap();
            properties.subject.unwrap().to_owned()
        }
        other => panic!("{method} {path}: {other:?}"),
    }
}

/// A body with entries of these names.
struct Body<'a>(&'a [(&'a str, Value<'a>)]);

impl Encode for Body<'_> {
    fn encode<O: Output>(&self, out: &mut O) {
        let mut entries = map(out);
        for (name, value) in self.0 {
            entries.push(*name);
            entries.push(value);
        }
        entries.finish();
    }
}

/// Permissions of the user small.
fn permit(client: &mut Client, configure: &str, write: &str, read: &str) {
    client.broker.must(Change::PutPermission(PermissionRecord {
        user: "small".into(),
        vhost: "/".into(),
        configure: configure.into(),
        write: write.into(),
        read: read.into(),
    }));
}

#[test]
fn reading_needs_permissions() {
    let bindings = "/bindings?src=amq.direct&dstq=yours&key=k";
    let queue = "/queues/yours";
    for (path, configure, write, read, is_allowed) in [
        (queue, "^mine", "^mine", "^mine", false),
        (queue, "^yours", "^mine", "^mine", true),
        (queue, "^mine", "^yours", "^mine", true),
        (queue, "^mine", "^mine", "^yours", true),
        (bindings, "^yours", "^mine", "^mine", false),
        (bindings, "^mine", "^yours", "^yours", false),
        (bindings, "^mine", "^mine", "^amq", false),
        (bindings, "^mine", "^yours", "^amq", true),
    ] {
        let (mut client, link) = manager("small");
        client.declare("yours");
        permit(&mut client, configure, write, read);
        match is_allowed {
            true => assert_eq!(status(&mut client, link, "GET", path, &Value::Null), "200"),
            false => {
                send(&mut client, link, "GET", path, &Value::Null);
                client.expect(Seen::Ended(Some("amqp:unauthorized-access".into())));
            }
        }
    }
}

#[test]
fn properties_that_a_type_does_not_support_are_bad_requests() {
    let (mut client, link) = manager("guest");
    let mut arguments = Vec::new();
    Body(&[("x-queue-type", Value::String("quorum"))]).encode(&mut arguments);
    let arguments = Value::Map(Reader::new(&arguments).read::<Map<'_>>().unwrap());
    for (name, flag) in [
        ("durable", false),
        ("exclusive", true),
        ("auto_delete", true),
    ] {
        let body = Body(&[("arguments", arguments), (name, Value::Boolean(flag))]);
        let status = status(&mut client, link, "PUT", "/queues/q", &body);
        assert_eq!(status, "400", "{name}");
    }
    assert!(client.broker.changes.is_empty());
}

#[test]
fn conflict_is_the_status_of_exchanges_that_exist_only() {
    let (mut client, link) = manager("guest");
    let mut arguments = Vec::new();
    Body(&[("alternate-exchange", Value::Uint(5))]).encode(&mut arguments);
    let arguments = Value::Map(Reader::new(&arguments).read::<Map<'_>>().unwrap());
    let body = Body(&[("arguments", arguments)]);
    let path = "/exchanges/amq.direct";
    let fanout = Body(&[("type", Value::String("fanout"))]);
    assert_eq!(
        status(&mut client, link, "PUT", "/exchanges/new", &body),
        "400"
    );
    assert_eq!(status(&mut client, link, "PUT", path, &fanout), "409");
}
