//! The 24-bit cyclic redundancy check of OpenPGP (RFC 4880, section 6.1). It fits the reserved bits of a chunk
//! header and detects every error burst of up to 24 bits.

const POLYNOMIAL: u32 = 0x86_4C_FB;
const INITIAL: u32 = 0xB7_04_CE;

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u32) << 16;
        let mut bit = 0;
        while bit < 8 {
            crc <<= 1;
            if crc & 0x100_0000 != 0 {
                crc ^= 0x100_0000 | POLYNOMIAL;
            }
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// The checksum of `parts`, one after the other.
pub(crate) fn checksum(parts: &[&[u8]]) -> u32 {
    let mut crc = INITIAL;
    for part in parts {
        for byte in *part {
            let at = ((crc >> 16) as u8) ^ byte;
            crc = ((crc << 8) ^ TABLE[usize::from(at)]) & 0xFF_FF_FF;
        }
    }
    crc
}

#[cfg(test)]
mod tests {
    use super::checksum;

    #[test]
    fn checksum_has_the_catalogued_check_value() {
        assert_eq!(checksum(&[b"123456789"]), 0x21_CF_02);
        assert_eq!(checksum(&[b"1234", b"", b"56789"]), 0x21_CF_02);
    }
}
