//! Frames of a link between two nodes: `length u32 | kind u8 | body`, little-endian. The length
//! counts kind and body.

use crate::identity::{ClusterRecord, Founder, MAX_FOUNDERS};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use env::{Incarnation, NodeId};
use metadata::Name;
use metadata::features::VersionFacts;
use metadata::limits::{FEATURES, NAME_BYTES};
use shard::Route;

/// Version of the link protocol; nodes with different versions refuse each other.
pub const FORMAT: u16 = 2;

/// Starts every HELLO, so that a client on the wrong port is detected immediately.
const MAGIC: [u8; 4] = *b"PHNL";

/// Frame size in addition to one command of maximum size: the batch before it, and fields.
const FRAME_OVERHEAD: usize = 64 << 20;

/// Maximum length of a frame on an established link, in bytes. Every node accepts frames of this
/// size, whatever its message size limit is; memory is allocated as bytes arrive.
pub const MAX_FRAME: usize = consensus::MAX_COMMAND_BYTES + FRAME_OVERHEAD;

/// The largest message with the largest properties that a client can send, and a batch before it.
const _: () = assert!(
    message::MAX_BODY_BYTES as usize + (16 << 20) + 2 * queue::quorum::MAX_BATCH_BYTES
        <= consensus::MAX_COMMAND_BYTES
);
// The length of a frame is a `u32`.
const _: () = assert!(MAX_FRAME < u32::MAX as usize);

/// Maximum length of a frame before the peer has sent HELLO.
pub const MAX_HANDSHAKE_FRAME: usize = 64 << 10;

/// Maximum length of a text in a frame.
const MAX_TEXT: usize = 1024;

const LENGTH: usize = 4;

/// Length of [`data_header`].
pub const DATA_HEADER: usize = LENGTH + 1 + 1 + 8;

/// A frame on a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// First frame of both sides, sent again when the sender becomes a member.
    Hello(Hello),
    /// From a member to a node without a cluster: admits it to this one.
    Welcome(ClusterRecord),
    /// The link is alive.
    Heartbeat,
    /// The sender stops on purpose.
    Bye,
    /// The reason why the sender closes the link.
    Refused(String),
    /// A frame of a shard.
    Data {
        /// Sender and receiver.
        route: Route,
        /// The frame, opaque to the link.
        body: Bytes,
    },
}

/// The first frame of both sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Name of the cluster.
    pub cluster_name: String,
    /// 0: none yet.
    pub cluster: u64,
    /// The id of the sender.
    pub node: NodeId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// Its name.
    pub name: String,
    /// host:port under which the node is reached.
    pub address: String,
    /// Fingerprint of `cluster.peers` and the initial size.
    pub peers_hash: u64,
    /// Number of shards of the sender's incarnation.
    pub shards: u16,
    /// None: an older version, which does not announce it.
    pub version: Option<PeerVersion>,
}

/// A node's version, and its cluster's feature flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerVersion {
    /// The version, and its feature flags.
    pub facts: VersionFacts,
    /// Enabled flags of its cluster, as far as known.
    pub enabled: Vec<Name>,
}

/// Why bytes of a peer are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The frame is too long.
    #[error("a frame of {len} bytes, above the limit of {limit}")]
    TooLarge {
        /// Length of the frame in bytes.
        len: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The first bytes are not those of a link.
    #[error("not a node of this kind of cluster")]
    NoMagic,
    /// The peer has another format of links.
    #[error("link format {found}, ours is {FORMAT}")]
    Format {
        /// The format of the peer.
        found: u16,
    },
    /// The content does not fit its kind.
    #[error("a malformed frame of kind {kind}")]
    Malformed {
        /// The number of the kind.
        kind: u8,
    },
}

const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const HEARTBEAT: u8 = 3;
const BYE: u8 = 4;
const REFUSED: u8 = 5;
const DATA: u8 = 6;

