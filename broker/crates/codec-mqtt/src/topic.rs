//! Topic names and topic filters (sections 4.7 and 4.8.2).

use crate::{DecodeError, MAX_STRING};

/// Prefix of the filter of a shared subscription.
pub(crate) const SHARE: &str = "$share/";

/// Checks a topic name: at least one character and no wildcard [MQTT-3.3.2-2], [MQTT-4.7.3-1].
pub fn check_name(name: &str) -> Result<(), DecodeError> {
    let bytes = name.as_bytes();
    if bytes.is_empty()
        || bytes.len() > MAX_STRING
        || bytes.iter().any(|b| matches!(b, b'+' | b'#'))
    {
        return Err(DecodeError::TopicName);
    }
    Ok(())
}

/// Checks a topic filter: wildcards must be alone in their level, and `#` must be in the last one
/// [MQTT-4.7.1-1], [MQTT-4.7.1-2]. The filter of a shared subscription is checked without
/// `$share/name/`.
pub fn check_filter(filter: &str) -> Result<(), DecodeError> {
    if filter.is_empty() || filter.len() > MAX_STRING {
        return Err(DecodeError::TopicFilter);
    }
    let mut ended = false;
    for level in filter.split('/') {
        let wild = level.bytes().any(|b| matches!(b, b'+' | b'#'));
        if ended || wild && level.len() > 1 {
            return Err(DecodeError::TopicFilter);
        }
        ended = level == "#";
    }
    Ok(())
}

/// The parts of a shared subscription's filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedFilter<'a> {
    /// Share name, common to the group of subscribers.
    pub name: &'a str,
    /// Topic filter of the shared subscription.
    pub filter: &'a str,
}

/// Splits `$share/{name}/{filter}`; returns `None` for other filters. The name has at least one
/// character and no wildcard [MQTT-4.8.2-1], and a filter follows [MQTT-4.8.2-2].
pub fn shared(filter: &str) -> Result<Option<SharedFilter<'_>>, DecodeError> {
    let Some(rest) = filter.strip_prefix(SHARE) else {
        return match filter {
            "$share" => Err(DecodeError::SharedFilter),
            _ => Ok(None),
        };
    };
    check_filter(filter)?;
    let (name, filter) = rest.split_once('/').ok_or(DecodeError::SharedFilter)?;
    if check_name(name).is_err() || filter.is_empty() {
        return Err(DecodeError::SharedFilter);
    }
    Ok(Some(SharedFilter { name, filter }))
}

/// Returns true if a topic matches a filter. A filter that begins with a wildcard does not match
/// topics that begin with `$` [MQTT-4.7.2-1].
pub fn matches(filter: &str, topic: &str) -> bool {
    if topic.starts_with('$') && filter.starts_with(['+', '#']) {
        return false;
    }
    let mut levels = topic.split('/');
    for wanted in filter.split('/') {
        if wanted == "#" {
            return true;
        }
        match levels.next() {
            Some(level) if wanted == "+" || wanted == level => {}
            // `a/#` also matches `a`; this was handled above.
            _ => return false,
        }
    }
    levels.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn matching_follows_the_specification_examples() {
        // Sections 4.7.1.2, 4.7.1.3 and 4.7.2.
        for (filter, topic, expected) in [
            ("sport/tennis/player1/#", "sport/tennis/player1", true),
            (
                "sport/tennis/player1/#",
                "sport/tennis/player1/ranking",
                true,
            ),
            (
                "sport/tennis/player1/#",
                "sport/tennis/player1/score/wimbledon",
                true,
            ),
            ("sport/#", "sport", true),
            ("#", "a/b", true),
            ("sport/tennis/+", "sport/tennis/player1", true),
            ("sport/tennis/+", "sport/tennis/player1/ranking", false),
            ("sport/+", "sport", false),
            ("sport/+", "sport/", true),
            ("+/+", "/finance", true),
            ("/+", "/finance", true),
            ("+", "/finance", false),
            ("#", "$SYS/a", false),
            ("+/monitor/Clients", "$SYS/monitor/Clients", false),
            ("$SYS/#", "$SYS/", true),
            ("$SYS/monitor/+", "$SYS/monitor/Clients", true),
            ("ACCOUNTS", "Accounts", false),
        ] {
            assert_eq!(matches(filter, topic), expected, "{filter} {topic}");
        }
    }

    #[test]
    fn wildcards_must_be_alone_in_their_level() {
        for filter in [
            "#",
            "a/#",
            "+",
            "+/tennis/#",
            "sport/+/player1",
            "/",
            "a//b",
            "a b",
        ] {
            assert_eq!(check_filter(filter), Ok(()), "{filter}");
        }
        for filter in [
            "",
            "sport/tennis#",
            "sport/tennis/#/ranking",
            "sport+",
            "#/",
            "a/+b",
        ] {
            assert_eq!(
                check_filter(filter),
                Err(DecodeError::TopicFilter),
                "{filter}"
            );
        }
        for name in ["", "a/+", "#", "a#"] {
            assert_eq!(check_name(name), Err(DecodeError::TopicName), "{name}");
        }
    }

    #[test]
    fn shared_filters_have_a_name_and_a_filter() {
        assert_eq!(shared("a/$share"), Ok(None));
        let taken = SharedFilter {
            name: "g",
            filter: "a/+",
        };
        assert_eq!(shared("$share/g/a/+"), Ok(Some(taken)));
        for filter in [
            "$share",
            "$share/",
            "$share/g",
            "$share//a",
            "$share/g/",
            "$share/+/a",
        ] {
            assert_eq!(shared(filter), Err(DecodeError::SharedFilter), "{filter}");
        }
        for filter in ["$share/g+/a", "$share/#/a", "$share/g/a/#/b"] {
            assert_eq!(shared(filter), Err(DecodeError::TopicFilter), "{filter}");
        }
    }

    /// Matches level by level, as the specification describes it.
    fn naive(filter: &[&str], topic: &[&str]) -> bool {
        match (filter.split_first(), topic.split_first()) {
            (Some((&"#", _)), _) => true,
            (None, None) => true,
            (Some((wanted, filter)), Some((level, topic))) => {
                (*wanted == "+" || wanted == level) && naive(filter, topic)
            }
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn matching_agrees_with_a_naive_model(
            filter in proptest::collection::vec(prop_oneof!["[ab]?", Just("+".to_owned()), Just("#".to_owned())], 1..5),
            topic in proptest::collection::vec("[ab]?", 1..5),
        ) {
            let filter = filter.join("/");
            let topic = topic.join("/");
            prop_assume!(check_filter(&filter).is_ok() && check_name(&topic).is_ok());
            let levels: Vec<&str> = topic.split('/').collect();
            let wanted: Vec<&str> = filter.split('/').collect();
            prop_assert_eq!(matches(&filter, &topic), naive(&wanted, &levels));
        }
    }
}
