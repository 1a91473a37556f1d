//! Users' credentials and rights: password hashes, permissions, SASL mechanisms (O5, A9-1). No I/O.
#![forbid(unsafe_code)]

/// A stored password hash. Never printed by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash {
    pub algorithm: HashAlgorithm,
    /// RabbitMQ's form for the sha family: 4 bytes of salt, then the digest. For argon2id: the PHC string's bytes.
    pub bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HashAlgorithm {
    /// `rabbit_password_hashing_sha256`
    Sha256,
    /// `rabbit_password_hashing_sha512`
    Sha512,
    Argon2id,
}

impl std::fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PasswordHash({:?}, ..)", self.algorithm)
    }
}
