//! Keys and versions of commands.

use crate::CommandVersions;
use std::fmt;

/// The bit of a key that marks responses.
pub(crate) const RESPONSE: u16 = 0x8000;

macro_rules! keys {
    ($($key:literal $name:ident $max_version:literal $(#[$doc:meta])*;)*) => {
        /// A command of the protocol.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u16)]
        pub enum CommandKey {
            $($(#[$doc])* $name = $key,)*
        }

        impl CommandKey {
            /// All commands, ascending.
            pub const ALL: &[CommandKey] = &[$(CommandKey::$name,)*];

            /// The command with this key, without the bit that marks responses.
            pub fn from_number(key: u16) -> Option<CommandKey> {
                match key {
                    $($key => Some(CommandKey::$name),)*
                    _ => None,
                }
            }

            /// The highest version of the command.
            pub fn max_version(self) -> u16 {
                match self {
                    $(CommandKey::$name => $max_version,)*
                }
            }

            /// The name of the command in the protocol's reference.
            pub fn name(self) -> &'static str {
                match self {
                    $(CommandKey::$name => stringify!($name),)*
                }
            }
        }
    };
}

keys! {
    0x0001 DeclarePublisher 1 /** Declares a publisher of a stream. */;
    0x0002 Publish 2 /** Sends messages. */;
    0x0003 PublishConfirm 1 /** Confirms messages. */;
    0x0004 PublishError 1 /** States messages that were not stored. */;
    0x0005 QueryPublisherSequence 1 /** Asks for the newest publishing id of a publisher. */;
    0x0006 DeletePublisher 1 /** Deletes a publisher. */;
    0x0007 Subscribe 1 /** Starts a consumer. */;
    0x0008 Deliver 2 /** Delivers a chunk. */;
    0x0009 Credit 1 /** Grants credit to a consumer, in chunks. */;
    0x000a StoreOffset 1 /** Stores an offset under a reference. */;
    0x000b QueryOffset 1 /** Asks for a stored offset. */;
    0x000c Unsubscribe 1 /** Ends a consumer. */;
    0x000d Create 1 /** Creates a stream. */;
    0x000e Delete 1 /** Deletes a stream. */;
    0x000f Metadata 1 /** Asks for the nodes of streams. */;
    0x0010 MetadataUpdate 1 /** States that the nodes of a stream changed. */;
    0x0011 PeerProperties 1 /** Exchanges the properties of client and server. */;
    0x0012 SaslHandshake 1 /** Asks for the SASL mechanisms. */;
    0x0013 SaslAuthenticate 1 /** Authenticates, or renews the credentials. */;
    0x0014 Tune 1 /** Negotiates the frame size and the heartbeat. */;
    0x0015 Open 1 /** Selects the virtual host. */;
    0x0016 Close 1 /** Ends the connection. */;
    0x0017 Heartbeat 1 /** Shows that the sender is alive. */;
    0x0018 Route 1 /** Asks for the streams of a routing key in a super stream. */;
    0x0019 Partitions 1 /** Asks for the streams of a super stream. */;
    0x001a ConsumerUpdate 1 /** Activates or deactivates a single active consumer. */;
    0x001b ExchangeCommandVersions 1 /** Exchanges the supported versions of commands. */;
    0x001c StreamStats 1 /** Asks for statistics of a stream. */;
    0x001d CreateSuperStream 1 /** Creates a super stream. */;
    0x001e DeleteSuperStream 1 /** Deletes a super stream. */;
    0x001f ResolveOffsetSpec 1 /** Asks for the offset that an offset specification means. */;
}

impl CommandKey {
    /// The number of the key, without the bit that marks responses.
    pub fn number(self) -> u16 {
        self as u16
    }

    /// The versions of the command that this crate reads and writes.
    pub fn versions(self) -> CommandVersions {
        CommandVersions {
            key: self.number(),
            min: 1,
            max: self.max_version(),
        }
    }
}

impl fmt::Display for CommandKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
