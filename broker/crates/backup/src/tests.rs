use crate::age::{Identity, Recipient};
use crate::chunks::ChunkRecords;
use crate::records::{self, MessageState, Records, RecordsError, StoredMessage};
use crate::retained::{RetainedMessage, RetainedRecords};
use crate::*;
use bytes::Bytes;
use env::WallTime;
use message::{MessageBuilder, Protocol};
use proptest::prelude::*;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use stream_log::{Chunk, ChunkBuilder};
use stream_tier::{MemoryFaults, MemoryStore};

fn message(body: &[u8]) -> StoredMessage {
    let builder = MessageBuilder {
        protocol: Protocol::Amqp091,
        durable: true,
        priority: Some(3),
        ttl_ms: Some(60_000),
        received: WallTime(1_000),
        exchange: "events",
        routing_keys: &["a.b"],
        properties: &[0, 0],
    };
    StoredMessage {
        state: MessageState::Ready,
        redelivered: false,
        failed: None,
        acquired: 0,
        due_ms: None,
        message: builder.build(body.len(), [body]).unwrap(),
    }
}

fn samples() -> [StoredMessage; 3] {
    [
        message(b"ready"),
        StoredMessage {
            state: MessageState::Unacknowledged,
            redelivered: true,
            failed: Some(2),
            acquired: 3,
            ..message(b"with a consumer")
        },
        StoredMessage {
            state: MessageState::Delayed,
            failed: Some(0),
            due_ms: Some(1 << 41),
            ..message(b"")
        },
    ]
}

fn page(messages: &[StoredMessage]) -> Bytes {
    let mut out = Vec::new();
    records::begin(&mut out);
    for message in messages {
        records::append(&mut out, message).unwrap();
    }
    out.into()
}

fn read_all(page: Bytes) -> Result<Vec<StoredMessage>, RecordsError> {
    Records::new(page)?.map(|r| r.map(|r| r.stored)).collect()
}

fn name(name: &str) -> BackupName {
    BackupName::new(name).unwrap()
}

fn info() -> BackupInfo {
    BackupInfo {
        cluster: "shop".into(),
        broker_version: "0.2.0".into(),
        started_ms: 1_700_000_000_000,
        recipients: Vec::new(),
    }
}

/// A backup with two queues and a stream.
fn write(store: &dyn ObjectStore, backup: &str) -> Result<Manifest, ArchiveError> {
    let definitions = Bytes::from_static(b"{\"queues\": []}");
    let mut writer = ArchiveWriter::begin(store, name(backup), info(), &definitions)?;
    writer.begin_queue("/", "orders", "quorum");
    assert_eq!(writer.append(page(&samples()))?, 3);
    assert_eq!(writer.append(page(&[]))?, 0);
    assert_eq!(writer.append(page(&samples()[..1]))?, 1);
    writer.end_queue(QueueContent::Included)?;
    writer.begin_queue("é/..", "../../etc", "classic");
    writer.end_queue(QueueContent::Deleted)?;
    writer.begin_queue("/", "log", "stream");
    writer.end_queue(QueueContent::StreamNotIncluded)?;
    writer.finish(1_700_000_001_000)
}

fn check(store: &dyn ObjectStore, backup: &str) -> Result<Manifest, ArchiveError> {
    verify(store, &name(backup), &[], &mut |_| {})
}

fn failure<T: std::fmt::Debug>(result: Result<T, ArchiveError>) -> String {
    result.unwrap_err().to_string()
}

