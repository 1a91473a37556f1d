//! Keys of encrypted backups, in the format of age.

use crate::ctl::failure::Failure;
use backup::age::{Identity, MAX_RECIPIENTS, Recipient};
use std::path::{Path, PathBuf};

/// Most bytes of a file of identities.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The private keys for an encrypted backup.
#[derive(Debug, clap::Args)]
pub(crate) struct IdentityOptions {
    /// File with the private keys of an encrypted backup, as age-keygen writes it; may be repeated
    #[arg(short = 'i', long = "identity", value_name = "FILE")]
    files: Vec<PathBuf>,
}

impl IdentityOptions {
    pub(super) fn read(&self) -> Result<Vec<Identity>, Failure> {
        let mut identities = Vec::new();
        for file in &self.files {
            identities.extend(read_file(file)?);
        }
        Ok(identities)
    }
}

fn read_file(file: &Path) -> Result<Vec<Identity>, Failure> {
    let shown = file.display();
    let unreadable = |error: std::io::Error| {
        Failure::Usage(format!(
            "the file {shown} of --identity cannot be read: {error}"
        ))
    };
    let bytes = std::fs::metadata(file).map_err(unreadable)?.len();
    if bytes > MAX_FILE_BYTES {
        return Err(Failure::Usage(format!(
            "the file {shown} of --identity has {bytes} bytes: it is no file of age-keygen"
        )));
    }
    let text = std::fs::read_to_string(file).map_err(unreadable)?;
    Identity::parse_file(&text).map_err(|error| {
        Failure::Usage(format!(
            "the file {shown} of --identity is not usable: {error}"
        ))
    })
}

/// The recipients of a new backup.
pub(super) fn recipients(texts: &[String]) -> Result<Vec<Recipient>, Failure> {
    if texts.len() > MAX_RECIPIENTS {
        return Err(Failure::Usage(format!(
            "a backup can be encrypted for at most {MAX_RECIPIENTS} recipients"
        )));
    }
    let parse = |text: &String| {
        // The text may be a private key, which must not be shown.
        Recipient::parse(text).map_err(|error| {
            Failure::Usage(format!("a value of --encrypt-to is not usable: {error}"))
        })
    };
    texts.iter().map(parse).collect()
}
