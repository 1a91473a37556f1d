//! Small clients of HTTP, AMQP 1.0 and the stream protocol.

use crate::client::connect;
use crate::program::Result;
use amqp10::{ClientSasl, Config, Connection, Event, LinkId, OutgoingDelivery};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::BytesMut;
use codec_amqp10::{
    AnyTarget, Attach, Encode as _, Multiple, Properties, ReceiverSettleMode, Role, SectionKind,
    SenderSettleMode, Source, Target, Value, encode_section_descriptor,
};
use codec_stream::{ClientCommand, List, ResponseCode, ServerCommand, split_frame};
use serde_json::Value as Json;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

/// One connection to the HTTP API.
pub struct Http(TcpStream);

impl Http {
    pub fn open(address: &str) -> Result<Http> {
        Ok(Http(connect(address)?))
    }

    /// Sends a request and returns the status of the response.
    pub fn send(
        &mut self,
        method: &str,
        path: &str,
        credentials: (&str, &str),
        body: &Json,
    ) -> Result<u16> {
        Ok(self.ask(method, path, credentials, body)?.0)
    }

    /// Sends a request and returns the status and the body of the response.
    pub fn ask(
        &mut self,
        method: &str,
        path: &str,
        (user, password): (&str, &str),
        body: &Json,
    ) -> Result<(u16, Vec<u8>)> {
        let credentials = STANDARD.encode(format!("{user}:{password}"));
        self.ask_as(method, path, &format!("Basic {credentials}"), body)
    }

    /// As [`Http::ask`], with any `Authorization` header.
    pub fn ask_as(
        &mut self,
        method: &str,
        path: &str,
        authorization: &str,
        body: &Json,
    ) -> Result<(u16, Vec<u8>)> {
        let body = match body {
            Json::Null => String::new(),
            body => body.to_string(),
        };
        let request = format!(
            "{method} /api/{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {authorization}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.0.write_all(request.as_bytes())?;
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            self.0.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let head = String::from_utf8(head)?.to_lowercase();
        let length = head.split_once("content-length: ");
        let length = length.and_then(|(_, rest)| rest.lines().next()?.parse().ok());
        let mut answer = vec![0; length.unwrap_or(0)];
        self.0.read_exact(&mut answer)?;
        let status = head.split(' ').nth(1).ok_or("no status")?;
        Ok((status.parse()?, answer))
    }
}

/// A client with a pair of links to the management node.
pub struct Amqp10Client {
    stream: TcpStream,
    engine: Connection,
    out: BytesMut,
    input: BytesMut,
    requests: Option<LinkId>,
    /// Status of the last response.
    status: Option<String>,
    events: u32,
    next_tag: u32,
}

impl Amqp10Client {
    /// Fails if the login is refused.
    pub fn open(address: &str, user: &str, password: &str) -> Result<Amqp10Client> {
        let sasl = ClientSasl {
            mechanism: "PLAIN".into(),
            initial_response: format!("\0{user}\0{password}").into_bytes().into(),
        };
        let config = Arc::new(Config::client("audit", None, Some(sasl)));
        let mut out = BytesMut::new();
        let mut client = Amqp10Client {
            stream: connect(address)?,
            engine: Connection::new(config, 0, &mut out),
            out,
            input: BytesMut::new(),
            requests: None,
            status: None,
            events: 0,
            next_tag: 0,
        };
        client.until_events(1)?;
        let session = client.engine.begin_session(&mut client.out).map_err(text)?;
        client.until_events(2)?;
        let mut paired = Vec::new();
        let mut properties = codec_amqp10::map(&mut paired);
        properties.push(&codec_amqp10::Symbol::from_static("paired"));
        properties.push(&true);
        properties.finish();
        let properties = codec_amqp10::Reader::new(&paired).read().map_err(text)?;
        let mut responses = None;
        for role in [Role::Receiver, Role::Sender] {
            let address = Some(Value::String("/management"));
            let attach = Attach {
                name: "pair",
                handle: 0,
                role,
                snd_settle_mode: SenderSettleMode::Settled,
                rcv_settle_mode: ReceiverSettleMode::First,
                source: Some(Source {
                    address,
                    ..Source::default()
                }),
                target: Some(AnyTarget::Target(Target {
                    address,
                    ..Target::default()
                })),
                unsettled: None,
                incomplete_unsettled: false,
                initial_delivery_count: None,
                max_message_size: None,
                offered_capabilities: Multiple::NONE,
                desired_capabilities: Multiple::NONE,
                properties: Some(properties),
            };
            let link = client
                .engine
                .attach(session, &attach, Some(0), &mut client.out);
            let link = link.map_err(text)?;
            match role {
                Role::Sender => client.requests = Some(link),
                Role::Receiver => responses = Some(link),
            }
        }
        client.until_events(4)?;
        let responses = responses.ok_or("no link")?;
        let granted = client
            .engine
            .grant_credit(responses, 100, false, &mut client.out);
        granted.map_err(text)?;
        Ok(client)
    }

