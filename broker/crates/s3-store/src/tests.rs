use super::*;

#[test]
fn unreachable_store_is_unavailable_and_the_error_has_no_secret() {
    let file = std::env::temp_dir().join(format!("s3-store-test-{}", std::process::id()));
    std::fs::write(&file, "the-secret\n").expect("writes");
    let store = S3Store::new(&S3Settings {
        // Nothing listens on the discard port.
        endpoint: "http://127.0.0.1:9".to_owned(),
        bucket: "bucket".to_owned(),
        access_key_id: "the-key".to_owned(),
        secret_access_key_file: file.clone(),
        ..S3Settings::default()
    });
    let _ = std::fs::remove_file(&file);
    let store = store.expect("settings are valid");
    let error = store.get("key", 10).expect_err("there is no server");
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    let text = format!("{error} {store:?}");
    assert!(
        !text.contains("the-secret") && !text.contains("Signature"),
        "{text}"
    );
}
