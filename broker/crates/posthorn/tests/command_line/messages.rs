//! `publish`, `get`, `consume`, exchanges and bindings.

use super::{Single, cells, ctl, run};
use crate::program::Result;
use serde_json::{Value as Json, json};
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

#[test]
fn messages_are_published_shown_and_consumed() -> Result<()> {
    let node = Single::start("messages", &[])?;
    let unrouted = node.ctl(&["publish", "orders", "lost"])?;
    assert_eq!(unrouted.code, 1);
    assert!(
        unrouted.stderr.contains("vhost '/' has no queue 'orders'")
            && unrouted.stderr.contains("declare_queue"),
        "{}",
        unrouted.stderr
    );
    node.ctl(&["declare_queue", "orders"])?.ok();
    let published = node.ctl(&[
        "publish",
        "orders",
        "first",
        "--property",
        "priority=5",
        "--header",
        "shop=eu",
    ])?;
    assert_eq!(
        published.ok(),
        "Published a message to queue 'orders' in vhost '/'\n"
    );
    let from_stdin = run(ctl(&node.url, &["publish", "orders"]), b"second")?;
    from_stdin.ok();
    let file = node.scratch.0.join("payload");
    std::fs::write(&file, [0xff, 0xfe])?;
    node.ctl(&[
        "publish",
        "orders",
        "--file",
        file.to_str().ok_or("path")?,
        "--transient",
    ])?
    .ok();

    // Messages that are only shown stay, however often.
    for earlier in 0..2 {
        let shown = node
            .ctl(&["get", "orders", "--count", "10", "--output", "json"])?
            .json()?;
        assert_eq!(shown.as_array().map(Vec::len), Some(3), "{shown}");
        assert_eq!(shown[0]["payload"], "first");
        let headers = match earlier {
            0 => json!({"shop": "eu"}),
            returns => json!({"shop": "eu", "x-acquired-count": returns}),
        };
        assert_eq!(shown[0]["properties"]["headers"], headers);
        assert_eq!(shown[0]["properties"]["priority"], 5);
        assert_eq!(shown[0]["properties"]["delivery_mode"], 2);
        assert_eq!(shown[2]["payload_encoding"], "base64");
        assert_eq!(shown[2]["properties"]["delivery_mode"], 1);
    }
    let removed = node.ctl(&["get", "orders", "--remove"])?.ok();
    assert!(
        cells(&removed)[1].ends_with(&["5", "string", "first"]),
        "{removed}"
    );
    let consumed = node.ctl(&["consume", "orders", "--count", "1"])?.ok();
    assert_eq!(consumed, "second\n");
    let json = node.ctl(&["consume", "orders", "--output", "json"])?.ok();
    let lines: Vec<Json> = json
        .lines()
        .map(serde_json::from_str)
        .collect::<std::result::Result<_, _>>()?;
    assert_eq!(lines.len(), 1);
    assert_eq!(lines[0]["payload"], "//4=");
    assert_eq!(
        node.ctl(&["consume", "orders"])?.ok(),
        "",
        "the queue is empty"
    );
    let short = node.ctl(&["consume", "orders", "--count", "2"])?;
    assert_eq!(short.code, 1);
    assert!(
        short.stderr.contains("is empty after 0 of 2 messages"),
        "{}",
        short.stderr
    );

    node.ctl(&["publish", "orders", "again", "--count", "150"])?
        .ok();
    let all = node.ctl(&["consume", "orders", "--count", "150"])?.ok();
    assert_eq!(all.lines().count(), 150, "more than one request");

    let large = run(ctl(&node.url, &["publish", "orders"]), &vec![b'x'; 200_000])?;
    assert_eq!(large.code, 2);
    assert!(
        large
            .stderr
            .contains("standard input has more than 184320 bytes"),
        "{}",
        large.stderr
    );
    let most = run(ctl(&node.url, &["publish", "orders"]), &vec![b'x'; 184_320])?;
    most.ok();
    let missing = node.ctl(&["get", "nothing"])?;
    assert_eq!(missing.code, 1);
    assert!(
        missing.stderr.contains("queue 'nothing' in vhost '/'"),
        "{}",
        missing.stderr
    );
    Ok(())
}

#[test]
fn consume_follow_waits_for_messages_until_nobody_reads() -> Result<()> {
    let node = Single::start("messages-follow", &[])?;
    node.ctl(&["declare_queue", "orders"])?.ok();
    let mut consumer = ctl(&node.url, &["consume", "orders", "--follow"])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(consumer.stdout.take().ok_or("no output")?).lines();
    for payload in ["first", "second"] {
        node.ctl(&["publish", "orders", payload])?.ok();
        assert_eq!(lines.next().ok_or("ended")??, payload);
    }
    drop(lines);
    node.ctl(&["publish", "orders", "third"])?.ok();
    let ended = crate::program::eventually("an end", || consumer.try_wait().ok().flatten())?;
    assert!(ended.success(), "{ended}");
    Ok(())
}

