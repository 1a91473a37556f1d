//! CONNECT: authentication, authorization and the claim of the client id (sections 3.1 and 3.2).

use crate::client_connection::{ClientConnection, DelayedWill, SYNC, StepContext};
use crate::packet_ids::PacketIds;
use crate::publish;
use crate::rare_state::{OptionalRareState, PreviousRelease, RareState};
use crate::session::{
    ClientPhase, CoarseTime, ConnectionFailure, HandshakeState, MqttSession, PacketResult,
    SessionPhase,
};
use crate::session_queue::queue_name;
use crate::settings::MqttSettings;
use crate::shard_service::RouterAccess;
use crate::state::{ClientState, ParkedState};
use auth::{Credentials, TlsPeer};
use bytes::BytesMut;
use codec_mqtt::{ConnAck, Connect, DecodeError, Properties, ReasonCode, Version};
use conversion::mqtt::key_of;
use metadata::{Change, Tree};
use session::{LoginAttempt, LoginVerdict, PasswordCheck, SessionOwner};
use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;
use topics::{ClaimOutcome, SessionRelease, SubscriberId};

/// The protocol label of login metrics, the same for all versions as in RabbitMQ.
const LOGIN_PROTOCOL: &str = "mqtt";

const WRONG_PASSWORD: &str = "wrong user name or password";

const LOOPBACK_ONLY: &str = "the user can only connect via localhost";

/// The user that a client claims to be, with the proof.
enum ClaimedIdentity {
    Password(Credentials),
    /// The user named by a certificate that TLS has verified.
    Certificate(String),
}

impl ClaimedIdentity {
    fn user(&self) -> &str {
        match self {
            ClaimedIdentity::Password(credentials) => &credentials.user,
            ClaimedIdentity::Certificate(user) => user,
        }
    }
}

impl MqttSession {
    /// Handles CONNECT. `bridge`: the client is another broker that uses Mosquitto's bridge
    /// protocol.
    pub(crate) fn connect(
        &mut self,
        connect: &Connect<'_>,
        is_bridge: bool,
        cx: &mut StepContext<'_>,
    ) -> PacketResult {
        self.version = connect.version;
        let properties = &connect.properties;
        if let (ClientPhase::Unknown(unknown), Some(most)) =
            (&mut self.client, properties.maximum_packet_size)
        {
            unknown.packet = most.get();
        }
        // [MQTT-4.12.0-1]
        if properties.authentication_method.is_some() {
            let text = "no authentication method is offered";
            return Err(ConnectionFailure::new(
                ReasonCode::BadAuthenticationMethod,
                text,
            ));
        }
        if cx.broker.draining() {
            let text = "the node is shutting down or in maintenance mode";
            return Err(ConnectionFailure::new(ReasonCode::ServerUnavailable, text));
        }
        let ClientPhase::Unknown(unknown) = &mut self.client else {
            return Ok(());
        };
        let certificate = unknown.tls.take();
        let (vhost, identity) =
            identity(&unknown.settings, certificate, connect).inspect_err(|refusal| {
                note_login(
                    connect.user_name.unwrap_or_default(),
                    Some(&refusal.text),
                    cx,
                );
            })?;
        let account = cx.broker.account(identity.user(), &vhost);
        let mut connection = new_connection(&unknown.settings, connect, account, cx)?;
        if is_bridge {
            connection.rare.is_bridge = true;
        }
        let verdict = verify(unknown, &identity, cx);
        self.client = ClientPhase::Known(connection);
        match verdict? {
            PasswordCheck::Right => self.authorize(cx),
            PasswordCheck::Wrong => Err(wrong_password(identity.user(), WRONG_PASSWORD, cx)),
            PasswordCheck::Later => {
                self.phase = SessionPhase::Verifying;
                Ok(())
            }
            PasswordCheck::Busy => {
                let text = "too many logins are waiting to be checked; try again";
                Err(ConnectionFailure::new(ReasonCode::ServerBusy, text))
            }
        }
    }

