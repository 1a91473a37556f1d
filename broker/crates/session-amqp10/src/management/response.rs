//! Responses of the management node.

use crate::address::encode;
use crate::values::EncodedTable;
use bytes::Bytes;
use codec_amqp10::{
    Encode, Output, Properties, SectionKind, Value, encode_section_descriptor, list, map,
};
use message::Table;
use metadata::{BindingRecord, Destination, QueueRecord};
use operations::is_direct_reply_name;

/// A status and the encoded value of the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Response {
    pub status: u16,
    body: Vec<u8>,
}

impl Response {
    fn with_body(status: u16, body: &impl Encode) -> Response {
        let mut encoded = Vec::new();
        body.encode(&mut encoded);
        Response {
            status,
            body: encoded,
        }
    }

    /// A response without a body.
    pub(crate) fn empty(status: u16) -> Response {
        Response::with_body(status, &Value::Null)
    }

    /// An error with a text for people.
    pub(crate) fn error(status: u16, text: &str) -> Response {
        Response::with_body(status, &text)
    }

    /// The number of messages that were purged or deleted.
    pub(crate) fn message_count(messages: u64) -> Response {
        let mut body = Vec::new();
        let mut writer = map(&mut body);
        writer.push("message_count");
        writer.push(&messages);
        writer.finish();
        Response { status: 200, body }
    }

    /// A queue.
    pub(crate) fn queue(status: u16, queue: &QueueStatus<'_>) -> Response {
        Response::with_body(status, queue)
    }

    /// A list of bindings.
    pub(crate) fn bindings<'a>(bindings: impl Iterator<Item = &'a BindingRecord>) -> Response {
        let mut body = Vec::new();
        let mut writer = list(&mut body);
        for binding in bindings {
            writer.push(&EncodedBinding(binding));
        }
        writer.finish();
        Response { status: 200, body }
    }

    /// The message for the client. The correlation id is the message id of the request.
    pub(crate) fn to_message(&self, correlation_id: Option<Value<'_>>) -> Bytes {
        let mut message = Vec::new();
        let status = self.status.to_string();
        let properties = Properties {
            subject: Some(&status),
            correlation_id,
            ..Properties::default()
        };
        properties.encode(&mut message);
        encode_section_descriptor(&mut message, SectionKind::ApplicationProperties);
        let mut writer = map(&mut message);
        writer.push("http:response");
        writer.push("1.1");
        writer.finish();
        encode_section_descriptor(&mut message, SectionKind::Value);
        message.extend_from_slice(&self.body);
        message.into()
    }
}

/// A queue with the figures of its owner.
pub(crate) struct QueueStatus<'a> {
    pub record: &'a QueueRecord,
    pub messages: u64,
    pub consumers: u32,
    /// Names of its nodes, the preferred leader first.
    pub replicas: Vec<&'a str>,
    /// The name of its leader. None: it is not known here, and the answer names the preferred one.
    pub leader: Option<&'a str>,
}

impl Encode for QueueStatus<'_> {
    fn encode<O: Output>(&self, out: &mut O) {
        let record = self.record;
        let is_volatile = is_direct_reply_name(&record.name);
        let mut writer = map(out);
        if let Some(preferred) = self.replicas.first() {
            writer.push("leader");
            writer.push(self.leader.unwrap_or(preferred));
            writer.push("replicas");
            writer.push_with(|out| encode_strings(&self.replicas, out));
        }
        writer.push("message_count");
        writer.push(&self.messages);
        writer.push("consumer_count");
        writer.push(&self.consumers);
        writer.push("name");
        writer.push(&*record.name);
        writer.push("vhost");
        writer.push(&*record.vhost);
        writer.push("durable");
        writer.push(&record.durable);
        writer.push("auto_delete");
        writer.push(&(record.auto_delete || is_volatile));
        writer.push("exclusive");
        writer.push(&(record.exclusive.is_some() && !is_volatile));
        writer.push("type");
        writer.push(match is_volatile {
            true => VOLATILE_TYPE,
            false => record.kind.name(),
        });
        writer.push("arguments");
        writer.push(&EncodedTable(&record.arguments));
        writer.finish();
    }
}

/// RabbitMQ's name of the type of the queues of direct reply-to.
const VOLATILE_TYPE: &str = "rabbit_volatile_queue";

/// Format codes of an array of strings, whose elements have a size of four bytes.
const ARRAY32: u8 = 0xf0;
const STRING32: u8 = 0xb1;