#[test]
fn exchanges_and_bindings_are_declared_and_deleted() -> Result<()> {
    let node = Single::start("messages-topology", &[])?;
    node.ctl(&["declare_queue", "orders"])?.ok();
    let declared = node
        .ctl(&["declare_exchange", "events", "--type", "topic"])?
        .ok();
    assert_eq!(declared, "Declared topic exchange 'events' in vhost '/'\n");
    let again = node
        .ctl(&["declare_exchange", "events", "--type", "topic"])?
        .ok();
    assert!(again.contains("already exists"), "{again}");
    let unrouted = node.ctl(&["publish", "eu.paid", "x", "--exchange", "events"])?;
    assert_eq!(unrouted.code, 1);
    assert!(
        unrouted
            .stderr
            .contains("no binding that matches routing key 'eu.paid'"),
        "{}",
        unrouted.stderr
    );
    let key = ["--routing-key", "eu.#"];
    node.ctl(&[&["bind", "events", "orders"][..], &key].concat())?
        .ok();
    node.ctl(&["bind", "amq.fanout", "events", "--to-exchange"])?
        .ok();
    node.ctl(&["publish", "eu.paid", "routed", "--exchange", "events"])?
        .ok();
    assert_eq!(node.ctl(&["consume", "orders"])?.ok(), "routed\n");
    let columns = [
        "list_bindings",
        "-s",
        "source_name",
        "source_kind",
        "destination_name",
        "routing_key",
    ];
    let bindings = node
        .ctl(&[&columns[..], &["--filter", "source=events"]].concat())?
        .ok();
    assert_eq!(bindings, "events\texchange\torders\teu.#\n");
    let exchanges = [
        "list_exchanges",
        "-s",
        "name",
        "type",
        "--filter",
        "name=events",
    ];
    assert_eq!(node.ctl(&exchanges)?.ok(), "events\ttopic\n");
    assert_eq!(node.ctl(&["list_vhosts", "-s", "name"])?.ok(), "/\n");
    let used = node.ctl(&["delete_exchange", "events", "--if-unused"])?;
    assert_eq!(used.code, 1);
    let wrong = node.ctl(&["unbind", "events", "orders", "--routing-key", "us.#"])?;
    assert_eq!(wrong.code, 1);
    assert!(
        wrong
            .stderr
            .contains("with routing key 'us.#' in vhost '/' does not exist"),
        "{}",
        wrong.stderr
    );
    node.ctl(&[&["unbind", "events", "orders"][..], &key].concat())?
        .ok();
    node.ctl(&["unbind", "amq.fanout", "events", "--to-exchange"])?
        .ok();
    let bindings = node
        .ctl(&["list_bindings", "--filter", "source=events"])?
        .ok();
    assert_eq!(bindings.lines().count(), 1, "{bindings}");
    node.ctl(&["delete_exchange", "events", "--if-unused"])?
        .ok();
    let missing = node.ctl(&["delete_exchange", "events"])?;
    assert!(
        missing.stderr.contains("exchange 'events' in vhost '/'"),
        "{}",
        missing.stderr
    );
    Ok(())
}

/// The positions and payloads that `browse` lists.
fn browse(node: &Single, queue: &str) -> Result<Vec<(String, String)>> {
    let listed = node.ctl(&["browse", queue, "--output", "json"])?.json()?;
    let text = |message: &Json, key: &str| message[key].as_str().unwrap_or_default().to_owned();
    let all = listed.as_array().ok_or("no list")?.iter();
    Ok(all
        .map(|m| (text(m, "position"), text(m, "payload")))
        .collect())
}

fn payloads(listed: &[(String, String)]) -> Vec<&str> {
    listed.iter().map(|(_, payload)| payload.as_str()).collect()
}

