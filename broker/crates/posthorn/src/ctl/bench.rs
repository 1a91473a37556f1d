//! `bench`: publishes and consumes messages over AMQP 0.9.1, and measures rates and latencies.

mod connection;
mod latency;
mod publisher;

use super::VhostOption;
use super::client::Client;
use super::failure::Failure;
use super::output::{Column, Output};
use connection::{BenchConnection, Location, MARK_AND_TIME};
use env::real::RealClock;
use env::{Clock as _, Time};
use latency::LatencyHistogram;
use publisher::publish;
use serde_json::{Value as Json, json};
use std::hash::{BuildHasher as _, Hasher as _};
use std::io::IsTerminal as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Time after the end of publishing in which confirms and deliveries must come.
const GRACE: Duration = Duration::from_secs(30);
/// Interval of progress reports.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// Smallest body in bytes.
const MIN_SIZE: u32 = MARK_AND_TIME as u32;
/// Largest body in bytes.
const MAX_SIZE: u32 = 1 << 20;

/// The options of `bench`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Existing queue; without it, the command declares a queue and deletes it at the end
    #[arg(long)]
    queue: Option<String>,
    /// Type of the queue that the command declares: quorum, classic
    #[arg(long = "type", default_value = "quorum", conflicts_with = "queue")]
    kind: String,
    /// Duration in seconds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Size of a message body in bytes
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(MIN_SIZE as i64..=MAX_SIZE as i64))]
    size: u32,
    /// Number of publishers, each with a connection
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(0..=64))]
    publishers: u16,
    /// Number of consumers, each with a connection
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(0..=64))]
    consumers: u16,
    /// Most messages of a publisher without a confirm, and of a consumer without an acknowledgement
    #[arg(long = "in-flight", default_value_t = 500, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    in_flight: u16,
    /// Messages per second of all publishers together [default: as many as possible]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    rate: Option<u64>,
    /// Address for AMQP, HOST:PORT or amqps://HOST:PORT [default: that of the management address, with the port of its listener]
    #[arg(long, value_name = "ADDRESS")]
    amqp: Option<String>,
    #[command(flatten)]
    at: VhostOption,
}

/// Counts of all connections.
struct Totals {
    clock: RealClock,
    /// Publishers end at this time.
    end: Time,
    published: AtomicU64,
    confirmed: AtomicU64,
    rejected: AtomicU64,
    consumed: AtomicU64,
    /// The publishers have ended.
    is_published: AtomicBool,
    confirm_latency: Mutex<LatencyHistogram>,
    delivery_latency: Mutex<LatencyHistogram>,
    /// The first error of a connection. All connections end then.
    failure: Mutex<Option<Failure>>,
}

impl Totals {
    fn new(duration: Duration) -> Totals {
        let clock = RealClock::new();
        Totals {
            end: clock.now() + duration,
            clock,
            published: AtomicU64::new(0),
            confirmed: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            consumed: AtomicU64::new(0),
            is_published: AtomicBool::new(false),
            confirm_latency: Mutex::default(),
            delivery_latency: Mutex::default(),
            failure: Mutex::new(None),
        }
    }

    fn fail(&self, failure: Failure) {
        let mut first = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(failure);
    }

    fn has_failed(&self) -> bool {
        let first = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        first.is_some()
    }

    /// Returns true if every confirmed message was consumed, or will not be.
    fn is_drained(&self) -> bool {
        let is_published = self.is_published.load(Ordering::Acquire);
        let consumed = self.consumed.load(Ordering::Relaxed);
        is_published && consumed >= self.confirmed.load(Ordering::Relaxed)
    }
}

const RESULTS: &[Column] = &[
    ("direction", &["direction"]),
    ("messages", &["messages"]),
    ("messages/s", &["rate"]),
    ("MB/s", &["megabytes"]),
    ("p50 ms", &["p50_ms"]),
    ("p99 ms", &["p99_ms"]),
    ("max ms", &["max_ms"]),
];

