//! `backup restore`.

use super::definitions::Definitions;
use super::{Progress, RestoreOptions, failed, parse_name, write_result};
use crate::ctl::client::Client;
use crate::ctl::failure::Failure;
use crate::ctl::output::Output;
use backup::age::Identity;
use backup::{
    BackupName, Manifest, ObjectStore, PartNumber, QueueContent, QueueEntry, RecordKind,
    RecordsError, records,
};
use bytes::Bytes;
use serde_json::{Value as Json, json};
use std::time::Duration;

/// Bytes of one request. A message that is larger has a request of its own.
const REQUEST_BYTES: usize = 2 << 20;
/// Retained messages of one request: each is a change of the metadata.
const REQUEST_RETAINED: usize = 512;
/// Time in which a declared queue must have a leader.
const LEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Time between two attempts.
const PAUSE: Duration = Duration::from_millis(100);

/// A queue that gets messages.
struct Target {
    has_messages: bool,
    /// The offset behind the last message. None: it is no stream.
    end_offset: Option<u64>,
}

struct Restore<'a> {
    client: &'a Client,
    output: &'a Output,
    options: &'a RestoreOptions,
    store: Box<dyn ObjectStore>,
    identities: Vec<Identity>,
    name: BackupName,
    manifest: Manifest,
    restored: Vec<Json>,
    skipped: Vec<Json>,
    retained: RetainedCounts,
}

/// Retained messages by outcome.
#[derive(Default)]
struct RetainedCounts {
    stored: u64,
    /// Their topics have a message already.
    kept: u64,
}

