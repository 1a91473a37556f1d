//! A backup on a real S3 server, which `test/tiered/run` starts.
#![forbid(unsafe_code)]

use backup::records::{self, MessageState, StoredMessage};
use backup::{ArchiveWriter, BackupInfo, BackupName, PrefixStore, QueueContent};
use bytes::Bytes;
use env::WallTime;
use message::{MessageBuilder, Protocol};
use s3_store::{S3Settings, S3Store};

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: use test/tiered/run"))
}

fn page(count: usize) -> Bytes {
    let builder = MessageBuilder {
        protocol: Protocol::Amqp091,
        durable: true,
        priority: None,
        ttl_ms: None,
        received: WallTime(1),
        exchange: "",
        routing_keys: &["q"],
        properties: &[0, 0],
    };
    let body = vec![7; 1 << 20];
    let message = builder.build(body.len(), [&body[..]]).expect("a message");
    let stored = StoredMessage {
        state: MessageState::Ready,
        redelivered: false,
        failed: None,
        acquired: 0,
        due_ms: None,
        message,
    };
    let mut out = Vec::new();
    records::begin(&mut out);
    for _ in 0..count {
        records::append(&mut out, &stored).expect("a record");
    }
    out.into()
}

#[test]
#[ignore = "needs a server: test/tiered/run"]
fn backup_is_written_listed_verified_and_deleted() {
    let settings = S3Settings {
        endpoint: variable("TIERED_ENDPOINT"),
        bucket: variable("TIERED_BUCKET"),
        access_key_id: variable("TIERED_ACCESS_KEY_ID"),
        secret_access_key_file: variable("TIERED_SECRET_FILE").into(),
        ..S3Settings::default()
    };
    let store = S3Store::new(&settings).expect("settings are valid");
    let store = PrefixStore::new(store, "backup-test/");
    for name in ["a", "b"] {
        let name = BackupName::new(name).expect("a name");
        // What an earlier run may have left.
        let _ = backup::delete(&store, &name);
        let definitions = Bytes::from_static(b"{}");
        let info = BackupInfo::default();
        let mut writer =
            ArchiveWriter::begin(&store, name.clone(), info.clone(), &definitions).expect("begins");
        let exists = ArchiveWriter::begin(&store, name.clone(), info, &definitions);
        assert!(exists.is_err(), "{exists:?}");
        writer.begin_queue("/", "q", "classic");
        for _ in 0..5 {
            writer.append(page(5)).expect("writes");
        }
        let queue = writer.end_queue(QueueContent::Included).expect("writes");
        assert!(queue.objects.len() > 1, "{queue:?}");
        let listed = backup::list(&store).expect("lists");
        let own = listed.iter().find(|backup| backup.name == name);
        assert!(
            own.is_some_and(|backup| backup.manifest.is_err()),
            "{listed:?}"
        );
        writer.finish(1).expect("finishes");
        let manifest = backup::verify(&store, &name, &[], &mut |_| {}).expect("verifies");
        assert_eq!(manifest.messages(), 25);
    }
    let listed = backup::list(&store).expect("lists");
    assert!(listed.iter().all(|backup| backup.manifest.is_ok()));
    let names: Vec<&str> = listed.iter().map(|backup| backup.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    for name in ["a", "b"] {
        let name = BackupName::new(name).expect("a name");
        let objects = backup::delete(&store, &name).expect("deletes");
        assert!(objects > 3, "{objects}");
    }
    assert!(backup::list(&store).expect("lists").is_empty());
}
