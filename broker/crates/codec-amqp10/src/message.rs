use std::ops::Range;

use crate::composite::{FieldReader, read_descriptor};
use crate::output::StackBuffer;
use crate::value::code;
use crate::{
    Decode, DecodeError, Encode, Map, Output, Reader, Reason, Symbol, Timestamp, Value, writer,
};

composite! {
    /// How a message is transferred (section 3.2.1). Not part of the bare message.
    #[derive(Copy, Eq)]
    Header = "header" 0x70 "amqp:header:list" {
        /// The message survives a restart.
        durable "durable" default bool = false,
        /// Relative priority.
        priority "priority" default u8 = Header::DEFAULT_PRIORITY,
        /// Milliseconds that the message lives.
        ttl "ttl" optional u32,
        /// No other link got the message before.
        first_acquirer "first-acquirer" default bool = false,
        /// Earlier deliveries that failed.
        delivery_count "delivery-count" default u32 = 0,
    }
}

impl Header {
    /// The priority of a message whose header names none.
    pub const DEFAULT_PRIORITY: u8 = 4;
    /// Most bytes of a header: those of its type and list, and the fields.
    const MAX_SIZE: usize = 6 + 1 + 2 + 5 + 1 + 5;

    /// Appends the header in one piece.
    #[inline]
    pub fn encode_section<O: Output>(&self, out: &mut O) {
        let mut section = StackBuffer::<{ Header::MAX_SIZE }>::new();
        self.encode(&mut section);
        out.put(section.as_slice());
    }
}

impl Default for Header {
    fn default() -> Self {
        Self {
            durable: false,
            priority: Self::DEFAULT_PRIORITY,
            ttl: None,
            first_acquirer: false,
            delivery_count: 0,
        }
    }
}

composite! {
    /// Standard properties of the bare message (section 3.2.4).
    #[derive(Default)]
    Properties<'a> = "properties" 0x73 "amqp:properties:list" {
        /// The message's id: ulong, uuid, binary or string.
        message_id "message-id" optional Value<'a>,
        /// The user that created the message.
        user_id "user-id" optional &'a [u8],
        /// The address of the message's destination.
        to "to" optional &'a str,
        /// The message's purpose.
        subject "subject" optional &'a str,
        /// The address for replies.
        reply_to "reply-to" optional &'a str,
        /// The id of the message that this one belongs to, in the types of `message-id`.
        correlation_id "correlation-id" optional Value<'a>,
        /// MIME type of the body.
        content_type "content-type" optional Symbol<'a>,
        /// Encoding of the body.
        content_encoding "content-encoding" optional Symbol<'a>,
        /// When the message expires.
        absolute_expiry_time "absolute-expiry-time" optional Timestamp,
        /// When the message was made.
        creation_time "creation-time" optional Timestamp,
        /// The group of the message.
        group_id "group-id" optional &'a str,
        /// Its position in the group.
        group_sequence "group-sequence" optional u32,
        /// The group for replies.
        reply_to_group_id "reply-to-group-id" optional &'a str,
    }
}

macro_rules! sections {
    ($( $(#[$attribute:meta])* $name:ident = $code:literal $symbol:literal, )*) => {
        /// The kind of a message's section (section 3.2), in the order in which they stand.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum SectionKind {
            $( $(#[$attribute])* $name = $code, )*
        }

        impl SectionKind {
            const SYMBOLS: &'static [(&'static str, u8)] = &[$( ($symbol, $code), )*];

            fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
                match read_descriptor(reader, Self::SYMBOLS)? {
                    $( $code => Ok(Self::$name), )*
                    other => Err(Reason::UnknownDescriptor(other).into()),
                }
            }
        }
    };
}

