//! `backup create`.

use super::definitions::Definitions;
use super::{Progress, check, failed, parse_name, report, wall};
use crate::ctl::client::Client;
use crate::ctl::failure::Failure;
use crate::ctl::output::Output;
use audit::rfc3339;
use backup::age::Recipient;
use backup::{ArchiveWriter, BackupInfo, BackupName, Manifest, ObjectStore, QueueContent};
use bytes::Bytes;
use env::WallTime;

/// Which part of the cluster.
pub(super) struct Scope<'a> {
    /// Empty: all.
    pub vhosts: &'a [String],
    /// Names of queues. Empty: all.
    pub queues: &'a [String],
    /// No messages.
    pub definitions_only: bool,
    /// Empty: the backup is not encrypted.
    pub recipients: Vec<Recipient>,
}

/// The name of a backup of this time: `20260131T235959Z`.
fn name_of_time(at: u64) -> String {
    let text = rfc3339(WallTime(at));
    let seconds = text.split('.').next().unwrap_or_default();
    format!("{}Z", seconds.replace(['-', ':'], ""))
}

fn definitions(client: &Client, scope: &Scope<'_>) -> Result<Definitions, Failure> {
    let document = client.get(&["definitions"])?;
    let mut definitions = Definitions::new(document).ok_or_else(|| Failure::Unfulfilled {
        message: "the node has answered with something else than definitions".to_owned(),
        remedy: "Is --url the management address of a node?",
    })?;
    let missing = scope.vhosts.iter().find(|v| !definitions.has_vhost(v));
    if let Some(vhost) = missing {
        return Err(Failure::Usage(format!("vhost '{vhost}' does not exist")));
    }
    if !scope.vhosts.is_empty() {
        definitions.keep_vhosts(scope.vhosts);
    }
    let queues = definitions.queues();
    let is_missing = |name: &&String| !queues.iter().any(|queue| queue.name == **name);
    if let Some(name) = scope.queues.iter().find(is_missing) {
        return Err(Failure::Usage(format!(
            "queue '{name}' does not exist in the virtual hosts of the backup, or is exclusive"
        )));
    }
    Ok(definitions)
}

/// Adds the messages of a queue to the archive. Returns false if the queue was deleted meanwhile.
fn add_queue(
    client: &Client,
    writer: &mut ArchiveWriter<'_>,
    (vhost, name): (&str, &str),
    progress: &mut Progress<'_>,
) -> Result<bool, Failure> {
    let mut cursor = None;
    let mut messages = 0;
    loop {
        let page = match client.export(vhost, name, cursor.as_deref(), None) {
            Err(Failure::Refused { status: 404, .. }) => return Ok(false),
            result => result?,
        };
        messages += writer.append(page.body).map_err(|error| failed(&error))?;
        progress.show(|| format!("queue '{name}' in vhost '{vhost}': {messages} messages"));
        match page.next {
            Some(next) => cursor = Some(next),
            None => return Ok(true),
        }
    }
}

/// Adds the retained messages of a virtual host to the archive.
fn add_retained(
    client: &Client,
    writer: &mut ArchiveWriter<'_>,
    vhost: &str,
    progress: &mut Progress<'_>,
) -> Result<(), Failure> {
    let mut cursor = None;
    let mut messages = 0;
    writer.begin_retained(vhost);
    loop {
        let page = match client.export_retained(vhost, cursor.as_deref()) {
            // Older versions do not know the request, and the virtual host may be deleted meanwhile.
            Err(Failure::Refused { status: 404, .. }) => break,
            result => result?,
        };
        messages += writer.append(page.body).map_err(|error| failed(&error))?;
        progress.show(|| format!("vhost '{vhost}': {messages} retained messages"));
        match page.next {
            Some(next) => cursor = Some(next),
            None => break,
        }
    }
    writer.end_retained().map_err(|error| failed(&error))
}

pub(super) fn create(
    client: &Client,
    output: &Output,
    store: &dyn ObjectStore,
    name: Option<&str>,
    scope: &Scope<'_>,
) -> Result<Manifest, Failure> {
    let started_ms = wall();
    let name: BackupName = match name {
        Some(name) => parse_name(name)?,
        None => parse_name(&name_of_time(started_ms))?,
    };
    let definitions = definitions(client, scope)?;
    let info = BackupInfo {
        cluster: definitions.text("original_cluster_name"),
        broker_version: definitions.text("product_version"),
        started_ms,
        recipients: scope.recipients.clone(),
    };
    let document = Bytes::from(definitions.encode());
    let begun = ArchiveWriter::begin(store, name.clone(), info, &document);
    let mut writer = begun.map_err(|error| failed(&error))?;
    let mut progress = Progress::new(output);
    let queues = definitions.queues();
    let is_chosen = |queue: &&super::definitions::DefinedQueue| {
        !scope.definitions_only && (scope.queues.is_empty() || scope.queues.contains(&queue.name))
    };
    let has_streams = queues
        .iter()
        .filter(is_chosen)
        .any(|queue| queue.kind == "stream");
    let includes_streams = has_streams && client.has_feature("stream_backups")?;
    for queue in queues.iter().filter(is_chosen) {
        let label = (queue.vhost.as_str(), queue.name.as_str());
        writer.begin_queue(label.0, label.1, &queue.kind);
        let content = match queue.kind.as_str() {
            "stream" if !includes_streams => QueueContent::StreamNotIncluded,
            _ => match add_queue(client, &mut writer, label, &mut progress)? {
                true => QueueContent::Included,
                false => QueueContent::Deleted,
            },
        };
        writer.end_queue(content).map_err(|error| failed(&error))?;
    }
    // They belong to no queue.
    if !scope.definitions_only && scope.queues.is_empty() {
        for vhost in definitions.vhosts() {
            add_retained(client, &mut writer, &vhost, &mut progress)?;
        }
    }
    let manifest = writer.finish(wall()).map_err(|error| failed(&error))?;
    // Each object was compared when it was written; this reads the objects that a restore will read.
    check(output, store, &name, &[])?;
    report(output, &name, &manifest, "is written and verified")?;
    Ok(manifest)
}
