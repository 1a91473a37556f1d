//! Warnings about names that the API accepts without effect: arguments of queues and tags of users.

use super::suggestions::suggestions;
use metadata::QueueType;

/// Arguments that are no part of a type's descriptor, because any value is accepted.
const UNCHECKED: [&str; 3] = [
    "x-consumer-timeout",
    "x-quorum-target-group-size",
    "x-stream-filter-size-bytes",
];

/// Tags with a meaning.
const TAGS: [&str; 5] = [
    "administrator",
    "monitoring",
    "policymaker",
    "management",
    "protected",
];

fn hint(word: &str, known: &[&str]) -> String {
    match suggestions(word, known).as_slice() {
        [] => String::new(),
        similar => format!("; did you mean {}?", similar.join(" or ")),
    }
}

/// Arguments of a queue that start with `x-` and that its type does not know.
pub(crate) fn unknown_arguments<'a>(
    kind: &str,
    arguments: impl Iterator<Item = &'a String>,
) -> Vec<String> {
    let Some(kind) = QueueType::from_name(kind) else {
        return Vec::new();
    };
    let known = kind.descriptor().arguments;
    let is_known = |name: &str| known.contains(&name) || UNCHECKED.contains(&name);
    let is_unknown = |name: &&String| name.starts_with("x-") && !is_known(name);
    arguments
        .filter(is_unknown)
        .map(|name| {
            format!(
                "{} queues have no argument '{name}', so it has no effect{}",
                kind.name(),
                hint(name, known)
            )
        })
        .collect()
}

/// Tags without a meaning.
pub(crate) fn unknown_tags(tags: &[String]) -> Vec<String> {
    let unknown = tags.iter().filter(|tag| !TAGS.contains(&tag.as_str()));
    unknown
        .map(|tag| {
            let hint = match hint(tag, &TAGS).as_str() {
                "" => format!("; the tags with a meaning are {}", TAGS.join(", ")),
                hint => hint.to_owned(),
            };
            format!("the tag '{tag}' permits nothing{hint}")
        })
        .collect()
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn misspelt_names_are_reported_and_others_are_not() {
        let arguments = [
            "x-max-length",
            "x-max-lenght",
            "my-own",
            "x-foreign",
            "x-consumer-timeout",
        ]
        .map(str::to_owned);
        assert_eq!(
            unknown_arguments("quorum", arguments.iter()),
            [
                "quorum queues have no argument 'x-max-lenght', so it has no effect; did you mean x-max-length?",
                "quorum queues have no argument 'x-foreign', so it has no effect",
            ]
        );
        assert!(unknown_arguments("heap", arguments.iter()).is_empty());
        let tags = ["monitoring", "administator", "billing"].map(str::to_owned);
        assert_eq!(
            unknown_tags(&tags),
            [
                "the tag 'administator' permits nothing; did you mean administrator?",
                "the tag 'billing' permits nothing; the tags with a meaning are administrator, monitoring, policymaker, \
                 management, protected",
            ]
        );
    }
}
