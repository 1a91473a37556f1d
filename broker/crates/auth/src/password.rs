//! Creates and verifies password hashes.
//!
//! RabbitMQ stores hashes of the SHA family, and of MD5 before that, and so do its definitions files: 4 bytes
//! of salt, then the digest of salt and password. New passwords are hashed with argon2id.

use crate::{HashAlgorithm, PasswordHash};
use argon2::password_hash::{self, PasswordHasher as _, PasswordVerifier as _, SaltString};
use argon2::{Algorithm, Argon2, Params, Version};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use md5::Md5;
use sha2::{Digest as _, Sha256, Sha512};
use subtle::ConstantTimeEq as _;

/// Random bytes that [`hash`] needs.
pub const SALT_LEN: usize = 16;
/// Bytes of salt before a digest of MD5 or the SHA family.
const SHORT_SALT: usize = 4;
/// OWASP's argon2id parameters with the least memory: a login takes 7 MiB and about 20 ms.
const MEMORY_KIB: u32 = 7168;
const PASSES: u32 = 5;
const LANES: u32 = 1;
/// Limits of the cost of a stored hash; a hash above them is refused when it is set.
const MAX_MEMORY_KIB: u32 = 64 * 1024;
const MAX_PASSES: u32 = 16;
const MAX_LANES: u32 = 4;
/// Longest accepted PHC string in bytes.
const MAX_PHC: usize = 512;

/// Why bytes are not a password hash.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PasswordHashError {
    /// The HTTP API transports hashes in base64.
    #[error("password_hash is not base64")]
    Base64,
    /// The digest does not have the length of its algorithm.
    #[error("password_hash has {got} bytes, {algorithm} has {want}")]
    Length {
        /// The algorithm's name in the HTTP API.
        algorithm: &'static str,
        /// Length of the given hash in bytes, salt included.
        got: usize,
        /// Length of every hash of this algorithm in bytes, salt included.
        want: usize,
    },
    /// The PHC string is malformed, or its cost is above the accepted maximum.
    #[error("password_hash is not a valid argon2id string, or its cost is above the limit")]
    Argon2,
    /// The salt has fewer bytes than the algorithm needs.
    #[error("the salt is too short")]
    Salt,
    /// Argon2 refuses the length of the password.
    #[error("the password is longer than argon2 allows")]
    Password,
}

/// Hashes a password with argon2id. `salt` must be random.
pub fn hash(password: &[u8], salt: &[u8; SALT_LEN]) -> Result<PasswordHash, PasswordHashError> {
    hash_with(HashAlgorithm::Argon2id, password, salt)
}

/// Hashes a password with the given algorithm. MD5 and the SHA family use the first 4 bytes of the salt.
pub fn hash_with(
    algorithm: HashAlgorithm,
    password: &[u8],
    salt: &[u8],
) -> Result<PasswordHash, PasswordHashError> {
    let short = salt.get(..SHORT_SALT).ok_or(PasswordHashError::Salt)?;
    let bytes = match algorithm {
        HashAlgorithm::Md5 => salted::<Md5>(short, password),
        HashAlgorithm::Sha256 => salted::<Sha256>(short, password),
        HashAlgorithm::Sha512 => salted::<Sha512>(short, password),
        HashAlgorithm::Argon2id => {
            let params = Params::new(MEMORY_KIB, PASSES, LANES, None)
                .map_err(|_| PasswordHashError::Argon2)?;
            let salt = SaltString::encode_b64(salt).map_err(|_| PasswordHashError::Salt)?;
            Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
                .hash_password(password, &salt)
                .map_err(|_| PasswordHashError::Password)?
                .to_string()
                .into_bytes()
        }
    };
    Ok(PasswordHash { algorithm, bytes })
}

fn salted<D: sha2::Digest>(salt: &[u8], password: &[u8]) -> Vec<u8> {
    let mut bytes = salt.to_vec();
    bytes.extend_from_slice(&digest::<D>(salt, password));
    bytes
}

fn digest<D: sha2::Digest>(salt: &[u8], password: &[u8]) -> Vec<u8> {
    let mut digest = D::new();
    digest.update(salt);
    digest.update(password);
    digest.finalize().to_vec()
}

