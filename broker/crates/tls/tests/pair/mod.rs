//! A server's channel and the client of rustls, connected by two buffers.

use authority::Fixture;
use bytes::BytesMut;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use tls::{
    ChannelError, ClientVerification, OutgoingBytes, ReceiveOutcome, ServerTls, TlsChannel,
    TlsOptions, WatchedFiles,
};

pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

pub fn options(fixture: &Fixture, verify: ClientVerification) -> TlsOptions {
    TlsOptions {
        cacertfile: Some(fixture.path("ca.pem")),
        certfile: fixture.path("cert.pem"),
        keyfile: fixture.path("key.pem"),
        verify,
        ..TlsOptions::default()
    }
}

pub fn server(
    fixture: &Fixture,
    verify: ClientVerification,
) -> Result<(Arc<ServerTls>, WatchedFiles)> {
    Ok(ServerTls::load(options(fixture, verify))?)
}

/// Both ends of a connection.
pub struct Pair {
    pub client: ClientConnection,
    pub channel: TlsChannel,
    pub out: OutgoingBytes,
    /// Plain bytes received by the server.
    pub plain: BytesMut,
    pub ended: bool,
    /// Plain bytes received by the client.
    received: Vec<u8>,
    /// The client has received close_notify.
    pub client_ended: bool,
    /// Size in bytes of the pieces in which the server gets input.
    pub piece: usize,
}

impl Pair {
    pub fn new(server: &ServerTls, client: &Arc<ClientConfig>) -> Result<Pair> {
        let name = ServerName::try_from("localhost")?;
        Ok(Pair {
            client: ClientConnection::new(client.clone(), name)?,
            channel: server.accept()?,
            out: OutgoingBytes::default(),
            plain: BytesMut::new(),
            ended: false,
            received: Vec::new(),
            client_ended: false,
            piece: usize::MAX,
        })
    }

    /// A connection after its handshake.
    pub fn connect(server: &ServerTls, client: &Arc<ClientConfig>) -> Result<Pair> {
        let mut pair = Pair::new(server, client)?;
        pair.run()?;
        if pair.client.is_handshaking() || pair.channel.is_handshaking() {
            return Err("the handshake did not complete".into());
        }
        Ok(pair)
    }

    /// Transfers data until both directions are idle.
    pub fn run(&mut self) -> Result<()> {
        loop {
            let mut wire = Vec::new();
            while self.client.wants_write() {
                self.client.write_tls(&mut wire)?;
            }
            if wire.is_empty() && self.out.is_empty() {
                return Ok(());
            }
            let result = self.give_server(&wire);
            self.give_client()?;
            result?;
        }
    }

    /// Passes bytes to the server in pieces.
    pub fn give_server(&mut self, wire: &[u8]) -> std::result::Result<(), ChannelError> {
        for piece in wire.chunks(self.piece) {
            let mut input = [self.channel.rest(), piece].concat();
            let outcome = self
                .channel
                .receive(&mut input, &mut self.plain, &mut self.out)?;
            self.ended |= outcome == ReceiveOutcome::Ended;
        }
        Ok(())
    }

    /// Passes the server's output to the client.
    fn give_client(&mut self) -> Result<()> {
        let mut rest = self.out.filled();
        while !rest.is_empty() {
            self.client.read_tls(&mut rest)?;
            self.client.process_new_packets()?;
            match self.client.reader().read_to_end(&mut self.received) {
                Ok(_) => self.client_ended = true,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(e) => return Err(e.into()),
            }
        }
        self.out.clear();
        Ok(())
    }

    pub fn client_sends(&mut self, text: &[u8]) -> Result<()> {
        for piece in text.chunks(60_000) {
            self.client.writer().write_all(piece)?;
            self.run()?;
        }
        Ok(())
    }

    pub fn server_sends(&mut self, text: &[u8]) -> Result<Vec<u8>> {
        for piece in text.chunks(50_000) {
            self.channel.seal(piece, &mut self.out)?;
            self.run()?;
        }
        Ok(std::mem::take(&mut self.received))
    }
}
