//! The reference of configuration keys in the documentation is what the program prints.
#![forbid(unsafe_code)]

mod program;

use program::{Result, posthorn};
use std::path::Path;

#[test]
fn the_reference_is_complete() -> Result<()> {
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/reference/configuration.md");
    let output = posthorn().args(["config", "reference"]).output()?;
    let found = format!(
        "# Configuration\n\nLines `key = value` of a file and of `conf.d/*.conf` beside it (`posthorn serve --config FILE`); the environment, \
         `POSTHORN_` and the key with `_` for `.` and `__` for `_`; `--set key=value`. Later ones win, in this order. `posthorn config check FILE` names \
         what is wrong. A change takes a restart, but for the contents of certificate files, log levels, the memory watermark and the limit of free disk space, \
         which `posthorn ctl` sets until then. Made by the program: `UPDATE=1 cargo test -p posthorn --test configuration`.\n\n{}",
        String::from_utf8(output.stdout)?
    );
    assert!(found.contains("| `cluster.peers` |"), "{found}");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&file, &found)?;
    }
    let written = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        written == found,
        "docs/reference/configuration.md is not what the program says: UPDATE=1 writes it"
    );
    Ok(())
}
