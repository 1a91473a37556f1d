//! Requests to the management node: HTTP methods and paths in the properties of AMQP messages, as RabbitMQ's clients
//! send them.

use super::response::Response;
use crate::address::decode;
use crate::values::to_table;
use bytes::Bytes;
use codec_amqp10::{Map, Properties, SectionKind, Sections, Value};
use message::Table;
use metadata::{Destination, Name};

/// An operation on a queue, exchange or binding.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Request {
    GetQueue(Name),
    DeclareQueue(QueueBody),
    DeleteQueue(Name),
    PurgeQueue(Name),
    DeclareExchange(ExchangeBody),
    DeleteExchange(Name),
    Bind(BindingBody),
    /// Removes the binding with these arguments, given by their hash.
    Unbind {
        binding: BindingBody,
        arguments: String,
    },
    /// Lists the bindings between two objects with a key.
    GetBindings(BindingBody),
    /// Renews the token with which the connection was opened.
    RenewToken(Bytes),
}

/// The properties of a queue to declare.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct QueueBody {
    pub name: Name,
    pub durable: bool,
    pub exclusive: bool,
    pub auto_delete: bool,
    pub arguments: Table,
}

/// The properties of an exchange to declare.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ExchangeBody {
    pub name: Name,
    pub kind: Name,
    pub durable: bool,
    pub auto_delete: bool,
    pub internal: bool,
    pub arguments: Table,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BindingBody {
    pub source: Name,
    pub destination: Destination,
    pub key: Name,
    pub arguments: Table,
}

/// Reads the request in a message. The error is the response.
pub(crate) fn parse(message: &[u8]) -> Result<Request, Response> {
    let bad = |text: &str| Response::error(400, text);
    // RabbitMQ's Python client sends an empty body before the properties.
    let sections = Sections::parse_any_order(message).map_err(|error| bad(&error.to_string()))?;
    let properties = sections.read_properties(message);
    let Properties {
        to,
        subject,
        reply_to,
        ..
    } = properties.map_err(|error| bad(&error.to_string()))?;
    let target = to.ok_or_else(|| bad("property 'to' is missing; it must have the path"))?;
    let method =
        subject.ok_or_else(|| bad("property 'subject' is missing; it must have the method"))?;
    if reply_to != Some("$me") {
        return Err(bad("property 'reply-to' must be '$me'"));
    }
    let body = read_body(&sections, message)?;
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let segments: Vec<&str> = path.strip_prefix('/').unwrap_or(path).split('/').collect();
    match (method, &segments[..]) {
        ("GET", ["queues", name]) => Ok(Request::GetQueue(name_of(name)?)),
        ("PUT", ["queues", name]) => queue_body(name_of(name)?, body).map(Request::DeclareQueue),
        ("DELETE", ["queues", name]) => Ok(Request::DeleteQueue(name_of(name)?)),
        ("DELETE", ["queues", name, "messages"]) => Ok(Request::PurgeQueue(name_of(name)?)),
        ("PUT", ["exchanges", name]) => {
            exchange_body(name_of(name)?, body).map(Request::DeclareExchange)
        }
        ("DELETE", ["exchanges", name]) => Ok(Request::DeleteExchange(name_of(name)?)),
        ("POST", ["bindings"]) => binding_body(body).map(Request::Bind),
        ("DELETE", ["bindings", binding]) => binding_path(binding),
        ("GET", ["bindings"]) => binding_query(query).map(Request::GetBindings),
        ("PUT", ["auth", "tokens"]) => match body {
            Value::Binary(token) => Ok(Request::RenewToken(Bytes::copy_from_slice(token))),
            _ => Err(bad("the body must be the token, as binary value")),
        },
        _ => Err(Response::error(
            404,
            &format!("no operation {method} {path}"),
        )),
    }
}

fn name_of(encoded: &str) -> Result<Name, Response> {
    let name = decode(encoded)
        .map_err(|why| Response::error(400, &format!("bad name '{encoded}': {why}")))?;
    if name.contains(['\r', '\n']) {
        let text =
            format!("Bad name '{name}': line feed and carriage return characters not allowed");
        return Err(Response::error(400, &text));
    }
    Ok(name.into())
}