fn encode_strings<O: Output>(strings: &[&str], out: &mut O) {
    let size: usize = strings.iter().map(|text| 4 + text.len()).sum();
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).to_be_bytes();
    out.put_byte(ARRAY32);
    out.put(&number(size + 5));
    out.put(&number(strings.len()));
    out.put_byte(STRING32);
    for text in strings {
        out.put(&number(text.len()));
        out.put(text.as_bytes());
    }
}

struct EncodedBinding<'a>(&'a BindingRecord);

impl Encode for EncodedBinding<'_> {
    fn encode<O: Output>(&self, out: &mut O) {
        let binding = self.0;
        let (kind, letter, destination) = match &binding.destination {
            Destination::Queue(name) => ("destination_queue", 'q', name),
            Destination::Exchange(name) => ("destination_exchange", 'e', name),
        };
        let location = format!(
            "/bindings/src={};dst{letter}={};key={};args={}",
            encode(&binding.source),
            encode(destination),
            encode(&binding.routing_key),
            arguments_hash(&binding.arguments)
        );
        let mut writer = map(out);
        writer.push("source");
        writer.push(&*binding.source);
        writer.push(kind);
        writer.push(&**destination);
        writer.push("binding_key");
        writer.push(&*binding.routing_key);
        writer.push("arguments");
        writer.push(&EncodedTable(&binding.arguments));
        writer.push("location");
        writer.push(&*location);
        writer.finish();
    }
}

/// Identifies the arguments of a binding in its location; empty for none. Every node computes the same: FNV-1a over
/// the encoded arguments.
pub(crate) fn arguments_hash(arguments: &Table) -> String {
    if arguments.is_empty() {
        return String::new();
    }
    let mut encoded = Vec::new();
    EncodedTable(arguments).encode(&mut encoded);
    let hash = encoded
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use codec_amqp10::{Sections, Uuid};
    use env::NodeId;
    use message::Value as Field;
    use metadata::{QueueId, QueueType};

    #[test]
    fn response_has_the_status_and_the_id_of_the_request() {
        let id = Value::Uuid(Uuid([3; 16]));
        let message = Response::error(404, "no queue").to_message(Some(id));
        let sections = Sections::parse(&message).unwrap();
        let properties = sections.read_properties(&message).unwrap();
        assert_eq!(
            (properties.subject, properties.correlation_id),
            (Some("404"), Some(id))
        );
        let body = sections.read_body(&message).next().unwrap();
        assert_eq!(body, Ok(Value::String("no queue")));
        let map = sections
            .read_map(sections.application_properties, &message)
            .unwrap();
        assert_eq!(map.get("http:response"), Some(Value::String("1.1")));
    }

    #[test]
    fn queue_response_names_leader_and_replicas() {
        let record = QueueRecord {
            id: QueueId(1),
            vhost: "/".into(),
            name: "q".into(),
            kind: QueueType::Quorum,
            durable: true,
            auto_delete: false,
            exclusive: None,
            arguments: Table(vec![("x-queue-type".into(), Field::from("quorum"))]),
            members: vec![NodeId(1), NodeId(2)],
            declared_by: "guest".into(),
        };
        let status = QueueStatus {
            record: &record,
            messages: 3,
            consumers: 2,
            replicas: vec!["n1", "n2"],
            leader: Some("n2"),
        };
        let message = Response::queue(200, &status).to_message(None);
        let sections = Sections::parse(&message).unwrap();
        let Some(Ok(Value::Map(body))) = sections.read_body(&message).next() else {
            panic!("the body is a map");
        };
        assert_eq!(body.get("message_count"), Some(Value::Ulong(3)));
        assert_eq!(body.get("consumer_count"), Some(Value::Uint(2)));
        assert_eq!(body.get("type"), Some(Value::String("quorum")));
        assert_eq!(body.get("leader"), Some(Value::String("n2")));
        let Some(Value::Array(replicas)) = body.get("replicas") else {
            panic!("replicas are an array");
        };
        let names: Vec<_> = replicas.iter().collect();
        assert_eq!(names, [Value::String("n1"), Value::String("n2")]);
    }

    #[test]
    fn location_distinguishes_bindings_by_their_arguments() {
        let one = Table(vec![("x-match".into(), Field::from("all"))]);
        let other = Table(vec![("x-match".into(), Field::from("any"))]);
        assert_eq!(arguments_hash(&Table::default()), "");
        assert_ne!(arguments_hash(&one), arguments_hash(&other));
        assert_eq!(arguments_hash(&one), arguments_hash(&one.clone()));
    }
}
