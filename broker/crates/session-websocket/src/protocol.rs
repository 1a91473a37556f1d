//! Another protocol in WebSocket frames, as a protocol of a node.

use crate::{WebSocketSession, WebSocketSettings};
use env::Time;
use session::{ConnectionInfo, Protocol, ServiceRegistration, Session};
use std::sync::Arc;

/// Factory of sessions whose bytes come in WebSocket frames.
#[derive(Clone, Debug)]
pub struct WebSocket {
    /// The protocol in the frames.
    pub inner: Arc<dyn Protocol>,
    /// Names of the listeners without TLS and with it.
    pub listener_names: [&'static str; 2],
    /// Settings of every session.
    pub settings: Arc<WebSocketSettings>,
}

impl Protocol for WebSocket {
    fn listener_names(&self) -> [&'static str; 2] {
        self.listener_names
    }

    fn session(&self, connection: &ConnectionInfo, now: Time) -> Box<dyn Session> {
        let inner = self.inner.session(connection, now);
        let settings = self.settings.clone();
        Box::new(WebSocketSession::new(inner, settings, connection.peer))
    }

    fn service(&self) -> Option<ServiceRegistration> {
        self.inner.service()
    }
}
