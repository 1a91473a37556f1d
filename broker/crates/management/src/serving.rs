//! HTTP/1.1 on a listener, within limits on memory and time for clients that nobody knows yet.

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

/// Largest head of a request, in bytes; also what is buffered of a body or an answer. A larger head is answered with 431.
pub const MAX_HEAD: usize = 16 * 1024;

/// Pause after an accept that failed (no descriptors left), so that it does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// How a listener treats its connections.
pub(crate) struct Terms {
    pub(crate) gate: Gate,
    pub(crate) tls: Option<Arc<tls::Server>>,
    /// The name of the client certificates whose holders are the operator.
    pub(crate) operator: Option<Arc<str>>,
    pub(crate) patience: ConnectionTimeouts,
    /// Largest head, in bytes.
    pub(crate) head: usize,
    /// Whether a connection takes more than one request.
    pub(crate) keep_alive: bool,
}

/// Protects the connection of a request whose sender is known.
#[derive(Clone)]
pub(crate) struct Protection(Arc<ConnectionPermit>);

impl Protection {
    pub(crate) fn protect(&self) {
        self.0.protect();
    }
}

/// The request comes over a connection whose client has the operator's certificate.
#[derive(Clone, Copy)]
pub(crate) struct OperatorCertificate;

impl Terms {
    fn is_operator(&self, shown: &ClientCertificate) -> bool {
        let (Some(tls), Some(operator), Some(shown)) = (&self.tls, &self.operator, shown.get())
        else {
            return false;
        };
        tls.name_of(shown).is_some_and(|name| *name == **operator)
    }
}

/// Serves until `stop` resolves, then lets requests under way finish.
pub(crate) async fn run(
    listener: std::net::TcpListener,
    terms: Terms,
    app: Router,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let terms = Arc::new(terms);
    let (ending, end) = watch::channel(());
    let mut stop = pin!(stop);
    loop {
        let next = async {
            let (stream, peer) = accept(&listener).await;
            (terms.gate.admit(peer.ip()).await, stream, peer)
        };
        tokio::select! {
            () = &mut stop => break,
            (place, stream, peer) = next => {
                let Some(place) = place else {
                    tracing::debug!(event = "management_connection_refused", %peer);
                    continue;
                };
                let connection = serve_one(stream, peer, place, terms.clone(), app.clone(), end.clone());
                tokio::spawn(connection);
            }
        }
    }
    drop((listener, end));
    // Each connection has a receiver, and ends when it sees that the sender says so.
    ending.send_replace(());
    ending.closed().await;
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
    place: ConnectionPermit,
    terms: Arc<Terms>,
    app: Router,
    mut end: watch::Receiver<()>,
) {
    let place = Arc::new(place);
    let progress = HeadProgress::default();
    let config = terms.tls.as_ref().map(|tls| tls.config());
    let shown = ClientCertificate::default();
    let stream = Stream::new(stream, config.clone(), shown.clone());
    let io = Connection::new(stream, terms.patience, progress.clone());
    let app = TowerToHyperService::new(app);
    let (held, of_listener) = (place.clone(), terms.clone());
    let service = service_fn(move |mut request: Request<Incoming>| {
        progress.complete();
        request.extensions_mut().insert(ConnectInfo(Peer(peer)));
        request.extensions_mut().insert(Protection(held.clone()));
        if of_listener.is_operator(&shown) {
            request.extensions_mut().insert(OperatorCertificate);
        }
        // The client's certificate was verified with authorities that may have changed since.
        let in_use = of_listener.tls.as_ref().map(|tls| tls.config());
        let is_outdated = of_listener.operator.is_some() && !same(&config, &in_use);
        let (answer, progress, place) = (app.call(request), progress.clone(), held.clone());
        async move {
            // An answer dropped unsent ends it too.
            let ended = Ended { progress, place };
            let mut answer: Response<Body> = answer.await?;
            if is_outdated {
                let close = HeaderValue::from_static("close");
                answer.headers_mut().insert(header::CONNECTION, close);
            }
            Ok::<_, Infallible>(answer.map(|body| Answer {
                body,
                _ended: ended,
            }))
        }
    });
    let connection = http1::Builder::new()
        .max_buf_size(terms.head)
        .header_read_timeout(None)
        .keep_alive(terms.keep_alive)
        .serve_connection(TokioIo::new(io), service);
    let mut connection = pin!(connection);
    let mut ends = false;
    loop {
        tokio::select! {
            // How it ended is its client's business.
            _ = connection.as_mut() => return,
            () = place.is_shed() => return,
            _ = end.changed(), if !ends => {
                ends = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

fn same<T>(a: &Option<Arc<T>>, b: &Option<Arc<T>>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        (None, None) => true,
        _ => false,
    }
}

/// Says that a request has got its answer, or never will.
struct Ended {
    progress: HeadProgress,
    place: Arc<ConnectionPermit>,
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.progress.begin();
        self.place.wait();
    }
}

/// The body of an answer. When it is dropped, all of it has been passed on.
struct Answer {
    body: Body,
    _ended: Ended,
}

impl http_body::Body for Answer {
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