/// The value of the body; null if there is none.
fn read_body<'a>(sections: &Sections, message: &'a [u8]) -> Result<Value<'a>, Response> {
    if sections
        .body
        .is_some_and(|body| body.kind != SectionKind::Value)
    {
        return Err(Response::error(
            400,
            "the body must be an amqp-value section",
        ));
    }
    match sections.read_body(message).next() {
        None => Ok(Value::Null),
        Some(Ok(value)) => Ok(value),
        Some(Err(error)) => Err(Response::error(400, &error.to_string())),
    }
}

/// Calls `set` with each entry of a body. `set` returns false for unknown keys and for values of another type.
fn read_entries<'a>(
    object: &str,
    body: Value<'a>,
    mut set: impl FnMut(&'a str, Value<'a>) -> bool,
) -> Result<(), Response> {
    let Value::Map(entries) = body else {
        let text = format!("the body must be a map of the {object}'s properties");
        return Err(Response::error(400, &text));
    };
    for (key, value) in entries {
        let is_known = matches!(key, Value::String(key) if set(key, value));
        if !is_known {
            let text = format!("bad {object} property {key:?} with value {value:?}");
            return Err(Response::error(400, &text));
        }
    }
    Ok(())
}

fn set_flag(flag: &mut bool, value: Value<'_>) -> bool {
    match value {
        Value::Boolean(value) => *flag = value,
        _ => return false,
    }
    true
}

fn set_name(name: &mut Option<Name>, value: Value<'_>) -> bool {
    match value {
        Value::String(text) if text.len() <= 255 => *name = Some(text.into()),
        _ => return false,
    }
    true
}

fn set_arguments(arguments: &mut Table, value: Value<'_>) -> bool {
    let Value::Map(entries) = value else {
        return false;
    };
    let table = to_table(entries);
    // An argument that no table can have is an error.
    let is_complete = table.0.len() == entries.len();
    *arguments = table;
    is_complete
}

fn queue_body(name: Name, body: Value<'_>) -> Result<QueueBody, Response> {
    if name.is_empty() {
        return Err(Response::error(
            400,
            "declare queue with empty name not allowed",
        ));
    }
    let mut queue = QueueBody {
        name,
        durable: true,
        exclusive: false,
        auto_delete: false,
        arguments: Table::default(),
    };
    read_entries("queue", body, |key, value| match key {
        "durable" => set_flag(&mut queue.durable, value),
        "exclusive" => set_flag(&mut queue.exclusive, value),
        "auto_delete" => set_flag(&mut queue.auto_delete, value),
        "arguments" => set_arguments(&mut queue.arguments, value),
        _ => false,
    })?;
    Ok(queue)
}

fn exchange_body(name: Name, body: Value<'_>) -> Result<ExchangeBody, Response> {
    let mut kind = None;
    let mut exchange = ExchangeBody {
        name,
        kind: "direct".into(),
        durable: true,
        auto_delete: false,
        internal: false,
        arguments: Table::default(),
    };
    read_entries("exchange", body, |key, value| match key {
        "durable" => set_flag(&mut exchange.durable, value),
        "auto_delete" => set_flag(&mut exchange.auto_delete, value),
        "type" => set_name(&mut kind, value),
        "internal" => set_flag(&mut exchange.internal, value),
        "arguments" => set_arguments(&mut exchange.arguments, value),
        _ => false,
    })?;
    exchange.kind = kind.unwrap_or(exchange.kind);
    Ok(exchange)
}

fn binding_body(body: Value<'_>) -> Result<BindingBody, Response> {
    let (mut source, mut queue, mut exchange, mut key) = (None, None, None, None);
    let mut arguments = Table::default();
    read_entries("binding", body, |name, value| match name {
        "source" => set_name(&mut source, value),
        "destination_queue" => set_name(&mut queue, value),
        "destination_exchange" => set_name(&mut exchange, value),
        "binding_key" => set_name(&mut key, value),
        "arguments" => set_arguments(&mut arguments, value),
        _ => false,
    })?;
    let missing = |field: &str| Response::error(400, &format!("missing binding field '{field}'"));
    let destination = match (queue, exchange) {
        (Some(queue), None) => Destination::Queue(queue),
        (None, Some(exchange)) => Destination::Exchange(exchange),
        _ => return Err(missing("destination_queue' or 'destination_exchange")),
    };
    Ok(BindingBody {
        source: source.ok_or_else(|| missing("source"))?,
        destination,
        key: key.ok_or_else(|| missing("binding_key"))?,
        arguments,
    })
}

