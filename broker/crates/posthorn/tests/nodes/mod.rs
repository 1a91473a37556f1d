//! A cluster of several processes on loopback.

use crate::program::{Result, Scratch, Serving, address, eventually, serve_arguments};
use serde_json::Value as Json;
use std::fs::File;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

pub struct Nodes {
    scratch: Scratch,
    peers: Vec<u16>,
    pub running: Vec<Option<Serving>>,
    agent: ureq::Agent,
    /// Additional settings.
    settings: &'static [&'static str],
    /// Number of shards of each node; none: the default.
    pub shards: Vec<u16>,
}

/// Free ports below the ephemeral range: client connections could take an ephemeral port before the
/// node binds it.
fn free_ports() -> impl Iterator<Item = TcpListener> {
    /// No two tests of a binary use the same ports.
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = std::process::id().wrapping_mul(37) as u16 % 16_000;
    let next = || NEXT.fetch_add(1, Ordering::Relaxed) % 16_000;
    let all = (0..16_000).map(move |_| 12_000 + (first + next()) % 16_000);
    all.filter_map(|port| TcpListener::bind(("127.0.0.1", port)).ok())
}

impl Nodes {
    pub fn start(name: &str, count: usize) -> Result<Nodes> {
        Nodes::with(name, count, &[])
    }

