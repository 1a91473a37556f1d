//! Groups of messages for queues that deliver the messages of each group in order.

use crate::error::{OperationResult, refuse};
use message::{Message, Table, Value};
use metadata::{QueueId, Tree};
use queue::{GroupId, JMS_GROUP, MESSAGE_GROUP};

/// Returns the message with its group, from its headers or, if they name none, from the property `group-id` of AMQP 1.0.
/// `None`: it has no group, it has one from an earlier queue, or none of its queues has groups. Call it if
/// [`Tree::has_queues_with_groups`]. `headers` is called at most once.
///
/// # Errors
///
/// If the header with the group is neither a text nor an integer, and a queue has groups.
#[cold]
pub fn assign_group(
    tree: &Tree,
    routes: &[QueueId],
    message: &Message,
    group_id: Option<&str>,
    headers: impl FnOnce() -> Table,
) -> OperationResult<Option<Message>> {
    let mut queues = routes.iter().filter_map(|id| tree.queue_by_id(*id));
    if !queues.any(|queue| tree.has_message_groups(queue)) || queue::group_of(message).is_some() {
        return Ok(None);
    }
    let Some(group) = group_of(&headers(), group_id)? else {
        return Ok(None);
    };
    match queue::assign_group(message, group) {
        Ok(message) => Ok(Some(message)),
        Err(error) => refuse!(PreconditionFailed, "invalid message: {error}"),
    }
}

/// An empty name is no group.
fn group_of(headers: &Table, group_id: Option<&str>) -> OperationResult<Option<GroupId>> {
    for key in [MESSAGE_GROUP, JMS_GROUP] {
        let Some(value) = headers.get(key) else {
            continue;
        };
        return match (value, value.as_str(), value.as_integer()) {
            (Value::Void, ..) | (_, Some(""), _) => Ok(None),
            (_, Some(name), _) => Ok(Some(GroupId::of(name))),
            (_, None, Some(number)) => Ok(Some(GroupId::of(&number.to_string()))),
            (_, None, None) => refuse!(
                PreconditionFailed,
                "the header '{key}' is of type {}: it must be a text or an integer",
                value.type_name()
            ),
        };
    }
    let group_id = group_id.filter(|name| !name.is_empty());
    Ok(group_id.map(GroupId::of))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(headers: &[(&str, Value)], group_id: Option<&str>) -> Result<Option<GroupId>, String> {
        let headers = headers.iter().map(|(k, v)| ((*k).into(), v.clone()));
        group_of(&Table(headers.collect()), group_id).map_err(|error| error.to_string())
    }

    #[test]
    fn headers_precede_the_property() {
        let [own, jms] = [MESSAGE_GROUP, JMS_GROUP].map(|key| (key, Value::from(key)));
        let expected = |name: &str| Ok(Some(GroupId::of(name)));
        assert_eq!(
            group(&[jms.clone(), own], Some("p")),
            expected(MESSAGE_GROUP)
        );
        assert_eq!(group(&[jms], Some("p")), expected(JMS_GROUP));
        assert_eq!(group(&[], Some("p")), expected("p"));
        assert_eq!(
            group(&[(MESSAGE_GROUP, Value::I32(-7))], None),
            expected("-7")
        );
    }

    #[test]
    fn empty_name_is_no_group() {
        assert_eq!(group(&[], None), Ok(None));
        assert_eq!(group(&[], Some("")), Ok(None));
        assert_eq!(
            group(&[(MESSAGE_GROUP, Value::from(""))], Some("p")),
            Ok(None)
        );
        assert_eq!(group(&[(JMS_GROUP, Value::Void)], None), Ok(None));
    }

    #[test]
    fn header_of_another_type_is_refused_with_its_name() {
        let refused = group(&[(JMS_GROUP, Value::Bool(true))], None).expect_err("refused");
        assert!(
            refused.contains("'JMSXGroupID' is of type bool"),
            "{refused}"
        );
    }
}