sections! {
    /// Transport headers.
    Header = 0x70 "amqp:header:list",
    /// Annotations for the next hop.
    DeliveryAnnotations = 0x71 "amqp:delivery-annotations:map",
    /// Annotations for the infrastructure.
    MessageAnnotations = 0x72 "amqp:message-annotations:map",
    /// Standard properties.
    Properties = 0x73 "amqp:properties:list",
    /// The application's properties.
    ApplicationProperties = 0x74 "amqp:application-properties:map",
    /// A body of bytes; may be repeated.
    Data = 0x75 "amqp:data:binary",
    /// A body of values; may be repeated.
    Sequence = 0x76 "amqp:amqp-sequence:list",
    /// A body of one value.
    Value = 0x77 "amqp:amqp-value:*",
    /// Annotations that are calculated over the whole message.
    Footer = 0x78 "amqp:footer:map",
}

impl SectionKind {
    /// Returns true for the three kinds of body.
    pub fn is_body(self) -> bool {
        matches!(self, Self::Data | Self::Sequence | Self::Value)
    }

    /// A bit for the place of the section in a message: one for all kinds of body.
    fn bit(self) -> u16 {
        let place = if self.is_body() { Self::Data } else { self };
        1 << (place as u8 - Self::Header as u8)
    }

    /// Returns true if a section of this kind may follow one of kind `before`.
    fn may_follow(self, before: Self) -> bool {
        match (before, self) {
            (Self::Data, Self::Data) | (Self::Sequence, Self::Sequence) => true,
            (before, Self::Footer) => before != Self::Footer,
            // A body has sections of one kind.
            (before, after) => !before.is_body() && before < after,
        }
    }
}

/// The place of a section in the bytes of its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// The section's kind.
    pub kind: SectionKind,
    /// Where its descriptor starts.
    pub start: u32,
    /// Where its value starts, with the constructor.
    pub value: u32,
    /// Where it ends.
    pub end: u32,
}

impl Section {
    /// The section with its descriptor.
    pub fn range(&self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    /// The section's value with its constructor.
    pub fn value_range(&self) -> Range<usize> {
        self.value as usize..self.end as usize
    }
}

/// Iterates over the sections of a message and checks their order.
///
/// Values of sections outside of the body are checked to any depth. Of the body only the outermost sizes are checked, because the
/// broker hands it on as it is.
#[derive(Clone, Debug)]
pub struct SectionReader<'a> {
    reader: Reader<'a>,
    size: usize,
    before: Option<SectionKind>,
    /// A bit for each section that was read, if they may come in any order.
    seen: Option<u16>,
    /// Values are only skipped by their size.
    is_checked: bool,
    /// The header, once it was read.
    header: Option<Header>,
}

impl<'a> SectionReader<'a> {
    /// Reads the sections of `message`.
    pub fn new(message: &'a [u8]) -> Self {
        Self {
            reader: Reader::new(message),
            size: message.len(),
            before: None,
            seen: None,
            is_checked: false,
            header: None,
        }
    }

    /// Reads the sections of `message` without a check of their values, as [`Sections::locate`] does.
    pub fn located(message: &'a [u8]) -> Self {
        Self {
            is_checked: true,
            ..Self::new(message)
        }
    }

    fn offset(&self) -> Result<u32, Reason> {
        u32::try_from(self.size - self.reader.rest().len()).map_err(|_| Reason::MessageSize)
    }

    #[inline]
    fn read(&mut self) -> Result<Section, DecodeError> {
        let start = self.offset()?;
        let kind = SectionKind::read(&mut self.reader)?;
        let is_allowed = match &mut self.seen {
            None => self.before.is_none_or(|before| kind.may_follow(before)),
            Some(seen) => {
                let bit = kind.bit();
                let is_new = *seen & bit == 0;
                *seen |= bit;
                is_new
            }
        };
        if !is_allowed {
            return Err(Reason::SectionOrder(kind as u8).into());
        }
        self.before = Some(kind);
        let value = self.offset()?;
        let reader = &mut self.reader;
        match kind {
            _ if self.is_checked => {
                Value::read_shallow(reader)?;
            }
            SectionKind::Header => self.header = Some(Header::read_fields(reader)?),
            SectionKind::Properties => {
                Properties::read_fields(reader)?;
            }
            SectionKind::DeliveryAnnotations
            | SectionKind::MessageAnnotations
            | SectionKind::ApplicationProperties
            | SectionKind::Footer => {
                reader.read::<Map<'_>>()?;
            }
            SectionKind::Data => {
                reader.read::<&[u8]>()?;
            }
            SectionKind::Sequence => match reader.peek()? {
                code::LIST0 | code::LIST8 | code::LIST32 => {
                    Value::read_shallow(reader)?;
                }
                other => return crate::reader::wrong("list", other),
            },
            SectionKind::Value => {
                Value::read_shallow(reader)?;
            }
        }
        Ok(Section {
            kind,
            start,
            value,
            end: self.offset()?,
        })
    }
}

