//! What a client says first (section 4.2.2).

/// Our protocol header, also the answer to every other one.
pub const PROTOCOL_HEADER: [u8; 8] = *b"AMQP\x00\x00\x09\x01";

/// The meaning of the first bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolHeader {
    /// Not yet eight bytes, and so far it could become one.
    Partial,
    /// 0.9.1, or 0.9's header, whose speakers understand 0.9.1.
    Amqp091,
    /// AMQP 1.0, bare or behind its SASL or TLS layer (the protocol id).
    Amqp10 {
        /// 0 is AMQP itself, 2 is TLS, 3 is SASL.
        id: u8,
    },
    /// Anything else.
    Other,
}

impl ProtocolHeader {
    /// Recognises the protocol by the first bytes of a connection.
    pub fn parse(input: &[u8]) -> ProtocolHeader {
        let known = input.len().min(4);
        if input.get(..known) != PROTOCOL_HEADER.get(..known) {
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
    fn headers_are_told_apart() {
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