/// A directory that is deleted with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path =
            std::env::temp_dir().join(format!("posthorn-backup-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn records_of_version_0_2_are_read() {
    golden::verify(env!("CARGO_MANIFEST_DIR"), "0.2/records", |files| {
        let parse =
            |bytes: &[u8]| read_all(Bytes::copy_from_slice(bytes)).map_err(|e| e.to_string());
        files.check("page", &samples().to_vec(), |s| page(s).to_vec(), parse);
        files.check(
            "empty",
            &vec![],
            |s: &Vec<StoredMessage>| page(s).to_vec(),
            parse,
        );
    });
}

#[test]
fn manifest_of_version_0_2_is_read() {
    golden::verify(env!("CARGO_MANIFEST_DIR"), "0.2/manifest", |files| {
        let store = MemoryStore::new(1);
        let manifest = write(&store, "golden").unwrap();
        // The format and its version are set when the manifest is encoded.
        let manifest = Manifest::decode(&manifest.encode()).unwrap();
        let parse = |bytes: &[u8]| Manifest::decode(bytes).map_err(|e| e.to_string());
        files.check("manifest", &manifest, Manifest::encode, parse);
    });
}

/// A chunk of a stream whose first message has this offset.
fn chunk(first_offset: u64, bodies: &[&[u8]]) -> Chunk {
    let mut builder = ChunkBuilder::new(16);
    for body in bodies {
        builder.push_message(body, Some(b"eu")).unwrap();
    }
    builder.set_sequence(b"producer", 7).unwrap();
    builder.finish(first_offset, 3, 1_700_000_000_000).unwrap()
}

fn chunk_page(all: &[Chunk]) -> Bytes {
    let mut out = Vec::new();
    chunks::begin(&mut out);
    for chunk in all {
        chunks::append(&mut out, chunk.bytes()).unwrap();
    }
    out.into()
}

fn read_chunks(page: Bytes) -> Result<Vec<Chunk>, RecordsError> {
    ChunkRecords::new(page)?
        .map(|r| r.map(|r| r.chunk))
        .collect()
}

fn retained_samples() -> Vec<RetainedMessage> {
    [("sensors/é/1", None), ("sensors/2", Some(60_000))]
        .map(|(topic, remaining_ms)| RetainedMessage {
            topic: topic.to_owned(),
            remaining_ms,
            message: message(topic.as_bytes()).message,
        })
        .to_vec()
}

fn retained_page(all: &[RetainedMessage]) -> Bytes {
    let mut out = Vec::new();
    retained::begin(&mut out);
    for retained in all {
        retained::append(&mut out, retained).unwrap();
    }
    out.into()
}

fn read_retained(page: Bytes) -> Result<Vec<RetainedMessage>, RecordsError> {
    RetainedRecords::new(page)?
        .map(|r| r.map(|r| r.retained))
        .collect()
}

/// A backup with a stream and retained messages.
fn write_all(store: &dyn ObjectStore, backup: &str) -> Result<Manifest, ArchiveError> {
    write_for(store, backup, &[])
}

fn write_for(
    store: &dyn ObjectStore,
    backup: &str,
    recipients: &[Recipient],
) -> Result<Manifest, ArchiveError> {
    let info = BackupInfo {
        recipients: recipients.to_vec(),
        ..info()
    };
    let definitions = Bytes::from_static(b"{}");
    let mut writer = ArchiveWriter::begin(store, name(backup), info, &definitions)?;
    writer.begin_queue("/", "log", "stream");
    let chunks = [chunk(5, &[b"a", b"b"]), chunk(8, &[b"c"])];
    assert_eq!(writer.append(chunk_page(&chunks))?, 3);
    writer.end_queue(QueueContent::Included)?;
    writer.begin_queue("/", "orders", "quorum");
    writer.append(page(&samples()))?;
    writer.end_queue(QueueContent::Included)?;
    writer.begin_retained("/");
    assert_eq!(writer.append(retained_page(&retained_samples()))?, 2);
    writer.end_retained()?;
    writer.begin_retained("empty");
    assert_eq!(writer.append(retained_page(&[]))?, 0);
    writer.end_retained()?;
    writer.finish(1_700_000_001_000)
}

#[test]
fn chunks_and_retained_messages_of_version_0_2_are_read() {
    let chunks = vec![chunk(5, &[b"a", b"b"]), chunk(8, &[b"c"])];
    golden::verify(env!("CARGO_MANIFEST_DIR"), "0.2/chunks", |files| {
        let parse =
            |bytes: &[u8]| read_chunks(Bytes::copy_from_slice(bytes)).map_err(|e| e.to_string());
        files.check("page", &chunks, |c| chunk_page(c).to_vec(), parse);
    });
    golden::verify(env!("CARGO_MANIFEST_DIR"), "0.2/retained", |files| {
        let parse =
            |bytes: &[u8]| read_retained(Bytes::copy_from_slice(bytes)).map_err(|e| e.to_string());
        let encode = |all: &Vec<RetainedMessage>| retained_page(all).to_vec();
        files.check("page", &retained_samples(), encode, parse);
    });
}

#[test]
fn manifest_with_streams_and_retained_messages_is_read() {
    golden::verify(env!("CARGO_MANIFEST_DIR"), "0.2/manifest-2", |files| {
        let manifest = write_all(&MemoryStore::new(1), "golden").unwrap();
        let manifest = Manifest::decode(&manifest.encode()).unwrap();
        let parse = |bytes: &[u8]| Manifest::decode(bytes).map_err(|e| e.to_string());
        files.check("manifest", &manifest, Manifest::encode, parse);
        let encrypted = Manifest {
            encryption: Some(Encryption {
                format: "age".to_owned(),
                names: ObjectEntry::of(b"names", 0),
            }),
            ..manifest
        };
        files.check("encrypted", &encrypted, Manifest::encode, parse);
    });
}

/// The manifest is a file that the first version wrote; the other objects have had the same form since then.
#[test]
fn archive_of_the_first_version_is_verified_and_read() {
    let store = MemoryStore::new(1);
    write(&store, "golden").unwrap();
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/golden/0.2/manifest/manifest.bin"
    );
    let document = std::fs::read(path).unwrap();
    let text = String::from_utf8(document.clone()).unwrap();
    assert!(text.contains("\"format_version\": 1"), "{text}");
    store.set("golden/manifest.json", Some(document.into()));
    let manifest = check(&store, "golden").unwrap();
    assert_eq!((manifest.messages(), manifest.retained_messages()), (4, 0));
    let stream = manifest.queues.iter().find(|queue| queue.kind == "stream");
    let content = stream.map(|stream| stream.content);
    assert_eq!(content, Some(QueueContent::StreamNotIncluded));
}

