//! A listener that takes a bounded number of connections and closes silent ones.

use crate::stream::Stream;
use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use std::future::Future as _;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};

/// Pause after an accept that failed (no descriptors left), so that it does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Where a request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

pub(crate) struct Bounded {
    listener: TcpListener,
    tls: Option<Arc<tls::Server>>,
    places: Arc<Semaphore>,
    idle: Duration,
    patience: Duration,
}

impl Bounded {
    pub(crate) fn new(
        listener: std::net::TcpListener,
        tls: Option<Arc<tls::Server>>,
        places: usize,
        idle: Duration,
        patience: Duration,
    ) -> io::Result<Bounded> {
        listener.set_nonblocking(true)?;
        Ok(Bounded {
            listener: TcpListener::from_std(listener)?,
            tls,
            places: Arc::new(Semaphore::new(places.max(1))),
            idle,
            patience,
        })
    }
}

impl Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            // The semaphore is never closed, so this waits until a connection ends.
            let Ok(place) = self.places.clone().acquire_owned().await else {
                std::future::pending::<()>().await;
                continue;
            };
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    let connection = Connection {
                        stream: Stream::new(stream, self.tls.as_deref()),
                        idle: self.idle,
                        quiet: Box::pin(tokio::time::sleep(self.idle)),
                        busy: Busy::No,
                        patience: self.patience,
                        over: Box::pin(tokio::time::sleep(self.patience)),
                        _place: place,
                    };
                    return (connection, peer);
                }
                Err(error) => {
                    tracing::warn!(event = "management_accept_failed", %error);
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl Connected<IncomingStream<'_, Bounded>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Bounded>) -> Peer {
        Peer(*stream.remote_addr())
    }
}

/// What a connection is busy with, and since when: a client that sends or takes a byte now and then is not silent, but
/// its request, or the answer to it, still has to get through in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Busy {
    No,
    Reading(Instant),
    Writing(Instant),
}

pub(crate) struct Connection {
    stream: Stream,
    idle: Duration,
    quiet: Pin<Box<Sleep>>,
    busy: Busy,
    /// For a whole request to arrive, and for an answer to be taken.
    patience: Duration,
    over: Pin<Box<Sleep>>,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    /// A byte moved, or an error if none has for too long.
    fn watched<T>(
        &mut self,
        cx: &mut Context<'_>,
        poll: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            let next = Instant::now() + self.idle;
            self.quiet.as_mut().reset(next);
            return poll;
        }
        match self.quiet.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Begins to be busy with something, or goes on with it; false when that takes too long.
    fn in_time(&mut self, cx: &mut Context<'_>, what: fn(Instant) -> Busy) -> bool {
        let now = Instant::now();
        let began = match (self.busy, what(now)) {
            (Busy::Reading(since), Busy::Reading(_)) => Busy::Reading(since),
            (Busy::Writing(since), Busy::Writing(_)) => Busy::Writing(since),
            (_, begins) => begins,
        };
        if began != self.busy {
            self.busy = began;
            self.over.as_mut().reset(now + self.patience);
        }
        self.over.as_mut().poll(cx).is_pending()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let poll = Pin::new(&mut self.stream).poll_read(cx, buf);
        let arrived = buf.filled().len() > before;
        // A request has begun when its first byte is here, and is there in whole when its answer is written.
        if (arrived || matches!(self.busy, Busy::Reading(_))) && !self.in_time(cx, Busy::Reading) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        self.watched(cx, poll)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if !self.in_time(cx, Busy::Writing) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let poll = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.watched(cx, poll)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
