//! The state machine of the tests: a queue whose commands either stay live or remove the oldest live one.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::collections::VecDeque;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    pub index: u64,
    /// Digest of all applied commands, in order.
    chain: u64,
    count: u64,
    /// (index, number) of live commands.
    pub live: VecDeque<(u64, u64)>,
    /// Numbers applied by this replica itself; not part of its state.
    seen: Vec<u64>,
}

impl Machine {
    /// `keep`: the command stays live; otherwise it removes the oldest live one.
    pub fn command(number: u64, keep: bool, padding: usize) -> Bytes {
        let mut command = BytesMut::new();
        command.put_u64_le(number);
        command.put_u8(u8::from(keep));
        command.put_bytes(number as u8, padding);
        command.freeze()
    }

    /// Returns 0 for a command that no client proposed.
    pub fn number(mut command: &[u8]) -> u64 {
        command.try_get_u64_le().unwrap_or(0)
    }

    pub fn apply(&mut self, index: u64, command: &[u8]) {
        assert!(index > self.index, "entry {index} after {}", self.index);
        self.index = index;
        let number = Machine::number(command);
        self.seen.push(number);
        self.count += 1;
        let mixed = self.chain ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ index;
        self.chain = mixed.rotate_left(23).wrapping_mul(0x94D0_49BB_1331_11EB);
        match command.get(8) {
            Some(1) => self.live.push_back((index, number)),
            _ => drop(self.live.pop_front()),
        }
    }

    pub fn has_applied(&self, number: u64) -> bool {
        self.seen.contains(&number)
    }

    pub fn digest(&self) -> (u64, u64, usize) {
        (self.chain, self.count, self.live.len())
    }

    pub fn save(&self) -> (Bytes, slots::IndexSet) {
        let mut state = BytesMut::new();
        state.put_u64_le(self.chain);
        state.put_u64_le(self.count);
        for (index, number) in &self.live {
            state.put_u64_le(*index);
            state.put_u64_le(*number);
        }
        let live = slots::IndexSet::from_sorted(self.live.iter().map(|(index, _)| *index));
        (state.freeze(), live)
    }

    pub fn load(&mut self, index: u64, mut state: Bytes) {
        self.index = index;
        self.chain = state.try_get_u64_le().unwrap_or(0);
        self.count = state.try_get_u64_le().unwrap_or(0);
        self.live.clear();
        while state.remaining() >= 16 {
            self.live
                .push_back((state.get_u64_le(), state.get_u64_le()));
        }
    }
}
