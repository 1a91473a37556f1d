//! A listener that serves only `/livez` and `/readyz`, so that clients of the HTTP API cannot block
//! an orchestrator's probes.

use crate::ask::Api;
use crate::dispatch::ApiResult;
use crate::gate::Gate;
use crate::listen::ConnectionTimeouts;
use crate::{Config, Node, health, serving};
use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use std::future::Future;
use std::time::Duration;

/// Maximum number of probe connections; the one idle longest is evicted for a new connection.
const MAX_CONNECTIONS: usize = 32;
/// Maximum length of a probe's request head in bytes: the minimum of the HTTP implementation.
const MAX_HEAD: usize = 8 * 1024;
/// Time limit for receiving a probe's request head.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit for sending the response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Creates the application of the probe listener.
pub fn probes(node: Node, config: Config) -> std::io::Result<Router> {
    let api = Api::new(node, config)?;
    let app = Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz));
    Ok(app.with_state(api))
}

async fn livez(State(api): State<Api>) -> Response {
    respond(health::livez(&api))
}

async fn readyz(State(api): State<Api>) -> Response {
    respond(health::readyz(&api).await)
}

fn respond(result: ApiResult) -> Response {
    result.unwrap_or_else(|error| error.into_response())
}

/// Serves [`probes`] until `stop` resolves. Run it on its own runtime, so that it responds while
/// the HTTP API is busy.
pub async fn serve_probes(
    listener: std::net::TcpListener,
    app: Router,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let terms = serving::ListenerConfig {
        gate: Gate::new(MAX_CONNECTIONS),
        tls: None,
        operator: None,
        timeouts: ConnectionTimeouts {
            idle: RESPONSE_TIMEOUT,
            head: REQUEST_TIMEOUT,
            request: RESPONSE_TIMEOUT,
        },
        head: MAX_HEAD,
        keep_alive: false,
    };
    serving::run(listener, terms, app, stop).await
}
