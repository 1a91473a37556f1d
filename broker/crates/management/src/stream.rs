//! The byte stream of a connection, plain or TLS.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};

/// The client's verified certificate (DER). Empty before the handshake, or if the client sent none.
pub(crate) type ClientCertificate = Arc<OnceLock<Box<[u8]>>>;

pub(crate) enum Stream {
    Plain(TcpStream),
    /// A TLS handshake in progress. Reads and writes drive it, so it does not block accepting other
    /// connections.
    Handshake(Box<Accept<TcpStream>>, ClientCertificate),
    Secure(Box<TlsStream<TcpStream>>),
    /// The TLS handshake failed and must not be polled again.
    Failed,
}

/// The operations that both kinds of streams support.
trait Duplex: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Duplex for S {}

impl Stream {
    /// Wraps an accepted connection. `client_certificate` receives the client's certificate.
    pub(crate) fn new(
        stream: TcpStream,
        tls: Option<Arc<ServerConfig>>,
        client_certificate: ClientCertificate,
    ) -> Stream {
        match tls {
            None => Stream::Plain(stream),
            Some(config) => {
                let accept = TlsAcceptor::from(config).accept(stream);
                Stream::Handshake(Box::new(accept), client_certificate)
            }
        }
    }

    /// Returns the stream that carries HTTP, once the handshake is complete.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Pin<&mut dyn Duplex>>> {
        if let Stream::Handshake(accept, client_certificate) = self {
            match Future::poll(Pin::new(accept), cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => {
                    tracing::info!(event = "management_tls_failed", %error);
                    *self = Stream::Failed;
                    return Poll::Ready(Err(error));
                }
                Poll::Ready(Ok(stream)) => {
                    let chain = stream.get_ref().1.peer_certificates();
                    if let Some(certificate) = chain.and_then(|chain| chain.first()) {
                        let _ = client_certificate.set(certificate.to_vec().into());
                    }
                    *self = Stream::Secure(Box::new(stream));
                }
            }
        }
        match self {
            Stream::Plain(stream) => Poll::Ready(Ok(Pin::new(stream))),
            Stream::Secure(stream) => Poll::Ready(Ok(Pin::new(stream))),
            Stream::Handshake(..) => Poll::Pending,
            Stream::Failed => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        std::task::ready!(self.poll_ready(cx))?.poll_read(cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        std::task::ready!(self.poll_ready(cx))?.poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        std::task::ready!(self.poll_ready(cx))?.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Secure(stream) => Pin::new(stream).poll_shutdown(cx),
            // No TLS session exists, so no close_notify is due.
            Stream::Handshake(..) | Stream::Failed => Poll::Ready(Ok(())),
        }
    }
}
