//! The node as a process: exit codes, errors, ready file, signals, and exclusive use of its data
//! directory.

use crate::program::{Result, Scratch, Serving, address, posthorn, serve, stderr, wait_for};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::process::{Command, Stdio};

#[test]
fn configuration_errors_have_exit_code_2_and_name_their_location() -> Result<()> {
    let scratch = Scratch::new("config")?;
    let file = scratch.0.join("posthorn.conf");
    std::fs::write(&file, "# a comment\nlisteners.tcp.default = 99999\n")?;
    let name = file.display().to_string();
    for command in [
        posthorn().arg("config").arg("check").arg(&file),
        posthorn().arg("serve").arg("--config").arg(&file),
    ] {
        let output = command.output()?;
        assert_eq!(output.status.code(), Some(2));
        let text = stderr(&output);
        assert!(
            text.contains(&format!(
                "{name}:2: `listeners.tcp.default`: bad value `99999`; expected PORT"
            )),
            "{text}"
        );
    }
    let output = posthorn()
        .arg("serve")
        .env("POSTHORN_NO_SUCH", "1")
        .output()?;
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("environment POSTHORN_NO_SUCH: unknown key `no.such`"));
    std::fs::write(&file, "advertised_listeners.ampq = host:5672\n")?;
    for command in [
        posthorn().arg("config").arg("check").arg(&file),
        posthorn().arg("serve").arg("--config").arg(&file),
    ] {
        let output = command.output()?;
        assert_eq!(output.status.code(), Some(2));
        let text = stderr(&output);
        assert!(
            text.contains("`advertised_listeners.ampq`: no such listener; expected one of amqp, "),
            "{text}"
        );
    }
    std::fs::write(
        &file,
        "listeners.tcp.default = 5672\nadvertised_listeners.amqp/ssl = host:30671\n",
    )?;
    assert!(
        posthorn()
            .arg("config")
            .arg("check")
            .arg(&file)
            .output()?
            .status
            .success()
    );
    std::fs::write(&file, "listeners.tcp.defualt = 5672\n")?;
    let unknown = posthorn()
        .arg("serve")
        .arg("--config")
        .arg(&file)
        .output()?;
    assert_eq!(unknown.status.code(), Some(2));
    let text = stderr(&unknown);
    let wanted = format!("{name}:1: unknown key `listeners.tcp.defualt`");
    assert!(text.contains(&wanted), "{text}");
    let reference = posthorn().args(["config", "reference"]).output()?;
    assert!(String::from_utf8_lossy(&reference.stdout).contains("| `cluster.peers` |"));
    Ok(())
}

#[test]
fn node_serves_until_sigterm_and_locks_its_directory() -> Result<()> {
    let scratch = Scratch::new("serve")?;
    let (dir, ready) = (scratch.0.join("data"), scratch.0.join("ready"));
    let mut first = Serving(serve(&dir, &ready).stderr(Stdio::null()).spawn()?);
    let told: serde_json::Value = serde_json::from_str(&wait_for(&ready)?)?;
    for listener in ["amqp", "management", "prometheus", "probes"] {
        let address = told["addresses"][listener].as_str().ok_or("no address")?;
        std::net::TcpStream::connect(address)?;
    }
    let second = serve(&dir, &scratch.0.join("other")).output()?;
    assert_eq!(second.status.code(), Some(1));
    assert!(stderr(&second).contains("in use by another process"));
    let pid = first.0.id().to_string();
    assert!(
        Command::new("kill")
            .arg("-TERM")
            .arg(pid)
            .status()?
            .success()
    );
    assert_eq!(first.0.wait()?.code(), Some(0));
    assert!(!ready.exists());
    Ok(())
}

#[test]
fn damaged_directory_prevents_start_and_is_not_changed() -> Result<()> {
    let scratch = Scratch::new("damaged")?;
    let (dir, ready) = (scratch.0.join("data"), scratch.0.join("ready"));
    std::fs::create_dir_all(&dir)?;
    let newer = r#"{"format":99,"node_id":"0000000000000001"}"#;
    std::fs::write(dir.join("identity.json"), newer)?;
    let output = serve(&dir, &ready).output()?;
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("format 99 is newer"),
        "{}",
        stderr(&output)
    );
    assert_eq!(std::fs::read_to_string(dir.join("identity.json"))?, newer);
    Ok(())
}

