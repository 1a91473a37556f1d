//! Feature flags between nodes: which flags a node announces, and which nodes must not be linked.

use super::{LinkId, Peering, PeeringAction};
use crate::wire::{Frame, Hello, PeerVersion};
use env::NodeId;
use metadata::Name;

impl Peering {
    pub(super) fn own_version(&self) -> PeerVersion {
        PeerVersion {
            facts: self.config.version.facts(),
            enabled: self.enabled.clone().unwrap_or_default(),
        }
    }

    /// The enabled feature flags of this node's cluster; None: the node has not caught up yet.
    pub fn set_enabled(&mut self, enabled: Option<Vec<Name>>) {
        if enabled.is_none() || enabled == self.enabled {
            return;
        }
        self.enabled = enabled;
        self.record_shards_per_node();
        let greeted = self.links.iter();
        let greeted = greeted.filter_map(|(id, l)| Some((*id, l.hello.clone()?)));
        let greeted: Vec<(LinkId, Hello)> = greeted.collect();
        for (link, hello) in greeted {
            self.send_hello(link);
            let conflict = self.shard_count_conflict(&hello);
            match self.peer_incompatibility(&hello).or(conflict) {
                Some(why) => self.refuse(link, &why),
                // The peer may have been waiting to be admitted.
                None => self.establish(link),
            }
        }
    }

    /// The reason why the peer's version is incompatible with this node's cluster.
    pub(super) fn peer_incompatibility(&self, hello: &Hello) -> Option<String> {
        let enabled = || self.enabled.iter().flatten().map(|name| &**name);
        match &hello.version {
            Some(version) => version.facts.explain_incompatibility(enabled()),
            // A node that does not announce its version supports no flag.
            None => {
                let flag = enabled().next()?;
                Some(format!(
                    "a node that does not announce its version cannot know the feature flag '{flag}', which this cluster \
                     has enabled: run a version that does"
                ))
            }
        }
    }

    /// The reason why this node's version is incompatible with the peer's cluster.
    pub(super) fn own_incompatibility(&self, hello: &Hello) -> Option<String> {
        let version = hello.version.as_ref()?;
        let enabled = version.enabled.iter().map(|name| &**name);
        self.config.version.explain_incompatibility(enabled)
    }

    /// Refuses the link and stops this node: it would behave differently from its cluster.
    pub(super) fn refuse_and_stop(&mut self, link: LinkId, why: String) {
        self.refuse(link, &why);
        self.actions.push_back(PeeringAction::End(why));
    }

    /// Admits a node without a cluster. Founders were checked before the cluster was formed; other
    /// nodes wait until this node knows which feature flags they must support.
    pub(super) fn send_welcome(&mut self, link: LinkId, node: NodeId) {
        let Some(mut record) = self.config.cluster.clone() else {
            return;
        };
        if record.founders.iter().all(|f| f.id != node) {
            if self.enabled.is_none() {
                return;
            }
            record.features.clear();
        }
        let frame = Frame::Welcome(record);
        self.actions.push_back(PeeringAction::Send { link, frame });
    }
}
