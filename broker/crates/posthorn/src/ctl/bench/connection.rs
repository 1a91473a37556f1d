//! A connection of AMQP 0.9.1 with one channel.

use crate::ctl::client::Client;
use crate::ctl::failure::Failure;
use crate::ctl::tls;
use bytes::{Buf as _, BytesMut};
use codec_amqp091::{
    ContentHeader, FrameKind, Method, PROTOCOL_HEADER, Properties, encode_body,
    encode_content_header, encode_method, parse_frame,
};
use env::Time;
use message::{Table, Value};
use rustls::{ClientConnection, StreamOwned};
use rustls_pki_types::ServerName;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const CHANNEL: u16 = 1;
const CONSUMER_TAG: &str = "bench";
/// Size limit of frames in bytes.
const FRAME_MAX: u32 = 131_072;
/// Bytes of the mark and the time at the begin of a body.
pub(super) const MARK_AND_TIME: usize = 16;
/// Bytes of one read.
const READ_SIZE: usize = 64 << 10;
/// Time limit of a request.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Longest wait for deliveries or confirms, after which the caller looks at the time.
const PATIENCE: Duration = Duration::from_millis(20);

/// The address of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) is_tls: bool,
}

impl Location {
    /// Parses HOST:PORT, with `amqp://` or `amqps://` in front of it if it has a scheme.
    pub(super) fn parse(text: &str) -> Result<Location, Failure> {
        let (rest, is_tls) = match text.split_once("://") {
            Some(("amqps", rest)) => (rest, true),
            Some(("amqp", rest)) => (rest, false),
            Some(_) => ("", false),
            None => (text, false),
        };
        let parsed = rest.rsplit_once(':').and_then(|(host, port)| {
            let host = host.trim_matches(['[', ']']);
            Some((host, port.parse().ok()?)).filter(|(host, _)| !host.is_empty())
        });
        let Some((host, port)) = parsed else {
            return Err(Failure::Usage(format!(
                "--amqp '{text}': expected HOST:PORT or amqps://HOST:PORT"
            )));
        };
        Ok(Location {
            host: host.to_owned(),
            port,
            is_tls,
        })
    }
}

/// A publisher confirm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Confirm {
    /// The sequence number of the message.
    pub(super) number: u64,
    /// All earlier messages are confirmed, too.
    pub(super) is_multiple: bool,
    /// False: the queue rejected the message.
    pub(super) is_accepted: bool,
}

enum Socket {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Socket {
    fn tcp(&self) -> &TcpStream {
        match self {
            Socket::Plain(tcp) => tcp,
            Socket::Tls(tls) => tls.get_ref(),
        }
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Plain(tcp) => tcp.read(into),
            Socket::Tls(tls) => tls.read(into),
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Socket::Plain(tcp) => tcp.write_all(bytes),
            Socket::Tls(tls) => tls.write_all(bytes).and_then(|()| tls.flush()),
        }
    }
}

/// An open connection.
pub(super) struct BenchConnection {
    location: Location,
    socket: Socket,
    input: BytesMut,
    output: BytesMut,
    /// Frames of confirms and deliveries that were read while another answer was awaited, and since.
    confirms: Vec<Confirm>,
    /// The time in the body of each delivery; None for a message of somebody else.
    deliveries: Vec<Option<Time>>,
    /// Bytes of the current delivery's body that are missing.
    missing: u64,
    /// The begin of the current delivery's body.
    begin: Vec<u8>,
    /// Begins the bodies of this measurement.
    mark: u64,
    last_delivery: u64,
}