    /// The node has checked the password.
    pub(crate) fn password_checked(&mut self, verdict: LoginVerdict, cx: &mut StepContext<'_>) {
        if self.phase != SessionPhase::Verifying {
            return;
        }
        self.phase = SessionPhase::Connecting;
        let outcome = match verdict {
            LoginVerdict::Right => self.authorize(cx),
            LoginVerdict::Identified(identity) => {
                if let Some(connection) = self.client.connection_mut() {
                    let vhost = connection.account.vhost.clone();
                    connection.account = Arc::new(SessionOwner {
                        user: identity.user.clone(),
                        identity: Some(Arc::new(identity.in_vhost(&vhost))),
                        vhost,
                    });
                }
                self.authorize(cx)
            }
            LoginVerdict::Wrong(why) => {
                let account = self.client.connection().map(|c| c.account.clone());
                let user = account.as_ref().map_or("", |account| &account.user);
                Err(wrong_password(
                    user,
                    why.as_deref().unwrap_or(WRONG_PASSWORD),
                    cx,
                ))
            }
        };
        if let Err(failure) = outcome {
            self.fail(failure, cx);
        }
    }

    /// The client is authenticated: checks whether it may connect.
    fn authorize(&mut self, cx: &mut StepContext<'_>) -> PacketResult {
        let Some(connection) = self.client.connection_mut() else {
            return Ok(());
        };
        let account = connection.account.clone();
        let SessionOwner { user, vhost, .. } = &*account;
        let mut restricted = connection.settings.loopback_users.iter();
        let is_remote = !cx.broker.peer().ip().to_canonical().is_loopback();
        if connection.settings.has_external_backend
            && is_remote
            && restricted.any(|name| **name == **user)
        {
            return Err(wrong_password(user, LOOPBACK_ONLY, cx));
        }
        note_login(user, None, cx);
        let refuse = |failure: ConnectionFailure, cx: &mut StepContext<'_>| {
            cx.broker.note_refused_vhost(user, vhost, &failure.text);
            failure
        };
        check_vhost_access(cx.broker.tree(), &account).map_err(|f| refuse(f, cx))?;
        let topic = connection.rare.will.as_ref().map(|d| d.will.topic.clone());
        if let Some(topic) = topic
            && (publish::is_reserved(&topic)
                || !connection.may_publish(cx.broker.tree(), &key_of(&topic)))
        {
            let text = "the user may not publish to the will's topic";
            connection.note_refusal(("topic", &topic), "write", text, cx);
            return Err(ConnectionFailure::new(ReasonCode::NotAuthorized, text));
        }
        if connection.connack().is_none() {
            let text = "CONNACK is larger than the client takes";
            return Err(ConnectionFailure::new(ReasonCode::PacketTooLarge, text));
        }
        if let Err(limit) = cx.broker.admit(user) {
            let text = format!("user '{user}' may have {limit} connections");
            let failure = ConnectionFailure::new(ReasonCode::QuotaExceeded, text);
            return Err(refuse(failure, cx));
        }
        if let Err(limit) = cx.broker.admit_to(vhost) {
            let text = format!("vhost '{vhost}' may have {limit} connections");
            let failure = ConnectionFailure::new(ReasonCode::QuotaExceeded, text);
            return Err(refuse(failure, cx));
        }
        // Another node may just have created or ended the session or changed its subscriptions.
        if connection.rare.session_expiry > 0 && !cx.broker.knows_all() {
            self.phase = SessionPhase::Learning;
            cx.broker.change(SYNC, Change::Barrier {});
            return Ok(());
        }
        self.claim(cx);
        Ok(())
    }

    /// Claims the client id, or waits for the connection that holds it to leave [MQTT-3.1.4-3].
    pub(crate) fn claim(&mut self, cx: &mut StepContext<'_>) {
        let number = cx.broker.id().number;
        let Some(connection) = self.client.connection_mut() else {
            return;
        };
        // Check first: a rejected client must not disconnect the one that holds the client id.
        if let Err(failure) = connection.may_open(cx.broker.tree()) {
            let client_id = connection.rare.client_id.as_deref();
            let queue = client_id.and_then(queue_name).unwrap_or_default();
            connection.note_refusal(("queue", &queue), "configure", &failure.text, cx);
            return self.fail(failure, cx);
        }
        let Some(router) = cx.broker.router() else {
            let text = "this node takes no MQTT clients";
            return self.fail(
                ConnectionFailure::new(ReasonCode::ServerUnavailable, text),
                cx,
            );
        };
        let RareState {
            client_id,
            clean_start,
            ..
        } = &*connection.rare;
        let name = client_id.as_deref().unwrap_or_default();
        match router.claim(&connection.account.vhost, name, number, *clean_start) {
            ClaimOutcome::Wait => self.phase = SessionPhase::Claiming,
            ClaimOutcome::Granted {
                subscriber,
                previous,
                handover,
            } => {
                let SessionRelease {
                    state, until, will, ..
                } = previous;
                let parked =
                    state.and_then(|state| state.into_any().downcast::<ParkedState>().ok());
                if parked.is_some() {
                    connection.rare.previous_release =
                        Some(Box::new(PreviousRelease { until, will }));
                }
                self.phase = SessionPhase::Opening;
                match connection.open_session(
                    subscriber,
                    parked.map(|parked| *parked),
                    handover,
                    cx,
                ) {
                    Ok(true) => self.start_session(cx),
                    Ok(false) => {}
                    Err(failure) => self.fail(failure, cx),
                }
            }
        }
    }

    /// The session belongs to the connection: sends CONNACK.
    pub(crate) fn start_session(&mut self, cx: &mut StepContext<'_>) {
        let accepted = self.client.connection_mut();
        if accepted.is_some_and(|connection| !connection.accept(cx)) {
            return self.close_silently("CONNACK is larger than the client takes", cx);
        }
        self.phase = SessionPhase::Running;
        self.since = CoarseTime::of(cx.broker.now());
    }

    /// Handles a CONNECT that cannot be decoded. Answers a client that uses a known version
    /// [MQTT-3.1.4-1].
    pub(crate) fn refuse_connect(
        &mut self,
        body: &[u8],
        error: DecodeError,
        cx: &mut StepContext<'_>,
    ) {
        let five = [0, 4, b'M', b'Q', b'T', b'T', 5];
        self.version = match error {
            // Ignore it, as the frame parser does when it sees invalid flags first: this is no
            // CONNECT.
            DecodeError::Flags(..) => return self.close_silently(&error.to_string(), cx),
            // 3.1.1 requires return code 0x01 for any unknown level, 5.0 allows a different answer:
            // 3.1.1 [MQTT-3.1.2-2].
            DecodeError::ProtocolLevel(_) => Version::V311,
            _ if body.starts_with(&five) => Version::V5,
            _ => return self.close_silently(&error.to_string(), cx),
        };
        self.fail(error.into(), cx);
    }
}

