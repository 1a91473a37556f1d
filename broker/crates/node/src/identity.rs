//! The node's identity: `identity.json`, the first file written to a data directory and the first
//! one read.
//!
//! The JSON object is followed by its CRC-32 as 32 characters of white space, high bit first: a
//! space for 0 and a tab for 1. Older versions ignore it. A file without a checksum (written by an
//! older version or by hand) is accepted.

use env::{Disk, Incarnation, NodeId, Rng};
use metadata::Name;
use serde::{Deserialize, Serialize};
use std::io;

/// Name of the file in the data directory.
pub const FILE: &str = "identity.json";
const TEMPORARY: &str = "identity.json.new";

/// Newest supported format.
const FORMAT: u32 = 1;

/// Maximum size of the identity file in bytes; 101 founders take 40 KiB.
const MAX_FILE: u64 = 1 << 20;

/// Length of the checksum in characters.
const CHECKSUM: usize = 32;

/// Maximum number of founders of a cluster.
pub const MAX_FOUNDERS: usize = 101;

/// A node's identity. It is stored durably before the node acts on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The id of the node.
    pub node: NodeId,
    /// Incremented at each start, before anything else happens.
    pub incarnation: Incarnation,
    /// The name at the last start.
    pub name: String,
    /// None: the node has never belonged to a cluster.
    pub cluster: Option<ClusterRecord>,
}

/// The cluster to which the node belongs, for the lifetime of its data directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterRecord {
    /// Never 0.
    pub id: u64,
    /// The cluster's first voters, the same on every node.
    pub founders: Vec<Founder>,
    /// Feature flags that all founders support, on a node that is a founder; and on every node the
    /// flag `shards_per_node` once it has learned that the cluster has enabled it.
    pub features: Vec<Name>,
}

/// A node that founds a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Founder {
    /// Its id.
    pub id: NodeId,
    /// Its name.
    pub name: String,
    /// host:port under which the others reach it.
    pub address: String,
}

