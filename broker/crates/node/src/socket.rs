//! A non-blocking connection to another node: TCP with TLS, or (on loopback) without.

use bytes::{Bytes, BytesMut};
use mio::net::TcpStream;
use session::Outbox;
use std::io::{self, ErrorKind, Read, Write};

/// Maximum number of bytes read from one connection per turn.
const READ_PER_TURN: usize = 1 << 20;

/// Maximum number of plaintext bytes buffered by TLS.
const TLS_BUFFER: usize = 256 << 10;

const CHUNK: usize = 64 << 10;

pub(crate) struct Socket {
    pub stream: TcpStream,
    tls: Option<Box<rustls::Connection>>,
    /// Received bytes that are not a complete frame yet.
    pub input: BytesMut,
    /// Bytes to send.
    pub out: Outbox,
    /// The largest frame queued since the outbox was last empty.
    largest_frame: usize,
    pub readable: bool,
    pub writable: bool,
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadOutcome {
    /// No more data for now.
    Drained,
    /// The limit per turn is reached.
    More,
    Closed,
}

impl Socket {
    pub(crate) fn new(stream: TcpStream, tls: Option<rustls::Connection>) -> Socket {
        let tls = tls.map(|mut tls| {
            tls.set_buffer_limit(Some(TLS_BUFFER));
            Box::new(tls)
        });
        Socket {
            stream,
            tls,
            input: BytesMut::new(),
            out: Outbox::default(),
            largest_frame: 0,
            readable: false,
            writable: false,
        }
    }

    /// Starts TLS on a dialed connection.
    pub(crate) fn begin_tls(&mut self, mut tls: rustls::Connection) {
        tls.set_buffer_limit(Some(TLS_BUFFER));
        self.tls = Some(Box::new(tls));
    }

    /// Returns true if a frame of this size may be queued. The largest queued frame does not count:
    /// one message may exceed the limit, and the frames behind it must not close the link.
    pub(crate) fn has_room(&self, frame: usize, limit: usize) -> bool {
        let largest_frame = match self.out.is_empty() {
            true => 0,
            false => self.largest_frame,
        };
        self.out.len() + frame <= limit + largest_frame.max(frame)
    }

    /// Appends a frame to the outbox.
    pub(crate) fn queue(&mut self, header: &[u8], frame: Bytes) {
        if self.out.is_empty() {
            self.largest_frame = 0;
        }
        self.largest_frame = self.largest_frame.max(header.len() + frame.len());
        self.out.tail().extend_from_slice(header);
        self.out.push(frame);
    }

    /// Reads available bytes into `input`. The first value is true if any arrived.
    pub(crate) fn read(&mut self, scratch: &mut [u8]) -> io::Result<(bool, ReadOutcome)> {
        let mut total = 0;
        loop {
            if total >= READ_PER_TURN {
                return Ok((true, ReadOutcome::More));
            }
            let read = match &mut self.tls {
                None => read_plain(&mut self.stream, scratch, &mut self.input),
                Some(tls) => read_tls(tls, &mut self.stream, scratch, &mut self.input),
            };
            match read {
                Ok(0) => return Ok((total > 0, ReadOutcome::Closed)),
                Ok(n) => total += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    self.readable = false;
                    return Ok((total > 0, ReadOutcome::Drained));
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Writes as much as the kernel accepts.
    pub(crate) fn write(&mut self) -> io::Result<()> {
        while self.writable {
            let wrote = match &mut self.tls {
                None => write_plain(&mut self.stream, &mut self.out),
                Some(tls) => write_tls(tls, &mut self.stream, &mut self.out),
            };
            match wrote {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.writable = false,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

fn read_plain(
    stream: &mut TcpStream,
    scratch: &mut [u8],
    input: &mut BytesMut,
) -> io::Result<usize> {
    let n = stream.read(scratch)?;
    input.extend_from_slice(scratch.get(..n).unwrap_or_default());
    Ok(n)
}

fn read_tls(
    tls: &mut rustls::Connection,
    stream: &mut TcpStream,
    scratch: &mut [u8],
    input: &mut BytesMut,
) -> io::Result<usize> {
    let n = tls.read_tls(stream)?;
    let processed = tls.process_new_packets();
    // Send the TLS alert even though the connection ends here.
    if let Err(error) = processed {
        let _ = tls.write_tls(stream);
        return Err(io::Error::new(ErrorKind::InvalidData, error));
    }
    loop {
        match tls.reader().read(scratch) {
            // Closed properly.
            Ok(0) => return Ok(0),
            Ok(plain) => input.extend_from_slice(scratch.get(..plain).unwrap_or_default()),
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(n),
            // Closed without close_notify, as by a killed process. Frames have a length, so
            // truncation is detected.
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(0),
            Err(e) => return Err(e),
        }
    }
}

/// Returns true if there may be more to write.
fn write_plain(stream: &mut TcpStream, out: &mut Outbox) -> io::Result<bool> {
    if out.is_empty() {
        return Ok(false);
    }
    let mut slices = [io::IoSlice::new(&[]); 64];
    let mut count = 0;
    for (slice, piece) in slices.iter_mut().zip(out.pieces()) {
        *slice = io::IoSlice::new(piece);
        count += 1;
    }
    let n = stream.write_vectored(slices.get(..count).unwrap_or_default())?;
    if n == 0 {
        return Err(ErrorKind::WriteZero.into());
    }
    out.consume(n);
    Ok(true)
}

fn write_tls(
    tls: &mut rustls::Connection,
    stream: &mut TcpStream,
    out: &mut Outbox,
) -> io::Result<bool> {
    // Write nothing before the handshake is done: TLS would buffer it without respecting our limit.
    while !tls.is_handshaking() {
        let Some(piece) = out.pieces().front() else {
            break;
        };
        let piece = piece.get(..piece.len().min(CHUNK)).unwrap_or_default();
        let n = tls.writer().write(piece)?;
        if n == 0 {
            break;
        }
        out.consume(n);
    }
    if !tls.wants_write() {
        return Ok(false);
    }
    tls.write_tls(stream)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket() -> io::Result<Socket> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        let stream = std::net::TcpStream::connect(listener.local_addr()?)?;
        stream.set_nonblocking(true)?;
        Ok(Socket::new(TcpStream::from_std(stream), None))
    }

    #[test]
    fn one_frame_may_exceed_the_limit_and_others_follow_it() -> io::Result<()> {
        const LIMIT: usize = 1000;
        let mut socket = socket()?;
        socket.queue(b"", Bytes::from_static(b"heartbeat"));
        assert!(socket.has_room(5000, LIMIT), "behind a small frame");
        socket.queue(b"", Bytes::from(vec![0; 5000]));
        assert!(socket.has_room(900, LIMIT), "behind a large frame");
        assert!(!socket.has_room(5000, LIMIT), "two large frames");
        socket.queue(b"", Bytes::from(vec![0; 900]));
        assert!(!socket.has_room(900, LIMIT));
        // All of them are sent.
        let written = socket.out.pieces().iter().map(Bytes::len).sum();
        socket.out.consume(written);
        assert!(socket.out.is_empty());
        assert!(socket.has_room(LIMIT, LIMIT));
        socket.queue(b"", Bytes::from(vec![0; 10]));
        socket.queue(b"", Bytes::from(vec![0; LIMIT]));
        assert!(!socket.has_room(LIMIT, LIMIT), "sent frames must not count");
        Ok(())
    }
}
