//! `backup`: definitions and messages in an object store or a directory, and back.

mod create;
mod definitions;
mod keys;
mod location;
mod restore;

use super::client::Client;
use super::failure::Failure;
use super::output::{Column, Output};
use backup::age::Identity;
use backup::{ArchiveError, BackupName, Manifest, ObjectStore, QueueContent, Verified};
use env::Clock as _;
use env::real::RealClock;
use keys::IdentityOptions;
use location::StoreOptions;
use serde_json::{Value as Json, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time between two lines of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Subcommand)]
#[command(rename_all = "snake_case")]
pub(crate) enum Command {
    /// Write a backup of the definitions and messages while the cluster runs
    ///
    /// Every message that is in its queue from the start to the end of the backup is in it exactly once. Messages that come or
    /// leave meanwhile may be in it or not. Reading changes nothing in the queues. Each object is read back and compared, and
    /// the manifest, which makes the backup complete, is written last. Streams are included up to the end that they have when
    /// the command comes to them. Retained MQTT messages are included, and messages of exclusive queues are not.
    #[command(after_help = "Examples:\n  \
        posthorn ctl backup create --to /backups\n  \
        posthorn ctl backup create --to s3://backups/orders --s3-endpoint https://s3.example.com --name nightly-1\n  \
        posthorn ctl backup create --to /backups --vhost shop --queue orders")]
    Create {
        /// Directory, or s3://BUCKET/PREFIX
        #[arg(long, value_name = "STORE")]
        to: String,
        /// Name of the backup [default: the time, like 20260131T235959Z]
        #[arg(long)]
        name: Option<String>,
        /// Only this virtual host, without users; may be repeated
        #[arg(short = 'p', long = "vhost", value_name = "VHOST")]
        vhosts: Vec<String>,
        /// Only the messages of queues with this name, and no retained messages; may be repeated
        #[arg(long = "queue", value_name = "QUEUE")]
        queues: Vec<String>,
        /// Back up no messages
        #[arg(long = "definitions-only", conflicts_with = "queues")]
        definitions_only: bool,
        /// Encrypt definitions and messages for this public key of age (age1...); may be repeated
        #[arg(long = "encrypt-to", value_name = "RECIPIENT")]
        encrypt_to: Vec<String>,
        /// Write the counts of the backup to this file as one line of JSON
        #[arg(long = "result-file", value_name = "FILE")]
        result_file: Option<PathBuf>,
        #[command(flatten)]
        store: StoreOptions,
    },
    /// List the backups of a store
    List {
        /// Directory, or s3://BUCKET/PREFIX
        #[arg(long = "in", value_name = "STORE")]
        place: String,
        #[command(flatten)]
        store: StoreOptions,
    },
    /// Read a whole backup and check every object and message
    ///
    /// Of an encrypted backup without --identity, the encrypted objects are checked, and not the messages in them.
    Verify {
        /// Directory, or s3://BUCKET/PREFIX
        #[arg(long = "in", value_name = "STORE")]
        place: String,
        name: String,
        #[command(flatten)]
        identity: IdentityOptions,
        #[command(flatten)]
        store: StoreOptions,
    },
    /// Restore definitions and messages into a cluster
    ///
    /// Definitions come first. Objects that exist stay as they are, except users, permissions, policies and parameters, which
    /// are replaced. Messages go to the queue that they were in, and not through exchanges. They are ready in the order of the
    /// queue; delayed messages stay delayed until their time. Delivery counts and times to live begin anew. Streams keep the
    /// times of their messages, and get new offsets. Retained MQTT messages are stored for topics that have none.
    #[command(after_help = "Examples:\n  \
        posthorn ctl backup restore --from /backups nightly-1\n  \
        posthorn ctl backup restore --from /backups nightly-1 --vhost shop --queue orders\n  \
        posthorn ctl backup restore --from /backups nightly-1 --vhost shop --as-vhost shop-copy")]
    Restore(Box<RestoreOptions>),
    /// Delete a backup, complete or not
    Delete {
        /// Directory, or s3://BUCKET/PREFIX
        #[arg(long = "in", value_name = "STORE")]
        place: String,
        name: String,
        /// Succeed if the store has no such backup
        #[arg(long = "if-exists")]
        if_exists: bool,
        #[command(flatten)]
        store: StoreOptions,
    },
}

/// The parts of a backup to restore, and their targets.
#[derive(Debug, clap::Args)]
pub(crate) struct RestoreOptions {
    /// Directory, or s3://BUCKET/PREFIX
    #[arg(long, value_name = "STORE")]
    from: String,
    name: String,
    /// Only this virtual host, without users
    #[arg(short = 'p', long)]
    vhost: Option<String>,
    /// Virtual host that gets the objects and messages of --vhost
    #[arg(long = "as-vhost", value_name = "VHOST", requires = "vhost")]
    as_vhost: Option<String>,
    /// Only queues with this name, with their messages and without their bindings and retained messages; may be repeated
    #[arg(long = "queue", value_name = "QUEUE")]
    queues: Vec<String>,
    /// Restore no messages
    #[arg(long = "definitions-only", conflicts_with = "messages_only")]
    definitions_only: bool,
    /// Restore no definitions: the queues must exist
    #[arg(long = "messages-only")]
    messages_only: bool,
    /// Restore the messages also into queues that have messages; messages that are there already are then there twice
    #[arg(long = "into-non-empty", conflicts_with = "skip_non_empty")]
    into_non_empty: bool,
    /// Leave out queues that have messages, to continue a restore that was interrupted
    #[arg(long = "skip-non-empty")]
    skip_non_empty: bool,
    /// Write the counts of the restore to this file as one line of JSON
    #[arg(long = "result-file", value_name = "FILE")]
    result_file: Option<PathBuf>,
    #[command(flatten)]
    identity: IdentityOptions,
    #[command(flatten)]
    store: StoreOptions,
}

