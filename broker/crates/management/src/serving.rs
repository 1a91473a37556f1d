//! HTTP/1.1 on a listener, with limits on memory and time for unauthenticated clients.

use crate::audit_requests::AuditedConnection;
use crate::gate::{ConnectionPermit, Gate};
use crate::listen::{Connection, ConnectionTimeouts, HeadProgress, Peer};
use crate::stream::{ClientCertificate, Stream};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::ConnectInfo;
use axum::http::{HeaderValue, Request, Response, header};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Maximum length of a request head in bytes; also the buffer size for bodies. A longer head gets
/// status 431.
pub const MAX_HEAD: usize = 16 * 1024;

/// Pause after a failed accept (such as no free file descriptors), to avoid a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Configuration of a listener.
pub(crate) struct ListenerConfig {
    pub(crate) gate: Gate,
    pub(crate) tls: Option<Arc<tls::ServerTls>>,
    /// The client certificate name of the operator.
    pub(crate) operator: Option<Arc<str>>,
    pub(crate) timeouts: ConnectionTimeouts,
    /// Maximum length of a request head in bytes.
    pub(crate) head: usize,
    /// Allows several requests per connection.
    pub(crate) keep_alive: bool,
}

/// Lets a handler protect its connection from eviction once the client is authenticated.
#[derive(Clone)]
pub(crate) struct Protection(Arc<ConnectionPermit>);

impl Protection {
    pub(crate) fn protect(&self) {
        self.0.protect();
    }
}

/// Marks a request of a client with the operator's certificate.
#[derive(Clone, Copy)]
pub(crate) struct OperatorCertificate;

impl ListenerConfig {
    fn is_operator(&self, client_certificate: &ClientCertificate) -> bool {
        let (Some(tls), Some(operator), Some(client_certificate)) =
            (&self.tls, &self.operator, client_certificate.get())
        else {
            return false;
        };
        tls.name_of(client_certificate)
            .is_some_and(|name| *name == **operator)
    }
}

/// Serves until `stop` resolves, then waits for running requests.
pub(crate) async fn run(
    listener: std::net::TcpListener,
    config: ListenerConfig,
    app: Router,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let config = Arc::new(config);
    let (shutdown_sender, shutdown) = watch::channel(());
    let mut stop = pin!(stop);
    loop {
        let next = async {
            let (stream, peer) = accept(&listener).await;
            (config.gate.admit(peer.ip()).await, stream, peer)
        };
        tokio::select! {
            () = &mut stop => break,
            (permit, stream, peer) = next => {
                let Some(permit) = permit else {
                    tracing::debug!(event = "management_connection_refused", %peer);
                    continue;
                };
                let connection = serve_one(stream, peer, permit, config.clone(), app.clone(), shutdown.clone());
                tokio::spawn(connection);
            }
        }
    }
    drop((listener, shutdown));
    // Each connection holds a receiver and ends after it sees this change.
    shutdown_sender.send_replace(());
    shutdown_sender.closed().await;
    Ok(())
}

async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) => {
                tracing::warn!(event = "management_accept_failed", %error);
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve_one(
    stream: TcpStream,
    peer: SocketAddr,
    permit: ConnectionPermit,
    config: Arc<ListenerConfig>,
    app: Router,
    mut shutdown: watch::Receiver<()>,
) {
    let permit = Arc::new(permit);
    let progress = HeadProgress::default();
    let tls_config = config.tls.as_ref().map(|tls| tls.config());
    let client_certificate = ClientCertificate::default();
    let stream = Stream::new(stream, tls_config.clone(), client_certificate.clone());
    let io = Connection::new(stream, config.timeouts, progress.clone());
    let app = TowerToHyperService::new(app);
    let audited = AuditedConnection::new(config.tls.is_some());
    let (connection_permit, listener_config) = (permit.clone(), config.clone());
    let service = service_fn(move |mut request: Request<Incoming>| {
        progress.complete();
        request.extensions_mut().insert(ConnectInfo(Peer(peer)));
        request
            .extensions_mut()
            .insert(Protection(connection_permit.clone()));
        request.extensions_mut().insert(audited.clone());
        if listener_config.is_operator(&client_certificate) {
            request.extensions_mut().insert(OperatorCertificate);
        }
        // The trusted authorities may have changed since the client's certificate was verified.
        let current_config = listener_config.tls.as_ref().map(|tls| tls.config());
        let is_config_outdated =
            listener_config.operator.is_some() && !is_same(&tls_config, &current_config);
        let (answer, progress, permit) = (
            app.call(request),
            progress.clone(),
            connection_permit.clone(),
        );
        async move {
            // A response that is dropped before it is sent also ends the request.
            let guard = RequestGuard { progress, permit };
            let mut answer: Response<Body> = answer.await?;
            if is_config_outdated {
                let close = HeaderValue::from_static("close");
                answer.headers_mut().insert(header::CONNECTION, close);
            }
            Ok::<_, Infallible>(answer.map(|body| GuardedBody {
                body,
                _guard: guard,
            }))
        }
    });
    let connection = http1::Builder::new()
        .max_buf_size(config.head)
        .header_read_timeout(None)
        .keep_alive(config.keep_alive)
        .serve_connection(TokioIo::new(io), service);
    let mut connection = pin!(connection);
    let mut is_shutting_down = false;
    loop {
        tokio::select! {
            // The outcome concerns only the client.
            _ = connection.as_mut() => return,
            () = permit.evicted() => return,
            _ = shutdown.changed(), if !is_shutting_down => {
                is_shutting_down = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

fn is_same<T>(a: &Option<Arc<T>>, b: &Option<Arc<T>>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        (None, None) => true,
        _ => false,
    }
}

/// Ends a request when it is dropped: the connection is idle again.
struct RequestGuard {
    progress: HeadProgress,
    permit: Arc<ConnectionPermit>,
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.progress.begin();
        self.permit.set_idle();
    }
}

/// A response body. It is dropped after it was passed on completely.
struct GuardedBody {
    body: Body,
    _guard: RequestGuard,
}

impl http_body::Body for GuardedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
