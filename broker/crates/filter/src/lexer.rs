use std::borrow::Cow;
use std::fmt;

use crate::error::excerpt;
use crate::reference::Reference;
use crate::{
    CompileError, Language, MAX_EXPRESSION_CHARACTERS, MAX_SELECTOR_TOKENS, MAX_SQL_TOKENS, Reason,
};

macro_rules! words {
    ($name:ident: $( $variant:ident = $text:literal, )*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum $name {
            $( $variant, )*
        }

        impl $name {
            const ALL: &'static [Self] = &[$( Self::$variant, )*];

            pub(crate) fn text(self) -> &'static str {
                match self {
                    $( Self::$variant => $text, )*
                }
            }
        }
    };
}

words! { Keyword:
    And = "AND",
    Or = "OR",
    Not = "NOT",
    Like = "LIKE",
    In = "IN",
    Is = "IS",
    Null = "NULL",
    Escape = "ESCAPE",
    True = "TRUE",
    False = "FALSE",
    Between = "BETWEEN",
    Utc = "UTC",
}

/// Words that SQL reserves for constructs that are not implemented.
const RESERVED: &[&str] = &[
    "EXISTS",
    "LOWER",
    "UPPER",
    "LEFT",
    "RIGHT",
    "SUBSTRING",
    "DATE",
    "NAN",
    "INF",
];

impl Keyword {
    /// Returns true if the language has the keyword. SQL has no `BETWEEN`, and selectors have no functions.
    fn is_of(self, language: Language) -> bool {
        match self {
            Self::Between => language == Language::Selector,
            Self::Utc => language == Language::Sql,
            _ => true,
        }
    }
}

words! { Sign:
    // Signs of two characters precede those that they begin with.
    NotEqual = "<>",
    AlsoNotEqual = "!=",
    LessOrEqual = "<=",
    GreaterOrEqual = ">=",
    Equal = "=",
    Less = "<",
    Greater = ">",
    Plus = "+",
    Minus = "-",
    Times = "*",
    Divide = "/",
    Remainder = "%",
    Open = "(",
    Close = ")",
    Comma = ",",
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TokenKind<'s> {
    Keyword(Keyword),
    Sign(Sign),
    Integer(i128),
    Float(f64),
    String(Cow<'s, str>),
    Binary(Vec<u8>),
    Identifier(Reference),
}

#[derive(Clone, Debug)]
pub(crate) struct Token<'s> {
    pub(crate) kind: TokenKind<'s>,
    /// The token as it is written.
    pub(crate) text: &'s str,
    /// The byte at which it starts.
    pub(crate) at: usize,
}

impl fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&excerpt(self.text))
    }
}

/// An error at a byte of the expression.
pub(crate) struct ErrorAt {
    pub(crate) at: usize,
    pub(crate) reason: Reason,
}

impl ErrorAt {
    pub(crate) fn locate(self, language: Language, text: &str) -> CompileError {
        let before = text.get(..self.at).unwrap_or(text);
        CompileError {
            language,
            character: Some(before.chars().count() + 1),
            reason: self.reason,
        }
    }
}

/// Splits an expression into its tokens.
pub(crate) fn tokenize(language: Language, text: &str) -> Result<Vec<Token<'_>>, CompileError> {
    let characters = text.chars().count();
    if characters > MAX_EXPRESSION_CHARACTERS {
        return Err(CompileError {
            language,
            character: None,
            reason: Reason::TooLong(characters),
        });
    }
    let limit = match language {
        Language::Sql => MAX_SQL_TOKENS,
        _ => MAX_SELECTOR_TOKENS,
    };
    let mut lexer = Lexer {
        language,
        rest: text,
    };
    let mut tokens = Vec::new();
    loop {
        // Java's white space: space, tab, form feed and line terminators.
        lexer.rest = lexer
            .rest
            .trim_start_matches([' ', '\t', '\u{c}', '\n', '\r']);
        let start = lexer.rest;
        let at = text.len() - start.len();
        if start.is_empty() {
            return Ok(tokens);
        }
        if tokens.len() == limit {
            return Err(CompileError {
                language,
                character: None,
                reason: Reason::TooManyTokens(limit),
            });
        }
        let kind = lexer
            .token()
            .map_err(|reason| ErrorAt { at, reason }.locate(language, text))?;
        let text = &start[..start.len() - lexer.rest.len()];
        tokens.push(Token { kind, text, at });
    }
}

