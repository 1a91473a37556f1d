//! Encryption of objects in the format of age (`age-encryption.org/v1`, specified at c2sp.org/age) for X25519 recipients, so that
//! the tools of age can decrypt them and make the keys.
//!
//! A file is a header and a payload. The header wraps a random file key for each recipient and ends with a MAC. The payload is
//! encrypted in parts of 64 KiB, each authenticated with its number and whether it is the last one. Other kinds of recipients in
//! a header are passed over.

use aws_lc_rs::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::agreement::{PrivateKey, UnparsedPublicKey, X25519, agree};
use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use aws_lc_rs::{hmac, rand};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use std::fmt;

const VERSION_LINE: &[u8] = b"age-encryption.org/v1\n";
const LABEL: &[u8] = b"age-encryption.org/v1/X25519";
/// The first bytes of the last line of a header.
const MAC_PREFIX: &[u8] = b"---";
/// Bytes of an X25519 key, of a wrapped file key and of a MAC.
const KEY_BYTES: usize = 32;
const FILE_KEY_BYTES: usize = 16;
const TAG_BYTES: usize = 16;
/// Bytes of the nonce in front of the payload.
const NONCE_BYTES: usize = 16;
/// Bytes of a part of the payload without its tag.
const PART_BYTES: usize = 64 << 10;
/// Base64 digits of a full line in a header.
const LINE_DIGITS: usize = 64;
/// Most bytes of a header that is read.
const MAX_HEADER_BYTES: usize = 64 << 10;
/// Most recipients of a file, so that its header can be read.
pub const MAX_RECIPIENTS: usize = 64;

/// Most bytes of an encrypted object whose content has at most `limit` bytes.
pub(crate) const fn encrypted_limit(limit: u64) -> u64 {
    let parts = limit / PART_BYTES as u64 + 1;
    limit + parts * TAG_BYTES as u64 + (NONCE_BYTES + MAX_HEADER_BYTES) as u64
}

/// Why keys or encrypted bytes are not usable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AgeError {
    /// The text is not a key of age.
    #[error("it is not {0}")]
    Key(&'static str),
    /// The file has no identity.
    #[error("it has no line with an identity of age, which begins with 'AGE-SECRET-KEY-1'")]
    NoIdentity,
    /// None of the identities belongs to a recipient.
    #[error("it is encrypted for other recipients")]
    WrongIdentity,
    /// The bytes are damaged, or no file of age.
    #[error("its encryption is damaged: {0}")]
    Damaged(&'static str),
    /// The cryptographic library failed.
    #[error("the encryption has failed")]
    Failed,
}

impl From<aws_lc_rs::error::Unspecified> for AgeError {
    fn from(_: aws_lc_rs::error::Unspecified) -> AgeError {
        AgeError::Failed
    }
}

/// The public key of a recipient: `age1...`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipient([u8; KEY_BYTES]);

impl Recipient {
    /// Parses a public key.
    ///
    /// # Errors
    ///
    /// [`AgeError::Key`].
    pub fn parse(text: &str) -> Result<Recipient, AgeError> {
        let key = bech32_decode("age", text.trim());
        key.map(Recipient).ok_or(AgeError::Key(
            "a public key of age, which begins with 'age1' (age-keygen makes one)",
        ))
    }
}

/// A private key: `AGE-SECRET-KEY-1...`.
pub struct Identity {
    key: PrivateKey,
    public: [u8; KEY_BYTES],
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity(..)")
    }
}

impl Identity {
    /// Parses a private key.
    ///
    /// # Errors
    ///
    /// [`AgeError::Key`].
    pub fn parse(text: &str) -> Result<Identity, AgeError> {
        let invalid = AgeError::Key("a private key of age");
        let raw = bech32_decode("AGE-SECRET-KEY-", text.trim());
        let raw = raw.ok_or_else(|| invalid.clone())?;
        let key = PrivateKey::from_private_key(&X25519, &raw).map_err(|_| invalid)?;
        let public = public_of(&key)?;
        Ok(Identity { key, public })
    }