/// Reads the binding in a path such as `src=x;dstq=q;key=k;args=`.
fn binding_path(segment: &str) -> Result<Request, Response> {
    let bad = || Response::error(400, &format!("bad binding path segment '{segment}'"));
    let fields: Vec<(&str, &str)> = segment
        .split(';')
        .filter_map(|field| field.split_once('='))
        .collect();
    let [
        ("src", source),
        (to, destination),
        ("key", key),
        ("args", arguments),
    ] = fields[..]
    else {
        return Err(bad());
    };
    let destination = match to {
        "dstq" => Destination::Queue(name_of(destination)?),
        "dste" => Destination::Exchange(name_of(destination)?),
        _ => return Err(bad()),
    };
    Ok(Request::Unbind {
        binding: BindingBody {
            source: name_of(source)?,
            destination,
            key: name_of(key)?,
            arguments: Table::default(),
        },
        arguments: arguments.to_owned(),
    })
}

/// Reads a query such as `src=x&dstq=q&key=k`.
fn binding_query(query: &str) -> Result<BindingBody, Response> {
    let field = |wanted: &str| -> Result<Option<Name>, Response> {
        let mut fields = query.split('&').filter_map(|field| field.split_once('='));
        let found = fields.find(|(name, _)| *name == wanted);
        // In a query a plus sign is a space.
        found
            .map(|(_, value)| name_of(&value.replace('+', "%20")))
            .transpose()
    };
    let missing = |what: &str| Response::error(400, &format!("missing {what} in query: {query}"));
    let destination = match (field("dstq")?, field("dste")?) {
        (_, Some(exchange)) => Destination::Exchange(exchange),
        (Some(queue), None) => Destination::Queue(queue),
        (None, None) => return Err(missing("'dste' or 'dstq'")),
    };
    Ok(BindingBody {
        source: field("src")?.ok_or_else(|| missing("'src'"))?,
        destination,
        key: field("key")?.ok_or_else(|| missing("'key'"))?,
        arguments: Table::default(),
    })
}

/// The message id of a request, which the response has as its correlation id.
pub(crate) fn message_id(message: &[u8]) -> Option<Value<'_>> {
    let sections = Sections::parse_any_order(message).ok()?;
    sections.read_properties(message).ok()?.message_id
}