    fn until_events(&mut self, count: u32) -> Result<()> {
        while self.events < count {
            self.step()?;
        }
        Ok(())
    }

    /// Sends what is due and handles input.
    fn step(&mut self) -> Result<()> {
        self.engine.flush(0, &mut self.out);
        let out = self.out.split();
        self.stream.write_all(&out)?;
        let mut piece = [0; 4096];
        let read = self.stream.read(&mut piece)?;
        if read == 0 {
            return Err("the server closed the socket".into());
        }
        self.input.extend_from_slice(&piece[..read]);
        let bytes = self.input.split();
        let mut rest: &[u8] = &bytes;
        while let Some(event) = self.engine.poll(&mut rest, 0, &mut self.out) {
            match event {
                Event::Opened { .. } | Event::SessionBegun { .. } | Event::LinkAttached { .. } => {
                    self.events += 1;
                }
                Event::MessageReceived { delivery, .. } => {
                    let message = delivery.payload.as_ref();
                    let sections = codec_amqp10::Sections::parse(message).map_err(text)?;
                    let properties = sections.read_properties(message).map_err(text)?;
                    self.status = Some(properties.subject.ok_or("no status")?.to_owned());
                }
                Event::Closed { .. } => return Err("the server closed the connection".into()),
                Event::SessionEnded { .. } | Event::LinkDetached { .. } => {
                    return Err("the server ended the session".into());
                }
                _ => {}
            }
        }
        self.input = BytesMut::from(rest);
        Ok(())
    }

    /// Sends a request with a map as body and returns the status of the response.
    pub fn manage(&mut self, method: &str, path: &str, body: &[(&str, &str)]) -> Result<String> {
        let mut encoded = Vec::new();
        if method == "DELETE" {
            Value::Null.encode(&mut encoded);
        } else {
            let mut map = codec_amqp10::map(&mut encoded);
            for (key, value) in body {
                map.push(*key);
                map.push(*value);
            }
            map.finish();
        }
        self.request(method, path, &encoded)
    }

    /// Sends a new token for the connection and returns the status of the response.
    pub fn renew_token(&mut self, token: &str) -> Result<String> {
        let mut encoded = Vec::new();
        Value::Binary(token.as_bytes()).encode(&mut encoded);
        self.request("PUT", "/auth/tokens", &encoded)
    }

    /// Reads until the server ends the connection or session, and returns the error.
    pub fn until_ended(&mut self) -> String {
        loop {
            if let Err(error) = self.step() {
                return error.to_string();
            }
        }
    }

    fn request(&mut self, method: &str, path: &str, body: &[u8]) -> Result<String> {
        self.next_tag += 1;
        let mut message = Vec::new();
        let properties = Properties {
            message_id: Some(Value::Ulong(self.next_tag.into())),
            to: Some(path),
            subject: Some(method),
            reply_to: Some("$me"),
            ..Properties::default()
        };
        properties.encode(&mut message);
        encode_section_descriptor(&mut message, SectionKind::Value);
        message.extend_from_slice(body);
        let delivery = OutgoingDelivery {
            tag: &self.next_tag.to_be_bytes(),
            message_format: 0,
            settled: true,
            parts: &[message.into()],
            token: 0,
        };
        let link = self.requests.ok_or("no link")?;
        self.engine
            .send(link, &delivery, &mut self.out)
            .map_err(text)?;
        self.status = None;
        loop {
            if let Some(status) = self.status.take() {
                return Ok(status);
            }
            self.step()?;
        }
    }
}

fn text(error: impl std::fmt::Debug) -> String {
    format!("{error:?}")
}

/// A client of the stream protocol that creates and deletes streams.
pub struct StreamClient {
    socket: TcpStream,
    input: BytesMut,
}

impl StreamClient {
    /// Fails if the login is refused.
    pub fn open(address: &str, user: &str, password: &str) -> Result<StreamClient> {
        let mut client = StreamClient {
            socket: connect(address)?,
            input: BytesMut::new(),
        };
        client.ask(&ClientCommand::PeerProperties {
            correlation_id: 1,
            properties: List::from(&[][..]),
        })?;
        client.ask(&ClientCommand::SaslAuthenticate {
            correlation_id: 2,
            mechanism: "PLAIN",
            data: Some(format!("\0{user}\0{password}").as_bytes()),
        })?;
        client.send(&ClientCommand::Tune {
            frame_max: 1 << 20,
            heartbeat: 0,
        })?;
        client.ask(&ClientCommand::Open {
            correlation_id: 3,
            virtual_host: "/",
        })?;
        Ok(client)
    }

