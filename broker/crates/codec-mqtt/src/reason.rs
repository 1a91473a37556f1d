//! Reason codes (section 2.4), and the return codes of CONNACK in 3.1.1 (its section 3.2.2.3).

macro_rules! reasons {
    ($($name:ident = $code:literal $text:literal,)*) => {
        /// The result of an operation. Codes from 0x80 are errors.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum ReasonCode {
            $(#[doc = $text] $name = $code,)*
        }

        impl ReasonCode {
            /// Returns the reason with that code, or None if no version defines it.
            pub fn from_byte(byte: u8) -> Option<ReasonCode> {
                match byte {
                    $($code => Some(ReasonCode::$name),)*
                    _ => None,
                }
            }

            /// The name in the specification.
            pub fn text(self) -> &'static str {
                match self {
                    $(ReasonCode::$name => $text,)*
                }
            }
        }
    };
}

reasons! {
    Success = 0x00 "Success",
    GrantedQos1 = 0x01 "Granted QoS 1",
    GrantedQos2 = 0x02 "Granted QoS 2",
    DisconnectWithWill = 0x04 "Disconnect with Will Message",
    NoMatchingSubscribers = 0x10 "No matching subscribers",
    NoSubscriptionExisted = 0x11 "No subscription existed",
    ContinueAuthentication = 0x18 "Continue authentication",
    ReAuthenticate = 0x19 "Re-authenticate",
    UnspecifiedError = 0x80 "Unspecified error",
    MalformedPacket = 0x81 "Malformed Packet",
    ProtocolError = 0x82 "Protocol Error",
    ImplementationSpecificError = 0x83 "Implementation specific error",
    UnsupportedProtocolVersion = 0x84 "Unsupported Protocol Version",
    ClientIdentifierNotValid = 0x85 "Client Identifier not valid",
    BadUserNameOrPassword = 0x86 "Bad User Name or Password",
    NotAuthorized = 0x87 "Not authorized",
    ServerUnavailable = 0x88 "Server unavailable",
    ServerBusy = 0x89 "Server busy",
    Banned = 0x8A "Banned",
    ServerShuttingDown = 0x8B "Server shutting down",
    BadAuthenticationMethod = 0x8C "Bad authentication method",
    KeepAliveTimeout = 0x8D "Keep Alive timeout",
    SessionTakenOver = 0x8E "Session taken over",
    TopicFilterInvalid = 0x8F "Topic Filter invalid",
    TopicNameInvalid = 0x90 "Topic Name invalid",
    PacketIdentifierInUse = 0x91 "Packet Identifier in use",
    PacketIdentifierNotFound = 0x92 "Packet Identifier not found",
    ReceiveMaximumExceeded = 0x93 "Receive Maximum exceeded",
    TopicAliasInvalid = 0x94 "Topic Alias invalid",
    PacketTooLarge = 0x95 "Packet too large",
    MessageRateTooHigh = 0x96 "Message rate too high",
    QuotaExceeded = 0x97 "Quota exceeded",
    AdministrativeAction = 0x98 "Administrative action",
    PayloadFormatInvalid = 0x99 "Payload format invalid",
    RetainNotSupported = 0x9A "Retain not supported",
    QosNotSupported = 0x9B "QoS not supported",
    UseAnotherServer = 0x9C "Use another server",
    ServerMoved = 0x9D "Server moved",
    SharedSubscriptionsNotSupported = 0x9E "Shared Subscriptions not supported",
    ConnectionRateExceeded = 0x9F "Connection rate exceeded",
    MaximumConnectTime = 0xA0 "Maximum connect time",
    SubscriptionIdentifiersNotSupported = 0xA1 "Subscription Identifiers not supported",
    WildcardSubscriptionsNotSupported = 0xA2 "Wildcard Subscriptions not supported",
}

impl ReasonCode {
    /// Returns true if the operation failed: codes from 0x80 on.
    pub fn is_error(self) -> bool {
        self as u8 >= 0x80
    }

    /// Returns the reason code of SUBACK for a granted subscription.
    pub fn granted(qos: crate::Qos) -> ReasonCode {
        match qos {
            crate::Qos::AtMostOnce => ReasonCode::Success,
            crate::Qos::AtLeastOnce => ReasonCode::GrantedQos1,
            crate::Qos::ExactlyOnce => ReasonCode::GrantedQos2,
        }
    }

    /// Returns the nearest CONNACK return code for clients of 3.1 and 3.1.1.
    pub fn return_code(self) -> ReturnCode {
        match self {
            ReasonCode::Success => ReturnCode::Accepted,
            ReasonCode::UnsupportedProtocolVersion => ReturnCode::UnacceptableProtocolVersion,
            ReasonCode::ClientIdentifierNotValid => ReturnCode::IdentifierRejected,
            ReasonCode::BadUserNameOrPassword | ReasonCode::BadAuthenticationMethod => {
                ReturnCode::BadUserNameOrPassword
            }
            ReasonCode::NotAuthorized | ReasonCode::Banned => ReturnCode::NotAuthorized,
            _ => ReturnCode::ServerUnavailable,
        }
    }
}

/// The return code of CONNACK in 3.1 and 3.1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ReturnCode {
    /// Accepted.
    Accepted = 0,
    /// The protocol level is not supported.
    UnacceptableProtocolVersion = 1,
    /// The client id is well-formed but not allowed.
    IdentifierRejected = 2,
    /// The server is not available.
    ServerUnavailable = 3,
    /// User name or password is malformed or wrong.
    BadUserNameOrPassword = 4,
    /// The client may not connect.
    NotAuthorized = 5,
}

impl ReturnCode {
    /// Returns the return code with that number, or None if 3.1.1 does not define it.
    pub fn from_byte(byte: u8) -> Option<ReturnCode> {
        [
            ReturnCode::Accepted,
            ReturnCode::UnacceptableProtocolVersion,
            ReturnCode::IdentifierRejected,
            ReturnCode::ServerUnavailable,
            ReturnCode::BadUserNameOrPassword,
            ReturnCode::NotAuthorized,
        ]
        .into_iter()
        .find(|code| *code as u8 == byte)
    }

    /// Returns the reason code that corresponds to this return code.
    pub fn reason(self) -> ReasonCode {
        match self {
            ReturnCode::Accepted => ReasonCode::Success,
            ReturnCode::UnacceptableProtocolVersion => ReasonCode::UnsupportedProtocolVersion,
            ReturnCode::IdentifierRejected => ReasonCode::ClientIdentifierNotValid,
            ReturnCode::ServerUnavailable => ReasonCode::ServerUnavailable,
            ReturnCode::BadUserNameOrPassword => ReasonCode::BadUserNameOrPassword,
            ReturnCode::NotAuthorized => ReasonCode::NotAuthorized,
        }
    }
}
