//! A connection that ends when its client takes too long.

use crate::stream::Stream;
use std::future::Future as _;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Where a request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// How long a client may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionTimeouts {
    /// Without a byte.
    pub(crate) idle: Duration,
    /// For the whole head of a request, counted from its first byte.
    pub(crate) head: Duration,
    /// For a whole request to arrive, and for an answer to be taken.
    pub(crate) request: Duration,
}

/// Whether the head of the request that arrives is complete.
#[derive(Clone, Default)]
pub(crate) struct HeadProgress(Arc<AtomicBool>);

impl HeadProgress {
    pub(crate) fn complete(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// The next bytes belong to another head.
    pub(crate) fn begin(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    fn is_complete(&self) -> bool {
        self.0.load(Ordering::Relaxed)
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
    patience: ConnectionTimeouts,
    quiet: Pin<Box<Sleep>>,
    busy: Busy,
    progress: HeadProgress,
    over: Pin<Box<Sleep>>,
}

impl Connection {
    pub(crate) fn new(
        stream: Stream,
        patience: ConnectionTimeouts,
        progress: HeadProgress,
    ) -> Connection {
        Connection {
            stream,
            quiet: Box::pin(tokio::time::sleep(patience.idle)),
            busy: Busy::No,
            progress,
            over: Box::pin(tokio::time::sleep(patience.request)),
            patience,
        }
    }

    /// A byte moved, or an error if none has for too long.
    fn watched<T>(
        &mut self,
        cx: &mut Context<'_>,
        poll: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            let next = Instant::now() + self.patience.idle;
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
        let (allowed, since) = match began {
            Busy::Reading(since) if !self.progress.is_complete() => (self.patience.head, since),
            Busy::Reading(since) | Busy::Writing(since) => (self.patience.request, since),
            Busy::No => (self.patience.request, now),
        };
        let deadline = since + allowed;
        if began != self.busy || self.over.deadline() != deadline {
            self.busy = began;
            self.over.as_mut().reset(deadline);
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
