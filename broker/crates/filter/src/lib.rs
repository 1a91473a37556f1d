//! Filters that AMQP 1.0 receivers attach with, compiled once per link and evaluated per message.
//!
//! | Filter | Descriptor | Compiled by |
//! |---|---|---|
//! | SQL filter | `amqp:sql-filter` | [`Filter::compile_sql`] |
//! | JMS selector | `apache.org:selector-filter:string` | [`Filter::compile_selector`] |
//! | properties filter | `amqp:properties-filter` | [`Filter::compile_properties`] |
//! | application properties filter | `amqp:application-properties-filter` | [`Filter::compile_application_properties`] |
//!
//! [`Filter::compile`] chooses by descriptor. [`Filter::matches`] reads a message through [`Fields`], so messages of every protocol
//! are matched in their stored form: [`StoredMessage`]. All four kinds compile to the same tree, and one evaluator runs it.
//!
//! Receivers can have several filters: [`FilterSet`] encodes and decodes them for the queue that evaluates them.
//!
//! # Specifications
//!
//! SQL and property filters follow "AMQP Filter Expressions Version 1.0", committee specification draft 01 (sections 4 and 6), in the
//! subset and with the semantics of RabbitMQ 4.2. Selectors follow "Jakarta Messaging 3.1", section 3.8.1, and the mapping of message
//! headers in the draft "AMQP JMS Mapping Version 1.0".
//!
//! # Limits
//!
//! A filter has at most [`MAX_EXPRESSION_CHARACTERS`] and [`MAX_SQL_TOKENS`] or [`MAX_SELECTOR_TOKENS`]; a property filter has at most
//! [`MAX_FILTER_FIELDS`]. No expression and no message makes a function of this crate panic. The time of an evaluation is linear in
//! the size of the message's application properties plus, for each `LIKE`, the length of its subject.
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

mod error;
mod evaluate;
mod lexer;
mod like;
mod operand;
mod parser;
mod properties;
mod reference;
mod set;
mod stored;

pub use error::{CompileError, Language, Reason};
pub use evaluate::{ApplicationValues, Fields, Filter};
pub use operand::Operand;
pub use reference::{HeaderField, Property};
pub use set::FilterSet;
pub use stored::StoredMessage;

/// Most characters in an SQL filter or a selector: at most 16 KiB of UTF-8. The limit of RabbitMQ.
pub const MAX_EXPRESSION_CHARACTERS: usize = 4096;
/// Most tokens in an SQL filter. The limit of RabbitMQ; it also bounds the entries of `IN`.
pub const MAX_SQL_TOKENS: usize = 200;
/// Most tokens in a selector. JMS applications select by long lists of keys, hence more than in an SQL filter.
pub const MAX_SELECTOR_TOKENS: usize = 1000;
/// Deepest nesting of parentheses. Bounds the stack of the compiler and of the evaluator.
pub const MAX_NESTING: usize = 32;
/// Most fields in a property filter. The limit of RabbitMQ.
pub const MAX_FILTER_FIELDS: usize = 16;
/// Most bytes in the keys and values of a property filter.
pub const MAX_FILTER_BYTES: usize = 16_384;
/// Most characters between two `%` of a pattern with `_` among them. Bounds the time of a search by this factor.
pub const MAX_WILDCARD_CHARACTERS: usize = 64;

/// Descriptor code of `amqp:sql-filter`.
pub const SQL_FILTER: u64 = 0x120;
/// Descriptor code of `amqp:properties-filter`.
pub const PROPERTIES_FILTER: u64 = 0x173;
/// Descriptor code of `amqp:application-properties-filter`.
pub const APPLICATION_PROPERTIES_FILTER: u64 = 0x174;
/// Descriptor code of `apache.org:selector-filter:string`.
pub const SELECTOR_FILTER: u64 = 0x0000_468C_0000_0004;
