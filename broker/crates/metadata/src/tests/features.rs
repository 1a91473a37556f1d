use super::*;
use crate::features::{Feature, Version};

fn known_by(flag: &str, nodes: &[u64]) -> Change {
    Change::EnableKnownFeature {
        name: name(flag),
        known_by: nodes.iter().map(|n| NodeId(*n)).collect(),
    }
}

/// The stored flags do not depend on the known ones. Otherwise the trees of two versions would differ.
#[test]
fn unknown_flag_is_stored() {
    let mut log = Log::new();
    let unknown = name("from_a_later_version");
    let enable = Change::EnableFeature {
        name: unknown.clone(),
    };
    assert_eq!(log.ok(enable.clone()), ChangeResult::Changed);
    assert_eq!(log.ok(enable), ChangeResult::Unchanged);
    assert_eq!(
        log.tree.enabled_features().collect::<Vec<_>>(),
        vec![&unknown]
    );
    let restored = Tree::restore(&log.tree.snapshot()).unwrap();
    assert!(restored.feature_enabled(&unknown));
    let reason =
        Version::default().explain_incompatibility(restored.enabled_features().map(|f| &**f));
    let reason = reason.expect("unknown");
    assert!(
        reason.contains("'from_a_later_version'") && reason.contains(env!("CARGO_PKG_VERSION")),
        "{reason}"
    );
}

#[test]
fn version_can_run_in_a_cluster_whose_enabled_flags_it_knows() {
    const FIRST: Feature = Feature {
        name: "first",
        description: "",
    };
    const SECOND: Feature = Feature {
        name: "second",
        description: "",
    };
    let mut log = Log::new();
    for flag in [FIRST, SECOND] {
        log.ok(known_by(flag.name, &[1, 2, 3]));
    }
    let enabled = || log.tree.enabled_features().map(|f| &**f);
    let newer = Version {
        version: "0.3.0",
        features: &[FIRST, SECOND],
    };
    assert_eq!(newer.explain_incompatibility(enabled()), None);
    assert_eq!(newer.facts().explain_incompatibility(enabled()), None);
    let older = Version {
        version: "0.2.0",
        features: &[FIRST],
    };
    let reason = older
        .facts()
        .explain_incompatibility(enabled())
        .expect("lacks one");
    let expected = "version 0.2.0 does not know the feature flag(s) 'second'";
    assert!(reason.starts_with(expected), "{reason}");
}

/// The requester had seen three nodes that know the flag, and a fourth joined before the change.
#[test]
fn flag_is_refused_if_a_member_does_not_know_it() {
    let mut log = Log::new();
    log.ok(Change::PutNode(node(4)));
    let refused = log.refused(known_by("f", &[1, 2, 3]));
    assert!(
        matches!(&refused, ChangeError::PreconditionFailed(reason) if reason.contains("'f' is not supported by node(s) c-4:")),
        "{refused:?}"
    );
    assert!(!log.tree.feature_enabled("f"));
    // A node in the list that is no longer a member is ignored.
    log.ok(Change::ForgetNode { id: NodeId(4) });
    assert_eq!(log.ok(known_by("f", &[1, 2, 3, 4])), ChangeResult::Changed);
    assert_eq!(log.ok(known_by("f", &[])), ChangeResult::Unchanged);
}

#[test]
fn names_and_number_of_flags_are_limited() {
    let mut log = Log::new();
    for invalid in [String::new(), "x".repeat(limits::NAME_BYTES + 1)] {
        let refused = log.refused(known_by(&invalid, &[1, 2, 3]));
        assert!(matches!(refused, ChangeError::Invalid(_)), "{refused:?}");
    }
    for i in 0..limits::FEATURES {
        log.ok(known_by(&format!("f{i}"), &[1, 2, 3]));
    }
    let refused = log.refused(known_by("one_more", &[1, 2, 3]));
    assert!(
        matches!(refused, ChangeError::PreconditionFailed(_)),
        "{refused:?}"
    );
}