/// A hash that matches no password and is as expensive to check as one of [`hash`]. It is checked for unknown
/// users, so that response times do not reveal which users exist.
pub fn decoy() -> PasswordHash {
    const SALT_AND_DIGEST: &str =
        "cG9zdGhvcm5kZWNveTAwMA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    let text = format!("$argon2id$v=19$m={MEMORY_KIB},t={PASSES},p={LANES}${SALT_AND_DIGEST}");
    PasswordHash {
        algorithm: HashAlgorithm::Argon2id,
        bytes: text.into_bytes(),
    }
}

/// True if this is the password. Expensive for argon2id (about 20 ms); never panics on stored bytes. An empty
/// password never matches.
pub fn verify(hash: &PasswordHash, password: &[u8]) -> bool {
    if password.is_empty() {
        return false;
    }
    match hash.algorithm {
        HashAlgorithm::Md5 => verify_digest::<Md5>(&hash.bytes, password),
        HashAlgorithm::Sha256 => verify_digest::<Sha256>(&hash.bytes, password),
        HashAlgorithm::Sha512 => verify_digest::<Sha512>(&hash.bytes, password),
        HashAlgorithm::Argon2id => match phc(&hash.bytes) {
            Ok(parsed) => Argon2::default().verify_password(password, &parsed).is_ok(),
            Err(_) => false,
        },
    }
}

fn verify_digest<D: sha2::Digest>(stored: &[u8], password: &[u8]) -> bool {
    let Some((salt, want)) = stored.split_at_checked(SHORT_SALT) else {
        return false;
    };
    digest::<D>(salt, password).ct_eq(want).into()
}

fn phc(bytes: &[u8]) -> Result<password_hash::PasswordHash<'_>, PasswordHashError> {
    let text = std::str::from_utf8(bytes).map_err(|_| PasswordHashError::Argon2)?;
    if text.len() > MAX_PHC {
        return Err(PasswordHashError::Argon2);
    }
    let parsed = password_hash::PasswordHash::new(text).map_err(|_| PasswordHashError::Argon2)?;
    let params = Params::try_from(&parsed).map_err(|_| PasswordHashError::Argon2)?;
    let modest = params.m_cost() <= MAX_MEMORY_KIB
        && params.t_cost() <= MAX_PASSES
        && params.p_cost() <= MAX_LANES;
    let right = parsed.algorithm == argon2::ARGON2ID_IDENT && parsed.hash.is_some();
    if modest && right {
        Ok(parsed)
    } else {
        Err(PasswordHashError::Argon2)
    }
}

impl PasswordHash {
    /// Parses the form of the HTTP API and definitions files: base64, of a PHC string for argon2id. A bare
    /// PHC string is accepted too.
    pub fn from_text(
        algorithm: HashAlgorithm,
        text: &str,
    ) -> Result<PasswordHash, PasswordHashError> {
        let plain = algorithm == HashAlgorithm::Argon2id && text.starts_with('$');
        let bytes = match plain {
            true => text.as_bytes().to_vec(),
            false => STANDARD
                .decode(text)
                .map_err(|_| PasswordHashError::Base64)?,
        };
        let hash = PasswordHash { algorithm, bytes };
        hash.check()?;
        Ok(hash)
    }

    /// The form that [`PasswordHash::from_text`] parses. Always base64, because RabbitMQ rejects a whole
    /// document with anything else.
    pub fn to_text(&self) -> String {
        STANDARD.encode(&self.bytes)
    }