#[test]
fn streams_and_retained_messages_are_read_as_they_were_written() {
    let store = MemoryStore::new(1);
    write_all(&store, "a").unwrap();
    let manifest = check(&store, "a").unwrap();
    assert_eq!((manifest.messages(), manifest.retained_messages()), (6, 2));
    assert_eq!(manifest.retained.len(), 1);
    let read = |at| read_part(&store, &name("a"), &manifest, at, &[]).unwrap();
    let chunks = read_chunks(read(PartNumber::Queue(0, 0))).unwrap();
    assert_eq!(chunks, [chunk(5, &[b"a", b"b"]), chunk(8, &[b"c"])]);
    let retained = read_retained(read(PartNumber::Retained(0, 0))).unwrap();
    assert_eq!(retained, retained_samples());
    let keys: Vec<String> = store.objects().into_keys().collect();
    assert_eq!(
        keys,
        [
            "a/definitions.json",
            "a/manifest.json",
            "a/messages/00000000/00000000",
            "a/messages/00000001/00000000",
            "a/retained/00000000/00000000"
        ]
    );
    assert_eq!(delete(&store, &name("a")).unwrap(), 5);
    assert!(store.objects().is_empty());
}

const IDENTITY: &str = "AGE-SECRET-KEY-1A6JGMUXC73E7ZG7S8ND00JN5MGFADW7DPA36NK3MAS5P2UAJQ63SNSLFJR";
const RECIPIENT: &str = "age18uzanmq5dspj63svw49587497ml8c9aa05asfmzysn2r3sy5ccwsvk2pw6";
const OTHER: &str = "AGE-SECRET-KEY-1EGTZVFFV20835NWYV6270LXYVK2VKNX2MMDKWYKLMGR48UAWX40Q2P2LM0";

