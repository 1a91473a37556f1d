//! The protocol header at the start of a connection (section 4.2.2).

/// The header of AMQP 0.9.1, which is also the answer to any other header.
pub const PROTOCOL_HEADER: [u8; 8] = *b"AMQP\x00\x00\x09\x01";

/// The protocol of a connection, from its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolHeader {
    /// Fewer than eight bytes of a possible AMQP header.
    Partial,
    /// AMQP 0.9.1, or the header of 0.9, whose clients understand 0.9.1.
    Amqp091,
    /// AMQP 1.0, with or without its SASL or TLS layer.
    Amqp10 {
        /// The protocol id: 0 is AMQP, 2 is TLS, 3 is SASL.
        id: u8,
    },
    /// Any other protocol.
    Other,
}

impl ProtocolHeader {
    /// Recognizes the protocol from the first bytes of a connection.
    pub fn parse(input: &[u8]) -> ProtocolHeader {
        let len = input.len().min(4);
        if input.get(..len) != PROTOCOL_HEADER.get(..len) {
            return ProtocolHeader::Other;
        }
        match input.get(4..8) {
            None => ProtocolHeader::Partial,
            Some([0, 0, 9, 1] | [1, 1, 0, 9]) => ProtocolHeader::Amqp091,
            Some([id, 1, 0, 0]) => ProtocolHeader::Amqp10 { id: *id },
            Some(_) => ProtocolHeader::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocol_headers_are_recognized() {
        assert_eq!(ProtocolHeader::parse(b""), ProtocolHeader::Partial);
        assert_eq!(
            ProtocolHeader::parse(b"AMQP\x00\x00\x09"),
            ProtocolHeader::Partial
        );
        assert_eq!(
            ProtocolHeader::parse(&PROTOCOL_HEADER),
            ProtocolHeader::Amqp091
        );
        assert_eq!(
            ProtocolHeader::parse(b"AMQP\x01\x01\x00\x09"),
            ProtocolHeader::Amqp091
        );
        assert_eq!(
            ProtocolHeader::parse(b"AMQP\x03\x01\x00\x00"),
            ProtocolHeader::Amqp10 { id: 3 }
        );
        assert_eq!(
            ProtocolHeader::parse(b"AMQP\x00\x00\x08\x00"),
            ProtocolHeader::Other
        );
        assert_eq!(ProtocolHeader::parse(b"G"), ProtocolHeader::Other);
        assert_eq!(
            ProtocolHeader::parse(b"\x16\x03\x01"),
            ProtocolHeader::Other
        );
    }
}
