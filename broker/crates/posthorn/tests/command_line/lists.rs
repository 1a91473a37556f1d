//! Order, filters and repetition of lists.

use super::{Single, cells, ctl};
use crate::program::{Result, Scratch};
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

#[test]
fn lists_are_sorted_and_filtered() -> Result<()> {
    let node = Single::start("lists", &[])?;
    for (name, messages) in [("b", 2), ("a", 10), ("c", 0)] {
        node.ctl(&["declare_queue", name])?.ok();
        if messages > 0 {
            node.ctl(&["publish", name, "x", "--count", &messages.to_string()])?
                .ok();
        }
    }
    let names = |words: &[&str]| -> Result<String> {
        let table = node.ctl(&[&["list_queues"], words].concat())?.ok();
        Ok(cells(&table)[1..].iter().map(|row| row[1]).collect())
    };
    assert_eq!(names(&["--sort", "ready"])?, "cba");
    assert_eq!(names(&["--sort", "messages", "--descending"])?, "abc");
    assert_eq!(
        names(&["--filter", "ready>=2", "--filter", "name~[bc]"])?,
        "b"
    );
    let aged = ["--filter", "head_message_age_seconds>=0", "--sort", "name"];
    assert_eq!(names(&aged)?, "ab", "queues with ready messages");
    let ages = node.ctl(&["list_queues", "-s", "name", "head_message_age_seconds"])?;
    assert_eq!(ages.stderr, "");
    let ages = ages.ok();
    let empty = cells(&ages).into_iter().find(|row| row[0] == "c");
    assert_eq!(empty.map(|row| row.len()), Some(1), "c has no age");
    let json = node
        .ctl(&["list_queues", "--output", "json", "--filter", "name=a"])?
        .json()?;
    assert_eq!(json.as_array().map(Vec::len), Some(1));
    assert_eq!(json[0]["name"], "a");
    let columns = node.ctl(&[
        "list_queues",
        "-s",
        "name",
        "--sort",
        "name",
        "--filter",
        "ready>0",
    ])?;
    assert_eq!(columns.ok(), "a\nb\n");
    let misspelt = node.ctl(&["list_queues", "--filter", "raedy>0"])?;
    assert_eq!((misspelt.code, misspelt.stdout.as_str()), (2, ""));
    assert!(
        misspelt
            .stderr
            .contains("--filter 'raedy': no row has this column"),
        "{}",
        misspelt.stderr
    );
    Ok(())
}

#[test]
fn watch_repeats_a_list_until_nobody_reads() -> Result<()> {
    let node = Single::start("lists-watch", &[])?;
    let mut watch = ctl(&node.url, &["list_queues", "-s", "name", "--watch", "1"])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(watch.stdout.take().ok_or("no output")?).lines();
    node.ctl(&["declare_queue", "first"])?.ok();
    for _ in 0..2 {
        assert_eq!(lines.next().ok_or("ended")??, "first");
    }
    drop(lines);
    assert!(watch.wait()?.success());
    let change = node.ctl(&["purge_queue", "first", "--watch", "1"])?;
    assert_eq!(change.code, 2);
    assert!(
        change
            .stderr
            .contains("--watch repeats lists and checks only"),
        "{}",
        change.stderr
    );
    Ok(())
}

#[test]
fn a_closed_pipe_ends_a_list_without_an_error() -> Result<()> {
    let node = Single::start("lists-pipe", &[])?;
    let script = "set -o pipefail; for i in 1 2 3 4 5; do \"$1\" ctl --url \"$2\" list_exchanges --output json | true || exit 1; done";
    let output = Command::new("bash")
        .args([
            "-c",
            script,
            "bash",
            env!("CARGO_BIN_EXE_posthorn"),
            &node.url,
        ])
        .output()?;
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(String::from_utf8(output.stderr)?, "");
    Ok(())
}

#[test]
fn top_lists_the_busiest_queues() -> Result<()> {
    let node = Single::start("lists-top", &[])?;
    for (name, messages) in [("idle", 0), ("some", 3), ("many", 20)] {
        node.ctl(&["declare_queue", name])?.ok();
        if messages > 0 {
            node.ctl(&["publish", name, "x", "--count", &messages.to_string()])?
                .ok();
        }
    }
    let top = node.ctl(&["top", "--by", "messages", "--limit", "2"])?.ok();
    let rows = cells(&top);
    assert_eq!(rows[0][..4], ["vhost", "queue", "type", "publish/s"]);
    let names: Vec<&str> = rows[1..].iter().map(|row| row[1]).collect();
    assert_eq!(names, ["many", "some"]);
    // Rates are sampled from the first request on.
    let rated = crate::program::eventually("a rate", || {
        node.ctl(&["publish", "some", "x", "--count", "5"]).ok()?;
        let top = node
            .ctl(&["top", "--by", "publish", "--output", "json"])
            .ok()?
            .json()
            .ok()?;
        (top[0]["publish_rate"].as_f64()? > 0.0).then_some(top)
    })?;
    assert_eq!(rated[0]["name"], "some");
    Ok(())
}

#[test]
fn environment_lists_settings_with_their_sources() -> Result<()> {
    let scratch = Scratch::new("lists-environment")?;
    let file = scratch.0.join("posthorn.conf");
    std::fs::write(
        &file,
        "# first line\nchannel_max = 99\ndefault_pass = password-in-a-file\n",
    )?;
    let ready = scratch.0.join("ready");
    let data = scratch.0.join("data");
    let mut command = super::serve(&data, &ready);
    command
        .arg("--config")
        .arg(&file)
        .env("POSTHORN_HEARTBEAT", "7");
    let _process = super::Serving(command.stderr(Stdio::null()).spawn()?);
    super::wait_for(&ready)?;
    let url = format!("http://{}", super::address(&ready, "management")?);
    let words = [
        "--password",
        "password-in-a-file",
        "environment",
        "--output",
        "json",
    ];
    let outcome = super::run(ctl(&url, &words), b"")?;
    assert!(!outcome.stdout.contains("password-in-a-file"));
    let settings = outcome.json()?;
    let of = |key: &str| -> Result<(String, String)> {
        let mut settings = settings.as_array().into_iter().flatten();
        let setting = settings.find(|s| s["key"] == key).ok_or(key.to_owned())?;
        let text = |member: &str| setting[member].as_str().unwrap_or_default().to_owned();
        Ok((text("value"), text("source")))
    };
    let pair = |value: &str, source: String| (value.to_owned(), source);
    assert_eq!(
        of("channel_max")?,
        pair("99", format!("{}:2", file.display()))
    );
    assert_eq!(
        of("default_pass")?,
        pair("********", format!("{}:3", file.display()))
    );
    assert_eq!(
        of("heartbeat")?,
        pair("7", "environment POSTHORN_HEARTBEAT".to_owned())
    );
    assert_eq!(
        of("probes.tcp.port")?,
        pair("127.0.0.1:0", "--set probes.tcp.port".to_owned())
    );
    assert_eq!(
        of("data_dir")?,
        pair(&data.display().to_string(), "--data-dir".to_owned())
    );
    assert_eq!(of("frame_max")?.1, "default");
    let words = [
        "--password",
        "password-in-a-file",
        "environment",
        "--filter",
        "source!=default",
        "--sort",
        "key",
    ];
    let table = super::run(ctl(&url, &words), b"")?.ok();
    assert_eq!(cells(&table)[1][..2], ["channel_max", "99"]);
    assert!(!table.contains("frame_max"), "{table}");
    Ok(())
}
