//! See [`Connection`].

use bytes::BytesMut;
use codec_stream::{
    ClientCommand, CommandKey, List, MIN_FRAME_MAX, Property, ResponseCode, ServerCommand,
    Trailing, split_frame,
};
use env::Time;
use std::time::Duration;

/// Largest frame of a client that is not authenticated, in bytes.
pub const MAX_HANDSHAKE_FRAME_BYTES: u32 = 64 << 10;

/// Correlation id of the server's close request.
const CLOSE_CORRELATION_ID: u32 = 1;

/// Settings of a connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionConfig<'c> {
    /// Largest frame that the server proposes, in bytes; 0 for no limit.
    pub frame_max: u32,
    /// Heartbeat interval that the server proposes, in seconds; 0 for none.
    pub heartbeat: u32,
    /// The server's properties.
    pub properties: &'c [Property<'c>],
    /// Names of the SASL mechanisms that this client may use.
    pub mechanisms: &'c [&'c str],
}

/// Why a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The client asked for it and has the answer.
    Client,
    /// The client answered the server's close request.
    Server,
    /// The owner refused the credentials or the virtual host.
    Refused,
    /// The client sent nothing for two heartbeat intervals.
    Silent,
}

/// The next thing that the owner has to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step<'i> {
    /// Send the output and wait for more bytes of the client.
    Starved,
    /// The client has stated its properties.
    PeerProperties(List<'i, Property<'i>>),
    /// Verify the credentials and call [`Connection::authenticated`]. On an open connection they are renewed.
    Authenticate {
        /// Name of the mechanism, one of [`ConnectionConfig::mechanisms`].
        mechanism: &'i str,
        /// Data of the mechanism.
        data: &'i [u8],
    },
    /// Check the access to the virtual host and call [`Connection::opened`].
    Open {
        /// Name of the virtual host.
        virtual_host: &'i str,
    },
    /// A command of an open connection.
    Command(ClientCommand<'i>),
    /// Send the output and close the socket.
    Closed(CloseReason),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Expects the peer properties.
    Connected,
    /// Expects the SASL handshake or the credentials.
    Greeted,
    /// The owner verifies credentials.
    Authenticating {
        correlation_id: u32,
    },
    /// Expects the answer to the server's tune.
    Tuning,
    /// Expects the virtual host.
    Tuned,
    /// The owner checks the access to the virtual host.
    Opening {
        correlation_id: u32,
    },
    /// Everything is agreed.
    Open,
    /// The owner verifies new credentials of the same user.
    Renewing {
        correlation_id: u32,
    },
    /// Expects the answer to the server's close request.
    Closing,
    Closed(CloseReason),
}

/// A connection of a client.
#[derive(Clone, Debug)]
pub struct Connection {
    state: State,
    /// Largest frame in bytes; 0 for no limit.
    frame_max: u32,
    /// None: no heartbeats.
    heartbeat: Option<Duration>,
    last_received: Time,
    last_sent: Time,
    /// The reason in the server's close request.
    close_reason: Option<Box<str>>,
    /// The code in the server's close request.
    close_code: Option<ResponseCode>,
}

impl Connection {
    /// A connection that was accepted at `now`.
    pub fn new(now: Time) -> Connection {
        Connection {
            state: State::Connected,
            frame_max: MAX_HANDSHAKE_FRAME_BYTES,
            heartbeat: None,
            last_received: now,
            last_sent: now,
            close_reason: None,
            close_code: None,
        }
    }

    /// Largest frame that may be sent in either direction, in bytes; 0 for no limit.
    pub fn frame_max(&self) -> u32 {
        self.frame_max
    }

