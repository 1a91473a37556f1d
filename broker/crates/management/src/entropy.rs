//! Random bytes from the operating system, for salts and keys.

use std::io::Read;

/// Fills a buffer with random bytes.
pub fn fill(buffer: &mut [u8]) -> std::io::Result<()> {
    std::fs::File::open("/dev/urandom")?.read_exact(buffer)
}
