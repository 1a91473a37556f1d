use std::ops::ControlFlow;

use codec_amqp10::{Described, Descriptor, Value};
use smallvec::SmallVec;

use crate::like::Pattern;
use crate::operand::{Arithmetic, Comparison, Constant, Operand, negate};
use crate::reference::{HeaderField, Property};
use crate::{
    APPLICATION_PROPERTIES_FILTER, CompileError, Language, PROPERTIES_FILTER, Reason,
    SELECTOR_FILTER, SQL_FILTER, parser, properties,
};

/// The parts of a message that filters read. Values borrow from the message.
pub trait Fields {
    /// A field of the header. Null only if the message's protocol has no such field.
    fn header(&self, field: HeaderField) -> Operand<'_>;

    /// A field of the properties; null if the message has no such field.
    fn property(&self, property: Property) -> Operand<'_>;

    /// Offers each application property to `values` until that returns `Break`.
    fn application_properties<'m>(&'m self, values: &mut ApplicationValues<'m>);
}

/// The values of the application properties that a filter refers to.
#[derive(Debug)]
pub struct ApplicationValues<'m> {
    names: &'m Names,
    /// One for each name; None for properties that the message does not have.
    values: SmallVec<[Option<Operand<'m>>; INLINE_VALUES]>,
    missing: usize,
}

/// Application properties of which an evaluation keeps the values without allocating.
const INLINE_VALUES: usize = 8;

impl<'m> ApplicationValues<'m> {
    fn new(names: &'m Names) -> Self {
        let missing = names.names.len();
        Self {
            names,
            values: SmallVec::from_elem(None, missing),
            missing,
        }
    }

