//! Names that the server makes up.

use session::Broker;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The prefix and 128 random bits in the alphabet of base64url.
pub(crate) fn generated(prefix: &str, broker: &mut dyn Broker) -> String {
    let mut bits = u128::from(broker.random()) << 64 | u128::from(broker.random());
    let mut name = String::with_capacity(prefix.len() + 22);
    name.push_str(prefix);
    for _ in 0..22 {
        let index = (bits & 63) as usize;
        name.push(ALPHABET.get(index).copied().map_or('A', char::from));
        bits >>= 6;
    }
    name
}