    /// Returns true if the virtual host is open and the connection is not being closed.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open | State::Renewing { .. })
    }

    /// Reads the frames at the front of `input` up to the next step. Returns the number of bytes that were read and
    /// the step. While the owner verifies something, nothing is read.
    pub fn receive<'i>(
        &mut self,
        config: &ConnectionConfig<'_>,
        now: Time,
        input: &'i [u8],
        out: &mut BytesMut,
    ) -> (usize, Step<'i>) {
        if !input.is_empty() {
            self.last_received = now;
        }
        let mut read = 0;
        loop {
            if let State::Closed(reason) = self.state {
                return (input.len(), Step::Closed(reason));
            }
            if self.is_waiting() {
                return (read, Step::Starved);
            }
            let rest = input.get(read..).unwrap_or_default();
            let (frame, len) = match split_frame(rest, self.frame_max) {
                Ok(Some(split)) => split,
                Ok(None) => return (read, Step::Starved),
                Err(error) => {
                    self.fail(ResponseCode::FRAME_TOO_LARGE, &error.to_string(), out);
                    return (input.len(), self.after_failure());
                }
            };
            read += len;
            if let Some(step) = self.handle(config, frame, out) {
                return (read, step);
            }
        }
    }

    /// True while the owner verifies something.
    fn is_waiting(&self) -> bool {
        matches!(
            self.state,
            State::Authenticating { .. } | State::Opening { .. } | State::Renewing { .. }
        )
    }

    fn handle<'i>(
        &mut self,
        config: &ConnectionConfig<'_>,
        frame: &'i [u8],
        out: &mut BytesMut,
    ) -> Option<Step<'i>> {
        let command = match ClientCommand::decode(frame) {
            Ok(command) => command,
            // What a client sends after the server's close request does not matter.
            Err(_) if self.state == State::Closing => return None,
            Err(error) => {
                self.fail(ResponseCode::UNKNOWN_FRAME, &error.to_string(), out);
                return Some(self.after_failure());
            }
        };
        match (self.state, command) {
            (State::Closing, ClientCommand::CloseResponse { .. }) => {
                self.state = State::Closed(CloseReason::Server);
                Some(Step::Closed(CloseReason::Server))
            }
            (_, ClientCommand::Close { correlation_id, .. }) => {
                let code = ResponseCode::OK;
                ServerCommand::CloseResponse {
                    correlation_id,
                    code,
                }
                .encode(out);
                self.state = State::Closed(CloseReason::Client);
                Some(Step::Closed(CloseReason::Client))
            }
            (State::Closing, _) | (_, ClientCommand::Heartbeat {}) => None,
            (
                State::Connected,
                ClientCommand::PeerProperties {
                    correlation_id,
                    properties,
                },
            ) => {
                self.greet(config, correlation_id, out);
                Some(Step::PeerProperties(properties))
            }
            (State::Greeted, ClientCommand::SaslHandshake { correlation_id }) => {
                let mechanisms = List::from(config.mechanisms);
                let code = ResponseCode::OK;
                ServerCommand::SaslHandshake {
                    correlation_id,
                    code,
                    mechanisms,
                }
                .encode(out);
                None
            }
            (
                State::Greeted | State::Open,
                ClientCommand::SaslAuthenticate {
                    correlation_id,
                    mechanism,
                    data,
                },
            ) => Some(self.authenticate(config, correlation_id, mechanism, data, out)),
            (
                State::Tuning,
                ClientCommand::Tune {
                    frame_max,
                    heartbeat,
                }
                | ClientCommand::TuneResponse {
                    frame_max,
                    heartbeat,
                },
            ) => {
                self.tune(config, frame_max, heartbeat);
                None
            }
            (
                State::Tuned,
                ClientCommand::Open {
                    correlation_id,
                    virtual_host,
                },
            ) => {
                self.state = State::Opening { correlation_id };
                Some(Step::Open { virtual_host })
            }
            (State::Open, command) if !is_handshake(command.key()) => Some(Step::Command(command)),
            (_, command) => {
                let what = format!("{} is not allowed in this state", command.key());
                self.fail(ResponseCode::UNKNOWN_FRAME, &what, out);
                Some(self.after_failure())
            }
        }
    }

    fn greet(&mut self, config: &ConnectionConfig<'_>, correlation_id: u32, out: &mut BytesMut) {
        self.state = State::Greeted;
        ServerCommand::PeerProperties {
            correlation_id,
            code: ResponseCode::OK,
            properties: List::from(config.properties),
        }
        .encode(out);
    }

    fn authenticate<'i>(
        &mut self,
        config: &ConnectionConfig<'_>,
        correlation_id: u32,
        mechanism: &'i str,
        data: Option<&'i [u8]>,
        out: &mut BytesMut,
    ) -> Step<'i> {
        if !config.mechanisms.contains(&mechanism) {
            let code = ResponseCode::SASL_MECHANISM_NOT_SUPPORTED;
            respond_to_sasl(correlation_id, code, out);
            self.state = State::Closed(CloseReason::Refused);
            return Step::Closed(CloseReason::Refused);
        }
        self.state = match self.state {
            State::Open => State::Renewing { correlation_id },
            _ => State::Authenticating { correlation_id },
        };
        let data = data.unwrap_or_default();
        Step::Authenticate { mechanism, data }
    }

    /// States the result of [`Step::Authenticate`]: [`ResponseCode::OK`] or why the client is refused. Call
    /// [`Connection::receive`] again afterwards. Does nothing if no result is awaited.
    pub fn authenticated(
        &mut self,
        config: &ConnectionConfig<'_>,
        result: ResponseCode,
        out: &mut BytesMut,
    ) {
        let (correlation_id, next) = match self.state {
            State::Authenticating { correlation_id } => (correlation_id, State::Tuning),
            State::Renewing { correlation_id } => (correlation_id, State::Open),
            _ => return,
        };
        respond_to_sasl(correlation_id, result, out);
        if result != ResponseCode::OK {
            self.state = State::Closed(CloseReason::Refused);
            return;
        }
        self.state = next;
        if next == State::Tuning {
            ServerCommand::Tune {
                frame_max: config.frame_max,
                heartbeat: config.heartbeat,
            }
            .encode(out);
        }
    }

    /// The smaller maximum applies; the client chooses the heartbeat.
    fn tune(&mut self, config: &ConnectionConfig<'_>, frame_max: u32, heartbeat: u32) {
        self.frame_max = match (config.frame_max, frame_max) {
            (0, max) | (max, 0) => max,
            (own, other) => own.min(other),
        };
        if self.frame_max > 0 {
            self.frame_max = self.frame_max.max(MIN_FRAME_MAX);
        }
        self.heartbeat = (heartbeat > 0).then(|| Duration::from_secs(heartbeat.into()));
        self.state = State::Tuned;
    }

    /// States the result of [`Step::Open`]: [`ResponseCode::OK`] or why the client is refused. `properties` are
    /// `advertised_host` and `advertised_port`. Call [`Connection::receive`] again afterwards. Does nothing if no
    /// result is awaited.
    pub fn opened(
        &mut self,
        result: ResponseCode,
        properties: &[Property<'_>],
        out: &mut BytesMut,
    ) {
        let State::Opening { correlation_id } = self.state else {
            return;
        };
        let is_open = result == ResponseCode::OK;
        let properties = if is_open { properties } else { &[] };
        ServerCommand::Open {
            correlation_id,
            code: result,
            properties: Trailing(List::from(properties)),
        }
        .encode(out);
        self.state = match is_open {
            true => State::Open,
            false => State::Closed(CloseReason::Refused),
        };
    }

    /// Asks the client to close the connection. Until it answers, its other commands are ignored.
    pub fn close(&mut self, code: ResponseCode, reason: &str, out: &mut BytesMut) {
        if !matches!(self.state, State::Closing | State::Closed(_)) {
            self.fail(code, reason, out);
        }
    }

    fn fail(&mut self, code: ResponseCode, reason: &str, out: &mut BytesMut) {
        if self.state == State::Closing {
            // The frames cannot be told apart any more, so no answer can be found among them.
            self.state = State::Closed(CloseReason::Server);
            return;
        }
        ServerCommand::Close {
            correlation_id: CLOSE_CORRELATION_ID,
            code,
            reason,
        }
        .encode(out);
        self.state = State::Closing;
        self.close_reason = Some(reason.into());
        self.close_code = Some(code);
    }

    fn after_failure<'i>(&self) -> Step<'i> {
        match self.state {
            State::Closed(reason) => Step::Closed(reason),
            _ => Step::Starved,
        }
    }

    /// States that the client need not have sent anything until `now`, because it was not read.
    pub fn excuse_silence(&mut self, now: Time) {
        self.last_received = now;
    }

    /// The heartbeat interval; None if there are no heartbeats.
    pub fn heartbeat(&self) -> Option<Duration> {
        self.heartbeat
    }

    /// The time at which [`Connection::tick`] has something to do, if nothing happens before.
    pub fn deadline(&self) -> Option<Time> {
        let interval = self.heartbeat?;
        // A client is silent only after the second interval.
        let silent = self.last_received + interval * 2 + Duration::from_millis(1);
        Some(silent.min(self.last_sent + interval))
    }

    /// The reason in the server's close request; None if the server has sent none.
    pub fn close_reason(&self) -> Option<&str> {
        self.close_reason.as_deref()
    }

    /// The code in the server's close request, once it has sent one.
    pub fn failure(&self) -> Option<ResponseCode> {
        self.close_code
    }

    /// Returns true if the server has asked for the end of the connection and waits for the answer.
    pub fn is_closing(&self) -> bool {
        self.state == State::Closing
    }

    /// States that bytes were sent to the client.
    pub fn sent(&mut self, now: Time) {
        self.last_sent = now;
    }

    /// Sends a heartbeat if one is due. Call it at [`Connection::deadline`].
    pub fn tick(&mut self, now: Time, out: &mut BytesMut) -> Step<'static> {
        if let State::Closed(reason) = self.state {
            return Step::Closed(reason);
        }
        let Some(interval) = self.heartbeat else {
            return Step::Starved;
        };
        if now.since(self.last_received) > interval * 2 {
            self.state = State::Closed(CloseReason::Silent);
            return Step::Closed(CloseReason::Silent);
        }
        if now.since(self.last_sent) >= interval {
            ServerCommand::Heartbeat {}.encode(out);
            self.last_sent = now;
        }
        Step::Starved
    }
}

fn respond_to_sasl(correlation_id: u32, code: ResponseCode, out: &mut BytesMut) {
    ServerCommand::SaslAuthenticate {
        correlation_id,
        code,
        challenge: Trailing(None),
    }
    .encode(out);
}

/// Commands that an open connection does not take.
fn is_handshake(key: CommandKey) -> bool {
    matches!(
        key,
        CommandKey::PeerProperties
            | CommandKey::SaslHandshake
            | CommandKey::SaslAuthenticate
            | CommandKey::Tune
            | CommandKey::Open
            | CommandKey::Close
    )
}