    /// Parses the identities of a file of age-keygen: one in each line, with comments that begin with `#`.
    ///
    /// # Errors
    ///
    /// [`AgeError::NoIdentity`], or a line is invalid.
    pub fn parse_file(text: &str) -> Result<Vec<Identity>, AgeError> {
        let lines = text.lines().map(str::trim);
        let keys = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let identities: Vec<Identity> = keys.map(Identity::parse).collect::<Result<_, _>>()?;
        match identities.is_empty() {
            true => Err(AgeError::NoIdentity),
            false => Ok(identities),
        }
    }
}

fn public_of(key: &PrivateKey) -> Result<[u8; KEY_BYTES], AgeError> {
    let public = key.compute_public_key()?;
    public.as_ref().try_into().map_err(|_| AgeError::Failed)
}

fn hkdf(secret: &[u8], salt: &[u8], info: &[u8]) -> Result<[u8; KEY_BYTES], AgeError> {
    let mut out = [0; KEY_BYTES];
    let key = Salt::new(HKDF_SHA256, salt).extract(secret);
    key.expand(&[info], HKDF_SHA256)?.fill(&mut out)?;
    Ok(out)
}

fn cipher(key: &[u8; KEY_BYTES]) -> Result<LessSafeKey, AgeError> {
    Ok(LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, key)?))
}

/// The key that wraps the file key for a recipient.
fn wrapping_key(
    own: &PrivateKey,
    peer: &[u8; KEY_BYTES],
    (share, recipient): (&[u8; KEY_BYTES], &[u8; KEY_BYTES]),
) -> Result<LessSafeKey, AgeError> {
    let salt = [&share[..], &recipient[..]].concat();
    // A point of low order, which would make the shared secret known, is refused.
    let peer = UnparsedPublicKey::new(&X25519, peer);
    let key = agree(own, peer, AgeError::Failed, |secret| {
        hkdf(secret, &salt, LABEL)
    })?;
    cipher(&key)
}

fn header_mac(file_key: &[u8], header: &[u8]) -> Result<hmac::Tag, AgeError> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &hkdf(file_key, &[], b"header")?);
    Ok(hmac::sign(&key, header))
}

/// The nonce of a part of the payload.
fn part_nonce(number: u64, is_last: bool) -> Nonce {
    let mut nonce = [0; 12];
    nonce[3..11].copy_from_slice(&number.to_be_bytes());
    nonce[11] = u8::from(is_last);
    Nonce::assume_unique_for_key(nonce)
}

/// Encrypts an object for recipients, any of which can decrypt it. Memory: the result.
///
/// # Errors
///
/// [`AgeError::Failed`], also if there are no recipients or more than [`MAX_RECIPIENTS`].
pub fn encrypt(recipients: &[Recipient], content: &[u8]) -> Result<Vec<u8>, AgeError> {
    if recipients.is_empty() || recipients.len() > MAX_RECIPIENTS {
        return Err(AgeError::Failed);
    }
    let mut file_key = [0; FILE_KEY_BYTES];
    rand::fill(&mut file_key)?;
    let limit = encrypted_limit(content.len() as u64);
    let mut out = Vec::with_capacity(usize::try_from(limit).unwrap_or(0));
    out.extend_from_slice(VERSION_LINE);
    for Recipient(recipient) in recipients {
        let own = PrivateKey::generate(&X25519)?;
        let share = public_of(&own)?;
        let wrapping = wrapping_key(&own, recipient, (&share, recipient))?;
        let mut wrapped = file_key.to_vec();
        let nonce = Nonce::assume_unique_for_key([0; 12]);
        wrapping.seal_in_place_append_tag(nonce, Aad::empty(), &mut wrapped)?;
        let (share, wrapped) = (
            STANDARD_NO_PAD.encode(share),
            STANDARD_NO_PAD.encode(wrapped),
        );
        out.extend_from_slice(format!("-> X25519 {share}\n{wrapped}\n").as_bytes());
    }
    out.extend_from_slice(MAC_PREFIX);
    let mac = STANDARD_NO_PAD.encode(header_mac(&file_key, &out)?);
    out.extend_from_slice(format!(" {mac}\n").as_bytes());
    let mut nonce = [0; NONCE_BYTES];
    rand::fill(&mut nonce)?;
    out.extend_from_slice(&nonce);
    let payload = cipher(&hkdf(&file_key, &nonce, b"payload")?)?;
    let mut left = content;
    for number in 0.. {
        let (part, rest) = left.split_at(left.len().min(PART_BYTES));
        let start = out.len();
        out.extend_from_slice(part);
        let nonce = part_nonce(number, rest.is_empty());
        let sealed = out.get_mut(start..).unwrap_or_default();
        let tag = payload.seal_in_place_separate_tag(nonce, Aad::empty(), sealed)?;
        out.extend_from_slice(tag.as_ref());
        left = rest;
        if left.is_empty() {
            break;
        }
    }
    debug_assert!(out.len() as u64 <= limit);
    Ok(out)
}

