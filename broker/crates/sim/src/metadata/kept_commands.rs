//! Commands that stay readable: what a quorum queue does with its messages, so that live entries, segments and
//! their transfer are under test with the tree's own log.

use bytes::{Buf, BufMut, BytesMut};
use slots::IndexSet;
use std::collections::BTreeMap;

/// More than this and the oldest ordinary command goes.
const ORDINARY: usize = 40;
/// More than this and the oldest one goes, whatever it is.
const MOST: usize = 90;

/// Index of a command that is kept, and its checksum. The same on every node after the same command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptCommands(BTreeMap<u64, u32>);

impl KeptCommands {
    /// Takes one in, or leaves it; most are read for a while, some for long.
    pub fn apply(&mut self, index: u64, hash: u32) {
        if hash.is_multiple_of(3) {
            self.0.insert(index, hash);
        }
        if self.0.len() > ORDINARY {
            let stays = |hash: &u32| hash.is_multiple_of(9);
            let ordinary = self.0.iter().find(|(_, hash)| !stays(hash));
            if let Some(index) = ordinary.map(|(index, _)| *index) {
                self.0.remove(&index);
            }
        }
        if self.0.len() > MOST {
            self.0.pop_first();
        }
    }

    /// What is read now and then: an index and the checksum that the command there must have.
    pub fn sample(&self, chance: u32) -> Option<(u64, u32)> {
        let at = chance as usize % self.0.len().max(1);
        self.0.iter().nth(at).map(|(index, hash)| (*index, *hash))
    }

    pub fn live(&self) -> IndexSet {
        IndexSet::from_sorted(self.0.keys().copied())
    }

    pub fn encode(&self, out: &mut BytesMut) {
        out.put_u32(self.0.len() as u32);
        for (index, hash) in &self.0 {
            out.put_u64(*index);
            out.put_u32(*hash);
        }
    }

    /// Takes it off the front. `None`: cut off.
    pub fn decode(bytes: &mut &[u8]) -> Option<KeptCommands> {
        let count = bytes.try_get_u32().ok()?;
        let mut commands = KeptCommands::default();
        for _ in 0..count {
            let (index, hash) = (bytes.try_get_u64().ok()?, bytes.try_get_u32().ok()?);
            commands.0.insert(index, hash);
        }
        Some(commands)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_keeps_some_for_long_and_survives_encoding() {
        let mut commands = KeptCommands::default();
        for n in 1..2_000u32 {
            commands.apply(u64::from(n), n.wrapping_mul(0x9E37_79B9));
            assert!(commands.0.len() <= MOST);
        }
        assert!(commands.0.len() > ORDINARY);
        let mut bytes = BytesMut::new();
        commands.encode(&mut bytes);
        assert_eq!(
            KeptCommands::decode(&mut &bytes[..]),
            Some(commands.clone())
        );
        assert_eq!(KeptCommands::decode(&mut &bytes[..bytes.len() - 1]), None);
        assert!(
            commands
                .sample(77)
                .is_some_and(|(i, _)| commands.live().contains(i))
        );
        assert_eq!(KeptCommands::default().sample(5), None);
    }
}
