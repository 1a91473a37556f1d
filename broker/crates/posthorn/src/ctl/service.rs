//! `stop_app` and `start_app`: clients are disconnected and refused while the process and its
//! management API keep running.

use super::changes::local_node;
use super::client::Client;
use super::failure::Failure;
use super::output::Output;
use serde_json::json;

#[derive(Clone, Copy, Debug, clap::Subcommand)]
#[command(rename_all = "snake_case")]
pub(crate) enum Command {
    /// Stop serving clients on this node: move its leaders away, close its listeners and connections, and wait
    /// until no connection is left. The process and its management API stay
    StopApp,
    /// Serve clients again after stop_app, and wait until the node is ready
    StartApp,
}

pub(crate) fn perform(client: &Client, output: &Output, command: Command) -> Result<(), Failure> {
    let node = local_node(client)?;
    let maintenance = ["nodes", &node, "maintenance"];
    match command {
        Command::StopApp => {
            client.put(&maintenance, &json!({}))?;
            client.until(|| connections_at(client, &node).is_ok_and(|left| left == 0))?;
            output.say(&format!("Node '{node}' has stopped serving clients"));
        }
        Command::StartApp => {
            client.delete(&maintenance, "")?;
            client.until(|| client.check("/readyz").is_ok_and(|a| a.status == 200))?;
            output.say(&format!("Node '{node}' serves clients"));
        }
    }
    Ok(())
}

fn connections_at(client: &Client, node: &str) -> Result<usize, Failure> {
    let connections = client.get(&["connections"])?;
    let connections = connections.as_array().into_iter().flatten();
    Ok(connections.filter(|c| c["node"] == node).count())
}