#[test]
fn probes_respond_while_the_http_api_is_full() -> Result<()> {
    const IDLE: usize = 600;
    let scratch = Scratch::new("probes")?;
    let (dir, ready) = (scratch.0.join("data"), scratch.0.join("ready"));
    let _node = Serving(serve(&dir, &ready).stderr(Stdio::null()).spawn()?);
    let management = address(&ready, "management")?;
    let mut held = Vec::new();
    for _ in 0..IDLE {
        held.push(std::net::TcpStream::connect(&management)?);
    }
    for path in ["livez", "readyz"] {
        let url = format!("http://{}/{path}", address(&ready, "probes")?);
        assert_eq!(ureq::get(&url).call()?.status(), 200, "{path}");
        // The management port also evicts connections without a request.
        let url = format!("http://{management}/{path}");
        assert_eq!(ureq::get(&url).call()?.status(), 200, "{path}");
    }
    drop(held);
    Ok(())
}

/// The samples of one metric, by protocol.
fn logins(metrics: &str, outcome: &str) -> Vec<String> {
    let name = format!("rabbitmq_auth_attempts_{outcome}_total{{");
    let lines = metrics.lines().filter_map(|l| l.strip_prefix(&name));
    lines.map(str::to_owned).collect()
}

#[test]
fn login_attempts_of_every_protocol_are_counted_and_failed_ones_logged() -> Result<()> {
    let scratch = Scratch::new("logins")?;
    let (dir, ready) = (scratch.0.join("data"), scratch.0.join("ready"));
    let mut command = serve(&dir, &ready);
    command.args(["--set", "mqtt.listeners.tcp.default=127.0.0.1:0"]);
    command.args(["--set", "cluster.node=n1"]);
    let log = scratch.0.join("log");
    let _node = Serving(command.stderr(std::fs::File::create(&log)?).spawn()?);
    let (amqp, mqtt) = (address(&ready, "amqp")?, address(&ready, "mqtt")?);
    for _ in 0..2 {
        assert!(crate::client::Client::open(&amqp, "guest", "wrong", "/").is_err());
    }
    crate::client::Client::open(&amqp, "guest", "guest", "/")?;
    for password in ["wrong", "", "other"] {
        assert!(crate::mqtt_client::Client::log_in(&mqtt, "guest", password).is_err());
    }
    crate::mqtt_client::Client::log_in(&mqtt, "guest", "guest")?;
    let attempts = format!(
        "http://{}/api/auth/attempts/n1",
        address(&ready, "management")?
    );
    let ask = |password: &str| {
        let encoded = format!("Basic {}", STANDARD.encode(format!("guest:{password}")));
        ureq::get(&attempts).header("authorization", encoded).call()
    };
    assert!(ask("wrong").is_err());
    let told: serde_json::Value = ask("guest")?.body_mut().read_json()?;
    let row = |protocol: &str, succeeded: u64, failed: u64| {
        serde_json::json!({
            "protocol": protocol,
            "auth_attempts": succeeded + failed,
            "auth_attempts_succeeded": succeeded,
            "auth_attempts_failed": failed,
        })
    };
    let expected = [
        row("amqp091", 1, 2),
        row("amqp10", 0, 0),
        row("http", 1, 1),
        row("mqtt", 1, 3),
    ];
    assert_eq!(told, serde_json::Value::from(expected.to_vec()));
    let url = format!("http://{}/metrics", address(&ready, "prometheus")?);
    let metrics = ureq::get(&url).call()?.body_mut().read_to_string()?;
    for (outcome, amqp, http, mqtt) in [("succeeded", 1, 1, 1), ("failed", 2, 1, 3)] {
        let expected = [
            format!("protocol=\"amqp091\"}} {amqp}"),
            "protocol=\"amqp10\"} 0".to_owned(),
            format!("protocol=\"http\"}} {http}"),
            format!("protocol=\"mqtt\"}} {mqtt}"),
        ];
        assert_eq!(logins(&metrics, outcome), expected, "{outcome}");
    }
    // Each protocol also logs them.
    let log = std::fs::read_to_string(&log)?;
    let mut failed = log.lines().filter(|line| line.contains("login.failed"));
    assert!(
        failed.any(|line| line.contains("over HTTP") && line.contains("guest")),
        "{log}"
    );
    Ok(())
}