#[test]
fn encrypted_backup_is_read_with_the_identity_only() {
    let store = MemoryStore::new(1);
    let written = write_for(&store, "a", &[Recipient::parse(RECIPIENT).unwrap()]).unwrap();
    assert_eq!(written.queues[0].name, "log");
    for (key, object) in store.objects() {
        let shown = String::from_utf8_lossy(&object);
        let is_age = object.starts_with(b"age-encryption.org/v1\n");
        assert_eq!(is_age, key != "a/manifest.json", "{key}");
        for secret in [
            "orders",
            "log\"",
            "sensors",
            "PHMSGS",
            "PHCHNK",
            "with a consumer",
        ] {
            assert!(!shown.contains(secret), "{key} has {secret}");
        }
    }
    let found = list(&store).unwrap();
    let listed = found[0].manifest.as_ref().unwrap();
    assert_eq!((listed.messages(), listed.retained_messages()), (6, 2));
    assert!(listed.encryption.is_some());

    // Without an identity, the encrypted objects are checked.
    let unnamed = check(&store, "a").unwrap();
    assert_eq!(unnamed.queues[0].name, "");
    let own = [Identity::parse(IDENTITY).unwrap()];
    let other = [Identity::parse(OTHER).unwrap()];
    let with = |identities: &[Identity]| verify(&store, &name("a"), identities, &mut |_| {});
    let named = with(&own).unwrap();
    assert_eq!(
        (&named.queues, &named.retained),
        (&written.queues, &written.retained)
    );
    assert!(failure(with(&other)).contains("encrypted for other recipients"));
    let text = failure(open_with_names(&store, &name("a"), &[]));
    assert!(text.contains("'a' is encrypted"), "{text}");
    let text = failure(read_definitions(&store, &name("a"), listed, &[]));
    assert!(text.contains("'a' is encrypted"), "{text}");
    let at = PartNumber::Queue(0, 0);
    let part = read_part(&store, &name("a"), listed, at, &own).unwrap();
    assert_eq!(read_chunks(part).unwrap().len(), 2);
    let text = failure(read_part(&store, &name("a"), listed, at, &other));
    assert!(text.contains("a/messages/00000000/00000000"), "{text}");

    let part = "a/messages/00000000/00000000";
    let mut damaged = store.objects().get(part).unwrap().to_vec();
    *damaged.last_mut().unwrap() ^= 1;
    store.set(part, Some(damaged.into()));
    let text = failure(check(&store, "a"));
    assert!(text.contains(part) && text.contains("SHA-256"), "{text}");
    assert_eq!(delete(&store, &name("a")).unwrap(), 6);
    assert!(store.objects().is_empty());
}

#[test]
fn records_of_another_kind_are_refused() {
    let store = MemoryStore::new(1);
    let definitions = Bytes::from_static(b"{}");
    let mut writer = ArchiveWriter::begin(&store, name("a"), info(), &definitions).unwrap();
    writer.begin_queue("/", "log", "stream");
    let text = failure(writer.append(page(&samples())));
    assert!(
        text.contains("queue 'log'") && text.contains("PHCHNK"),
        "{text}"
    );
    writer.end_queue(QueueContent::Included).unwrap();
    writer.begin_retained("shop");
    let text = failure(writer.append(page(&samples())));
    assert!(
        text.contains("vhost 'shop'") && text.contains("PHRTND"),
        "{text}"
    );
    // A marker has no messages.
    let mut builder = ChunkBuilder::new(16);
    builder.set_offset(b"reader", 1).unwrap();
    let tracking = builder.finish(0, 1, 1).unwrap();
    let text = read_chunks(chunk_page(&[tracking]))
        .unwrap_err()
        .to_string();
    assert!(text.contains("has no messages"), "{text}");
}

#[test]
fn backup_is_read_as_it_was_written() {
    let store = MemoryStore::new(1);
    write(&store, "a").unwrap();
    let manifest = check(&store, "a").unwrap();
    assert_eq!((manifest.messages(), manifest.queues.len()), (4, 3));
    assert_eq!(manifest.started_at, "2023-11-14T22:13:20.000Z");
    let part = read_part(&store, &name("a"), &manifest, PartNumber::Queue(0, 0), &[]).unwrap();
    let mut expected = samples().to_vec();
    expected.push(samples()[0].clone());
    assert_eq!(read_all(part).unwrap(), expected);
    let definitions = read_definitions(&store, &name("a"), &manifest, &[]).unwrap();
    assert_eq!(&definitions[..], b"{\"queues\": []}");
    // Names of queues are no parts of keys.
    let keys: Vec<String> = store.objects().into_keys().collect();
    assert_eq!(
        keys,
        [
            "a/definitions.json",
            "a/manifest.json",
            "a/messages/00000000/00000000"
        ]
    );
}

