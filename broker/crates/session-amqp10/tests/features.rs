//! Logins, idle timeouts, user ids, additional routing keys and dynamic termini.

mod fake;

use amqp10::{ClientSasl, LinkId, SessionId};
use auth::{Mechanism, TlsPeer};
use codec_amqp10::{
    AnyTarget, Attach, Encode, ExpiryPolicy, Multiple, Properties, Role, SectionKind, Source,
    Symbol, Target, Value, encode_data_section, encode_section_descriptor, list, map,
};
use fake::{Client, Seen, link, message};
use message::Table;
use metadata::{Change, ExchangeRecord};
use session::{LoginConfig, Session};
use session_amqp10::Amqp10Config;
use std::sync::Arc;
use std::time::Duration;

fn accepted(id: u32) -> Seen {
    Seen::Outcome(id, "accepted".into())
}

fn sasl(mechanism: &str, response: &[u8]) -> ClientSasl {
    ClientSasl {
        mechanism: mechanism.into(),
        initial_response: response.into(),
    }
}

fn config(logins: LoginConfig) -> Amqp10Config {
    Amqp10Config {
        logins: Arc::new(logins),
        ..Amqp10Config::default()
    }
}

fn with_external() -> LoginConfig {
    let mut logins = LoginConfig::default();
    logins.mechanisms.push(Mechanism::External);
    logins
}

fn certificate(name: Option<&str>) -> Option<Arc<TlsPeer>> {
    Some(Arc::new(TlsPeer {
        protocol: "tlsv1.3",
        cipher: "TLS_AES_128_GCM_SHA256",
        subject: Some("CN=client".into()),
        name: name.map(Into::into),
    }))
}

