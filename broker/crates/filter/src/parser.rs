use crate::evaluate::{Filter, Names, Node};
use crate::lexer::{ErrorAt, Keyword, Sign, Token, TokenKind, tokenize};
use crate::like::Pattern;
use crate::operand::{Arithmetic, Comparison, Constant, negate};
use crate::reference::Reference;
use crate::{CompileError, Language, MAX_NESTING, Operand, Property, Reason};

/// Compiles an SQL filter expression or a selector.
pub(crate) fn compile(language: Language, text: &str) -> Result<Filter, CompileError> {
    let mut parser = Parser {
        language,
        tokens: tokenize(language, text)?,
        next: 0,
        end: text.len(),
        depth: 0,
        names: Names::default(),
    };
    let root = parser
        .expression()
        .and_then(|root| match parser.peek() {
            None => Ok(root),
            Some(_) => Err(parser.unexpected_after_operand()),
        })
        .map_err(|error| error.locate(language, text))?;
    Ok(Filter::new(root, parser.names))
}

/// A recursive descent parser. Each function parses one level of precedence.
struct Parser<'s> {
    language: Language,
    tokens: Vec<Token<'s>>,
    next: usize,
    /// The length of the expression.
    end: usize,
    /// The number of open parentheses.
    depth: usize,
    names: Names,
}

