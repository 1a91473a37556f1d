//! `bench`.

use super::Single;
use crate::program::{Result, address};

#[test]
fn bench_measures_queues_of_each_type_and_removes_its_own() -> Result<()> {
    let node = Single::start("bench", &[])?;
    let amqp = address(&node.scratch.0.join("ready"), "amqp")?;
    for kind in ["quorum", "classic"] {
        let measured = node.ctl(&[
            "bench",
            "--amqp",
            &amqp,
            "--type",
            kind,
            "--seconds",
            "1",
            "--publishers",
            "2",
            "--consumers",
            "2",
            "--size",
            "16",
            "--output",
            "json",
        ])?;
        let rows = measured.json()?;
        measured.ok();
        for (at, direction) in ["publish and confirm", "publish and consume"]
            .iter()
            .enumerate()
        {
            let row = &rows[at];
            assert_eq!(row["direction"], *direction);
            assert!(row["messages"].as_u64() > Some(0), "{row}");
            assert!(row["p50_ms"].as_f64() <= row["p99_ms"].as_f64(), "{row}");
            assert!(row["p99_ms"].as_f64() <= row["max_ms"].as_f64(), "{row}");
        }
        assert_eq!(
            rows[0]["messages"], rows[1]["messages"],
            "each message is consumed once"
        );
    }
    let queues = node.ctl(&["list_queues", "--output", "json"])?.json()?;
    assert_eq!(queues.as_array().map(Vec::len), Some(0), "{queues}");
    Ok(())
}

#[test]
fn bench_keeps_the_rate_and_measures_an_existing_queue() -> Result<()> {
    let node = Single::start("bench-rate", &[])?;
    let amqp = address(&node.scratch.0.join("ready"), "amqp")?;
    node.ctl(&["declare_queue", "orders"])?.ok();
    node.ctl(&["publish", "orders", "of somebody else"])?.ok();
    let paced = [
        "bench",
        "--amqp",
        &amqp,
        "--queue",
        "orders",
        "--seconds",
        "2",
        "--rate",
        "50",
        "--output",
        "json",
    ];
    let rows = node.ctl(&paced)?.json()?;
    let published = rows[0]["messages"].as_u64().ok_or("no count")?;
    assert!((1..=101).contains(&published), "{rows}");
    let queues = node
        .ctl(&["list_queues", "name", "--output", "json"])?
        .json()?;
    assert_eq!(queues[0]["name"], "orders", "the queue stays");

    let missing = node.ctl(&["bench", "--amqp", &amqp, "--queue", "nothing"])?;
    assert_eq!(missing.code, 1);
    assert!(
        missing.stderr.contains("no queue 'nothing'"),
        "{}",
        missing.stderr
    );
    // Without an address, the port is that of the node's listener, here one that the system has chosen.
    let measured = node.ctl(&["bench", "--seconds", "1", "--rate", "5"])?.ok();
    assert!(measured.contains("publish and confirm"), "{measured}");
    let nothing = node.ctl(&["bench", "--publishers", "0", "--consumers", "0"])?;
    assert_eq!(nothing.code, 2);
    Ok(())
}