/// Encodes any frame except data, which is sent as [`data_header`] and body.
pub fn encode(frame: &Frame) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u32_le(0);
    match frame {
        Frame::Hello(hello) => {
            out.put_u8(HELLO);
            out.put_slice(&MAGIC);
            out.put_u16_le(FORMAT);
            out.put_u64_le(hello.cluster);
            out.put_u64_le(hello.node.0);
            out.put_u64_le(hello.incarnation.0);
            out.put_u64_le(hello.peers_hash);
            out.put_u16_le(hello.shards);
            put_text(&mut out, &hello.cluster_name);
            put_text(&mut out, &hello.name);
            put_text(&mut out, &hello.address);
            // Older versions ignore the rest.
            if let Some(version) = &hello.version {
                put_text(&mut out, &version.facts.version);
                put_names(&mut out, &version.facts.features);
                put_names(&mut out, &version.enabled);
            }
        }
        Frame::Welcome(cluster) => {
            out.put_u8(WELCOME);
            out.put_u64_le(cluster.id);
            let founders = cluster
                .founders
                .get(..MAX_FOUNDERS)
                .unwrap_or(&cluster.founders);
            out.put_u16_le(founders.len() as u16);
            for founder in founders {
                out.put_u64_le(founder.id.0);
                put_text(&mut out, &founder.name);
                put_text(&mut out, &founder.address);
            }
            // Older versions read only the founders.
            if !cluster.features.is_empty() {
                put_names(&mut out, &cluster.features);
            }
        }
        Frame::Heartbeat => out.put_u8(HEARTBEAT),
        Frame::Bye => out.put_u8(BYE),
        Frame::Refused(why) => {
            out.put_u8(REFUSED);
            put_text(&mut out, why);
        }
        Frame::Data { route, body } => {
            out.put_u8(DATA);
            put_route(&mut out, *route);
            out.put_slice(body);
        }
    }
    let len = (out.len() - LENGTH) as u32;
    out[..LENGTH].copy_from_slice(&len.to_le_bytes());
    out.freeze()
}

/// The header of a data frame. None: too long for a frame.
pub fn data_header(route: Route, body: usize) -> Option<[u8; DATA_HEADER]> {
    let len = DATA_HEADER - LENGTH + body;
    if len > MAX_FRAME {
        return None;
    }
    let (tag, key) = route_parts(route);
    let mut header = [0; DATA_HEADER];
    header[..4].copy_from_slice(&(len as u32).to_le_bytes());
    header[4] = DATA;
    header[5] = tag;
    header[6..].copy_from_slice(&key.to_le_bytes());
    Some(header)
}

/// Takes a complete frame from the front of `input`; None if it is incomplete.
pub fn decode(input: &mut BytesMut, limit: usize) -> Result<Option<Frame>, WireError> {
    let Some(length) = input.first_chunk::<LENGTH>() else {
        return Ok(None);
    };
    let len = u32::from_le_bytes(*length) as usize;
    if len > limit {
        // Checked before the rest: a foreign protocol usually looks like a huge length.
        return Err(WireError::TooLarge { len, limit });
    }
    if len == 0 {
        return Err(WireError::Malformed { kind: 0 });
    }
    if input.len() < LENGTH + len {
        return Ok(None);
    }
    input.advance(LENGTH);
    let mut body = input.split_to(len).freeze();
    let kind = body.get_u8();
    decode_body(kind, body).map(Some)
}

fn decode_body(kind: u8, mut body: Bytes) -> Result<Frame, WireError> {
    let malformed = WireError::Malformed { kind };
    let frame = match kind {
        HELLO => return decode_hello(body),
        WELCOME => decode_welcome(&mut body).map(Frame::Welcome),
        HEARTBEAT => Some(Frame::Heartbeat),
        BYE => Some(Frame::Bye),
        REFUSED => get_text(&mut body).map(Frame::Refused),
        DATA => {
            let route = get_route(&mut body).ok_or(malformed)?;
            return Ok(Frame::Data { route, body });
        }
        _ => None,
    };
    frame.filter(|_| body.is_empty()).ok_or(malformed)
}

fn decode_hello(mut body: Bytes) -> Result<Frame, WireError> {
    let mut magic = [0; 4];
    if body.try_copy_to_slice(&mut magic).is_err() || magic != MAGIC {
        return Err(WireError::NoMagic);
    }
    let malformed = WireError::Malformed { kind: HELLO };
    let found = body.try_get_u16_le().map_err(|_| malformed.clone())?;
    // Other versions may have other fields: stop here.
    if found != FORMAT {
        return Err(WireError::Format { found });
    }
    let hello = hello_fields(&mut body).ok_or(malformed)?;
    Ok(Frame::Hello(hello))
}

fn hello_fields(body: &mut Bytes) -> Option<Hello> {
    Some(Hello {
        cluster: body.try_get_u64_le().ok()?,
        node: NodeId(body.try_get_u64_le().ok().filter(|id| *id != 0)?),
        incarnation: Incarnation(body.try_get_u64_le().ok()?),
        peers_hash: body.try_get_u64_le().ok()?,
        shards: body.try_get_u16_le().ok()?,
        cluster_name: get_text(body)?,
        name: get_text(body)?,
        address: get_text(body)?,
        version: match body.has_remaining() {
            true => Some(PeerVersion {
                facts: VersionFacts {
                    version: get_text(body)?.into(),
                    features: get_names(body)?,
                },
                enabled: get_names(body)?,
            }),
            false => None,
        },
    })
}

