//! Keys of the stream protocol. Names and values are RabbitMQ's.

use super::Config;
use super::keys::{ConfigKey, LISTEN, filled, number};
use super::values::{Listen, parse_bytes};

/// Settings of the stream protocol.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamConfig {
    /// Listener without TLS.
    pub plain: Listen,
    /// Listener with TLS.
    pub tls: Listen,
    /// Largest frame in bytes; 0: no limit.
    pub frame_max: u32,
    /// Heartbeat interval that the server proposes, in seconds; 0 proposes none.
    pub heartbeat: u32,
}

impl Default for StreamConfig {
    fn default() -> StreamConfig {
        let limits = session_stream::Limits::default();
        StreamConfig {
            plain: Listen::None,
            tls: Listen::None,
            frame_max: limits.frame,
            heartbeat: limits.heartbeat,
        }
    }
}

/// A part of the address of a listener as clients reach it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdvertisedPart {
    /// None: the advertised host of the node.
    pub host: Option<String>,
    /// None: the port that the listener is bound to.
    pub port: Option<u16>,
}

/// Frame size in bytes: 0, or at least the smallest one that a client may ask for.
fn frame_max(text: &str) -> Option<u32> {
    let bytes = u32::try_from(parse_bytes(text)?).ok()?;
    let range = codec_stream::MIN_FRAME_MAX..=codec_stream::MAX_FRAME_MAX;
    (bytes == 0 || range.contains(&bytes)).then_some(bytes)
}

fn part<'c>(config: &'c mut Config, listener: &'static str) -> &'c mut AdvertisedPart {
    config.advertised_parts.entry(listener).or_default()
}

fn host(config: &mut Config, listener: &'static str, text: &str) -> Option<()> {
    filled(text).map(|name| part(config, listener).host = Some(name))
}

fn port(config: &mut Config, listener: &'static str, text: &str) -> Option<()> {
    number(text, 1, u16::MAX).map(|n| part(config, listener).port = Some(n))
}

const PORT: &str = "1 to 65535";
const HOST: &str = "a name of 1 to 255 bytes";

/// All keys, in the order of the reference.
pub(super) const STREAM_KEYS: &[ConfigKey] = &[
    ConfigKey {
        name: "stream.listeners.tcp",
        accepts: "none",
        default: "",
        doc: "`none` turns the stream listener without TLS off.",
        set: |c, _, v| (v == "none").then(|| c.stream.plain = Listen::None),
    },
    ConfigKey {
        name: "stream.listeners.tcp.default",
        accepts: LISTEN,
        default: "none",
        doc: "Listener of the stream protocol without TLS, by convention 5552, where a single node \
              without configured `listeners` has it on loopback.",
        set: |c, _, v| Listen::parse(v).map(|l| c.stream.plain = l),
    },
    ConfigKey {
        name: "stream.listeners.ssl.default",
        accepts: LISTEN,
        default: "none",
        doc: "Listener of the stream protocol with TLS, by convention 5551, which needs \
              `ssl_options.certfile` and `ssl_options.keyfile`.",
        set: |c, _, v| Listen::parse(v).map(|l| c.stream.tls = l),
    },
    ConfigKey {
        name: "stream.frame_max",
        accepts: "0, or 8192 to 536870912; bytes, or a number with kB, MB, GB, KiB, MiB or GiB",
        default: "1048576",
        doc: "Largest frame of stream clients; 0 stands for 512 MiB.",
        set: |c, _, v| frame_max(v).map(|n| c.stream.frame_max = n),
    },
    ConfigKey {
        name: "stream.heartbeat",
        accepts: "seconds, 0 to 65535",
        default: "60",
        doc: "Heartbeat interval that the server proposes to stream clients; 0 proposes none.",
        set: |c, _, v| number(v, 0, u16::MAX).map(|n| c.stream.heartbeat = n.into()),
    },
    ConfigKey {
        name: "stream.advertised_host",
        accepts: HOST,
        default: "",
        doc: "Host of the stream listener without TLS as clients reach it; \
              `cluster.advertised_host` by default.",
        set: |c, _, v| host(c, "stream", v),
    },
    ConfigKey {
        name: "stream.advertised_port",
        accepts: PORT,
        default: "",
        doc: "Port of the stream listener without TLS as clients reach it; the listener's by \
              default.",
        set: |c, _, v| port(c, "stream", v),
    },
    ConfigKey {
        name: "stream.advertised_tls_host",
        accepts: HOST,
        default: "",
        doc: "The same for the stream listener with TLS.",
        set: |c, _, v| host(c, "stream/ssl", v),
    },
    ConfigKey {
        name: "stream.advertised_tls_port",
        accepts: PORT,
        default: "",
        doc: "The same for the stream listener with TLS.",
        set: |c, _, v| port(c, "stream/ssl", v),
    },
];
