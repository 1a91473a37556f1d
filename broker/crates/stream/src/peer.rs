//! Messages between replicas on the network.

use bytes::{BufMut, Bytes, BytesMut};
use stream_log::{Chunk, ChunkFault, ChunkHeader};
use stream_replication::MemberMessage;
use wire::{Decoded, Reader, Wire};

/// A message to another replica. Chunks follow [`MemberMessage::Chunks`] as they are in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerMessage {
    /// The message.
    pub message: MemberMessage,
    /// Consecutive chunks. A part can have several.
    pub chunks: Vec<Bytes>,
}

impl PeerMessage {
    /// Bytes of the chunks.
    pub fn chunk_bytes(&self) -> usize {
        self.chunks.iter().map(Bytes::len).sum()
    }

    /// Splits and verifies the chunks.
    ///
    /// # Errors
    ///
    /// The first fault of a chunk.
    pub(crate) fn verified_chunks(&self) -> Result<Vec<Chunk>, ChunkFault> {
        let mut chunks = Vec::new();
        for part in &self.chunks {
            let mut rest = part.clone();
            while !rest.is_empty() {
                let (header, _) = ChunkHeader::decode(&rest)?;
                let len = usize::try_from(header.chunk_len()).unwrap_or(usize::MAX);
                if len > rest.len() {
                    return Err(ChunkFault::Truncated);
                }
                chunks.push(Chunk::decode(rest.split_to(len))?);
            }
        }
        Ok(chunks)
    }
}

/// The chunks have no length: the message is the last field of a frame.
impl Wire for PeerMessage {
    fn put(&self, out: &mut BytesMut) {
        self.message.put(out);
        for chunk in &self.chunks {
            out.put_slice(chunk);
        }
    }

    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        let message = MemberMessage::get(from)?;
        let chunks = from.take_rest();
        let chunks = match chunks.is_empty() {
            true => Vec::new(),
            false => vec![chunks],
        };
        Ok(PeerMessage { message, chunks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stream_log::ChunkBuilder;
    use stream_replication::Attachment;

    fn chunk(first: u64) -> Bytes {
        let mut builder = ChunkBuilder::new(16);
        builder.push_message(b"message", None).expect("fits");
        let chunk = builder.finish(first, 7, 1_790_000_000_123);
        chunk.expect("a chunk").bytes().clone()
    }

    fn message(chunks: Vec<Bytes>) -> PeerMessage {
        let message = MemberMessage::Chunks {
            epoch: 7,
            attachment: Attachment {
                incarnation: 5,
                number: 2,
            },
            first: 70_000,
            committed: 69_000,
        };
        PeerMessage { message, chunks }
    }

    #[test]
    fn messages_between_replicas_are_decoded() {
        let joined = [chunk(70_000), chunk(70_001)].concat();
        let samples = [
            ("chunks", message(vec![joined.into()])),
            ("without-chunks", message(Vec::new())),
        ];
        golden::verify(env!("CARGO_MANIFEST_DIR"), "0.2/stream-peer", |files| {
            for (name, sample) in &samples {
                let encode = |message: &PeerMessage| wire::encode(message).to_vec();
                let decode = |raw: &[u8]| wire::decode("message", &Bytes::copy_from_slice(raw));
                files.check(name, sample, encode, decode);
            }
        });
    }

    #[test]
    fn several_chunks_in_one_part_are_split_and_damage_is_found() {
        let joined = [chunk(70_000), chunk(70_001)].concat();
        let whole = message(vec![joined.clone().into(), chunk(70_002)]);
        let chunks = whole.verified_chunks().expect("valid");
        let offsets: Vec<u64> = chunks.iter().map(|c| c.header().first_offset).collect();
        assert_eq!(offsets, [70_000, 70_001, 70_002]);
        for at in [0, 50, joined.len() - 1] {
            let mut damaged = joined.clone();
            damaged[at] ^= 1;
            assert!(
                message(vec![damaged.into()]).verified_chunks().is_err(),
                "byte {at}"
            );
        }
        let cut = joined[..joined.len() - 1].to_vec();
        assert!(message(vec![cut.into()]).verified_chunks().is_err());
    }
}
