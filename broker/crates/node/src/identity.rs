//! Who this node is: `identity.json`, the first thing written into a data directory and the first thing read.
//!
//! Behind the object stands its CRC-32 in 32 characters of white space, high bit first, a space for 0 and a tab for 1: programs of before,
//! which know no such field, pass over it. A file without it (theirs, or one that people wrote) is read as it is.

use env::{Disk, Incarnation, NodeId, Rng};
use metadata::Name;
use serde::{Deserialize, Serialize};
use std::io;

pub const FILE: &str = "identity.json";
const TEMPORARY: &str = "identity.json.new";

/// Newest format this program knows.
const FORMAT: u32 = 1;

/// Largest identity file; 101 founders take 40 KiB.
const MAX_FILE: u64 = 1 << 20;

/// Characters of the checksum.
const CHECKSUM: usize = 32;

/// Founders of one cluster at the most.
pub const MAX_FOUNDERS: usize = 101;

/// A node's identity. Every value of it that was ever acted on is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub node: NodeId,
    /// Grown with each start, before anything else happens.
    pub incarnation: Incarnation,
    /// The name at the last start.
    pub name: String,
    /// None: has never belonged to a cluster.
    pub cluster: Option<ClusterRecord>,
}

/// The cluster a node belongs to, for as long as its directory lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterRecord {
    /// Never 0.
    pub id: u64,
    /// The cluster's first voters, the same on every node.
    pub founders: Vec<Founder>,
    /// Feature flags that all founders know; empty on a node that is none of them.
    pub features: Vec<Name>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Founder {
    pub id: NodeId,
    pub name: String,
    pub address: String,
}

#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("{FILE}: {0}")]
    Io(#[from] io::Error),
    #[error(
        "{FILE}: format {found} is newer than this program knows ({FORMAT}); the file is left untouched"
    )]
    Newer { found: u32 },
    #[error("{FILE} is damaged: {what}; the file is left untouched")]
    Damaged { what: String },
    #[error(
        "{FILE} is missing, but `{found}/` holds data: without its identity this node could vote twice. Restore the file, \
         or remove the whole directory so that the node joins its cluster anew"
    )]
    Lost { found: &'static str },
    #[error(
        "`wal/` holds no log file, but {FILE} says that this node belongs to cluster {cluster}: what it promised to others is lost. \
         Restore the directory, or remove all of it so that the node joins its cluster anew"
    )]
    LogLost { cluster: String },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
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

/// Only this is read of a format that is not ours.
#[derive(Deserialize)]
struct FormatOnly {
    format: u32,
}

impl Identity {
    /// Reads the identity, or makes one in an empty directory, and begins a new incarnation durably.
    pub fn start(
        disk: &dyn Disk,
        name: &str,
        rng: &mut dyn Rng,
    ) -> Result<Identity, IdentityError> {
        let mut identity = match read(disk)? {
            Some(identity) => identity,
            None => fresh(disk, rng)?,
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

    /// Durable when it returns.
    pub fn store(&self, disk: &dyn Disk) -> Result<(), IdentityError> {
        let stored = Stored {
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

/// Files that wait to be used again (`.spare`) hold nothing of the log.
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

/// Whether what stands behind the object is its checksum, or nothing.
fn is_whole(text: &[u8]) -> bool {
    let end = text.iter().rposition(|b| *b == b'}').map_or(0, |at| at + 1);
    let (object, rest) = text.split_at(end);
    let rest = rest.strip_suffix(b"\n").unwrap_or(rest);
    rest.is_empty() || rest == checksum(object)
}

fn fresh(disk: &dyn Disk, rng: &mut dyn Rng) -> Result<Identity, IdentityError> {
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
        node: NodeId(nonzero(rng)),
        incarnation: Incarnation(0),
        name: String::new(),
        cluster: None,
    })
}

/// Random and not 0.
pub fn nonzero(rng: &mut dyn Rng) -> u64 {
    loop {
        let id = rng.next_u64();
        if id != 0 {
            return id;
        }
    }
}

/// Ids as people see them.
pub fn id_text(id: u64) -> String {
    format!("{id:016x}")
}

fn id_from(text: &str) -> Result<u64, IdentityError> {
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
    if !is_whole(&bytes) {
        return Err(damaged("its checksum does not match"));
    }
    let stored: Stored = serde_json::from_slice(&bytes).map_err(damaged)?;
    let cluster = stored.cluster.map(read_cluster).transpose()?;
    Ok(Some(Identity {
        node: NodeId(id_from(&stored.node_id)?),
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
            id: NodeId(id_from(&f.id)?),
            name: f.name,
            address: f.address,
        });
    }
    Ok(ClusterRecord {
        id: id_from(&stored.id)?,
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
    fn keeps_its_id_and_grows_its_incarnation() -> Result {
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
    fn survives_a_crash_at_any_time() -> Result {
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
    fn refuses_what_it_does_not_understand_and_leaves_it() -> Result {
        for (text, what) in [
            (r#"{"format":2,"anything":1}"#, "newer than this program"),
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

    /// Another id, an earlier life or another cluster would be as good JSON as the right one.
    #[test]
    fn a_bent_bit_never_makes_another_node() -> Result {
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
        let mut whole = vec![0; usize::try_from(file.len()?)?];
        file.read_at(0, &mut whole)?;
        assert_eq!(read(&disk)?, Some(first.clone()));
        for (at, byte) in whole.iter().enumerate() {
            for bit in 0..8 {
                file.write_at(at as u64, &[byte ^ (1 << bit)])?;
                if let Ok(found) = read(&disk) {
                    assert_eq!(found, Some(first.clone()), "bit {bit} of byte {at}");
                }
            }
            file.write_at(at as u64, &[*byte])?;
        }
        // Of a program of before, which wrote no checksum.
        let end = whole.len() - 1 - CHECKSUM;
        file.truncate(end as u64)?;
        assert_eq!(read(&disk)?, Some(first.clone()));
        file.write_at(end as u64, b"\n")?;
        assert_eq!(read(&disk)?, Some(first));
        Ok(())
    }

    #[test]
    fn data_without_an_identity_is_refused() -> Result {
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
    fn refuses_a_half_lost_directory() -> Result {
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
        // Neither is a log.
        disk.create_dir("wal")?;
        for name in ["0000000000000001.spare", "manifest", "new.tmp"] {
            put(&disk, &format!("wal/{name}"), b"x")?;
        }
        let error = Identity::start(&disk, "a", &mut SeededRng::new(1));
        assert!(matches!(error, Err(IdentityError::LogLost { .. })));
        Ok(())
    }
}
