//! Shell completions, as bash evaluates them: every command, and nothing else.

use crate::program::{Result, Scratch, posthorn};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

fn script(shell: &str, binary_name: &str) -> Result<String> {
    let output = posthorn()
        .args(["completion", shell, "--for", binary_name])
        .output()?;
    assert!(output.status.success(), "{shell}");
    Ok(String::from_utf8(output.stdout)?)
}

/// The completions that bash offers for these words, the last of which is incomplete.
fn completions(script: &Path, words: &[&str]) -> Result<BTreeSet<String>> {
    let source = "source \"$1\"; shift; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); COMP_LINE=\"$*\"; \
                  \"_$1\" \"$1\" \"${!#}\" \"${COMP_WORDS[$((COMP_CWORD - 1))]}\"; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let output = Command::new("bash")
        .args(["--noprofile", "--norc", "-c", source, "bash"])
        .arg(script)
        .args(words)
        .output()?;
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// The commands listed by the help text.
fn commands_in_help(words: &[&str]) -> Result<BTreeSet<String>> {
    let output = posthorn().args(words).arg("--help").output()?;
    let text = String::from_utf8(output.stdout)?;
    let commands = text.split("Commands:").nth(1).ok_or("no commands")?;
    let commands = commands.split("\n\n").next().unwrap_or("");
    let words = commands
        .lines()
        .filter(|l| l.starts_with("  ") && !l.starts_with("   "));
    Ok(words
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned)
        .collect())
}

#[test]
fn bash_completes_every_command_and_option() -> Result<()> {
    let scratch = Scratch::new("completion")?;
    let file = scratch.0.join("posthorn.bash");
    std::fs::write(&file, script("bash", "posthorn")?)?;
    let commands = |found: BTreeSet<String>| -> BTreeSet<String> {
        found.into_iter().filter(|w| !w.starts_with('-')).collect()
    };
    assert_eq!(
        commands(completions(&file, &["posthorn", ""])?),
        commands_in_help(&[])?
    );
    let all = commands(completions(&file, &["posthorn", "ctl", ""])?);
    assert_eq!(all, commands_in_help(&["ctl"])?);
    assert!(all.len() > 60 && all.contains("list_queues"), "{all:?}");
    let begun = completions(&file, &["posthorn", "ctl", "set_perm"])?;
    assert_eq!(begun, BTreeSet::from(["set_permissions".to_owned()]));
    let options = completions(&file, &["posthorn", "serve", "--"])?;
    for option in ["--config", "--data-dir", "--set", "--ready-file"] {
        assert!(options.contains(option), "{options:?}");
    }
    let formats = completions(&file, &["posthorn", "ctl", "--output", ""])?;
    assert_eq!(
        formats,
        BTreeSet::from(["json".to_owned(), "table".to_owned()])
    );
    for name in ["posthornctl", "rabbitmqctl"] {
        let file = scratch.0.join(name);
        std::fs::write(&file, script("bash", name)?)?;
        assert_eq!(commands(completions(&file, &[name, ""])?), all, "{name}");
    }
    Ok(())
}

#[test]
fn completions_exist_for_other_shells() -> Result<()> {
    for (shell, begins) in [
        ("zsh", "#compdef posthorn"),
        ("fish", "# Print an optspec"),
        ("elvish", "\nuse builtin;"),
        ("powershell", "\nusing namespace"),
    ] {
        let text = script(shell, "posthorn")?;
        assert!(text.starts_with(begins), "{shell}: {text:.60}");
        assert!(text.contains("list_queues"), "{shell}");
    }
    let wrong = posthorn().args(["completion", "tcsh"]).output()?;
    assert_eq!(wrong.status.code(), Some(2));
    Ok(())
}
