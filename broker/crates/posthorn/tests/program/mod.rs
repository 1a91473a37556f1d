//! Runs the binary as a child process.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A directory that is deleted with the test.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Result<Scratch> {
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

/// A process that is killed when the value is dropped.
pub struct Serving(pub Child);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn posthorn() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_posthorn"));
    command.env_clear().stdin(Stdio::null());
    command
}

pub fn serve(dir: &Path, ready: &Path) -> Command {
    let mut command = posthorn();
    serve_arguments(&mut command, dir, ready);
    command
}

/// Adds arguments for a node on ephemeral ports.
pub fn serve_arguments(command: &mut Command, dir: &Path, ready: &Path) {
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
        "probes.tcp.port",
    ] {
        command.arg("--set").arg(format!("{key}=127.0.0.1:0"));
    }
}

/// The address of a listener, from the ready file.
pub fn address(ready: &Path, listener: &str) -> Result<String> {
    let told: serde_json::Value = serde_json::from_str(&wait_for(ready)?)?;
    let address = told["addresses"][listener].as_str();
    Ok(address.ok_or("no such listener")?.to_owned())
}

/// Polls until `look` succeeds. The error names `what` was missing.
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> Result<T> {
    for _ in 0..6000 {
        if let Some(found) = look() {
            return Ok(found);
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
    Err(format!("not in time: {what}").into())
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn wait_for(path: &Path) -> Result<String> {
    eventually("a node that is ready", || {
        std::fs::read_to_string(path).ok()
    })
}
