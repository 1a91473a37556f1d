use std::fmt;

use crate::{
    MAX_EXPRESSION_CHARACTERS, MAX_FILTER_BYTES, MAX_FILTER_FIELDS, MAX_NESTING,
    MAX_WILDCARD_CHARACTERS,
};

/// The kind of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// An SQL filter expression.
    Sql,
    /// A JMS message selector.
    Selector,
    /// A map of fields of the properties section.
    Properties,
    /// A map of application properties.
    ApplicationProperties,
}

impl fmt::Display for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sql => "SQL filter",
            Self::Selector => "JMS selector",
            Self::Properties => "properties filter",
            Self::ApplicationProperties => "application properties filter",
        })
    }
}

/// The rule that a filter breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// More than [`MAX_EXPRESSION_CHARACTERS`].
    #[error("the expression has {0} characters; the limit is {MAX_EXPRESSION_CHARACTERS}")]
    TooLong(usize),
    /// More than [`crate::MAX_SQL_TOKENS`] or [`crate::MAX_SELECTOR_TOKENS`].
    #[error("the expression has more than {0} tokens")]
    TooManyTokens(usize),
    /// Nesting above [`MAX_NESTING`].
    #[error("parentheses are nested deeper than {MAX_NESTING}")]
    TooDeep,
    /// A character that no token starts with.
    #[error("unexpected character '{0}'")]
    IllegalCharacter(String),
    /// A string or a delimited identifier without its end.
    #[error("{0} is not closed")]
    Unterminated(&'static str),
    /// A delimited identifier with a bracket that is not doubled.
    #[error("a bracket in an identifier is written twice")]
    SingleBracket,
    /// A token where the grammar has another.
    #[error("expected {expected}, found {found}")]
    Expected {
        /// The tokens that the grammar allows.
        expected: &'static str,
        /// The token in the expression.
        found: String,
    },
    /// A number that cannot be read or represented.
    #[error("{0}")]
    Number(&'static str),
    /// A binary constant that is not `0x` and pairs of upper-case hexadecimal digits.
    #[error("a binary constant is 0x and pairs of the digits 0-9 and A-F")]
    Binary,
    /// A keyword in lower case, or one that is used as an identifier.
    #[error(
        "'{0}' is a reserved word: write keywords in upper case, and a property of this name as [{0}]"
    )]
    Reserved(String),
    /// A construct of the language that is not implemented.
    #[error("{construct} is not supported; {remedy}")]
    Unsupported {
        /// The construct.
        construct: String,
        /// What to write instead.
        remedy: &'static str,
    },
    /// A section that filters cannot read.
    #[error(
        "section '{0}' is not supported; use header (h), properties (p) or application_properties (a), or write a property \
         whose name has a dot in brackets"
    )]
    UnknownSection(String),
    /// A field that the section does not have, or that filters cannot read.
    #[error("section {section} has no field '{field}' that filters support")]
    UnknownField {
        /// The section.
        section: &'static str,
        /// The name of the field.
        field: String,
    },
    /// `IS NULL` after an expression.
    #[error("IS NULL needs an identifier on its left")]
    NullTest,
    /// A pattern that ends in its escape character.
    #[error("the pattern ends with the escape character, which must precede a character")]
    EscapeAtEnd,
    /// An `ESCAPE` of another length than 1.
    #[error("ESCAPE needs a string of one character")]
    EscapeLength,
    /// A control character in a pattern or a delimited identifier.
    #[error("control character {:#04x} is not allowed in {place}", u32::from(*.character))]
    ControlCharacter {
        /// The character.
        character: char,
        /// A pattern or an identifier.
        place: &'static str,
    },
    /// A part of a pattern above [`MAX_WILDCARD_CHARACTERS`].
    #[error(
        "{0} characters between two % of a pattern, with _ among them; the limit is {MAX_WILDCARD_CHARACTERS}"
    )]
    WildcardLength(usize),
    /// A described value of another type than the filter has.
    #[error("the value must be a {0}")]
    ValueType(&'static str),
    /// A property filter without fields.
    #[error("the map is empty; name at least one field")]
    Empty,
    /// More than [`MAX_FILTER_FIELDS`].
    #[error("the map has {0} fields; the limit is {MAX_FILTER_FIELDS}")]
    TooManyFields(usize),
    /// More than [`MAX_FILTER_BYTES`].
    #[error("the keys and values have more than {MAX_FILTER_BYTES} bytes")]
    TooLarge,
    /// A key of the wrong type.
    #[error("every key must be a {0}")]
    KeyType(&'static str),
    /// A field that the properties section does not have.
    #[error("the properties section has no field '{0}'")]
    UnknownProperty(String),
    /// A value of another type than the field has.
    #[error("the value of field '{field}' must be {expected}")]
    FieldType {
        /// The field.
        field: String,
        /// The types that the field allows.
        expected: &'static str,
    },
    /// A string that begins with `&` and no known modifier.
    #[error(
        "the value of field '{0}' begins with an unknown modifier: use &s: for a suffix, &p: for a prefix, and && for a string \
         that begins with &"
    )]
    Modifier(String),
}

/// A filter that does not compile, and the place of the error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompileError {
    /// The kind of the filter.
    pub language: Language,
    /// The character at which the error is, from 1. None for errors that concern the whole filter.
    pub character: Option<usize>,
    /// The broken rule.
    pub reason: Reason,
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.language)?;
        if let Some(character) = self.character {
            write!(f, ", character {character}")?;
        }
        write!(f, ": {}", self.reason)
    }
}

impl std::error::Error for CompileError {}

/// The start of a text from a client, for an error message. Control characters are escaped.
pub(crate) fn excerpt(text: &str) -> String {
    const CHARACTERS: usize = 40;
    let mut out = String::new();
    for (count, character) in text.chars().enumerate() {
        if count == CHARACTERS {
            out.push_str("...");
            break;
        }
        if character.is_control() {
            out.extend(character.escape_default());
        } else {
            out.push(character);
        }
    }
    out
}
