//! One connection to another node: TCP, with TLS or (on loopback) without, both non-blocking.

use bytes::{Bytes, BytesMut};
use mio::net::TcpStream;
use session::Outbox;
use std::io::{self, ErrorKind, Read, Write};

/// Bytes taken from one connection per turn.
const READ_PER_TURN: usize = 1 << 20;

/// Plain bytes that TLS takes before they are on the wire.
const TLS_BUFFER: usize = 256 << 10;

const CHUNK: usize = 64 << 10;

pub(crate) struct Socket {
    pub stream: TcpStream,
    tls: Option<Box<rustls::Connection>>,
    /// What came and is not a whole frame yet.
    pub input: BytesMut,
    /// What is to go out.
    pub out: Outbox,
    /// The largest frame of those that wait, or waited with them.
    largest: usize,
    pub readable: bool,
    pub writable: bool,
}

/// How a read ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadEnd {
    /// Nothing more for now.
    Drained,
    /// The turn's share is used up.
    More,
    Closed,
}

impl Socket {
    pub fn new(stream: TcpStream, tls: Option<rustls::Connection>) -> Socket {
        let tls = tls.map(|mut tls| {
            tls.set_buffer_limit(Some(TLS_BUFFER));
            Box::new(tls)
        });
        Socket {
            stream,
            tls,
            input: BytesMut::new(),
            out: Outbox::default(),
            largest: 0,
            readable: false,
            writable: false,
        }
    }

    /// Begins TLS on a connection that was dialled.
    pub fn begin_tls(&mut self, mut tls: rustls::Connection) {
        tls.set_buffer_limit(Some(TLS_BUFFER));
        self.tls = Some(Box::new(tls));
    }

    /// Whether a frame of this many bytes may wait, too. The largest of all that wait does not count: one message may be
    /// larger than the limit, and what follows it must not end the link.
    pub fn has_room(&self, frame: usize, limit: usize) -> bool {
        let largest = match self.out.is_empty() {
            true => 0,
            false => self.largest,
        };
        self.out.len() + frame <= limit + largest.max(frame)
    }

    /// Puts a frame behind the others.
    pub fn queue(&mut self, header: &[u8], frame: Bytes) {
        if self.out.is_empty() {
            self.largest = 0;
        }
        self.largest = self.largest.max(header.len() + frame.len());
        self.out.tail().extend_from_slice(header);
        self.out.push(frame);
    }

    /// Takes what came into `input`. The first value: whether anything came.
    pub fn read(&mut self, scratch: &mut [u8]) -> io::Result<(bool, ReadEnd)> {
        let mut taken = 0;
        loop {
            if taken >= READ_PER_TURN {
                return Ok((true, ReadEnd::More));
            }
            let read = match &mut self.tls {
                None => read_plain(&mut self.stream, scratch, &mut self.input),
                Some(tls) => read_tls(tls, &mut self.stream, scratch, &mut self.input),
            };
            match read {
                Ok(0) => return Ok((taken > 0, ReadEnd::Closed)),
                Ok(n) => taken += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    self.readable = false;
                    return Ok((taken > 0, ReadEnd::Drained));
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Writes as much as the kernel takes.
    pub fn write(&mut self) -> io::Result<()> {
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
    // Its alert should reach the other side even when this is the end.
    if let Err(error) = processed {
        let _ = tls.write_tls(stream);
        return Err(io::Error::new(ErrorKind::InvalidData, error));
    }
    loop {
        match tls.reader().read(scratch) {
            // Closed properly; nothing follows.
            Ok(0) => return Ok(0),
            Ok(plain) => input.extend_from_slice(scratch.get(..plain).unwrap_or_default()),
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(n),
            // Closed without TLS's own word for it, as by a process that was killed. Frames have lengths: a cut one shows.
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(0),
            Err(e) => return Err(e),
        }
    }
}

/// True when there may be more to write.
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
    // Before the handshake is done nothing may be taken: TLS would hold it back, out of sight of our limit.
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
        // All of them are written.
        let written = socket.out.pieces().iter().map(Bytes::len).sum();
        socket.out.consume(written);
        assert!(socket.out.is_empty());
        assert!(socket.has_room(LIMIT, LIMIT));
        socket.queue(b"", Bytes::from(vec![0; 10]));
        socket.queue(b"", Bytes::from(vec![0; LIMIT]));
        assert!(!socket.has_room(LIMIT, LIMIT), "what went does not count");
        Ok(())
    }
}
