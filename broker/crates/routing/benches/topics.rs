//! Benchmark: time to find the queues of a message on a topic exchange, by the number of words in its routing
//! key. It measures the processor time of its thread (Linux schedstat), so that a busy machine disturbs it
//! little. `cargo bench -p routing [-- FILE.svg]` prints a table and draws it.

use message::Table;
use routing::{Bindings, ExchangeType};
use std::fmt::Write;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

const DEPTHS: std::ops::RangeInclusive<usize> = 2..=12;

/// Number of different routing keys that are looked up in turn.
const KEYS: usize = 20_000;

/// Processor time spent per measurement.
const MEASURED: Duration = Duration::from_millis(300);

/// A set of bindings.
struct BindingSet {
    name: &'static str,
    bindings: usize,
    /// In one of a hundred bindings this replaces a word, at each position in turn.
    wildcard: Option<&'static str>,
    color: &'static str,
}

const BINDING_SETS: [BindingSet; 4] = [
    BindingSet {
        name: "1,000, no wildcards",
        bindings: 1000,
        wildcard: None,
        color: "#7fa8d9",
    },
    BindingSet {
        name: "100,000, no wildcards",
        bindings: 100_000,
        wildcard: None,
        color: "#1f5fae",
    },
    BindingSet {
        name: "100,000, one in 100 with *",
        bindings: 100_000,
        wildcard: Some("*"),
        color: "#2e8b57",
    },
    BindingSet {
        name: "100,000, one in 100 with #",
        bindings: 100_000,
        wildcard: Some("#"),
        color: "#c0392b",
    },
];

struct Measurement {
    nanoseconds: f64,
    /// Queues found per key.
    found: f64,
}

const SCHEDSTAT_FILE: &str = "/proc/thread-self/schedstat";

fn thread_cpu_time() -> Duration {
    let text = std::fs::read_to_string(SCHEDSTAT_FILE).unwrap_or_default();
    let first = text.split(' ').next().and_then(|n| n.parse().ok());
    Duration::from_nanos(first.unwrap_or(0))
}

/// The words of key number `n`: ten different words at each level, as many as needed at the last.
fn words(n: usize, depth: usize) -> Vec<String> {
    let mut rest = n;
    let mut words: Vec<String> = Vec::new();
    for level in 1..depth {
        words.push(format!("l{level}w{}", rest % 10));
        rest /= 10;
    }
    words.push(format!("end{rest}"));
    words
}

fn bind(case: &BindingSet, depth: usize) -> Bindings<u32> {
    let none = Table::default();
    let mut bindings = Bindings::new(ExchangeType::Topic, &none);
    for n in 0..case.bindings {
        let mut words = words(n, depth);
        if let Some(wildcard) = case.wildcard.filter(|_| n % 100 == 0) {
            let place = n / 100 % depth;
            if let Some(word) = words.get_mut(place) {
                *word = wildcard.to_owned();
            }
        }
        let key: Arc<str> = words.join(".").into();
        bindings.add(&key, &none, n as u32, "q");
    }
    bindings
}

fn measure(case: &BindingSet, depth: usize) -> Measurement {
    let bindings = bind(case, depth);
    // A step coprime to the number of bindings visits them in scattered order.
    let keys: Vec<String> = (0..KEYS)
        .map(|i| words(i * 7919 % case.bindings, depth).join("."))
        .collect();
    let (mut found, mut rounds, mut out) = (0, 0u32, Vec::new());
    let before = thread_cpu_time();
    // The kernel updates the counter every few milliseconds.
    while thread_cpu_time() - before < MEASURED {
        rounds += 1;
        for key in &keys {
            out.clear();
            bindings.route(&[key], &Table::default, &mut out);
            found += black_box(&out).len();
        }
    }
    let routed = f64::from(rounds) * KEYS as f64;
    Measurement {
        nanoseconds: (thread_cpu_time() - before).as_nanos() as f64 / routed,
        found: found as f64 / routed,
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --benches` needs no measurements.
    if arguments.iter().all(|a| a != "--bench") {
        return;
    }
    if let Err(error) = std::fs::read(SCHEDSTAT_FILE) {
        eprintln!("cannot read the processor time of a thread from {SCHEDSTAT_FILE}: {error}");
        std::process::exit(1);
    }
    let mut header = "| words |".to_owned();
    let mut rule = "|---:|".to_owned();
    for case in &BINDING_SETS {
        let _ = write!(header, " {} |", case.name);
        rule.push_str("---:|");
    }
    println!("{header}\n{rule}");
    let mut lines: Vec<Vec<(usize, f64)>> = vec![Vec::new(); BINDING_SETS.len()];
    for depth in DEPTHS {
        let mut row = format!("| {depth} |");
        for (case, line) in BINDING_SETS.iter().zip(&mut lines) {
            let figure = measure(case, depth);
            let _ = write!(
                row,
                " {:.0} ns, {:.1} found |",
                figure.nanoseconds, figure.found
            );
            line.push((depth, figure.nanoseconds));
        }
        println!("{row}");
    }
    if let Some(file) = arguments.iter().find(|a| a.ends_with(".svg"))
        && let Err(error) = std::fs::write(file, draw(&lines))
    {
        eprintln!("{file}: {error}");
        std::process::exit(1);
    }
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 70.0;
const BOTTOM: f64 = 50.0;
const TOP: f64 = 30.0;
const RIGHT: f64 = 20.0;

/// Draws nanoseconds against words, from zero.
fn draw(lines: &[Vec<(usize, f64)>]) -> String {
    let all = lines.iter().flatten();
    let highest = all.map(|(_, y)| *y).fold(1.0, f64::max);
    let step = 10f64.powf(highest.log10().floor());
    let step = if highest / step < 3.0 {
        step / 2.0
    } else {
        step
    };
    let top = (highest / step).ceil() * step;
    let (first, last) = (*DEPTHS.start() as f64, *DEPTHS.end() as f64);
    let x = |depth: f64| LEFT + (depth - first) / (last - first) * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| HEIGHT - BOTTOM - value / top * (HEIGHT - BOTTOM - TOP);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n"
    );
    // Writing to a String cannot fail.
    let mut value = 0.0;
    while value <= top {
        let at = y(value);
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {at:.1}H{:.1}\" stroke=\"#ddd\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{value:.0}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            at + 4.0
        );
        value += step;
    }
    for depth in DEPTHS {
        let at = x(depth as f64);
        let _ = writeln!(
            svg,
            "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{depth}</text>",
            HEIGHT - BOTTOM + 18.0
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">words in the key</text>\
         <text x=\"{LEFT}\" y=\"{:.1}\">nanoseconds of processor time for one key; bindings of the exchange:</text>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 12.0,
        TOP - 12.0
    );
    for (i, (case, line)) in BINDING_SETS.iter().zip(lines).enumerate() {
        let points: Vec<String> = line
            .iter()
            .map(|(depth, value)| format!("{:.1},{:.1}", x(*depth as f64), y(*value)))
            .collect();
        let legend = TOP + 14.0 + 18.0 * i as f64;
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\
             <text x=\"{:.1}\" y=\"{legend:.1}\" fill=\"{}\">{}</text>",
            points.join(" "),
            case.color,
            LEFT + 12.0,
            case.color,
            case.name
        );
    }
    svg.push_str("</svg>\n");
    svg
}
