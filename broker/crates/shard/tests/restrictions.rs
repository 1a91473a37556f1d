//! Restrictions of the node on declarations of its clients.

use crate::cluster::{Client, Cluster};
use codec_amqp091::Method;
use control::ControlRequest;
use message::Table;
use metadata::restrictions::Restrictions;
use metadata::{Change, ChangeError, ExchangeRecord};

fn declare(c: &mut Cluster, client: &mut Client, queue: &str, durable: bool) -> Result<(), String> {
    let method = Method::QueueDeclare {
        queue,
        passive: false,
        durable,
        exclusive: false,
        auto_delete: false,
        no_wait: false,
        arguments: Table::default(),
    };
    client.ask(c, 1, method).map(drop)
}

#[test]
fn denied_transient_queue_closes_the_connection() {
    let mut c = Cluster::with_restrictions(&Restrictions::default());
    let mut client = c.client(0);
    assert_eq!(declare(&mut c, &mut client, "d", true), Ok(()));
    let refused = declare(&mut c, &mut client, "t", false).expect_err("not refused");
    let expected = "INTERNAL_ERROR - Feature `transient_nonexcl_queues` is deprecated.\n";
    assert!(refused.starts_with(expected), "{refused}");
    assert!(!c.knows(0, "t"));
    let mut permissive = Cluster::with_restrictions(&Restrictions::none());
    let mut client = permissive.client(0);
    assert_eq!(declare(&mut permissive, &mut client, "t", false), Ok(()));
}

#[test]
fn limits_apply_to_clients_and_the_http_api() {
    let mut c = Cluster::with_restrictions(&Restrictions {
        max_queues: Some(1),
        max_exchanges: Some(1),
        ..Restrictions::none()
    });
    let mut client = c.client(0);
    assert_eq!(declare(&mut c, &mut client, "a", true), Ok(()));
    assert_eq!(declare(&mut c, &mut client, "a", true), Ok(()));
    let refused = declare(&mut c, &mut client, "b", true);
    let expected =
        "PRECONDITION_FAILED - cannot declare queue 'b': queue limit in cluster (1) is reached";
    assert_eq!(refused, Err(expected.to_owned()));
    let change = Change::DeclareExchange(ExchangeRecord {
        vhost: "/".into(),
        name: "x".into(),
        kind: "direct".into(),
        durable: true,
        auto_delete: false,
        internal: false,
        arguments: Table::default(),
    });
    let refused = c.ask(0, |reply| ControlRequest::Change { change, reply });
    let expected = "cannot declare exchange 'x' in vhost '/': exchange limit of 1 is reached";
    assert_eq!(
        refused,
        Err(ChangeError::PreconditionFailed(expected.to_owned()))
    );
}
