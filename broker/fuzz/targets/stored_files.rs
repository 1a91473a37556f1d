//! Every file that a node reads at its start. Checksums that an input cannot guess are put right here, by the formats'
//! own descriptions, so that what is behind them is reached. No panic, bounded memory, and what is read once is read
//! the same again.
#![no_main]
// Taken from crates that would bring all of their own dependencies along.
#[path = "../../crates/node/src/identity.rs"]
#[allow(dead_code, reason = "only its reader is wanted")]
mod identity;
mod script;

use bytes::Bytes;
use consensus::{Host, HostConfig, HostLimits, RaftHost};
use env::sim::SimDisk;
use env::{Disk, Incarnation, NodeId, SeededRng};
use identity::Identity;
use libfuzzer_sys::fuzz_target;
use metadata::{Change, Tree};
use queue::classic::ClassicQueue;
use queue::quorum::{Effects, Machine};
use queue::{DeadLettering, Timestamps, QueueOutput, Overflow, Queue, QueueId, QueueSettings};
use script::Script;
use segment::{Segment, SegmentName};
use std::collections::BTreeMap;
use std::sync::Arc;
use wal::{GroupId, RecoveredGroup, Wal, WalConfig};

const NODE: NodeId = NodeId(1);
const GROUP: GroupId = GroupId(5);

fuzz_target!(|input: &[u8]| {
    let mut script = Script(input);
    let disk = SimDisk::new();
    match script.byte().unwrap_or(0) % 8 {
        0 => log(&disk, &mut script),
        1 => segments(&disk, &mut script),
        2 => checkpoint(&disk, &mut script),
        3 => classic(&disk, &mut script),
        4 => quorum_state(&mut script),
        5 => tree(&mut script),
        6 => identity_file(&disk, &mut script),
        _ => anything(&disk, &mut script),
    }
});

fn put(disk: &SimDisk, path: &str, bytes: &[u8]) {
    let (dir, _) = path.rsplit_once('/').unwrap_or(("", path));
    if !dir.is_empty() {
        disk.create_dir(dir).expect("a directory");
    }
    let file = disk.create(path).expect("a file");
    file.write_at(0, bytes).expect("space");
}

/// The log and what stands on it.
fn open_log(disk: &SimDisk) {
    let first = Wal::open(Arc::new(disk.clone()), WalConfig::new(NODE, 1));
    let Ok((_, recovered)) = first else { return };
    let (_, again) = Wal::open(Arc::new(disk.clone()), WalConfig::new(NODE, 2))
        .expect("what was read once is read again");
    assert_eq!(again.groups, recovered.groups);
    open_groups(disk, recovered.groups);
}

fn open_groups(disk: &SimDisk, groups: BTreeMap<GroupId, RecoveredGroup>) {
    let config = HostConfig {
        node: NODE,
        incarnation: Incarnation(2),
        shards: 1,
        shard: 0,
        seed: 1,
        limits: HostLimits::default(),
    };
    if let Ok(mut host) = Host::new(config, Arc::new(disk.clone()), groups) {
        let mut out = Vec::new();
        host.tick(env::Time(1));
        host.poll(&mut out);
    }
}

/// A log file: header, then records as the script says. See `wal::format`.
fn log(disk: &SimDisk, script: &mut Script<'_>) {
    let nonce = 0x1234_5678_9abc_def0_u64;
    let mut file = b"PHORNWAL".to_vec();
    file.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0]);
    for field in [NODE.0, 1, 1, nonce] {
        file.extend_from_slice(&field.to_le_bytes());
    }
    file.resize(4092, 0);
    let crc = crc32fast::hash(&file);
    file.extend_from_slice(&crc.to_le_bytes());
    let mut sequence = 1_u64;
    while let Some(step) = script.byte() {
        if step == 255 {
            // Not a record at all.
            file.extend_from_slice(script.bytes());
            continue;
        }
        let body = body(step, script);
        sequence = sequence.wrapping_add(u64::from(step % 16 == 15));
        record(&mut file, nonce, sequence, u32::from(step / 16), &body);
        sequence += 1;
    }
    if file.last() != Some(&0) {
        file.extend_from_slice(&[0; 8]);
    }
    put(disk, "wal/0000000000000001.wal", &file);
    open_log(disk);
}

/// Entries, hard states, checkpoints and deletions of some groups; and bodies of any shape.
fn body(step: u8, script: &mut Script<'_>) -> Vec<u8> {
    let mut body = vec![step % 8];
    let fields = match step % 8 {
        1 | 3 => 3,
        2 => 4,
        4 => 1,
        5 => 0,
        _ => return script.bytes().to_vec(),
    };
    for n in 0..fields {
        let number = script.number();
        let number = if n == 0 { number % 4 } else { number };
        body.extend_from_slice(&number.to_le_bytes());
    }
    if step % 8 == 1 {
        body.push(script.byte().unwrap_or(0));
        body.extend_from_slice(script.bytes());
    }
    body
}