fn decode_welcome(body: &mut Bytes) -> Option<ClusterRecord> {
    let id = body.try_get_u64_le().ok().filter(|id| *id != 0)?;
    let count = usize::from(body.try_get_u16_le().ok()?);
    if count == 0 || count > MAX_FOUNDERS {
        return None;
    }
    let mut founders = Vec::with_capacity(count);
    for _ in 0..count {
        founders.push(Founder {
            id: NodeId(body.try_get_u64_le().ok().filter(|id| *id != 0)?),
            name: get_text(body)?,
            address: get_text(body)?,
        });
    }
    let features = match body.has_remaining() {
        true => get_names(body)?,
        false => Vec::new(),
    };
    Some(ClusterRecord {
        id,
        founders,
        features,
    })
}

/// Writes at most [`FEATURES`] flag names.
fn put_names(out: &mut BytesMut, names: &[Name]) {
    let names = names.get(..FEATURES).unwrap_or(names);
    out.put_u16_le(names.len() as u16);
    for name in names {
        put_text(out, name);
    }
}

fn get_names(body: &mut Bytes) -> Option<Vec<Name>> {
    let count = usize::from(body.try_get_u16_le().ok()?);
    if count > FEATURES {
        return None;
    }
    let mut names = Vec::with_capacity(count);
    for _ in 0..count {
        names.push(
            get_text(body)
                .filter(|name| name.len() <= NAME_BYTES)?
                .into(),
        );
    }
    Some(names)
}