/// A request to the HTTP API as guest.
fn api(method: &str, url: &str) -> Result<serde_json::Value> {
    let encoded = format!("Basic {}", STANDARD.encode("guest:guest"));
    let mut response = match method {
        "POST" => ureq::post(url)
            .header("authorization", encoded)
            .send_json(serde_json::json!({}))?,
        _ => ureq::get(url).header("authorization", encoded).call()?,
    };
    Ok(response.body_mut().read_json()?)
}

#[test]
fn reload_applies_live_settings_and_advertised_addresses() -> Result<()> {
    let scratch = Scratch::new("reload")?;
    let (dir, ready) = (scratch.0.join("data"), scratch.0.join("ready"));
    let file = scratch.0.join("posthorn.conf");
    std::fs::write(&file, "channel_max = 7\nhandshake_timeout = 9000\n")?;
    let mut command = serve(&dir, &ready);
    command.arg("--config").arg(&file);
    command.args(["--set", "cluster.node=n1"]);
    command.args(["--set", "stream.listeners.tcp.default=127.0.0.1:0"]);
    let node = Serving(command.stderr(Stdio::null()).spawn()?);
    let base = format!("http://{}/api/nodes", address(&ready, "management")?);
    let configuration = format!("{base}/n1/configuration");
    std::fs::write(
        &file,
        "channel_max = 9\nhandshake_timeout = 9001\nlog.level = warn\n\
         advertised_nodes.n1.stream = streams.example:1552\n\
         advertised_nodes.n2.stream = other.example:1552\n\
         disk_free_limit.absolute = 77777777\n",
    )?;
    let reloaded = api("POST", &format!("{configuration}/reload"))?;
    let changed = [
        "advertised_nodes.n1.stream",
        "advertised_nodes.n2.stream",
        "channel_max",
        "disk_free_limit.absolute",
        "log.level",
    ];
    assert_eq!(
        reloaded,
        serde_json::json!({"changed": changed, "restart": ["handshake_timeout"]})
    );
    let settings = api("GET", &configuration)?;
    let of = |settings: &serde_json::Value, key: &str| {
        let settings = settings.as_array()?;
        settings.iter().find(|s| s["key"] == key).cloned()
    };
    let timeout = of(&settings, "handshake_timeout").ok_or("no handshake_timeout")?;
    assert_eq!(
        (&timeout["value"], &timeout["restart"]),
        (&"9000".into(), &true.into())
    );
    let channels = of(&settings, "channel_max").ok_or("no channel_max")?;
    assert_eq!(
        (&channels["value"], &channels["live"]),
        (&"9".into(), &true.into())
    );
    let levels = api("GET", &format!("{base}/n1/log-levels"))?;
    assert_eq!(levels["default"], "warn");
    let stream = crate::program::eventually("the stated address", || {
        let nodes = api("GET", &base).ok()?;
        let addresses = nodes[0]["client_addresses"].as_array()?;
        let found = addresses.iter().find(|a| a["protocol"] == "stream")?;
        (found["host"] == "streams.example").then(|| found.clone())
    })?;
    assert_eq!(stream["port"], 1552);
    crate::program::eventually("the free space limit", || {
        let nodes = api("GET", &base).ok()?;
        (nodes[0]["disk_free_limit"] == 77_777_777).then_some(())
    })?;

    // SIGHUP reloads too, and the process goes on. Invalid files change nothing.
    std::fs::write(&file, "channel_max = 11\nhandshake_timeout = 9000\n")?;
    let pid = node.0.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-HUP", &pid])
            .status()?
            .success()
    );
    crate::program::eventually("the reload", || {
        let settings = api("GET", &configuration).ok()?;
        (of(&settings, "channel_max")?["value"] == "11").then_some(())
    })?;
    std::fs::write(
        &file,
        "channel_max = 12\nadvertised_nodes.n1.nothing = h:1\n",
    )?;
    assert!(api("POST", &format!("{configuration}/reload")).is_err());
    let settings = api("GET", &configuration)?;
    assert_eq!(of(&settings, "channel_max").ok_or("none")?["value"], "11");
    // New connections get the new limit: the client asks for 10 channels.
    let amqp = address(&ready, "amqp")?;
    crate::client::Client::open(&amqp, "guest", "guest", "/")?;
    std::fs::write(&file, "channel_max = 9\nhandshake_timeout = 9000\n")?;
    api("POST", &format!("{configuration}/reload"))?;
    let refused = crate::client::Client::open(&amqp, "guest", "guest", "/");
    let reason = refused.err().ok_or("10 channels are too many")?.to_string();
    assert!(reason.contains("channel_max"), "{reason}");
    Ok(())
}