/// Determines the vhost and user of a client and their proof. As in RabbitMQ, `vhost:user` names
/// both, separated by the last colon, and the certificate counts only if the client sends no user
/// name.
fn identity(
    settings: &MqttSettings,
    certificate: Option<Arc<TlsPeer>>,
    connect: &Connect<'_>,
) -> Result<(String, ClaimedIdentity), ConnectionFailure> {
    // A user name without proof must not select a user or vhost.
    let proven = |_: &&str| !settings.name_without_password || connect.password.is_some();
    if let Some(name) = connect.user_name.filter(proven) {
        let (vhost, user) = name.rsplit_once(':').unwrap_or((&settings.vhost, name));
        let password = connect.password.unwrap_or_default().to_vec();
        let user = user.to_owned();
        let shown = ClaimedIdentity::Password(Credentials { user, password });
        return Ok((vhost.to_owned(), shown));
    }
    let vhost = settings.vhost.to_string();
    let named = certificate.as_deref().and_then(|tls| tls.name.as_deref());
    if let (Some(user), None, None) = (named, connect.user_name, connect.password) {
        return Ok((vhost, ClaimedIdentity::Certificate(user.to_owned())));
    }
    // An access token names its user.
    if let (None, Some(token)) = (connect.user_name, connect.password)
        && settings.has_external_backend
    {
        let password = token.to_vec();
        let user = String::new();
        let shown = ClaimedIdentity::Password(Credentials { user, password });
        return Ok((vhost, shown));
    }
    match settings.anonymous.clone() {
        Some(anonymous) => Ok((vhost, ClaimedIdentity::Password(anonymous))),
        None => Err(ConnectionFailure::new(
            ReasonCode::BadUserNameOrPassword,
            "a user name is needed",
        )),
    }
}

/// Returns the keep alive in seconds, 0 for none. Clients before 5.0 cannot be told a different
/// one, so they are rejected as in Mosquitto.
fn agree_on_keep_alive(
    settings: &MqttSettings,
    connect: &Connect<'_>,
) -> Result<u16, ConnectionFailure> {
    let longest = settings.limits.keep_alive;
    let requested = connect.keep_alive;
    if longest == 0 || (1..=longest).contains(&requested) {
        return Ok(requested);
    }
    if !connect.version.is_5() {
        let text = format!("a keep alive of at most {longest} seconds is needed");
        return Err(ConnectionFailure::new(
            ReasonCode::ClientIdentifierNotValid,
            text,
        ));
    }
    Ok(longest)
}