impl BenchConnection {
    /// Connects as the user of the management API, and opens the channel.
    pub(super) fn open(
        location: &Location,
        client: &Client,
        vhost: &str,
        mark: u64,
    ) -> Result<BenchConnection, Failure> {
        let host = (location.host.as_str(), location.port);
        let unreachable = |error: io::Error| unreachable(location, &error);
        let tcp = TcpStream::connect(host).map_err(unreachable)?;
        tcp.set_nodelay(true).map_err(unreachable)?;
        tcp.set_read_timeout(Some(TIMEOUT)).map_err(unreachable)?;
        tcp.set_write_timeout(Some(TIMEOUT)).map_err(unreachable)?;
        let socket = match location.is_tls {
            false => Socket::Plain(tcp),
            true => {
                let name = ServerName::try_from(location.host.clone());
                let name = name.map_err(|error| Failure::Usage(error.to_string()))?;
                let config = tls::client_config(client.tls_files())?;
                let tls = ClientConnection::new(config, name)
                    .map_err(|error| unreachable(io::Error::other(error)))?;
                Socket::Tls(Box::new(StreamOwned::new(tls, tcp)))
            }
        };
        let mut connection = BenchConnection {
            location: location.clone(),
            socket,
            input: BytesMut::with_capacity(2 * READ_SIZE),
            output: BytesMut::new(),
            confirms: Vec::new(),
            deliveries: Vec::new(),
            missing: 0,
            begin: Vec::new(),
            mark,
            last_delivery: 0,
        };
        connection.log_in(client, vhost)?;
        Ok(connection)
    }

    fn log_in(&mut self, client: &Client, vhost: &str) -> Result<(), Failure> {
        self.output.extend_from_slice(&PROTOCOL_HEADER);
        self.flush()?;
        self.until("connection.start")?;
        let (user, password) = client.credentials();
        let response = format!("\0{user}\0{password}");
        let mut capabilities = Table::default();
        capabilities.set("authentication_failure_close", Value::Bool(true));
        let mut properties = Table::default();
        properties.set("product", "posthorn ctl bench".into());
        properties.set("capabilities", Value::Table(capabilities));
        let start = Method::ConnectionStartOk {
            client_properties: properties,
            mechanism: "PLAIN",
            response: response.as_bytes(),
            locale: "en_US",
        };
        encode_method(&mut self.output, 0, &start);
        self.flush()?;
        self.until("connection.tune")?;
        let tune = Method::ConnectionTuneOk {
            channel_max: 1,
            frame_max: FRAME_MAX,
            heartbeat: 0,
        };
        encode_method(&mut self.output, 0, &tune);
        let open = Method::ConnectionOpen {
            virtual_host: vhost,
        };
        encode_method(&mut self.output, 0, &open);
        self.flush()?;
        self.until("connection.open-ok")?;
        self.ask(&Method::ChannelOpen {}, "channel.open-ok")
    }

    fn ask(&mut self, method: &Method<'_>, answer: &str) -> Result<(), Failure> {
        encode_method(&mut self.output, CHANNEL, method);
        self.flush()?;
        self.until(answer)
    }

    /// Declares a durable queue of a type.
    pub(super) fn declare(&mut self, queue: &str, kind: &str) -> Result<(), Failure> {
        let mut arguments = Table::default();
        arguments.set("x-queue-type", kind.into());
        let declare = Method::QueueDeclare {
            queue,
            passive: false,
            durable: true,
            exclusive: false,
            auto_delete: false,
            no_wait: false,
            arguments,
        };
        self.ask(&declare, "queue.declare-ok")
    }

    /// Deletes a queue with its messages.
    pub(super) fn delete(&mut self, queue: &str) -> Result<(), Failure> {
        let delete = Method::QueueDelete {
            queue,
            if_unused: false,
            if_empty: false,
            no_wait: false,
        };
        self.ask(&delete, "queue.delete-ok")
    }

    /// Begins to consume.
    pub(super) fn consume(&mut self, queue: &str, prefetch: u16) -> Result<(), Failure> {
        let qos = Method::BasicQos {
            prefetch_size: 0,
            prefetch_count: prefetch,
            global: false,
        };
        self.ask(&qos, "basic.qos-ok")?;
        let consume = Method::BasicConsume {
            queue,
            consumer_tag: CONSUMER_TAG,
            no_local: false,
            no_ack: false,
            exclusive: false,
            no_wait: false,
            arguments: Table::default(),
        };
        self.ask(&consume, "basic.consume-ok")
    }

    /// Switches to publisher confirms.
    pub(super) fn select_confirms(&mut self) -> Result<(), Failure> {
        let select = Method::ConfirmSelect { no_wait: false };
        self.ask(&select, "confirm.select-ok")
    }

