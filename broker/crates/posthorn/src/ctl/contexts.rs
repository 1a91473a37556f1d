//! Contexts: a file with named addresses, users and certificate files.

use super::failure::Failure;
use super::output::{Column, Output};
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Largest file in bytes.
const MAX_FILE: u64 = 1 << 20;

/// A named cluster. Passwords are not stored, only the name of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Context {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) password_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cacert: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cert: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<PathBuf>,
}

/// The contents of the file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contexts {
    /// The context of commands without --context.
    #[serde(skip_serializing_if = "Option::is_none")]
    current: Option<String>,
    #[serde(default)]
    contexts: BTreeMap<String, Context>,
}

#[derive(Debug, clap::Subcommand)]
#[command(rename_all = "snake_case")]
pub(crate) enum Command {
    /// Store the address, user and files of this command line under a name
    ///
    /// The file is $POSTHORN_CONTEXTS, or ~/.config/posthorn/contexts.json. It has no passwords: name a file with
    /// --password-file.
    #[command(after_help = "Example:\n  \
        posthorn ctl set_context prod --url https://mq.example.org:15671 --user admin --password-file ~/.mq")]
    SetContext { name: String },
    /// Use a context for all commands that do not name one with --context
    UseContext { name: String },
    /// Delete a context
    DeleteContext { name: String },
    /// List the contexts
    ListContexts,
}

const COLUMNS: &[Column] = &[
    ("current", &["current"]),
    ("name", &["name"]),
    ("url", &["url"]),
    ("user", &["user"]),
    ("password_file", &["password_file"]),
    ("cacert", &["cacert"]),
];

/// The file of contexts. None if neither `POSTHORN_CONTEXTS` nor a home directory is set.
fn default_file() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(file) = set("POSTHORN_CONTEXTS") {
        return Some(PathBuf::from(file));
    }
    let config = set("XDG_CONFIG_HOME").map(PathBuf::from);
    let config = config.or_else(|| Some(Path::new(&set("HOME")?).join(".config")));
    Some(config?.join("posthorn").join("contexts.json"))
}

fn file_error(action: &str, file: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::Usage(format!(
        "the contexts {} cannot be {action}: {error}",
        file.display()
    ))
}

/// Reads the file. Without a file there are no contexts.
fn read(file: &Path) -> Result<Contexts, Failure> {
    let mut text = String::new();
    let read = fs::File::open(file).and_then(|f| f.take(MAX_FILE + 1).read_to_string(&mut text));
    match read {
        Ok(_) if text.len() as u64 > MAX_FILE => Err(file_error(
            "read",
            file,
            &format!("larger than {MAX_FILE} bytes"),
        )),
        Ok(_) => serde_json::from_str(&text).map_err(|e| file_error("read", file, &e)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Contexts::default()),
        Err(e) => Err(file_error("read", file, &e)),
    }
}

/// Replaces the file, so that a reader never sees a part of it.
fn write(file: &Path, contexts: &Contexts) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(contexts).unwrap_or_default() + "\n";
    let temporary = file.with_extension(format!("{}.tmp", std::process::id()));
    let directory = file.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(directory)
        .and_then(|()| fs::write(&temporary, text))
        .and_then(|()| fs::rename(&temporary, file))
        .map_err(|e| file_error("written", file, &e))
}

fn no_context(name: &str, contexts: &Contexts) -> Failure {
    let known: Vec<&str> = contexts.contexts.keys().map(String::as_str).collect();
    Failure::Usage(match known.as_slice() {
        [] => {
            format!("there is no context '{name}'; create it with `set_context {name} --url URL`")
        }
        known => format!(
            "there is no context '{name}'; the contexts are {}",
            known.join(", ")
        ),
    })
}

/// The context with this name, or the current one. The default has no values.
pub(crate) fn resolve(name: Option<&str>) -> Result<Context, Failure> {
    let Some(file) = default_file() else {
        return match name {
            None => Ok(Context::default()),
            Some(_) => Err(no_file()),
        };
    };
    let contexts = read(&file)?;
    match name.or(contexts.current.as_deref()) {
        None => Ok(Context::default()),
        Some(name) => {
            let found = contexts.contexts.get(name).cloned();
            found.ok_or_else(|| no_context(name, &contexts))
        }
    }
}

fn no_file() -> Failure {
    Failure::Usage("contexts need a file: set POSTHORN_CONTEXTS or HOME".to_owned())
}

/// Performs a command on the file. `given` has the options of the command line.
pub(crate) fn perform(output: &Output, command: &Command, given: Context) -> Result<(), Failure> {
    let file = default_file().ok_or_else(no_file)?;
    let mut contexts = read(&file)?;
    let result = match command {
        Command::ListContexts => return output.list(&rows(&contexts), COLUMNS),
        Command::SetContext { name } => {
            if given.url.is_none() {
                return Err(Failure::Usage(format!(
                    "context '{name}' needs an address: give --url"
                )));
            }
            contexts.contexts.insert(name.clone(), absolute(given)?);
            format!("Stored context '{name}' in {}", file.display())
        }
        Command::UseContext { name } => {
            if !contexts.contexts.contains_key(name) {
                return Err(no_context(name, &contexts));
            }
            contexts.current = Some(name.clone());
            format!("Commands use context '{name}'")
        }
        Command::DeleteContext { name } => {
            if contexts.contexts.remove(name).is_none() {
                return Err(no_context(name, &contexts));
            }
            contexts.current = contexts.current.filter(|current| current != name);
            format!("Deleted context '{name}'")
        }
    };
    write(&file, &contexts)?;
    output.say(&result);
    Ok(())
}

/// Commands may run in another directory later.
fn absolute(mut context: Context) -> Result<Context, Failure> {
    let files = [
        &mut context.password_file,
        &mut context.cacert,
        &mut context.cert,
        &mut context.key,
    ];
    for file in files.into_iter().flatten() {
        *file = std::path::absolute(&file)
            .map_err(|e| Failure::Usage(format!("the path {} is invalid: {e}", file.display())))?;
    }
    Ok(context)
}

fn rows(contexts: &Contexts) -> Json {
    let rows = contexts.contexts.iter().map(|(name, context)| {
        let mut row = json!(context);
        row["name"] = json!(name);
        row["current"] = json!(contexts.current.as_deref() == Some(name));
        row
    });
    rows.collect()
}
