//! Global parameters: JSON values by name, for tools that keep something with the cluster.

use crate::apply::check_name;
use crate::{ChangeError, ChangeResult, Name, Tree, limits};

/// The parameter that holds what people call the cluster.
pub const CLUSTER_NAME: &str = "cluster_name";

impl Tree {
    /// By name; the values are JSON.
    pub fn global_parameters(&self) -> impl Iterator<Item = (&Name, &Name)> {
        self.globals.iter()
    }

    /// Its value as JSON.
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
            Some(there) if there == value => return Ok(ChangeResult::AsBefore),
            None if self.globals.len() >= limits::PARAMETERS => {
                return Err(ChangeError::PreconditionFailed(format!(
                    "there are {} global parameters, the most that are allowed",
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
            None => ChangeResult::AsBefore,
        })
    }
}