#[test]
fn parts_end_at_their_size() {
    let store = MemoryStore::new(1);
    let definitions = Bytes::from_static(b"{}");
    let mut writer = ArchiveWriter::begin(&store, name("a"), info(), &definitions).unwrap();
    writer.begin_queue("/", "q", "classic");
    let large = message(&vec![7; PART_BYTES / 2 + 1]);
    for _ in 0..3 {
        writer.append(page(std::slice::from_ref(&large))).unwrap();
    }
    let queue = writer.end_queue(QueueContent::Included).unwrap();
    let counts: Vec<u64> = queue.objects.iter().map(|o| o.messages).collect();
    assert_eq!(counts, [2, 1]);
    writer.finish(0).unwrap();
    assert_eq!(check(&store, "a").unwrap().messages(), 3);
}

#[test]
fn backup_without_manifest_is_incomplete() {
    let store = MemoryStore::new(1);
    write(&store, "a").unwrap();
    write(&store, "a-b").unwrap();
    store.set("a/manifest.json", None);
    store.set("note.txt", Some(Bytes::from_static(b"x")));
    let found = list(&store).unwrap();
    let states: Vec<(&str, bool)> = found
        .iter()
        .map(|b| (b.name.as_str(), b.manifest.is_ok()))
        .collect();
    assert_eq!(states, [("a-b", true), ("a", false)]);
    assert!(failure(check(&store, "a")).contains("'a' is incomplete"));
    assert!(failure(check(&store, "b")).contains("there is no backup 'b'"));
    assert!(failure(write(&store, "a")).contains("a backup 'a' exists"));
    assert_eq!(delete(&store, &name("a")).unwrap(), 2);
    assert!(failure(delete(&store, &name("a")).map(|_| ())).contains("no backup"));
    write(&store, "a").unwrap();
    check(&store, "a-b").unwrap();
}

#[test]
fn objects_that_belong_to_no_backup_are_neither_listed_nor_deleted() {
    let store = MemoryStore::new(1);
    write(&store, "a").unwrap();
    let other = [
        "a/note.txt",
        "a/messages/0/0",
        "a/messages/00000000/00000000.old",
        "home/letters/1",
        "home/messages/00000000/00000000",
    ];
    for key in other {
        store.set(key, Some(Bytes::from_static(b"x")));
    }
    let names: Vec<String> = list(&store)
        .unwrap()
        .iter()
        .map(|b| b.name.to_string())
        .collect();
    assert_eq!(names, ["a"]);
    assert_eq!(delete(&store, &name("a")).unwrap(), 3);
    let mut left: Vec<String> = store.objects().into_keys().collect();
    left.sort();
    let mut expected = other.map(str::to_owned);
    expected.sort();
    assert_eq!(left, expected);
    assert!(list(&store).unwrap().is_empty());
}

#[test]
fn damage_is_reported_with_the_object() {
    let store = MemoryStore::new(1);
    write(&store, "a").unwrap();
    let part = "a/messages/00000000/00000000";
    let whole = store.objects().get(part).unwrap().clone();
    let mut flipped = whole.to_vec();
    flipped[40] ^= 1;
    for (content, reason) in [
        (None, "it is missing"),
        (Some(whole.slice(1..)), "fewer bytes"),
        (Some([&whole[..], b"x"].concat().into()), "more bytes"),
        (Some(flipped.into()), "SHA-256"),
    ] {
        store.set(part, content);
        let text = failure(check(&store, "a"));
        assert!(text.contains(part) && text.contains(reason), "{text}");
    }
    store.set(part, Some(whole));
    check(&store, "a").unwrap();
    let manifest = store.objects().get("a/manifest.json").unwrap().clone();
    let text = String::from_utf8(manifest.to_vec()).unwrap();
    let changed = text.replace("orders", "orderz");
    store.set("a/manifest.json", Some(changed.into()));
    assert!(failure(check(&store, "a")).contains("checksum"));
}