impl Iterator for SectionReader<'_> {
    type Item = Result<Section, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.reader.is_empty() {
            return None;
        }
        let read = self.read();
        if read.is_err() {
            self.reader = Reader::new(&[]);
        }
        Some(read.map_err(|error| error.in_performative("message")))
    }
}

/// The body of a message: sections of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Body {
    /// The kind of its sections.
    pub kind: SectionKind,
    /// Where the first section starts.
    pub start: u32,
    /// Where the last one ends.
    pub end: u32,
    /// The number of sections.
    pub count: u32,
}

impl Body {
    /// All sections of the body with their descriptors.
    pub fn range(&self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// The sections of a message as offsets into its bytes, which stay as they are (section 3.2: the bare message is immutable).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Sections {
    /// Transport headers.
    pub header: Option<Section>,
    /// Annotations for the next hop.
    pub delivery_annotations: Option<Section>,
    /// Annotations for the infrastructure.
    pub message_annotations: Option<Section>,
    /// Standard properties.
    pub properties: Option<Section>,
    /// The application's properties.
    pub application_properties: Option<Section>,
    /// The body. The standard requires one; clients exist that send none.
    pub body: Option<Body>,
    /// The footer.
    pub footer: Option<Section>,
    /// Bytes of the message.
    pub size: u32,
    /// The contents of the header, if it was read.
    read_header: Option<Header>,
}

impl Sections {
    /// Finds the sections of a message.
    #[inline]
    pub fn parse(message: &[u8]) -> Result<Self, DecodeError> {
        Self::collect(SectionReader::new(message))
    }

    /// Finds the sections of a message that may come in any order, each at most once. Some clients send requests in this way.
    pub fn parse_any_order(message: &[u8]) -> Result<Self, DecodeError> {
        Self::collect(SectionReader {
            seen: Some(0),
            ..SectionReader::new(message)
        })
    }

    /// Finds the sections of a message that [`Sections::parse`] accepted before. The values are not checked again. If they are damaged
    /// nevertheless, reading them gives an error or fewer elements.
    pub fn locate(message: &[u8]) -> Result<Self, DecodeError> {
        Self::collect(SectionReader::located(message))
    }

    #[inline]
    fn collect(mut reader: SectionReader<'_>) -> Result<Self, DecodeError> {
        let mut sections = Self {
            size: u32::try_from(reader.size).map_err(|_| Reason::MessageSize)?,
            ..Self::default()
        };
        while !reader.reader.is_empty() {
            let read = reader.read();
            let section = read.map_err(|error| error.in_performative("message"))?;
            match section.kind {
                SectionKind::Header => sections.header = Some(section),
                SectionKind::DeliveryAnnotations => sections.delivery_annotations = Some(section),
                SectionKind::MessageAnnotations => sections.message_annotations = Some(section),
                SectionKind::Properties => sections.properties = Some(section),
                SectionKind::ApplicationProperties => {
                    sections.application_properties = Some(section);
                }
                SectionKind::Footer => sections.footer = Some(section),
                kind @ (SectionKind::Data | SectionKind::Sequence | SectionKind::Value) => {
                    let body = sections.body.get_or_insert(Body {
                        kind,
                        start: section.start,
                        end: section.end,
                        count: 0,
                    });
                    body.end = section.end;
                    body.count += 1;
                }
            }
        }
        sections.read_header = reader.header;
        Ok(sections)
    }

