//! A listener for `/livez` and `/readyz` alone, so that clients of the HTTP API cannot keep an orchestrator's probes out.

use crate::ask::Api;
use crate::dispatch::Answer;
use crate::gate::Gate;
use crate::listen::ConnectionTimeouts;
use crate::{Config, Node, health, serving};
use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use std::future::Future;
use std::time::Duration;

/// Connections of all probes together; the one that waits longest for a request makes room for the next.
const MAX_CONNECTIONS: usize = 32;
/// Largest head of a probe, in bytes: the least that the HTTP implementation takes.
const MAX_HEAD: usize = 8 * 1024;
/// For a probe to be asked.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);
/// For the answer to be made and taken.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The application of the probes' listener.
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

fn respond(answer: Answer) -> Response {
    answer.unwrap_or_else(|error| error.into_response())
}

/// Serves [`probes`] until `stop` resolves. On a runtime of its own it answers whatever the HTTP API is busy with.
pub async fn serve_probes(
    listener: std::net::TcpListener,
    app: Router,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let terms = serving::Terms {
        gate: Gate::new(MAX_CONNECTIONS),
        tls: None,
        operator: None,
        patience: ConnectionTimeouts {
            idle: ANSWER_TIMEOUT,
            head: ASK_TIMEOUT,
            request: ANSWER_TIMEOUT,
        },
        head: MAX_HEAD,
        keep_alive: false,
    };
    serving::run(listener, terms, app, stop).await
}