    /// Keeps the value of an application property if the filter refers to it. The first value of a name counts. Returns `Break` once
    /// the filter needs no further property.
    #[inline]
    pub fn offer(&mut self, name: &[u8], value: impl FnOnce() -> Operand<'m>) -> ControlFlow<()> {
        if let Some(position) = self.names.find(name)
            && let Some(known @ None) = self.values.get_mut(position)
        {
            *known = Some(value());
            self.missing -= 1;
        }
        if self.missing == 0 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

/// A compiled filter.
#[derive(Clone, Debug)]
pub struct Filter {
    root: Node,
    names: Names,
}

impl Filter {
    /// Compiles an SQL filter expression.
    pub fn compile_sql(expression: &str) -> Result<Self, CompileError> {
        parser::compile(Language::Sql, expression)
    }

    /// Compiles a JMS message selector.
    pub fn compile_selector(selector: &str) -> Result<Self, CompileError> {
        parser::compile(Language::Selector, selector)
    }

    /// Compiles a map from fields of the properties section to values.
    pub fn compile_properties(fields: codec_amqp10::Map<'_>) -> Result<Self, CompileError> {
        properties::compile(Language::Properties, fields)
    }

    /// Compiles a map from application properties to values.
    pub fn compile_application_properties(
        fields: codec_amqp10::Map<'_>,
    ) -> Result<Self, CompileError> {
        properties::compile(Language::ApplicationProperties, fields)
    }

    /// Compiles a filter of a source. None if its descriptor is of another kind.
    pub fn compile(filter: &Described<'_>) -> Option<Result<Self, CompileError>> {
        let language = match filter.descriptor {
            Descriptor::Code(SQL_FILTER) => Language::Sql,
            Descriptor::Code(SELECTOR_FILTER) => Language::Selector,
            Descriptor::Code(PROPERTIES_FILTER) => Language::Properties,
            Descriptor::Code(APPLICATION_PROPERTIES_FILTER) => Language::ApplicationProperties,
            Descriptor::Code(_) => return None,
            Descriptor::Symbol(name) => match name.as_str() {
                "amqp:sql-filter" => Language::Sql,
                "apache.org:selector-filter:string" => Language::Selector,
                "amqp:properties-filter" => Language::Properties,
                "amqp:application-properties-filter" => Language::ApplicationProperties,
                _ => return None,
            },
        };
        Some(match (language, filter.value()) {
            (Language::Sql | Language::Selector, Value::String(expression)) => {
                parser::compile(language, expression)
            }
            (Language::Properties | Language::ApplicationProperties, Value::Map(fields)) => {
                properties::compile(language, fields)
            }
            (Language::Sql | Language::Selector, _) => Err(CompileError {
                language,
                character: None,
                reason: Reason::ValueType("string"),
            }),
            _ => Err(CompileError {
                language,
                character: None,
                reason: Reason::ValueType("map"),
            }),
        })
    }

    pub(crate) fn new(root: Node, names: Names) -> Self {
        Self { root, names }
    }

    /// Returns true if the message passes the filter. A result that is false, unknown or not a boolean does not pass.
    ///
    /// `now_ms` is the result of `UTC()`: milliseconds since the Unix epoch.
    pub fn matches<F: Fields + ?Sized>(&self, message: &F, now_ms: u64) -> bool {
        let mut evaluation = Evaluation {
            names: &self.names,
            message,
            now_ms,
            values: None,
        };
        evaluation.truth(&self.root) == Some(true)
    }
}

/// A node of the compiled tree.
#[derive(Clone, Debug)]
pub(crate) enum Node {
    Constant(Constant),
    Header(HeaderField),
    /// `JMSDeliveryMode`: the header field `durable` as text.
    DeliveryMode,
    Property(Property),
    /// An application property by its position in [`Names`].
    Application(u16),
    /// The message has the application property, possibly with the value null.
    HasApplication(u16),
    /// `UTC()`.
    Time,
    Not(Box<Node>),
    And(Box<[Node]>),
    Or(Box<[Node]>),
    Compare(Comparison, Box<(Node, Node)>),
    /// `BETWEEN`, with the lower and the upper limit.
    Between(Box<(Node, Node, Node)>),
    In(Box<Node>, Box<[Node]>),
    IsNull(Box<Node>),
    Like(Box<Node>, Box<Pattern>),
    /// Operations from left to right.
    Calculate(Box<Node>, Box<[(Arithmetic, Node)]>),
    Negate(Box<Node>),
    /// Unary plus: null unless the operand is a number.
    Number(Box<Node>),
}

/// The names of the application properties that a filter refers to, each once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    names: Vec<Box<[u8]>>,
    /// Positions in `names`, sorted by the name's length and then its bytes.
    sorted: Vec<u16>,
}

impl Names {
    /// The position of the name, which is added if it is new.
    pub(crate) fn add(&mut self, name: &str) -> u16 {
        let name = name.as_bytes();
        match self.search(name) {
            Ok(at) => self.sorted[at],
            Err(at) => {
                // The number of tokens limits the names to far less.
                let position = u16::try_from(self.names.len()).unwrap_or(u16::MAX);
                self.names.push(name.into());
                self.sorted.insert(at, position);
                position
            }
        }
    }

    fn search(&self, name: &[u8]) -> Result<usize, usize> {
        self.sorted.binary_search_by(|position| {
            let known = &*self.names[usize::from(*position)];
            (known.len(), known).cmp(&(name.len(), name))
        })
    }

    #[inline]
    fn find(&self, name: &[u8]) -> Option<usize> {
        const FEW: usize = 4;
        if self.names.len() <= FEW {
            return self.names.iter().position(|known| **known == *name);
        }
        let at = self.search(name).ok()?;
        self.sorted.get(at).map(|position| usize::from(*position))
    }
}

/// The evaluation of a filter for one message.
struct Evaluation<'a, F: ?Sized> {
    names: &'a Names,
    message: &'a F,
    now_ms: u64,
    /// Read at the first use, in one pass over the message: its properties may be many, and those of the filter as well.
    values: Option<ApplicationValues<'a>>,
}

