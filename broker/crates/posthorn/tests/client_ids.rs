//! MQTT clients of a three-node cluster: a client id has one connection in the cluster, also after
//! a node was killed.

use crate::mqtt_client::Client;
use crate::nodes::Nodes;
use crate::program::Result;
use codec_mqtt::Qos;

const SETTINGS: &[&str] = &["mqtt.listeners.tcp.default=127.0.0.1:0"];

fn open(nodes: &Nodes, at: usize, client_id: &str, clean: bool) -> Result<(Client, bool)> {
    Client::open(&nodes.address(at, "mqtt")?, client_id, clean)
}

/// True if the node closed the connection. MQTT 3.1.1 clients get no reason.
fn is_closed(client: &mut Client) -> bool {
    client.message().is_err()
}

#[test]
fn client_id_has_one_connection_and_its_session_moves_with_it() -> Result<()> {
    let mut nodes = Nodes::with("client-ids", 3, SETTINGS)?;
    let path = "/api/vhosts/%2F";
    let quorum = serde_json::json!({"default_queue_type": "quorum"});
    nodes.ask(0, "PUT", path, &quorum)?;
    // Client ids with different owner nodes.
    for name in ["a", "b", "c", "d"] {
        let (mut first, _) = open(&nodes, 0, name, true)?;
        let (mut second, present) = open(&nodes, 1, name, true)?;
        assert!(!present && is_closed(&mut first), "{name}");
        let (_third, _) = open(&nodes, 2, name, true)?;
        assert!(is_closed(&mut second), "{name}");
    }
    let (mut kept, present) = open(&nodes, 0, "kept", false)?;
    assert!(!present);
    kept.subscribe("t", Qos::AtLeastOnce)?;
    let (mut publisher, _) = open(&nodes, 2, "publisher", true)?;
    let (mut again, present) = open(&nodes, 1, "kept", false)?;
    assert!(present && is_closed(&mut kept));
    publisher.publish("t", 1, "one", false)?;
    assert_eq!(publisher.acknowledged()?, 1);
    let got = again.message()?;
    assert_eq!(got.payload, "one");
    again.acknowledge(got.id)?;

    // Client ids connected to a killed node, or owned by it, become free.
    let mut stay = Vec::new();
    for n in 0..8 {
        stay.push((n, open(&nodes, 2, &format!("stays-{n}"), true)?.0));
    }
    nodes.kill(1)?;
    let (mut moved, present) = open(&nodes, 0, "kept", false)?;
    assert!(present);
    publisher.publish("t", 2, "two", false)?;
    assert_eq!(publisher.acknowledged()?, 2);
    let mut got = moved.message()?;
    if got.payload == "one" {
        // The acknowledgement was lost with the node.
        moved.acknowledge(got.id)?;
        got = moved.message()?;
    }
    assert_eq!(got.payload, "two");
    for (n, mut before) in stay {
        let (_after, _) = open(&nodes, 0, &format!("stays-{n}"), true)?;
        assert!(is_closed(&mut before), "{n}");
    }
    Ok(())
}
