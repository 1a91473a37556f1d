//! An AMQP 0.9.1 client connection, sans-io: takes bytes and returns messages of the server.

use super::client::ProtocolEndpoint;
use bytes::{Bytes, BytesMut};
use codec_amqp091::{
    ContentHeader, Frame, FrameKind, Method, PROTOCOL_HEADER, encode_body, encode_content_header,
    encode_method, parse_frame,
};
use message::Table;
use std::collections::BTreeMap;

const FRAME_MAX: u32 = 131_072;
pub(super) const USER: &str = "guest";
pub(super) const PASSWORD: &str = "guest";

/// How a message reached the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DeliveryKind {
    Delivered {
        consumer: String,
        tag: u64,
        redelivered: bool,
    },
    Got {
        tag: u64,
        redelivered: bool,
    },
    Returned {
        code: u16,
    },
}

/// A message of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ServerMessage {
    Open,
    /// A reply method without fields that the workload needs.
    Done {
        channel: u16,
        method: &'static str,
    },
    Declared {
        channel: u16,
    },
    /// The answer to a publish.
    Confirmed {
        channel: u16,
        tag: u64,
        multiple: bool,
        accepted: bool,
    },
    Content {
        channel: u16,
        kind: DeliveryKind,
        routing_key: String,
        properties: Bytes,
        body: Bytes,
    },
    /// The server cancelled a consumer.
    Cancelled {
        channel: u16,
        consumer: String,
    },
    ChannelClosed {
        channel: u16,
        code: u16,
        text: String,
    },
    Closed {
        code: u16,
        text: String,
    },
}

struct PartialDelivery {
    kind: DeliveryKind,
    routing_key: String,
    /// From the content header: the encoded properties and the size of the body.
    header: Option<(Bytes, u64)>,
    body: BytesMut,
}

/// One connection.
#[derive(Default)]
pub(super) struct AmqpClient {
    input: BytesMut,
    out: BytesMut,
    contents: BTreeMap<u16, PartialDelivery>,
}

impl ProtocolEndpoint for AmqpClient {
    fn take(&mut self) -> Option<Bytes> {
        (!self.out.is_empty()).then(|| self.out.split().freeze())
    }
}

impl AmqpClient {
    /// Creates a connection that has sent its protocol header.
    pub(super) fn new() -> AmqpClient {
        let mut client = AmqpClient::default();
        client.out.extend_from_slice(&PROTOCOL_HEADER);
        client
    }

    pub(super) fn send(&mut self, channel: u16, method: &Method<'_>) {
        encode_method(&mut self.out, channel, method);
    }

    pub(super) fn publish(
        &mut self,
        channel: u16,
        (exchange, routing_key): (&str, &str),
        mandatory: bool,
        properties: &[u8],
        body: &[u8],
    ) {
        let method = Method::BasicPublish {
            exchange,
            routing_key,
            mandatory,
            immediate: false,
        };
        self.send(channel, &method);
        encode_content_header(&mut self.out, channel, body.len() as u64, properties);
        encode_body(&mut self.out, channel, body, FRAME_MAX);
    }

    /// Processes received bytes. An error means that the server broke the protocol.
    pub(super) fn receive(
        &mut self,
        bytes: &[u8],
        messages: &mut Vec<ServerMessage>,
    ) -> Result<(), String> {
        self.input.extend_from_slice(bytes);
        let input = self.input.split().freeze();
        let mut rest = &input[..];
        loop {
            match parse_frame(rest, FRAME_MAX).map_err(|e| e.to_string())? {
                None => break,
                Some(frame) => {
                    self.handle_frame(&frame, messages)?;
                    rest = rest.get(frame.wire_len()..).unwrap_or_default();
                }
            }
        }
        self.input.extend_from_slice(rest);
        Ok(())
    }

    fn handle_frame(
        &mut self,
        frame: &Frame<'_>,
        messages: &mut Vec<ServerMessage>,
    ) -> Result<(), String> {
        match frame.kind {
            FrameKind::Method => {
                let method = Method::decode(frame.payload).map_err(|e| e.to_string())?;
                self.handle_method(frame.channel, method, messages)
            }
            FrameKind::Header => {
                let header = ContentHeader::decode(frame.payload).map_err(|e| e.to_string())?;
                let partial = self.partial(frame.channel)?;
                let properties = Bytes::copy_from_slice(header.properties);
                partial.header = Some((properties, header.body_size));
                self.finish_if_complete(frame.channel, messages)
            }
            FrameKind::Body => {
                let partial = self.partial(frame.channel)?;
                partial.body.extend_from_slice(frame.payload);
                self.finish_if_complete(frame.channel, messages)
            }
            FrameKind::Heartbeat => Ok(()),
            FrameKind::Unknown(octet) => Err(format!("a frame of type {octet}")),
        }
    }

    fn partial(&mut self, channel: u16) -> Result<&mut PartialDelivery, String> {
        let partial = self.contents.get_mut(&channel);
        partial.ok_or_else(|| format!("content on channel {channel} that nothing announced"))
    }

