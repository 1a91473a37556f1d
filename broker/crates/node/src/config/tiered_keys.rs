//! Keys of tiered storage of streams.

use super::keys::{ConfigKey, filled, number, path};
use super::values::{parse_bool, parse_bytes};
use s3_store::S3Settings;
use std::time::Duration;

/// The object store for sealed segments of streams. It is off without an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TieredConfig {
    /// The bucket.
    pub s3: S3Settings,
    /// Begins all keys; empty, or ends in `/`.
    pub prefix: String,
    /// The endpoint may be without TLS.
    pub allow_http: bool,
    /// Bytes of a stream on the disk of a node above which segments that are in the store are deleted there.
    pub local_max_bytes: Option<u64>,
    /// Age above which segments that are in the store are deleted on the disk.
    pub local_max_age: Option<Duration>,
}

impl Default for TieredConfig {
    fn default() -> TieredConfig {
        TieredConfig {
            s3: S3Settings {
                region: "us-east-1".to_owned(),
                ..S3Settings::default()
            },
            prefix: String::new(),
            allow_http: false,
            local_max_bytes: None,
            local_max_age: None,
        }
    }
}

impl TieredConfig {
    /// Returns true if segments go to an object store.
    pub fn is_on(&self) -> bool {
        !self.s3.endpoint.is_empty()
    }

    /// Missing or contradictory keys.
    pub(super) fn check(&self) -> Vec<String> {
        let mut errors = Vec::new();
        let is_secret_set = !self.s3.secret_access_key_file.as_os_str().is_empty();
        if !self.is_on() {
            if *self != TieredConfig::default() {
                let text =
                    "`stream.tiered.endpoint` is missing: the other keys `stream.tiered.*` need it";
                errors.push(text.to_owned());
            }
            return errors;
        }
        let needed = [
            ("bucket", !self.s3.bucket.is_empty()),
            ("access_key_id", !self.s3.access_key_id.is_empty()),
            ("secret_access_key_file", is_secret_set),
        ];
        for (name, is_set) in needed {
            if !is_set {
                errors.push(format!(
                    "`stream.tiered.{name}` is missing: `stream.tiered.endpoint` needs it"
                ));
            }
        }
        if self.s3.endpoint.starts_with("http://") && !self.allow_http {
            let text = "`stream.tiered.endpoint` has no TLS: use https, or set `stream.tiered.allow_http = true` \
                        if the network is trusted";
            errors.push(text.to_owned());
        }
        errors
    }
}

fn endpoint(text: &str) -> Option<String> {
    let rest = text
        .strip_prefix("https://")
        .or(text.strip_prefix("http://"))?;
    filled(rest).map(|_| text.trim_end_matches('/').to_owned())
}

/// A part of keys. Nothing in it needs an escape in a URL.
fn prefix(text: &str) -> Option<String> {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-_./".contains(&b);
    let text = text.trim_matches('/');
    let is_valid = text.len() <= 255 && text.bytes().all(is_plain);
    is_valid.then(|| match text.is_empty() {
        true => String::new(),
        false => format!("{text}/"),
    })
}

/// All keys, in the order of the reference.
pub(super) const TIERED_KEYS: &[ConfigKey] = &[
    ConfigKey {
        name: "stream.tiered.endpoint",
        accepts: "a URL with http or https, without a path",
        default: "",
        doc: "S3 API of the object store for sealed segments of streams; tiered storage is off \
              without it. All nodes of a cluster need the same `stream.tiered` settings.",
        set: |c, _, v| endpoint(v).map(|e| c.tiered.s3.endpoint = e),
    },
    ConfigKey {
        name: "stream.tiered.bucket",
        accepts: "a name of 1 to 255 bytes",
        default: "",
        doc: "Bucket, which must exist.",
        set: |c, _, v| filled(v).map(|b| c.tiered.s3.bucket = b),
    },
    ConfigKey {
        name: "stream.tiered.prefix",
        accepts: "letters, digits, `-`, `_`, `.` and `/`; at most 255 bytes",
        default: "",
        doc: "Begins the keys of all objects; the id of the cluster follows.",
        set: |c, _, v| prefix(v).map(|p| c.tiered.prefix = p),
    },
    ConfigKey {
        name: "stream.tiered.region",
        accepts: "a name of 1 to 255 bytes",
        default: "us-east-1",
        doc: "Region of the bucket.",
        set: |c, _, v| filled(v).map(|r| c.tiered.s3.region = r),
    },
    ConfigKey {
        name: "stream.tiered.access_key_id",
        accepts: "a text of 1 to 255 bytes",
        default: "",
        doc: "Access key id, which may list the bucket, and read, write and delete its objects.",
        set: |c, _, v| filled(v).map(|k| c.tiered.s3.access_key_id = k),
    },
    ConfigKey {
        name: "stream.tiered.secret_access_key_file",
        accepts: "a path",
        default: "",
        doc: "File with the secret access key, which is read at the start.",
        set: |c, _, v| path(v).map(|p| c.tiered.s3.secret_access_key_file = p),
    },
    ConfigKey {
        name: "stream.tiered.allow_http",
        accepts: "true or false",
        default: "false",
        doc: "Allows an endpoint without TLS.",
        set: |c, _, v| parse_bool(v).map(|b| c.tiered.allow_http = b),
    },
    ConfigKey {
        name: "stream.tiered.virtual_hosts",
        accepts: "true or false",
        default: "false",
        doc: "Puts the bucket into the host name instead of the path.",
        set: |c, _, v| parse_bool(v).map(|b| c.tiered.s3.virtual_hosts = b),
    },
    ConfigKey {
        name: "stream.tiered.local_max_bytes",
        accepts: "bytes, or a number with kB, MB, GB, KiB, MiB or GiB",
        default: "",
        doc: "Bytes of each stream that a node keeps on its disk: whole segments above it are deleted \
              there once they are verified in the store. Without it and \
              `stream.tiered.local_max_age` they stay.",
        set: |c, _, v| parse_bytes(v).map(|n| c.tiered.local_max_bytes = Some(n)),
    },
    ConfigKey {
        name: "stream.tiered.local_max_age",
        accepts: "seconds, 1 to 4294967295",
        default: "",
        doc: "Age above which whole segments are deleted on the disk once they are verified in the \
              store.",
        set: |c, _, v| {
            number(v, 1, u32::MAX)
                .map(|s| c.tiered.local_max_age = Some(Duration::from_secs(s.into())))
        },
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_keys_and_an_endpoint_without_tls_are_named() {
        let mut config = TieredConfig::default();
        assert_eq!(config.check(), Vec::<String>::new());
        config.s3.bucket = "b".to_owned();
        let errors = config.check();
        assert!(
            errors.len() == 1 && errors[0].contains("`stream.tiered.endpoint`"),
            "{errors:?}"
        );
        config.s3.endpoint = endpoint("http://store:9000/").expect("valid");
        let errors = config.check().join("\n");
        for key in ["access_key_id", "secret_access_key_file", "allow_http"] {
            assert!(
                errors.contains(&format!("`stream.tiered.{key}")),
                "{errors}"
            );
        }
        config.s3.access_key_id = "a".to_owned();
        config.s3.secret_access_key_file = "f".into();
        config.allow_http = true;
        assert_eq!(config.check(), Vec::<String>::new());
    }

    #[test]
    fn prefix_ends_in_a_slash_and_needs_no_escape() {
        assert_eq!(prefix("a/b/"), Some("a/b/".to_owned()));
        assert_eq!(prefix(""), Some(String::new()));
        assert_eq!(prefix("a b"), None);
        assert_eq!(endpoint("store:9000"), None);
    }
}