/// Splits the records of a part into the bodies of requests.
fn for_each_request(
    kind: RecordKind,
    part: Bytes,
    (most_bytes, most_records): (usize, usize),
    mut send: impl FnMut(Vec<u8>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (mut body, mut records) = (Vec::new(), 0);
    let split = kind.each(part, |record, _| {
        let is_full = body.len() + record.len() > most_bytes || records >= most_records;
        if records > 0 && is_full {
            send(std::mem::take(&mut body)).map_err(PartError::Failure)?;
            records = 0;
        }
        if records == 0 {
            kind.begin(&mut body);
        }
        body.extend_from_slice(record);
        records += 1;
        Ok(())
    });
    match split {
        Ok(()) => {}
        Err(PartError::Failure(failure)) => return Err(failure),
        Err(PartError::Records(error)) => return Err(Failure::Usage(error.to_string())),
    }
    match records {
        0 => Ok(()),
        _ => send(body),
    }
}

enum PartError {
    Records(RecordsError),
    Failure(Failure),
}

impl From<RecordsError> for PartError {
    fn from(error: RecordsError) -> PartError {
        PartError::Records(error)
    }
}

impl Restore<'_> {
    /// The virtual host that gets the objects of one.
    fn vhost<'a>(&'a self, vhost: &'a str) -> &'a str {
        self.options.as_vhost.as_deref().unwrap_or(vhost)
    }

    fn is_chosen(&self, queue: &QueueEntry) -> bool {
        let names = &self.options.queues;
        self.options
            .vhost
            .as_ref()
            .is_none_or(|v| *v == queue.vhost)
            && (names.is_empty() || names.contains(&queue.name))
    }

    /// The definitions that are restored.
    fn definitions(&self) -> Result<Definitions, Failure> {
        let document =
            backup::read_definitions(&*self.store, &self.name, &self.manifest, &self.identities)
                .map_err(|error| failed(&error))?;
        let parsed = serde_json::from_slice(&document).ok();
        let definitions = parsed.and_then(Definitions::new);
        let mut definitions = definitions.ok_or_else(|| Failure::Unfulfilled {
            message: format!("the definitions of backup '{}' are not JSON", self.name),
            remedy: "Use another backup.",
        })?;
        if let Some(vhost) = &self.options.vhost {
            if !definitions.has_vhost(vhost) {
                let name = &self.name;
                let text = format!("backup '{name}' has no vhost '{vhost}'");
                return Err(Failure::Usage(text));
            }
            definitions.keep_vhosts(std::slice::from_ref(vhost));
            definitions.rename_vhost(vhost, self.vhost(vhost));
        }
        if !self.options.queues.is_empty() {
            definitions.keep_queues(&self.options.queues);
        }
        Ok(definitions)
    }

    /// Imports the definitions, except that of the user who restores: the password of that user would change.
    fn import_definitions(&self) -> Result<Option<Definitions>, Failure> {
        let mut definitions = self.definitions()?;
        for user in definitions.remove_unknown_users(self.client)? {
            self.output.warn(&format!(
                "the permissions of user '{user}' are not restored: the cluster has no such user"
            ));
        }
        let own = (self.client.user()).and_then(|user| definitions.take_user(user));
        let entries = definitions.import(self.client)?;
        self.output
            .progress(&format!("imported {entries} definitions"));
        Ok(own)
    }

    /// Returns the state of a queue. Waits for the leader of a queue that was just declared.
    fn target(&self, queue: &QueueEntry) -> Result<Target, Failure> {
        let vhost = self.vhost(&queue.vhost);
        let attempts = LEADER_TIMEOUT.as_millis() / PAUSE.as_millis();
        for _ in 0..attempts {
            match self.first_message(vhost, &queue.name) {
                Err(Failure::Refused { status: 503, .. }) => self.client.pause(PAUSE),
                result => return result,
            }
        }
        self.first_message(vhost, &queue.name)
    }

    fn first_message(&self, vhost: &str, queue: &str) -> Result<Target, Failure> {
        let mut cursor = None;
        loop {
            let page = self
                .client
                .export(vhost, queue, cursor.as_deref(), Some(1))?;
            let has_messages = page.body.len() > records::HEADER_BYTES;
            match page.next {
                Some(next) if !has_messages => cursor = Some(next),
                _ => {
                    return Ok(Target {
                        has_messages,
                        end_offset: page.end_offset,
                    });
                }
            }
        }
    }

    /// Returns the queue if its messages are to be restored.
    fn check_target(&self, queue: &QueueEntry) -> Result<Option<Target>, Failure> {
        let target = self.target(queue)?;
        if self.options.into_non_empty || !target.has_messages {
            return Ok(Some(target));
        }
        if self.options.skip_non_empty {
            return Ok(None);
        }
        Err(Failure::Unfulfilled {
            message: format!(
                "queue '{}' in vhost '{}' has messages: messages of the backup that are there already would be there twice",
                queue.name,
                self.vhost(&queue.vhost)
            ),
            remedy: "Purge the queue or delete it (a stream cannot be purged), or give --skip-non-empty to leave out such queues (to continue a restore that \
                     was interrupted), or --into-non-empty to restore into them.",
        })
    }

    /// Stores messages in a queue, which must take them all.
    fn import(
        &self,
        queue: &QueueEntry,
        next_offset: &mut Option<u64>,
        done: u64,
        body: Vec<u8>,
    ) -> Result<u64, Failure> {
        let vhost = self.vhost(&queue.vhost);
        let outcome = self.client.import(vhost, &queue.name, *next_offset, body)?;
        *next_offset = outcome["next_offset"].as_u64();
        let count = |key: &str| outcome[key].as_u64().unwrap_or(0);
        let stored = count("stored");
        if let Some(error) = outcome["error"].as_str() {
            return Err(Failure::Unfulfilled {
                message: format!(
                    "queue '{}' in vhost '{vhost}' has taken {} of {} messages: {error}",
                    queue.name,
                    done + stored,
                    queue.messages
                ),
                remedy: "Remove the cause, purge or delete this queue, and repeat the command with --skip-non-empty.",
            });
        }
        Ok(stored)
    }

    fn restore_queue(
        &self,
        number: usize,
        queue: &QueueEntry,
        target: &Target,
        progress: &mut Progress<'_>,
    ) -> Result<u64, Failure> {
        let (mut done, mut next_offset) = (0, target.end_offset);
        let kind = RecordKind::of_queue(&queue.kind);
        for part in 0..queue.objects.len() {
            let content = self.read_part(PartNumber::Queue(number, part))?;
            for_each_request(kind, content, (REQUEST_BYTES, usize::MAX), |body| {
                done += self.import(queue, &mut next_offset, done, body)?;
                progress.show(|| {
                    let QueueEntry { vhost, name, .. } = queue;
                    let vhost = self.vhost(vhost);
                    let all = queue.messages;
                    format!("queue '{name}' in vhost '{vhost}': {done} of {all} messages")
                });
                Ok(())
            })?;
        }
        Ok(done)
    }

    fn read_part(&self, at: PartNumber) -> Result<Bytes, Failure> {
        let identities = &self.identities;
        let part = backup::read_part(&*self.store, &self.name, &self.manifest, at, identities);
        part.map_err(|error| failed(&error))
    }

    fn import_retained(&mut self, vhost: &str, body: Vec<u8>) -> Result<(), Failure> {
        let outcome = self.client.import_retained(vhost, body)?;
        let count = |key: &str| outcome[key].as_u64().unwrap_or(0);
        self.retained.stored += count("stored");
        self.retained.kept += count("kept");
        match outcome["error"].as_str() {
            Some(error) => Err(Failure::Unfulfilled {
                message: format!(
                    "vhost '{vhost}' has taken {} retained messages: {error}",
                    self.retained.stored
                ),
                remedy: "Remove the cause, and repeat the command with --skip-non-empty.",
            }),
            None => Ok(()),
        }
    }

    /// Restores the retained messages of the chosen virtual hosts. It can be repeated: topics that have a message keep it.
    fn restore_retained(&mut self) -> Result<(), Failure> {
        let mut progress = Progress::new(self.output);
        for (number, entry) in self.manifest.retained.clone().iter().enumerate() {
            let chosen = self.options.vhost.as_ref();
            if chosen.is_some_and(|chosen| *chosen != entry.vhost) {
                continue;
            }
            let vhost = self.vhost(&entry.vhost).to_owned();
            for part in 0..entry.objects.len() {
                let content = self.read_part(PartNumber::Retained(number, part))?;
                let limits = (REQUEST_BYTES, REQUEST_RETAINED);
                for_each_request(RecordKind::Retained, content, limits, |body| {
                    self.import_retained(&vhost, body)?;
                    let stored = self.retained.stored;
                    progress.show(|| format!("vhost '{vhost}': {stored} retained messages"));
                    Ok(())
                })?;
            }
        }
        Ok(())
    }

    fn restore_messages(&mut self) -> Result<(), Failure> {
        let mut progress = Progress::new(self.output);
        let queues = self.manifest.queues.clone();
        let chosen = queues.iter().enumerate();
        let chosen: Vec<_> = chosen.filter(|(_, queue)| self.is_chosen(queue)).collect();
        for (_, queue) in &chosen {
            if queue.content == QueueContent::StreamNotIncluded {
                self.output.warn(&format!(
                    "stream '{}' in vhost '{}' is restored without messages: the backup does not have them",
                    queue.name,
                    self.vhost(&queue.vhost)
                ));
            }
        }
        let with_messages = chosen.iter().filter(|(_, queue)| queue.messages > 0);
        let with_messages: Vec<_> = with_messages.collect();
        // All before the first message is stored.
        for (_, queue) in &with_messages {
            self.check_target(queue)?;
        }
        for (number, queue) in with_messages {
            let shown = json!({
                "vhost": self.vhost(&queue.vhost),
                "name": queue.name,
                "messages": queue.messages,
            });
            let Some(target) = self.check_target(queue)? else {
                self.skipped.push(shown);
                continue;
            };
            let result = self.restore_queue(*number, queue, &target, &mut progress);
            if result.is_err() {
                self.output.warn(&format!(
                    "queue '{}' in vhost '{}' may have a part of its messages: purge or delete it before you repeat the command",
                    queue.name,
                    self.vhost(&queue.vhost)
                ));
            }
            result?;
            self.restored.push(shown);
        }
        Ok(())
    }

    fn total(&self) -> u64 {
        let counts = self.restored.iter().map(|q| q["messages"].as_u64());
        counts.flatten().sum()
    }

    /// Tells what is restored although the command has failed.
    fn report_interrupted(&self) {
        for queue in &self.restored {
            self.output.warn(&format!(
                "restored before the failure: queue '{}' in vhost '{}' with {} messages",
                queue["name"].as_str().unwrap_or_default(),
                queue["vhost"].as_str().unwrap_or_default(),
                queue["messages"]
            ));
        }
    }
}

