use crate::Reason;
use crate::error::excerpt;

/// A field of a message's header section that filters read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderField {
    /// `priority`. A message without one has priority 4.
    Priority,
    /// `durable`.
    Durable,
}

macro_rules! properties {
    ($( $(#[$attribute:meta])* $name:ident = $text:literal, )*) => {
        /// A field of a message's properties section (AMQP 1.0, part 3, section 3.2.4).
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Property {
            $( $(#[$attribute])* $name, )*
        }

        impl Property {
            /// All fields.
            pub const ALL: &'static [Self] = &[$( Self::$name, )*];

            /// The name of the field in the AMQP standard.
            pub fn name(self) -> &'static str {
                match self {
                    $( Self::$name => $text, )*
                }
            }
        }
    };
}

properties! {
    /// The message's id.
    MessageId = "message-id",
    /// The user that created the message.
    UserId = "user-id",
    /// The address of the message's destination.
    To = "to",
    /// The message's purpose.
    Subject = "subject",
    /// The address for replies.
    ReplyTo = "reply-to",
    /// The id of the message that this one belongs to.
    CorrelationId = "correlation-id",
    /// MIME type of the body.
    ContentType = "content-type",
    /// Encoding of the body.
    ContentEncoding = "content-encoding",
    /// When the message expires, in milliseconds since the Unix epoch.
    AbsoluteExpiryTime = "absolute-expiry-time",
    /// When the message was made, in milliseconds since the Unix epoch.
    CreationTime = "creation-time",
    /// The group of the message.
    GroupId = "group-id",
    /// Its position in the group.
    GroupSequence = "group-sequence",
    /// The group for replies.
    ReplyToGroupId = "reply-to-group-id",
}

impl Property {
    /// The field with this name in the standard's spelling.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|property| property.name() == name)
    }

    /// The field with this name in SQL, where identifiers have `_` instead of `-`.
    fn from_identifier(name: &str) -> Option<Self> {
        let spelling = |byte| if byte == b'-' { b'_' } else { byte };
        Self::ALL
            .iter()
            .copied()
            .find(|property| property.name().bytes().map(spelling).eq(name.bytes()))
    }
}

/// A value of the message that an identifier refers to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reference {
    Header(HeaderField),
    Property(Property),
    /// `JMSDeliveryMode`: the header field `durable` as text.
    DeliveryMode,
    Application(String),
}

impl Reference {
    /// Resolves `section.field` of SQL.
    pub(crate) fn from_section(section: &str, field: &str) -> Result<Self, Reason> {
        let unknown = |section| Reason::UnknownField {
            section,
            field: excerpt(field),
        };
        match section {
            "header" | "h" if field == "priority" => Ok(Self::Header(HeaderField::Priority)),
            "header" | "h" => Err(unknown("header")),
            "properties" | "p" => Property::from_identifier(field)
                .map(Self::Property)
                .ok_or_else(|| unknown("properties")),
            "application_properties" | "a" => Ok(Self::Application(field.to_owned())),
            other => Err(Reason::UnknownSection(excerpt(other))),
        }
    }

    /// Resolves an identifier of a selector. Names that begin with `JMS` are headers or properties that JMS defines.
    pub(crate) fn from_selector(name: &str) -> Result<Self, Reason> {
        Ok(match name {
            "JMSMessageID" => Self::Property(Property::MessageId),
            "JMSCorrelationID" => Self::Property(Property::CorrelationId),
            "JMSType" => Self::Property(Property::Subject),
            "JMSTimestamp" => Self::Property(Property::CreationTime),
            "JMSPriority" => Self::Header(HeaderField::Priority),
            "JMSDeliveryMode" => Self::DeliveryMode,
            "JMSXGroupID" => Self::Property(Property::GroupId),
            "JMSXGroupSeq" => Self::Property(Property::GroupSequence),
            "JMSXUserID" => Self::Property(Property::UserId),
            _ if name.starts_with("JMS") => {
                return Err(Reason::Unsupported {
                    construct: format!("'{}'", excerpt(name)),
                    remedy: "use JMSMessageID, JMSCorrelationID, JMSType, JMSTimestamp, JMSPriority, JMSDeliveryMode, \
                             JMSXGroupID, JMSXGroupSeq, JMSXUserID or a property of the application",
                });
            }
            _ => Self::Application(name.to_owned()),
        })
    }
}