    /// Checks that the keys of the annotations are symbols, as section 3.2.10 requires of a new message. Messages that are stored
    /// already may have other keys. Keys without the prefix `x-` are allowed, because the trace context of W3C has none.
    pub fn check_annotation_keys(&self, message: &[u8]) -> Result<(), DecodeError> {
        let sections = [self.delivery_annotations, self.message_annotations];
        for section in sections.into_iter().flatten() {
            let annotations = self.read_map(Some(section), message)?;
            if !annotations
                .encoded_entries()
                .all(|(key, _)| key.is_symbol())
            {
                return Err(Reason::AnnotationKey.into());
            }
        }
        Ok(())
    }

    /// The bare message: properties, application properties and body.
    pub fn bare(&self) -> Range<usize> {
        let end = self.footer.map_or(self.size, |footer| footer.start) as usize;
        let start = self
            .properties
            .map(|section| section.start)
            .or(self.application_properties.map(|section| section.start))
            .or(self.body.map(|body| body.start))
            .map_or(end, |start| start as usize);
        start..end
    }

    /// The bare message and the footer.
    pub fn after_annotations(&self) -> Range<usize> {
        self.bare().start..self.size as usize
    }

    /// The header of the message in `message`, the bytes that these sections were found in. A message without a header has the
    /// defaults.
    #[inline]
    pub fn read_header(&self, message: &[u8]) -> Result<Header, DecodeError> {
        match (self.read_header, self.header) {
            (Some(header), _) => Ok(header),
            (None, Some(section)) => Header::read_fields(&mut value_of(section, message)?),
            (None, None) => Ok(Header::default()),
        }
    }

    /// Returns true if the header of the message contains a priority, be it the default.
    #[inline]
    pub fn has_priority(&self, message: &[u8]) -> bool {
        let Some(Ok(mut header)) = self.header.map(|section| value_of(section, message)) else {
            return false;
        };
        FieldReader::open(&mut header, "header").is_ok_and(|mut fields| {
            fields.optional::<bool>("durable").is_ok() && fields.has_value()
        })
    }

    /// The properties.
    pub fn read_properties<'a>(&self, message: &'a [u8]) -> Result<Properties<'a>, DecodeError> {
        match self.properties {
            Some(section) => Properties::read_fields(&mut value_of(section, message)?),
            None => Ok(Properties::default()),
        }
    }

    /// One of the sections that are maps; an empty one if the message has no such section.
    pub fn read_map<'a>(
        &self,
        section: Option<Section>,
        message: &'a [u8],
    ) -> Result<Map<'a>, DecodeError> {
        match section {
            Some(section) => match Value::read_shallow(&mut value_of(section, message)?)? {
                Value::Map(map) => Ok(map),
                _ => Ok(Map::default()),
            },
            None => Ok(Map::default()),
        }
    }

    /// The values of the body's sections: binaries, lists, or the one value. Their contents were not checked before.
    pub fn read_body<'a>(
        &self,
        message: &'a [u8],
    ) -> impl Iterator<Item = Result<Value<'a>, DecodeError>> + use<'a> {
        let bytes = self
            .body
            .and_then(|body| message.get(body.range()))
            .unwrap_or_default();
        SectionReader::new(bytes).map(move |section| Value::decode(&mut value_of(section?, bytes)?))
    }
}

fn value_of(section: Section, message: &[u8]) -> Result<Reader<'_>, DecodeError> {
    let bytes = message
        .get(section.value_range())
        .ok_or(Reason::Truncated)?;
    Ok(Reader::new(bytes))
}

/// Appends the descriptor of a section. Its value has to follow.
pub fn encode_section_descriptor<O: Output>(out: &mut O, kind: SectionKind) {
    writer::descriptor(out, kind as u8);
}

/// Appends the beginning of a data section. `size` bytes have to follow.
pub fn encode_data_section_start<O: Output>(out: &mut O, size: usize) {
    encode_section_descriptor(out, SectionKind::Data);
    writer::binary_start(out, size);
}

/// Appends a body section with these bytes.
pub fn encode_data_section<O: Output>(out: &mut O, data: &[u8]) {
    encode_section_descriptor(out, SectionKind::Data);
    data.encode(out);
}