/// A manifest with right checksums can still lie.
#[test]
fn wrong_counts_and_lengths_of_a_manifest_are_refused() {
    let store = MemoryStore::new(1);
    let manifest = write(&store, "a").unwrap();
    let with = |change: fn(&mut Manifest)| {
        let mut changed = manifest.clone();
        change(&mut changed);
        store.set("a/manifest.json", Some(changed.encode().into()));
        failure(check(&store, "a"))
    };
    let text = with(|m| m.queues[0].messages = 5);
    assert!(text.contains("do not add up"), "{text}");
    let text = with(|m| {
        m.queues[0].objects[0].messages = u64::MAX;
        m.queues[0].messages = u64::MAX;
    });
    assert!(text.contains("has 4 messages"), "{text}");
    let text = with(|m| {
        m.queues[0].objects[0].bytes = u64::MAX;
        m.queues[0].bytes = u64::MAX;
    });
    assert!(text.contains("the limit is"), "{text}");
    let text = with(|m| {
        let entry = m.queues[0].objects[0].clone();
        m.queues[0].objects.push(ObjectEntry {
            bytes: u64::MAX,
            ..entry
        });
    });
    assert!(text.contains("do not add up"), "{text}");
    let text = with(|m| m.definitions.bytes = u64::MAX);
    assert!(text.contains("the limit is"), "{text}");
}

#[test]
fn newer_versions_are_refused() {
    let mut newer = page(&[]).to_vec();
    newer[7] = 2;
    let error = read_all(newer.into()).unwrap_err();
    assert_eq!(error, RecordsError::Version(2));
    assert_eq!(read_all(Bytes::new()), Err(RecordsError::Magic("PHMSGS")));
    assert_eq!(
        read_all(Bytes::from_static(b"PHMSGS\0")),
        Err(RecordsError::Magic("PHMSGS"))
    );
}

#[test]
fn failing_store_never_yields_a_complete_backup_with_wrong_content() {
    let mut complete = 0;
    for seed in 0..200 {
        let store = MemoryStore::new(seed);
        store.set_faults(MemoryFaults {
            fails: 100,
            fails_after: 100,
            wrong_write: 50,
            lost_write: 50,
            ..MemoryFaults::default()
        });
        let written = write(&store, "a");
        store.set_faults(MemoryFaults::default());
        if written.is_ok() {
            complete += 1;
            assert_eq!(check(&store, "a").unwrap().messages(), 4);
        }
    }
    assert!(complete > 20, "{complete}");
}

#[test]
fn names_of_backups_are_checked() {
    for valid in ["a", "20260131T235959Z", "nightly_1.2-b"] {
        assert_eq!(name(valid).as_str(), valid);
    }
    let long = "x".repeat(129);
    for invalid in ["", ".", "..", ".a", "a/b", "a\\b", "é", "a b", &long] {
        assert!(BackupName::new(invalid).is_err(), "{invalid}");
    }
}

#[test]
fn directory_has_private_files_and_refuses_keys_that_leave_it() {
    let scratch = Scratch::new("directory");
    let store = DirectoryStore::create(&scratch.0.join("store")).unwrap();
    write(&store, "a").unwrap();
    check(&store, "a").unwrap();
    let mode = |path: &str| {
        let found = std::fs::metadata(scratch.0.join("store").join(path)).unwrap();
        found.permissions().mode() & 0o777
    };
    assert_eq!(mode("a/definitions.json"), 0o600);
    assert_eq!(mode("a/messages/00000000/00000000"), 0o600);
    assert_eq!(mode("a"), 0o700);
    for key in ["../x", "a/../../x", "/x", "a//b", "a/./b", "", "a\\b"] {
        let content = Bytes::from_static(b"x");
        assert!(store.create(key, content).is_err(), "{key}");
        assert!(store.get(key, 10).is_err(), "{key}");
        assert!(store.delete(key).is_err(), "{key}");
    }
    let again = store.create("a/manifest.json", Bytes::new());
    assert!(matches!(again, Err(StoreError::Exists { .. })), "{again:?}");
    assert_eq!(store.get("a/manifest.json", 3).unwrap().len(), 4);
    // An unfinished file is not listed, and does not prevent another write.
    let unfinished = scratch.0.join("store/b/definitions.json.unfinished");
    std::fs::create_dir_all(unfinished.parent().unwrap()).unwrap();
    std::fs::write(&unfinished, "x").unwrap();
    write(&store, "b").unwrap();
    assert_eq!(list(&store).unwrap().len(), 2);
    delete(&store, &name("a")).unwrap();
    assert_eq!(list(&store).unwrap().len(), 1);
    assert!(!scratch.0.join("store/a").exists());
    assert!(DirectoryStore::open(Path::new("/nonexistent/store")).is_err());
}