/// Measures a queue.
pub(crate) fn bench(client: &Client, output: &Output, options: &Options) -> Result<(), Failure> {
    if options.publishers == 0 && options.consumers == 0 {
        return Err(Failure::Usage(
            "there is nothing to measure: --publishers or --consumers must be at least 1"
                .to_owned(),
        ));
    }
    let location = match &options.amqp {
        Some(address) => Location::parse(address)?,
        None => location_of(client)?,
    };
    let mark = mark();
    let open = || BenchConnection::open(&location, client, &options.at.vhost, mark);
    let name = match &options.queue {
        Some(name) => name.clone(),
        None => format!("bench-{mark:016x}"),
    };
    if options.queue.is_none() {
        open()?.declare(&name, &options.kind)?;
    }
    let result = measure(&open, output, options, &name);
    let deleted = match options.queue {
        None => open().and_then(|mut connection| connection.delete(&name)),
        Some(_) => Ok(()),
    };
    let totals = result?;
    deleted?;
    report(output, options, &totals)
}

/// A number that no other measurement has.
fn mark() -> u64 {
    let mut hasher = std::hash::RandomState::new().build_hasher();
    hasher.write_u64(RealClock::new().wall().0);
    hasher.finish()
}

/// The address for AMQP of the node that answers.
fn location_of(client: &Client) -> Result<Location, Failure> {
    let overview = client.get_with(&["overview"], "?columns=listeners")?;
    let listeners = overview["listeners"].as_array().into_iter().flatten();
    let port_of = |protocol: &str| {
        let mut all = listeners.clone().filter(|it| it["protocol"] == protocol);
        let port = all.find_map(|it| it["port"].as_u64()).unwrap_or(0);
        u16::try_from(port).ok().filter(|port| *port != 0)
    };
    let found = match port_of("amqp") {
        Some(port) => Some((port, false)),
        None => port_of("amqp/ssl").map(|port| (port, true)),
    };
    let Some((port, is_tls)) = found else {
        return Err(Failure::Usage(
            "the node reports no port for AMQP: give its address with --amqp HOST:PORT".to_owned(),
        ));
    };
    Ok(Location {
        host: client.host().trim_matches(['[', ']']).to_owned(),
        port,
        is_tls,
    })
}

/// Runs publishers and consumers, each on a thread, and shows the progress.
fn measure(
    open: &(impl Fn() -> Result<BenchConnection, Failure> + Sync),
    output: &Output,
    options: &Options,
    queue: &str,
) -> Result<Totals, Failure> {
    let mut consumers = Vec::new();
    for _ in 0..options.consumers {
        let mut connection = open()?;
        connection.consume(queue, options.in_flight)?;
        consumers.push(connection);
    }
    let publishers = (0..options.publishers).map(|_| open());
    let publishers = publishers.collect::<Result<Vec<_>, _>>()?;
    let totals = Totals::new(Duration::from_secs(options.seconds));
    let start = totals.clock.now();
    std::thread::scope(|scope| {
        let publishing: Vec<_> = publishers
            .into_iter()
            .map(|connection| {
                let totals = &totals;
                scope.spawn(move || {
                    if let Err(failure) = publish(connection, totals, options, queue) {
                        totals.fail(failure);
                    }
                })
            })
            .collect();
        for connection in consumers {
            let totals = &totals;
            scope.spawn(move || {
                if let Err(failure) = consume(connection, totals, options) {
                    totals.fail(failure);
                }
            });
        }
        while totals.clock.now() < totals.end && !totals.has_failed() {
            let next = (totals.clock.now() + PROGRESS_INTERVAL).min(totals.end);
            wait_until(&totals, next);
            show_progress(output, &totals, start);
        }
        for publisher in publishing {
            // A panic in a thread is repeated by the scope.
            let _ = publisher.join();
        }
        totals.is_published.store(true, Ordering::Release);
    });
    if std::io::stderr().is_terminal() && output.is_table() {
        eprintln!();
    }
    let failure = totals
        .failure
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    match failure {
        Some(failure) => Err(failure),
        None => Ok(totals),
    }
}