/// Why the identity of a node cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file operation failed.
    #[error("{FILE}: {0}")]
    Io(#[from] io::Error),
    /// A newer version wrote the file.
    #[error(
        "{FILE}: format {found} is newer than this version supports ({FORMAT}); the file is left untouched"
    )]
    Newer {
        /// The format of the file.
        found: u32,
    },
    /// The file cannot be read as an identity.
    #[error("{FILE} is damaged: {what}; the file is left untouched")]
    Damaged {
        /// The damage.
        what: String,
    },
    /// The file is missing beside data.
    #[error(
        "{FILE} is missing, but `{found}/` holds data: without its identity this node could vote twice. Restore the file, \
         or remove the whole directory so that the node joins its cluster anew"
    )]
    Lost {
        /// The directory that has data.
        found: &'static str,
    },
    /// The identity belongs to a cluster, and the log is missing.
    #[error(
        "`wal/` holds no log file, but {FILE} says that this node belongs to cluster {cluster}: records that it acknowledged to other nodes are lost. \
         Restore the directory, or remove all of it so that the node joins its cluster anew"
    )]
    LogLost {
        /// The cluster in the identity.
        cluster: String,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredIdentity {
    format: u32,
    node_id: String,
    name: String,
    incarnation: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cluster: Option<StoredCluster>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredCluster {
    id: String,
    founders: Vec<StoredFounder>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    features: Vec<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredFounder {
    id: String,
    name: String,
    address: String,
}

/// The only part that is read of an unknown format.
#[derive(Deserialize)]
struct FormatOnly {
    format: u32,
}

impl Identity {
    /// Reads the identity, or creates one in an empty directory, and durably starts a new
    /// incarnation.
    pub fn start(
        disk: &dyn Disk,
        name: &str,
        rng: &mut dyn Rng,
    ) -> Result<Identity, IdentityError> {
        let mut identity = match read(disk)? {
            Some(identity) => identity,
            None => create_identity(disk, rng)?,
        };
        if let Some(cluster) = &identity.cluster
            && !has_log_file(disk)?
        {
            let cluster = id_text(cluster.id);
            return Err(IdentityError::LogLost { cluster });
        }
        identity.name = name.to_owned();
        identity.incarnation.0 += 1;
        identity.store(disk)?;
        Ok(identity)
    }

    /// Stores the identity; it is durable when this returns.
    pub fn store(&self, disk: &dyn Disk) -> Result<(), IdentityError> {
        let stored = StoredIdentity {
            format: FORMAT,
            node_id: id_text(self.node.0),
            name: self.name.clone(),
            incarnation: self.incarnation.0,
            cluster: self.cluster.as_ref().map(stored_cluster),
        };
        let mut text = serde_json::to_vec_pretty(&stored).map_err(io::Error::other)?;
        let sum = checksum(&text);
        text.extend_from_slice(&sum);
        text.push(b'\n');
        match disk.remove(TEMPORARY) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e.into()),
            _ => {}
        }
        let file = disk.create(TEMPORARY)?;
        file.write_at(0, &text)?;
        file.sync_data()?;
        disk.rename(TEMPORARY, FILE)?;
        disk.sync_dir("")?;
        Ok(())
    }
}

/// Preallocated files (`.spare`) contain no log records.
fn has_log_file(disk: &dyn Disk) -> io::Result<bool> {
    Ok(disk.list("wal")?.iter().any(|name| name.ends_with(".wal")))
}

fn checksum(object: &[u8]) -> [u8; CHECKSUM] {
    let sum = crc32fast::hash(object);
    std::array::from_fn(|bit| match sum << bit >> 31 {
        0 => b' ',
        _ => b'\t',
    })
}

/// Returns true if the object is followed by its checksum, or by nothing.
fn has_valid_checksum(text: &[u8]) -> bool {
    let end = text.iter().rposition(|b| *b == b'}').map_or(0, |at| at + 1);
    let (object, rest) = text.split_at(end);
    let rest = rest.strip_suffix(b"\n").unwrap_or(rest);
    rest.is_empty() || rest == checksum(object)
}

fn create_identity(disk: &dyn Disk, rng: &mut dyn Rng) -> Result<Identity, IdentityError> {
    for found in [
        "wal",
        "segments",
        "departed",
        "classic",
        "classic-inventory",
    ] {
        if !disk.list(found)?.is_empty() {
            return Err(IdentityError::Lost { found });
        }
    }
    Ok(Identity {
        node: NodeId(random_nonzero(rng)),
        incarnation: Incarnation(0),
        name: String::new(),
        cluster: None,
    })
}

/// A random number other than 0.
pub fn random_nonzero(rng: &mut dyn Rng) -> u64 {
    loop {
        let id = rng.next_u64();
        if id != 0 {
            return id;
        }
    }
}

/// Formats an ID for display and storage.
pub fn id_text(id: u64) -> String {
    format!("{id:016x}")
}

fn parse_id(text: &str) -> Result<u64, IdentityError> {
    match u64::from_str_radix(text, 16) {
        Ok(id) if id != 0 && text.len() == 16 => Ok(id),
        _ => Err(damaged("an id is not 16 hexadecimal digits above 0")),
    }
}

fn damaged(what: impl ToString) -> IdentityError {
    let what = what.to_string();
    IdentityError::Damaged { what }
}

fn stored_cluster(cluster: &ClusterRecord) -> StoredCluster {
    let founder = |f: &Founder| StoredFounder {
        id: id_text(f.id.0),
        name: f.name.clone(),
        address: f.address.clone(),
    };
    StoredCluster {
        id: id_text(cluster.id),
        founders: cluster.founders.iter().map(founder).collect(),
        features: cluster.features.iter().map(|f| f.to_string()).collect(),
    }
}

fn read(disk: &dyn Disk) -> Result<Option<Identity>, IdentityError> {
    let file = match disk.open(FILE) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let len = file.len()?;
    if len > MAX_FILE {
        return Err(damaged("too large"));
    }
    let mut bytes = vec![0; usize::try_from(len).map_err(damaged)?];
    let n = file.read_at(0, &mut bytes)?;
    bytes.truncate(n);
    let format = serde_json::from_slice::<FormatOnly>(&bytes).map_err(damaged)?;
    if format.format > FORMAT {
        let found = format.format;
        return Err(IdentityError::Newer { found });
    }
    if !has_valid_checksum(&bytes) {
        return Err(damaged("its checksum does not match"));
    }
    let stored: StoredIdentity = serde_json::from_slice(&bytes).map_err(damaged)?;
    let cluster = stored.cluster.map(read_cluster).transpose()?;
    Ok(Some(Identity {
        node: NodeId(parse_id(&stored.node_id)?),
        incarnation: Incarnation(stored.incarnation),
        name: stored.name,
        cluster,
    }))
}

fn read_cluster(stored: StoredCluster) -> Result<ClusterRecord, IdentityError> {
    if stored.founders.is_empty() || stored.founders.len() > MAX_FOUNDERS {
        return Err(damaged("a cluster has 1 to 101 founders"));
    }
    let mut founders = Vec::with_capacity(stored.founders.len());
    for f in stored.founders {
        founders.push(Founder {
            id: NodeId(parse_id(&f.id)?),
            name: f.name,
            address: f.address,
        });
    }
    Ok(ClusterRecord {
        id: parse_id(&stored.id)?,
        founders,
        features: stored.features.into_iter().map(Name::from).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use env::SeededRng;
    use env::sim::SimDisk;

    type Result = std::result::Result<(), Box<dyn std::error::Error>>;

    fn put(disk: &SimDisk, path: &str, bytes: &[u8]) -> io::Result<()> {
        let file = disk.create(path)?;
        file.write_at(0, bytes)?;
        file.sync_data()
    }

    #[test]
    fn restart_keeps_id_and_increments_incarnation() -> Result {
        let disk = SimDisk::new();
        let mut rng = SeededRng::new(1);
        let first = Identity::start(&disk, "a", &mut rng)?;
        assert_ne!(first.node.0, 0);
        assert_eq!(first.incarnation, Incarnation(1));
        let mut second = Identity::start(&disk, "b", &mut rng)?;
        assert_eq!(
            (second.node, second.incarnation),
            (first.node, Incarnation(2))
        );
        assert_eq!(second.name, "b");
        second.cluster = Some(ClusterRecord {
            id: 7,
            founders: vec![Founder {
                id: second.node,
                name: "b".into(),
                address: "b:1".into(),
            }],
            features: vec!["one".into()],
        });
        second.store(&disk)?;
        disk.create_dir("wal")?;
        put(&disk, "wal/0000000000000001.wal", b"x")?;
        assert_eq!(
            Identity::start(&disk, "b", &mut rng)?.cluster,
            second.cluster
        );
        Ok(())
    }

    #[test]
    fn identity_survives_crashes() -> Result {
        for seed in 0..200 {
            let disk = SimDisk::new();
            let mut rng = SeededRng::new(seed);
            let node = Identity::start(&disk, "a", &mut rng)?.node;
            let mut last = 1;
            for _ in 0..5 {
                disk.crash(&mut rng);
                let identity = Identity::start(&disk, "a", &mut rng)?;
                assert_eq!(identity.node, node);
                assert!(identity.incarnation.0 > last);
                last = identity.incarnation.0;
            }
        }
        Ok(())
    }

    #[test]
    fn unknown_format_is_refused_and_not_changed() -> Result {
        for (text, what) in [
            (r#"{"format":2,"anything":1}"#, "newer than this version"),
            (r#"{"format":1}"#, "damaged"),
            (
                r#"{"format":1,"node_id":"00","name":"a","incarnation":1}"#,
                "damaged",
            ),
            (
                r#"{"format":1,"node_id":"0000000000000000","name":"a","incarnation":1}"#,
                "damaged",
            ),
            ("garbage", "damaged"),
            ("", "damaged"),
        ] {
            let disk = SimDisk::new();
            put(&disk, FILE, text.as_bytes())?;
            let error = Identity::start(&disk, "a", &mut SeededRng::new(1))
                .err()
                .ok_or("accepted")?;
            assert!(error.to_string().contains(what), "{text}: {error}");
            let mut left = vec![0; text.len()];
            disk.open(FILE)?.read_at(0, &mut left)?;
            assert_eq!(left, text.as_bytes());
        }
        Ok(())
    }

    /// A flipped bit could yield another ID, an earlier incarnation or another cluster as valid
    /// JSON.
    #[test]
    fn bit_flip_never_yields_another_identity() -> Result {
        let disk = SimDisk::new();
        let mut rng = SeededRng::new(3);
        let mut first = Identity::start(&disk, "a", &mut rng)?;
        first.cluster = Some(ClusterRecord {
            id: 7,
            founders: vec![Founder {
                id: first.node,
                name: "a".into(),
                address: "a:1".into(),
            }],
            features: Vec::new(),
        });
        first.store(&disk)?;
        let file = disk.open(FILE)?;
        let mut valid_bytes = vec![0; usize::try_from(file.len()?)?];
        file.read_at(0, &mut valid_bytes)?;
        assert_eq!(read(&disk)?, Some(first.clone()));
        for (at, byte) in valid_bytes.iter().enumerate() {
            for bit in 0..8 {
                file.write_at(at as u64, &[byte ^ (1 << bit)])?;
                if let Ok(found) = read(&disk) {
                    assert_eq!(found, Some(first.clone()), "bit {bit} of byte {at}");
                }
            }
            file.write_at(at as u64, &[*byte])?;
        }
        // Written by an older version, without a checksum.
        let end = valid_bytes.len() - 1 - CHECKSUM;
        file.truncate(end as u64)?;
        assert_eq!(read(&disk)?, Some(first.clone()));
        file.write_at(end as u64, b"\n")?;
        assert_eq!(read(&disk)?, Some(first));
        Ok(())
    }

    #[test]
    fn data_without_identity_is_refused() -> Result {
        for found in ["departed", "classic", "classic-inventory"] {
            let disk = SimDisk::new();
            disk.create_dir(found)?;
            put(&disk, &format!("{found}/0000000000000005"), b"x")?;
            let error = Identity::start(&disk, "a", &mut SeededRng::new(1));
            assert!(matches!(error, Err(IdentityError::Lost { .. })), "{found}");
        }
        Ok(())
    }

    #[test]
    fn partially_lost_directory_is_refused() -> Result {
        let disk = SimDisk::new();
        disk.create_dir("wal")?;
        put(&disk, "wal/0000000000000001.wal", b"x")?;
        let error = Identity::start(&disk, "a", &mut SeededRng::new(1));
        assert!(matches!(error, Err(IdentityError::Lost { found: "wal" })));

        let disk = SimDisk::new();
        let mut identity = Identity::start(&disk, "a", &mut SeededRng::new(1))?;
        identity.cluster = Some(ClusterRecord {
            id: 1,
            founders: vec![Founder {
                id: identity.node,
                name: "a".into(),
                address: "a:1".into(),
            }],
            features: Vec::new(),
        });
        identity.store(&disk)?;
        let error = Identity::start(&disk, "a", &mut SeededRng::new(1));
        assert!(matches!(error, Err(IdentityError::LogLost { .. })));
        // None of these is a log file.
        disk.create_dir("wal")?;
        for name in ["0000000000000001.spare", "manifest", "new.tmp"] {
            put(&disk, &format!("wal/{name}"), b"x")?;
        }
        let error = Identity::start(&disk, "a", &mut SeededRng::new(1));
        assert!(matches!(error, Err(IdentityError::LogLost { .. })));
        Ok(())
    }
}