fn record(file: &mut Vec<u8>, nonce: u64, sequence: u64, distance: u32, body: &[u8]) {
    let len = (body.len() as u32).to_le_bytes();
    let mut rest = (sequence ^ nonce).to_le_bytes().to_vec();
    rest.extend_from_slice(&distance.to_le_bytes());
    rest.extend_from_slice(body);
    let mut crc = crc32fast::Hasher::new();
    crc.update(&nonce.to_le_bytes());
    crc.update(&len);
    crc.update(&rest);
    file.extend_from_slice(&len);
    file.extend_from_slice(&crc.finalize().to_le_bytes());
    file.extend_from_slice(&rest);
}

fn summed(group: GroupId, parts: &[&[u8]]) -> [u8; 4] {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&group.0.to_le_bytes());
    parts.iter().for_each(|part| crc.update(part));
    crc.finalize().to_le_bytes()
}

/// A segment: header, entries, end mark, footer and trailer, each as the script says. See `segment::format`.
fn segments(disk: &SimDisk, script: &mut Script<'_>) {
    let name = SegmentName { first: 2, n: 1 };
    let mut file = b"PHORNSEG".to_vec();
    file.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0]);
    file.extend_from_slice(&GROUP.0.to_le_bytes());
    file.extend_from_slice(&name.first.to_le_bytes());
    file.extend_from_slice(&name.n.to_le_bytes());
    let crc = crc32fast::hash(&file);
    file.extend_from_slice(&crc.to_le_bytes());
    let mut count = 0_u32;
    while let Some(step) = script.byte() {
        match step % 8 {
            0..=3 => {
                let mut body = script.number().to_le_bytes().to_vec();
                body.extend_from_slice(&script.number().to_le_bytes());
                body.push(step / 8);
                body.extend_from_slice(script.bytes());
                let len = (body.len() as u32).to_le_bytes();
                file.extend_from_slice(&len);
                file.extend_from_slice(&summed(GROUP, &[&len, &body]));
                file.extend_from_slice(&body);
                count += 1;
            }
            4 => {
                let mut mark = [0xff; 8];
                mark[4..].copy_from_slice(&count.to_le_bytes());
                file.extend_from_slice(&mark);
                file.extend_from_slice(&summed(GROUP, &[&mark]));
            }
            5 => {
                let footer = script.bytes();
                let mut trailer = (file.len() as u64).to_le_bytes().to_vec();
                trailer.extend_from_slice(&(footer.len() as u32).to_le_bytes());
                file.extend_from_slice(footer);
                file.extend_from_slice(&trailer);
                file.extend_from_slice(&summed(GROUP, &[footer, &trailer]));
                file.extend_from_slice(b"PHSEGEND");
            }
            _ => file.extend_from_slice(script.bytes()),
        }
    }
    put(
        disk,
        "segments/0000000000000005/0000000000000002-00000001.seg",
        &file,
    );
    open_segment(disk, name);
    open_groups(disk, BTreeMap::from([(GROUP, RecoveredGroup::default())]));
}

fn open_segment(disk: &SimDisk, name: SegmentName) {
    let Ok(segment) = Segment::open(Arc::new(disk.clone()), GROUP, name) else {
        return;
    };
    for index in 0..64 {
        if let Ok(Some(entry)) = segment.read(index) {
            assert_eq!(entry.index, index);
        }
    }
    let _ = segment.term(u64::MAX);
    let _ = segment.read(u64::MAX);
}

/// A checkpoint whose lengths and checksum are right. See `segment::checkpoint`.
fn checkpoint(disk: &SimDisk, script: &mut Script<'_>) {
    let (index, term) = (script.number(), script.number());
    let parts = [script.bytes(), script.bytes(), script.bytes()];
    let mut file = b"PHORNCKP".to_vec();
    file.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0]);
    for field in [GROUP.0, index, term] {
        file.extend_from_slice(&field.to_le_bytes());
    }
    for part in parts {
        file.extend_from_slice(&(part.len() as u64).to_le_bytes());
    }
    file.extend(parts.concat());
    let crc = crc32fast::hash(&file);
    file.extend_from_slice(&crc.to_le_bytes());
    put(
        disk,
        &format!("segments/0000000000000005/checkpoint-{index:016x}"),
        &file,
    );
    let read = segment::read_checkpoint(disk, GROUP, index);
    if let Ok(read) = read {
        assert_eq!(
            (&read.membership[..], &read.state[..]),
            (parts[0], parts[2])
        );
    }
    // What the log has of the group.
    let mut known = RecoveredGroup::default();
    if script.byte().unwrap_or(0) % 2 == 0 {
        known.checkpointed = Some((script.number(), script.number()));
    }
    open_groups(disk, BTreeMap::from([(GROUP, known)]));
}

fn settings() -> QueueSettings {
    QueueSettings {
        quorum: queue::QuorumSettings::default(),
        max_length: None,
        max_length_bytes: None,
        overflow: Overflow::DropHead,
        delivery_limit: Some(3),
        message_ttl_ms: None,
        single_active_consumer: false,
        max_priority: Some(3),
        dead_letter: DeadLettering::Off,
    }
}