fn wait_until(totals: &Totals, end: Time) {
    while totals.clock.now() < end && !totals.has_failed() {
        std::thread::park_timeout(
            end.since(totals.clock.now())
                .min(Duration::from_millis(100)),
        );
    }
}

fn show_progress(output: &Output, totals: &Totals, start: Time) {
    if !output.is_table() || !std::io::stderr().is_terminal() {
        return;
    }
    let seconds = totals.clock.now().since(start).as_secs_f64();
    let rate = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64 / seconds;
    eprint!(
        "\r{seconds:.0} s: {:.0} published/s, {:.0} confirmed/s, {:.0} consumed/s   ",
        rate(&totals.published),
        rate(&totals.confirmed),
        rate(&totals.consumed)
    );
}

/// Consumes until the publishers have ended and all messages have come, or until the end without publishers.
fn consume(
    mut connection: BenchConnection,
    totals: &Totals,
    options: &Options,
) -> Result<(), Failure> {
    let mut latency = LatencyHistogram::default();
    let has_publishers = options.publishers > 0;
    let acknowledge_at = (options.in_flight / 2).max(1);
    let mut unacknowledged = 0;
    loop {
        let now = totals.clock.now();
        let is_over = match has_publishers {
            true => totals.is_drained() || now >= totals.end + GRACE,
            false => now >= totals.end,
        };
        if is_over || totals.has_failed() {
            break;
        }
        let deliveries = connection.deliveries()?;
        let now = totals.clock.now();
        for sent in deliveries.iter().flatten() {
            latency.add(now.since(*sent));
        }
        unacknowledged += deliveries.len();
        totals
            .consumed
            .fetch_add(deliveries.len() as u64, Ordering::Relaxed);
        if unacknowledged >= usize::from(acknowledge_at) || deliveries.is_empty() {
            connection.acknowledge()?;
            unacknowledged = 0;
        }
    }
    connection.close()?;
    let mut all = totals
        .delivery_latency
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    all.merge(&latency);
    Ok(())
}

fn report(output: &Output, options: &Options, totals: &Totals) -> Result<(), Failure> {
    let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let row = |direction: &str, messages: u64, latency: &Mutex<LatencyHistogram>| -> Json {
        let latency = latency.lock().unwrap_or_else(PoisonError::into_inner);
        let rate = messages as f64 / options.seconds as f64;
        let megabytes = rate * f64::from(options.size) / 1e6;
        json!({
            "direction": direction,
            "messages": messages,
            "rate": rate.round(),
            "megabytes": (megabytes * 10.0).round() / 10.0,
            "p50_ms": latency.quantile_ms(0.5),
            "p99_ms": latency.quantile_ms(0.99),
            "max_ms": latency.max_ms(),
        })
    };
    let mut rows = Vec::new();
    let confirmed = count(&totals.confirmed);
    if options.publishers > 0 {
        rows.push(row(
            "publish and confirm",
            confirmed,
            &totals.confirm_latency,
        ));
    }
    let consumed = count(&totals.consumed);
    if options.consumers > 0 {
        rows.push(row(
            "publish and consume",
            consumed,
            &totals.delivery_latency,
        ));
    }
    output.list(&Json::from(rows), RESULTS)?;
    let rejected = count(&totals.rejected);
    if rejected > 0 {
        output.warn(&format!(
            "the queue rejected {rejected} messages: it has a limit that is reached"
        ));
    }
    let is_own = options.queue.is_none();
    if is_own && options.publishers > 0 && options.consumers > 0 && consumed < confirmed {
        return Err(Failure::Unfulfilled {
            message: format!(
                "{} confirmed messages did not come within {} seconds",
                confirmed - consumed,
                GRACE.as_secs()
            ),
            remedy: "see the state of the node with `posthorn ctl doctor`",
        });
    }
    Ok(())
}
