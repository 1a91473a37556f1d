//! The version and its feature flags.
//!
//! Upgrade tests run the next version, which has one additional feature flag: the example `next` of this crate.

use metadata::features::{Feature, KNOWN, Version};

/// This version.
pub const PROGRAM: Version = Version {
    version: env!("CARGO_PKG_VERSION"),
    features: KNOWN,
};

/// The next version.
pub const NEXT: Version = Version {
    version: "0.3.0",
    features: &with_next(),
};

/// A feature flag without effect.
const NEXT_RELEASE: Feature = Feature {
    name: "next_release",
    description: "For upgrade tests: supported by the next version, without effect",
};

const fn with_next() -> [Feature; KNOWN.len() + 1] {
    let mut all = [NEXT_RELEASE; KNOWN.len() + 1];
    let mut at = 0;
    while at < KNOWN.len() {
        all[at] = KNOWN[at];
        at += 1;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_is_the_next_minor_version_with_one_more_flag() {
        let minor: u32 = env!("CARGO_PKG_VERSION_MINOR").parse().unwrap();
        let major = env!("CARGO_PKG_VERSION_MAJOR");
        assert_eq!(NEXT.version, format!("{major}.{}.0", minor + 1));
        assert!(KNOWN.iter().all(|f| NEXT.knows(f.name)));
        let additional = NEXT.features.iter().filter(|f| !KNOWN.contains(f));
        assert_eq!(additional.collect::<Vec<_>>(), [&NEXT_RELEASE]);
    }
}
