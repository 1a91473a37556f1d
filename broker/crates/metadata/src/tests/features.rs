use super::*;
use crate::features::{Feature, Version};

fn known_by(flag: &str, nodes: &[u64]) -> Change {
    Change::EnableKnownFeature {
        name: name(flag),
        known_by: nodes.iter().map(|n| NodeId(*n)).collect(),
    }
}

/// What a program stores never depends on what it knows: otherwise the trees of two versions would differ.
#[test]
fn a_flag_that_this_program_does_not_know_is_stored_as_it_is() {
    let mut log = Log::new();
    let strange = name("from_a_later_version");
    let on = Change::EnableFeature {
        name: strange.clone(),
    };
    assert_eq!(log.ok(on.clone()), ChangeResult::Changed);
    assert_eq!(log.ok(on), ChangeResult::AsBefore);
    assert_eq!(
        log.tree.enabled_features().collect::<Vec<_>>(),
        vec![&strange]
    );
    let restored = Tree::restore(&log.tree.snapshot()).unwrap();
    assert!(restored.feature_enabled(&strange));
    let why = Version::default().misfit(restored.enabled_features().map(|f| &**f));
    let why = why.expect("unknown");
    assert!(
        why.contains("'from_a_later_version'") && why.contains(env!("CARGO_PKG_VERSION")),
        "{why}"
    );
}

#[test]
fn version_fits_a_cluster_whose_enabled_flags_it_knows() {
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
    assert_eq!(newer.misfit(enabled()), None);
    assert_eq!(newer.facts().misfit(enabled()), None);
    let older = Version {
        version: "0.2.0",
        features: &[FIRST],
    };
    let reason = older.facts().misfit(enabled()).expect("lacks one");
    let expected = "version 0.2.0 does not know the feature flag(s) 'second'";
    assert!(reason.starts_with(expected), "{reason}");
}

/// Who asked had seen three nodes that know it; a fourth came in before the change.
#[test]
fn a_flag_is_refused_when_a_member_is_not_among_those_that_know_it() {
    let mut log = Log::new();
    log.ok(Change::PutNode(node(4)));
    let refused = log.refused(known_by("f", &[1, 2, 3]));
    assert!(
        matches!(&refused, ChangeError::PreconditionFailed(why) if why.contains("'f' is not supported by node(s) c-4:")),
        "{refused:?}"
    );
    assert!(!log.tree.feature_enabled("f"));
    // One that is no member any more does no harm.
    log.ok(Change::ForgetNode { id: NodeId(4) });
    assert_eq!(log.ok(known_by("f", &[1, 2, 3, 4])), ChangeResult::Changed);
    assert_eq!(log.ok(known_by("f", &[])), ChangeResult::AsBefore);
}

#[test]
fn flags_have_names_and_are_not_many() {
    let mut log = Log::new();
    for bad in [String::new(), "x".repeat(limits::NAME_BYTES + 1)] {
        let refused = log.refused(known_by(&bad, &[1, 2, 3]));
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
