//! Suggestions for misspelt names: only names that are close enough to be meant.

/// Most suggestions for one word.
const MAX_SUGGESTIONS: usize = 3;

/// The most similar names, best first. None if no name is similar.
pub(crate) fn suggestions(word: &str, names: &[&str]) -> Vec<String> {
    let most = match word.len() {
        0..=2 => 0,
        3..=5 => 1,
        6..=10 => 2,
        _ => 3,
    };
    let word = word.to_lowercase().replace('-', "_");
    let mut found: Vec<(usize, &str)> = names
        .iter()
        .map(|name| (distance(&word, &name.replace('-', "_")), *name))
        .filter(|(distance, _)| *distance <= most)
        .collect();
    found.sort_unstable();
    found.dedup();
    // A name that is farther away than the best one is noise.
    let best = found.first().map_or(0, |(distance, _)| *distance);
    let found = found.into_iter().filter(|(distance, _)| *distance == best);
    found
        .take(MAX_SUGGESTIONS)
        .map(|(_, name)| name.to_owned())
        .collect()
}

/// The number of insertions, deletions, replacements and transpositions of neighbours.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut previous: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let replaced = previous[j] + usize::from(x != y);
            let mut least = replaced.min(previous[j + 1] + 1).min(row[j] + 1);
            let is_swap = i > 0 && j > 0 && a[i - 1] == *y && *x == b[j - 1];
            if is_swap {
                least = least.min(before[j - 1] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut previous, row);
    }
    previous.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn only_the_closest_names_are_suggested() {
        let names = [
            "list_queues",
            "list_users",
            "list_vhosts",
            "delete_queue",
            "status",
            "top",
            "get",
        ];
        for (word, expected) in [
            ("list_queus", &["list_queues"][..]),
            ("list-queues", &["list_queues"]),
            ("lits_users", &["list_users"]),
            ("LIST_VHOSTS", &["list_vhosts"]),
            ("stauts", &["status"]),
            ("to", &[]),
            ("gte", &["get"]),
            ("federation_status", &[]),
            ("", &[]),
        ] {
            assert_eq!(suggestions(word, &names), expected, "{word}");
        }
    }

    #[test]
    fn distance_counts_a_swap_of_neighbours_as_one() {
        assert_eq!(distance("stauts", "status"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("same", "same"), 0);
    }
}