struct Lexer<'s> {
    language: Language,
    rest: &'s str,
}

impl<'s> Lexer<'s> {
    /// Reads the token at the start of the rest, which is not empty.
    fn token(&mut self) -> Result<TokenKind<'s>, Reason> {
        let first = self.rest.chars().next().unwrap_or_default();
        let is_sql = self.language == Language::Sql;
        match first {
            '\'' => self.string('\''),
            '"' if is_sql => self.string('"'),
            '[' if is_sql => self.delimited(),
            '0'..='9' => self.number(),
            '.' if !is_sql && self.rest[1..].starts_with(|c: char| c.is_ascii_digit()) => {
                self.number()
            }
            _ if self.starts_identifier(first) => self.word(),
            _ => self.sign(first),
        }
    }

    fn starts_identifier(&self, character: char) -> bool {
        match self.language {
            Language::Sql => character.is_ascii_alphabetic(),
            _ => character.is_alphabetic() || matches!(character, '_' | '$'),
        }
    }

    fn continues_identifier(&self, character: char) -> bool {
        match self.language {
            Language::Sql => character.is_ascii_alphanumeric() || character == '_',
            _ => character.is_alphanumeric() || matches!(character, '_' | '$'),
        }
    }

    /// Takes characters while `accepts` returns true.
    fn take_while(&mut self, accepts: impl Fn(char) -> bool) -> &'s str {
        let end = self.rest.find(|c| !accepts(c)).unwrap_or(self.rest.len());
        self.take(end)
    }

    fn take(&mut self, bytes: usize) -> &'s str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        taken
    }

    fn sign(&mut self, first: char) -> Result<TokenKind<'s>, Reason> {
        let sign = Sign::ALL
            .iter()
            .find(|sign| self.rest.starts_with(sign.text()))
            .ok_or_else(|| Reason::IllegalCharacter(excerpt(first.encode_utf8(&mut [0; 4]))))?;
        self.take(sign.text().len());
        Ok(TokenKind::Sign(*sign))
    }

    /// Reads text in quotes. Two quotes in it are one quote.
    fn string(&mut self, quote: char) -> Result<TokenKind<'s>, Reason> {
        let content = self.enclosed(quote, quote, "the string that starts here")?;
        Ok(TokenKind::String(if content.contains(quote) {
            let mut doubled = [0; 8];
            let quote: &str = quote.encode_utf8(&mut doubled);
            Cow::Owned(content.replace(&[quote, quote].concat(), quote))
        } else {
            Cow::Borrowed(content)
        }))
    }

    /// Reads `[name]`, the name of an application property. Two brackets in it are one bracket.
    fn delimited(&mut self) -> Result<TokenKind<'s>, Reason> {
        let content = self.enclosed('[', ']', "the identifier that starts here")?;
        if let Some(character) = content.chars().find(char::is_ascii_control) {
            return Err(Reason::ControlCharacter {
                character,
                place: "an identifier",
            });
        }
        // An opening bracket is doubled as well; the closing ones were found as pairs.
        let unescaped = content.replace("[[", "\u{0}").replace("]]", "]");
        if unescaped.contains('[') {
            return Err(Reason::SingleBracket);
        }
        Ok(TokenKind::Identifier(Reference::Application(
            unescaped.replace('\u{0}', "["),
        )))
    }

    /// Reads from `open` to the first `close` that is not doubled and returns the text between them.
    fn enclosed(
        &mut self,
        open: char,
        close: char,
        token: &'static str,
    ) -> Result<&'s str, Reason> {
        self.take(open.len_utf8());
        let mut from = 0;
        loop {
            let at = self.rest[from..]
                .find(close)
                .ok_or(Reason::Unterminated(token))?
                + from;
            let after = at + close.len_utf8();
            if !self.rest[after..].starts_with(close) {
                let content = self.take(at);
                self.take(close.len_utf8());
                return Ok(content);
            }
            from = after + close.len_utf8();
        }
    }

    fn number(&mut self) -> Result<TokenKind<'s>, Reason> {
        match self.language {
            Language::Sql => self.sql_number(),
            _ => self.java_number(),
        }
    }

    /// Reads digits, digits with a fraction and an exponent, or a binary constant.
    fn sql_number(&mut self) -> Result<TokenKind<'s>, Reason> {
        if let Some(digits) = self.rest.strip_prefix("0x") {
            let digits = &digits[..digits
                .find(|c: char| !c.is_ascii_alphanumeric())
                .unwrap_or(digits.len())];
            self.take(2 + digits.len());
            return parse_binary(digits).map(TokenKind::Binary);
        }
        let start = self.rest;
        self.take_while(|c| c.is_ascii_digit());
        let mut is_float = false;
        if let Some(fraction) = self.rest.strip_prefix('.') {
            if !fraction.starts_with(|c: char| c.is_ascii_digit()) {
                return Err(Reason::Number("a decimal point needs digits after it"));
            }
            is_float = true;
            self.take(1);
            self.take_while(|c| c.is_ascii_digit());
            if let Some(exponent) = exponent_length(self.rest, &['E']) {
                self.take(exponent);
            }
        }
        if self.rest.starts_with(|c| self.continues_identifier(c)) {
            return Err(Reason::Number(if is_float {
                "an exponent is E and digits"
            } else {
                "an identifier cannot start with a digit, and a number with an exponent needs a decimal point: 5.0E2"
            }));
        }
        self.parse_number(start, is_float)
    }

    /// Reads an integer or floating-point literal of Java.
    fn java_number(&mut self) -> Result<TokenKind<'s>, Reason> {
        if let Some(digits) = self
            .rest
            .strip_prefix("0x")
            .or_else(|| self.rest.strip_prefix("0X"))
        {
            self.take(2);
            let digits = &digits[..digits
                .find(|c: char| !c.is_ascii_hexdigit())
                .unwrap_or(digits.len())];
            self.take(digits.len());
            let number = i128::from_str_radix(digits, 16);
            self.end_number(&['l', 'L'])?;
            return number
                .map(TokenKind::Integer)
                .map_err(|_| Reason::Number("the number is out of range"));
        }
        let start = self.rest;
        let whole = self.take_while(|c| c.is_ascii_digit());
        let mut is_float = false;
        if self.rest.starts_with('.') {
            is_float = true;
            self.take(1);
            self.take_while(|c| c.is_ascii_digit());
        }
        if let Some(exponent) = exponent_length(self.rest, &['E', 'e']) {
            is_float = true;
            self.take(exponent);
        }
        if !is_float && whole.len() > 1 && whole.starts_with('0') {
            return Err(Reason::Number(
                "a leading 0 means octal in Java, which is not supported; remove it",
            ));
        }
        let suffixes = ['f', 'F', 'd', 'D'];
        let number = self.parse_number(start, is_float || self.rest.starts_with(suffixes))?;
        self.end_number(if is_float { &suffixes } else { &JAVA_SUFFIXES })?;
        Ok(number)
    }

    /// Parses the text from `start` to the rest.
    fn parse_number(&self, start: &'s str, is_float: bool) -> Result<TokenKind<'s>, Reason> {
        const RANGE: Reason = Reason::Number("the number is out of range");
        let text = &start[..start.len() - self.rest.len()];
        if !is_float {
            return text.parse().map(TokenKind::Integer).map_err(|_| RANGE);
        }
        match text.parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(TokenKind::Float(number)),
            _ => Err(RANGE),
        }
    }

    /// Takes an optional suffix and checks that the number ends.
    fn end_number(&mut self, suffixes: &[char]) -> Result<(), Reason> {
        if self.rest.starts_with(suffixes) {
            self.take(1);
        }
        if self.rest.starts_with(|c| self.continues_identifier(c)) {
            return Err(Reason::Number("an identifier cannot start with a digit"));
        }
        Ok(())
    }

    /// Reads a keyword or an identifier.
    fn word(&mut self) -> Result<TokenKind<'s>, Reason> {
        if self.language == Language::Sql {
            if let Some(section) = self.section() {
                self.take(section.len() + 1);
                let field = self.take_while(|c| c.is_ascii_alphanumeric() || c == '_');
                return Reference::from_section(section, field).map(TokenKind::Identifier);
            }
            let word = self.take_while(|c| c.is_ascii_alphanumeric() || c == '_');
            return sql_word(word);
        }
        let language = self.language;
        let start = self.rest;
        let end = start
            .find(|c| !self.continues_identifier(c))
            .unwrap_or(start.len());
        let word = self.take(end);
        match Keyword::ALL
            .iter()
            .find(|keyword| keyword.is_of(language) && word.eq_ignore_ascii_case(keyword.text()))
        {
            Some(keyword) => Ok(TokenKind::Keyword(*keyword)),
            None => Reference::from_selector(word).map(TokenKind::Identifier),
        }
    }

    /// The section of `section.field` at the start of the rest.
    fn section(&self) -> Option<&'s str> {
        let end = self
            .rest
            .find(|c: char| !c.is_ascii_alphabetic() && c != '_' && c != '-')?;
        let field = self.rest[end..].strip_prefix('.')?;
        field
            .starts_with(|c: char| c.is_ascii_alphabetic())
            .then(|| &self.rest[..end])
    }
}

