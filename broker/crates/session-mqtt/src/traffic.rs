//! What of a connection is there only while messages move. Most clients are idle most of the time: then it is nothing.

use crate::aliases;
use crate::link::{Link, Unconfirmed};
use metadata::QueueId;
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

#[derive(Debug)]
pub(crate) struct Traffic {
    pub aliases_in: aliases::Inbound,
    pub aliases_out: aliases::Outbound,
    pub unconfirmed: VecDeque<Unconfirmed>,
    /// Retained messages on their way to the cluster.
    pub retaining: u16,
    /// The state of the tree in which the user was found to have the right to publish.
    pub writable: Option<u64>,
    /// Scratch for routing.
    pub routes: Vec<QueueId>,
}

impl Traffic {
    const NONE: Traffic = Traffic {
        aliases_in: aliases::Inbound::NONE,
        aliases_out: aliases::Outbound::NONE,
        unconfirmed: VecDeque::new(),
        retaining: 0,
        writable: None,
        routes: Vec::new(),
    };

    /// Whether it could as well not be there.
    fn is_over(&self) -> bool {
        self.unconfirmed.is_empty()
            && self.retaining == 0
            && self.aliases_in.is_empty()
            && self.aliases_out.is_empty()
    }
}

static NONE: Traffic = Traffic::NONE;

impl Deref for Link {
    type Target = Traffic;

    fn deref(&self) -> &Traffic {
        self.traffic.as_deref().unwrap_or(&NONE)
    }
}

impl DerefMut for Link {
    fn deref_mut(&mut self) -> &mut Traffic {
        self.traffic.get_or_insert_with(|| Box::new(Traffic::NONE))
    }
}

impl Link {
    /// Nothing moves now: gives back what is not needed meanwhile.
    pub fn rest(&mut self) {
        self.traffic.take_if(|traffic| traffic.is_over());
        self.state.rest();
        if self.open {
            self.extras.rest();
        }
    }
}
