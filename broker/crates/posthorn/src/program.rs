//! Which version this is and which feature flags it knows.
//!
//! With the cargo feature `next` it is the version after this one, with one flag more: for tests of upgrades. Only this crate
//! differs, so that building it costs a link.

use metadata::features::{Feature, KNOWN, Version};

/// The program as it is; with `next`, as the one that follows it.
pub const PROGRAM: Version = if cfg!(feature = "next") {
    NEXT
} else {
    Version {
        version: env!("CARGO_PKG_VERSION"),
        features: KNOWN,
    }
};

/// The version after this one.
pub const NEXT: Version = Version {
    version: "0.2.0",
    features: &with_next(),
};

/// Does nothing.
const NEXT_RELEASE: Feature = Feature {
    name: "next_release",
    description: "For tests of upgrades: known to the version after this one, and of no effect",
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
    fn next_is_the_next_minor_version_with_one_flag_more() {
        let minor: u32 = env!("CARGO_PKG_VERSION_MINOR").parse().unwrap();
        let major = env!("CARGO_PKG_VERSION_MAJOR");
        assert_eq!(NEXT.version, format!("{major}.{}.0", minor + 1));
        assert!(KNOWN.iter().all(|f| NEXT.knows(f.name)));
        let more = NEXT.features.iter().filter(|f| !KNOWN.contains(f));
        assert_eq!(more.collect::<Vec<_>>(), [&NEXT_RELEASE]);
    }
}
