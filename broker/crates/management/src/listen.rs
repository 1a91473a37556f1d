//! A connection with timeouts for idle clients and slow requests.

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

/// Address of the client that sent a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// Time limits for a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionTimeouts {
    /// Without a transferred byte.
    pub(crate) idle: Duration,
    /// For the head of a request, counted from its first byte.
    pub(crate) head: Duration,
    /// For receiving a whole request, and for sending the response.
    pub(crate) request: Duration,
}

/// Tells whether the head of the current request is complete.
#[derive(Clone, Default)]
pub(crate) struct HeadProgress(Arc<AtomicBool>);

impl HeadProgress {
    pub(crate) fn complete(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// The following bytes belong to the next head.
    pub(crate) fn begin(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    fn is_complete(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The current transfer and its start time. A client that sends or receives a byte now and then is
/// not idle, but its request or the response still has to finish in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transfer {
    None,
    Reading(Instant),
    Writing(Instant),
}

pub(crate) struct Connection {
    stream: Stream,
    timeouts: ConnectionTimeouts,
    idle: Pin<Box<Sleep>>,
    transfer: Transfer,
    progress: HeadProgress,
    transfer_timeout: Pin<Box<Sleep>>,
}

impl Connection {
    pub(crate) fn new(
        stream: Stream,
        timeouts: ConnectionTimeouts,
        progress: HeadProgress,
    ) -> Connection {
        Connection {
            stream,
            idle: Box::pin(tokio::time::sleep(timeouts.idle)),
            transfer: Transfer::None,
            progress,
            transfer_timeout: Box::pin(tokio::time::sleep(timeouts.request)),
            timeouts,
        }
    }

    /// Restarts the idle timeout after a transfer; fails if it has elapsed.
    fn with_idle_timeout<T>(
        &mut self,
        cx: &mut Context<'_>,
        poll: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            let next = Instant::now() + self.timeouts.idle;
            self.idle.as_mut().reset(next);
            return poll;
        }
        match self.idle.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Starts or continues a transfer; returns false if it exceeds its time limit.
    fn in_time(&mut self, cx: &mut Context<'_>, transfer_kind: fn(Instant) -> Transfer) -> bool {
        let now = Instant::now();
        let current = match (self.transfer, transfer_kind(now)) {
            (Transfer::Reading(since), Transfer::Reading(_)) => Transfer::Reading(since),
            (Transfer::Writing(since), Transfer::Writing(_)) => Transfer::Writing(since),
            (_, new) => new,
        };
        let (allowed, since) = match current {
            Transfer::Reading(since) if !self.progress.is_complete() => (self.timeouts.head, since),
            Transfer::Reading(since) | Transfer::Writing(since) => (self.timeouts.request, since),
            Transfer::None => (self.timeouts.request, now),
        };
        let deadline = since + allowed;
        if current != self.transfer || self.transfer_timeout.deadline() != deadline {
            self.transfer = current;
            self.transfer_timeout.as_mut().reset(deadline);
        }
        self.transfer_timeout.as_mut().poll(cx).is_pending()
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
        let has_data = buf.filled().len() > before;
        // A request starts with its first byte and is complete when its response is written.
        if (has_data || matches!(self.transfer, Transfer::Reading(_)))
            && !self.in_time(cx, Transfer::Reading)
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        self.with_idle_timeout(cx, poll)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if !self.in_time(cx, Transfer::Writing) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let poll = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.with_idle_timeout(cx, poll)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
