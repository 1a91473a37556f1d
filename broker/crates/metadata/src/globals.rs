//! Global parameters: JSON values by name, for tools that store settings in the cluster.

use crate::apply::check_name;
use crate::{ChangeError, ChangeResult, Name, Tree, limits};

/// The parameter with the display name of the cluster.
pub const CLUSTER_NAME: &str = "cluster_name";

impl Tree {
    /// Global parameters by name. The values are JSON.
    pub fn global_parameters(&self) -> impl Iterator<Item = (&Name, &Name)> {
        self.globals.iter()
    }

    /// Value of a global parameter as JSON.
    pub fn global_parameter(&self, name: &str) -> Option<&Name> {
        self.globals.get(name)
    }

    pub(crate) fn put_global_parameter(
        &mut self,
        name: &Name,
        value: &Name,
    ) -> Result<ChangeResult, ChangeError> {
        check_name("parameter", name)?;
        if value.len() > limits::PARAMETER_BYTES {
            return Err(ChangeError::Invalid(format!(
                "the value of parameter '{name}' is longer than {} bytes",
                limits::PARAMETER_BYTES
            )));
        }
        match self.globals.get(name) {
            Some(value_before) if value_before == value => return Ok(ChangeResult::Unchanged),
            None if self.globals.len() >= limits::PARAMETERS => {
                return Err(ChangeError::PreconditionFailed(format!(
                    "there are {} global parameters, the maximum",
                    limits::PARAMETERS
                )));
            }
            _ => {}
        }
        self.globals.insert(name.clone(), value.clone());
        Ok(ChangeResult::Changed)
    }

    pub(crate) fn delete_global_parameter(
        &mut self,
        name: &Name,
    ) -> Result<ChangeResult, ChangeError> {
        Ok(match self.globals.remove(name) {
            Some(_) => ChangeResult::Changed,
            None => ChangeResult::Unchanged,
        })
    }
}