    /// Publishes a persistent message several times. Its body has this size and begins with the mark and the time.
    pub(super) fn publish(
        &mut self,
        queue: &str,
        size: usize,
        at: Time,
        count: usize,
    ) -> Result<(), Failure> {
        let mut body = [self.mark.to_be_bytes(), at.0.to_be_bytes()].concat();
        body.resize(size, 0);
        let mut properties = BytesMut::new();
        let persistent = Properties {
            delivery_mode: Some(2),
            ..Properties::default()
        };
        persistent.encode(&mut properties);
        let publish = Method::BasicPublish {
            exchange: "",
            routing_key: queue,
            mandatory: false,
            immediate: false,
        };
        for _ in 0..count {
            encode_method(&mut self.output, CHANNEL, &publish);
            encode_content_header(&mut self.output, CHANNEL, body.len() as u64, &properties);
            encode_body(&mut self.output, CHANNEL, &body, FRAME_MAX);
        }
        self.flush()
    }

    /// Confirms that have come. Waits for a moment if there is none and `may_wait` is set.
    pub(super) fn confirms(&mut self, may_wait: bool) -> Result<Vec<Confirm>, Failure> {
        self.read_for_a_moment(may_wait && self.confirms.is_empty())?;
        Ok(std::mem::take(&mut self.confirms))
    }

    /// The times in the bodies of deliveries that have come, None for messages of somebody else. Waits for a moment if
    /// there is none.
    pub(super) fn deliveries(&mut self) -> Result<Vec<Option<Time>>, Failure> {
        self.read_for_a_moment(self.deliveries.is_empty())?;
        Ok(std::mem::take(&mut self.deliveries))
    }

    /// Acknowledges all deliveries so far.
    pub(super) fn acknowledge(&mut self) -> Result<(), Failure> {
        if self.last_delivery == 0 {
            return Ok(());
        }
        let acknowledge = Method::BasicAck {
            delivery_tag: self.last_delivery,
            multiple: true,
        };
        self.last_delivery = 0;
        encode_method(&mut self.output, CHANNEL, &acknowledge);
        self.flush()
    }

    /// Acknowledges the deliveries and closes the connection.
    pub(super) fn close(mut self) -> Result<(), Failure> {
        self.acknowledge()?;
        let close = Method::ConnectionClose {
            reply_code: 200,
            reply_text: "",
            class_id: 0,
            method_id: 0,
        };
        encode_method(&mut self.output, 0, &close);
        self.flush()?;
        self.until("connection.close-ok")
    }

    fn flush(&mut self) -> Result<(), Failure> {
        let bytes = self.output.split();
        self.socket
            .write_all(&bytes)
            .map_err(|error| unreachable(&self.location, &error))
    }

    /// Handles frames until the named method has come.
    fn until(&mut self, name: &str) -> Result<(), Failure> {
        loop {
            while let Some(method) = self.handle_frame()? {
                if method == name {
                    return Ok(());
                }
            }
            let error = match self.read_some() {
                Ok(0) => io::Error::from(io::ErrorKind::UnexpectedEof),
                Ok(_) => continue,
                Err(error) => error,
            };
            return Err(unreachable(&self.location, &error));
        }
    }

