//! A hub among others: greeting those that are there.

pub(crate) mod word;

use crate::Place;
use crate::hub::Output;
use env::NodeId;
use std::collections::BTreeSet;
use word::{State, Word};

#[derive(Default)]
pub(crate) struct Hubs {
    known: BTreeSet<Place>,
}

impl Hubs {
    /// A hub is there, perhaps again after its link was broken.
    pub fn meet(&mut self, place: Place) -> Option<Output> {
        if !self.known.insert(place) {
            return None;
        }
        let word = Word::State(State {
            ask: true,
            again: true,
            ..State::default()
        });
        Some(Output::Send { to: place, word })
    }

    pub fn part(&mut self, node: NodeId) {
        self.known.retain(|place| place.node != node);
    }

    pub fn hear(&mut self, from: Place, word: &Word) -> Option<Output> {
        match word {
            Word::State(state) if state.ask => {
                let word = Word::State(State::default());
                Some(Output::Send { to: from, word })
            }
            _ => None,
        }
    }
}
