//! Logins, idle timeouts, user ids, additional routing keys and dynamic termini.

use crate::fake::{Client, Seen, link, message};
use amqp10::{ClientSasl, LinkId, SessionId};
use auth::{Mechanism, TlsPeer};
use codec_amqp10::{
    AnyTarget, Attach, Encode, ExpiryPolicy, Multiple, Properties, Reader, Role, SectionKind,
    Source, Symbol, Target, Timestamp, Value, encode_data_section, encode_described,
    encode_section_descriptor, list, map,
};
use filter::FilterSet;
use message::Table;
use metadata::features::{
    CONSUMER_FILTERS, MESSAGE_GROUPS, PUBLISHER_DEDUPLICATION, SCHEDULED_DELIVERY,
};
use metadata::{Change, ExchangeRecord, QueueId, QueueType};
use queue::{DeduplicationId, GroupId, RequestBody};
use session::{Broker, LinkFilter, LoginConfig, Session, SessionState};
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
fn throttled_connection_does_not_count_as_silent() {
    let (mut client, _) = Client::open();
    let idle = session_amqp10::Limits::default().idle;
    client.broker.is_throttled = true;
    for _ in 0..5 {
        client.broker.now = client.broker.now + idle;
        client.state = client.session.tick(&mut client.broker, &mut client.out);
        assert_eq!(client.state, SessionState::Open);
    }
    client.broker.is_throttled = false;
    client.broker.now = client.broker.now + idle + Duration::from_millis(1);
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

/// A message with this annotation.
fn annotated(name: &'static str, value: &impl Encode) -> Vec<u8> {
    let mut all = Vec::new();
    encode_section_descriptor(&mut all, SectionKind::MessageAnnotations);
    let mut annotations = map(&mut all);
    annotations.push(&Symbol::from_static(name));
    annotations.push(value);
    annotations.finish();
    all.extend(message(None, "a"));
    all
}

/// The delay of the newest message of a queue in milliseconds.
fn delay(client: &Client, queue: QueueId) -> Option<i64> {
    let (newest, _) = client.broker.queues[&queue]
        .ready
        .back()
        .expect("a message");
    let annotations = queue::Annotations::of(newest)?;
    annotations.table().get(queue::DELIVERY_DELAY)?.as_integer()
}

#[test]
fn annotations_delay_messages_in_queues_that_hold_them_back() {
    let (mut client, session) = Client::open();
    let quorum = client.declare_type("quorum", QueueType::Quorum);
    client.declare("classic");
    let link = client.publisher(session, "/queues/quorum");
    let in_a_minute = Timestamp(client.broker.wall().0 as i64 + 60_000);
    // Without the feature flag the annotation is one like any other.
    let id = client.send_message(link, annotated("x-opt-delivery-time", &in_a_minute), false);
    client.expect(accepted(id));
    assert_eq!(delay(&client, quorum), None);
    client.broker.must(Change::EnableFeature {
        name: SCHEDULED_DELIVERY.name.into(),
    });
    let id = client.send_message(link, annotated("x-opt-delivery-time", &in_a_minute), false);
    client.expect(accepted(id));
    assert_eq!(delay(&client, quorum), Some(60_000));
    let id = client.send_message(link, annotated("x-opt-delivery-delay", &5000u64), false);
    client.expect(accepted(id));
    assert_eq!(delay(&client, quorum), Some(5000));
    for none in [0, -1, i64::MIN] {
        let id = client.send_message(link, annotated("x-opt-delivery-time", &none), false);
        client.expect(accepted(id));
        assert_eq!(delay(&client, quorum), None);
    }
    let link = client.publisher(session, "/queues/classic");
    let id = client.send_message(link, annotated("x-opt-delivery-delay", &5000u64), false);
    client.expect(Seen::Outcome(id, "rejected amqp:not-implemented".into()));
    // A delay does not hide that the queue is gone.
    client.broker.must(Change::DeleteQueue {
        vhost: "/".into(),
        name: "classic".into(),
        id: None,
    });
    let id = client.send_message(link, annotated("x-opt-delivery-delay", &5000u64), false);
    client.expect(Seen::Outcome(id, "released".into()));
    client.expect(Seen::Detached(Some("amqp:resource-deleted".into())));
}

/// A message with this property `group-id` and these application properties.
fn with_group(group_id: Option<&str>, texts: &[(&str, &str)]) -> Vec<u8> {
    let mut all = Vec::new();
    Properties {
        group_id,
        ..Properties::default()
    }
    .encode(&mut all);
    all.extend(with_properties(texts, None));
    all
}

#[test]
fn property_and_application_properties_name_the_group() {
    let (mut client, session) = Client::open();
    client.broker.must(Change::EnableFeature {
        name: MESSAGE_GROUPS.name.into(),
    });
    let mut arguments = Table::default();
    arguments.set("x-message-groups", message::Value::Bool(true));
    let queue = client.declare_with("orders", QueueType::Quorum, arguments);
    let link = client.publisher(session, "/queues/orders");
    for (group_id, texts, expected) in [
        (Some("a"), vec![], Some("a")),
        (Some("a"), vec![("JMSXGroupID", "b")], Some("b")),
        (None, vec![("x-message-group", "c")], Some("c")),
        (None, vec![("other", "d")], None),
    ] {
        let id = client.send_message(link, with_group(group_id, &texts), false);
        client.expect(accepted(id));
        let ready = &client.broker.queues[&queue].ready;
        let (newest, _) = ready.back().expect("a message");
        assert_eq!(queue::group_of(newest), expected.map(GroupId::of));
    }
}

/// A message with these application properties, and `x-publishing-id` if it has one.
fn with_properties(texts: &[(&str, &str)], publishing_id: Option<u64>) -> Vec<u8> {
    let mut all = Vec::new();
    encode_section_descriptor(&mut all, SectionKind::ApplicationProperties);
    let mut properties = map(&mut all);
    for (key, value) in texts {
        properties.push(key);
        properties.push(value);
    }
    if let Some(number) = publishing_id {
        properties.push(&queue::PUBLISHING_ID);
        properties.push(&number);
    }
    properties.finish();
    all.extend(message(None, "a"));
    all
}

#[test]
fn application_properties_identify_messages_for_queues_that_recognise_copies() {
    let (mut client, session) = Client::open();
    client.broker.must(Change::EnableFeature {
        name: PUBLISHER_DEDUPLICATION.name.into(),
    });
    let mut arguments = Table::default();
    arguments.set("x-message-deduplication", message::Value::Bool(true));
    let queue = client.declare_with("orders", QueueType::Quorum, arguments);
    let link = client.publisher(session, "/queues/orders");
    let newest_id = |client: &Client| {
        let ready = &client.broker.queues[&queue].ready;
        let (newest, _) = ready.back().expect("a message");
        queue::deduplication_id(newest)
    };
    let numbered = with_properties(&[("x-publisher-id", "shop")], Some(7));
    let id = client.send_message(link, numbered, false);
    client.expect(accepted(id));
    let numbered = DeduplicationId::Numbered {
        publisher: "shop".into(),
        number: 7,
    };
    assert_eq!(newest_id(&client), Some(numbered));
    let id = client.send_message(
        link,
        with_properties(&[("x-deduplication-header", "v")], None),
        false,
    );
    client.expect(accepted(id));
    assert_eq!(newest_id(&client), Some(DeduplicationId::Value("v".into())));
    let id = client.send_message(link, with_properties(&[], Some(7)), false);
    client.expect(Seen::Outcome(
        id,
        "rejected amqp:precondition-failed".into(),
    ));
    // Other queues do not need what the headers say.
    client.declare("classic");
    let link = client.publisher(session, "/queues/classic");
    let id = client.send_message(link, with_properties(&[], Some(7)), false);
    client.expect(accepted(id));
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
    client.expect_message("a");
    client.expect(accepted(id));
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

/// Attaches a receiver with a selector, a filter that is invalid and one that is unknown. Returns the filter that the queue got,
/// and the keys of those in the answer.
fn attach_with_filters(client: &mut Client, name: &str, id: QueueId) -> (bool, Vec<String>) {
    let mut encoded = Vec::new();
    let mut filters = map(&mut encoded);
    for (key, descriptor, text) in [
        (
            "selector",
            "apache.org:selector-filter:string",
            "colour = 'red'",
        ),
        ("invalid", "amqp:sql-filter", "colour ="),
        ("unknown", "com.example:filter", "red"),
    ] {
        filters.push(&Symbol::new(key).expect("ASCII"));
        filters.push_with(|out| {
            encode_described(
                out,
                Symbol::new(descriptor).expect("ASCII"),
                &Value::String(text),
            );
        });
    }
    filters.finish();
    let session = client.begin();
    let address = format!("/queues/{name}");
    let attach = Attach {
        source: Some(Source {
            address: Some(Value::String(&address)),
            filter: Reader::new(&encoded).read().ok(),
            ..Source::default()
        }),
        target: Some(AnyTarget::Target(Target::default())),
        ..link(&address, Role::Receiver)
    };
    let link = client.attach(session, &attach);
    client.expect(Seen::Attached(link));
    let requests = client.broker.requests.iter().rev();
    let mut filter = requests.filter_map(|(queue, body)| match body {
        RequestBody::Consume { spec, .. } if *queue == id => Some(spec.filter.clone()),
        _ => None,
    });
    let filter = filter.next().expect("a consumer");
    let compiled = filter.map(|filter| FilterSet::decode(filter.as_bytes()));
    assert!(!matches!(compiled, Some(None)), "the queue understands it");
    let answer = client.answer(link).source.expect("a source").filter;
    let keys = answer.into_iter().flat_map(|filters| filters.iter());
    let keys = keys.filter_map(|(key, _)| key.as_text().map(str::to_owned));
    (compiled.is_some(), keys.collect())
}

#[test]
fn queues_get_the_filters_of_receivers() {
    let (mut client, _) = Client::open();
    let classic = client.declare("classic");
    let quorum = client.declare_type("quorum", QueueType::Quorum);
    let mut arguments = Table::default();
    arguments.set("x-message-groups", message::Value::Bool(true));
    let grouped = client.declare_with("grouped", QueueType::Quorum, arguments);
    let none = (false, vec![]);
    assert_eq!(attach_with_filters(&mut client, "quorum", quorum), none);
    client.broker.must(Change::EnableFeature {
        name: CONSUMER_FILTERS.name.into(),
    });
    let selector = (true, vec!["selector".to_owned()]);
    assert_eq!(attach_with_filters(&mut client, "quorum", quorum), selector);
    assert_eq!(
        attach_with_filters(&mut client, "classic", classic),
        selector
    );
    assert_eq!(attach_with_filters(&mut client, "grouped", grouped), none);
    let selector = LinkFilter {
        name: "selector".to_owned(),
        descriptor: "apache.org:selector-filter:string".into(),
        value: "colour = 'red'".into(),
    };
    let listed = |queue: &str| {
        let channels = client.session.details().channels.into_iter();
        let links = channels.flat_map(|channel| channel.links.expect("a session").outgoing);
        let mut links = links.filter(|link| link.queue == queue).collect::<Vec<_>>();
        links.pop().expect("a link").filters
    };
    assert_eq!(listed("quorum"), std::slice::from_ref(&selector));
    assert_eq!(listed("classic"), [selector]);
    assert_eq!(listed("grouped"), []);
}