#[test]
fn prefix_separates_stores() {
    let store = MemoryStore::new(1);
    let first = PrefixStore::new(store.clone(), "x/y/");
    let second = PrefixStore::new(store.clone(), "");
    write(&first, "a").unwrap();
    assert_eq!(list(&first).unwrap().len(), 1);
    assert!(store.objects().keys().all(|key| key.starts_with("x/y/a/")));
    write(&second, "b").unwrap();
    delete(&first, &name("a")).unwrap();
    check(&second, "b").unwrap();
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = read_all(Bytes::from(bytes.clone()));
        let mut headed = page(&[]).to_vec();
        headed.extend_from_slice(&bytes);
        let _ = read_all(headed.into());
        let _ = Manifest::decode(&bytes);
        for begin in [chunks::begin, retained::begin] {
            let mut headed = Vec::new();
            begin(&mut headed);
            headed.extend_from_slice(&bytes);
            let _ = read_chunks(headed.clone().into());
            let _ = read_retained(headed.into());
        }
    }

    #[test]
    fn any_changed_byte_of_chunks_and_retained_messages_is_found(at in 8usize..400, bit in 0u8..8) {
        let chunks = [chunk(5, &[b"a", b"b"])];
        let mut changed = chunk_page(&chunks).to_vec();
        let place = at % changed.len();
        changed[place] ^= 1 << bit;
        prop_assert_ne!(read_chunks(changed.into()).ok(), Some(chunks.to_vec()));
        let mut changed = retained_page(&retained_samples()).to_vec();
        let place = at % changed.len();
        changed[place] ^= 1 << bit;
        prop_assert_ne!(read_retained(changed.into()).ok(), Some(retained_samples()));
    }

    #[test]
    fn any_changed_byte_is_found(at in 8usize..200, bit in 0u8..8) {
        let mut changed = page(&samples()).to_vec();
        let at = at % changed.len();
        changed[at] ^= 1 << bit;
        prop_assert_ne!(read_all(changed.into()).ok(), Some(samples().to_vec()));
    }

    #[test]
    fn any_truncation_is_found_or_ends_between_records(cut in 0usize..400) {
        let whole = page(&samples());
        let cut = cut % whole.len();
        if let Ok(read) = read_all(whole.slice(..cut)) {
            prop_assert!(read.len() < 3);
            prop_assert_eq!(&read[..], &samples()[..read.len()]);
        }
    }

    #[test]
    fn any_manifest_text_is_decoded_without_panic(text in "\\PC*") {
        let document = format!("{{\"format\":\"posthorn-backup\",\"format_version\":1,{text}");
        let _ = Manifest::decode(document.as_bytes());
    }

    #[test]
    fn records_are_restored(
        body in proptest::collection::vec(any::<u8>(), 0..300),
        failed in proptest::option::of(any::<u32>()),
        due_ms in proptest::option::of(any::<u64>()),
        acquired in any::<u32>(),
        redelivered in any::<bool>(),
    ) {
        let stored = StoredMessage { failed, due_ms, acquired, redelivered, ..message(&body) };
        prop_assert_eq!(read_all(page(std::slice::from_ref(&stored))), Ok(vec![stored]));
    }
}
