//! The number of shards of a node, and the reason for it.

use crate::config::ShardSetting;
use crate::identity::ClusterRecord;
use crate::machine::{self, CpuGrant};
use metadata::features::SHARDS_PER_NODE;
use shard::MAX_SHARDS;

/// The number of shards of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShardCount {
    /// 1 to [`MAX_SHARDS`].
    pub shards: u16,
    pub source: ShardCountSource,
    /// CPUs that the process may use.
    granted: CpuGrant,
}

/// The reason for a number of shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShardCountSource {
    /// The setting.
    Configured,
    /// The CPU quota of the cgroup.
    CpuQuota,
    /// The CPUs that the process may run on.
    AllowedCpus,
    /// The cluster has not enabled different numbers: 1 is the default of version 0.2.
    FlagDisabled,
}

impl ShardCountSource {
    /// Description for the log.
    pub(crate) fn text(self) -> &'static str {
        match self {
            ShardCountSource::Configured => "setting `shards`",
            ShardCountSource::CpuQuota => "CPU quota of the cgroup",
            ShardCountSource::AllowedCpus => "CPUs that the process may run on",
            ShardCountSource::FlagDisabled => "feature flag `shards_per_node` is off",
        }
    }
}

impl ShardCount {
    /// Chooses the number for a node of this cluster. `None`: the node has no cluster yet.
    ///
    /// A node of a cluster without the feature flag keeps the number that version 0.2 would choose:
    /// its peers may run that version, which refuses any other number.
    pub(crate) fn choose(
        setting: ShardSetting,
        granted: CpuGrant,
        cluster: Option<&ClusterRecord>,
    ) -> ShardCount {
        let is_flag_off = cluster.is_some_and(|cluster| {
            let mut features = cluster.features.iter();
            features.all(|name| &**name != SHARDS_PER_NODE.name)
        });
        let by_cpus = match granted.is_quota {
            true => ShardCountSource::CpuQuota,
            false => ShardCountSource::AllowedCpus,
        };
        let (shards, source) = match setting {
            ShardSetting::Count(count) => (count, ShardCountSource::Configured),
            ShardSetting::Auto if is_flag_off => (1, ShardCountSource::FlagDisabled),
            // Version 0.2 rounds a quota down.
            ShardSetting::Cpus if is_flag_off => (machine::cpus(), by_cpus),
            ShardSetting::Auto | ShardSetting::Cpus => (granted.cpus, by_cpus),
        };
        ShardCount {
            shards: shards.clamp(1, MAX_SHARDS),
            source,
            granted,
        }
    }

    /// The configured number exceeds the CPUs: threads would take turns, and queues wait for them.
    fn exceeds_cpus(self) -> bool {
        self.source == ShardCountSource::Configured && self.shards > self.granted.cpus
    }

    /// Warns if the configured number exceeds the CPUs.
    pub(crate) fn warn(self) {
        if self.exceeds_cpus() {
            tracing::warn!(
                event = "node.shards_above_cpus",
                shards = self.shards,
                cpus = self.granted.cpus,
                "`shards` is larger than the number of CPUs of this process: use `auto`, or grant more CPUs"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ShardCountSource::{AllowedCpus, Configured, CpuQuota, FlagDisabled};
    use metadata::Name;

    fn granted(cpus: u16, is_quota: bool) -> CpuGrant {
        CpuGrant { cpus, is_quota }
    }

    fn cluster(features: &[&str]) -> ClusterRecord {
        ClusterRecord {
            id: 1,
            founders: Vec::new(),
            features: features.iter().map(|name| Name::from(*name)).collect(),
        }
    }

    #[test]
    fn shards_follow_the_cpus_unless_a_number_is_configured() {
        let enabled = cluster(&["shards_per_node"]);
        let check = |setting, grant, shards, source| {
            for cluster in [None, Some(&enabled)] {
                let count = ShardCount::choose(setting, grant, cluster);
                assert_eq!((count.shards, count.source), (shards, source));
            }
        };
        check(ShardSetting::Auto, granted(3, true), 3, CpuQuota);
        check(ShardSetting::Auto, granted(8, false), 8, AllowedCpus);
        check(ShardSetting::Cpus, granted(8, false), 8, AllowedCpus);
        check(ShardSetting::Auto, granted(300, false), 256, AllowedCpus);
        check(ShardSetting::Count(5), granted(3, true), 5, Configured);
    }

    #[test]
    fn node_of_a_cluster_without_the_flag_keeps_the_number_of_version_0_2() {
        let old = cluster(&["baseline_0_2"]);
        let choose = |setting| {
            let count = ShardCount::choose(setting, granted(64, true), Some(&old));
            (count.shards, count.source)
        };
        assert_eq!(choose(ShardSetting::Auto), (1, FlagDisabled));
        assert_eq!(choose(ShardSetting::Cpus).0, machine::cpus().min(256));
        assert_eq!(choose(ShardSetting::Count(4)), (4, Configured));
    }

    #[test]
    fn only_a_configured_number_above_the_cpus_causes_a_warning() {
        let exceeds = |setting, cpus| {
            let count = ShardCount::choose(setting, granted(cpus, true), None);
            count.exceeds_cpus()
        };
        assert!(exceeds(ShardSetting::Count(3), 2));
        assert!(!exceeds(ShardSetting::Count(2), 2));
        assert!(!exceeds(ShardSetting::Auto, 2));
    }
}
