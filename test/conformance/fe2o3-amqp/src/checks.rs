//! Checks, each reported on one line.

use crate::Result;
use std::future::Future;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// What one wait may take.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Checks {
    /// Words of which one is in the name of a check that is wanted; none: all are.
    words: Vec<String>,
    passed: u32,
    failed: u32,
}

impl Checks {
    pub fn new() -> Checks {
        Checks {
            words: std::env::args().skip(1).collect(),
            passed: 0,
            failed: 0,
        }
    }

    pub async fn check(&mut self, name: &str, body: impl Future<Output = Result>) {
        if !self.words.is_empty() && !self.words.iter().any(|word| name.contains(word.as_str())) {
            return;
        }
        let began = Instant::now();
        let outcome = match tokio::time::timeout(2 * PATIENCE, body).await {
            Ok(outcome) => outcome,
            Err(_) => Err("the check did not end in time".into()),
        };
        match outcome {
            Ok(()) => {
                self.passed += 1;
                println!("ok     {name} ({:.1} s)", began.elapsed().as_secs_f32());
            }
            Err(error) => {
                self.failed += 1;
                println!("FAILED {name}\n{error}");
            }
        }
    }

    pub fn end(self, suite: &str) -> ExitCode {
        match self.failed {
            0 => println!("{suite}: {} passed", self.passed),
            failed => println!("{suite}: {} passed, {failed} failed", self.passed),
        }
        ExitCode::from(u8::from(self.failed > 0 || self.passed == 0))
    }
}

/// Tries until there is something.
pub async fn until<T, F: Future<Output = Result<Option<T>>>>(
    what: &str,
    mut attempt: impl FnMut() -> F,
) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = attempt().await? {
            return Ok(value);
        }
        if Instant::now() > deadline {
            return Err(format!("waited in vain: {what}").into());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// An error unless it holds.
pub fn holds(condition: bool, what: &str) -> Result {
    if condition {
        Ok(())
    } else {
        Err(format!("expected: {what}").into())
    }
}

/// An error that shows both unless they are equal.
pub fn same<T: PartialEq + std::fmt::Debug>(got: T, expected: T) -> Result {
    if got == expected {
        Ok(())
    } else {
        Err(format!("got {got:?}, expected {expected:?}").into())
    }
}

/// `node start|stop|kill NAME`.
pub fn node(arguments: &[&str]) -> Result {
    control(PathBuf::from(std::env::var("NODE")?), arguments)
}

fn control(program: PathBuf, arguments: &[&str]) -> Result {
    let status = Command::new(&program).args(arguments).status()?;
    holds(
        status.success(),
        &format!("{} {arguments:?} succeeds", program.display()),
    )
}