fn new_connection(
    settings: &Arc<MqttSettings>,
    connect: &Connect<'_>,
    account: Arc<SessionOwner>,
    cx: &mut StepContext<'_>,
) -> Result<ClientConnection, ConnectionFailure> {
    let limits = &settings.limits;
    let properties = &connect.properties;
    let five = connect.version.is_5();
    let assigned = connect.client_id.is_empty();
    // 3.1 has no empty client ids; 3.1.1: [MQTT-3.1.3-8].
    if assigned && (connect.version == Version::V31 || !five && !connect.clean_start) {
        let text = "a client id is needed";
        return Err(ConnectionFailure::new(
            ReasonCode::ClientIdentifierNotValid,
            text,
        ));
    }
    let client_id: Box<str> = match assigned {
        // [MQTT-3.2.2-16]
        true => assigned_id(cx),
        false => connect.client_id.into(),
    };
    let requested = match (five, connect.clean_start) {
        (true, _) => properties.session_expiry.unwrap_or(0),
        (false, true) => 0,
        (false, false) => limits.session_expiry,
    };
    let session_expiry = requested.min(limits.session_expiry);
    if session_expiry > 0 && queue_name(&client_id).is_none() {
        let text = "the client id is too long for a session that is kept";
        return Err(ConnectionFailure::new(
            ReasonCode::ClientIdentifierNotValid,
            text,
        ));
    }
    let mut rare = OptionalRareState::default();
    rare.client_id = Some(client_id);
    rare.is_assigned = assigned;
    rare.clean_start = connect.clean_start;
    rare.session_expiry = session_expiry;
    rare.expiry_reduced = five && requested != session_expiry;
    rare.packet = properties
        .maximum_packet_size
        .map_or(u32::MAX, NonZeroU32::get);
    rare.will = connect
        .will
        .as_ref()
        .and_then(|will| publish::will(will, &settings.exchange, cx))
        .map(|(will, delay)| Box::new(DelayedWill { will, delay }));
    let mut connection = ClientConnection {
        settings: settings.clone(),
        version: connect.version,
        account,
        rare,
        subscriber: SubscriberId::NONE,
        state: ClientState::default(),
        ids: PacketIds::default(),
        keep_alive: agree_on_keep_alive(settings, connect)?,
        is_open: false,
        quota: properties
            .receive_maximum
            .map_or(limits.prefetch, |n| n.get().min(limits.prefetch)),
        aliases: properties
            .topic_alias_maximum
            .unwrap_or(0)
            .min(limits.topic_aliases),
        next_seq: 1,
        active: None,
        has_published: false,
        is_consumer: false,
        is_alarmed: cx.broker.publishers_blocked().is_some(),
        is_slow: false,
        unread: 0,
    };
    if assigned && connection.connack().is_none() {
        connection.rare.client_id = Some(short_id(cx.broker.random()));
    }
    Ok(connection)
}

fn assigned_id(cx: &mut StepContext<'_>) -> Box<str> {
    let (high, low) = (cx.broker.random(), cx.broker.random());
    format!("posthorn-{high:016x}{low:016x}").into()
}

/// An id for clients that accept only small packets: 64 random bits in the characters that every
/// server allows.
fn short_id(mut random: u64) -> Box<str> {
    const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let digit = |_| {
        let digit = DIGITS.get((random % 62) as usize).copied();
        random /= 62;
        char::from(digit.unwrap_or(b'0'))
    };
    (0..11).map(digit).collect::<String>().into()
}

fn verify(
    unknown: &HandshakeState,
    identity: &ClaimedIdentity,
    cx: &mut StepContext<'_>,
) -> Result<PasswordCheck, ConnectionFailure> {
    let (peer, user) = (cx.broker.peer(), identity.user());
    let refused = |why: &str, cx: &mut StepContext<'_>| {
        tracing::warn!(%peer, user, why, "MQTT login refused");
        wrong_password(user, why, cx)
    };
    let mut at_home = unknown.settings.loopback_users.iter();
    // Another backend may know the password of another user.
    if !unknown.settings.has_external_backend
        && !unknown.peer_is_loopback
        && at_home.any(|name| **name == *user)
    {
        return Err(refused(LOOPBACK_ONLY, cx));
    }
    let record = cx.broker.tree().user(user);
    let ClaimedIdentity::Password(credentials) = identity else {
        return match record {
            Some(_) if unknown.settings.has_internal_backend => Ok(PasswordCheck::Right),
            Some(_) => Err(refused(
                "`auth_backends` has no backend that knows users by name",
                cx,
            )),
            None => Err(refused("no such user", cx)),
        };
    };
    if credentials.password.is_empty() {
        return Err(refused("empty password", cx));
    }
    // Verify a decoy for an unknown user, so that the answer takes as long as for a known one.
    let hash = record.and_then(|record| record.password.clone());
    let hash = hash.unwrap_or_else(auth::decoy);
    Ok(cx.broker.verify(user, &hash, &credentials.password))
}

