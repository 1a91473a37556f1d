//! Link frames and identity files as version 0.2 wrote them.

use bytes::{Bytes, BytesMut};
use env::sim::SimDisk;
use env::{Incarnation, NodeId, SeededRng};
use metadata::features::VersionFacts;
use node::identity::{self, ClusterRecord, Founder, Identity};
use node::wire::{self, Frame, Hello, PeerVersion, WireError};
use shard::Route;

const CRATE: &str = env!("CARGO_MANIFEST_DIR");

golden::variant_names! {
    fn frame_name(Frame) {
        Frame::Hello(_) => "hello",
        Frame::Welcome(_) => "welcome",
        Frame::Heartbeat => "heartbeat",
        Frame::Bye => "bye",
        Frame::Refused(_) => "refused",
        Frame::Data { .. } => "data",
    }
    fn route_name(Route) {
        Route::Shard(_) => "shard",
        Route::Owner(_) => "owner",
    }
}

fn cluster() -> ClusterRecord {
    let founder = |n: u64| Founder {
        id: NodeId(u64::MAX - n),
        name: format!("c-{n}"),
        address: format!("c-{n}.nodes:25672"),
    };
    ClusterRecord {
        id: 0x0123_4567_89AB_CDEF,
        founders: vec![founder(0), founder(1), founder(2)],
        features: vec!["baseline_0_2".into()],
    }
}

fn hello() -> Hello {
    Hello {
        cluster_name: "cluster é".into(),
        cluster: cluster().id,
        node: NodeId(u64::MAX),
        incarnation: Incarnation(300),
        name: "c-0".into(),
        address: "c-0.nodes:25672".into(),
        peers_hash: 70_000,
        shards: 260,
        version: Some(PeerVersion {
            facts: VersionFacts {
                version: "0.2.0".into(),
                features: vec!["baseline_0_2".into(), "next".into()],
            },
            enabled: vec!["baseline_0_2".into()],
        }),
    }
}

#[test]
fn link_frames_of_version_0_2_are_decoded() {
    let data = |route| Frame::Data {
        route,
        body: Bytes::from_static(b"body"),
    };
    let routes = [Route::Shard(260), Route::Owner(u64::MAX)];
    golden::assert_covers(&routes, route_name);
    let mut all = vec![
        Frame::Hello(hello()),
        Frame::Hello(Hello {
            cluster: 0,
            ..hello()
        }),
        Frame::Welcome(cluster()),
        Frame::Heartbeat,
        Frame::Bye,
        Frame::Refused("the reason".into()),
    ];
    all.extend(routes.map(data));
    let encode = |frame: &Frame| wire::encode(frame).to_vec();
    let decode = |bytes: &[u8]| {
        let mut input = BytesMut::from(bytes);
        let frame = wire::decode(&mut input, wire::MAX_HANDSHAKE_FRAME)?;
        assert!(input.is_empty(), "bytes behind the frame");
        frame.ok_or(WireError::NoMagic)
    };
    golden::verify(CRATE, "0.2/frames", |files| {
        files.check_enum(&all, frame_name, encode, decode);
    });
}

#[test]
fn identity_files_of_version_0_2_are_read() {
    let identity = Identity {
        node: NodeId(0xFEDC_BA98_7654_3210),
        incarnation: Incarnation(300),
        name: "c-0".into(),
        cluster: Some(cluster()),
    };
    let alone = Identity {
        cluster: None,
        ..identity.clone()
    };
    let encode = |identity: &Identity| {
        let disk = SimDisk::new();
        identity.store(&disk).expect("store");
        golden::read_file(&disk, identity::FILE)
    };
    // A start reads the file and begins the next incarnation.
    let decode = |bytes: &[u8]| {
        let disk = SimDisk::new();
        golden::write_file(&disk, identity::FILE, bytes);
        golden::write_file(&disk, "wal/0000000000000001.wal", b"");
        let mut identity = Identity::start(&disk, "c-0", &mut SeededRng::new(1))?;
        identity.incarnation.0 -= 1;
        Ok::<_, identity::IdentityError>(identity)
    };
    golden::verify(CRATE, "0.2/identity", |files| {
        files.check("member", &identity, encode, decode);
        files.check("without-cluster", &alone, encode, decode);
    });
}