/// Lines of a header.
struct Lines<'a> {
    raw: &'a [u8],
    at: usize,
}

impl<'a> Lines<'a> {
    fn next(&mut self) -> Result<&'a [u8], AgeError> {
        let rest = self.raw.get(self.at..).unwrap_or_default();
        let rest = rest.get(..MAX_HEADER_BYTES.saturating_sub(self.at).min(rest.len()));
        let rest = rest.unwrap_or_default();
        let len = rest.iter().position(|byte| *byte == b'\n');
        let len = len.ok_or(AgeError::Damaged("the header does not end"))?;
        self.at += len + 1;
        Ok(rest.get(..len).unwrap_or_default())
    }
}

fn decode_key(text: &[u8]) -> Option<[u8; KEY_BYTES]> {
    STANDARD_NO_PAD.decode(text).ok()?.try_into().ok()
}

/// Tries to unwrap the file key with the identities. `None`: none of them belongs to the recipient.
fn unwrap(
    identities: &[Identity],
    share: &[u8; KEY_BYTES],
    wrapped: &[u8; KEY_BYTES],
) -> Result<Option<[u8; FILE_KEY_BYTES]>, AgeError> {
    for identity in identities {
        let wrapping = wrapping_key(&identity.key, share, (share, &identity.public));
        let wrapping = wrapping.map_err(|_| AgeError::Damaged("a share of a key is invalid"))?;
        let mut wrapped = *wrapped;
        let nonce = Nonce::assume_unique_for_key([0; 12]);
        if let Ok(file_key) = wrapping.open_in_place(nonce, Aad::empty(), &mut wrapped) {
            return Ok(file_key[..].try_into().ok());
        }
    }
    Ok(None)
}

/// Reads a header. Returns the file key and the length of the header in bytes.
fn open_header(
    identities: &[Identity],
    raw: &[u8],
) -> Result<([u8; FILE_KEY_BYTES], usize), AgeError> {
    let damaged = AgeError::Damaged;
    let mut lines = Lines { raw, at: 0 };
    if lines.next()? != VERSION_LINE.trim_ascii_end() {
        return Err(damaged("it does not begin with 'age-encryption.org/v1'"));
    }
    let (mut file_key, mut recipients, mut has_passphrase) = (None, 0, false);
    let (mac_at, mac) = loop {
        let at = lines.at;
        let line = lines.next()?;
        if let Some(mac) = line.strip_prefix(MAC_PREFIX) {
            break (at, mac.strip_prefix(b" ").and_then(decode_key));
        }
        let arguments = line.strip_prefix(b"-> ");
        let arguments = arguments.ok_or(damaged("a line of the header is invalid"))?;
        let arguments: Vec<&[u8]> = arguments.split(|byte| *byte == b' ').collect();
        let is_text =
            |argument: &&[u8]| !argument.is_empty() && argument.iter().all(u8::is_ascii_graphic);
        if !arguments.iter().all(is_text) {
            return Err(damaged("a recipient in the header is invalid"));
        }
        let mut body = Vec::new();
        loop {
            let line = lines.next()?;
            let decoded = STANDARD_NO_PAD.decode(line).ok();
            let decoded = decoded.filter(|_| line.len() <= LINE_DIGITS);
            body.extend(decoded.ok_or(damaged("a recipient in the header is invalid"))?);
            if line.len() < LINE_DIGITS {
                break;
            }
        }
        match arguments[..] {
            [b"X25519", share] => {
                let keys = decode_key(share).zip(body.try_into().ok());
                let (share, wrapped) = keys.ok_or(damaged("a wrapped key is invalid"))?;
                if file_key.is_none() {
                    file_key = unwrap(identities, &share, &wrapped)?;
                }
            }
            [b"X25519", ..] => return Err(damaged("a wrapped key is invalid")),
            [b"scrypt", ..] => has_passphrase = true,
            _ => {}
        }
        recipients += 1;
    };
    if has_passphrase && recipients > 1 {
        return Err(damaged("a passphrase is not the only recipient"));
    }
    let mac = mac.ok_or(damaged("the MAC of the header is invalid"))?;
    let file_key = file_key.ok_or(AgeError::WrongIdentity)?;
    let covered = raw.get(..mac_at + MAC_PREFIX.len()).unwrap_or_default();
    let key = hmac::Key::new(hmac::HMAC_SHA256, &hkdf(&file_key, &[], b"header")?);
    let is_right = hmac::verify(&key, covered, &mac);
    is_right.map_err(|_| damaged("the MAC of the header is wrong"))?;
    Ok((file_key, lines.at))
}

