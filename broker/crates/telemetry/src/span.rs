//! A finished span.

use crate::context::{SpanId, TraceId};

/// The role of a span (`SpanKind` of OpenTelemetry).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// Answers a request of another process.
    Server,
    /// Has no counterpart in another process.
    Internal,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum AttributeValue {
    /// Text.
    Text(Box<str>),
    /// An integer.
    Int(i64),
    /// Yes or no.
    Bool(bool),
}

/// A named value of a span.
#[derive(Clone, Debug, PartialEq)]
pub struct Attribute {
    /// The name, from the semantic conventions or with the prefix `posthorn.`.
    pub name: &'static str,
    /// The value.
    pub value: AttributeValue,
}

impl Attribute {
    /// An attribute with a text.
    pub fn text(name: &'static str, text: &str) -> Attribute {
        let value = AttributeValue::Text(text.into());
        Attribute { name, value }
    }

    /// An attribute with a number.
    pub fn int(name: &'static str, number: usize) -> Attribute {
        let value = AttributeValue::Int(i64::try_from(number).unwrap_or(i64::MAX));
        Attribute { name, value }
    }
}

/// An operation with its begin and end.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// The trace.
    pub trace: TraceId,
    /// The span itself.
    pub id: SpanId,
    /// The span that caused it. None: it is the first of its trace.
    pub parent: Option<SpanId>,
    /// `tracestate` of the context.
    pub state: Option<Box<str>>,
    /// Its role.
    pub kind: SpanKind,
    /// Its name: the operation and its target.
    pub name: Box<str>,
    /// Begin in nanoseconds since 1970.
    pub start_ns: u64,
    /// End in nanoseconds since 1970.
    pub end_ns: u64,
    /// Attributes.
    pub attributes: Vec<Attribute>,
    /// The operation failed for this reason.
    pub error: Option<&'static str>,
}

impl Span {
    /// Bytes of memory that the span takes.
    pub fn size(&self) -> usize {
        let text = |a: &Attribute| match &a.value {
            AttributeValue::Text(text) => text.len(),
            AttributeValue::Int(_) | AttributeValue::Bool(_) => 0,
        };
        size_of::<Span>()
            + self.name.len()
            + self.state.as_ref().map_or(0, |state| state.len())
            + self.attributes.capacity() * size_of::<Attribute>()
            + self.attributes.iter().map(text).sum::<usize>()
    }
}