    /// Checks that the bytes have the algorithm's form and a bounded cost.
    pub fn check(&self) -> Result<(), PasswordHashError> {
        let want = SHORT_SALT
            + match self.algorithm {
                HashAlgorithm::Md5 => Md5::output_size(),
                HashAlgorithm::Sha256 => Sha256::output_size(),
                HashAlgorithm::Sha512 => Sha512::output_size(),
                HashAlgorithm::Argon2id => return phc(&self.bytes).map(|_| ()),
            };
        if self.bytes.len() == want {
            return Ok(());
        }
        Err(PasswordHashError::Length {
            algorithm: self.algorithm.name(),
            got: self.bytes.len(),
            want,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SALT: [u8; SALT_LEN] = *b"0123456789abcdef";

    #[test]
    fn each_algorithm_accepts_only_its_password() {
        for algorithm in [
            HashAlgorithm::Md5,
            HashAlgorithm::Sha256,
            HashAlgorithm::Sha512,
            HashAlgorithm::Argon2id,
        ] {
            let hashed = hash_with(algorithm, b"secret", &SALT).unwrap();
            assert!(verify(&hashed, b"secret"), "{algorithm:?}");
            assert!(!verify(&hashed, b"Secret"), "{algorithm:?}");
            assert!(!verify(&hashed, b""), "{algorithm:?}");
            let back = PasswordHash::from_text(algorithm, &hashed.to_text()).unwrap();
            assert_eq!(back, hashed);
            assert!(!format!("{hashed:?}").contains(&hashed.to_text()));
        }
    }

    /// The worked example of RabbitMQ's guide "Credentials and Passwords".
    #[test]
    fn text_form_is_base64_and_round_trips() {
        let all = [
            HashAlgorithm::Md5,
            HashAlgorithm::Sha256,
            HashAlgorithm::Sha512,
            HashAlgorithm::Argon2id,
        ];
        for algorithm in all {
            let hash = hash_with(algorithm, b"secret", &SALT).unwrap();
            let text = hash.to_text();
            assert_eq!(STANDARD.decode(&text).as_ref(), Ok(&hash.bytes));
            assert_eq!(PasswordHash::from_text(algorithm, &text), Ok(hash));
        }
        let argon = hash(b"secret", &SALT).unwrap();
        let plain = String::from_utf8(argon.bytes.clone()).unwrap();
        let read = PasswordHash::from_text(HashAlgorithm::Argon2id, &plain);
        assert_eq!(read, Ok(argon));
    }

    #[test]
    fn documented_rabbitmq_example_verifies() {
        let salt = [0x90, 0x8D, 0xC6, 0x0A];
        let hashed = hash_with(HashAlgorithm::Sha256, b"test12", &salt).unwrap();
        assert_eq!(
            hashed.to_text(),
            "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"
        );
        assert!(verify(&hashed, b"test12"));
    }

    /// Hashes created by RabbitMQ before 3.6; `test/conformance/corners` also checks them against RabbitMQ.
    #[test]
    fn md5_hashes_of_old_rabbitmq_verify() {
        for (text, password) in [
            ("IECV6PZI/Invh0DL187KFpkO5Jc=", "guest"),
            ("WAbU0ZIcvjTpxM3Q3SbJhEAM2tQ=", "myuser"),
        ] {
            let old = PasswordHash::from_text(HashAlgorithm::Md5, text).unwrap();
            assert!(verify(&old, password.as_bytes()) && !verify(&old, b"other"));
        }
        let longer = STANDARD.encode([1; 36]);
        let refused = PasswordHash::from_text(HashAlgorithm::Md5, &longer);
        assert!(matches!(
            refused,
            Err(PasswordHashError::Length { want: 20, .. })
        ));
    }

    #[test]
    fn decoy_costs_what_a_real_hash_costs() {
        let (decoy, real) = (decoy(), hash(b"secret", &SALT).unwrap());
        let cost = |hash: &PasswordHash| Params::try_from(&phc(&hash.bytes).unwrap()).unwrap();
        assert_eq!(cost(&decoy), cost(&real));
        assert_eq!(decoy.check(), Ok(()));
        assert!(!verify(&decoy, b"secret") && !verify(&decoy, b"decoy"));
    }

    #[test]
    fn empty_password_never_verifies() {
        let hashed = hash_with(HashAlgorithm::Sha256, b"", &SALT).unwrap();
        assert!(!verify(&hashed, b""));
    }

    #[test]
    fn invalid_hashes_are_refused_and_never_match() {
        let short = PasswordHash {
            algorithm: HashAlgorithm::Sha256,
            bytes: vec![1, 2, 3],
        };
        assert!(short.check().is_err());
        assert!(!verify(&short, b"x"));
        assert_eq!(
            PasswordHash::from_text(HashAlgorithm::Sha512, "***"),
            Err(PasswordHashError::Base64)
        );
        let too_expensive = "$argon2id$v=19$m=4000000,t=5,p=1$MDEyMzQ1Njc4OWFiY2RlZg$DDGmB+z2FVyWR4ZP6yRWMqOrDYhWlVs9Q7jVq9Vmq9w";
        assert_eq!(
            PasswordHash::from_text(HashAlgorithm::Argon2id, too_expensive),
            Err(PasswordHashError::Argon2)
        );
        assert!(PasswordHash::from_text(HashAlgorithm::Argon2id, "$argon2i$v=19$").is_err());
    }
}
