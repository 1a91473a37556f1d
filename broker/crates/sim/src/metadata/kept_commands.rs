//! Commands that stay readable, as the messages of a quorum queue do: they test live entries, segments and their
//! transfer together with the log of the tree.

use bytes::{Buf, BufMut, BytesMut};
use slots::IndexSet;
use std::collections::BTreeMap;

/// Above this number, the oldest ordinary command is removed.
const MAX_ORDINARY: usize = 40;
/// Above this number, the oldest command is removed, ordinary or not.
const MAX_COMMANDS: usize = 90;

/// Checksums of the kept commands by index. Equal on every node after the same command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KeptCommands(BTreeMap<u64, u32>);

impl KeptCommands {
    /// Keeps a command or ignores it, depending on its hash. Most kept commands stay for a while, some for long.
    pub(super) fn apply(&mut self, index: u64, hash: u32) {
        if hash.is_multiple_of(3) {
            self.0.insert(index, hash);
        }
        if self.0.len() > MAX_ORDINARY {
            let is_long_lived = |hash: &u32| hash.is_multiple_of(9);
            let ordinary = self.0.iter().find(|(_, hash)| !is_long_lived(hash));
            if let Some(index) = ordinary.map(|(index, _)| *index) {
                self.0.remove(&index);
            }
        }
        if self.0.len() > MAX_COMMANDS {
            self.0.pop_first();
        }
    }

    /// Selects a command to read: its index and its expected checksum.
    pub(super) fn sample(&self, chance: u32) -> Option<(u64, u32)> {
        let position = chance as usize % self.0.len().max(1);
        self.0
            .iter()
            .nth(position)
            .map(|(index, hash)| (*index, *hash))
    }

    pub(super) fn live(&self) -> IndexSet {
        IndexSet::from_sorted(self.0.keys().copied())
    }

    pub(super) fn encode(&self, out: &mut BytesMut) {
        out.put_u32(self.0.len() as u32);
        for (index, hash) in &self.0 {
            out.put_u64(*index);
            out.put_u32(*hash);
        }
    }

    /// Decodes from the front of `bytes`. `None`: the bytes end too early.
    pub(super) fn decode(bytes: &mut &[u8]) -> Option<KeptCommands> {
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
    fn kept_commands_are_bounded_and_survive_encoding() {
        let mut commands = KeptCommands::default();
        for n in 1..2_000u32 {
            commands.apply(u64::from(n), n.wrapping_mul(0x9E37_79B9));
            assert!(commands.0.len() <= MAX_COMMANDS);
        }
        assert!(commands.0.len() > MAX_ORDINARY);
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