pub(super) fn restore(
    client: &Client,
    output: &Output,
    options: &RestoreOptions,
) -> Result<(), Failure> {
    let identities = options.identity.read()?;
    let store = options.store.open(&options.from)?;
    let name = parse_name(&options.name)?;
    let manifest = backup::open_with_names(&*store, &name, &identities);
    let manifest = manifest.map_err(|error| failed(&error))?;
    let mut restore = Restore {
        client,
        output,
        options,
        store,
        identities,
        name,
        manifest,
        restored: Vec::new(),
        skipped: Vec::new(),
        retained: RetainedCounts::default(),
    };
    let mut names = options.queues.iter();
    let is_missing = |name: &&String| {
        let mut queues = restore.manifest.queues.iter();
        !queues.any(|queue| queue.name == **name && restore.is_chosen(queue))
    };
    if let Some(missing) = names.find(is_missing) {
        let text = format!("backup '{}' has no queue '{missing}'", restore.name);
        return Err(Failure::Usage(text));
    }
    let own = match options.messages_only {
        true => None,
        false => restore.import_definitions()?,
    };
    if !options.definitions_only {
        let mut result = restore.restore_messages();
        // They belong to no queue.
        if result.is_ok() && options.queues.is_empty() {
            result = restore.restore_retained();
        }
        if result.is_err() {
            restore.report_interrupted();
        }
        result?;
    }
    if let Some(own) = own {
        own.import(client)?;
        output.warn(&format!(
            "user '{}' is restored with the password that it has in the backup",
            client.user().unwrap_or_default()
        ));
    }
    for queue in &restore.skipped {
        output.warn(&format!(
            "queue '{}' in vhost '{}' has messages and was left out",
            queue["name"].as_str().unwrap_or_default(),
            queue["vhost"].as_str().unwrap_or_default()
        ));
    }
    if restore.retained.kept > 0 {
        output.warn(&format!(
            "{} topics have a retained message and keep it",
            restore.retained.kept
        ));
    }
    let (messages, queues) = (restore.total(), restore.restored.len());
    let retained = restore.retained.stored;
    match output.is_table() {
        true => output.say(&format!(
            "Restored {messages} messages of {queues} queues and {retained} retained messages from backup '{}', as of {}",
            restore.name, restore.manifest.started_at
        )),
        false => output.json(&json!({
            "name": restore.name.as_str(),
            "started_at": restore.manifest.started_at,
            "messages": messages,
            "retained_messages": retained,
            "queues": restore.restored,
            "skipped": restore.skipped,
        })),
    }
    let result = json!({
        "messages": messages,
        "retained_messages": retained,
        "queues": queues,
        "queues_skipped": restore.skipped.len(),
    });
    write_result(options.result_file.as_deref(), &result)
}
