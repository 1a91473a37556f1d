//! The program as a process: exit codes, errors, ready file, signals, one process per directory.
#![forbid(unsafe_code)]

mod program;

use program::{Result, Scratch, Serving, address, posthorn, serve, stderr, wait_for};
use std::process::{Command, Stdio};

#[test]
fn configuration_errors_are_exit_code_2_and_name_the_place() -> Result<()> {
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
    std::fs::write(&file, "listeners.tcp.default = 5672\n")?;
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
fn serves_until_sigterm_and_keeps_its_directory_to_itself() -> Result<()> {
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
fn damaged_directories_are_refused_and_left_alone() -> Result<()> {
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
fn probes_are_answered_while_the_http_api_is_full() -> Result<()> {
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
        // The same on the management port: whoever only holds a connection makes room.
        let url = format!("http://{management}/{path}");
        assert_eq!(ureq::get(&url).call()?.status(), 200, "{path}");
    }
    drop(held);
    Ok(())
}