/// Decrypts an object. Memory: the content.
///
/// # Errors
///
/// [`AgeError::WrongIdentity`] or [`AgeError::Damaged`].
pub fn decrypt(identities: &[Identity], raw: &[u8]) -> Result<Vec<u8>, AgeError> {
    let (file_key, header) = open_header(identities, raw)?;
    let rest = raw.get(header..).unwrap_or_default();
    let truncated = AgeError::Damaged("the content is cut off");
    let (nonce, mut rest) = rest
        .split_at_checked(NONCE_BYTES)
        .ok_or(truncated.clone())?;
    let payload = cipher(&hkdf(&file_key, nonce, b"payload")?)?;
    let mut out = Vec::with_capacity(rest.len());
    for number in 0.. {
        let (part, left) = rest.split_at(rest.len().min(PART_BYTES + TAG_BYTES));
        let start = out.len();
        out.extend_from_slice(part);
        let nonce = part_nonce(number, left.is_empty());
        let sealed = out.get_mut(start..).unwrap_or_default();
        let opened = payload.open_in_place(nonce, Aad::empty(), sealed);
        let opened =
            opened.map_err(|_| AgeError::Damaged("a part has a wrong tag, or is missing"))?;
        let len = opened.len();
        out.truncate(start + len);
        rest = left;
        if rest.is_empty() {
            // Only an empty content ends with an empty part.
            return match len == 0 && number > 0 {
                true => Err(AgeError::Damaged("the last part is empty")),
                false => Ok(out),
            };
        }
    }
    Err(truncated)
}

const BECH32_DIGITS: &[u8; 32] = b"qpzry9x8gf2tvdw0s3jn54khce6mua7l";
/// Digits of a checksum.
const BECH32_CHECKSUM: usize = 6;

fn bech32_checksum(values: impl Iterator<Item = u8>) -> u32 {
    const GENERATOR: [u32; 5] = [
        0x3b6a_57b2,
        0x2650_8e6d,
        0x1ea1_19fa,
        0x3d42_33dd,
        0x2a14_62b3,
    ];
    values.fold(1, |checksum, value| {
        let top = checksum >> 25;
        let next = (checksum & 0x1ff_ffff) << 5 ^ u32::from(value);
        let terms = GENERATOR.iter().enumerate();
        terms.fold(next, |sum, (bit, term)| match top >> bit & 1 {
            1 => sum ^ term,
            _ => sum,
        })
    })
}