/// The user of a client that logs in with this mechanism. None: the login is refused.
fn user_of(logins: LoginConfig, sasl: ClientSasl, tls: Option<Arc<TlsPeer>>) -> Option<String> {
    let mut client = Client::over(config(logins), sasl, None, tls);
    client.pump();
    match client.seen.pop_front() {
        Some(Seen::Opened) => {
            assert_eq!(client.broker.logins, (1, 0));
            let services = session::ServiceStates::default();
            Some(client.session.info(&services).user)
        }
        Some(Seen::Closed(Some(_))) => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn external_login_takes_the_user_from_the_certificate() {
    let external = || sasl("EXTERNAL", b"");
    let user = |tls| user_of(with_external(), external(), tls);
    assert_eq!(user(certificate(Some("small"))).as_deref(), Some("small"));
    assert_eq!(user(certificate(Some("unknown"))), None);
    assert_eq!(user(certificate(None)), None);
    // Without TLS the mechanism is not offered.
    assert_eq!(user(None), None);
    let not_enabled = user_of(
        LoginConfig::default(),
        external(),
        certificate(Some("small")),
    );
    assert_eq!(not_enabled, None);
}

#[test]
fn anonymous_login_is_that_of_the_configured_user() {
    let anonymous = || sasl("ANONYMOUS", b"trace");
    let mut logins = LoginConfig::default();
    assert!(logins.mechanisms.contains(&Mechanism::Anonymous));
    assert_eq!(
        user_of(logins.clone(), anonymous(), None).as_deref(),
        Some("guest")
    );
    logins.anonymous = None;
    assert_eq!(user_of(logins, anonymous(), None), None);
}

#[test]
fn silent_client_is_closed_after_the_idle_timeout() {
    let (mut client, _) = Client::open();
    let idle = session_amqp10::Limits::default().idle;
    let opened = client.broker.now;
    client.broker.now = opened + idle - Duration::from_millis(2);
    client.state = client.session.tick(&mut client.broker, &mut client.out);
    assert!(
        client
            .session
            .wake_at()
            .is_some_and(|at| at <= opened + idle)
    );
    client.broker.now = opened + idle + Duration::from_millis(1);
    client.state = client.session.tick(&mut client.broker, &mut client.out);
    client.pump();
    client.expect(Seen::Closed(Some("amqp:resource-limit-exceeded".into())));
}

#[test]
fn server_sends_heartbeats_within_the_idle_timeout_of_the_client() {
    let (mut client, _) = Client::open();
    // The client's open announces 30 s.
    let before = client.received.len();
    client.broker.now = client.broker.now + Duration::from_secs(14);
    client.state = client.session.tick(&mut client.broker, &mut client.out);
    client.pump();
    assert_eq!(client.received.len(), before);
    client.broker.now = client.broker.now + Duration::from_secs(2);
    client.state = client.session.tick(&mut client.broker, &mut client.out);
    client.pump();
    // A frame without a body.
    assert_eq!(client.received[before..], [0, 0, 0, 8, 2, 0, 0, 0]);
}

/// A message with a user id.
fn from_user(user: &str) -> Vec<u8> {
    let mut message = Vec::new();
    let properties = Properties {
        user_id: Some(user.as_bytes()),
        ..Properties::default()
    };
    properties.encode(&mut message);
    encode_data_section(&mut message, b"a");
    message
}

#[test]
fn user_id_must_be_that_of_the_login() {
    let (mut client, session) = Client::open();
    client.declare("q");
    let publisher = client.publisher(session, "/queues/q");
    let id = client.send_message(publisher, from_user("guest"), false);
    client.expect(accepted(id));
    client.send_message(publisher, from_user("other"), false);
    // The message has no outcome, and the session goes on.
    client.expect(Seen::Detached(Some("amqp:unauthorized-access".into())));
    let publisher = client.publisher(session, "/queues/q");
    let id = client.send(publisher, "b");
    client.expect(accepted(id));
    client.nothing_seen();

    let guest = client.broker.tree.user("guest").unwrap().clone();
    let mut client = Client::new(Amqp10Config::default(), "guest", "guest", None);
    let mut impersonator = (*guest).clone();
    impersonator.tags = vec!["impersonator".into()];
    client.broker.must(Change::PutUser(impersonator));
    client.pump();
    client.expect(Seen::Opened);
    let session = client.begin();
    client.declare("q");
    let publisher = client.publisher(session, "/queues/q");
    let id = client.send_message(publisher, from_user("other"), false);
    client.expect(accepted(id));
}

#[test]
fn publishing_to_an_internal_exchange_concerns_the_link_only() {
    let (mut client, session) = Client::open();
    let exchange = ExchangeRecord {
        vhost: "/".into(),
        name: "internal".into(),
        kind: "fanout".into(),
        durable: true,
        auto_delete: false,
        internal: true,
        arguments: Table::default(),
    };
    client.broker.must(Change::DeclareExchange(exchange));
    let fixed = client.try_publisher(session, Some("/exchanges/internal"));
    client.expect(Seen::Attached(fixed));
    let forbidden = Seen::Detached(Some("amqp:unauthorized-access".into()));
    client.expect(forbidden.clone());
    let anonymous = client.try_publisher(session, None);
    client.expect(Seen::Attached(anonymous));
    let to = Some("/exchanges/internal");
    client.send_message(anonymous, message(to, "a"), false);
    client.expect(forbidden);
    client.nothing_seen();
    client.declare("q");
    client.publisher(session, "/queues/q");
}

/// A message with the annotation `x-cc`.
fn with_copies(to: Option<&str>, copies: &impl Encode) -> Vec<u8> {
    let mut all = Vec::new();
    encode_section_descriptor(&mut all, SectionKind::MessageAnnotations);
    let mut annotations = map(&mut all);
    annotations.push(&Symbol::from_static("x-cc"));
    annotations.push(copies);
    annotations.finish();
    all.extend(message(to, "a"));
    all
}

/// An encoded list of strings.
struct Keys<'a>(&'a [&'a str]);

impl Encode for Keys<'_> {
    fn encode<O: codec_amqp10::Output>(&self, out: &mut O) {
        let mut writer = list(out);
        for key in self.0 {
            writer.push(*key);
        }
        writer.finish();
    }
}

#[test]
fn annotation_cc_adds_routing_keys() {
    let (mut client, session) = Client::open();
    let queues = ["q", "r", "s"].map(|name| client.declare(name));
    let ready = |client: &Client| queues.map(|queue| client.broker.queues[&queue].ready.len());
    let fixed = client.publisher(session, "/queues/q");
    let id = client.send_message(fixed, with_copies(None, &Keys(&["r", "missing"])), false);
    client.expect(accepted(id));
    assert_eq!(ready(&client), [1, 1, 0]);
    // A queue gets the message once.
    let id = client.send_message(fixed, with_copies(None, &Keys(&["q", "s"])), false);
    client.expect(accepted(id));
    assert_eq!(ready(&client), [2, 1, 1]);

    let anonymous = client.try_publisher(session, None);
    client.expect(Seen::Attached(anonymous));
    let to_q = Some("/queues/q");
    let id = client.send_message(anonymous, with_copies(to_q, &Keys(&["s"])), false);
    client.expect(accepted(id));
    assert_eq!(ready(&client), [3, 1, 2]);
    let id = client.send_message(anonymous, with_copies(to_q, &"s"), false);
    client.expect(Seen::Outcome(id, "rejected amqp:invalid-field".into()));
    client.send_message(fixed, with_copies(None, &"s"), false);
    let released = client.seen.pop_front();
    assert!(matches!(released, Some(Seen::Outcome(_, what)) if what == "released"));
    client.expect(Seen::Detached(Some("amqp:invalid-field".into())));
    assert_eq!(ready(&client), [3, 1, 2]);
}

const TEMPORARY: [Symbol<'static>; 1] = [Symbol::from_static("temporary-queue")];

fn dynamic_sender(client: &mut Client, session: SessionId, target: Target<'_>) -> LinkId {
    let attach = Attach {
        source: Some(Source::default()),
        target: Some(AnyTarget::Target(target)),
        ..link("dynamic sender", Role::Sender)
    };
    client.attach(session, &attach)
}

fn target() -> Target<'static> {
    Target {
        dynamic: true,
        capabilities: Multiple::new(&TEMPORARY),
        ..Target::default()
    }
}

#[test]
fn dynamic_target_is_a_queue_that_ends_with_its_link() {
    let (mut client, session) = Client::open();
    let sender = dynamic_sender(&mut client, session, target());
    client.expect(Seen::Attached(sender));
    let address = match client.answer(sender).target {
        Some(AnyTarget::Target(target)) => {
            assert!(target.dynamic && target.capabilities.contains("temporary-queue"));
            assert_eq!(target.expiry_policy, ExpiryPolicy::LinkDetach);
            let lifetime = target
                .dynamic_node_properties
                .unwrap()
                .get("lifetime-policy");
            assert!(matches!(lifetime, Some(Value::Described(_))));
            match target.address {
                Some(Value::String(address)) => address.to_owned(),
                other => panic!("{other:?}"),
            }
        }
        other => panic!("{other:?}"),
    };
    assert!(address.starts_with("/queues/amq.dyn-"), "{address}");
    let id = client.send(sender, "a");
    client.expect(accepted(id));
    let consumer = client.consumer(session, &address);
    client.credit(consumer, 1, false);
    client.expect_message("a");
    client.detach(consumer);
    client.detach(sender);
    assert!(client.broker.queues.is_empty(), "the queue is deleted");
}

#[test]
fn dynamic_source_is_a_queue_that_ends_with_its_session() {
    let (mut client, session) = Client::open();
    let attach = Attach {
        source: Some(Source {
            dynamic: true,
            capabilities: Multiple::new(&TEMPORARY),
            ..Source::default()
        }),
        target: Some(AnyTarget::Target(Target::default())),
        ..link("dynamic receiver", Role::Receiver)
    };
    let receiver = client.attach(session, &attach);
    client.expect(Seen::Attached(receiver));
    let address = client.source_address(receiver);
    assert!(address.starts_with("/queues/amq.dyn-"), "{address}");
    client.credit(receiver, 1, false);
    let other = client.begin();
    let publisher = client.publisher(other, &address);
    let id = client.send(publisher, "a");
    client.expect(accepted(id));
    client.expect_message("a");
    client.end(session);
    assert!(client.broker.queues.is_empty(), "the queue is deleted");
}

#[test]
fn dynamic_terminus_needs_a_capability_and_no_address() {
    for (wrong, condition) in [
        (
            Target {
                capabilities: Multiple::NONE,
                ..target()
            },
            "amqp:not-implemented",
        ),
        (
            Target {
                address: Some(Value::String("/queues/mine")),
                ..target()
            },
            "amqp:invalid-field",
        ),
    ] {
        let (mut client, session) = Client::open();
        dynamic_sender(&mut client, session, wrong);
        client.expect_refused(condition);
    }
    // The user may not configure the name of the queue.
    let (mut client, session) = Client::open_with(Amqp10Config::default(), "small");
    dynamic_sender(&mut client, session, target());
    client.expect(Seen::Ended(Some("amqp:unauthorized-access".into())));
}