/// True if the link properties mark the link as half of a pair for requests and responses.
pub(crate) fn is_paired(properties: Option<Map<'_>>) -> bool {
    properties.and_then(|map| map.get("paired")) == Some(Value::Boolean(true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use codec_amqp10::{Encode, Reader, encode_section_descriptor, map};
    use message::Value as Field;
    use proptest::prelude::*;

    /// A request whose body is encoded by `body`.
    pub(crate) fn request(method: &str, target: &str, body: &[u8]) -> Vec<u8> {
        let mut message = Vec::new();
        let properties = Properties {
            message_id: Some(Value::Ulong(7)),
            to: Some(target),
            subject: Some(method),
            reply_to: Some("$me"),
            ..Properties::default()
        };
        properties.encode(&mut message);
        encode_section_descriptor(&mut message, SectionKind::Value);
        message.extend_from_slice(body);
        message
    }

    fn null() -> Vec<u8> {
        let mut body = Vec::new();
        Value::Null.encode(&mut body);
        body
    }

    /// A map with strings as keys.
    fn body(entries: &[(&str, Value<'_>)]) -> Vec<u8> {
        let mut encoded = Vec::new();
        let mut writer = map(&mut encoded);
        for (key, value) in entries {
            writer.push(*key);
            writer.push(value);
        }
        writer.finish();
        encoded
    }

    #[test]
    fn sections_of_a_request_come_in_any_order_but_once() {
        let mut body = Vec::new();
        encode_section_descriptor(&mut body, SectionKind::Value);
        Value::Null.encode(&mut body);
        let mut properties = Vec::new();
        Properties {
            message_id: Some(Value::Ulong(7)),
            to: Some("/queues/q"),
            subject: Some("GET"),
            reply_to: Some("$me"),
            ..Properties::default()
        }
        .encode(&mut properties);
        let message = [&body[..], &properties].concat();
        assert_eq!(parse(&message), Ok(Request::GetQueue("q".into())));
        assert_eq!(message_id(&message), Some(Value::Ulong(7)));
        for repeated in [
            [&body[..], &properties, &body].concat(),
            [&properties[..], &body, &properties].concat(),
        ] {
            assert_eq!(parse(&repeated).unwrap_err().status, 400);
        }
    }

    #[test]
    fn requests_without_a_body_are_parsed() {
        let binding = |destination: Destination| BindingBody {
            source: "a b".into(),
            destination,
            key: "k/é".into(),
            arguments: Table::default(),
        };
        let to_queue = binding(Destination::Queue("q".into()));
        let to_exchange = binding(Destination::Exchange("x".into()));
        for (method, target, expected) in [
            ("GET", "/queues/a%2Fb", Request::GetQueue("a/b".into())),
            ("DELETE", "/queues/q", Request::DeleteQueue("q".into())),
            (
                "DELETE",
                "/queues/q/messages",
                Request::PurgeQueue("q".into()),
            ),
            (
                "DELETE",
                "/exchanges/x",
                Request::DeleteExchange("x".into()),
            ),
            (
                "GET",
                "/bindings?src=a+b&dstq=q&key=k%2F%C3%A9",
                Request::GetBindings(to_queue.clone()),
            ),
            (
                "GET",
                "/bindings?key=k%2F%C3%A9&dste=x&src=a%20b",
                Request::GetBindings(to_exchange.clone()),
            ),
            (
                "DELETE",
                "/bindings/src=a%20b;dstq=q;key=k%2F%C3%A9;args=",
                Request::Unbind {
                    binding: to_queue,
                    arguments: String::new(),
                },
            ),
            (
                "DELETE",
                "/bindings/src=a%20b;dste=x;key=k%2F%C3%A9;args=0a",
                Request::Unbind {
                    binding: to_exchange,
                    arguments: "0a".into(),
                },
            ),
        ] {
            assert_eq!(
                parse(&request(method, target, &null())),
                Ok(expected),
                "{method} {target}"
            );
        }
    }

    #[test]
    fn declarations_have_rabbitmqs_defaults() {
        let queue = parse(&request("PUT", "/queues/q", &body(&[]))).unwrap();
        let expected = QueueBody {
            name: "q".into(),
            durable: true,
            exclusive: false,
            auto_delete: false,
            arguments: Table::default(),
        };
        assert_eq!(queue, Request::DeclareQueue(expected));
        let arguments = body(&[("x-queue-type", Value::String("quorum"))]);
        let arguments: Value<'_> = Reader::new(&arguments).read().unwrap();
        let entries = [
            ("durable", Value::Boolean(false)),
            ("type", Value::String("topic")),
            ("arguments", arguments),
        ];
        let exchange = parse(&request("PUT", "/exchanges/x", &body(&entries))).unwrap();
        let expected = ExchangeBody {
            name: "x".into(),
            kind: "topic".into(),
            durable: false,
            auto_delete: false,
            internal: false,
            arguments: Table(vec![("x-queue-type".into(), Field::from("quorum"))]),
        };
        assert_eq!(exchange, Request::DeclareExchange(expected));
    }

    #[test]
    fn wrong_requests_get_an_error_response() {
        let flag = body(&[("durable", Value::String("yes"))]);
        let unknown = body(&[("color", Value::Boolean(true))]);
        let partial = body(&[("source", Value::String("x"))]);
        for (method, target, body, status) in [
            ("GET", "/nodes", &null(), 404),
            ("PATCH", "/queues/q", &null(), 404),
            ("GET", "/queues/%zz", &null(), 400),
            ("DELETE", "/queues/a%0Ab", &null(), 400),
            ("PUT", "/queues/", &body(&[]), 400),
            ("PUT", "/queues/q", &null(), 400),
            ("PUT", "/queues/q", &flag, 400),
            ("PUT", "/exchanges/x", &unknown, 400),
            ("POST", "/bindings", &partial, 400),
            ("GET", "/bindings?src=x&key=k", &null(), 400),
            ("DELETE", "/bindings/src=x", &null(), 400),
            ("DELETE", "/bindings/src=x;dst=q;key=k;args=", &null(), 400),
            ("PUT", "/auth/tokens", &null(), 400),
        ] {
            let response = parse(&request(method, target, body)).unwrap_err();
            assert_eq!(response.status, status, "{method} {target}");
        }
        assert_eq!(parse(b"").unwrap_err().status, 400);
    }

    proptest! {
        #[test]
        fn arbitrary_requests_do_not_panic(message: Vec<u8>, target: String) {
            let _ = (parse(&message), message_id(&message));
            let _ = parse(&request("DELETE", &target, &null()));
            let _ = parse(&request("GET", &target, &null()));
        }
    }
}