fn put_text(out: &mut BytesMut, text: &str) {
    // Configuration limits all texts below this; a longer one is truncated at a character boundary.
    let mut end = text.len().min(MAX_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    out.put_u16_le(end as u16);
    out.put_slice(&text.as_bytes()[..end]);
}

fn get_text(body: &mut Bytes) -> Option<String> {
    let len = usize::from(body.try_get_u16_le().ok()?);
    if len > MAX_TEXT || len > body.len() {
        return None;
    }
    let text = body.split_to(len);
    std::str::from_utf8(&text).ok().map(str::to_owned)
}

fn route_parts(route: Route) -> (u8, u64) {
    match route {
        Route::Shard(shard) => (0, u64::from(shard)),
        Route::Owner(key) => (1, key),
    }
}

fn put_route(out: &mut BytesMut, route: Route) {
    let (tag, key) = route_parts(route);
    out.put_u8(tag);
    out.put_u64_le(key);
}

fn get_route(body: &mut Bytes) -> Option<Route> {
    let tag = body.try_get_u8().ok()?;
    let key = body.try_get_u64_le().ok()?;
    match tag {
        0 => u16::try_from(key).ok().map(Route::Shard),
        1 => Some(Route::Owner(key)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn samples() -> Vec<Frame> {
        let founder = Founder {
            id: NodeId(4),
            name: "c-0".into(),
            address: "c-0.nodes:25672".into(),
        };
        vec![
            Frame::Hello(Hello {
                cluster_name: "c".into(),
                cluster: 3,
                node: NodeId(u64::MAX),
                incarnation: Incarnation(2),
                name: "c-0".into(),
                address: "c-0.nodes:25672".into(),
                peers_hash: 77,
                shards: 2,
                version: Some(PeerVersion {
                    facts: VersionFacts {
                        version: "1.2.3".into(),
                        features: vec!["one".into(), "two".into()],
                    },
                    enabled: vec!["one".into()],
                }),
            }),
            Frame::Welcome(ClusterRecord {
                id: 9,
                founders: vec![founder.clone(), founder],
                features: vec!["one".into()],
            }),
            Frame::Heartbeat,
            Frame::Bye,
            Frame::Refused("why".into()),
            Frame::Data {
                route: Route::Shard(3),
                body: Bytes::from_static(b"abc"),
            },
            Frame::Data {
                route: Route::Owner(u64::MAX),
                body: Bytes::new(),
            },
        ]
    }

    #[test]
    fn frames_round_trip_in_chunks() {
        let all: Vec<u8> = samples().iter().flat_map(|f| encode(f).to_vec()).collect();
        for piece in [1, 3, 7, 1000] {
            let mut input = BytesMut::new();
            let mut got = Vec::new();
            for bytes in all.chunks(piece) {
                input.extend_from_slice(bytes);
                while let Ok(Some(frame)) = decode(&mut input, MAX_FRAME) {
                    got.push(frame);
                }
            }
            assert_eq!(got, samples());
            assert!(input.is_empty());
        }
    }

    /// Frames of versions before the exchange of versions, and how those versions read current
    /// frames: they ignore the additional fields.
    #[test]
    fn frames_of_older_versions_are_compatible() {
        let read = |frame: &Frame| {
            let mut bytes = BytesMut::from(&encode(frame)[..]);
            decode(&mut bytes, MAX_HANDSHAKE_FRAME)
        };
        let mut old = samples();
        old.truncate(2);
        for frame in &mut old {
            match frame {
                Frame::Hello(hello) => hello.version = None,
                Frame::Welcome(record) => record.features.clear(),
                _ => {}
            }
            let new = samples();
            let new = new
                .iter()
                .find(|f| std::mem::discriminant::<Frame>(f) == std::mem::discriminant(frame));
            let (new, old) = (
                encode(new.expect("a sample of the same kind")),
                encode(frame),
            );
            assert!(new[LENGTH..].starts_with(&old[LENGTH..]));
            assert_eq!(read(frame), Ok(Some(frame.clone())));
        }
    }

    /// The largest possible HELLO fits into the first frame.
    #[test]
    fn largest_hello_is_within_the_limit() {
        let long = "x".repeat(2 * MAX_TEXT);
        let names = vec![Name::from("y".repeat(NAME_BYTES)); FEATURES + 1];
        let hello = Hello {
            cluster_name: long.clone(),
            cluster: 3,
            node: NodeId(1),
            incarnation: Incarnation(2),
            name: long.clone(),
            address: long.clone(),
            peers_hash: 77,
            shards: 2,
            version: Some(PeerVersion {
                facts: VersionFacts {
                    version: long.into(),
                    features: names.clone(),
                },
                enabled: names,
            }),
        };
        let mut bytes = BytesMut::from(&encode(&Frame::Hello(hello))[..]);
        assert!(matches!(
            decode(&mut bytes, MAX_HANDSHAKE_FRAME),
            Ok(Some(Frame::Hello(Hello {
                version: Some(_),
                ..
            })))
        ));
    }

    #[test]
    fn data_header_equals_start_of_frame() {
        let route = Route::Owner(5);
        let body = Bytes::from_static(b"xyz");
        let mut split = data_header(route, body.len())
            .map(|h| h.to_vec())
            .unwrap_or_default();
        split.extend_from_slice(&body);
        assert_eq!(split, encode(&Frame::Data { route, body }));
        assert_eq!(data_header(route, MAX_FRAME), None);
    }

    #[test]
    fn foreign_protocols_are_refused() {
        let check = |bytes: &[u8]| decode(&mut BytesMut::from(bytes), MAX_HANDSHAKE_FRAME);
        assert!(matches!(
            check(b"GET / HTTP/1.1\r\n"),
            Err(WireError::TooLarge { .. })
        ));
        assert!(matches!(
            check(b"AMQP\0\0\x09\x01"),
            Err(WireError::TooLarge { .. })
        ));
        assert_eq!(
            check(&[5, 0, 0, 0, HELLO, 1, 2, 3, 4]),
            Err(WireError::NoMagic)
        );
        assert_eq!(check(&[0, 0, 0, 0]), Err(WireError::Malformed { kind: 0 }));
        assert_eq!(
            check(&[2, 0, 0, 0, HEARTBEAT, 1]),
            Err(WireError::Malformed { kind: HEARTBEAT })
        );
        let mut newer = encode(&samples()[0]).to_vec();
        newer[9] = 200;
        assert_eq!(check(&newer), Err(WireError::Format { found: 200 }));
    }

    proptest! {
        #[test]
        fn decode_never_panics_on_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300), kind in 0u8..8) {
            let _ = decode(&mut BytesMut::from(&bytes[..]), MAX_FRAME);
            let _ = decode_body(kind, Bytes::from(bytes));
        }

        #[test]
        fn decode_never_panics_on_bit_flips(which in 0usize..7, at in 4usize..80, bit in 0u8..8) {
            let mut bytes = BytesMut::from(&encode(&samples()[which])[..]);
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << bit;
            }
            let _ = decode(&mut bytes, MAX_FRAME);
        }
    }
}
