//! Property filters (AMQP Filter Expressions, section 4).

use codec_amqp10::{Map, Value};

use crate::error::excerpt;
use crate::evaluate::{Filter, Names, Node};
use crate::like::Pattern;
use crate::operand::{Comparison, Constant};
use crate::reference::Property;
use crate::{CompileError, Language, MAX_FILTER_BYTES, MAX_FILTER_FIELDS, Reason};

/// Compiles a map to a conjunction with one predicate per field.
pub(crate) fn compile(language: Language, fields: Map<'_>) -> Result<Filter, CompileError> {
    let mut names = Names::default();
    match conjunction(language, fields, &mut names) {
        Ok(root) => Ok(Filter::new(root, names)),
        Err(reason) => Err(CompileError {
            language,
            character: None,
            reason,
        }),
    }
}

fn conjunction(language: Language, fields: Map<'_>, names: &mut Names) -> Result<Node, Reason> {
    match fields.len() {
        0 => return Err(Reason::Empty),
        count if count > MAX_FILTER_FIELDS => return Err(Reason::TooManyFields(count)),
        _ => {}
    }
    let mut bytes = 0;
    let mut nodes = Vec::with_capacity(fields.len());
    for (key, value) in fields {
        bytes += variable_bytes(&key) + variable_bytes(&value);
        if bytes > MAX_FILTER_BYTES {
            return Err(Reason::TooLarge);
        }
        nodes.push(match language {
            Language::Properties => property(key, value)?,
            _ => application_property(key, value, names)?,
        });
    }
    Ok(Node::And(nodes.into()))
}

fn variable_bytes(value: &Value<'_>) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Symbol(symbol) => symbol.as_str().len(),
        Value::Binary(bytes) => bytes.len(),
        _ => 0,
    }
}

fn property(key: Value<'_>, value: Value<'_>) -> Result<Node, Reason> {
    let Value::Symbol(name) = key else {
        return Err(Reason::KeyType("symbol"));
    };
    let name = name.as_str();
    let property =
        Property::from_name(name).ok_or_else(|| Reason::UnknownProperty(excerpt(name)))?;
    let field = Node::Property(property);
    // Each field has the types of the standard. Text, of which a part can be compared, is a string.
    let expected = match (property, value) {
        (
            Property::To
            | Property::Subject
            | Property::ReplyTo
            | Property::GroupId
            | Property::ReplyToGroupId
            | Property::MessageId
            | Property::CorrelationId,
            Value::String(text),
        ) => return text_predicate(name, field, text),
        (
            Property::MessageId | Property::CorrelationId,
            Value::Ulong(_) | Value::Uuid(_) | Value::Binary(_),
        )
        | (Property::UserId, Value::Binary(_))
        | (Property::ContentType | Property::ContentEncoding, Value::Symbol(_))
        | (Property::AbsoluteExpiryTime | Property::CreationTime, Value::Timestamp(_))
        | (Property::GroupSequence, Value::Uint(_)) => return equals(name, field, value),
        (Property::MessageId | Property::CorrelationId, _) => "a ulong, uuid, binary or string",
        (Property::UserId, _) => "a binary",
        (Property::ContentType | Property::ContentEncoding, _) => "a symbol",
        (Property::AbsoluteExpiryTime | Property::CreationTime, _) => "a timestamp",
        (Property::GroupSequence, _) => "a uint",
        (
            Property::To
            | Property::Subject
            | Property::ReplyTo
            | Property::GroupId
            | Property::ReplyToGroupId,
            _,
        ) => "a string",
    };
    Err(Reason::FieldType {
        field: name.to_owned(),
        expected,
    })
}

fn application_property(
    key: Value<'_>,
    value: Value<'_>,
    names: &mut Names,
) -> Result<Node, Reason> {
    let Value::String(name) = key else {
        return Err(Reason::KeyType("string"));
    };
    let position = names.add(name);
    let field = Node::Application(position);
    match value {
        Value::String(text) => text_predicate(name, field, text),
        // Null matches any value of a property that the message has.
        Value::Null => Ok(Node::HasApplication(position)),
        value => equals(name, field, value),
    }
}

fn equals(name: &str, field: Node, value: Value<'_>) -> Result<Node, Reason> {
    let constant = Constant::from_operand(value.into()).ok_or_else(|| Reason::FieldType {
        field: excerpt(name),
        expected: "a simple type other than decimal",
    })?;
    let operands = Box::new((field, Node::Constant(constant)));
    Ok(Node::Compare(Comparison::Equal, operands))
}

/// A comparison with text: the whole, its prefix (`&p:`) or its suffix (`&s:`). `&&` stands for `&` (section 4.1.1).
fn text_predicate(name: &str, field: Node, text: &str) -> Result<Node, Reason> {
    let pattern = if let Some(suffix) = text.strip_prefix("&s:") {
        Pattern::suffix(suffix)
    } else if let Some(prefix) = text.strip_prefix("&p:") {
        Pattern::prefix(prefix)
    } else {
        let text = match text.strip_prefix('&') {
            Some(escaped) if escaped.starts_with('&') => escaped,
            Some(_) => return Err(Reason::Modifier(excerpt(name))),
            None => text,
        };
        return equals(name, field, Value::String(text));
    };
    Ok(Node::Like(Box::new(field), Box::new(pattern)))
}
