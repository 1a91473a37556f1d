use super::*;
use crate::deprecated::{DeprecatedFeature, PermittedFeatures};
use crate::restrictions::Restrictions;

fn declared(queue: QueueRecord) -> Change {
    Change::DeclareQueue(queue)
}

fn text(result: Result<(), ChangeError>) -> String {
    result.expect_err("not refused").to_string()
}

#[test]
fn new_objects_above_a_limit_are_refused_and_existing_ones_are_not() {
    let mut log = Log::new();
    log.declare(queue("a"));
    let exchanges = log.tree.exchange_count() as u64;
    let full = Restrictions {
        max_exchanges: Some(exchanges),
        max_queues: Some(1),
        max_vhosts: Some(1),
        ..Restrictions::none()
    };
    let vhost = |label: &str| Change::PutVhost {
        name: name(label),
        description: name(""),
        tags: Vec::new(),
    };
    let check = |change: &Change| full.check(&log.tree, change);
    assert_eq!(
        text(check(&declared(queue("b")))),
        "cannot declare queue 'b': queue limit in cluster (1) is reached"
    );
    assert_eq!(
        text(check(&Change::DeclareExchange(exchange("x", "direct")))),
        format!(
            "cannot declare exchange 'x' in vhost '/': exchange limit of {exchanges} is reached"
        )
    );
    assert_eq!(
        text(check(&vhost("v"))),
        "cannot create vhost 'v': vhost limit of 1 is reached"
    );
    for existing in [
        declared(queue("a")),
        Change::DeclareExchange(exchange("amq.topic", "topic")),
        vhost("/"),
    ] {
        assert_eq!(check(&existing), Ok(()));
    }
    let wide = Restrictions {
        max_exchanges: Some(exchanges + 1),
        max_queues: Some(2),
        max_vhosts: Some(2),
        ..Restrictions::none()
    };
    for new in [
        declared(queue("b")),
        Change::DeclareExchange(exchange("x", "direct")),
        vhost("v"),
    ] {
        assert_eq!(wide.check(&log.tree, &new), Ok(()));
    }
}

#[test]
fn disabled_types_are_refused() {
    let log = Log::new();
    let strict = Restrictions {
        disabled_queue_types: vec![QueueType::Quorum],
        permits_local_random: false,
        ..Restrictions::none()
    };
    let refused = strict.check(&log.tree, &declared(quorum("q")));
    assert!(matches!(refused, Err(ChangeError::NotPermitted(_))));
    assert_eq!(
        text(refused),
        "Cannot declare a queue 'queue 'q' in vhost '/'' of type 'rabbit_quorum_queue': this node has \
         queue_types.quorum.enabled = false"
    );
    assert_eq!(strict.check(&log.tree, &declared(queue("q"))), Ok(()));
    let random = Change::DeclareExchange(exchange("x", "x-local-random"));
    assert!(text(strict.check(&log.tree, &random)).contains("exchange_types.local_random.enabled"));
}

#[test]
fn deprecated_declarations_are_refused_by_default_and_permitted_by_a_setting() {
    let log = Log::new();
    let transient = QueueRecord {
        durable: false,
        ..queue("t")
    };
    let located = QueueRecord {
        arguments: table(&[("x-queue-master-locator", Value::from("min-masters"))]),
        ..queue("l")
    };
    for (feature, record) in [
        (DeprecatedFeature::TransientNonexclQueues, transient.clone()),
        (DeprecatedFeature::QueueMasterLocator, located),
    ] {
        let mut restrictions = Restrictions::default();
        let change = declared(record);
        let refused = text(restrictions.check(&log.tree, &change));
        let start = format!(
            "Feature `{}` is deprecated.\nBy default, this feature is not permitted anymore.\n",
            feature.name()
        );
        assert!(refused.starts_with(&start), "{refused}");
        let remedy = format!("\"deprecated_features.permit.{} = true\"", feature.name());
        assert!(refused.ends_with(&remedy), "{refused}");
        restrictions.permitted.set(feature, true);
        assert_eq!(restrictions.check(&log.tree, &change), Ok(()));
    }
    // Exclusive queues and the queues of direct reply-to end with their connection.
    let session = SessionId {
        node: NodeId(1),
        incarnation: Incarnation(1),
        number: 1,
    };
    let exclusive = QueueRecord {
        exclusive: Some(session),
        ..transient
    };
    assert_eq!(
        Restrictions::default().check(&log.tree, &declared(exclusive)),
        Ok(())
    );
}

#[test]
fn features_that_cannot_be_selected_keep_their_phase() {
    let mut permitted = PermittedFeatures::default();
    for feature in DeprecatedFeature::ALL {
        assert_eq!(DeprecatedFeature::from_name(feature.name()), Some(feature));
        permitted.set(feature, !feature.is_permitted_by_default());
        let is_changed = permitted.contains(feature) != feature.is_permitted_by_default();
        assert_eq!(is_changed, feature.is_selectable(), "{}", feature.name());
    }
    assert!(DeprecatedFeature::ALL.is_sorted_by_key(|f| f.name()));
}