impl<'a, F: Fields + ?Sized> Evaluation<'a, F> {
    fn truth(&mut self, node: &'a Node) -> Option<bool> {
        match node {
            Node::Not(inner) => self.truth(inner).map(|truth| !truth),
            Node::And(nodes) => self.combine(nodes, false),
            Node::Or(nodes) => self.combine(nodes, true),
            Node::Compare(comparison, operands) => {
                let left = self.value(&operands.0);
                let right = self.value(&operands.1);
                comparison.apply(&left, &right)
            }
            Node::Between(operands) => {
                let value = self.value(&operands.0);
                let low = self.value(&operands.1);
                let high = self.value(&operands.2);
                let above = Comparison::GreaterOrEqual.apply(&value, &low);
                let below = Comparison::LessOrEqual.apply(&value, &high);
                match (above, below) {
                    (Some(false), _) | (_, Some(false)) => Some(false),
                    (Some(true), Some(true)) => Some(true),
                    _ => None,
                }
            }
            Node::In(value, entries) => match self.value(value) {
                Operand::Null => None,
                // Null entries are equal to no value.
                value => Some(entries.iter().any(|entry| self.value(entry).equals(&value))),
            },
            Node::IsNull(inner) => Some(matches!(self.value(inner), Operand::Null)),
            Node::Like(subject, pattern) => {
                let subject = self.value(subject);
                pattern.matches(subject.bytes()?)
            }
            Node::HasApplication(position) => Some(self.application(*position).is_some()),
            Node::Constant(_)
            | Node::Header(_)
            | Node::DeliveryMode
            | Node::Property(_)
            | Node::Application(_)
            | Node::Time
            | Node::Calculate(..)
            | Node::Negate(_)
            | Node::Number(_) => self.value(node).truth(),
        }
    }

    /// AND (`decisive` is false) or OR (`decisive` is true) of three-valued logic.
    fn combine(&mut self, nodes: &'a [Node], decisive: bool) -> Option<bool> {
        let mut result = Some(!decisive);
        for node in nodes {
            match self.truth(node) {
                Some(truth) if truth == decisive => return Some(decisive),
                Some(_) => {}
                None => result = None,
            }
        }
        result
    }

    fn value(&mut self, node: &'a Node) -> Operand<'a> {
        match node {
            Node::Constant(constant) => constant.operand(),
            Node::Header(field) => self.message.header(*field),
            Node::DeliveryMode => match self.message.header(HeaderField::Durable) {
                Operand::Boolean(true) => Operand::Bytes(b"PERSISTENT"),
                _ => Operand::Bytes(b"NON_PERSISTENT"),
            },
            Node::Property(property) => self.message.property(*property),
            Node::Application(position) => self.application(*position).unwrap_or(Operand::Null),
            Node::Time => Operand::Integer(self.now_ms.into()),
            Node::Calculate(first, rest) => {
                let first = self.value(first);
                rest.iter().fold(first, |left, (operation, right)| {
                    operation.apply(left, self.value(right))
                })
            }
            Node::Negate(inner) => negate(self.value(inner)),
            Node::Number(inner) => match self.value(inner) {
                number @ (Operand::Integer(_) | Operand::Float(_)) => number,
                _ => Operand::Null,
            },
            Node::Not(_)
            | Node::And(_)
            | Node::Or(_)
            | Node::Compare(..)
            | Node::Between(_)
            | Node::In(..)
            | Node::IsNull(_)
            | Node::Like(..)
            | Node::HasApplication(_) => self.truth(node).into(),
        }
    }

    /// The value of an application property; None if the message does not have it.
    #[inline]
    fn application(&mut self, position: u16) -> Option<Operand<'a>> {
        if self.values.is_none() {
            let values = self.values.insert(ApplicationValues::new(self.names));
            self.message.application_properties(values);
        }
        let values = &self.values.as_ref()?.values;
        values.get(usize::from(position)).copied().flatten()
    }
}
