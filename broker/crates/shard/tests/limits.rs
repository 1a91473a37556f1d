//! Limits of users and virtual hosts on connections and channels, on three nodes.

use crate::cluster::{Client, Cluster};
use codec_amqp091::Method;
use metadata::Change;
use std::time::Duration;

/// By then every node has heard what others have open.
const TOLD: Duration = Duration::from_millis(200);

fn limit_user(c: &mut Cluster, limit: &str, value: Option<i64>) {
    c.change(Change::SetUserLimit {
        user: "guest".into(),
        limit: limit.into(),
        value,
    });
    c.pass(TOLD);
}

fn limit_vhost(c: &mut Cluster, value: Option<i64>) {
    c.change(Change::SetVhostLimit {
        vhost: "/".into(),
        limit: "max-connections".into(),
        value,
    });
    c.pass(TOLD);
}

/// A connection more, or the reason why not.
fn come(c: &mut Cluster, at: usize) -> Result<Client, String> {
    let client = c.try_client(at);
    c.pass(TOLD);
    client
}

fn refused(c: &mut Cluster, at: usize) -> String {
    come(c, at).err().unwrap_or_default()
}

fn leave(c: &mut Cluster, client: Client) {
    client.close(c);
    c.pass(TOLD);
}

#[test]
fn a_users_connections_count_on_every_node() {
    let mut c = Cluster::new(3);
    let early = c.client(0);
    limit_user(&mut c, "max-connections", Some(2));
    let second = come(&mut c, 1).expect("one more");
    for at in 0..3 {
        let why = refused(&mut c, at);
        assert!(
            why.contains("user connection limit (2) is reached"),
            "{why}"
        );
    }
    // Who was refused is not counted.
    leave(&mut c, early);
    let third = come(&mut c, 2).expect("a place is free");
    assert!(refused(&mut c, 0).contains("limit"));
    limit_user(&mut c, "max-connections", None);
    leave(&mut c, second);
    let fourth = come(&mut c, 0).expect("no limit");
    // What was told under the limit before is not believed any more.
    limit_user(&mut c, "max-connections", Some(3));
    let fifth = come(&mut c, 1).expect("the third of three");
    assert!(refused(&mut c, 2).contains("limit"));
    for client in [third, fourth, fifth] {
        leave(&mut c, client);
    }
    for at in 0..3 {
        come(&mut c, at).expect("all places are free");
    }
    assert!(refused(&mut c, 0).contains("limit"));
}

#[test]
fn a_virtual_hosts_connections_count_on_every_node() {
    let mut c = Cluster::new(3);
    limit_vhost(&mut c, Some(1));
    let only = come(&mut c, 2).expect("the first");
    for at in 0..3 {
        let why = refused(&mut c, at);
        assert!(why.contains("connection limit (1) is reached"), "{why}");
    }
    leave(&mut c, only);
    come(&mut c, 0).expect("its place");
}

#[test]
fn a_users_channels_count_on_every_node() {
    let mut c = Cluster::new(3);
    let mut clients: Vec<Client> = (0..2).map(|at| c.client(at)).collect();
    limit_user(&mut c, "max-channels", Some(3));
    clients[0].call(&mut c, 2, Method::ChannelOpen {});
    c.pass(TOLD);
    let why = clients[1].ask(&mut c, 2, Method::ChannelOpen {});
    assert!(why.is_err_and(|why| why.contains("limit of (3)")));
    // A connection takes its channels with it.
    let first = clients.remove(0);
    leave(&mut c, first);
    let third = come(&mut c, 2).expect("a connection with a channel");
    leave(&mut c, third);
}

#[test]
fn channels_of_a_virtual_host_count_on_every_node() {
    let mut c = Cluster::new(3);
    let mut clients: Vec<Client> = (0..2).map(|at| c.client(at)).collect();
    c.change(Change::SetVhostLimit {
        vhost: "/".into(),
        limit: "max-channels".into(),
        value: Some(3),
    });
    c.pass(TOLD);
    clients[0].call(&mut c, 2, Method::ChannelOpen {});
    c.pass(TOLD);
    let why = clients[1].ask(&mut c, 2, Method::ChannelOpen {});
    let why = why.expect_err("all channels are in use");
    assert!(why.contains("maximum allowed vhost limit of (3)"), "{why}");
    // A connection takes its channels with it.
    let first = clients.remove(0);
    leave(&mut c, first);
    let third = come(&mut c, 2).expect("a connection with a channel");
    leave(&mut c, third);
}

#[test]
fn a_node_that_is_out_of_reach_is_not_counted_until_it_is_back() {
    let mut c = Cluster::new(3);
    limit_user(&mut c, "max-connections", Some(2));
    let there = come(&mut c, 2).expect("the first");
    let here = come(&mut c, 0).expect("the second");
    assert!(refused(&mut c, 1).contains("limit"));
    c.cut_off(2);
    let more = come(&mut c, 1).expect("the other nodes do not know");
    assert!(refused(&mut c, 0).contains("limit"));
    c.link(2);
    c.pass(TOLD);
    leave(&mut c, more);
    for at in 0..3 {
        assert!(refused(&mut c, at).contains("limit"), "{at}");
    }
    leave(&mut c, there);
    come(&mut c, 1).expect("its place");
    leave(&mut c, here);
}

#[test]
fn a_node_that_starts_late_hears_what_is_there() {
    let mut c = Cluster::without(3, Some(2));
    limit_user(&mut c, "max-connections", Some(1));
    let _only = come(&mut c, 0).expect("the first");
    c.start_alone(2);
    c.link(2);
    c.until("ready", |c| c.listens(2).then_some(()));
    c.pass(TOLD);
    assert!(refused(&mut c, 2).contains("limit"));
}
