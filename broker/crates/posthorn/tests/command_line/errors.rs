//! Errors name the object and the remedy, and are JSON if the output is JSON.

use super::{Single, ctl, run};
use crate::program::{Result, posthorn};
use serde_json::{Value as Json, json};

/// The error document of a command that must fail.
fn error(outcome: super::Outcome) -> Result<Json> {
    assert_ne!(outcome.code, 0, "{}", outcome.stdout);
    let error: Json = serde_json::from_str(&outcome.stderr)?;
    assert_eq!(error["exit_code"], outcome.code);
    Ok(error)
}

#[test]
fn errors_are_json_documents_in_json_mode() -> Result<()> {
    let node = Single::start("errors-json", &[])?;
    let fails = |words: &[&str]| error(node.ctl(&[&["--output", "json"], words].concat())?);
    let missing = fails(&["delete_queue", "orders"])?;
    assert_eq!(missing["error"], "not_found");
    assert_eq!(
        missing["message"],
        "queue 'orders' in vhost '/' does not exist"
    );
    assert_eq!(missing["object"], "queue 'orders' in vhost '/'");
    assert_eq!(missing["status"], 404);
    assert!(missing["remedy"].is_string());

    let password = fails(&["--password", "wrong", "status"])?;
    assert_eq!(
        (&password["error"], &password["exit_code"]),
        (&json!("not_authenticated"), &json!(77))
    );

    node.ctl(&["add_user", "app", "secret", "--tags", "management"])?
        .ok();
    let tag = fails(&["--user", "app", "--password", "secret", "list_nodes"])?;
    assert_eq!(
        (&tag["error"], &tag["exit_code"]),
        (&json!("not_permitted"), &json!(77))
    );

    let argument = fails(&[
        "declare_queue",
        "q",
        "--arguments",
        "{\"x-max-length\": -1}",
    ])?;
    assert_eq!(argument["error"], "refused");
    let message = argument["message"].as_str().ok_or("no message")?;
    assert!(
        message.contains("'x-max-length' for queue 'q' in vhost '/': -1 is negative"),
        "{message}"
    );

    let unreachable = ctl("http://127.0.0.1:1", &["--output", "json", "status"]);
    let unreachable = error(run(unreachable, b"")?)?;
    assert_eq!(
        (&unreachable["error"], &unreachable["exit_code"]),
        (&json!("unreachable"), &json!(69))
    );

    for words in [
        &["list_queus", "--output", "json"][..],
        &["list_queues", "--output=json", "--no-such-option"],
        &["--output", "json", "--filter", "name", "list_queues"],
    ] {
        let usage = error(node.ctl(words)?)?;
        assert_eq!(
            (&usage["error"], &usage["exit_code"]),
            (&json!("usage"), &json!(2)),
            "{words:?}"
        );
    }
    Ok(())
}

#[test]
fn misspelt_commands_get_few_and_right_suggestions() -> Result<()> {
    let usage = |word: &str| -> Result<String> {
        let mut command = posthorn();
        command.args(["ctl", word]);
        let outcome = run(command, b"")?;
        assert_eq!(outcome.code, 2);
        Ok(outcome.stderr)
    };
    let text = usage("list_queus")?;
    assert!(text.contains("'list_queues'"), "{text}");
    assert_eq!(
        text.matches("list_").count(),
        2,
        "the word and one suggestion: {text}"
    );
    let text = usage("federation_status")?;
    assert!(!text.contains("similar"), "{text}");
    let text = usage("join_cluster")?;
    assert!(
        text.contains("cluster.peers") && !text.contains("similar"),
        "{text}"
    );
    Ok(())
}

#[test]
fn names_without_effect_cause_warnings() -> Result<()> {
    let node = Single::start("errors-warnings", &[])?;
    let declared = node.ctl(&["declare_queue", "q", "--arguments", "{\"x-max-lenght\": 5}"])?;
    assert_eq!(declared.code, 0);
    assert!(
        declared.stderr.contains(
            "no argument 'x-max-lenght', so it has no effect; did you mean x-max-length?"
        ),
        "{}",
        declared.stderr
    );
    let user = node.ctl(&["add_user", "app", "secret", "--tags", "administator"])?;
    assert_eq!(user.code, 0);
    assert!(
        user.stderr.contains("did you mean administrator?"),
        "{}",
        user.stderr
    );
    let columns = node.ctl(&["list_queues", "name", "mesages"])?;
    assert_eq!(columns.code, 0);
    assert!(
        columns
            .stderr
            .contains("no row has the column 'mesages'; did you mean messages?"),
        "{}",
        columns.stderr
    );
    let json = node.ctl(&["list_queues", "mesages", "--output", "json"])?;
    let warning: Json = serde_json::from_str(&json.stderr)?;
    assert!(warning["warning"].is_string());
    for quiet in [
        &["declare_queue", "r", "--arguments", "{\"x-max-length\": 5}"][..],
        &["list_queues", "name", "messages"],
        &["-s", "list_queues", "mesages"],
        &["set_user_tags", "app", "monitoring"],
    ] {
        assert_eq!(node.ctl(quiet)?.stderr, "", "{quiet:?}");
    }
    Ok(())
}