/// Decodes a key in Bech32 (BIP 173), whose case is that of the prefix.
fn bech32_decode(prefix: &str, text: &str) -> Option<[u8; KEY_BYTES]> {
    let is_upper = prefix.bytes().any(|byte| byte.is_ascii_uppercase());
    let digits = text.strip_prefix(prefix)?.strip_prefix('1')?;
    let is_other_case = |c: char| match is_upper {
        true => c.is_ascii_lowercase(),
        false => c.is_ascii_uppercase(),
    };
    if digits.contains(is_other_case) {
        return None;
    }
    let value = |byte: u8| {
        let byte = byte.to_ascii_lowercase();
        let at = BECH32_DIGITS.iter().position(|digit| *digit == byte)?;
        u8::try_from(at).ok()
    };
    let values: Vec<u8> = digits.bytes().map(value).collect::<Option<_>>()?;
    let lower = prefix.to_ascii_lowercase();
    let high = lower.bytes().map(|byte| byte >> 5);
    let low = lower.bytes().map(|byte| byte & 31);
    let covered = high.chain([0]).chain(low).chain(values.iter().copied());
    if bech32_checksum(covered) != 1 {
        return None;
    }
    let data = values.get(..values.len().checked_sub(BECH32_CHECKSUM)?)?;
    let (mut key, mut bits, mut count) = (Vec::with_capacity(KEY_BYTES), 0u32, 0);
    for value in data {
        bits = bits << 5 | u32::from(*value);
        count += 5;
        if count >= 8 {
            count -= 8;
            key.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    // The padding is shorter than a digit, and zero.
    match count < 5 && bits == 0 {
        true => key.try_into().ok(),
        false => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use sha2::{Digest as _, Sha256};

    const IDENTITY: &str =
        "AGE-SECRET-KEY-1A6JGMUXC73E7ZG7S8ND00JN5MGFADW7DPA36NK3MAS5P2UAJQ63SNSLFJR";
    const RECIPIENT: &str = "age18uzanmq5dspj63svw49587497ml8c9aa05asfmzysn2r3sy5ccwsvk2pw6";
    const OTHER: &str =
        "AGE-SECRET-KEY-1EGTZVFFV20835NWYV6270LXYVK2VKNX2MMDKWYKLMGR48UAWX40Q2P2LM0";
    /// Written by the Go implementation of age 1.2.1 for [`RECIPIENT`].
    const WRITTEN_BY_AGE: &str = "YWdlLWVuY3J5cHRpb24ub3JnL3YxCi0+IFgyNTUxOSBPWUFqQk9DRDk4Y29QRi9kY3dnaHQ2OURydHVSR3c4SUowZDRWTkZjNWc0CmYwYUdoRkd2bmRhQm05alpQUUdaNVBlUU50S05pcUJ4NndtTUo4MVZ3eUUKLS0tIFZReXJJYkNIUk4vdEdlczM1RDZaRVpjLzhqWTNpVzBhaWJ4d01lR3NxK1EKCEsJjfDP27tox+QAGB3iICb6HNFBwdoVZ7xzngDmuqCv68SvC+E+LRm/vw8/iger1hVAx2DdvEhz";

    fn identities(text: &str) -> Vec<Identity> {
        Identity::parse_file(text).unwrap()
    }

    fn recipient() -> Recipient {
        Recipient::parse(RECIPIENT).unwrap()
    }

    #[test]
    fn keys_of_age_are_parsed_and_others_are_refused() {
        let comment = format!("# created: 2026-11-30\n# public key: {RECIPIENT}\n{IDENTITY}\n");
        let parsed = identities(&comment);
        assert_eq!(Recipient(parsed[0].public), recipient());
        let upper = RECIPIENT.to_ascii_uppercase();
        let swapped = RECIPIENT.replace("18u", "1u8");
        for wrong in [
            "",
            "age1",
            IDENTITY,
            &upper,
            &swapped,
            &RECIPIENT[..40],
            "age1é",
        ] {
            assert!(Recipient::parse(wrong).is_err(), "{wrong}");
        }
        let lower = IDENTITY.to_ascii_lowercase();
        for wrong in ["", RECIPIENT, &lower, "AGE-SECRET-KEY-1"] {
            assert!(Identity::parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(
            Identity::parse_file("# none\n").err(),
            Some(AgeError::NoIdentity)
        );
    }

    #[test]
    fn file_of_another_implementation_is_decrypted() {
        let raw = base64::engine::general_purpose::STANDARD
            .decode(WRITTEN_BY_AGE)
            .unwrap();
        let content = decrypt(&identities(IDENTITY), &raw).unwrap();
        assert_eq!(content, b"Backups of age are read.\n");
        let wrong = decrypt(&identities(OTHER), &raw);
        assert_eq!(wrong, Err(AgeError::WrongIdentity));
    }

    #[test]
    fn contents_of_all_lengths_are_decrypted_by_each_recipient() {
        let other = identities(OTHER);
        let both = [recipient(), Recipient(other[0].public)];
        for len in [
            0,
            1,
            PART_BYTES - 1,
            PART_BYTES,
            PART_BYTES + 1,
            3 * PART_BYTES,
        ] {
            let content: Vec<u8> = (0..len).map(|n| (n % 251) as u8).collect();
            let sealed = encrypt(&both, &content).unwrap();
            assert!(sealed.len() as u64 <= encrypted_limit(len as u64));
            for text in [IDENTITY, OTHER] {
                assert!(
                    decrypt(&identities(text), &sealed).unwrap() == content,
                    "{len}"
                );
            }
            let own = encrypt(&both[..1], &content).unwrap();
            assert_eq!(decrypt(&other, &own), Err(AgeError::WrongIdentity));
            assert!(decrypt(&identities(IDENTITY), &own[..own.len() - 1]).is_err());
        }
        assert!(encrypt(&[], b"x").is_err());
        let many = vec![recipient(); MAX_RECIPIENTS + 1];
        assert!(encrypt(&many, b"x").is_err());
        let most = encrypt(&many[1..], b"x").unwrap();
        assert_eq!(decrypt(&identities(IDENTITY), &most).unwrap(), b"x");
    }

    #[test]
    fn parts_are_bound_to_their_place() {
        let content = vec![7; 3 * PART_BYTES];
        let sealed = encrypt(&[recipient()], &content).unwrap();
        let own = identities(IDENTITY);
        let whole = PART_BYTES + TAG_BYTES;
        let start = sealed.len() - 3 * whole;
        let mut swapped = sealed.clone();
        swapped[start..start + 2 * whole].rotate_left(whole);
        for changed in [&swapped, &sealed[..start + 2 * whole], &sealed[..start]] {
            let result = decrypt(&own, changed);
            assert!(matches!(result, Err(AgeError::Damaged(_))), "{result:?}");
        }
    }

    /// The vectors of c2sp.org/CCTV/age that are for X25519 and without armor.
    #[test]
    #[ignore = "needs the directory of the vectors in AGE_TEST_VECTORS"]
    fn published_vectors_are_decrypted_or_refused() {
        let directory = std::env::var("AGE_TEST_VECTORS").unwrap();
        let mut tried = 0;
        for entry in std::fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let file = std::fs::read(entry.path()).unwrap();
            let at = file.windows(2).position(|two| two == b"\n\n").unwrap();
            let facts = std::str::from_utf8(&file[..at]).unwrap();
            let fact = |key: &str| {
                let mut lines = facts.lines();
                lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(": "))
            };
            let is_other = fact("armored").is_some() || fact("compressed").is_some();
            let is_x25519 = |text: &&str| text.starts_with("AGE-SECRET-KEY-1");
            let Some(identity) = fact("identity").filter(is_x25519).filter(|_| !is_other) else {
                continue;
            };
            tried += 1;
            let result = decrypt(&identities(identity), &file[at + 2..]);
            let expected = fact("expect").unwrap();
            match &result {
                Ok(content) => {
                    let sum: String = Sha256::digest(content)
                        .iter()
                        .map(|byte| format!("{byte:02x}"))
                        .collect();
                    assert_eq!(expected, "success", "{name}");
                    assert_eq!(Some(sum.as_str()), fact("payload"), "{name}");
                }
                Err(AgeError::WrongIdentity) => assert_eq!(expected, "no match", "{name}"),
                Err(_) => assert!(expected.ends_with("failure"), "{name}: {result:?}"),
            }
        }
        assert!(tried >= 49, "{tried}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_without_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
            at in 0usize..300,
            bit in 0u8..8,
        ) {
            let own = identities(IDENTITY);
            prop_assert!(decrypt(&own, &bytes).is_err());
            let headed = [VERSION_LINE, b"-> X25519 ", &bytes].concat();
            prop_assert!(decrypt(&own, &headed).is_err());
            let mut sealed = encrypt(&[recipient()], b"content").unwrap();
            let at = at % sealed.len();
            sealed[at] ^= 1 << bit;
            prop_assert!(decrypt(&own, &sealed).is_err());
            let text = String::from_utf8_lossy(&bytes);
            let key = format!("age1{text}");
            prop_assert!(Recipient::parse(&key).is_err());
        }
    }
}