impl ClientConnection {
    /// Sends CONNACK and the messages of the previous connection. Returns false if CONNACK exceeds
    /// the client's Maximum Packet Size [MQTT-3.1.2-24].
    fn accept(&mut self, cx: &mut StepContext<'_>) -> bool {
        let Some(packet) = self.connack() else {
            return false;
        };
        cx.packet().extend_from_slice(&packet);
        cx.count(|t| t.traffic.connects += 1);
        self.resume_session(cx);
        self.connack_sent();
        self.replicate_will(cx);
        self.count_consumer(cx);
        self.send_pubrels(cx);
        self.send_waiting(cx);
        true
    }

    /// Encodes CONNACK for an accepted client; `None` if it exceeds the client's Maximum Packet
    /// Size.
    fn connack(&self) -> Option<BytesMut> {
        let full = self.terms(Some(true));
        // Advertise a feature only if CONNACK has room; omitting it means that it is available.
        let short = self.terms(None);
        // A client that gets no Topic Alias Maximum uses no topic aliases.
        let shortest = Properties {
            topic_alias_maximum: None,
            ..short
        };
        [full, short, shortest].into_iter().find_map(|properties| {
            let mut packet = BytesMut::new();
            let accepted = ConnAck {
                session_present: self.rare.session_present,
                reason: ReasonCode::Success,
                properties,
            };
            accepted.encode(self.version, &mut packet);
            (packet.len() <= self.max_packet()).then_some(packet)
        })
    }

    /// The properties of CONNACK for a 5.0 client. `available` is the value of the flags for
    /// features that are always available.
    fn terms(&self, available: Option<bool>) -> Properties<'_> {
        if !self.is_5() {
            return Properties::default();
        }
        let rare = &*self.rare;
        let limits = &self.settings.limits;
        // [MQTT-3.2.2-21]: a keep alive of the maximum may have been reduced to it.
        let shortened = limits.keep_alive > 0 && self.keep_alive == limits.keep_alive;
        Properties {
            session_expiry: rare.expiry_reduced.then_some(rare.session_expiry),
            assigned_client_id: rare.client_id.as_deref().filter(|_| rare.is_assigned),
            server_keep_alive: shortened.then_some(self.keep_alive),
            receive_maximum: NonZeroU16::new(limits.receive),
            topic_alias_maximum: (limits.topic_aliases > 0).then_some(limits.topic_aliases),
            maximum_packet_size: u32::try_from(limits.packet).ok().and_then(NonZeroU32::new),
            retain_available: available,
            wildcard_subscription_available: available,
            subscription_identifier_available: available,
            shared_subscription_available: available,
            ..Properties::default()
        }
    }
}

fn check_vhost_access(tree: &Tree, account: &SessionOwner) -> PacketResult {
    let (user, vhost) = (&account.user, &account.vhost);
    if !tree.vhost_exists(vhost) {
        let text = format!("vhost '{vhost}' not found");
        return Err(ConnectionFailure::new(ReasonCode::NotAuthorized, text));
    }
    if !account.access(tree).has_vhost(vhost) {
        let text = format!("access to vhost '{vhost}' refused for user '{user}'");
        return Err(ConnectionFailure::new(ReasonCode::NotAuthorized, text));
    }
    Ok(())
}

/// The failure for the client does not name the reason `why` of the refusal.
fn wrong_password(user: &str, why: &str, cx: &mut StepContext<'_>) -> ConnectionFailure {
    note_login(user, Some(why), cx);
    ConnectionFailure::new(ReasonCode::BadUserNameOrPassword, WRONG_PASSWORD)
}

fn note_login(user: &str, refusal: Option<&str>, cx: &mut StepContext<'_>) {
    cx.broker.note_login(&LoginAttempt {
        protocol: LOGIN_PROTOCOL,
        user,
        mechanism: "",
        refusal,
    });
}
