//! Tests against a real server, which `test/tiered/run` starts.
#![forbid(unsafe_code)]

use bytes::Bytes;
use env::sim::SimDisk;
use env::{Time, WallTime};
use ids::QueueId;
use s3_store::{S3Settings, S3Store};
use std::sync::Arc;
use stream_log::{LogConfig, Retention, StreamLog};
use stream_tier::{ObjectStore, Remote, StoreError, Tier, TierConfig};

const STREAM: QueueId = QueueId(7);

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: use test/tiered/run"))
}

fn settings() -> S3Settings {
    S3Settings {
        endpoint: variable("TIERED_ENDPOINT"),
        bucket: variable("TIERED_BUCKET"),
        access_key_id: variable("TIERED_ACCESS_KEY_ID"),
        secret_access_key_file: variable("TIERED_SECRET_FILE").into(),
        ..S3Settings::default()
    }
}

fn store() -> S3Store {
    S3Store::new(&settings()).expect("settings are valid")
}

#[test]
#[ignore = "needs a server: test/tiered/run"]
fn objects_are_created_once_read_listed_and_deleted() {
    let store = store();
    let content = Bytes::from_static(b"content of an object");
    for key in ["calls/a", "calls/b", "calls/c"] {
        store.delete(key).expect("deletes what may be left");
        store.create(key, content.clone()).expect("creates");
    }
    let exists = Err(StoreError::Exists {
        key: "calls/a".to_owned(),
    });
    assert_eq!(
        store.create("calls/a", Bytes::from_static(b"other")),
        exists
    );
    assert_eq!(store.get("calls/a", 100).expect("reads"), content);
    assert_eq!(
        store.get("calls/a", 4).expect("reads").len(),
        5,
        "one beyond the limit"
    );
    assert_eq!(store.head("calls/a"), Ok(content.len() as u64));
    assert_eq!(
        store.list("calls/", ""),
        Ok(vec!["calls/a".into(), "calls/b".into(), "calls/c".into()])
    );
    assert_eq!(
        store.list("calls/", "calls/a"),
        Ok(vec!["calls/b".into(), "calls/c".into()])
    );
    assert_eq!(store.list("calls/", "calls/c"), Ok(Vec::new()));
    for key in ["calls/a", "calls/b", "calls/c"] {
        store.delete(key).expect("deletes");
        let missing = StoreError::Missing {
            key: key.to_owned(),
        };
        assert_eq!(store.get(key, 10), Err(missing.clone()));
        assert_eq!(store.head(key), Err(missing));
        store.delete(key).expect("a missing object is no error");
    }
}

#[test]
#[ignore = "needs a server: test/tiered/run"]
fn segments_are_uploaded_read_through_and_deleted() {
    let disk = SimDisk::new();
    let config = LogConfig {
        max_segment_bytes: 3 << 20,
        ..LogConfig::default()
    };
    let (mut log, _) = StreamLog::open(&disk, STREAM, config, 0).expect("opens");
    let body = |n: u8| vec![n; 1 << 20];
    for n in 0..12 {
        let mut builder = log.builder();
        builder.push_message(&body(n), None).expect("fits");
        log.append(&mut builder, 1, WallTime(n.into()))
            .expect("appends");
        while let Some(job) = log.take_append() {
            log.append_done(job.run(&disk)).expect("written");
        }
    }
    log.commit(log.next_offset());
    while let Some(job) = log.take_maintenance() {
        log.maintenance_done(job.run(&disk)).expect("done");
    }
    let remote = Arc::new(Remote::new(Box::new(store()), "tier/"));
    stream_tier::purge(&remote, STREAM).expect("deletes what may be left");
    let local = Retention {
        max_bytes: Some(1),
        max_age: None,
    };
    let config = TierConfig {
        remote: remote.clone(),
        local,
    };
    let mut tier = Tier::new(STREAM, config.clone(), Time(0));
    tier.set_leading(Some(1), Time(0));
    let none = Retention::default();
    while let Some(job) = tier.take_job(Time(0), WallTime(0), none, &mut log) {
        tier.done(Time(0), job.run(&disk));
    }
    assert_eq!(tier.take_faults(), Vec::<String>::new());
    let cut = tier
        .local_cut(WallTime(0), &log)
        .expect("segments are in the store");
    assert!(log.release_before(cut));
    // Another node reads them.
    let mut reader = Tier::new(STREAM, config, Time(0));
    let job = reader.take_job(Time(0), WallTime(0), none, &mut log);
    reader.done(Time(0), job.expect("loads").run(&disk));
    let (mut offset, mut found) = (0, 0);
    while let Some(mut read) = reader.read_offset(offset, log.first_offset()) {
        (read.max_bytes, read.max_chunks) = (1 << 20, 10);
        let result = read.run();
        assert_eq!(result.error, None);
        found += result
            .chunks
            .iter()
            .map(|c| c.entries().count())
            .sum::<usize>();
        assert!(result.next > offset);
        offset = result.next;
    }
    assert!(
        offset == log.first_offset() && found >= 8,
        "{found} up to {offset}"
    );
    stream_tier::purge(&remote, STREAM).expect("deletes");
    assert_eq!(store().list("tier/", ""), Ok(Vec::new()));
}
