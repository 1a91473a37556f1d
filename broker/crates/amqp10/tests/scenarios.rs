//! Frames from a peer and commands of a broker, and what the engine answers: first its output and events, then that other links and
//! sessions still work.

use crate::support::*;
use codec_amqp10::{
    AmqpError, Condition, DeliveryState, Modified, Outcome, ProtocolHeader, Reader,
    ReceiverSettleMode, Role, SaslCode, SaslFrame, SaslOutcome, SenderSettleMode,
    TransactionalState,
};

use Role::{Receiver, Sender};
use Step::*;

/// A map from the delivery tag 01 to the state accepted.
const UNSETTLED: &[u8] = &[0xc1, 0x08, 0x02, 0xa0, 0x01, 0x01, 0x00, 0x53, 0x24, 0x45];
const ACCEPTED: DeliveryState<'static> = DeliveryState::ACCEPTED;
const RELEASED: DeliveryState<'static> = DeliveryState::RELEASED;

fn rejected() -> DeliveryState<'static> {
    DeliveryState::Outcome(Outcome::Rejected(Some(AmqpError::new(
        Condition::NotAllowed,
        "no",
    ))))
}

fn modified() -> DeliveryState<'static> {
    DeliveryState::Outcome(Outcome::Modified(Modified {
        delivery_failed: true,
        undeliverable_here: false,
        message_annotations: None,
    }))
}

struct Scenario {
    name: &'static str,
    steps: Vec<Step>,
    expected: Vec<&'static str>,
}

fn row(name: &'static str, steps: Vec<Step>, expected: &[&'static str]) -> Scenario {
    Scenario {
        name,
        steps,
        expected: expected.to_vec(),
    }
}

