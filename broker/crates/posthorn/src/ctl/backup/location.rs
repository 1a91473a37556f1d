//! The store of a backup: a directory or a bucket.

use crate::ctl::failure::Failure;
use crate::ctl::variable;
use backup::{DirectoryStore, ObjectStore, PrefixStore};
use s3_store::{S3Settings, S3Store};
use std::path::{Path, PathBuf};

/// How to reach a bucket. Without the files, the credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.
#[derive(Debug, clap::Args)]
pub(crate) struct StoreOptions {
    /// URL of the S3 API [default: $AWS_ENDPOINT_URL, else that of AWS for the region]
    #[arg(long = "s3-endpoint", value_name = "URL")]
    endpoint: Option<String>,
    /// Region of the bucket [default: $AWS_REGION, else us-east-1]
    #[arg(long = "s3-region", value_name = "REGION")]
    region: Option<String>,
    /// Put the bucket into the host name instead of the path
    #[arg(long = "s3-virtual-hosts")]
    virtual_hosts: bool,
    /// Permit an endpoint without TLS
    #[arg(long = "s3-allow-http")]
    allow_http: bool,
    /// File that contains the access key id [default: $AWS_ACCESS_KEY_ID]
    #[arg(long = "s3-access-key-id-file", value_name = "FILE")]
    access_key_id_file: Option<PathBuf>,
    /// File that contains the secret access key [default: $AWS_SECRET_ACCESS_KEY]
    #[arg(long = "s3-secret-access-key-file", value_name = "FILE")]
    secret_access_key_file: Option<PathBuf>,
}

/// A credential from a file or a variable.
fn credential(file: Option<&Path>, option: &str, name: &str) -> Result<String, Failure> {
    let text = match file {
        Some(file) => std::fs::read_to_string(file).map_err(|error| {
            let file = file.display();
            Failure::Usage(format!(
                "the file {file} of {option} cannot be read: {error}"
            ))
        })?,
        None => variable(name).ok_or_else(|| {
            Failure::Usage(format!("no credentials: set {name}, or give {option}"))
        })?,
    };
    Ok(text.trim().to_owned())
}

impl StoreOptions {
    /// The store that a backup is written to. A directory is created if it does not exist.
    pub(super) fn create(&self, place: &str) -> Result<Box<dyn ObjectStore>, Failure> {
        self.resolve(place, DirectoryStore::create)
    }

    /// The store that a backup is in.
    pub(super) fn open(&self, place: &str) -> Result<Box<dyn ObjectStore>, Failure> {
        self.resolve(place, DirectoryStore::open)
    }

    fn resolve(
        &self,
        place: &str,
        directory: fn(&Path) -> std::io::Result<DirectoryStore>,
    ) -> Result<Box<dyn ObjectStore>, Failure> {
        if let Some(bucket) = place.strip_prefix("s3://") {
            return self.bucket(place, bucket);
        }
        let path = place.strip_prefix("file://").unwrap_or(place);
        if path.is_empty() || path.contains("://") {
            return Err(Failure::Usage(format!(
                "'{place}' is not a store: give a directory, or s3://BUCKET/PREFIX"
            )));
        }
        let store = directory(Path::new(path)).map_err(|error| {
            Failure::Usage(format!("the directory '{path}' cannot be used: {error}"))
        })?;
        Ok(Box::new(store))
    }

    fn bucket(&self, place: &str, bucket: &str) -> Result<Box<dyn ObjectStore>, Failure> {
        let (bucket, prefix) = bucket.split_once('/').unwrap_or((bucket, ""));
        if bucket.is_empty() {
            return Err(Failure::Usage(format!(
                "'{place}' names no bucket: give s3://BUCKET/PREFIX"
            )));
        }
        let prefix = match prefix.trim_matches('/') {
            "" => String::new(),
            prefix => format!("{prefix}/"),
        };
        let region = self.region.clone().or_else(|| variable("AWS_REGION"));
        let region = region.unwrap_or_else(|| "us-east-1".to_owned());
        let endpoint = self
            .endpoint
            .clone()
            .or_else(|| variable("AWS_ENDPOINT_URL"));
        let endpoint = endpoint.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
        if !endpoint.starts_with("https://") && !self.allow_http {
            return Err(Failure::Usage(format!(
                "the endpoint '{endpoint}' has no TLS: messages and password hashes would be readable on the network. Give an \
                 https:// endpoint, or --s3-allow-http"
            )));
        }
        let key_file = self.access_key_id_file.as_deref();
        let secret_file = self.secret_access_key_file.as_deref();
        let settings = S3Settings {
            endpoint,
            bucket: bucket.to_owned(),
            region,
            access_key_id: credential(key_file, "--s3-access-key-id-file", "AWS_ACCESS_KEY_ID")?,
            virtual_hosts: self.virtual_hosts,
            ..S3Settings::default()
        };
        let secret = credential(
            secret_file,
            "--s3-secret-access-key-file",
            "AWS_SECRET_ACCESS_KEY",
        )?;
        let store = S3Store::with_secret(&settings, &secret);
        let store = store.map_err(|error| Failure::Usage(format!("'{place}': {error}")))?;
        Ok(Box::new(PrefixStore::new(store, &prefix)))
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    fn options() -> StoreOptions {
        StoreOptions {
            endpoint: Some("http://127.0.0.1:1".to_owned()),
            region: None,
            virtual_hosts: false,
            allow_http: false,
            access_key_id_file: None,
            secret_access_key_file: None,
        }
    }

    fn refusal(options: &StoreOptions, place: &str) -> String {
        let refused = options.open(place).map(|_| ()).unwrap_err();
        refused.to_string()
    }

    #[test]
    fn invalid_stores_are_refused_with_their_remedy() {
        let options = options();
        for (place, remedy) in [
            ("s3://", "give s3://BUCKET/PREFIX"),
            ("ftp://host/x", "give a directory"),
            ("", "give a directory"),
            ("/nonexistent/backups", "/nonexistent/backups"),
            ("s3://bucket", "--s3-allow-http"),
        ] {
            let text = refusal(&options, place);
            assert!(text.contains(remedy), "{place}: {text}");
        }
    }

    #[test]
    fn credentials_come_from_files() {
        let directory =
            std::env::temp_dir().join(format!("posthorn-location-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let file = directory.join("credential");
        std::fs::write(&file, "value\n").unwrap();
        let mut options = StoreOptions {
            allow_http: true,
            access_key_id_file: Some(file.clone()),
            secret_access_key_file: Some(file.clone()),
            ..options()
        };
        assert!(options.open("s3://bucket/prefix/").is_ok());
        options.secret_access_key_file = Some(directory.join("missing"));
        let text = refusal(&options, "s3://bucket");
        assert!(text.contains("--s3-secret-access-key-file"), "{text}");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