    fn send(&mut self, command: &ClientCommand<'_>) -> Result<()> {
        let mut out = BytesMut::new();
        command.encode(&mut out);
        Ok(self.socket.write_all(&out)?)
    }

    /// Sends a request and expects success.
    fn ask(&mut self, command: &ClientCommand<'_>) -> Result<()> {
        self.send(command)?;
        loop {
            let split = split_frame(&self.input, 0)?.map(|(frame, len)| (frame.to_vec(), len));
            let Some((frame, len)) = split else {
                let mut piece = [0; 4096];
                match self.socket.read(&mut piece)? {
                    0 => return Err("the server closed the socket".into()),
                    n => self.input.extend_from_slice(&piece[..n]),
                }
                continue;
            };
            drop(self.input.split_to(len));
            let code = match ServerCommand::decode(&frame)? {
                ServerCommand::PeerProperties { code, .. }
                | ServerCommand::SaslAuthenticate { code, .. }
                | ServerCommand::Open { code, .. }
                | ServerCommand::Create { code, .. }
                | ServerCommand::Delete { code, .. }
                | ServerCommand::CreateSuperStream { code, .. }
                | ServerCommand::DeleteSuperStream { code, .. } => code,
                _ => continue,
            };
            return match code {
                ResponseCode::OK => Ok(()),
                code => Err(format!("{command:?} failed with {code:?}").into()),
            };
        }
    }

    /// Logs in again on the open connection.
    pub fn renew(&mut self, user: &str, password: &str) -> Result<()> {
        self.ask(&ClientCommand::SaslAuthenticate {
            correlation_id: 8,
            mechanism: "PLAIN",
            data: Some(format!("\0{user}\0{password}").as_bytes()),
        })
    }

    /// Waits until the server closes the connection.
    pub fn until_closed(&mut self) -> Result<()> {
        loop {
            while let Some((frame, len)) =
                split_frame(&self.input, 0)?.map(|(frame, len)| (frame.to_vec(), len))
            {
                drop(self.input.split_to(len));
                if let ServerCommand::Close { .. } = ServerCommand::decode(&frame)? {
                    return Ok(());
                }
            }
            let mut piece = [0; 4096];
            match self.socket.read(&mut piece)? {
                0 => return Ok(()),
                n => self.input.extend_from_slice(&piece[..n]),
            }
        }
    }

    pub fn create(&mut self, stream: &str) -> Result<()> {
        self.ask(&ClientCommand::Create {
            correlation_id: 4,
            stream,
            arguments: List::from(&[][..]),
        })
    }

    pub fn delete(&mut self, stream: &str) -> Result<()> {
        self.ask(&ClientCommand::Delete {
            correlation_id: 5,
            stream,
        })
    }

    pub fn create_super_stream(&mut self, name: &str, partition: &str) -> Result<()> {
        self.ask(&ClientCommand::CreateSuperStream {
            correlation_id: 6,
            super_stream: name,
            partitions: List::from(&[partition][..]),
            binding_keys: List::from(&["0"][..]),
            arguments: List::from(&[][..]),
        })
    }

    pub fn delete_super_stream(&mut self, name: &str) -> Result<()> {
        self.ask(&ClientCommand::DeleteSuperStream {
            correlation_id: 7,
            super_stream: name,
        })
    }
}
