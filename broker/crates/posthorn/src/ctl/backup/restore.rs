//! `backup restore`.

use super::definitions::Definitions;
use super::{Progress, RestoreOptions, failed, parse_name, write_result};
use crate::ctl::client::Client;
use crate::ctl::failure::Failure;
use crate::ctl::output::Output;
use backup::records::{self, Records};
use backup::{BackupName, Manifest, ObjectStore, QueueContent, QueueEntry};
use serde_json::{Value as Json, json};
use std::time::Duration;

/// Bytes of one request. A message that is larger has a request of its own.
const REQUEST_BYTES: usize = 2 << 20;
/// Time in which a declared queue must have a leader.
const LEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Time between two attempts.
const PAUSE: Duration = Duration::from_millis(100);

struct Restore<'a> {
    client: &'a Client,
    output: &'a Output,
    options: &'a RestoreOptions,
    store: Box<dyn ObjectStore>,
    name: BackupName,
    manifest: Manifest,
    restored: Vec<Json>,
    skipped: Vec<Json>,
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
        let document = backup::read_definitions(&*self.store, &self.name, &self.manifest)
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

    /// Returns true if a queue has a message. Waits for the leader of a queue that was just declared.
    fn has_messages(&self, queue: &QueueEntry) -> Result<bool, Failure> {
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

    fn first_message(&self, vhost: &str, queue: &str) -> Result<bool, Failure> {
        let mut cursor = None;
        loop {
            let page = self
                .client
                .export(vhost, queue, cursor.as_deref(), Some(1))?;
            match page.next {
                _ if page.body.len() > records::HEADER_BYTES => return Ok(true),
                Some(next) => cursor = Some(next),
                None => return Ok(false),
            }
        }
    }

    /// Returns true if the messages of a queue are to be restored.
    fn check_target(&self, queue: &QueueEntry) -> Result<bool, Failure> {
        if self.options.into_non_empty || !self.has_messages(queue)? {
            return Ok(true);
        }
        if self.options.skip_non_empty {
            return Ok(false);
        }
        Err(Failure::Unfulfilled {
            message: format!(
                "queue '{}' in vhost '{}' has messages: messages of the backup that are there already would be there twice",
                queue.name,
                self.vhost(&queue.vhost)
            ),
            remedy: "Purge or delete the queue, or give --skip-non-empty to leave out such queues (to continue a restore that \
                     was interrupted), or --into-non-empty to restore into them.",
        })
    }

    /// Stores messages in a queue, which must take them all.
    fn import(&self, queue: &QueueEntry, done: u64, body: Vec<u8>) -> Result<u64, Failure> {
        let vhost = self.vhost(&queue.vhost);
        let outcome = self.client.import(vhost, &queue.name, body)?;
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
                remedy: "Remove the cause, purge this queue, and repeat the command with --skip-non-empty.",
            });
        }
        Ok(stored)
    }

    fn restore_queue(
        &self,
        number: usize,
        queue: &QueueEntry,
        progress: &mut Progress<'_>,
    ) -> Result<u64, Failure> {
        let mut done = 0;
        for part in 0..queue.objects.len() {
            let content =
                backup::read_part(&*self.store, &self.name, &self.manifest, (number, part))
                    .map_err(|error| failed(&error))?;
            let mut body = Vec::new();
            let invalid = |error: records::RecordsError| Failure::Usage(error.to_string());
            let mut found = Records::new(content).map_err(invalid)?.peekable();
            while let Some(record) = found.next() {
                let record = record.map_err(invalid)?;
                if body.is_empty() {
                    records::begin(&mut body);
                }
                body.extend_from_slice(&record.raw);
                let next = found.peek().and_then(|next| next.as_ref().ok());
                let next = next.map_or(usize::MAX, |next| next.raw.len());
                if body.len().saturating_add(next) > REQUEST_BYTES {
                    done += self.import(queue, done, std::mem::take(&mut body))?;
                    progress.show(|| {
                        let QueueEntry { vhost, name, .. } = queue;
                        let vhost = self.vhost(vhost);
                        let all = queue.messages;
                        format!("queue '{name}' in vhost '{vhost}': {done} of {all} messages")
                    });
                }
            }
        }
        Ok(done)
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
            if !self.check_target(queue)? {
                self.skipped.push(shown);
                continue;
            }
            let result = self.restore_queue(*number, queue, &mut progress);
            if result.is_err() {
                self.output.warn(&format!(
                    "queue '{}' in vhost '{}' may have a part of its messages: purge it before you repeat the command",
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
    let store = options.store.open(&options.from)?;
    let name = parse_name(&options.name)?;
    let manifest = backup::open(&*store, &name).map_err(|error| failed(&error))?;
    let mut restore = Restore {
        client,
        output,
        options,
        store,
        name,
        manifest,
        restored: Vec::new(),
        skipped: Vec::new(),
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
        let result = restore.restore_messages();
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
    let (messages, queues) = (restore.total(), restore.restored.len());
    match output.is_table() {
        true => output.say(&format!(
            "Restored {messages} messages of {queues} queues from backup '{}', as of {}",
            restore.name, restore.manifest.started_at
        )),
        false => output.json(&json!({
            "name": restore.name.as_str(),
            "started_at": restore.manifest.started_at,
            "messages": messages,
            "queues": restore.restored,
            "skipped": restore.skipped,
        })),
    }
    let result = json!({
        "messages": messages,
        "queues": queues,
        "queues_skipped": restore.skipped.len(),
    });
    write_result(options.result_file.as_deref(), &result)
}
