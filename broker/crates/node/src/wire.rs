//! Frames of a link between two nodes: `length u32 | kind u8 | body`, little-endian, the length counting kind and body.

use crate::identity::{ClusterRecord, Founder, MAX_FOUNDERS};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use env::{Incarnation, NodeId};
use metadata::Name;
use metadata::features::VersionFacts;
use metadata::limits::{FEATURES, NAME_BYTES};
use shard::Route;

/// Version of the link protocol; nodes of another version refuse each other.
pub const FORMAT: u16 = 2;

/// Begins every HELLO, so that a client on the wrong port is known at once.
const MAGIC: [u8; 4] = *b"PHNL";

/// What a frame holds at most besides one command of the largest size: what was gathered before it, and fields.
const FRAME_OVERHEAD: usize = 64 << 20;

/// Largest frame of an established link, in bytes. Every node takes frames of this size, whatever messages it is configured
/// to take from clients; memory is taken as bytes arrive.
pub const MAX_FRAME: usize = consensus::MAX_COMMAND_BYTES + FRAME_OVERHEAD;

/// The largest message with the largest properties that a client can send, and a batch before it.
const _: () = assert!(
    message::MAX_BODY_BYTES as usize + (16 << 20) + 2 * queue::quorum::MAX_BATCH_BYTES
        <= consensus::MAX_COMMAND_BYTES
);
// The length of a frame is a `u32`.
const _: () = assert!(MAX_FRAME < u32::MAX as usize);

/// Largest frame before the other side has said who it is.
pub const MAX_HANDSHAKE_FRAME: usize = 64 << 10;

/// Longest text in a frame.
const MAX_TEXT: usize = 1024;

const LENGTH: usize = 4;

/// Bytes that [`data_header`] puts before a data frame's own.
pub const DATA_HEADER: usize = LENGTH + 1 + 1 + 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// First frame of both sides, and again when the sender has become a member.
    Hello(Hello),
    /// From a member to a node without a cluster: belong to this one.
    Welcome(ClusterRecord),
    Heartbeat,
    /// The sender stops on purpose.
    Bye,
    /// Why the sender closes.
    Refused(String),
    Data {
        route: Route,
        body: Bytes,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub cluster_name: String,
    /// 0: none yet.
    pub cluster: u64,
    pub node: NodeId,
    pub incarnation: Incarnation,
    pub name: String,
    /// host:port under which it is reached.
    pub address: String,
    /// Fingerprint of `cluster.peers` and the initial size.
    pub peers_hash: u64,
    /// How many shards it runs: frames go to the shard of the same number.
    pub shards: u16,
    /// None: an older program, which does not tell.
    pub told: Option<PeerVersion>,
}

/// What a node tells of its program and of its cluster's feature flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerVersion {
    pub program: VersionFacts,
    /// Flags that its cluster has enabled, as far as it knows yet.
    pub enabled: Vec<Name>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    #[error("a frame of {len} bytes, above the limit of {limit}")]
    TooLarge { len: usize, limit: usize },
    #[error("not a node of this kind of cluster")]
    NoMagic,
    #[error("link format {found}, ours is {FORMAT}")]
    Format { found: u16 },
    #[error("a malformed frame of kind {kind}")]
    Malformed { kind: u8 },
}

const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const HEARTBEAT: u8 = 3;
const BYE: u8 = 4;
const REFUSED: u8 = 5;
const DATA: u8 = 6;

/// Everything but data, which is sent by [`data_header`] and its own bytes.
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
            // Older programs read no further.
            if let Some(told) = &hello.told {
                put_text(&mut out, &told.program.version);
                put_names(&mut out, &told.program.features);
                put_names(&mut out, &told.enabled);
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
            // Older programs know no more than the founders.
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

/// What comes before the bytes of a data frame. None: too long for a frame.
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

/// Takes a whole frame from the front of `input`; None when it is not all there yet.
pub fn decode(input: &mut BytesMut, limit: usize) -> Result<Option<Frame>, WireError> {
    let Some(length) = input.first_chunk::<LENGTH>() else {
        return Ok(None);
    };
    let len = u32::from_le_bytes(*length) as usize;
    if len > limit {
        // Before a length can be believed, see whether this is one of us at all.
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
    // Fields of other versions may differ: look no further.
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
        told: match body.has_remaining() {
            true => Some(PeerVersion {
                program: VersionFacts {
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

/// At most [`FEATURES`] names of flags.
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
    // Configuration bounds every text below this; what is longer is cut at a character.
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
                told: Some(PeerVersion {
                    program: VersionFacts {
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
    fn round_trips_in_any_pieces() {
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

    /// What programs said before they told of themselves, and what they make of what is said now: they read as far as
    /// they know and pass over the rest.
    #[test]
    fn frames_of_older_programs_are_read() {
        let read = |frame: &Frame| {
            let mut bytes = BytesMut::from(&encode(frame)[..]);
            decode(&mut bytes, MAX_HANDSHAKE_FRAME)
        };
        let mut old = samples();
        old.truncate(2);
        for frame in &mut old {
            match frame {
                Frame::Hello(hello) => hello.told = None,
                Frame::Welcome(record) => record.features.clear(),
                _ => {}
            }
            let new = samples();
            let new = new
                .iter()
                .find(|f| std::mem::discriminant::<Frame>(f) == std::mem::discriminant(frame));
            let (new, old) = (encode(new.expect("both")), encode(frame));
            assert!(new[LENGTH..].starts_with(&old[LENGTH..]));
            assert_eq!(read(frame), Ok(Some(frame.clone())));
        }
    }

    /// All that a node may have to tell fits into the first frame.
    #[test]
    fn the_longest_hello_is_within_the_limit() {
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
            told: Some(PeerVersion {
                program: VersionFacts {
                    version: long.into(),
                    features: names.clone(),
                },
                enabled: names,
            }),
        };
        let mut bytes = BytesMut::from(&encode(&Frame::Hello(hello))[..]);
        assert!(matches!(
            decode(&mut bytes, MAX_HANDSHAKE_FRAME),
            Ok(Some(Frame::Hello(Hello { told: Some(_), .. })))
        ));
    }

    #[test]
    fn headers_are_those_of_whole_frames() {
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
    fn refuses_what_is_not_a_node() {
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
        fn any_bytes_are_an_error_or_a_frame(bytes in proptest::collection::vec(any::<u8>(), 0..300), kind in 0u8..8) {
            let _ = decode(&mut BytesMut::from(&bytes[..]), MAX_FRAME);
            let _ = decode_body(kind, Bytes::from(bytes));
        }

        #[test]
        fn flipped_frames_never_panic(which in 0usize..7, at in 4usize..80, bit in 0u8..8) {
            let mut bytes = BytesMut::from(&encode(&samples()[which])[..]);
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << bit;
            }
            let _ = decode(&mut bytes, MAX_FRAME);
        }
    }
}
