//! The addresses under which clients reach each member, by listener.
//!
//! A node states its own addresses after it has joined, so any node can direct a client to another one. They are stored
//! only with the feature flag [`features::CLIENT_ADDRESSES`], because version 0.2.0 cannot read them.

use crate::{ChangeError, ChangeResult, Name, Tree, features, limits};
use env::NodeId;

/// The address of a client listener, as clients reach it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientAddress {
    /// Name of the listener's protocol, for example `amqp`.
    pub protocol: Name,
    /// The listener expects TLS.
    pub tls: bool,
    /// A host name or an IP address.
    pub host: Name,
    /// The TCP port.
    pub port: u16,
}

impl Tree {
    /// The addresses of a node's client listeners, ordered. Empty if the node has not stated any.
    pub fn client_addresses(&self, node: NodeId) -> &[ClientAddress] {
        let addresses = self.client_addresses.get(&node);
        addresses.map_or(&[], |addresses| addresses)
    }

    /// The address under which clients of a protocol reach a node. Prefers a listener with TLS if `tls` is true, and
    /// one without otherwise, but returns the other kind if there is no such listener.
    pub fn client_address(
        &self,
        node: NodeId,
        protocol: &str,
        tls: bool,
    ) -> Option<&ClientAddress> {
        let listeners = self.client_addresses(node).iter();
        let mut of_protocol = listeners.filter(|address| *address.protocol == *protocol);
        let first = of_protocol.clone().next();
        of_protocol.find(|address| address.tls == tls).or(first)
    }

    /// Replaces the addresses of a member.
    pub(crate) fn put_client_addresses(
        &mut self,
        node: NodeId,
        addresses: &[ClientAddress],
    ) -> Result<ChangeResult, ChangeError> {
        if !self.feature_enabled(features::CLIENT_ADDRESSES.name) {
            return Err(ChangeError::PreconditionFailed(format!(
                "feature flag '{}' is disabled",
                features::CLIENT_ADDRESSES.name
            )));
        }
        if !self.nodes.contains_key(&node) {
            return Err(ChangeError::NotFound(format!(
                "no node {:016x} in this cluster",
                node.0
            )));
        }
        check(addresses)?;
        let mut sorted = addresses.to_vec();
        sorted.sort();
        sorted.dedup();
        if self.client_addresses(node) == sorted {
            return Ok(ChangeResult::Unchanged);
        }
        match sorted.is_empty() {
            true => self.client_addresses.remove(&node),
            false => self.client_addresses.insert(node, sorted),
        };
        Ok(ChangeResult::Changed)
    }
}

fn check(addresses: &[ClientAddress]) -> Result<(), ChangeError> {
    if addresses.len() > limits::CLIENT_ADDRESSES {
        return Err(ChangeError::Invalid(format!(
            "a node has at most {} client addresses, not {}",
            limits::CLIENT_ADDRESSES,
            addresses.len()
        )));
    }
    for address in addresses {
        crate::apply::check_name("protocol", &address.protocol)?;
        crate::apply::check_name("client host", &address.host)?;
        if address.port == 0 {
            return Err(ChangeError::Invalid(format!(
                "the client address of '{}' on '{}' has port 0",
                address.protocol, address.host
            )));
        }
    }
    Ok(())
}
