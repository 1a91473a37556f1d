//! Consistency checks between the log and its manifest.

use super::Wal;
use crate::error::WalError;
use crate::format;
use crate::manifest::{self, DurableBounds, Manifest};
use env::planted::{self, Bug};

impl Wal {
    /// Fails if the newest file that the manifest records is missing.
    pub(super) fn check_newest_file(&self, newest: Option<u64>) -> Result<(), WalError> {
        let Some(bounds) = self.manifest.as_ref().map(|m| m.bounds) else {
            return Ok(());
        };
        let found = newest.unwrap_or(0);
        if found >= bounds.newest {
            return Ok(());
        }
        let what = match newest {
            Some(newest) => format!("the newest file found is {}", format::path(newest)),
            None => "there is no log file at all".to_owned(),
        };
        Err(WalError::missing(
            (found + 1).max(bounds.oldest),
            bounds.newest,
            what,
        ))
    }

    /// Fails if the newest file, read up to `self.next_sequence`, lacks durable records.
    pub(super) fn check_durable(&self, path: &str, position: u64) -> Result<(), WalError> {
        let durable = self.manifest.as_ref().map_or(0, |m| m.bounds.durable);
        let lost = (durable + 1).saturating_sub(self.next_sequence);
        if lost == 0 {
            return Ok(());
        }
        let what = format!(
            "the log ends here, but the {lost} records that followed were durable ({})",
            manifest::PATH
        );
        Err(WalError::corrupt(path, position, what))
    }

    /// Fails if the manifest or the oldest file that it records is missing. `has_manifest`: the newest file
    /// says that a manifest exists; older versions did not keep one.
    pub(super) fn check_manifest(
        &self,
        has_manifest: bool,
        oldest: Option<u64>,
    ) -> Result<(), WalError> {
        if !has_manifest {
            return Ok(());
        }
        let Some(bounds) = self.manifest.as_ref().map(|m| m.bounds) else {
            return Err(WalError::Missing {
                directory: format::DIR,
                missing: manifest::PATH.to_owned(),
                what: "without it missing log files cannot be detected".to_owned(),
            });
        };
        match oldest {
            Some(oldest) if bounds.oldest > 0 && oldest > bounds.oldest => Err(WalError::missing(
                bounds.oldest,
                oldest - 1,
                format!("the oldest file found is {}", format::path(oldest)),
            )),
            _ => Ok(()),
        }
    }

    /// Creates the manifest if the directory has none.
    pub(super) fn ensure_manifest(&mut self) -> Result<(), WalError> {
        if self.manifest.is_none() {
            let bounds = DurableBounds {
                oldest: self.oldest(),
                newest: self.newest(),
                durable: self.durable,
            };
            self.manifest = Some(Manifest::create(&*self.disk, self.config.node, bounds)?);
        }
        Ok(())
    }

    /// Records the active file in the manifest, if that has not been done yet.
    pub(super) fn record_newest_file(&mut self) -> Result<(), WalError> {
        let recorded = self.manifest.as_ref().map_or(0, |m| m.bounds.newest);
        if self.newest() <= recorded || planted::is(Bug::NewestLogFileNotRecorded) {
            return Ok(());
        }
        self.update_manifest(self.oldest())
    }

    /// Records the deletion of the files up to `through`, before they are deleted.
    pub(super) fn record_deletion(&mut self, through: u64) -> Result<(), WalError> {
        let oldest_kept = self.complete.iter().copied().find(|n| *n > through);
        let oldest = oldest_kept.or(self.active.as_ref().map(|a| a.number));
        self.update_manifest(oldest.unwrap_or(0))
    }

    /// Updates the manifest to the current state.
    pub(super) fn update_manifest(&mut self, oldest: u64) -> Result<(), WalError> {
        let bounds = DurableBounds {
            oldest,
            newest: self.newest(),
            durable: self.durable,
        };
        if let Some(manifest) = &mut self.manifest {
            manifest.update(bounds)?;
            self.noted_durable = bounds.durable;
        }
        Ok(())
    }

    /// Records the durable position in the manifest without a sync: if the process is killed, its log must
    /// hold everything that it acknowledged.
    pub(super) fn note_durable(&mut self) -> Result<(), WalError> {
        if self.noted_durable == self.durable {
            return Ok(());
        }
        if let Some(manifest) = &self.manifest {
            manifest.note_durable(self.durable)?;
        }
        self.noted_durable = self.durable;
        Ok(())
    }

    pub(super) fn oldest(&self) -> u64 {
        let active = self.active.as_ref().map(|a| a.number);
        self.complete.first().copied().or(active).unwrap_or(0)
    }

    fn newest(&self) -> u64 {
        let active = self.active.as_ref().map(|a| a.number);
        active.or(self.complete.last().copied()).unwrap_or(0)
    }
}