fn check(rows: Vec<Scenario>, start: impl Fn() -> Harness) {
    let mut failures = Vec::new();
    for Scenario {
        name,
        steps,
        expected,
    } in rows
    {
        let mut harness = start();
        for step in steps {
            harness.run(step);
        }
        if harness.trace != expected {
            failures.push(format!(
                "{name}:\n  found    {:#?}\n  expected {expected:#?}",
                harness.trace
            ));
            continue;
        }
        harness.probe();
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn sasl_header() -> Vec<u8> {
    ProtocolHeader::SASL.to_bytes().to_vec()
}

fn amqp_header() -> Vec<u8> {
    ProtocolHeader::AMQP.to_bytes().to_vec()
}

/// Everything before the open.
fn authenticated() -> Vec<u8> {
    [sasl_header(), init("ANONYMOUS", b""), amqp_header()].concat()
}

const OFFER: [&str; 2] = ["header Sasl", "mechanisms ANONYMOUS PLAIN TWO-STEP"];

#[test]
fn handshake() {
    let offer = |more: &[&'static str]| [&OFFER, more].concat();
    let opening = |more: &[&'static str]| {
        [
            &OFFER[..],
            &["! init ANONYMOUS", "outcome Ok", "header Amqp"],
            more,
        ]
        .concat()
    };
    let framing = "! closed by fault amqp:connection:framing-error";
    let rows = vec![
        row("sasl header", vec![In(sasl_header())], &offer(&[])),
        row("half a header", vec![In(b"AMQ".to_vec())], &[]),
        row(
            "a header in pieces",
            vec![In(b"AMQ".to_vec()), In(b"P\x03\x01\x00\x00".to_vec())],
            &offer(&[]),
        ),
        row(
            "no sasl layer",
            vec![In(amqp_header())],
            &["header Sasl", framing],
        ),
        row(
            "tls header",
            vec![In(ProtocolHeader::TLS.to_bytes().to_vec())],
            &["header Sasl", framing],
        ),
        row(
            "version 1.1",
            vec![In(b"AMQP\x03\x01\x01\x00".to_vec())],
            &["header Sasl", framing],
        ),
        row(
            "amqp 0.9.1",
            vec![In(b"AMQP\x00\x00\x09\x01".to_vec())],
            &["header Sasl", framing],
        ),
        row(
            "unknown protocol id",
            vec![In(b"AMQP\x07\x01\x00\x00".to_vec())],
            &["header Sasl", framing],
        ),
        row(
            "http",
            vec![In(b"GET / HTTP/1.1\r\n".to_vec())],
            &["header Sasl", framing],
        ),
        row(
            "two wrong bytes",
            vec![In(b"GE".to_vec())],
            &["header Sasl", framing],
        ),
        row(
            "mechanism that is not offered",
            vec![In(sasl_header()), In(init("GSSAPI", b""))],
            &offer(&["outcome Auth", "! closed by fault amqp:unauthorized-access"]),
        ),
        row(
            "wrong password",
            vec![
                In(sasl_header()),
                In(init("PLAIN", b"\0user\0bad")),
                In(amqp_header()),
            ],
            &offer(&[
                "! init PLAIN",
                "outcome Auth",
                "! closed by fault amqp:unauthorized-access",
            ]),
        ),
        row(
            "authentication that cannot be done now",
            vec![
                In(sasl_header()),
                In(init("PLAIN", b"\0user\0later")),
                In(amqp_header()),
            ],
            &offer(&[
                "! init PLAIN",
                "outcome SystemTemporary",
                "! closed by fault amqp:unauthorized-access",
            ]),
        ),
        row(
            "two steps",
            vec![
                In(sasl_header()),
                In(init("TWO-STEP", b"")),
                In(response(b"r")),
                In(amqp_header()),
            ],
            &offer(&[
                "! init TWO-STEP",
                "challenge",
                "! response",
                "outcome Ok",
                "header Amqp",
            ]),
        ),
        row(
            "response without init",
            vec![In(sasl_header()), In(response(b"r"))],
            &offer(&["! closed by fault amqp:illegal-state"]),
        ),
        row(
            "init twice",
            vec![
                In(sasl_header()),
                In(init("TWO-STEP", b"")),
                In(init("TWO-STEP", b"")),
            ],
            &offer(&[
                "! init TWO-STEP",
                "challenge",
                "! closed by fault amqp:illegal-state",
            ]),
        ),
        row(
            "outcome from a client",
            vec![
                In(sasl_header()),
                In(sasl(SaslFrame::Outcome(SaslOutcome {
                    code: SaslCode::Ok,
                    additional_data: None,
                }))),
            ],
            &offer(&["! closed by fault amqp:illegal-state"]),
        ),
        row(
            "amqp frame in the sasl layer",
            vec![In(sasl_header()), In(open())],
            &offer(&[framing]),
        ),
        row(
            "sasl frame above its limit",
            vec![In(sasl_header()), In(hex("00002001 02010000"))],
            &offer(&[framing]),
        ),
        row(
            "sasl frame below the header size",
            vec![In(sasl_header()), In(hex("00000007 02010000"))],
            &offer(&[framing]),
        ),
        row(
            "sasl init without mechanism",
            vec![In(sasl_header()), In(hex("0000000c 02010000 00534145"))],
            &offer(&["! closed by fault amqp:invalid-field"]),
        ),
        row(
            "unknown sasl frame",
            vec![In(sasl_header()), In(hex("0000000c 02010000 00534545"))],
            &offer(&["! closed by fault amqp:not-implemented"]),
        ),
        row(
            "sasl frame without body",
            vec![In(sasl_header()), In(hex("00000008 02010000"))],
            &offer(&["! closed by fault amqp:decode-error"]),
        ),
        row(
            "a second sasl layer",
            vec![
                In(sasl_header()),
                In(init("ANONYMOUS", b"")),
                In(sasl_header()),
            ],
            &offer(&["! init ANONYMOUS", "outcome Ok", "header Amqp", framing]),
        ),
        row(
            "open in one piece with everything before",
            vec![In([authenticated(), open()].concat())],
            &opening(&["! open client", "open"]),
        ),
        row(
            "heartbeats around the open",
            vec![In(
                [authenticated(), heartbeat(), open(), heartbeat()].concat()
            )],
            &opening(&["! open client", "open"]),
        ),
        row(
            "open refused",
            vec![In([
                authenticated(),
                open_with(|open| open.hostname = Some("refused")),
                begin(0),
                close(),
            ]
            .concat())],
            &opening(&["! open client", "open", "close amqp:not-found"]),
        ),
        row(
            "open without container id",
            vec![In(authenticated()), In(raw(0, "00531045"))],
            &opening(&[
                "open",
                "close amqp:invalid-field",
                "! closed by fault amqp:invalid-field",
            ]),
        ),
        row(
            "frame size below the minimum",
            vec![
                In(authenticated()),
                In(open_with(|open| open.max_frame_size = 511)),
            ],
            &opening(&[
                "open",
                "close amqp:frame-size-too-small",
                "! closed by fault amqp:frame-size-too-small",
            ]),
        ),
        row(
            "idle timeout of half a second",
            vec![
                In(authenticated()),
                In(open_with(|open| open.idle_time_out = Some(500))),
            ],
            &opening(&[
                "open",
                "close amqp:not-allowed",
                "! closed by fault amqp:not-allowed",
            ]),
        ),
        row(
            "begin before open",
            vec![In(authenticated()), In(begin(0))],
            &opening(&[
                "open",
                "close amqp:illegal-state",
                "! closed by fault amqp:illegal-state",
            ]),
        ),
        row(
            "unknown frame before open",
            vec![In(authenticated()), In(raw(0, "00532045"))],
            &opening(&[
                "open",
                "close amqp:not-implemented",
                "! closed by fault amqp:not-implemented",
            ]),
        ),
        row(
            "open above the frame size",
            vec![In(authenticated()), In(hex("00000201 02000000"))],
            &opening(&["open", "close amqp:connection:framing-error", framing]),
        ),
        row(
            "nothing for ten seconds",
            vec![Tick(9_999), Tick(1)],
            &["! closed by fault amqp:resource-limit-exceeded"],
        ),
        row(
            "no open for ten seconds",
            vec![In(authenticated()), Tick(10_000)],
            &opening(&["! closed by fault amqp:resource-limit-exceeded"]),
        ),
    ];
    check(rows, || Harness::new(config()));
}

#[test]
fn connection() {
    let framing = [
        "close amqp:connection:framing-error",
        "! closed by fault amqp:connection:framing-error",
    ];
    let illegal = [
        "close amqp:illegal-state",
        "! closed by fault amqp:illegal-state",
    ];
    let decode = [
        "close amqp:decode-error",
        "! closed by fault amqp:decode-error",
    ];
    let unknown = [
        "close amqp:not-implemented",
        "! closed by fault amqp:not-implemented",
    ];
    let rows = vec![
        row(
            "close",
            vec![In(close()), In(begin(2))],
            &["close", "! closed by peer"],
        ),
        row(
            "close with an error",
            vec![In(raw(
                0,
                "005318 c01101 00531d c00b01 a308 616d71703a666f6f",
            ))],
            &["close", "! closed by peer amqp:foo"],
        ),
        row(
            "close by the broker",
            vec![Close, In(transfer(0, 0, 0, 1)), In(close()), Tick(9_000)],
            &["close"],
        ),
        row(
            "close that is never answered",
            vec![Close, Tick(5_000), In(close())],
            &["close"],
        ),
        row(
            "garbage after our close",
            vec![Close, In(vec![0xff; 40])],
            &["close"],
        ),
        row("frame size 0", vec![In(hex("00000000 02000000"))], &framing),
        row("frame size 7", vec![In(hex("00000007 02000000"))], &framing),
        row(
            "frame of 4 GiB",
            vec![In(hex("ffffffff 02000000"))],
            &framing,
        ),
        row(
            "frame above max-frame-size",
            vec![In(hex("00000201 02000000"))],
            &framing,
        ),
        row(
            "data offset 1",
            vec![In(hex("00000008 01000000"))],
            &framing,
        ),
        row(
            "data offset behind the frame",
            vec![In(hex("0000000c 04000000 00000000"))],
            &framing,
        ),
        row("frame type 2", vec![In(hex("00000008 02020000"))], &framing),
        row("sasl frame", vec![In(init("ANONYMOUS", b""))], &framing),
        row(
            "sasl heartbeat",
            vec![In(hex("00000008 02010000"))],
            &framing,
        ),
        row("channel above channel-max", vec![In(begin(4))], &framing),
        row(
            "heartbeat on any channel",
            vec![In(hex("00000008 0200ffff"))],
            &[],
        ),
        row(
            "extended header",
            vec![In(hex("00000010 04000002 0000000000000000"))],
            &[],
        ),
        row("second open", vec![In(open())], &illegal),
        row(
            "begin on a channel with a session",
            vec![In(begin(0))],
            &illegal,
        ),
        row(
            "flow on a channel without session",
            vec![In(flow_with(2, |_| {}))],
            &illegal,
        ),
        row(
            "transfer on a channel without session",
            vec![In(transfer(3, 0, 0, 1))],
            &illegal,
        ),
        row(
            "end on a channel without session",
            vec![In(end(2))],
            &illegal,
        ),
        row(
            "begin that answers nothing",
            vec![In(begin_with(2, |begin| begin.remote_channel = Some(0)))],
            &[
                "close amqp:invalid-field",
                "! closed by fault amqp:invalid-field",
            ],
        ),
        row(
            "begin that answers an impossible channel",
            vec![In(begin_with(2, |begin| {
                begin.remote_channel = Some(65_535)
            }))],
            &[
                "close amqp:invalid-field",
                "! closed by fault amqp:invalid-field",
            ],
        ),
        row(
            "begin without windows",
            vec![In(raw(2, "00531145"))],
            &[
                "close amqp:invalid-field",
                "! closed by fault amqp:invalid-field",
            ],
        ),
        row(
            "unknown performative",
            vec![In(raw(0, "00531945"))],
            &unknown,
        ),
        row(
            "unknown symbolic performative",
            vec![In(raw(0, "00a30178 45"))],
            &unknown,
        ),
        row(
            "a bare list as body",
            vec![In(raw(0, "45"))],
            &[
                "close amqp:invalid-field",
                "! closed by fault amqp:invalid-field",
            ],
        ),
        row("half a descriptor", vec![In(raw(0, "0053"))], &decode),
        row(
            "a list cut short",
            vec![In(raw(0, "005314 c0ff01 43"))],
            &decode,
        ),
        row(
            "2^32 fields",
            vec![In(raw(0, "005313 d0 00000005 ffffffff 43"))],
            &decode,
        ),
        row(
            "a field cut short",
            vec![In(raw(0, "005313 c00301 70 00"))],
            &decode,
        ),
        row(
            "broken text",
            vec![In(raw(0, "005312 c00401 a101ff"))],
            &decode,
        ),
        row(
            "bytes after a flow",
            vec![In(raw(0, "005313 c00504 40 43 43 43 43"))],
            &decode,
        ),
        row(
            "silence for ten seconds",
            vec![Tick(9_999), Tick(1)],
            &[
                "close amqp:resource-limit-exceeded",
                "! closed by fault amqp:resource-limit-exceeded",
            ],
        ),
        row(
            "bytes against silence",
            vec![Tick(9_999), In(heartbeat()), Tick(9_999)],
            &[],
        ),
        row(
            "half a frame against silence",
            vec![
                Tick(9_999),
                In(vec![0, 0]),
                Tick(9_999),
                In(vec![0]),
                Tick(9_999),
                In(vec![8, 2, 0, 0, 0]),
            ],
            &[],
        ),
        row(
            "a frame in pieces",
            vec![In(end(1)[..5].to_vec()), In(end(1)[5..].to_vec())],
            &["end 1", "! ended 1 by peer"],
        ),
    ];
    check(rows, || Harness::running(config()));
}

#[test]
fn sessions() {
    let ended = |condition: &'static str| match condition {
        "window" => [
            "end 0 amqp:session:window-violation",
            "! ended 0 by fault amqp:session:window-violation",
        ],
        "unattached" => [
            "end 0 amqp:session:unattached-handle",
            "! ended 0 by fault amqp:session:unattached-handle",
        ],
        "in-use" => [
            "end 0 amqp:session:handle-in-use",
            "! ended 0 by fault amqp:session:handle-in-use",
        ],
        "invalid" => [
            "end 0 amqp:invalid-field",
            "! ended 0 by fault amqp:invalid-field",
        ],
        "decode" => [
            "end 0 amqp:decode-error",
            "! ended 0 by fault amqp:decode-error",
        ],
        "not-allowed" => [
            "end 0 amqp:not-allowed",
            "! ended 0 by fault amqp:not-allowed",
        ],
        "not-implemented" => [
            "end 0 amqp:not-implemented",
            "! ended 0 by fault amqp:not-implemented",
        ],
        other => panic!("{other}"),
    };
    let framing = [
        "close amqp:connection:framing-error",
        "! closed by fault amqp:connection:framing-error",
    ];
    let rows = vec![
        row("end", vec![In(end(0))], &["end 0", "! ended 0 by peer"]),
        row(
            "end and begin again",
            vec![In([end(0), begin(0)].concat())],
            &[
                "end 0",
                "! ended 0 by peer",
                "begin 0 remote=0",
                "! begun 0",
            ],
        ),
        row(
            "end with an error",
            vec![In(raw(
                1,
                "005317 c01101 00531d c00b01 a308 616d71703a666f6f",
            ))],
            &["end 1", "! ended 1 by peer amqp:foo"],
        ),
        row(
            "end by the broker",
            vec![
                EndSession(0),
                In(transfer(0, 0, 0, 1)),
                In(end(0)),
                In(begin(0)),
            ],
            &["end 0", "begin 0 remote=0", "! begun 0"],
        ),
        row(
            "begin while the peer's end is missing",
            vec![EndSession(0), In(begin(0))],
            &[
                "end 0",
                "close amqp:illegal-state",
                "! closed by fault amqp:illegal-state",
            ],
        ),
        row(
            "two ends that cross",
            vec![EndSession(1), In(end(1)), In(begin(1))],
            &["end 1", "begin 1 remote=1", "! begun 1"],
        ),
        row(
            "garbage in an ending session",
            vec![
                EndSession(0),
                In(raw(0, "005314 45")),
                In(attach(0, 0, "x", Sender)),
            ],
            &["end 0"],
        ),
        row(
            "every channel",
            vec![In([begin(2), begin(3)].concat())],
            &[
                "begin 2 remote=2",
                "! begun 2",
                "begin 3 remote=3",
                "! begun 3",
            ],
        ),
        row(
            "flow with echo",
            vec![In(flow_with(0, |flow| flow.echo = true))],
            &["flow 0 next=0 window=8"],
        ),
        row(
            "flow of the session",
            vec![In(flow_with(0, |flow| {
                flow.next_incoming_id = Some(u32::MAX - 3)
            }))],
            &[],
        ),
        row(
            "flow that leads our transfers",
            vec![In(flow_with(0, |flow| {
                flow.next_incoming_id = Some(u32::MAX - 2)
            }))],
            &ended("window"),
        ),
        row(
            "flow without windows",
            vec![In(raw(0, "00531345"))],
            &ended("invalid"),
        ),
        row(
            "flow with a string as window",
            vec![In(raw(0, "005313 c00502 40 a10131"))],
            &ended("invalid"),
        ),
        row(
            "flow with twelve fields",
            vec![In(raw(
                0,
                "005313 c00d0c 40 43 43 43 40 40 40 40 40 40 40 40",
            ))],
            &ended("decode"),
        ),
        row(
            "flow on an unknown handle",
            vec![In(credit(0, 9, 1))],
            &ended("unattached"),
        ),
        row(
            "transfer on an unknown handle",
            vec![In(transfer(0, 9, 0, 1))],
            &ended("unattached"),
        ),
        row(
            "transfer to a sender",
            vec![In(transfer(0, 1, 0, 1))],
            &ended("not-allowed"),
        ),
        row(
            "detach of an unknown handle",
            vec![In(detach(0, 9, true))],
            &[],
        ),
        row(
            "handle in use",
            vec![In(attach(0, 0, "new", Sender))],
            &ended("in-use"),
        ),
        row(
            "handle above handle-max",
            vec![In(attach(0, 8, "new", Sender))],
            &framing,
        ),
        row(
            "handle of 2^32 - 1",
            vec![In(attach(0, u32::MAX, "new", Sender))],
            &framing,
        ),
        row(
            "attach without name",
            vec![In(raw(0, "00531245"))],
            &ended("invalid"),
        ),
        row(
            "attach with unknown source",
            vec![In(raw(0, "005312 c00d06 a10178 5203 41 40 40 005399 45"))],
            &ended("not-implemented"),
        ),
        row(
            "sender without initial delivery count",
            vec![In(attach_with(0, 3, "new", Sender, |attach| {
                attach.initial_delivery_count = None
            }))],
            &ended("invalid"),
        ),
        row(
            "attach with settle mode 3",
            vec![In(raw(0, "005312 c00904 a10178 5203 41 5003"))],
            &ended("invalid"),
        ),
        row(
            "more links than the peer's handle-max allows",
            vec![
                In(begin_with(2, |begin| begin.handle_max = 0)),
                In(attach(2, 0, "a", Sender)),
                In(attach(2, 1, "b", Sender)),
            ],
            &[
                "begin 2 remote=2",
                "! begun 2",
                "! attach a",
                "attach 2/0 Receiver a",
                "flow 2 next=0 window=8 h0 count=10 credit=4",
                "end 2 amqp:resource-limit-exceeded",
                "! ended 2 by fault amqp:resource-limit-exceeded",
            ],
        ),
        row(
            "delivery without id",
            vec![In(part(0, 0, None, 1, false))],
            &ended("invalid"),
        ),
        row(
            "delivery ids that go back",
            vec![In(transfer(0, 0, 5, 1)), In(transfer(0, 2, 4, 1))],
            &[
                "! message 0/0 #5 1B",
                "end 0 amqp:invalid-field",
                "! ended 0 by fault amqp:invalid-field",
            ],
        ),
        row(
            "delivery id twice",
            vec![In(transfer(0, 0, 5, 1)), In(transfer(0, 0, 5, 1))],
            &[
                "! message 0/0 #5 1B",
                "end 0 amqp:invalid-field",
                "! ended 0 by fault amqp:invalid-field",
            ],
        ),
        row(
            "delivery id half of the range ahead",
            vec![
                In(transfer(0, 0, 5, 1)),
                In(transfer(0, 0, (1 << 31) + 5, 1)),
            ],
            &[
                "! message 0/0 #5 1B",
                "end 0 amqp:invalid-field",
                "! ended 0 by fault amqp:invalid-field",
            ],
        ),
        row(
            "delivery ids that wrap",
            vec![In(transfer(0, 0, u32::MAX, 1)), In(transfer(0, 0, 0, 1))],
            &["! message 0/0 #4294967295 1B", "! message 0/0 #0 1B"],
        ),
        row(
            "transfer without handle",
            vec![In(raw(0, "00531445"))],
            &ended("invalid"),
        ),
        row(
            "delivery tag of 33 bytes",
            vec![In(raw(
                0,
                &format!("005314 c02603 43 43 a021{}", "00".repeat(33)),
            ))],
            &ended("invalid"),
        ),
        row(
            "transfer with a number as tag",
            vec![In(raw(0, "005314 c00403 43 43 43"))],
            &ended("invalid"),
        ),
        row(
            "disposition without role",
            vec![In(raw(0, "00531545"))],
            &ended("invalid"),
        ),
        row(
            "disposition whose last is before first",
            vec![In(disposition(0, Receiver, 5, Some(4), true, None))],
            &ended("invalid"),
        ),
        row(
            "disposition with a string as state",
            vec![In(raw(0, "005315 c00805 41 43 40 41 a10178"))],
            &ended("invalid"),
        ),
        row(
            "disposition for nothing",
            vec![In(disposition(
                0,
                Receiver,
                0,
                Some(u32::MAX >> 1),
                true,
                Some(ACCEPTED),
            ))],
            &[],
        ),
        row(
            "window renewed at half",
            vec![
                In(transfer(0, 0, 0, 1)),
                In(transfer(0, 0, 1, 1)),
                In(transfer(0, 2, 2, 1)),
                In(transfer(0, 2, 3, 1)),
            ],
            &[
                "! message 0/0 #0 1B",
                "! message 0/0 #1 1B",
                "! message 0/2 #2 1B",
                "flow 0 next=4 window=8",
                "! message 0/2 #3 1B",
            ],
        ),
        row(
            "window closed and opened",
            vec![Block(true), Block(true), Block(false)],
            &[
                "flow 0 next=0 window=0",
                "flow 1 next=0 window=0",
                "flow 0 next=0 window=8",
                "flow 1 next=0 window=8",
            ],
        ),
        row(
            "transfers under way to a window that closes",
            vec![
                Block(true),
                In(transfer(0, 0, 0, 1)),
                In(transfer(0, 0, 1, 1)),
                Block(false),
            ],
            &[
                "flow 0 next=0 window=0",
                "flow 1 next=0 window=0",
                "! message 0/0 #0 1B",
                "! message 0/0 #1 1B",
                "flow 0 next=2 window=8",
                "flow 1 next=0 window=8",
            ],
        ),
        row(
            "more transfers than the closed window had",
            vec![
                Block(true),
                In((0..8)
                    .flat_map(|i| part(0, 0, (i == 0).then_some(0), 1, true))
                    .collect()),
                In(part(0, 0, None, 1, true)),
            ],
            &[
                "flow 0 next=0 window=0",
                "flow 1 next=0 window=0",
                "end 0 amqp:session:window-violation",
                "! ended 0 by fault amqp:session:window-violation",
            ],
        ),
        row(
            "session begun during an alarm",
            vec![
                Block(true),
                In(begin(2)),
                In(attach(2, 0, "new", Sender)),
                In(transfer(2, 0, 0, 1)),
            ],
            &[
                "flow 0 next=0 window=0",
                "flow 1 next=0 window=0",
                "begin 2 remote=2",
                "! begun 2",
                "! attach new",
                "attach 2/0 Receiver new",
                "flow 2 next=0 window=0 h0 count=10 credit=4",
                "end 2 amqp:session:window-violation",
                "! ended 2 by fault amqp:session:window-violation",
            ],
        ),
        row(
            "consuming during an alarm",
            vec![Block(true), In(credit(0, 1, 1)), Send(3)],
            &[
                "flow 0 next=0 window=0",
                "flow 1 next=0 window=0",
                "! credit 0/1 1",
                "transfer 0/1 #0 3B",
            ],
        ),
    ];
    check(rows, || Harness::running(config()));
}

#[test]
fn receiving_links() {
    let exceeded = [
        "detach 0/0 closed amqp:link:message-size-exceeded",
        "! detached 0/0 closed by fault amqp:link:message-size-exceeded",
    ];
    let invalid = [
        "detach 0/0 closed amqp:invalid-field",
        "! detached 0/0 closed by fault amqp:invalid-field",
    ];
    let rows = vec![
        row(
            "a message",
            vec![In(transfer(0, 0, 0, 3))],
            &["! message 0/0 #0 3B"],
        ),
        row(
            "an empty message",
            vec![In(transfer(0, 0, 0, 0))],
            &["! message 0/0 #0 0B"],
        ),
        row(
            "a settled message",
            vec![
                In(transfer_with(0, 0, 0, 1, |transfer| {
                    transfer.settled = Some(true)
                })),
                Settle(0, ACCEPTED),
                Flush,
            ],
            &["! message 0/0 #0 1B settled"],
        ),
        row(
            "three transfers",
            vec![
                In(part(0, 0, Some(0), 300, true)),
                In(part(0, 0, None, 300, true)),
                In(part(0, 0, Some(0), 300, false)),
            ],
            &["! message 0/0 #0 900B"],
        ),
        row(
            "a last transfer without payload",
            vec![
                In(part(0, 0, Some(0), 3, true)),
                In(part(0, 0, None, 0, false)),
            ],
            &["! message 0/0 #0 3B"],
        ),
        row(
            "settled by the last transfer",
            vec![
                In(part(0, 0, Some(0), 3, true)),
                In(transfer_with(0, 0, 0, 1, |transfer| {
                    transfer.settled = Some(true)
                })),
                Settle(0, ACCEPTED),
                Flush,
            ],
            &["! message 0/0 #0 4B settled"],
        ),
        row(
            "messages of two links in turn",
            vec![
                In(part(0, 0, Some(0), 1, true)),
                In(part(0, 2, Some(1), 2, true)),
                In(part(0, 0, None, 1, false)),
                In(part(0, 2, None, 2, false)),
                Settle(0, ACCEPTED),
                Settle(1, ACCEPTED),
                Flush,
            ],
            &[
                "! message 0/0 #0 2B",
                "flow 0 next=4 window=8",
                "! message 0/2 #1 4B",
                "disposition 0 Receiver 0-1 settled accepted",
            ],
        ),
        row(
            "aborted",
            vec![
                In(part(0, 0, Some(0), 5, true)),
                In(transfer_with(0, 0, 0, 0, |transfer| {
                    transfer.aborted = true
                })),
                In(transfer(0, 0, 1, 1)),
            ],
            &["! message 0/0 #1 1B"],
        ),
        row(
            "aborted by its first transfer",
            vec![
                In(transfer_with(0, 0, 0, 0, |transfer| {
                    transfer.aborted = true
                })),
                In(transfer(0, 0, 1, 1)),
            ],
            &["! message 0/0 #1 1B"],
        ),
        row(
            "accepted deliveries in one range",
            vec![
                In([
                    transfer(0, 0, 0, 1),
                    transfer(0, 0, 1, 1),
                    transfer(0, 0, 2, 1),
                ]
                .concat()),
                Settle(1, ACCEPTED),
                Settle(0, ACCEPTED),
                Settle(2, ACCEPTED),
                Flush,
            ],
            &[
                "! message 0/0 #0 1B",
                "! message 0/0 #1 1B",
                "! message 0/0 #2 1B",
                "disposition 0 Receiver 0-2 settled accepted",
                "flow 0 next=3 window=5 h0 count=13 credit=4",
            ],
        ),
        row(
            "ranges around a delivery of another outcome",
            vec![
                In([
                    transfer(0, 0, 0, 1),
                    transfer(0, 0, 1, 1),
                    transfer(0, 0, 2, 1),
                ]
                .concat()),
                Settle(0, ACCEPTED),
                Settle(1, rejected()),
                Settle(2, ACCEPTED),
                Flush,
            ],
            &[
                "! message 0/0 #0 1B",
                "! message 0/0 #1 1B",
                "! message 0/0 #2 1B",
                "disposition 0 Receiver 1-1 settled rejected amqp:not-allowed",
                "disposition 0 Receiver 0-0 settled accepted",
                "disposition 0 Receiver 2-2 settled accepted",
                "flow 0 next=3 window=5 h0 count=13 credit=4",
            ],
        ),
        row(
            "released and modified",
            vec![
                In([transfer(0, 0, 0, 1), transfer(0, 0, 1, 1)].concat()),
                Settle(0, RELEASED),
                Settle(1, modified()),
            ],
            &[
                "! message 0/0 #0 1B",
                "! message 0/0 #1 1B",
                "disposition 0 Receiver 0-0 settled released",
                "disposition 0 Receiver 1-1 settled modified",
            ],
        ),
        row(
            "settled twice by the broker",
            vec![
                In(transfer(0, 0, 0, 1)),
                Settle(0, RELEASED),
                Settle(0, ACCEPTED),
                Flush,
            ],
            &[
                "! message 0/0 #0 1B",
                "disposition 0 Receiver 0-0 settled released",
                "! error: the session or link has ended",
            ],
        ),
        row(
            "settled first by the sender",
            vec![
                In(transfer(0, 0, 0, 1)),
                In(disposition(0, Sender, 0, None, true, None)),
                Settle(0, ACCEPTED),
                Flush,
            ],
            &["! message 0/0 #0 1B"],
        ),
        row(
            "credit is not renewed above half",
            vec![In(transfer(0, 0, 0, 1)), Settle(0, ACCEPTED), Flush],
            &[
                "! message 0/0 #0 1B",
                "disposition 0 Receiver 0-0 settled accepted",
            ],
        ),
        row(
            "credit is renewed at half",
            vec![
                In([transfer(0, 0, 0, 1), transfer(0, 0, 1, 1)].concat()),
                Settle(0, ACCEPTED),
                Flush,
            ],
            &[
                "! message 0/0 #0 1B",
                "! message 0/0 #1 1B",
                "disposition 0 Receiver 0-0 settled accepted",
                "flow 0 next=2 window=6 h0 count=12 credit=4",
            ],
        ),
        row(
            "credit is withheld while as many are unsettled",
            vec![
                In([transfer(0, 0, 0, 1), transfer(0, 0, 1, 1)].concat()),
                Settle(0, ACCEPTED),
                Flush,
                In([
                    transfer(0, 0, 2, 1),
                    transfer(0, 0, 3, 1),
                    transfer(0, 0, 4, 1),
                    transfer(0, 0, 5, 1),
                ]
                .concat()),
                Settle(1, ACCEPTED),
                Flush,
                Settle(2, ACCEPTED),
                Flush,
            ],
            &[
                "! message 0/0 #0 1B",
                "! message 0/0 #1 1B",
                "disposition 0 Receiver 0-0 settled accepted",
                "flow 0 next=2 window=6 h0 count=12 credit=4",
                "! message 0/0 #2 1B",
                "flow 0 next=4 window=8",
                "! message 0/0 #3 1B",
                "! message 0/0 #4 1B",
                "! message 0/0 #5 1B",
                "disposition 0 Receiver 1-1 settled accepted",
                "disposition 0 Receiver 2-2 settled accepted",
                "flow 0 next=6 window=6 h0 count=16 credit=4",
            ],
        ),
        row(
            "transfer without credit",
            vec![In((0..5).flat_map(|id| transfer(0, 0, id, 1)).collect())],
            &[
                "! message 0/0 #0 1B",
                "! message 0/0 #1 1B",
                "! message 0/0 #2 1B",
                "flow 0 next=4 window=8",
                "! message 0/0 #3 1B",
                "detach 0/0 closed amqp:link:transfer-limit-exceeded",
                "! detached 0/0 closed by fault amqp:link:transfer-limit-exceeded",
            ],
        ),
        row(
            "transfers to a detached link are discarded",
            vec![
                In((0..5).flat_map(|id| transfer(0, 0, id, 1)).collect()),
                In(transfer(0, 0, 6, 1)),
                In(credit(0, 0, 4)),
                In(detach(0, 0, true)),
                In(attach(0, 0, "in", Sender)),
            ],
            &[
                "! message 0/0 #0 1B",
                "! message 0/0 #1 1B",
                "! message 0/0 #2 1B",
                "flow 0 next=4 window=8",
                "! message 0/0 #3 1B",
                "detach 0/0 closed amqp:link:transfer-limit-exceeded",
                "! detached 0/0 closed by fault amqp:link:transfer-limit-exceeded",
                "! attach in",
                "attach 0/0 Receiver in",
                "flow 0 next=0 window=6 h0 count=10 credit=4",
            ],
        ),
        row(
            "a message of the largest size",
            vec![
                In(part(0, 0, Some(0), 400, true)),
                In(part(0, 0, None, 400, true)),
                In(part(0, 0, None, 200, false)),
            ],
            &["! message 0/0 #0 1000B"],
        ),
        row(
            "a message above the largest size",
            vec![
                In(part(0, 0, Some(0), 400, true)),
                In(part(0, 0, None, 400, true)),
                In(part(0, 0, None, 201, false)),
            ],
            &exceeded,
        ),
        row(
            "a message above the largest size without end",
            vec![
                In(part(0, 0, Some(0), 400, true)),
                In(part(0, 0, None, 400, true)),
                In(part(0, 0, None, 400, true)),
            ],
            &exceeded,
        ),
        row(
            "unfinished messages above the limit of the connection",
            vec![
                In(part(0, 0, Some(0), 450, true)),
                In(part(0, 0, None, 450, true)),
                In(part(0, 2, Some(1), 450, true)),
                In(part(1, 0, Some(0), 450, true)),
                In(part(0, 0, None, 50, false)),
            ],
            &[
                "detach 1/0 closed amqp:resource-limit-exceeded",
                "! detached 1/0 closed by fault amqp:resource-limit-exceeded",
                "flow 0 next=4 window=8",
                "! message 0/0 #0 950B",
            ],
        ),
        row(
            "another delivery inside of a delivery",
            vec![
                In(part(0, 0, Some(0), 1, true)),
                In(part(0, 0, Some(1), 1, true)),
            ],
            &invalid,
        ),
        row(
            "another tag inside of a delivery",
            vec![
                In(part(0, 0, Some(0), 1, true)),
                In(transfer_with(0, 0, 0, 1, |transfer| {
                    transfer.delivery_tag = Some(b"other")
                })),
            ],
            &invalid,
        ),
        row(
            "another format inside of a delivery",
            vec![
                In(part(0, 0, Some(0), 1, true)),
                In(transfer_with(0, 0, 0, 1, |transfer| {
                    transfer.message_format = Some(1)
                })),
            ],
            &invalid,
        ),
        row(
            "delivery without tag",
            vec![In(transfer_with(0, 0, 0, 1, |transfer| {
                transfer.delivery_tag = None
            }))],
            &invalid,
        ),
        row(
            "receiver settle mode second on a link of mode first",
            vec![In(transfer_with(0, 0, 0, 1, |transfer| {
                transfer.rcv_settle_mode = Some(ReceiverSettleMode::Second)
            }))],
            &invalid,
        ),
        row(
            "resumed delivery",
            vec![In(transfer_with(0, 0, 0, 1, |transfer| {
                transfer.resume = true
            }))],
            &[
                "detach 0/0 closed amqp:not-implemented",
                "! detached 0/0 closed by fault amqp:not-implemented",
            ],
        ),
        row(
            "a message of a transaction",
            vec![In(transfer_with(0, 0, 0, 1, |transfer| {
                transfer.state = Some(DeliveryState::Transactional(TransactionalState {
                    txn_id: b"t",
                    outcome: None,
                }));
            }))],
            &["! message 0/0 #0 1B"],
        ),
        row(
            "transaction id of 33 bytes",
            vec![In(transfer_with(0, 0, 0, 1, |transfer| {
                transfer.state = Some(DeliveryState::Transactional(TransactionalState {
                    txn_id: &[0; 33],
                    outcome: None,
                }));
            }))],
            &[
                "detach 0/0 closed amqp:transaction:unknown-id",
                "! detached 0/0 closed by fault amqp:transaction:unknown-id",
            ],
        ),
        row(
            "settled transfer on an unsettled link",
            vec![
                In(attach_with(0, 3, "u", Sender, |attach| {
                    attach.snd_settle_mode = SenderSettleMode::Unsettled
                })),
                In(transfer_with(0, 3, 0, 1, |transfer| {
                    transfer.settled = Some(true)
                })),
            ],
            &[
                "! attach u",
                "attach 0/3 Receiver u",
                "flow 0 next=0 window=8 h3 count=10 credit=4",
                "detach 0/3 closed amqp:invalid-field",
                "! detached 0/3 closed by fault amqp:invalid-field",
            ],
        ),
        row(
            "unsettled transfer on a settled link",
            vec![
                In(attach_with(0, 3, "s", Sender, |attach| {
                    attach.snd_settle_mode = SenderSettleMode::Settled
                })),
                In(transfer_with(0, 3, 0, 1, |transfer| {
                    transfer.settled = Some(true)
                })),
                In(transfer_with(0, 3, 1, 1, |transfer| {
                    transfer.settled = Some(false)
                })),
            ],
            &[
                "! attach s",
                "attach 0/3 Receiver s",
                "flow 0 next=0 window=8 h3 count=10 credit=4",
                "! message 0/3 #0 1B settled",
                "detach 0/3 closed amqp:invalid-field",
                "! detached 0/3 closed by fault amqp:invalid-field",
            ],
        ),
        row(
            "receiver settle mode second",
            vec![
                In(attach_with(0, 3, "2nd", Sender, |attach| {
                    attach.rcv_settle_mode = ReceiverSettleMode::Second
                })),
                In(transfer(0, 3, 0, 1)),
                Settle(0, ACCEPTED),
                Settle(0, ACCEPTED),
                In(disposition(0, Sender, 0, None, true, Some(ACCEPTED))),
                Settle(0, ACCEPTED),
                Flush,
            ],
            &[
                "! attach 2nd",
                "attach 0/3 Receiver 2nd",
                "flow 0 next=0 window=8 h3 count=10 credit=4",
                "! message 0/3 #0 1B",
                "disposition 0 Receiver 0-0 accepted",
                "! error: the session or link has ended",
                "! error: the session or link has ended",
            ],
        ),
        row(
            "flow of a sender with messages",
            vec![In(flow_with(0, |flow| {
                flow.handle = Some(0);
                flow.delivery_count = Some(10);
                flow.available = Some(7);
                flow.echo = true;
            }))],
            &[
                "flow 0 next=0 window=8 h0 count=10 credit=4",
                "! available 7",
            ],
        ),
        row(
            "sender that uses up its credit",
            vec![
                In(flow_with(0, |flow| {
                    flow.handle = Some(0);
                    flow.delivery_count = Some(14);
                })),
                Flush,
            ],
            &["flow 0 next=0 window=8 h0 count=14 credit=4"],
        ),
        row(
            "sender that counts more than its credit",
            vec![In(flow_with(0, |flow| {
                flow.handle = Some(0);
                flow.delivery_count = Some(15);
            }))],
            &[
                "detach 0/0 closed amqp:link:transfer-limit-exceeded",
                "! detached 0/0 closed by fault amqp:link:transfer-limit-exceeded",
            ],
        ),
        row(
            "sender that counts backwards",
            vec![In(flow_with(0, |flow| {
                flow.handle = Some(0);
                flow.delivery_count = Some(9);
            }))],
            &invalid,
        ),
        row(
            "credit taken back while messages are under way",
            vec![
                Grant("in", 1, false),
                In(transfer(0, 0, 0, 1)),
                In(transfer(0, 0, 1, 1)),
                In(transfer(0, 2, 2, 1)),
                In(transfer(0, 0, 3, 1)),
                In(transfer(0, 0, 4, 1)),
                In(transfer(0, 0, 5, 1)),
            ],
            &[
                "flow 0 next=0 window=8 h0 count=10 credit=1",
                "! message 0/0 #0 1B",
                "! message 0/0 #1 1B",
                "! message 0/2 #2 1B",
                "flow 0 next=4 window=8",
                "! message 0/0 #3 1B",
                "! message 0/0 #4 1B",
                "detach 0/0 closed amqp:link:transfer-limit-exceeded",
                "! detached 0/0 closed by fault amqp:link:transfer-limit-exceeded",
            ],
        ),
        row(
            "drained by the sender",
            vec![
                Grant("in", 4, true),
                In(flow_with(0, |flow| {
                    flow.handle = Some(0);
                    flow.delivery_count = Some(14);
                    flow.drain = true;
                })),
                Flush,
            ],
            &[
                "flow 0 next=0 window=8 h0 count=10 credit=4 drain",
                "! drained 0/0",
                "flow 0 next=0 window=8 h0 count=14 credit=4",
            ],
        ),
        row(
            "credit granted by the broker",
            vec![
                In(attach(0, 3, "manual", Sender)),
                Grant("manual", 1, true),
                In(transfer(0, 3, 0, 1)),
                Settle(0, ACCEPTED),
                Flush,
                In(transfer(0, 3, 1, 1)),
            ],
            &[
                "! attach manual",
                "attach 0/3 Receiver manual",
                "flow 0 next=0 window=8 h3 count=10 credit=1 drain",
                "! message 0/3 #0 1B",
                "disposition 0 Receiver 0-0 settled accepted",
                "detach 0/3 closed amqp:link:transfer-limit-exceeded",
                "! detached 0/3 closed by fault amqp:link:transfer-limit-exceeded",
            ],
        ),
        row(
            "detach with an unfinished message",
            vec![
                In(part(0, 0, Some(0), 400, true)),
                In(detach(0, 0, true)),
                In(attach(0, 0, "in", Sender)),
                In(part(0, 0, Some(1), 400, true)),
                In(part(0, 2, Some(2), 400, true)),
                In(part(1, 0, Some(0), 400, true)),
            ],
            &[
                "detach 0/0 closed",
                "! detached 0/0 closed by peer",
                "! attach in",
                "attach 0/0 Receiver in",
                "flow 0 next=1 window=7 h0 count=10 credit=4",
            ],
        ),
        row(
            "outcome after the detach",
            vec![
                In(transfer(0, 0, 0, 1)),
                In(detach(0, 0, true)),
                Settle(0, ACCEPTED),
                Flush,
            ],
            &[
                "! message 0/0 #0 1B",
                "detach 0/0 closed",
                "! detached 0/0 closed by peer",
                "! error: the session or link has ended",
            ],
        ),
        row(
            "outcome before the detach",
            vec![
                In(transfer(0, 0, 0, 1)),
                Settle(0, ACCEPTED),
                In(detach(0, 0, true)),
            ],
            &[
                "! message 0/0 #0 1B",
                "disposition 0 Receiver 0-0 settled accepted",
                "detach 0/0 closed",
                "! detached 0/0 closed by peer",
            ],
        ),
    ];
    check(rows, || {
        let harness = Harness::running(config());
        assert_eq!(harness.connection.unfinished_size(), 0);
        harness
    });
}

#[test]
fn sending_links() {
    let rows = vec![
        row(
            "send without credit",
            vec![Send(1)],
            &["! error: the link has no credit"],
        ),
        row(
            "send on credit",
            vec![In(credit(0, 1, 2)), Send(3), Send(4), Send(5)],
            &[
                "! credit 0/1 2",
                "transfer 0/1 #0 3B",
                "transfer 0/1 #1 4B",
                "! error: the link has no credit",
            ],
        ),
        row(
            "an empty message",
            vec![In(credit(0, 1, 1)), Send(0)],
            &["! credit 0/1 1", "transfer 0/1 #0 0B"],
        ),
        row(
            "send settled in mixed mode",
            vec![
                In(credit(0, 1, 2)),
                SendSettled(1),
                In(disposition(0, Receiver, 0, None, true, Some(ACCEPTED))),
            ],
            &["! credit 0/1 2", "transfer 0/1 #0 1B settled"],
        ),
        row(
            "credit is set and not added",
            vec![In(credit(0, 1, 3)), In(credit(0, 1, 1))],
            &["! credit 0/1 3", "! credit 0/1 1"],
        ),
        row(
            "credit counts what is in flight",
            vec![In(credit(0, 1, 3)), Send(1), Send(1), In(credit(0, 1, 3))],
            &[
                "! credit 0/1 3",
                "transfer 0/1 #0 1B",
                "transfer 0/1 #1 1B",
                "! credit 0/1 1",
            ],
        ),
        row(
            "delivery counts wrap",
            vec![
                In(flow_with(0, |flow| {
                    flow.handle = Some(1);
                    flow.link_credit = Some(u32::MAX);
                    flow.drain = true;
                })),
                Drained,
                In(flow_with(0, |flow| {
                    flow.handle = Some(1);
                    flow.delivery_count = Some(u32::MAX);
                    flow.link_credit = Some(3);
                })),
                Send(1),
                Send(1),
                In(flow_with(0, |flow| {
                    flow.next_incoming_id = Some(u32::MAX - 1);
                    flow.handle = Some(1);
                    flow.delivery_count = Some(1);
                    flow.link_credit = Some(5);
                })),
            ],
            &[
                "! credit 0/1 4294967295 drain",
                "flow 0 next=0 window=8 h1 count=4294967295 credit=0 drain",
                "! credit 0/1 3",
                "transfer 0/1 #0 1B",
                "transfer 0/1 #1 1B",
                "! credit 0/1 5",
            ],
        ),
        row(
            "credit taken back",
            vec![In(credit(0, 1, 3)), In(credit(0, 1, 0)), Send(1)],
            &[
                "! credit 0/1 3",
                "! credit 0/1 0",
                "! error: the link has no credit",
            ],
        ),
        row(
            "credit of 2^32 - 1",
            vec![In(credit(0, 1, u32::MAX)), Send(1)],
            &["! credit 0/1 4294967295", "transfer 0/1 #0 1B"],
        ),
        row(
            "drain",
            vec![
                In(flow_with(0, |flow| {
                    flow.handle = Some(1);
                    flow.link_credit = Some(5);
                    flow.drain = true;
                })),
                Send(1),
                Drained,
                Drained,
                Send(1),
            ],
            &[
                "! credit 0/1 5 drain",
                "transfer 0/1 #0 1B",
                "flow 0 next=0 window=8 h1 count=5 credit=0 drain",
                "! error: the link has no credit",
            ],
        ),
        row(
            "drained without drain",
            vec![In(credit(0, 1, 5)), Drained, Send(1)],
            &["! credit 0/1 5", "transfer 0/1 #0 1B"],
        ),
        row(
            "echo",
            vec![
                In(flow_with(0, |flow| {
                    flow.handle = Some(1);
                    flow.link_credit = Some(5);
                    flow.echo = true;
                })),
                Report("out", 9),
            ],
            &[
                "! credit 0/1 5 echo",
                "flow 0 next=0 window=8 h1 count=0 credit=5 available=9",
            ],
        ),
        row(
            "echo without credit",
            vec![In(flow_with(0, |flow| {
                flow.handle = Some(1);
                flow.echo = true;
            }))],
            &["! credit 0/1 0 echo"],
        ),
        row(
            "settled in a range",
            vec![
                In(credit(0, 1, 3)),
                Send(1),
                Send(1),
                Send(1),
                In(disposition(0, Receiver, 0, Some(1), true, Some(ACCEPTED))),
                In(disposition(0, Receiver, 0, Some(9), true, Some(RELEASED))),
                In(disposition(0, Receiver, 0, Some(9), true, Some(RELEASED))),
            ],
            &[
                "! credit 0/1 3",
                "transfer 0/1 #0 1B",
                "transfer 0/1 #1 1B",
                "transfer 0/1 #2 1B",
                "! disposition settled accepted [100, 101]",
                "! disposition settled released [102]",
            ],
        ),
        row(
            "settled without a state",
            vec![
                In(credit(0, 1, 1)),
                Send(1),
                In(disposition(0, Receiver, 0, None, true, None)),
            ],
            &[
                "! credit 0/1 1",
                "transfer 0/1 #0 1B",
                "! disposition settled none [100]",
            ],
        ),
        row(
            "rejected with an error",
            vec![
                In(credit(0, 1, 1)),
                Send(1),
                In(disposition(0, Receiver, 0, None, true, Some(rejected()))),
            ],
            &[
                "! credit 0/1 1",
                "transfer 0/1 #0 1B",
                "! disposition settled rejected amqp:not-allowed [100]",
            ],
        ),
        row(
            "outcome that the sender settles",
            vec![
                In(credit(0, 1, 1)),
                Send(1),
                In(disposition(0, Receiver, 0, None, false, Some(ACCEPTED))),
                SettleSent(0, 0, ACCEPTED),
                SettleSent(0, 0, ACCEPTED),
                In(disposition(0, Receiver, 0, None, true, Some(ACCEPTED))),
            ],
            &[
                "! credit 0/1 1",
                "transfer 0/1 #0 1B",
                "! disposition accepted [100]",
                "disposition 0 Sender 0-0 settled accepted",
            ],
        ),
        row(
            "a state that is not terminal",
            vec![
                In(credit(0, 1, 1)),
                Send(1),
                In(disposition(0, Receiver, 0, None, false, None)),
                In(disposition(0, Receiver, 0, None, true, Some(ACCEPTED))),
            ],
            &[
                "! credit 0/1 1",
                "transfer 0/1 #0 1B",
                "! disposition settled accepted [100]",
            ],
        ),
        row(
            "more unsettled deliveries than allowed",
            vec![
                In(credit(0, 1, 10)),
                Send(1),
                Send(1),
                Send(1),
                Send(1),
                Send(1),
                Send(1),
                Send(1),
                In(disposition(0, Receiver, 2, None, true, Some(ACCEPTED))),
                Send(1),
            ],
            &[
                "! credit 0/1 10",
                "transfer 0/1 #0 1B",
                "transfer 0/1 #1 1B",
                "transfer 0/1 #2 1B",
                "transfer 0/1 #3 1B",
                "transfer 0/1 #4 1B",
                "transfer 0/1 #5 1B",
                "! error: the session has too many unsettled deliveries",
                "! disposition settled accepted [102]",
                "transfer 0/1 #6 1B",
            ],
        ),
        row(
            "a large message in frames of the peer's size",
            vec![In(credit(0, 1, 1)), Send(1000)],
            &[
                "! credit 0/1 1",
                "transfer 0/1 #0 482B more",
                "transfer 0/1 #0 491B more",
                "transfer 0/1 #0 27B",
            ],
        ),
        row(
            "window of two transfers",
            vec![
                In(flow_with(0, |flow| {
                    flow.incoming_window = 2;
                    flow.handle = Some(1);
                    flow.link_credit = Some(5);
                })),
                Send(1),
                Send(1),
                Send(1),
                In(flow_with(0, |flow| {
                    flow.next_incoming_id = Some(u32::MAX - 1);
                    flow.incoming_window = 1;
                })),
                Send(1),
                Send(1),
            ],
            &[
                "! credit 0/1 5",
                "transfer 0/1 #0 1B",
                "transfer 0/1 #1 1B",
                "! error: the session's outgoing window is closed",
                "! window 0",
                "transfer 0/1 #2 1B",
                "! error: the session's outgoing window is closed",
            ],
        ),
        row(
            "a large message across two windows, and a drain that waits for it",
            vec![
                In(flow_with(0, |flow| {
                    flow.incoming_window = 2;
                    flow.handle = Some(1);
                    flow.link_credit = Some(5);
                    flow.drain = true;
                })),
                Send(1000),
                Drained,
                Send(1),
                In(flow_with(0, |flow| {
                    flow.next_incoming_id = Some(u32::MAX - 1);
                    flow.incoming_window = 100;
                })),
            ],
            &[
                "! credit 0/1 5 drain",
                "transfer 0/1 #0 482B more",
                "transfer 0/1 #0 491B more",
                "! error: the session's outgoing window is closed",
                "transfer 0/1 #0 27B",
                "flow 0 next=0 window=8 h1 count=5 credit=0 drain",
                "! window 0",
            ],
        ),
        row(
            "a drain that waits for a large message, and credit after it",
            vec![
                In(flow_with(0, |flow| {
                    flow.incoming_window = 2;
                    flow.handle = Some(1);
                    flow.link_credit = Some(5);
                    flow.drain = true;
                })),
                Send(1000),
                Drained,
                In(flow_with(0, |flow| {
                    flow.next_incoming_id = Some(u32::MAX - 1);
                    flow.handle = Some(1);
                    flow.link_credit = Some(7);
                    flow.drain = true;
                })),
                Drained,
            ],
            &[
                "! credit 0/1 5 drain",
                "transfer 0/1 #0 482B more",
                "transfer 0/1 #0 491B more",
                "transfer 0/1 #0 27B",
                "! credit 0/1 6 drain",
                "flow 0 next=0 window=8 h1 count=7 credit=0 drain",
            ],
        ),
        row(
            "detach during a large message",
            vec![
                In(flow_with(0, |flow| {
                    flow.incoming_window = 1;
                    flow.handle = Some(1);
                    flow.link_credit = Some(5);
                })),
                Send(1000),
                In(detach(0, 1, true)),
                In(flow_with(0, |flow| {
                    flow.next_incoming_id = Some(u32::MAX - 2)
                })),
            ],
            &[
                "! credit 0/1 5",
                "transfer 0/1 #0 482B more",
                "detach 0/1 closed",
                "! detached 0/1 closed by peer",
            ],
        ),
        row(
            "a link whose receiver limits messages",
            vec![In(attach_with(0, 3, "out2", Receiver, |attach| {
                attach.max_message_size = Some(10)
            }))],
            &["! attach out2", "attach 0/3 Sender out2"],
        ),
        row(
            "detach forgets deliveries",
            vec![
                In(credit(0, 1, 1)),
                Send(1),
                In(detach(0, 1, false)),
                In(disposition(0, Receiver, 0, None, true, Some(ACCEPTED))),
            ],
            &[
                "! credit 0/1 1",
                "transfer 0/1 #0 1B",
                "detach 0/1",
                "! detached 0/1 by peer",
            ],
        ),
        row(
            "flow of a receiver that is ahead of us",
            vec![In(flow_with(0, |flow| {
                flow.handle = Some(1);
                flow.delivery_count = Some(1);
                flow.link_credit = Some(1);
            }))],
            &["! credit 0/1 2"],
        ),
    ];
    check(rows, || Harness::running(config()));
}

#[test]
fn attaching_and_detaching() {
    let rows = vec![
        row(
            "attach refused",
            vec![
                In(attach(0, 3, "refused", Sender)),
                In(transfer(0, 3, 0, 1)),
                In(detach(0, 3, true)),
                In(attach(0, 3, "x", Receiver)),
            ],
            &[
                "! attach refused",
                "attach 0/3 Receiver refused null",
                "detach 0/3 closed amqp:not-found",
                "! attach x",
                "attach 0/3 Sender x",
            ],
        ),
        row(
            "attach of a receiver refused",
            vec![
                In(attach(0, 3, "refused", Receiver)),
                In(credit(0, 3, 5)),
                In(detach(0, 3, true)),
            ],
            &[
                "! attach refused",
                "attach 0/3 Sender refused null",
                "detach 0/3 closed amqp:not-found",
            ],
        ),
        row(
            "attach answered later, with credit before",
            vec![
                In(attach(0, 3, "later", Receiver)),
                In(credit(0, 3, 5)),
                AcceptPending,
            ],
            &[
                "! attach later",
                "! early credit=5 drain=false",
                "attach 0/3 Sender later null",
            ],
        ),
        row(
            "transfer before the attach is answered",
            vec![
                In(attach(0, 3, "later", Sender)),
                In(transfer(0, 3, 0, 1)),
                AcceptPending,
            ],
            &[
                "! attach later",
                "attach 0/3 Receiver later null",
                "detach 0/3 closed amqp:link:transfer-limit-exceeded",
                "! detached 0/3 closed by fault amqp:link:transfer-limit-exceeded",
                "! error: the session or link has ended",
            ],
        ),
        row(
            "detach before the attach is answered",
            vec![
                In(attach(0, 3, "later", Sender)),
                In(detach(0, 3, true)),
                AcceptPending,
            ],
            &[
                "! attach later",
                "attach 0/3 Receiver later null",
                "detach 0/3 closed",
                "! detached 0/3 closed by peer",
                "! error: the session or link has ended",
            ],
        ),
        row(
            "end before the attach is answered",
            vec![In(attach(0, 3, "later", Sender)), In(end(0)), AcceptPending],
            &[
                "! attach later",
                "end 0",
                "! ended 0 by peer",
                "! error: the session or link has ended",
            ],
        ),
        row(
            "answer of an attach in a session that ended and began again",
            vec![
                In(attach(0, 3, "later", Sender)),
                In([end(0), begin(0), attach(0, 3, "new", Sender)].concat()),
                AcceptPending,
            ],
            &[
                "! attach later",
                "end 0",
                "! ended 0 by peer",
                "begin 0 remote=0",
                "! begun 0",
                "! attach new",
                "attach 0/0 Receiver new",
                "flow 0 next=0 window=8 h0 count=10 credit=4",
                "! error: the session or link has ended",
            ],
        ),
        row(
            "command for a link of a session that ended and began again",
            vec![
                In([end(0), begin(0), attach(0, 0, "new", Sender)].concat()),
                Detach("in"),
                In(transfer(0, 0, 0, 1)),
            ],
            &[
                "end 0",
                "! ended 0 by peer",
                "begin 0 remote=0",
                "! begun 0",
                "! attach new",
                "attach 0/0 Receiver new",
                "flow 0 next=0 window=8 h0 count=10 credit=4",
                "! error: the session or link has ended",
                "! message 0/0 #0 1B",
            ],
        ),
        row(
            "the same name again",
            vec![In(attach(0, 3, "in", Sender))],
            &[
                "detach 0/0 closed amqp:link:stolen",
                "! detached 0/0 closed by fault amqp:link:stolen",
                "! attach in",
                "attach 0/3 Receiver in",
                "flow 0 next=0 window=8 h3 count=10 credit=4",
            ],
        ),
        row(
            "the same name in the other direction",
            vec![In(attach(0, 3, "in", Receiver))],
            &["! attach in", "attach 0/3 Sender in"],
        ),
        row(
            "the same name in another session",
            vec![In(attach(1, 3, "in", Sender))],
            &[
                "! attach in",
                "attach 1/1 Receiver in",
                "flow 1 next=0 window=8 h1 count=10 credit=4",
            ],
        ),
        row(
            "link recovery",
            vec![In(attach_with(0, 3, "x", Sender, |attach| {
                attach.unsettled = Some(Reader::new(UNSETTLED).read().expect("a map"));
            }))],
            &[
                "attach 0/3 Receiver x null",
                "detach 0/3 closed amqp:not-implemented",
            ],
        ),
        row(
            "incomplete unsettled map",
            vec![In(attach_with(0, 3, "x", Sender, |attach| {
                attach.incomplete_unsettled = true
            }))],
            &[
                "attach 0/3 Receiver x null",
                "detach 0/3 closed amqp:not-implemented",
            ],
        ),
        row(
            "detach by the broker",
            vec![
                Detach("in"),
                Detach("in"),
                In(transfer(0, 0, 0, 1)),
                In(detach(0, 0, true)),
                In(detach(0, 0, true)),
            ],
            &[
                "detach 0/0 closed amqp:resource-deleted",
                "! error: the session or link has ended",
            ],
        ),
        row(
            "detaches that cross",
            vec![
                Detach("in"),
                In(detach(0, 0, true)),
                In(attach(0, 0, "again", Sender)),
            ],
            &[
                "detach 0/0 closed amqp:resource-deleted",
                "! attach again",
                "attach 0/0 Receiver again",
                "flow 0 next=0 window=8 h0 count=10 credit=4",
            ],
        ),
        row(
            "handle of a detaching link",
            vec![Detach("in"), In(attach(0, 0, "again", Sender))],
            &[
                "detach 0/0 closed amqp:resource-deleted",
                "end 0 amqp:session:handle-in-use",
                "! ended 0 by fault amqp:session:handle-in-use",
            ],
        ),
        row(
            "commands for a link that is gone",
            vec![
                In(detach(0, 1, true)),
                Send(1),
                Drained,
                Report("out", 0),
                Grant("in", 1, false),
                Grant("other", 1, false),
            ],
            &[
                "detach 0/1 closed",
                "! detached 0/1 closed by peer",
                "! error: the session or link has ended",
                "! error: the session or link has ended",
                "! error: the session or link has ended",
                "flow 0 next=0 window=8 h0 count=10 credit=1",
                "flow 0 next=0 window=8 h2 count=10 credit=1",
            ],
        ),
        row(
            "commands for the other role",
            vec![Grant("out", 1, false)],
            &["! error: the link cannot do this in its state"],
        ),
        row(
            "detach with closed false",
            vec![In(detach(0, 0, false)), In(attach(0, 0, "in", Sender))],
            &[
                "detach 0/0",
                "! detached 0/0 by peer",
                "! attach in",
                "attach 0/0 Receiver in",
                "flow 0 next=0 window=8 h0 count=10 credit=4",
            ],
        ),
        row(
            "name that no answer has room for",
            vec![In(attach_with(
                0,
                3,
                "n".repeat(450).leak(),
                Sender,
                |attach| {
                    attach.source = None;
                    attach.target = None;
                },
            ))],
            &[
                "end 0 amqp:frame-size-too-small",
                "! ended 0 by fault amqp:frame-size-too-small",
            ],
        ),
        row(
            "detach without handle",
            vec![In(raw(0, "00531645"))],
            &[
                "end 0 amqp:invalid-field",
                "! ended 0 by fault amqp:invalid-field",
            ],
        ),
    ];
    check(rows, || Harness::running(config()));
}

#[test]
fn heartbeats_are_sent_at_half_of_the_peers_timeout() {
    let mut harness = Harness::new(config());
    harness.run(In([
        authenticated(),
        open_with(|open| open.idle_time_out = Some(4000)),
    ]
    .concat()));
    harness.trace.clear();
    assert_eq!(harness.connection.deadline(), Some(2000));
    harness.run(Tick(1999));
    assert_eq!(harness.trace, [""; 0]);
    harness.run(Tick(1));
    assert_eq!(harness.trace, ["heartbeat"]);
    assert_eq!(harness.connection.deadline(), Some(4000));
    // Other output counts as well.
    harness.run(Tick(1000));
    harness.run(In(begin(0)));
    assert_eq!(harness.connection.deadline(), Some(5000));
}

#[test]
fn output_above_its_limit_stops_sending_until_it_is_flushed() {
    let mut harness = Harness::running(config());
    harness.keeps_output = true;
    harness.run(In(credit(0, 1, 5)));
    harness.run(Send(4000));
    let limit = config().output_limit;
    assert!(
        (limit..limit + 512).contains(&harness.out.len()),
        "{}",
        harness.out.len()
    );
    harness.run(Send(1));
    assert_eq!(
        harness.trace.last().map(String::as_str),
        Some("! error: the output is full")
    );
    harness.trace.clear();
    harness.run(Flush);
    assert!(
        (limit..limit + 512).contains(&harness.out.len()),
        "{}",
        harness.out.len()
    );
    harness.run(Flush);
    let sizes: usize = harness
        .trace
        .iter()
        .filter(|line| line.starts_with("transfer"))
        .count();
    assert!(sizes >= 4, "{:#?}", harness.trace);
    harness.run(Send(1));
    assert_eq!(
        harness.trace.last().map(String::as_str),
        Some("transfer 0/1 #1 1B")
    );
}

#[test]
fn unfinished_messages_are_counted_and_given_back() {
    let mut harness = Harness::running(config());
    harness.run(In(part(0, 0, Some(0), 300, true)));
    harness.run(In(part(1, 0, Some(0), 200, true)));
    assert_eq!(harness.connection.unfinished_size(), 500);
    harness.run(In(part(0, 0, None, 1, false)));
    assert_eq!(harness.connection.unfinished_size(), 200);
    harness.run(EndSession(1));
    assert_eq!(harness.connection.unfinished_size(), 0);
    harness.run(In(part(0, 2, Some(1), 300, true)));
    harness.run(Detach("other"));
    assert_eq!(harness.connection.unfinished_size(), 0);
}
