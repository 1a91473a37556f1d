//! W3C Trace Context, level 1: the headers `traceparent` and `tracestate`.
//!
//! The functions are pure and take text of clients: they accept or refuse, and never panic.

use std::fmt;

/// Identifies a trace. Never all zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceId([u8; 16]);

/// Identifies a span within its trace. Never all zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpanId([u8; 8]);

impl TraceId {
    /// The id of these random bits.
    pub fn from_random(bits: [u64; 2]) -> TraceId {
        let bits = u128::from(bits[0]) << 64 | u128::from(bits[1]);
        TraceId(bits.max(1).to_be_bytes())
    }

    /// The bytes, in the order of the header.
    pub fn bytes(self) -> [u8; 16] {
        self.0
    }
}

impl SpanId {
    /// The id of these random bits.
    pub fn from_random(bits: u64) -> SpanId {
        SpanId(bits.max(1).to_be_bytes())
    }

    /// The bytes, in the order of the header.
    pub fn bytes(self) -> [u8; 8] {
        self.0
    }
}

/// The context that a client sends with a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace.
    pub trace: TraceId,
    /// The span of the sender, which is the parent of the spans that follow.
    pub parent: SpanId,
    /// The sender records its span.
    pub is_sampled: bool,
    /// `tracestate`, if there is a valid one.
    pub state: Option<Box<str>>,
}

/// Bytes of a `traceparent` of version 00.
const PARENT_LEN: usize = 55;
/// Bit of the flags: the sender records its span.
const SAMPLED: u8 = 1;
/// Most bytes of a `tracestate` that are kept; longer ones are left out. The specification asks for at least 512.
pub(crate) const MAX_STATE: usize = 512;
/// Most entries of a `tracestate` (section 3.3.1.1).
const MAX_MEMBERS: usize = 32;

impl TraceContext {
    /// Parses `traceparent`, and `tracestate` if there is one. None: `traceparent` is invalid (section 3.2.2), and the
    /// message has no context. An invalid `tracestate` is left out (section 3.3.1).
    pub fn parse(parent: &str, state: Option<&str>) -> Option<TraceContext> {
        let (trace, parent, flags) = parse_parent(parent.as_bytes())?;
        Some(TraceContext {
            trace,
            parent,
            is_sampled: flags & SAMPLED != 0,
            state: state.filter(|state| is_state(state)).map(Box::from),
        })
    }
}

/// `traceparent` of version 00.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("00-")?;
        for byte in self.trace.0 {
            write!(f, "{byte:02x}")?;
        }
        f.write_str("-")?;
        for byte in self.parent.0 {
            write!(f, "{byte:02x}")?;
        }
        write!(f, "-{:02x}", u8::from(self.is_sampled))
    }
}

fn parse_parent(text: &[u8]) -> Option<(TraceId, SpanId, u8)> {
    let (head, rest) = text.split_at_checked(PARENT_LEN)?;
    let [version] = hex(head.get(..2)?)?;
    match version {
        0 if !rest.is_empty() => return None,
        // Section 3.2.2.1: version 255 is invalid.
        255 => return None,
        // Later versions may append fields.
        _ if !rest.is_empty() && rest[0] != b'-' => return None,
        _ => {}
    }
    let has_dashes = [2, 35, 52].iter().all(|&at| head.get(at) == Some(&b'-'));
    let trace: [u8; 16] = hex(head.get(3..35)?)?;
    let parent: [u8; 8] = hex(head.get(36..52)?)?;
    let [flags] = hex(head.get(53..55)?)?;
    let is_valid = has_dashes && trace != [0; 16] && parent != [0; 8];
    is_valid.then_some((TraceId(trace), SpanId(parent), flags))
}

/// Lower-case hexadecimal digits; the specification has no others.
fn hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut out = [0; N];
    if text.len() != 2 * N {
        return None;
    }
    for (byte, pair) in out.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(out)
}

/// Returns true for a list of `key=value` entries within the limits (section 3.3.1).
fn is_state(text: &str) -> bool {
    if text.is_empty() || text.len() > MAX_STATE {
        return false;
    }
    let mut keys: Vec<&str> = Vec::new();
    for member in text.split(',').map(|m| m.trim_matches([' ', '\t'])) {
        if member.is_empty() {
            continue;
        }
        let Some((key, value)) = member.split_once('=') else {
            return false;
        };
        if !is_key(key) || !is_value(value) || keys.contains(&key) || keys.len() == MAX_MEMBERS {
            return false;
        }
        keys.push(key);
    }
    !keys.is_empty()
}

/// `name`, or `tenant@system`.
fn is_key(key: &str) -> bool {
    let is_name = |part: &str, max: usize, may_begin_with_digit: bool| {
        let is_first = |b: u8| b.is_ascii_lowercase() || may_begin_with_digit && b.is_ascii_digit();
        let known = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-*/".contains(&b);
        part.len() <= max && part.bytes().next().is_some_and(is_first) && part.bytes().all(known)
    };
    match key.split_once('@') {
        None => is_name(key, 256, false),
        Some((tenant, system)) => is_name(tenant, 241, true) && is_name(system, 14, false),
    }
}

