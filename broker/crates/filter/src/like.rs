use memchr::memmem::Finder;

use crate::{MAX_WILDCARD_CHARACTERS, Reason};

/// A compiled pattern of `LIKE`: parts that `%` separates.
///
/// The first part is matched at the subject's start and the last one at its end. Each part between them is matched at its first
/// occurrence after the part before, which finds a match if there is one. Nothing is tried twice, so the time is linear.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    first: Part,
    /// None if the pattern has no `%`: the first part is then the whole subject.
    rest: Option<Rest>,
    /// A part has `_`, which stands for a character and not for a byte.
    has_wildcard: bool,
}

#[derive(Clone, Debug)]
struct Rest {
    middle: Box<[Middle]>,
    last: Part,
}

#[derive(Clone, Debug)]
enum Middle {
    Literal(Box<Finder<'static>>),
    Wildcard(Part),
}

/// Characters and `_` in a row.
#[derive(Clone, Debug, Default)]
struct Part {
    elements: Box<[Element]>,
    characters: usize,
}

#[derive(Clone, Debug)]
enum Element {
    Literal(Box<[u8]>),
    /// This number of characters, whichever they are.
    Any(usize),
}

/// An item of a pattern before compilation.
#[derive(Clone, Copy)]
enum Item {
    Character(char),
    Any,
}

impl Pattern {
    /// Compiles a pattern with `%` and `_`. `allows_controls` admits control characters.
    pub(crate) fn compile(
        text: &str,
        escape: Option<char>,
        allows_controls: bool,
    ) -> Result<Self, Reason> {
        let mut parts = vec![Vec::new()];
        let mut characters = text.chars();
        while let Some(character) = characters.next() {
            let item = if Some(character) == escape {
                Item::Character(characters.next().ok_or(Reason::EscapeAtEnd)?)
            } else if character == '%' {
                parts.push(Vec::new());
                continue;
            } else if character == '_' {
                Item::Any
            } else {
                Item::Character(character)
            };
            if let Item::Character(character) = item
                && character.is_ascii_control()
                && !allows_controls
            {
                return Err(Reason::ControlCharacter {
                    character,
                    place: "a pattern",
                });
            }
            if let Some(part) = parts.last_mut() {
                part.push(item);
            }
        }
        let mut parts = parts.into_iter().map(|items| Part::new(&items));
        let first = parts.next().unwrap_or_default();
        let mut middle: Vec<Part> = parts.collect();
        let last = middle.pop();
        let has_wildcard = [&first]
            .into_iter()
            .chain(&middle)
            .chain(&last)
            .any(|part| part.literal().is_none());
        let rest = match last {
            Some(last) => Some(Rest {
                middle: middle
                    .into_iter()
                    .filter(|part| part.characters > 0)
                    .map(Middle::new)
                    .collect::<Result<_, _>>()?,
                last,
            }),
            None => None,
        };
        Ok(Self {
            first,
            rest,
            has_wildcard,
        })
    }

    /// A pattern for subjects that start with these bytes.
    pub(crate) fn prefix(text: &str) -> Self {
        Self {
            first: Part::from_literal(text),
            rest: Some(Rest {
                middle: Box::default(),
                last: Part::default(),
            }),
            has_wildcard: false,
        }
    }

    /// A pattern for subjects that end with these bytes.
    pub(crate) fn suffix(text: &str) -> Self {
        Self {
            first: Part::default(),
            rest: Some(Rest {
                middle: Box::default(),
                last: Part::from_literal(text),
            }),
            has_wildcard: false,
        }
    }

    /// Returns whether the pattern matches the whole subject. Unknown for a subject that is not text if a character has to be
    /// counted.
    pub(crate) fn matches(&self, subject: &[u8]) -> Option<bool> {
        if self.has_wildcard && std::str::from_utf8(subject).is_err() {
            return None;
        }
        Some(self.find(subject).is_some())
    }