const BACKUPS: &[Column] = &[
    ("name", &["name"]),
    ("state", &["state"]),
    ("cluster", &["cluster"]),
    ("started_at", &["started_at"]),
    ("queues", &["queues"]),
    ("messages", &["messages"]),
    ("bytes", &["bytes"]),
];

const QUEUES: &[Column] = &[
    ("vhost", &["vhost"]),
    ("queue", &["name"]),
    ("type", &["type"]),
    ("content", &["content"]),
    ("messages", &["messages"]),
    ("bytes", &["bytes"]),
];

fn failed(error: &ArchiveError) -> Failure {
    let remedy = match error {
        ArchiveError::Store(_) => {
            "Check the address, the credentials and the free space of the store, and repeat the command."
        }
        ArchiveError::Missing(_) | ArchiveError::Incomplete(_) => {
            "`backup list` shows the backups of a store."
        }
        ArchiveError::Exists(_) => "`backup list` shows the backups of a store.",
        ArchiveError::Encrypted(_) | ArchiveError::WrongIdentity { .. } => {
            "Give --identity with the file of a private key that belongs to one of the recipients."
        }
        _ => "`backup verify` checks a backup.",
    };
    Failure::Unfulfilled {
        message: error.to_string(),
        remedy,
    }
}

fn parse_name(name: &str) -> Result<BackupName, Failure> {
    BackupName::new(name).map_err(|error| Failure::Usage(error.to_string()))
}

/// Milliseconds since 1970.
fn wall() -> u64 {
    RealClock::new().wall().0
}

/// Lines about the progress of long work on standard error.
struct Progress<'a> {
    output: &'a Output,
    clock: RealClock,
    shown: env::Time,
}

impl Progress<'_> {
    fn new(output: &Output) -> Progress<'_> {
        let clock = RealClock::new();
        Progress {
            output,
            shown: clock.now(),
            clock,
        }
    }

    /// Shows a line, but not more often than the interval.
    fn show(&mut self, line: impl FnOnce() -> String) {
        let now = self.clock.now();
        if now.since(self.shown) >= PROGRESS_INTERVAL {
            self.shown = now;
            self.output.progress(&line());
        }
    }
}

/// Commands that need no node.
pub(crate) fn perform_offline(output: &Output, command: &Command) -> Option<Result<(), Failure>> {
    match command {
        Command::List { place, store } => Some(list(output, place, store)),
        Command::Verify {
            place,
            name,
            identity,
            store,
        } => Some(verify(output, place, name, identity, store)),
        Command::Delete {
            place,
            name,
            if_exists,
            store,
        } => Some(delete(output, place, name, *if_exists, store)),
        Command::Create { .. } | Command::Restore(_) => None,
    }
}

pub(crate) fn perform(client: &Client, output: &Output, command: &Command) -> Result<(), Failure> {
    if let Some(result) = perform_offline(output, command) {
        return result;
    }
    match command {
        Command::Create {
            to,
            name,
            vhosts,
            queues,
            definitions_only,
            encrypt_to,
            result_file,
            store,
        } => {
            let recipients = keys::recipients(encrypt_to)?;
            let store = store.create(to)?;
            let scope = create::Scope {
                recipients,
                vhosts,
                queues,
                definitions_only: *definitions_only,
            };
            let manifest = create::create(client, output, &*store, name.as_deref(), &scope)?;
            write_result(result_file.as_deref(), &result_of(&manifest))
        }
        Command::Restore(options) => restore::restore(client, output, options),
        Command::List { .. } | Command::Verify { .. } | Command::Delete { .. } => Ok(()),
    }
}

fn list(output: &Output, place: &str, store: &StoreOptions) -> Result<(), Failure> {
    let store = store.open(place)?;
    let found = backup::list(&*store).map_err(|error| failed(&error))?;
    let shown = found.iter().map(|backup| match &backup.manifest {
        Ok(manifest) => json!({
            "name": backup.name.as_str(),
            "state": "complete",
            "cluster": manifest.cluster,
            "broker_version": manifest.broker_version,
            "started_at": manifest.started_at,
            "finished_at": manifest.finished_at,
            "queues": manifest.queues.len(),
            "messages": manifest.messages(),
            "retained_messages": manifest.retained_messages(),
            "bytes": manifest.bytes(),
            "encryption": manifest.encryption.as_ref().map(|encryption| &encryption.format),
        }),
        Err(ArchiveError::Incomplete(_)) => {
            json!({"name": backup.name.as_str(), "state": "incomplete"})
        }
        Err(error) => json!({
            "name": backup.name.as_str(),
            "state": "damaged",
            "error": error.to_string(),
        }),
    });
    output.list(&Json::Array(shown.collect()), BACKUPS)
}