/// Printable ASCII without commas and equal signs. Spaces at the end are trimmed before.
fn is_value(value: &str) -> bool {
    let known = |b: u8| (0x20..=0x7e).contains(&b) && b != b',' && b != b'=';
    !value.is_empty() && value.len() <= 256 && value.bytes().all(known)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const VALID: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn example_of_the_specification_is_read_and_written() {
        let context = TraceContext::parse(VALID, Some("congo=t61rcWkgMzE")).expect("valid");
        assert!(context.is_sampled);
        assert_eq!(context.parent.bytes()[7], 0xb7);
        assert_eq!(context.trace.bytes()[0], 0x4b);
        assert_eq!(context.state.as_deref(), Some("congo=t61rcWkgMzE"));
        assert_eq!(context.to_string(), VALID);
        let unsampled = TraceContext::parse(&VALID.replace("-01", "-00"), None).expect("valid");
        assert!(!unsampled.is_sampled);
    }

    #[test]
    fn invalid_parents_are_no_context() {
        let zero_trace = VALID.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32));
        let zero_span = VALID.replace("00f067aa0ba902b7", &"0".repeat(16));
        for text in [
            "",
            "00",
            &VALID[..54],
            &VALID.to_uppercase(),
            &VALID.replacen("00-", "ff-", 1),
            &VALID.replacen("-", "_", 1),
            &format!("{VALID}-00"),
            &format!("{VALID} "),
            &format!(" {VALID}"),
            &VALID.replacen("00-", "01-", 1).replace("-01", "-01x"),
            &zero_trace,
            &zero_span,
            &VALID.replace("4bf9", "4bé"),
            &VALID.replace("4bf92f", "+bf92f"),
        ] {
            assert_eq!(TraceContext::parse(text, None), None, "{text:?}");
        }
    }

    #[test]
    fn later_versions_may_have_more_fields() {
        let later = VALID.replacen("00-", "cc-", 1);
        for text in [later.clone(), format!("{later}-what-follows")] {
            let context = TraceContext::parse(&text, None).expect("valid");
            assert_eq!(context.to_string(), VALID);
        }
    }

    #[test]
    fn invalid_state_is_left_out_and_the_parent_stays() {
        let many: Vec<String> = (0..33).map(|n| format!("k{n}=v")).collect();
        let long = format!("k={}", "v".repeat(257));
        for state in [
            "",
            ",",
            "a",
            "a=",
            "=b",
            "A=b",
            "a=b,a=c",
            "a=b=c",
            "a b=c",
            "a=é",
            "1a=b",
            "a@1=b",
            &many.join(","),
            &long,
            &"k=v,".repeat(200),
        ] {
            let context = TraceContext::parse(VALID, Some(state)).expect("valid");
            assert_eq!(context.state, None, "{state:?}");
        }
        for state in [
            "a=b",
            "a=b , c=d,",
            "1t@sys=b",
            "k=~ !x",
            &many[..32].join(","),
        ] {
            let context = TraceContext::parse(VALID, Some(state)).expect("valid");
            assert_eq!(context.state.as_deref(), Some(state));
        }
    }

    #[test]
    fn random_ids_are_never_zero() {
        assert_ne!(TraceId::from_random([0, 0]).bytes(), [0; 16]);
        assert_ne!(SpanId::from_random(0).bytes(), [0; 8]);
    }

    proptest! {
        #[test]
        fn any_text_is_accepted_or_refused(parent in ".{0,80}", state in ".{0,600}") {
            if let Some(context) = TraceContext::parse(&parent, Some(&state)) {
                prop_assert!(parent.is_ascii());
                prop_assert!(context.state.is_none_or(|s| s.len() <= MAX_STATE));
            }
        }

        #[test]
        fn changed_examples_are_refused_or_equal_in_all_fields(at in 0usize..55, byte in any::<u8>()) {
            let mut bytes = VALID.as_bytes().to_vec();
            bytes[at] = byte;
            let text = String::from_utf8_lossy(&bytes).into_owned();
            if let Some(context) = TraceContext::parse(&text, None) {
                prop_assert_eq!(&context.to_string()[3..52], &text[3..52]);
            }
        }

        #[test]
        fn formatted_contexts_are_read_back(trace in any::<[u64; 2]>(), span in any::<u64>(), is_sampled in any::<bool>()) {
            let context = TraceContext {
                trace: TraceId::from_random(trace),
                parent: SpanId::from_random(span),
                is_sampled,
                state: None,
            };
            prop_assert_eq!(TraceContext::parse(&context.to_string(), None), Some(context));
        }
    }
}