/// Files of a classic queue: records whose checksums are right, and any bytes. See `queue::classic::record`.
fn classic(disk: &SimDisk, script: &mut Script<'_>) {
    let (mut file, mut acks) = (Vec::new(), Vec::new());
    while let Some(step) = script.byte() {
        match step % 8 {
            0..=3 => {
                let start = file.len();
                let (seq, body) = (script.number(), script.number() as u32);
                let payload = script.bytes();
                file.extend_from_slice(&(payload.len() as u32).to_be_bytes());
                file.extend_from_slice(&seq.to_be_bytes());
                file.push(step / 8 * 8 | step % 4);
                file.extend_from_slice(&body.to_be_bytes());
                let crc = crc32fast::hash(&file[start..]);
                file.extend_from_slice(&crc.to_be_bytes());
                file.extend_from_slice(&crc32fast::hash(payload).to_be_bytes());
                file.extend_from_slice(payload);
            }
            4 | 5 => {
                let start = acks.len();
                acks.extend_from_slice(&script.number().to_be_bytes());
                acks.extend_from_slice(&script.number().to_be_bytes());
                let crc = crc32fast::hash(&acks[start..]);
                acks.extend_from_slice(&crc.to_be_bytes());
            }
            6 => acks.extend_from_slice(script.bytes()),
            _ => file.extend_from_slice(script.bytes()),
        }
    }
    put(disk, "classic/0000000000000005/00000001.seg", &file);
    put(disk, "classic/0000000000000005/00000001.ack", &acks);
    open_classic(disk);
}

fn open_classic(disk: &SimDisk) {
    let opened = ClassicQueue::open(
        Arc::new(disk.clone()),
        QueueId(5),
        "queue 'q' in vhost '/'".into(),
        settings(),
        Incarnation(2),
    );
    let Ok(mut queue) = opened else { return };
    let mut out = QueueOutput::default();
    let at = Timestamps::default();
    let get = |seq| queue::Request {
        session: Default::default(),
        seq,
        body: queue::RequestBody::Purge,
    };
    queue.tick(at, &mut out);
    queue.step(at, queue::QueueMessage::Request(get(1)), &mut out);
    queue.flush(at, &mut out);
    assert_eq!(queue.stats().ready, 0, "purged");
}

/// The state in a quorum queue's checkpoint, and commands of its log.
fn quorum_state(script: &mut Script<'_>) {
    let state = Bytes::copy_from_slice(script.bytes());
    let label: Arc<str> = "queue 'q' in vhost '/'".into();
    let mut machine = match Machine::restore(label.clone(), state) {
        Ok(machine) => {
            let written = machine.snapshot();
            let again = Machine::restore(label, written.clone()).expect("its own state");
            assert_eq!(again.snapshot(), written);
            machine
        }
        Err(_) => Machine::new(label, settings()),
    };
    let mut index = machine.applied();
    while let Some(step) = script.byte() {
        index = index.saturating_add(u64::from(step % 4));
        let mut effects = Effects::collecting();
        let mut command = vec![1, step / 16];
        if step % 4 == 3 {
            command.clear();
        }
        command.extend_from_slice(script.bytes());
        if (machine.apply(index, &Bytes::from(command), &mut effects)).is_err() {
            // The node ends.
            break;
        }
        let live = machine.live_indexes();
        assert!(live.is_sorted());
    }
    let _ = machine.stats();
}

/// The metadata tree's checkpoint, and the changes in its log.
fn tree(script: &mut Script<'_>) {
    if let Ok(tree) = Tree::restore(script.bytes()) {
        let written = tree.snapshot();
        let again = Tree::restore(&written).expect("its own tree");
        assert_eq!(again.snapshot(), written);
    }
    if let Ok(change) = Change::decode(script.0) {
        let written = change.encode();
        assert_eq!(
            Change::decode(&written).expect("its own change").encode(),
            written
        );
    }
}

fn identity_file(disk: &SimDisk, script: &mut Script<'_>) {
    put(disk, "identity.json", script.0);
    let mut rng = SeededRng::new(1);
    if let Ok(first) = Identity::start(disk, "n", &mut rng) {
        let second = Identity::start(disk, "n", &mut rng).expect("its own file");
        assert_eq!(second.node, first.node);
        assert!(second.incarnation > first.incarnation);
    }
}

/// Any bytes under any of the names.
fn anything(disk: &SimDisk, script: &mut Script<'_>) {
    let names = [
        "wal/0000000000000001.wal",
        "segments/0000000000000005/0000000000000002-00000001.seg",
        "segments/0000000000000005/checkpoint-0000000000000002",
        "departed/0000000000000005",
        "classic/0000000000000005/00000001.seg",
        "classic/0000000000000005/00000001.ack",
    ];
    let at = usize::from(script.byte().unwrap_or(0)) % names.len();
    put(disk, names[at], script.0);
    open_log(disk);
    open_segment(disk, SegmentName { first: 2, n: 1 });
    open_groups(disk, BTreeMap::from([(GROUP, RecoveredGroup::default())]));
    open_classic(disk);
}
