//! The program as a process: exit codes, errors, ready file, signals, one process per directory.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Result<Scratch> {
        let path =
            std::env::temp_dir().join(format!("posthorn-process-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Ended with the test, whatever becomes of it.
struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn posthorn() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_posthorn"));
    command.env_clear().stdin(Stdio::null());
    command
}

fn serve(dir: &Path, ready: &Path) -> Command {
    let mut command = posthorn();
    command
        .arg("serve")
        .arg("--data-dir")
        .arg(dir)
        .arg("--ready-file")
        .arg(ready);
    for key in [
        "listeners.tcp.default",
        "management.tcp.port",
        "prometheus.tcp.port",
    ] {
        command.arg("--set").arg(format!("{key}=127.0.0.1:0"));
    }
    command
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn wait_for(path: &Path) -> Result<String> {
    for _ in 0..3000 {
        if let Ok(text) = std::fs::read_to_string(path) {
            return Ok(text);
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
    Err("not ready in time".into())
}

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
    for listener in ["amqp", "management", "prometheus"] {
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
