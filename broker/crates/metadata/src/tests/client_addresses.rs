use super::*;
use crate::features::CLIENT_ADDRESSES;

fn address(protocol: &str, tls: bool, port: u16) -> ClientAddress {
    ClientAddress {
        protocol: name(protocol),
        tls,
        host: name("c-0"),
        port,
    }
}

fn put(addresses: Vec<ClientAddress>) -> Change {
    Change::PutClientAddresses {
        node: NodeId(1),
        addresses,
    }
}

fn enabled() -> Log {
    let mut log = Log::new();
    log.ok(Change::EnableFeature {
        name: name(CLIENT_ADDRESSES.name),
    });
    log
}

#[test]
fn addresses_are_refused_until_the_flag_is_enabled() {
    let mut log = Log::new();
    let before = log.tree.snapshot().len();
    let refused = log.apply(put(vec![address("amqp", false, 5672)]));
    assert!(
        matches!(&refused, Err(ChangeError::PreconditionFailed(text)) if text.contains("'client_addresses' is disabled")),
        "{refused:?}"
    );
    assert!(log.tree.client_addresses(NodeId(1)).is_empty());
    // The format of version 0.2.0 has no list of addresses.
    assert_eq!(log.tree.snapshot().len(), before);
}

#[test]
fn addresses_replace_the_earlier_ones_in_a_fixed_order() {
    let mut log = enabled();
    let (amqp, amqps) = (address("amqp", false, 5672), address("amqp", true, 5671));
    assert_eq!(
        log.ok(put(vec![amqps.clone(), amqp.clone()])),
        ChangeResult::Changed
    );
    assert_eq!(
        log.tree.client_addresses(NodeId(1)),
        [amqp.clone(), amqps.clone()]
    );
    assert_eq!(
        log.ok(put(vec![amqp.clone(), amqps.clone()])),
        ChangeResult::Unchanged
    );
    let restored = Tree::restore(&log.tree.snapshot()).unwrap();
    assert_eq!(restored.client_addresses(NodeId(1)), [amqp, amqps]);
    assert_eq!(log.ok(put(vec![])), ChangeResult::Changed);
    assert!(log.tree.client_addresses(NodeId(1)).is_empty());
}

#[test]
fn address_prefers_the_requested_transport() {
    let mut log = enabled();
    let (amqp, amqps, mqtts) = (
        address("amqp", false, 5672),
        address("amqp", true, 5671),
        address("mqtt", true, 8883),
    );
    log.ok(put(vec![amqp.clone(), amqps.clone(), mqtts.clone()]));
    let of = |protocol, tls| log.tree.client_address(NodeId(1), protocol, tls);
    assert_eq!(
        (of("amqp", false), of("amqp", true)),
        (Some(&amqp), Some(&amqps))
    );
    assert_eq!(
        (of("mqtt", false), of("stream", false)),
        (Some(&mqtts), None)
    );
}

#[test]
fn addresses_are_removed_with_their_node() {
    let mut log = enabled();
    log.ok(Change::PutNode(node(4)));
    log.ok(Change::PutClientAddresses {
        node: NodeId(4),
        addresses: vec![address("amqp", false, 5672)],
    });
    log.ok(Change::DeleteNode { id: NodeId(4) });
    assert!(log.tree.client_addresses(NodeId(4)).is_empty());
}

#[test]
fn invalid_addresses_are_refused() {
    let mut log = enabled();
    let too_many = vec![address("amqp", false, 1); limits::CLIENT_ADDRESSES + 1];
    let long = ClientAddress {
        host: "h".repeat(limits::NAME_BYTES + 1).into(),
        ..address("amqp", false, 5672)
    };
    for (addresses, expected) in [
        (too_many, "at most 64 client addresses, not 65"),
        (vec![address("amqp", false, 0)], "port 0"),
        (vec![address("", false, 5672)], "protocol"),
        (vec![long], "client host"),
    ] {
        let refused = log.apply(put(addresses)).unwrap_err().to_string();
        assert!(refused.contains(expected), "{refused}");
    }
    let unknown = Change::PutClientAddresses {
        node: NodeId(99),
        addresses: vec![address("amqp", false, 5672)],
    };
    assert!(matches!(log.apply(unknown), Err(ChangeError::NotFound(_))));
}
