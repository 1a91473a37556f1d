//! A synchronous AMQP 0-9-1 client.

use crate::program::Result;
use bytes::{Bytes, BytesMut};
use codec_amqp091::{
    FrameKind, Method, PROTOCOL_HEADER, Properties, encode_body, encode_content_header,
    encode_method, parse_frame,
};
use message::{Table, Value};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const FRAME_MAX: u32 = 131_072;

/// Timeout of every operation, so that a hanging test ends.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The byte stream of a connection.
pub trait Stream: Read + Write {}

impl<S: Read + Write> Stream for S {}

pub struct Client {
    stream: Box<dyn Stream>,
    input: BytesMut,
    /// The reason in connection.blocked, while the connection is blocked.
    pub blocked: Option<String>,
    /// Publish sequence numbers: sent, confirmed, rejected.
    pub sent: u64,
    /// Added to the sequence number in the body of a message.
    pub number_offset: u64,
    pub confirmed: BTreeSet<u64>,
    pub refused: BTreeSet<u64>,
    /// Delivery tags and bodies, oldest first.
    pub delivered: Vec<(u64, Bytes)>,
}

/// Connects with timeouts.
pub fn connect(address: &str) -> Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

impl Client {
    /// Logs in with a password. The error is the close reason of the server.
    pub fn open(address: &str, user: &str, password: &str, vhost: &str) -> Result<Client> {
        let response = format!("\0{user}\0{password}");
        Client::over(connect(address)?, "PLAIN", response.as_bytes(), vhost)
    }

    /// Logs in with any mechanism over an open stream.
    pub fn over(
        stream: impl Stream + 'static,
        mechanism: &str,
        response: &[u8],
        vhost: &str,
    ) -> Result<Client> {
        let mut client = Client {
            stream: Box::new(stream),
            input: BytesMut::new(),
            blocked: None,
            sent: 0,
            number_offset: 0,
            confirmed: BTreeSet::new(),
            refused: BTreeSet::new(),
            delivered: Vec::new(),
        };
        client.stream.write_all(&PROTOCOL_HEADER)?;
        client.until("connection.start")?;
        let mut able = Table::default();
        able.set("connection.blocked", Value::Bool(true));
        able.set("authentication_failure_close", Value::Bool(true));
        let mut properties = Table::default();
        properties.set("capabilities", Value::Table(able));
        client.send(
            0,
            &Method::ConnectionStartOk {
                client_properties: properties,
                mechanism,
                response,
                locale: "en_US",
            },
        )?;
        client.until("connection.tune")?;
        client.send(
            0,
            &Method::ConnectionTuneOk {
                channel_max: 10,
                frame_max: FRAME_MAX,
                heartbeat: 0,
            },
        )?;
        let virtual_host = vhost;
        client.send(0, &Method::ConnectionOpen { virtual_host })?;
        client.until("connection.open-ok")?;
        client.ask(&Method::ChannelOpen {}, "channel.open-ok")?;
        Ok(client)
    }

    /// Logs in as guest and enables publisher confirms.
    pub fn publisher(address: &str) -> Result<Client> {
        let mut client = Client::open(address, "guest", "guest", "/")?;
        client.ask(
            &Method::ConfirmSelect { no_wait: false },
            "confirm.select-ok",
        )?;
        Ok(client)
    }

    fn send(&mut self, channel: u16, method: &Method<'_>) -> Result<()> {
        let mut bytes = BytesMut::new();
        encode_method(&mut bytes, channel, method);
        Ok(self.stream.write_all(&bytes)?)
    }

    /// Sends encoded frames.
    pub fn raw(&mut self, frames: &[u8]) -> Result<()> {
        Ok(self.stream.write_all(frames)?)
    }

    /// Sends a method on channel 1.
    pub fn tell(&mut self, method: &Method<'_>) -> Result<()> {
        self.send(1, method)
    }

    pub fn ask(&mut self, method: &Method<'_>, answer: &str) -> Result<()> {
        self.tell(method)?;
        self.until(answer)
    }

    /// Sends a new secret for the login.
    pub fn update_secret(&mut self, secret: &str) -> Result<()> {
        let update = Method::ConnectionUpdateSecret {
            new_secret: secret.as_bytes(),
            reason: "renewal",
        };
        self.send(0, &update)?;
        self.until("connection.update-secret-ok")
    }

    fn until(&mut self, name: &str) -> Result<()> {
        while self.step()? != name {}
        Ok(())
    }

    pub fn until_true(&mut self, done: impl Fn(&Client) -> bool) -> Result<()> {
        while !done(self) {
            self.step()?;
        }
        Ok(())
    }

    fn frame(&mut self) -> Result<(FrameKind, Bytes)> {
        loop {
            let whole = parse_frame(&self.input, FRAME_MAX)?;
            let whole = whole.map(|f| (f.kind, Bytes::copy_from_slice(f.payload), f.wire_len()));
            if let Some((kind, payload, len)) = whole {
                drop(self.input.split_to(len));
                return Ok((kind, payload));
            }
            let mut piece = [0; 64 << 10];
            let n = self.stream.read(&mut piece)?;
            if n == 0 {
                return Err("the server closed the socket".into());
            }
            self.input.extend_from_slice(&piece[..n]);
        }
    }