impl<'s> Parser<'s> {
    fn peek(&self) -> Option<&TokenKind<'s>> {
        self.tokens.get(self.next).map(|token| &token.kind)
    }

    /// Takes the next token if it is this keyword.
    fn take_keyword(&mut self, keyword: Keyword) -> bool {
        let found = self.peek() == Some(&TokenKind::Keyword(keyword));
        self.next += usize::from(found);
        found
    }

    /// Takes the next token if it is this sign.
    fn take_sign(&mut self, sign: Sign) -> bool {
        let found = self.peek() == Some(&TokenKind::Sign(sign));
        self.next += usize::from(found);
        found
    }

    /// Takes the next token if it is one of these signs.
    fn take_sign_of<T: Copy>(&mut self, signs: &[(Sign, T)]) -> Option<T> {
        signs
            .iter()
            .find(|(sign, _)| self.take_sign(*sign))
            .map(|(_, meaning)| *meaning)
    }

    /// An error at the next token.
    fn error(&self, reason: Reason) -> ErrorAt {
        let at = self
            .tokens
            .get(self.next)
            .map_or(self.end, |token| token.at);
        ErrorAt { at, reason }
    }

    /// An error at the token before the next one.
    fn error_before(&self, reason: Reason) -> ErrorAt {
        let before = self.next.saturating_sub(1);
        let at = self.tokens.get(before).map_or(0, |token| token.at);
        ErrorAt { at, reason }
    }

    fn expected(&self, expected: &'static str) -> ErrorAt {
        let found = match self.tokens.get(self.next) {
            Some(token) => token.to_string(),
            None => "the end of the expression".to_owned(),
        };
        self.error(Reason::Expected { expected, found })
    }

    /// The error for a token after a complete operand.
    fn unexpected_after_operand(&self) -> ErrorAt {
        if let Some(token) = self.tokens.get(self.next)
            && token.text.eq_ignore_ascii_case("BETWEEN")
            && self.language == Language::Sql
        {
            return self.error(Reason::Unsupported {
                construct: "BETWEEN".to_owned(),
                remedy: "use >= and <=",
            });
        }
        self.expected(if self.depth > 0 {
            "an operator or )"
        } else {
            "an operator or the end"
        })
    }

    fn require(&mut self, sign: Sign, expected: &'static str) -> Result<(), ErrorAt> {
        if self.take_sign(sign) {
            Ok(())
        } else {
            Err(self.expected(expected))
        }
    }

    /// `conjunction { OR conjunction }`
    fn expression(&mut self) -> Result<Node, ErrorAt> {
        let first = self.conjunction()?;
        if self.peek() != Some(&TokenKind::Keyword(Keyword::Or)) {
            return Ok(first);
        }
        let mut nodes = vec![first];
        while self.take_keyword(Keyword::Or) {
            nodes.push(self.conjunction()?);
        }
        Ok(Node::Or(nodes.into()))
    }

    /// `negation { AND negation }`
    fn conjunction(&mut self) -> Result<Node, ErrorAt> {
        let first = self.negation()?;
        if self.peek() != Some(&TokenKind::Keyword(Keyword::And)) {
            return Ok(first);
        }
        let mut nodes = vec![first];
        while self.take_keyword(Keyword::And) {
            nodes.push(self.negation()?);
        }
        Ok(Node::And(nodes.into()))
    }

    /// `{ NOT } comparison`
    fn negation(&mut self) -> Result<Node, ErrorAt> {
        let mut count = 0;
        while self.take_keyword(Keyword::Not) {
            count += 1;
        }
        let node = self.comparison()?;
        // Two negations have an effect: they make a value that is not a boolean unknown. Four have none beyond that.
        let negations = if count > 2 { 2 - count % 2 } else { count };
        Ok((0..negations).fold(node, |node, _| Node::Not(Box::new(node))))
    }

    /// `sum [comparison operator sum | IS | IN | LIKE | BETWEEN]`
    fn comparison(&mut self) -> Result<Node, ErrorAt> {
        const COMPARISONS: &[(Sign, Comparison)] = &[
            (Sign::Equal, Comparison::Equal),
            (Sign::NotEqual, Comparison::NotEqual),
            (Sign::AlsoNotEqual, Comparison::NotEqual),
            (Sign::Less, Comparison::Less),
            (Sign::LessOrEqual, Comparison::LessOrEqual),
            (Sign::Greater, Comparison::Greater),
            (Sign::GreaterOrEqual, Comparison::GreaterOrEqual),
        ];
        let left = self.sum()?;
        if let Some(comparison) = self.take_sign_of(COMPARISONS) {
            let right = self.sum()?;
            return Ok(Node::Compare(
                comparison,
                Box::new(self.encode_id(left, right)),
            ));
        }
        if self.take_keyword(Keyword::Is) {
            let is_negated = self.take_keyword(Keyword::Not);
            if !self.take_keyword(Keyword::Null) {
                return Err(self.expected(if is_negated {
                    "NULL"
                } else {
                    "NULL or NOT NULL"
                }));
            }
            let is_identifier = matches!(
                left,
                Node::Header(_) | Node::Property(_) | Node::Application(_) | Node::DeliveryMode
            );
            if !is_identifier {
                return Err(self.error_before(Reason::NullTest));
            }
            return Ok(negated_if(is_negated, Node::IsNull(Box::new(left))));
        }
        let is_negated = self.take_keyword(Keyword::Not);
        let predicate = if self.take_keyword(Keyword::In) {
            self.membership(left)?
        } else if self.take_keyword(Keyword::Like) {
            let pattern = self.pattern()?;
            Node::Like(Box::new(left), Box::new(pattern))
        } else if self.take_keyword(Keyword::Between) {
            let low = self.sum()?;
            if !self.take_keyword(Keyword::And) {
                return Err(self.expected("AND and the upper limit of BETWEEN"));
            }
            Node::Between(Box::new((left, low, self.sum()?)))
        } else if is_negated {
            return Err(self.expected(match self.language {
                Language::Sql => "IN or LIKE",
                _ => "IN, LIKE or BETWEEN",
            }));
        } else {
            return Ok(left);
        };
        Ok(negated_if(is_negated, predicate))
    }

    /// The list after `IN`.
    fn membership(&mut self, value: Node) -> Result<Node, ErrorAt> {
        self.require(Sign::Open, "( and the values of IN")?;
        let mut value = value;
        let mut entries = Vec::new();
        loop {
            let entry = self.sum()?;
            let (encoded, entry) = self.encode_id(value, entry);
            value = encoded;
            entries.push(entry);
            if self.take_sign(Sign::Close) {
                return Ok(Node::In(Box::new(value), entries.into()));
            }
            self.require(Sign::Comma, ", or )")?;
        }
    }

    /// The pattern after `LIKE`, with its escape character.
    fn pattern(&mut self) -> Result<Pattern, ErrorAt> {
        let Some(pattern) = self.string() else {
            return Err(self.expected("a string with the pattern"));
        };
        let at = self.next - 1;
        let mut escape = None;
        if self.take_keyword(Keyword::Escape) {
            let Some(text) = self.string() else {
                return Err(self.expected("a string with the escape character"));
            };
            let mut characters = text.chars();
            escape = characters.next();
            if escape.is_none() || characters.next().is_some() {
                return Err(self.error_before(Reason::EscapeLength));
            }
        }
        let allows_controls = self.language == Language::Selector;
        Pattern::compile(&pattern, escape, allows_controls).map_err(|reason| ErrorAt {
            at: self.tokens[at].at,
            reason,
        })
    }

    /// Takes the next token if it is a string.
    fn string(&mut self) -> Option<String> {
        let Some(TokenKind::String(text)) = self.peek() else {
            return None;
        };
        let text = text.clone().into_owned();
        self.next += 1;
        Some(text)
    }

    /// `product { (+ | -) product }`
    fn sum(&mut self) -> Result<Node, ErrorAt> {
        const OPERATIONS: &[(Sign, Arithmetic)] = &[
            (Sign::Plus, Arithmetic::Add),
            (Sign::Minus, Arithmetic::Subtract),
        ];
        self.operations(OPERATIONS, Self::product)
    }

    /// `factor { (* | / | %) factor }`
    fn product(&mut self) -> Result<Node, ErrorAt> {
        const SQL: &[(Sign, Arithmetic)] = &[
            (Sign::Times, Arithmetic::Multiply),
            (Sign::Divide, Arithmetic::Divide),
            (Sign::Remainder, Arithmetic::Remainder),
        ];
        const SELECTOR: &[(Sign, Arithmetic)] = &[
            (Sign::Times, Arithmetic::Multiply),
            (Sign::Divide, Arithmetic::DivideWhole),
        ];
        let operations = match self.language {
            Language::Sql => SQL,
            _ => SELECTOR,
        };
        self.operations(operations, Self::factor)
    }

    fn operations(
        &mut self,
        operations: &[(Sign, Arithmetic)],
        operand: fn(&mut Self) -> Result<Node, ErrorAt>,
    ) -> Result<Node, ErrorAt> {
        let first = operand(self)?;
        let mut rest = Vec::new();
        while let Some(operation) = self.take_sign_of(operations) {
            rest.push((operation, operand(self)?));
        }
        Ok(if rest.is_empty() {
            first
        } else {
            Node::Calculate(Box::new(first), rest.into())
        })
    }

    /// `[+ | -] primary`
    fn factor(&mut self) -> Result<Node, ErrorAt> {
        if self.take_sign(Sign::Minus) {
            return Ok(match self.primary()? {
                Node::Constant(Constant::Integer(number)) => {
                    Node::Constant(match negate(Operand::Integer(number)) {
                        Operand::Integer(number) => Constant::Integer(number),
                        _ => Constant::Null,
                    })
                }
                Node::Constant(Constant::Float(number)) => Node::Constant(Constant::Float(-number)),
                node => Node::Negate(Box::new(node)),
            });
        }
        if self.take_sign(Sign::Plus) {
            return Ok(Node::Number(Box::new(self.primary()?)));
        }
        self.primary()
    }

    /// A literal, an identifier, `UTC()`, or an expression in parentheses.
    fn primary(&mut self) -> Result<Node, ErrorAt> {
        const EXPECTED: &str = "a value, an identifier or (";
        let Some(token) = self.tokens.get(self.next) else {
            return Err(self.expected(EXPECTED));
        };
        let node = match token.kind.clone() {
            TokenKind::Sign(Sign::Open) => return self.parentheses(),
            TokenKind::Keyword(Keyword::Utc) => {
                self.next += 1;
                self.require(Sign::Open, "(")?;
                self.require(Sign::Close, ")")?;
                return Ok(Node::Time);
            }
            TokenKind::Keyword(Keyword::True) => Node::Constant(Constant::Boolean(true)),
            TokenKind::Keyword(Keyword::False) => Node::Constant(Constant::Boolean(false)),
            TokenKind::Integer(number) => Node::Constant(Constant::Integer(number)),
            TokenKind::Float(number) => Node::Constant(Constant::Float(number)),
            TokenKind::String(text) => Node::Constant(Constant::Bytes(text.as_bytes().into())),
            TokenKind::Binary(bytes) => Node::Constant(Constant::Bytes(bytes.into())),
            TokenKind::Identifier(reference) => match reference {
                Reference::Header(field) => Node::Header(field),
                Reference::Property(property) => Node::Property(property),
                Reference::DeliveryMode => Node::DeliveryMode,
                Reference::Application(name) => Node::Application(self.names.add(&name)),
            },
            TokenKind::Keyword(_) | TokenKind::Sign(_) => return Err(self.expected(EXPECTED)),
        };
        self.next += 1;
        Ok(node)
    }

    fn parentheses(&mut self) -> Result<Node, ErrorAt> {
        if self.depth == MAX_NESTING {
            return Err(self.error(Reason::TooDeep));
        }
        self.next += 1;
        self.depth += 1;
        let node = self.expression()?;
        if !self.take_sign(Sign::Close) {
            return Err(self.unexpected_after_operand());
        }
        self.depth -= 1;
        Ok(node)
    }

    /// Converts a text constant that is compared with `JMSMessageID` or `JMSCorrelationID` to the type that the text denotes.
    fn encode_id(&self, left: Node, right: Node) -> (Node, Node) {
        if self.language != Language::Selector {
            return (left, right);
        }
        match (left, right) {
            (id, Node::Constant(Constant::Bytes(text))) if is_id(&id) => {
                (id, Node::Constant(decode_jms_id(text)))
            }
            (Node::Constant(Constant::Bytes(text)), id) if is_id(&id) => {
                (Node::Constant(decode_jms_id(text)), id)
            }
            both => both,
        }
    }
}

