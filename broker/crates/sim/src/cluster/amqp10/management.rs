//! The declaration of a queue at the management node (HTTP over AMQP).

use super::Amqp10Queue;
use codec_amqp10::{
    Encode, Properties, SectionKind, Sections, Value, encode_section_descriptor, map,
};

/// The address of the management node, and the name of the pair of links to it.
pub(super) const MANAGEMENT: &str = "/management";
/// No message reaches it.
const DELIVERY_LIMIT: i64 = 1_000_000;

/// The message that declares a queue.
pub(super) fn declaration(queue: Amqp10Queue) -> Vec<u8> {
    let mut message = Vec::new();
    let path = format!("/queues/{}", queue.name());
    let properties = Properties {
        message_id: Some(Value::Ulong(1)),
        to: Some(&path),
        subject: Some("PUT"),
        reply_to: Some("$me"),
        ..Properties::default()
    };
    properties.encode(&mut message);
    encode_section_descriptor(&mut message, SectionKind::Value);
    let mut body = map(&mut message);
    body.push("durable");
    body.push(&true);
    body.push("arguments");
    body.push_with(|out| {
        let mut arguments = map(out);
        arguments.push("x-queue-type");
        if queue.is_quorum() {
            arguments.push("quorum");
            arguments.push("x-delivery-limit");
            arguments.push(&DELIVERY_LIMIT);
        } else {
            arguments.push("classic");
        }
        if queue == Amqp10Queue::SingleActive {
            arguments.push("x-single-active-consumer");
            arguments.push(&true);
        }
        arguments.finish();
    });
    body.finish();
    message
}

/// The status of a response to [`declaration`].
pub(super) fn read_status(message: &[u8]) -> Result<u16, String> {
    let sections = Sections::parse(message).map_err(|e| e.to_string())?;
    let properties = sections
        .read_properties(message)
        .map_err(|e| e.to_string())?;
    if properties.correlation_id != Some(Value::Ulong(1)) {
        let id = properties.correlation_id;
        return Err(format!(
            "the response has the correlation id {id:?}, not that of the request"
        ));
    }
    let status = properties.subject.and_then(|subject| subject.parse().ok());
    status.ok_or_else(|| format!("the response has the status {:?}", properties.subject))
}

/// The link properties of a pair of links to the management node: an encoded map.
pub(super) fn pair_properties() -> Vec<u8> {
    let mut encoded = Vec::new();
    let mut properties = map(&mut encoded);
    properties.push(&codec_amqp10::Symbol::from_static("paired"));
    properties.push(&true);
    properties.finish();
    encoded
}