    fn find(&self, subject: &[u8]) -> Option<()> {
        let mut subject = subject.get(self.first.match_start(subject)?..)?;
        let Some(rest) = &self.rest else {
            return subject.is_empty().then_some(());
        };
        let end = rest.last.match_end(subject)?;
        subject = subject.get(..end)?;
        for part in &rest.middle {
            subject = subject.get(part.find_end(subject)?..)?;
        }
        Some(())
    }
}

impl Part {
    fn new(items: &[Item]) -> Self {
        let mut elements: Vec<Element> = Vec::new();
        let mut text = String::new();
        let flush = |text: &mut String, elements: &mut Vec<Element>| {
            if !text.is_empty() {
                elements.push(Element::Literal(text.as_bytes().into()));
                text.clear();
            }
        };
        for item in items {
            match item {
                Item::Character(character) => text.push(*character),
                Item::Any => {
                    flush(&mut text, &mut elements);
                    match elements.last_mut() {
                        Some(Element::Any(count)) => *count += 1,
                        _ => elements.push(Element::Any(1)),
                    }
                }
            }
        }
        flush(&mut text, &mut elements);
        Self {
            elements: elements.into(),
            characters: items.len(),
        }
    }

    fn from_literal(text: &str) -> Self {
        let items: Vec<Item> = text.chars().map(Item::Character).collect();
        Self::new(&items)
    }

    /// The bytes of a part without `_`.
    fn literal(&self) -> Option<&[u8]> {
        match &*self.elements {
            [] => Some(&[]),
            [Element::Literal(bytes)] => Some(bytes),
            _ => None,
        }
    }

    /// The number of bytes at the subject's start that this part matches.
    fn match_start(&self, subject: &[u8]) -> Option<usize> {
        let mut rest = subject;
        for element in &self.elements {
            match element {
                Element::Literal(bytes) => rest = rest.strip_prefix(&**bytes)?,
                Element::Any(count) => {
                    for _ in 0..*count {
                        rest = rest.get(character_width(*rest.first()?)..)?;
                    }
                }
            }
        }
        Some(subject.len() - rest.len())
    }

    /// The number of bytes before the subject's end that this part does not match.
    fn match_end(&self, subject: &[u8]) -> Option<usize> {
        if let Some(literal) = self.literal() {
            return subject.strip_suffix(literal).map(<[u8]>::len);
        }
        let start = match self.characters {
            0 => subject.len(),
            count => {
                let mut starts = (0..subject.len())
                    .rev()
                    .filter(|at| is_character_start(subject[*at]));
                starts.nth(count - 1)?
            }
        };
        let end = subject.get(start..)?;
        (self.match_start(end)? == end.len()).then_some(start)
    }
}

impl Middle {
    fn new(part: Part) -> Result<Self, Reason> {
        if let Some(literal) = part.literal() {
            return Ok(Self::Literal(Box::new(Finder::new(literal).into_owned())));
        }
        if part.characters > MAX_WILDCARD_CHARACTERS {
            return Err(Reason::WildcardLength(part.characters));
        }
        Ok(Self::Wildcard(part))
    }

    /// The end of the first occurrence in the subject.
    fn find_end(&self, subject: &[u8]) -> Option<usize> {
        match self {
            Self::Literal(finder) => Some(finder.find(subject)? + finder.needle().len()),
            Self::Wildcard(part) => (0..subject.len())
                .filter(|at| is_character_start(subject[*at]))
                .find_map(|at| Some(at + part.match_start(&subject[at..])?)),
        }
    }
}

/// The length of the character that starts with this byte, in text that is valid UTF-8.
fn character_width(first: u8) -> usize {
    match first {
        ..0xc0 => 1,
        0xc0..0xe0 => 2,
        0xe0..0xf0 => 3,
        0xf0.. => 4,
    }
}

/// Returns true for bytes that do not continue a character.
fn is_character_start(byte: u8) -> bool {
    byte & 0xc0 != 0x80
}