    /// Starts nodes with additional settings (`key=value`).
    pub fn with(name: &str, count: usize, settings: &'static [&'static str]) -> Result<Nodes> {
        Nodes::made(name, count, settings, Vec::new())
    }

    /// Starts a node for each number of shards.
    pub fn with_shards(
        name: &str,
        shards: &[u16],
        settings: &'static [&'static str],
    ) -> Result<Nodes> {
        Nodes::made(name, shards.len(), settings, shards.to_vec())
    }

    fn made(
        name: &str,
        count: usize,
        settings: &'static [&'static str],
        shards: Vec<u16>,
    ) -> Result<Nodes> {
        let held = free_ports().take(count).collect::<Vec<_>>();
        let ports = held.iter().map(|l| Ok(l.local_addr()?.port()));
        let config = ureq::Agent::config_builder().http_status_as_error(false);
        let mut nodes = Nodes {
            scratch: Scratch::new(name)?,
            peers: ports.collect::<std::io::Result<_>>()?,
            running: (0..count).map(|_| None).collect(),
            agent: config.build().new_agent(),
            settings,
            shards,
        };
        drop(held);
        for at in 0..count {
            nodes.run(at)?;
        }
        for at in 0..count {
            nodes.address(at, "amqp")?;
        }
        Ok(nodes)
    }

    pub fn dir(&self, at: usize) -> PathBuf {
        self.scratch.0.join(format!("n{at}"))
    }

    pub fn ready(&self, at: usize) -> PathBuf {
        self.scratch.0.join(format!("n{at}.ready"))
    }

    pub fn log(&self, at: usize) -> PathBuf {
        self.scratch.0.join(format!("n{at}.log"))
    }

    pub fn run(&mut self, at: usize) -> Result<()> {
        let command = self.command(at);
        self.spawn(at, command)
    }

    /// Runs a node with another binary: `wrap` replaces the command.
    pub fn run_as(
        &mut self,
        at: usize,
        wrap: impl FnOnce(&Command) -> Result<Command>,
    ) -> Result<()> {
        let command = wrap(&self.command(at))?;
        self.spawn(at, command)
    }

    fn spawn(&mut self, at: usize, mut command: Command) -> Result<()> {
        let process = command.stderr(File::create(self.log(at))?).spawn()?;
        self.running[at] = Some(Serving(process));
        Ok(())
    }

    fn command(&self, at: usize) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_posthorn"));
        command.env_clear().stdin(Stdio::null());
        serve_arguments(&mut command, &self.dir(at), &self.ready(at));
        let peers: Vec<String> = self
            .peers
            .iter()
            .map(|p| format!("127.0.0.1:{p}"))
            .collect();
        for key in [
            format!("cluster.node=n{at}"),
            format!("cluster.listener=127.0.0.1:{}", self.peers[at]),
            format!("cluster.peers={}", peers.join(",")),
            format!("cluster.zone=z{at}"),
        ] {
            command.arg("--set").arg(key);
        }
        for setting in self.settings {
            command.arg("--set").arg(setting);
        }
        if let Some(shards) = self.shards.get(at) {
            command.arg("--set").arg(format!("shards={shards}"));
        }
        command
    }

    /// SIGKILL.
    pub fn kill(&mut self, at: usize) -> Result<()> {
        self.running[at] = None;
        Ok(std::fs::remove_file(self.ready(at))?)
    }

    /// SIGTERM, then waits for the process to end.
    pub fn stop(&mut self, at: usize) -> Result<()> {
        let mut process = self.running[at].take().ok_or("it does not run")?;
        let pid = process.0.id().to_string();
        let sent = Command::new("kill").arg("-TERM").arg(pid).status()?;
        let ended = process.0.wait()?;
        match sent.success() && ended.success() {
            true => Ok(()),
            false => Err(format!("{sent}, {ended}").into()),
        }
    }

    /// The value of a metric without labels.
    pub fn metric(&self, at: usize, name: &str) -> Result<String> {
        let url = format!("http://{}/metrics", self.address(at, "prometheus")?);
        let text = self.agent.get(url).call()?.body_mut().read_to_string()?;
        let mut lines = text.lines().filter_map(|line| line.split_once(' '));
        let found = lines.find(|(what, _)| *what == name);
        Ok(found.ok_or("there is no such figure")?.1.to_owned())
    }

    pub fn address(&self, at: usize, listener: &str) -> Result<String> {
        address(&self.ready(at), listener)
    }

    /// Sends a request; returns status and body.
    pub fn ask(&self, at: usize, method: &str, path: &str, body: &Json) -> Result<(u16, Json)> {
        let url = format!("http://{}{path}", self.address(at, "management")?);
        let request = ureq::http::Request::builder()
            .method(method)
            .uri(url)
            .header("authorization", "Basic Z3Vlc3Q6Z3Vlc3Q=")
            .header("content-type", "application/json")
            .body(body.to_string())?;
        let mut answer = self.agent.run(request)?;
        let text = answer.body_mut().read_to_string()?;
        let body = serde_json::from_str(&text).unwrap_or(Json::Null);
        Ok((answer.status().as_u16(), body))
    }

    /// The queue as shown by node 0.
    pub fn queue(&self, name: &str) -> Option<Json> {
        let path = format!("/api/queues/%2F/{name}");
        let (status, shown) = self.ask(0, "GET", &path, &Json::Null).ok()?;
        (status == 200).then_some(shown)
    }

    /// Puts a node into maintenance mode and waits until it is drained.
    pub fn drain(&self, at: usize) -> Result<()> {
        let path = format!("/api/nodes/n{at}/maintenance");
        eventually("a drained node", || {
            let (_, told) = self.ask(at, "PUT", &path, &Json::Null).ok()?;
            (told["state"] == "drained").then_some(())
        })
    }

    /// Waits until the process ends because its node was removed.
    pub fn until_removed(&mut self, at: usize) -> Result<()> {
        self.until_ended(at, "was removed from its cluster")
    }

    /// Waits until the process ends with this reason.
    pub fn until_ended(&mut self, at: usize, why: &str) -> Result<()> {
        let process = self.running[at].as_mut().ok_or("runs")?;
        let ended = eventually("an end", || process.0.try_wait().ok().flatten())?;
        assert_eq!(ended.code(), Some(1));
        let log = std::fs::read_to_string(self.log(at))?;
        assert!(log.contains(why), "{log}");
        Ok(())
    }

    pub fn until_members(&self, name: &str, want: &[&str]) -> Result<()> {
        eventually("these members", || {
            let mut members: Vec<String> = self.queue(name)?["members"]
                .as_array()?
                .iter()
                .filter_map(|m| Some(m.as_str()?.to_owned()))
                .collect();
            members.sort();
            (members == want).then_some(())
        })
    }
}
