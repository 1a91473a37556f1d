//! What a client has done with deliveries of a queue since it asked that queue last: the answer shows that the queue knows.

use super::letter::LetterId;

#[derive(Clone, Debug, Default)]
pub struct Touched {
    pub settled: Vec<LetterId>,
    pub given_back: Vec<LetterId>,
}

impl Touched {
    /// The message comes once more: what was done with it before is over.
    pub fn comes_anew(&mut self, id: LetterId) {
        self.settled.retain(|touched| *touched != id);
        self.given_back.retain(|touched| *touched != id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_again_was_not_touched() {
        let (again, once) = (LetterId::new(1, 1), LetterId::new(1, 2));
        let mut touched = Touched {
            settled: vec![again, once, again],
            given_back: vec![again],
        };
        touched.comes_anew(again);
        assert_eq!(touched.settled, [once]);
        assert!(touched.given_back.is_empty());
    }
}
