//! Somebody sets a node's wall clock: the ages of messages do not change.

use crate::cluster::{Client, Cluster};
use codec_amqp091::Properties;
use message::Value;
use std::time::Duration;

const HOUR: u64 = 3_600_000;

fn publish(c: &mut Cluster, client: &mut Client, queue: &str) {
    let persistent = Properties {
        delivery_mode: Some(2),
        ..Properties::default()
    };
    client.publish(c, "", queue, &persistent, b"body");
}

/// Both kinds of queue stamp messages with the clock of the node that leads them.
#[test]
fn a_set_clock_neither_expires_nor_keeps_messages() {
    for kind in ["classic", "quorum"] {
        for forward in [true, false] {
            let mut c = Cluster::new(1);
            let mut client = c.client(0);
            let ttl = [
                ("x-queue-type", Value::from(kind)),
                ("x-message-ttl", Value::I32(60_000)),
            ];
            client.declare(&mut c, "work", &ttl);
            publish(&mut c, &mut client, "work");
            c.pass(Duration::from_secs(1));
            c.wall.0 = match forward {
                true => c.wall.0 + HOUR,
                false => c.wall.0 - HOUR,
            };
            publish(&mut c, &mut client, "work");
            c.pass(Duration::from_secs(30));
            assert_eq!(c.ready(0, "work"), 2, "{kind}: not expired by the clock");
            c.pass(Duration::from_secs(31));
            assert_eq!(c.ready(0, "work"), 0, "{kind}: expired in time");
        }
    }
}
