//! `doctor`, `status`, `health` and `cluster_status` while a cluster has faults.

use super::{Single, ctl_at};
use crate::next_version::next;
use crate::nodes::Nodes;
use crate::program::{Result, eventually};
use authority::Fixture;
use env::Clock as _;
use env::real::RealClock;
use serde_json::{Value as Json, json};
use std::time::Duration;

/// The checks with a finding, and the exit code.
fn checks(nodes: &Nodes, at: usize) -> Option<(Vec<String>, i32)> {
    let outcome = ctl_at(nodes, at, &["doctor", "--output", "json"]).ok()?;
    let findings = outcome.json().ok()?;
    let checks = findings.as_array()?.iter();
    let checks = checks.filter_map(|f| f["check"].as_str().map(str::to_owned));
    Some((checks.collect(), outcome.code))
}

/// Waits until `doctor` reports exactly these checks with this exit code.
fn until_found(nodes: &Nodes, at: usize, expected: &[&str], code: i32) -> Result<()> {
    let mut last = None;
    let found = eventually("findings", || {
        last = checks(nodes, at);
        let (checks, exit) = last.as_ref()?;
        (checks == expected && *exit == code).then_some(())
    });
    found.map_err(|e| format!("{e}: {expected:?}, but {last:?}").into())
}

#[test]
fn doctor_is_silent_about_a_healthy_node() -> Result<()> {
    let node = Single::start("doctor-healthy", &[])?;
    node.ctl(&["declare_queue", "orders"])?.ok();
    assert_eq!(node.ctl(&["doctor"])?.ok(), "No problem found\n");
    assert_eq!(node.ctl(&["doctor", "--strict", "--quiet"])?.ok(), "");
    assert_eq!(node.ctl(&["doctor", "--output", "json"])?.ok(), "[]\n");
    Ok(())
}

#[test]
fn start_log_lists_the_listeners_and_the_address_of_the_ui() -> Result<()> {
    let node = Single::start("start-log", &[])?;
    let log = eventually("the event node.ready", || {
        let log = std::fs::read_to_string(node.scratch.0.join("log")).ok()?;
        let line = log.lines().find(|line| line.contains("node.ready"))?;
        Some(line.to_owned())
    })?;
    let address = node.url.trim_start_matches("http://");
    for part in [
        "amqp 127.0.0.1:",
        &format!("management {address}"),
        &format!("{}/", node.url),
    ] {
        assert!(log.contains(part), "{part}: {log}");
    }
    Ok(())
}

#[test]
fn doctor_finds_alarms_and_messages_without_consumers() -> Result<()> {
    let node = Single::start("doctor-alarms", &[])?;
    node.ctl(&["declare_queue", "orders"])?.ok();
    node.ctl(&["publish", "orders", "first"])?.ok();
    let waiting = node.ctl(&["doctor"])?;
    assert_eq!(waiting.code, 0, "warnings do not fail: {}", waiting.stderr);
    assert!(
        waiting.stdout.starts_with(
            "warning: messages without a consumer: queue 'orders' in vhost '/'\n  cause:  "
        ),
        "{}",
        waiting.stdout
    );
    let strict = node.ctl(&["doctor", "--strict"])?;
    assert_eq!(strict.code, 1);
    assert!(
        strict.stderr.contains("0 error(s) and 1 warning(s)"),
        "{}",
        strict.stderr
    );
    node.ctl(&["purge_queue", "orders"])?.ok();
    node.ctl(&["doctor", "--strict"])?.ok();

    for (set, reset, alarm) in [
        (
            ["set_vm_memory_high_watermark", "0"],
            ["set_vm_memory_high_watermark", "0.6"],
            "memory",
        ),
        (
            ["set_disk_free_limit", "1000000GB"],
            ["set_disk_free_limit", "1MB"],
            "disk",
        ),
    ] {
        node.ctl(&set)?.ok();
        let found = eventually(alarm, || {
            let outcome = node.ctl(&["doctor"]).ok()?;
            outcome
                .stdout
                .contains(&format!("{alarm} alarm"))
                .then_some(outcome)
        })?;
        assert_eq!(found.code, 1);
        let explanation = "publishers are blocked in the whole cluster\n  cause:  ";
        assert!(found.stdout.contains(explanation), "{}", found.stdout);
        assert!(found.stdout.contains("  remedy: "), "{}", found.stdout);
        node.ctl(&reset)?.ok();
        eventually("no alarm", || {
            let outcome = node.ctl(&["doctor", "--strict"]).ok()?;
            (outcome.code == 0).then_some(())
        })?;
    }
    Ok(())
}

