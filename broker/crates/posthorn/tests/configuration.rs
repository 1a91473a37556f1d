//! The configuration reference in the documentation equals the output of `posthorn config
//! reference`.

use crate::program::{Result, posthorn};
use std::path::Path;

/// The text above the table.
const HEADING: &str = "# Configuration

A node reads its configuration from these sources; a later one takes precedence:

1. lines `key = value` of a file (`posthorn serve --config FILE`);
2. the files `conf.d/*.conf` next to it;
3. environment variables: `POSTHORN_` and the key, with `_` for `.` and `__` for `_`;
4. `--set key=value`.

`posthorn config check FILE` names every error. A change needs a restart, with three exceptions:

- A reload reads all sources again. It applies changes of the keys that this page marks; changes of
  other keys wait for the next start. If the sources are invalid, nothing changes. Connections keep
  the limits with which they began. SIGHUP and `POST /api/nodes/{node}/configuration/reload` reload.
- The contents of certificate files apply within seconds.
- `posthorn ctl` changes log levels, the memory watermark and the limit of free disk space of a
  running node until its next restart, or until a reload changes the same setting.

`UPDATE=1 cargo test -p posthorn configuration::` generates this page.

";

#[test]
fn documented_keys_match_the_binary() -> Result<()> {
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/reference/configuration.md");
    let output = posthorn().args(["config", "reference"]).output()?;
    let found = format!("{HEADING}{}", String::from_utf8(output.stdout)?);
    assert!(found.contains("| `cluster.peers` |"), "{found}");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&file, &found)?;
    }
    let written = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        written == found,
        "docs/reference/configuration.md differs from `posthorn config reference`: UPDATE=1 writes it"
    );
    Ok(())
}