    /// Handles the frames that have come.
    fn read_for_a_moment(&mut self, may_wait: bool) -> Result<(), Failure> {
        let wait = match may_wait {
            true => PATIENCE,
            // The shortest that a socket can have.
            false => Duration::from_micros(1),
        };
        let set = |socket: &Socket, wait| socket.tcp().set_read_timeout(Some(wait));
        let failed = |error: io::Error| unreachable(&self.location, &error);
        set(&self.socket, wait).map_err(failed)?;
        let read = self.read_some();
        set(&self.socket, TIMEOUT).map_err(|error| unreachable(&self.location, &error))?;
        match read {
            Ok(0) => {
                let error = io::Error::from(io::ErrorKind::UnexpectedEof);
                return Err(unreachable(&self.location, &error));
            }
            Ok(_) => {}
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                ) => {}
            Err(error) => return Err(unreachable(&self.location, &error)),
        }
        while self.handle_frame()?.is_some() {}
        Ok(())
    }

    fn read_some(&mut self) -> io::Result<usize> {
        let mut piece = [0; READ_SIZE];
        let count = self.socket.read(&mut piece)?;
        self.input
            .extend_from_slice(piece.get(..count).unwrap_or_default());
        Ok(count)
    }

    /// Handles one frame. Returns the name of its method, or an empty text for other frames. None: no frame is complete.
    fn handle_frame(&mut self) -> Result<Option<&'static str>, Failure> {
        let broken = |location: &Location, error: &dyn std::fmt::Display| Failure::Unreachable {
            url: shown(location),
            reason: format!("the node's frame cannot be read: {error}"),
        };
        let frame = parse_frame(&self.input, FRAME_MAX);
        let Some(frame) = frame.map_err(|error| broken(&self.location, &error))? else {
            return Ok(None);
        };
        let length = frame.wire_len();
        let mut name = "";
        match frame.kind {
            FrameKind::Method => {
                let method = Method::decode(frame.payload)
                    .map_err(|error| broken(&self.location, &error))?;
                name = method.name();
                match method {
                    Method::BasicAck {
                        delivery_tag,
                        multiple,
                    } => self.confirms.push(Confirm {
                        number: delivery_tag,
                        is_multiple: multiple,
                        is_accepted: true,
                    }),
                    Method::BasicNack {
                        delivery_tag,
                        multiple,
                        ..
                    } => self.confirms.push(Confirm {
                        number: delivery_tag,
                        is_multiple: multiple,
                        is_accepted: false,
                    }),
                    Method::BasicDeliver { delivery_tag, .. } => self.last_delivery = delivery_tag,
                    Method::ConnectionClose {
                        reply_code,
                        reply_text,
                        ..
                    }
                    | Method::ChannelClose {
                        reply_code,
                        reply_text,
                        ..
                    } => {
                        return Err(Failure::Refused {
                            status: reply_code,
                            reason: reply_text.to_owned(),
                            object: format!("the connection to {}", shown(&self.location)),
                        });
                    }
                    Method::BasicCancel { .. } => {
                        return Err(Failure::Unfulfilled {
                            message: "the queue was deleted during the measurement".to_owned(),
                            remedy: "run the command again",
                        });
                    }
                    _ => {}
                }
            }
            FrameKind::Header => {
                let header = ContentHeader::decode(frame.payload)
                    .map_err(|error| broken(&self.location, &error))?;
                self.missing = header.body_size;
                self.begin.clear();
                self.end_delivery();
            }
            FrameKind::Body => {
                let wanted = MARK_AND_TIME.saturating_sub(self.begin.len());
                let begin = frame.payload.get(..wanted).unwrap_or(frame.payload);
                self.begin.extend_from_slice(begin);
                self.missing = self.missing.saturating_sub(frame.payload.len() as u64);
                self.end_delivery();
            }
            FrameKind::Heartbeat | FrameKind::Unknown(_) => {}
        }
        self.input.advance(length);
        Ok(Some(name))
    }

    /// Notes the time in a body that is complete.
    fn end_delivery(&mut self) {
        if self.missing > 0 {
            return;
        }
        let time = match self.begin.split_first_chunk() {
            Some((mark, rest)) if u64::from_be_bytes(*mark) == self.mark => rest.first_chunk(),
            _ => None,
        };
        let time = time.map(|time| Time(u64::from_be_bytes(*time)));
        self.deliveries.push(time);
    }
}

fn shown(location: &Location) -> String {
    let scheme = if location.is_tls { "amqps" } else { "amqp" };
    format!("{scheme}://{}:{}", location.host, location.port)
}

fn unreachable(location: &Location, error: &io::Error) -> Failure {
    Failure::Unreachable {
        url: shown(location),
        reason: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_has_host_and_port() {
        let of = |text| Location::parse(text).map(|it| (it.host, it.port, it.is_tls));
        assert_eq!(of("h:5672"), Ok(("h".to_owned(), 5672, false)));
        assert_eq!(of("amqps://[::1]:5671"), Ok(("::1".to_owned(), 5671, true)));
        for wrong in ["h", ":1", "http://h:1", "h:70000", ""] {
            assert!(matches!(of(wrong), Err(Failure::Usage(_))), "{wrong}");
        }
    }
}