#[test]
fn doctor_finds_certificates_that_expire() -> Result<()> {
    const DAY: Duration = Duration::from_secs(86_400);
    let now = Duration::from_millis(RealClock::new().wall().0);
    for (name, expiry, problem, code) in [
        ("later", now + DAY * 90, "", 0),
        (
            "soon",
            now + DAY * 10 + DAY / 2,
            "warning: the certificate of node '",
            0,
        ),
        ("past", now - DAY, "error: the certificate of node '", 1),
    ] {
        let name = format!("doctor-certificate-{name}");
        let fixture = Fixture::new(&name)?;
        let issued = fixture
            .authority
            .issue_until("server", &["localhost"], expiry)?;
        fixture.dir.write("cert.pem", &issued.certificate)?;
        fixture.dir.write("key.pem", &issued.key)?;
        let node = Single::start(
            &name,
            &[
                "listeners.ssl.default=127.0.0.1:0".to_owned(),
                format!(
                    "ssl_options.certfile={}",
                    fixture.path("cert.pem").display()
                ),
                format!("ssl_options.keyfile={}", fixture.path("key.pem").display()),
            ],
        )?;
        let outcome = node.ctl(&["doctor", "--quiet"])?;
        assert_eq!(outcome.code, code, "{}", outcome.stdout);
        assert!(outcome.stdout.starts_with(problem), "{}", outcome.stdout);
        match code {
            1 => assert!(
                outcome.stdout.contains("has expired: amqp/ssl on port"),
                "{}",
                outcome.stdout
            ),
            _ if problem.is_empty() => assert_eq!(outcome.stdout, ""),
            _ => assert!(
                outcome.stdout.contains("expires in 10 day(s)"),
                "{}",
                outcome.stdout
            ),
        }
    }
    Ok(())
}

#[test]
fn doctor_finds_nodes_that_are_down_and_endangered_majorities() -> Result<()> {
    let mut nodes = Nodes::start("doctor-down", 3)?;
    ctl_at(&nodes, 0, &["declare_queue", "orders"])?.ok();
    nodes.until_members("orders", &["n0", "n1", "n2"])?;
    let classic = json!({"durable": true, "arguments": {"x-queue-type": "classic"}});
    assert_eq!(
        nodes.ask(2, "PUT", "/api/queues/%2F/local", &classic)?.0,
        201
    );
    // Another node may know the queue later.
    let is_led = |queue: &Json| queue["leader"] == "n2";
    eventually("the leader of the queue", || {
        nodes.queue("local").filter(is_led)
    })?;
    until_found(&nodes, 0, &[], 0)?;
    for command in ["status", "health", "cluster_status"] {
        ctl_at(&nodes, 0, &[command])?.ok();
    }

    nodes.kill(2)?;
    let down = [
        "nodes_down",
        "metadata_quorum",
        "queues_unavailable",
        "queue_quorum",
    ];
    until_found(&nodes, 0, &down, 1)?;
    let text = ctl_at(&nodes, 0, &["doctor"])?.stdout;
    for part in [
        "error: down: n2\n",
        "forget_node n2",
        "2 of 3 nodes that vote run, and 2 are needed",
        "not available: queue 'local' in vhost '/'",
        "lose their majority if one more node fails: queue 'orders' in vhost '/'",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    for command in ["status", "health", "cluster_status"] {
        let outcome = ctl_at(&nodes, 0, &[command])?;
        assert_eq!(outcome.code, 1, "{command}");
        let text = outcome.stdout + &outcome.stderr;
        assert!(text.contains("down: n2"), "{command}: {text}");
    }
    let json = ctl_at(&nodes, 0, &["cluster_status", "--output", "json"])?.json()?;
    assert_eq!(json["down_nodes"], json!(["n2"]));
    assert_eq!(json["running_nodes"], json!(["n0", "n1"]));

    nodes.kill(1)?;
    // Without a majority, the metadata of the remaining node may be out of date. It says so as soon as it notices.
    let parts = [
        "the cluster's metadata has no majority",
        "the node that answers does not serve clients",
    ];
    let alone = eventually("findings about the majority", || {
        let outcome = ctl_at(&nodes, 0, &["doctor"]).ok()?;
        let has_all = parts.iter().all(|part| outcome.stdout.contains(part));
        has_all.then_some(outcome)
    })?;
    assert_eq!(alone.code, 1);

    nodes.run(1)?;
    nodes.run(2)?;
    until_found(&nodes, 0, &[], 0)
}

#[test]
fn doctor_finds_maintenance_and_unbalanced_leaders() -> Result<()> {
    let nodes = Nodes::start("doctor-leaders", 3)?;
    nodes.drain(2)?;
    until_found(&nodes, 0, &["maintenance"], 0)?;
    for n in 0..12 {
        ctl_at(&nodes, 0, &["declare_queue", &format!("q{n}")])?.ok();
    }
    assert_eq!(
        nodes
            .ask(2, "DELETE", "/api/nodes/n2/maintenance", &Json::Null)?
            .0,
        204
    );
    until_found(&nodes, 0, &["leaders"], 0)?;
    let text = ctl_at(&nodes, 0, &["doctor"])?.stdout;
    assert!(
        text.contains("n2 leads 0") && text.contains("posthorn ctl rebalance"),
        "{text}"
    );
    ctl_at(&nodes, 0, &["rebalance"])?.ok();
    until_found(&nodes, 0, &[], 0)
}

#[test]
fn doctor_finds_different_versions_and_disabled_feature_flags() -> Result<()> {
    let mut nodes = Nodes::start("doctor-versions", 2)?;
    until_found(&nodes, 0, &[], 0)?;
    nodes.stop(1)?;
    nodes.run_as(1, next)?;
    until_found(&nodes, 0, &["versions"], 0)?;
    let text = ctl_at(&nodes, 0, &["doctor"])?.stdout;
    let versions = [posthorn::PROGRAM.version, posthorn::NEXT.version];
    let skew = format!("{} on n0; {} on n1", versions[0], versions[1]);
    assert!(text.contains(&skew), "{text}");
    nodes.stop(0)?;
    nodes.run_as(0, next)?;
    until_found(&nodes, 1, &["feature_flags"], 0)?;
    ctl_at(&nodes, 1, &["enable_feature_flag", "all"])?.ok();
    until_found(&nodes, 1, &[], 0)
}