fn negated_if(is_negated: bool, node: Node) -> Node {
    if is_negated {
        Node::Not(Box::new(node))
    } else {
        node
    }
}

fn is_id(node: &Node) -> bool {
    matches!(
        node,
        Node::Property(Property::MessageId | Property::CorrelationId)
    )
}

/// The id of AMQP for its text in JMS (AMQP JMS Mapping, section 3.2.1.1). Text without such a prefix is the id itself.
fn decode_jms_id(text: Box<[u8]>) -> Constant {
    let Some((kind, value)) = std::str::from_utf8(&text)
        .ok()
        .and_then(|text| text.strip_prefix("ID:AMQP_"))
        .and_then(|text| text.split_once(':'))
    else {
        return Constant::Bytes(text);
    };
    let decoded = match kind {
        "NO_PREFIX" | "STRING" => Some(Constant::Bytes(value.as_bytes().into())),
        "ULONG" => value
            .parse::<u64>()
            .ok()
            .map(|number| Constant::Integer(number.into())),
        "BINARY" => decode_hex(value.bytes()).map(|bytes| Constant::Bytes(bytes.into())),
        "UUID" => decode_hex(value.bytes().filter(|byte| *byte != b'-'))
            .and_then(|bytes| bytes.try_into().ok())
            .map(Constant::Uuid),
        _ => None,
    };
    decoded.unwrap_or(Constant::Bytes(text))
}

fn decode_hex(digits: impl Iterator<Item = u8>) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = digits
        .map(|digit| Some(char::from(digit).to_digit(16)? as u8))
        .collect();
    let digits = digits?;
    digits.len().is_multiple_of(2).then(|| {
        digits
            .chunks_exact(2)
            .map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit))
            .collect()
    })
}
