//! Credentials and permissions of users: password hashes, permission patterns, SASL mechanisms. No I/O.
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

mod password;
mod pattern;
mod peer;
mod sasl;
mod throttle;
mod verified;
mod wildcard;

pub use password::{PasswordHashError, SALT_LEN, decoy, hash, hash_with, verify};
pub use pattern::{MAX_PATTERN, Pattern, PatternError};
pub use peer::TlsPeer;
pub use sasl::{Credentials, Mechanism, SaslError, amqplain, plain};
pub use throttle::{
    FREE_ADDRESS_FAILURES, FREE_FAILURES, FailedLoginResponse, LOGGED_PER_MINUTE, LoginThrottle,
    MAX_DELAY,
};
pub use verified::{VERIFIED_CAPACITY, VerifiedPasswordCache};
pub use wildcard::Wildcard;

/// A stored password hash. `Debug` does not print it.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash {
    /// The algorithm that created `bytes`.
    pub algorithm: HashAlgorithm,
    /// For MD5 and the SHA family in RabbitMQ's form: 4 bytes of salt, then the digest. For argon2id: the
    /// bytes of the PHC string.
    pub bytes: Vec<u8>,
}

/// Algorithms of stored password hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HashAlgorithm {
    /// `rabbit_password_hashing_md5`, as stored by RabbitMQ before 3.6. Never used for new passwords.
    Md5,
    /// `rabbit_password_hashing_sha256`
    Sha256,
    /// `rabbit_password_hashing_sha512`
    Sha512,
    /// Argon2id: the algorithm of new passwords, expensive on purpose.
    Argon2id,
}

wire::wire_struct!(PasswordHash {
    algorithm: HashAlgorithm,
    bytes: Vec<u8>,
});
wire::wire_enum!(HashAlgorithm, "a hash algorithm" {
    1 = Sha256,
    2 = Sha512,
    3 = Argon2id,
    4 = Md5,
});

impl std::fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PasswordHash({:?}, ..)", self.algorithm)
    }
}

impl HashAlgorithm {
    /// True if checking a password takes milliseconds, on purpose.
    pub fn is_costly(self) -> bool {
        self == HashAlgorithm::Argon2id
    }

    /// The name in the HTTP API (`hashing_algorithm`).
    pub fn name(self) -> &'static str {
        match self {
            HashAlgorithm::Md5 => "rabbit_password_hashing_md5",
            HashAlgorithm::Sha256 => "rabbit_password_hashing_sha256",
            HashAlgorithm::Sha512 => "rabbit_password_hashing_sha512",
            HashAlgorithm::Argon2id => "argon2id",
        }
    }

    /// Returns the algorithm with that name in the HTTP API, or `None` if it is unknown.
    pub fn from_name(name: &str) -> Option<HashAlgorithm> {
        [
            HashAlgorithm::Md5,
            HashAlgorithm::Sha256,
            HashAlgorithm::Sha512,
            HashAlgorithm::Argon2id,
        ]
        .into_iter()
        .find(|a| a.name() == name)
    }
}