const JAVA_SUFFIXES: [char; 6] = ['l', 'L', 'f', 'F', 'd', 'D'];

/// Keywords of SQL are written in upper case. RabbitMQ refuses them in any other case, so that they can never be taken for a
/// property.
fn sql_word(word: &str) -> Result<TokenKind<'_>, Reason> {
    let keyword = Keyword::ALL
        .iter()
        .find(|keyword| keyword.is_of(Language::Sql) && word.eq_ignore_ascii_case(keyword.text()));
    if let Some(keyword) = keyword {
        return if word == keyword.text() {
            Ok(TokenKind::Keyword(*keyword))
        } else {
            Err(Reason::Reserved(word.to_owned()))
        };
    }
    if RESERVED.contains(&word) {
        return Err(Reason::Unsupported {
            construct: word.to_owned(),
            remedy: "the only function is UTC(); write a property of this name in brackets",
        });
    }
    if RESERVED
        .iter()
        .any(|reserved| word.eq_ignore_ascii_case(reserved))
    {
        return Err(Reason::Reserved(word.to_owned()));
    }
    Ok(TokenKind::Identifier(Reference::Application(
        word.to_owned(),
    )))
}

/// The length of an exponent at the start of `text`.
fn exponent_length(text: &str, letters: &[char]) -> Option<usize> {
    let after = text.strip_prefix(letters)?;
    let digits = after.strip_prefix(['+', '-']).unwrap_or(after);
    let end = digits
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(digits.len());
    (end > 0).then(|| text.len() - digits.len() + end)
}

fn parse_binary(digits: &str) -> Result<Vec<u8>, Reason> {
    let is_valid = |byte: &u8| matches!(byte, b'0'..=b'9' | b'A'..=b'F');
    let digits = digits.as_bytes();
    if digits.is_empty() || !digits.len().is_multiple_of(2) || !digits.iter().all(is_valid) {
        return Err(Reason::Binary);
    }
    Ok(digits
        .chunks_exact(2)
        .map(|pair| {
            pair.iter().fold(0, |byte, digit| {
                byte << 4
                    | if *digit <= b'9' {
                        digit - b'0'
                    } else {
                        digit - b'A' + 10
                    }
            })
        })
        .collect())
}