    fn finish_if_complete(
        &mut self,
        channel: u16,
        messages: &mut Vec<ServerMessage>,
    ) -> Result<(), String> {
        let partial = self.partial(channel)?;
        let Some((_, size)) = partial.header else {
            return Err("a body before its header".to_owned());
        };
        if (partial.body.len() as u64) < size {
            return Ok(());
        }
        if let Some(partial) = self.contents.remove(&channel) {
            let (properties, size) = partial.header.unwrap_or_default();
            if partial.body.len() as u64 > size {
                return Err("a body longer than the content header announced".to_owned());
            }
            messages.push(ServerMessage::Content {
                channel,
                kind: partial.kind,
                routing_key: partial.routing_key,
                properties,
                body: partial.body.freeze(),
            });
        }
        Ok(())
    }

    fn begin_content(
        &mut self,
        channel: u16,
        kind: DeliveryKind,
        routing_key: &str,
    ) -> Result<(), String> {
        let partial = PartialDelivery {
            kind,
            routing_key: routing_key.to_owned(),
            header: None,
            body: BytesMut::new(),
        };
        match self.contents.insert(channel, partial) {
            None => Ok(()),
            Some(_) => Err("a content inside another".to_owned()),
        }
    }

    fn handle_method(
        &mut self,
        channel: u16,
        method: Method<'_>,
        messages: &mut Vec<ServerMessage>,
    ) -> Result<(), String> {
        if self.contents.contains_key(&channel) {
            return Err(format!("{} inside a content", method.name()));
        }
        let name = method.name();
        match method {
            Method::BasicDeliver {
                consumer_tag,
                delivery_tag,
                redelivered,
                routing_key,
                ..
            } => {
                let kind = DeliveryKind::Delivered {
                    consumer: consumer_tag.to_owned(),
                    tag: delivery_tag,
                    redelivered,
                };
                self.begin_content(channel, kind, routing_key)?;
            }
            Method::BasicGetOk {
                delivery_tag,
                redelivered,
                routing_key,
                ..
            } => {
                let kind = DeliveryKind::Got {
                    tag: delivery_tag,
                    redelivered,
                };
                self.begin_content(channel, kind, routing_key)?;
            }
            Method::BasicReturn {
                reply_code,
                routing_key,
                ..
            } => self.begin_content(
                channel,
                DeliveryKind::Returned { code: reply_code },
                routing_key,
            )?,
            Method::BasicAck {
                delivery_tag: tag,
                multiple,
            } => messages.push(ServerMessage::Confirmed {
                channel,
                tag,
                multiple,
                accepted: true,
            }),
            Method::BasicNack {
                delivery_tag: tag,
                multiple,
                ..
            } => messages.push(ServerMessage::Confirmed {
                channel,
                tag,
                multiple,
                accepted: false,
            }),
            Method::QueueDeclareOk { .. } => messages.push(ServerMessage::Declared { channel }),
            Method::BasicCancel { consumer_tag, .. } => messages.push(ServerMessage::Cancelled {
                channel,
                consumer: consumer_tag.to_owned(),
            }),
            other => self.handle_control(channel, name, &other, messages),
        }
        Ok(())
    }

    /// Handles methods of connections and channels. The name of any other method says all that the workload needs.
    fn handle_control(
        &mut self,
        channel: u16,
        name: &'static str,
        method: &Method<'_>,
        messages: &mut Vec<ServerMessage>,
    ) {
        match method {
            Method::ConnectionStart { .. } => self.start_ok(),
            Method::ConnectionTune {
                channel_max,
                heartbeat,
                ..
            } => {
                let ok = Method::ConnectionTuneOk {
                    channel_max: *channel_max,
                    frame_max: FRAME_MAX,
                    heartbeat: *heartbeat,
                };
                self.send(0, &ok);
                self.send(0, &Method::ConnectionOpen { virtual_host: "/" });
            }
            Method::ConnectionOpenOk {} => messages.push(ServerMessage::Open),
            Method::ConnectionClose {
                reply_code,
                reply_text,
                ..
            } => {
                self.send(0, &Method::ConnectionCloseOk {});
                messages.push(ServerMessage::Closed {
                    code: *reply_code,
                    text: (*reply_text).to_owned(),
                });
            }
            Method::ChannelClose {
                reply_code,
                reply_text,
                ..
            } => {
                self.send(channel, &Method::ChannelCloseOk {});
                messages.push(ServerMessage::ChannelClosed {
                    channel,
                    code: *reply_code,
                    text: (*reply_text).to_owned(),
                });
            }
            _ => messages.push(ServerMessage::Done {
                channel,
                method: name,
            }),
        }
    }

    fn start_ok(&mut self) {
        let response = format!("\0{USER}\0{PASSWORD}");
        let enabled = |name: &str| (name.into(), message::Value::Bool(true));
        let capabilities = Table(vec![
            enabled("consumer_cancel_notify"),
            enabled("publisher_confirms"),
            enabled("basic.nack"),
        ]);
        let ok = Method::ConnectionStartOk {
            client_properties: Table(vec![(
                "capabilities".into(),
                message::Value::Table(capabilities),
            )]),
            mechanism: "PLAIN",
            response: response.as_bytes(),
            locale: "en_US",
        };
        self.send(0, &ok);
    }
}