#[test]
fn messages_are_browsed_deleted_and_moved() -> Result<()> {
    let node = Single::start("browse", &[])?;
    for kind in ["classic", "quorum"] {
        let (queue, other) = (format!("from-{kind}"), format!("to-{kind}"));
        node.ctl(&["declare_queue", &queue, "--type", kind])?.ok();
        for payload in ["one", "two", "three", "four"] {
            node.ctl(&["publish", &queue, payload])?.ok();
        }
        let listed = browse(&node, &queue)?;
        assert_eq!(payloads(&listed), ["one", "two", "three", "four"]);
        let table = node
            .ctl(&["browse", &queue, "--count", "2", "--truncate", "2"])?
            .ok();
        let rows = cells(&table);
        assert_eq!(rows.len(), 3, "{table}");
        assert_eq!(
            rows[1],
            [
                &*listed[0].0,
                "ready",
                "false",
                "-",
                &queue,
                "3",
                "string",
                "on"
            ]
        );
        let from = node.ctl(&["browse", &queue, "--from", &listed[2].0, "--output", "json"])?;
        assert_eq!(from.json()?.as_array().map(Vec::len), Some(2));

        let delete = ["delete_message", &queue, &listed[1].0];
        let deleted = node.ctl(&delete)?.ok();
        assert!(deleted.starts_with("Deleted message "), "{deleted}");
        let again = node.ctl(&delete)?;
        assert_eq!(again.code, 1);
        assert!(
            again.stderr.contains("has no ready or delayed message"),
            "{}",
            again.stderr
        );
        let left = browse(&node, &queue)?;
        assert_eq!(payloads(&left), ["one", "three", "four"]);

        let unroutable = node.ctl(&["move_messages", &queue, "--count", "1", "--to", &other])?;
        assert_eq!(unroutable.code, 1);
        assert!(
            unroutable.stderr.contains("no queue gets 1 message"),
            "{}",
            unroutable.stderr
        );
        node.ctl(&["declare_queue", &other, "--type", kind])?.ok();
        let chosen = [
            "move_messages",
            &queue,
            "--position",
            &listed[2].0,
            "--to",
            &other,
        ];
        let moved = node.ctl(&chosen)?.ok();
        let expected =
            format!("Moved 1 message of queue '{queue}' in vhost '/' to queue '{other}'\n");
        assert_eq!(moved, expected);
        let all = [
            "move_messages",
            &queue,
            "--all",
            "--to-exchange",
            "amq.default",
            "--routing-key",
            &other,
            "--output",
            "json",
        ];
        let moved = node.ctl(&all)?.json()?;
        assert_eq!((&moved["moved"], &moved["error"]), (&json!(2), &Json::Null));
        assert_eq!(payloads(&browse(&node, &queue)?), Vec::<&str>::new());
        assert_eq!(payloads(&browse(&node, &other)?), ["three", "one", "four"]);
        // Moved with more than one request, and each message once.
        node.ctl(&["publish", &queue, "more", "--count", "250"])?
            .ok();
        let moved = node
            .ctl(&["move_messages", &queue, "--all", "--to", &other])?
            .ok();
        assert!(moved.starts_with("Moved 250 messages"), "{moved}");
        let count = ["browse", &other, "--count", "1000", "--output", "json"];
        let listed = node.ctl(&count)?.json()?;
        assert_eq!(listed.as_array().map(Vec::len), Some(253));
    }
    let usage = node.ctl(&["move_messages", "from-quorum", "--to", "to-quorum"])?;
    assert_eq!(usage.code, 2, "{}", usage.stderr);
    let missing = node.ctl(&["browse", "nothing"])?;
    assert_eq!(missing.code, 1);
    assert!(
        missing.stderr.contains("queue 'nothing'"),
        "{}",
        missing.stderr
    );
    Ok(())
}

#[test]
fn dead_letters_are_redriven() -> Result<()> {
    let node = Single::start("redrive", &[])?;
    node.ctl(&["declare_queue", "dead", "--type", "quorum"])?
        .ok();
    let arguments = r#"{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-message-ttl": 1}"#;
    let work = [
        "declare_queue",
        "work",
        "--type",
        "quorum",
        "--arguments",
        arguments,
    ];
    node.ctl(&work)?.ok();
    for payload in ["one", "two"] {
        node.ctl(&["publish", "work", payload])?.ok();
    }
    crate::program::eventually("the dead letters", || {
        let listed = browse(&node, "dead").ok()?;
        (listed.len() == 2).then_some(())
    })?;
    node.ctl(&["publish", "dead", "no history"])?.ok();
    let redriven = node
        .ctl(&["redrive", "dead", "--all", "--output", "json"])?
        .json()?;
    let counts = (&redriven["moved"], &redriven["without_history"]);
    assert_eq!(counts, (&json!(2), &json!(1)));
    // They expire in their queue again.
    crate::program::eventually("the dead letters again", || {
        let listed = browse(&node, "dead").ok()?;
        (payloads(&listed) == ["no history", "one", "two"]).then_some(())
    })?;
    Ok(())
}
