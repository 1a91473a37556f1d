//! Feature flags between nodes: which ones a node announces, and which nodes must not be linked.

use super::{Action, LinkId, Peering};
use crate::wire::{Frame, Hello, PeerVersion};
use env::NodeId;
use metadata::Name;

impl Peering {
    pub(super) fn told(&self) -> PeerVersion {
        PeerVersion {
            program: self.config.program.facts(),
            enabled: self.enabled.clone().unwrap_or_default(),
        }
    }

    /// The feature flags of this node's cluster, as it has applied them; None: it has not caught up.
    pub fn set_enabled(&mut self, enabled: Option<Vec<Name>>) {
        if enabled.is_none() || enabled == self.enabled {
            return;
        }
        self.enabled = enabled;
        let greeted = self.links.iter();
        let greeted = greeted.filter_map(|(id, l)| Some((*id, l.hello.clone()?)));
        let greeted: Vec<(LinkId, Hello)> = greeted.collect();
        for (link, hello) in greeted {
            self.send_hello(link);
            match self.misfit(&hello) {
                Some(why) => self.refuse(link, &why),
                // It may have waited to be taken in.
                None => self.establish(link),
            }
        }
    }

    /// Why the program at the other end cannot be of this node's cluster.
    pub(super) fn misfit(&self, hello: &Hello) -> Option<String> {
        let enabled = || self.enabled.iter().flatten().map(|name| &**name);
        match &hello.told {
            Some(told) => told.program.misfit(enabled()),
            // A node that does not announce its version knows no flag.
            None => {
                let flag = enabled().next()?;
                Some(format!(
                    "a node that does not announce its version cannot know the feature flag '{flag}', which this cluster \
                     has enabled: run a version that does"
                ))
            }
        }
    }

    /// Why this program cannot be of the other end's cluster.
    pub(super) fn own_misfit(&self, hello: &Hello) -> Option<String> {
        let told = hello.told.as_ref()?;
        let enabled = told.enabled.iter().map(|name| &**name);
        self.config.program.misfit(enabled)
    }

    /// Refuses the link and ends this node: what it would do is not what its cluster does.
    pub(super) fn end(&mut self, link: LinkId, why: String) {
        self.refuse(link, &why);
        self.actions.push_back(Action::End(why));
    }

    /// Takes in a node that has no cluster. Founders have been looked at before the cluster was formed; others wait until this
    /// node knows which feature flags they must know.
    pub(super) fn welcome_in(&mut self, link: LinkId, node: NodeId) {
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
        self.actions.push_back(Action::Send { link, frame });
    }
}
