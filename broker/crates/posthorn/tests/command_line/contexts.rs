//! Contexts: named addresses, users and password files.

use super::{Outcome, Single, run};
use crate::program::{Result, Scratch, posthorn};
use std::path::Path;

fn with_contexts(file: &Path, words: &[&str]) -> Result<Outcome> {
    let mut command = posthorn();
    command
        .arg("ctl")
        .args(words)
        .env("POSTHORN_CONTEXTS", file);
    run(command, b"")
}

#[test]
fn contexts_name_addresses_and_users() -> Result<()> {
    let scratch = Scratch::new("contexts")?;
    let (one, two) = (
        Single::start("contexts-one", &[])?,
        Single::start("contexts-two", &[])?,
    );
    one.ctl(&["declare_queue", "at-one"])?.ok();
    two.ctl(&["declare_queue", "at-two"])?.ok();
    two.ctl(&["add_user", "app", "secret-of-app", "--tags", "monitoring"])?
        .ok();
    two.ctl(&["set_permissions", "app", ".*", ".*", ".*"])?.ok();
    let file = scratch.0.join("new/contexts.json");
    let password = scratch.0.join("password");
    std::fs::write(&password, "secret-of-app\n")?;
    let password = password.to_str().ok_or("path")?;
    let ctl = |words: &[&str]| with_contexts(&file, words);

    ctl(&["set_context", "one", "--url", &one.url])?.ok();
    ctl(&[
        "set_context",
        "two",
        "--url",
        &two.url,
        "--user",
        "app",
        "--password-file",
        password,
    ])?
    .ok();
    let queues = |words: &[&str]| -> Result<String> {
        Ok(ctl(&[&["list_queues", "-s", "name"], words].concat())?.ok())
    };
    assert_eq!(queues(&["--context", "one"])?, "at-one\n");
    assert_eq!(queues(&["--context", "two"])?, "at-two\n");
    ctl(&["use_context", "two"])?.ok();
    assert_eq!(queues(&[])?, "at-two\n");
    // Another address must not get the password of the current context.
    assert_eq!(queues(&["--url", &one.url])?, "at-one\n");

    let list = ctl(&["list_contexts", "--output", "json"])?.json()?;
    assert_eq!(list[0]["name"], "one");
    assert_eq!(list[0]["current"], false);
    assert_eq!(list[1]["user"], "app");
    assert_eq!(list[1]["current"], true);
    assert!(!std::fs::read_to_string(&file)?.contains("secret-of-app"));

    ctl(&["delete_context", "two"])?.ok();
    let deleted = ctl(&["use_context", "two"])?;
    assert_eq!(deleted.code, 2);
    assert!(
        deleted
            .stderr
            .contains("there is no context 'two'; the contexts are one"),
        "{}",
        deleted.stderr
    );
    Ok(())
}

#[test]
fn contexts_refuse_passwords_and_damaged_files() -> Result<()> {
    let scratch = Scratch::new("contexts-refused")?;
    let file = scratch.0.join("contexts.json");
    let ctl = |words: &[&str]| with_contexts(&file, words);
    for (words, text) in [
        (
            &["set_context", "a", "--url", "http://x", "--password", "p"][..],
            "give --password-file",
        ),
        (&["set_context", "a"], "context 'a' needs an address"),
        (
            &["--context", "a", "status"],
            "there is no context 'a'; create it with `set_context a",
        ),
        (
            &["--context", "a", "--url", "http://x", "status"],
            "--context",
        ),
    ] {
        let outcome = ctl(words)?;
        assert_eq!(outcome.code, 2, "{words:?}");
        assert!(
            outcome.stderr.contains(text),
            "{words:?}: {}",
            outcome.stderr
        );
        assert!(!file.exists());
    }
    std::fs::write(&file, "{\"contexts\": {\"a\": {\"password\": \"p\"}}}")?;
    let damaged = ctl(&["status"])?;
    assert_eq!(damaged.code, 2);
    assert!(
        damaged
            .stderr
            .contains("cannot be read: unknown field `password`"),
        "{}",
        damaged.stderr
    );
    Ok(())
}
