//! The group of a message (`x-message-group`, `JMSXGroupID`, `group-id`), which a quorum queue with message groups
//! delivers in order.
//!
//! A queue knows the number of a group and not its name, so that a message takes no more memory than without a group. Groups
//! whose names have the same number are one group to the queue, which keeps the order of both.

use crate::Annotations;
use message::{DecodeError, Message, Table, Value};
use std::num::NonZeroU32;

/// The header with the group of a message.
pub const MESSAGE_GROUP: &str = "x-message-group";
/// The header with the group of a message as JMS names it. [`MESSAGE_GROUP`] takes precedence.
pub const JMS_GROUP: &str = "JMSXGroupID";
/// The annotation with the number of the group. Only queues read it.
pub(crate) const GROUP_ANNOTATION: &str = "x-opt-message-group";

/// FNV-1a, 32 bits. The numbers are in the logs of queues, so the function must not change.
const BASIS: u32 = 0x811c_9dc5;
const PRIME: u32 = 0x0100_0193;

/// The number of a group in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupId(NonZeroU32);

impl GroupId {
    /// The number of the group with this name, which is not empty.
    pub fn of(name: &str) -> GroupId {
        debug_assert!(!name.is_empty(), "an empty name is no group");
        let fold = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(PRIME);
        let hash = name.bytes().fold(BASIS, fold);
        GroupId(NonZeroU32::new(hash).unwrap_or(NonZeroU32::MIN))
    }

    /// The lowest number.
    pub(crate) const MIN: GroupId = GroupId(NonZeroU32::MIN);

    /// `None` for 0.
    pub(crate) fn from_number(number: u32) -> Option<GroupId> {
        NonZeroU32::new(number).map(GroupId)
    }

    pub(crate) fn number(self) -> u32 {
        self.0.get()
    }
}

/// Returns the message with its group. Copies the body.
///
/// # Errors
///
/// If the message is too large with its annotations.
pub fn assign_group(message: &Message, group: GroupId) -> Result<Message, DecodeError> {
    let mut table = Table::default();
    table.set(GROUP_ANNOTATION, Value::I64(group.number().into()));
    let annotations = Annotations::new(table).unwrap_or_default();
    debug_assert!(!annotations.is_empty(), "one small annotation");
    annotations.add_to(message)
}

/// Returns the group of a message. A dead letter keeps its group.
pub fn group_of(message: &Message) -> Option<GroupId> {
    // Few messages have annotations.
    message.annotations()?;
    let annotations = Annotations::of(message)?;
    let number = annotations.table().get(GROUP_ANNOTATION)?.as_integer()?;
    GroupId::from_number(u32::try_from(number).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::message;

    #[test]
    fn number_of_a_group_never_changes() {
        assert_eq!(GroupId::of("a").number(), 0xe40c_292c);
        assert_eq!(GroupId::of("foobar").number(), 0xbf9c_f968);
    }

    #[test]
    fn message_keeps_its_group_with_other_annotations() {
        let plain = message(1, None, None, 8);
        assert_eq!(group_of(&plain), None);
        let grouped = assign_group(&plain, GroupId::of("a")).unwrap();
        let delayed = crate::schedule(&grouped, 5).unwrap();
        assert_eq!(group_of(&delayed), Some(GroupId::of("a")));
        let died = delayed.dead_lettered("", None, &message::Deaths::default());
        assert_eq!(group_of(&died.unwrap()), Some(GroupId::of("a")));
        let moved = assign_group(&delayed, GroupId::of("b")).unwrap();
        assert_eq!(group_of(&moved), Some(GroupId::of("b")));
    }
}