/// Reads a whole backup, with progress.
fn check(
    output: &Output,
    store: &dyn ObjectStore,
    name: &BackupName,
    identities: &[Identity],
) -> Result<Manifest, Failure> {
    let mut progress = Progress::new(output);
    let mut show = |verified: &Verified| {
        progress.show(|| {
            format!(
                "verified {} objects with {} messages and {} bytes",
                verified.objects, verified.messages, verified.bytes
            )
        });
    };
    backup::verify(store, name, identities, &mut show).map_err(|error| failed(&error))
}

fn verify(
    output: &Output,
    place: &str,
    name: &str,
    identity: &IdentityOptions,
    store: &StoreOptions,
) -> Result<(), Failure> {
    let identities = identity.read()?;
    let store = store.open(place)?;
    let name = parse_name(name)?;
    let manifest = check(output, &*store, &name, &identities)?;
    if manifest.encryption.is_some() && identities.is_empty() {
        output.warn(
            "only the encrypted objects are checked: give --identity to check the messages in them",
        );
    }
    report(output, &name, &manifest, "is complete and undamaged")
}

fn delete(
    output: &Output,
    place: &str,
    name: &str,
    if_exists: bool,
    store: &StoreOptions,
) -> Result<(), Failure> {
    // A directory that does not exist has no backup either.
    let store = match if_exists {
        true => store.create(place)?,
        false => store.open(place)?,
    };
    let name = parse_name(name)?;
    let objects = match backup::delete(&*store, &name) {
        Err(ArchiveError::Missing(_)) if if_exists => {
            output.say(&format!("There is no backup '{name}'"));
            return Ok(());
        }
        result => result.map_err(|error| failed(&error))?,
    };
    output.say(&format!("Deleted backup '{name}' with {objects} objects"));
    Ok(())
}

/// The counts of a backup. A program can read them where the list of queues would be too long.
fn result_of(manifest: &Manifest) -> Json {
    let included = |queue: &&backup::QueueEntry| queue.content == QueueContent::Included;
    let included = manifest.queues.iter().filter(included).count();
    json!({
        "started_at": manifest.started_at,
        "messages": manifest.messages(),
        "retained_messages": manifest.retained_messages(),
        "bytes": manifest.bytes(),
        "queues": manifest.queues.len(),
        "queues_not_included": manifest.queues.len() - included,
    })
}

/// Writes the result of a command to the file that the user asked for.
fn write_result(file: Option<&Path>, result: &Json) -> Result<(), Failure> {
    let Some(file) = file else { return Ok(()) };
    std::fs::write(file, format!("{result}\n")).map_err(|error| Failure::Unfulfilled {
        message: format!(
            "the command has succeeded, but the file {} cannot be written: {error}",
            file.display()
        ),
        remedy: "Give another file.",
    })
}

fn shown_queues(manifest: &Manifest) -> Json {
    let queues = manifest.queues.iter().map(|queue| {
        json!({
            "vhost": queue.vhost,
            "name": queue.name,
            "type": queue.kind,
            "content": queue.content,
            "messages": queue.messages,
            "bytes": queue.bytes,
        })
    });
    Json::Array(queues.collect())
}

/// Shows a backup, and warns about messages that it does not have.
fn report(
    output: &Output,
    name: &BackupName,
    manifest: &Manifest,
    state: &str,
) -> Result<(), Failure> {
    for queue in &manifest.queues {
        let why = match queue.content {
            QueueContent::Included => continue,
            QueueContent::StreamNotIncluded => {
                "is a stream, and the feature flag stream_backups was not enabled"
            }
            QueueContent::Deleted => "was deleted during the backup",
        };
        // The names of an encrypted backup are unknown without an identity.
        if queue.name.is_empty() {
            continue;
        }
        output.warn(&format!(
            "the messages of queue '{}' in vhost '{}' are not in backup '{name}': it {why}",
            queue.name, queue.vhost
        ));
    }
    match output.is_table() {
        true => {
            output.list(&shown_queues(manifest), QUEUES)?;
            output.say(&format!(
                "Backup '{name}' of cluster '{}' {state}: {} messages of {} queues, {} retained messages, {} bytes, as of {}",
                manifest.cluster,
                manifest.messages(),
                manifest.queues.len(),
                manifest.retained_messages(),
                manifest.bytes(),
                manifest.started_at
            ));
        }
        false => output.json(&json!({
            "name": name.as_str(),
            "cluster": manifest.cluster,
            "broker_version": manifest.broker_version,
            "started_at": manifest.started_at,
            "finished_at": manifest.finished_at,
            "messages": manifest.messages(),
            "retained_messages": manifest.retained_messages(),
            "bytes": manifest.bytes(),
            "queues": shown_queues(manifest),
        })),
    }
    Ok(())
}