    /// Processes one method and returns its name.
    pub fn step(&mut self) -> Result<&'static str> {
        let (kind, payload) = self.frame()?;
        if kind == FrameKind::Heartbeat {
            return Ok("heartbeat");
        }
        let method = Method::decode(&payload)?;
        let name = method.name();
        match method {
            Method::BasicAck {
                delivery_tag,
                multiple,
            } => note(&mut self.confirmed, &self.refused, delivery_tag, multiple),
            Method::BasicNack {
                delivery_tag,
                multiple,
                ..
            } => note(&mut self.refused, &self.confirmed, delivery_tag, multiple),
            Method::ConnectionBlocked { reason } => self.blocked = Some(reason.to_owned()),
            Method::ConnectionUnblocked {} => self.blocked = None,
            Method::BasicDeliver { delivery_tag, .. } => {
                let body = self.content()?;
                self.delivered.push((delivery_tag, body));
            }
            Method::ConnectionClose {
                reply_code,
                reply_text,
                ..
            }
            | Method::ChannelClose {
                reply_code,
                reply_text,
                ..
            } => return Err(format!("{reply_code} {reply_text}").into()),
            _ => {}
        }
        Ok(name)
    }

    fn content(&mut self) -> Result<Bytes> {
        let (_, header) = self.frame()?;
        let size = codec_amqp091::ContentHeader::decode(&header)?.body_size;
        let mut body = BytesMut::new();
        while (body.len() as u64) < size {
            body.extend_from_slice(&self.frame()?.1);
        }
        Ok(body.freeze())
    }

    pub fn declare(&mut self, queue: &str, kind: &str) -> Result<()> {
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

    pub fn delete(&mut self, queue: &str) -> Result<()> {
        let delete = Method::QueueDelete {
            queue,
            if_unused: false,
            if_empty: false,
            no_wait: false,
        };
        self.ask(&delete, "queue.delete-ok")
    }

    /// Publishes a persistent message. Its body is the sequence number plus `number_offset`, followed by
    /// `size` bytes.
    pub fn publish(&mut self, queue: &str, size: usize) -> Result<()> {
        self.publish_to("", queue, size)
    }

    /// Publishes to any exchange.
    pub fn publish_to(&mut self, exchange: &str, routing_key: &str, size: usize) -> Result<()> {
        self.sent += 1;
        let mut body = (self.number_offset + self.sent).to_le_bytes().to_vec();
        body.resize(8 + size, self.sent as u8);
        let mut properties = BytesMut::new();
        let persistent = Properties {
            delivery_mode: Some(2),
            ..Properties::default()
        };
        persistent.encode(&mut properties);
        let publish = Method::BasicPublish {
            exchange,
            routing_key,
            mandatory: false,
            immediate: false,
        };
        let mut bytes = BytesMut::new();
        encode_method(&mut bytes, 1, &publish);
        encode_content_header(&mut bytes, 1, body.len() as u64, &properties);
        encode_body(&mut bytes, 1, &body, FRAME_MAX);
        Ok(self.stream.write_all(&bytes)?)
    }

    pub fn unconfirmed(&self) -> u64 {
        self.sent - (self.confirmed.len() + self.refused.len()) as u64
    }

    /// Publishes and waits for all confirms.
    pub fn publish_all(&mut self, queue: &str, count: u64, size: usize) -> Result<()> {
        for _ in 0..count {
            self.publish(queue, size)?;
            self.until_true(|c| c.unconfirmed() < 4)?;
        }
        self.until_true(|c| c.unconfirmed() == 0)
    }

    /// Consumes and acknowledges messages individually until all of `wanted` were received. Returns
    /// all received numbers.
    pub fn consume(&mut self, queue: &str, wanted: &BTreeSet<u64>) -> Result<BTreeSet<u64>> {
        let qos = Method::BasicQos {
            prefetch_size: 0,
            prefetch_count: 20,
            global: false,
        };
        self.ask(&qos, "basic.qos-ok")?;
        let consume = Method::BasicConsume {
            queue,
            consumer_tag: "tag",
            no_local: false,
            no_ack: false,
            exclusive: false,
            no_wait: false,
            arguments: Table::default(),
        };
        self.ask(&consume, "basic.consume-ok")?;
        let mut came = BTreeSet::new();
        while !came.is_superset(wanted) {
            self.until_true(|c| !c.delivered.is_empty())?;
            for (delivery_tag, body) in std::mem::take(&mut self.delivered) {
                let number = body.first_chunk().ok_or("a body of ours is longer")?;
                came.insert(u64::from_le_bytes(*number));
                let multiple = false;
                self.tell(&Method::BasicAck {
                    delivery_tag,
                    multiple,
                })?;
            }
        }
        // The response to this request means that the acknowledgements before it were processed.
        let cancel = Method::BasicCancel {
            consumer_tag: "tag",
            no_wait: false,
        };
        self.ask(&cancel, "basic.cancel-ok")?;
        Ok(came)
    }
}

fn note(into: &mut BTreeSet<u64>, others: &BTreeSet<u64>, tag: u64, multiple: bool) {
    let first = if multiple { 1 } else { tag };
    into.extend((first..=tag).filter(|t| !others.contains(t)));
}
