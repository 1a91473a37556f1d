use crate::value::code;
use crate::{Array, Described, Descriptor, List, Map, Output, Symbol, Timestamp, Uuid, Value};

/// A value that can be encoded.
pub trait Encode {
    /// Appends the encoded value, in its shortest encoding.
    fn encode<O: Output>(&self, out: &mut O);

    /// Returns true if the value is null, so that it can be omitted at the end of a composite value.
    #[inline]
    fn is_null(&self) -> bool {
        false
    }
}

impl<T: Encode + ?Sized> Encode for &T {
    #[inline]
    fn encode<O: Output>(&self, out: &mut O) {
        (**self).encode(out);
    }

    #[inline]
    fn is_null(&self) -> bool {
        (**self).is_null()
    }
}

impl<T: Encode> Encode for Option<T> {
    #[inline]
    fn encode<O: Output>(&self, out: &mut O) {
        match self {
            Some(value) => value.encode(out),
            None => out.put_byte(code::NULL),
        }
    }

    #[inline]
    fn is_null(&self) -> bool {
        self.as_ref().is_none_or(Encode::is_null)
    }
}

impl Encode for bool {
    #[inline]
    fn encode<O: Output>(&self, out: &mut O) {
        out.put_byte(if *self { code::TRUE } else { code::FALSE });
    }
}

impl Encode for u8 {
    #[inline]
    fn encode<O: Output>(&self, out: &mut O) {
        out.put(&[code::UBYTE, *self]);
    }
}

impl Encode for u16 {
    #[inline]
    fn encode<O: Output>(&self, out: &mut O) {
        let [a, b] = self.to_be_bytes();
        out.put(&[code::USHORT, a, b]);
    }
}

impl Encode for u32 {
    #[inline]
    fn encode<O: Output>(&self, out: &mut O) {
        match *self {
            0 => out.put_byte(code::UINT0),
            small @ 1..=255 => out.put(&[code::SMALLUINT, small as u8]),
            large => fixed(out, code::UINT, large.to_be_bytes()),
        }
    }
}

impl Encode for u64 {
    #[inline]
    fn encode<O: Output>(&self, out: &mut O) {
        match *self {
            0 => out.put_byte(code::ULONG0),
            small @ 1..=255 => out.put(&[code::SMALLULONG, small as u8]),
            large => fixed(out, code::ULONG, large.to_be_bytes()),
        }
    }
}

impl Encode for i8 {
    fn encode<O: Output>(&self, out: &mut O) {
        fixed(out, code::BYTE, self.to_be_bytes());
    }
}

impl Encode for i16 {
    fn encode<O: Output>(&self, out: &mut O) {
        fixed(out, code::SHORT, self.to_be_bytes());
    }
}

impl Encode for i32 {
    fn encode<O: Output>(&self, out: &mut O) {
        match i8::try_from(*self) {
            Ok(small) => fixed(out, code::SMALLINT, small.to_be_bytes()),
            Err(_) => fixed(out, code::INT, self.to_be_bytes()),
        }
    }
}

impl Encode for i64 {
    fn encode<O: Output>(&self, out: &mut O) {
        match i8::try_from(*self) {
            Ok(small) => fixed(out, code::SMALLLONG, small.to_be_bytes()),
            Err(_) => fixed(out, code::LONG, self.to_be_bytes()),
        }
    }
}

impl Encode for Timestamp {
    fn encode<O: Output>(&self, out: &mut O) {
        fixed(out, code::TIMESTAMP, self.0.to_be_bytes());
    }
}

impl Encode for Uuid {
    fn encode<O: Output>(&self, out: &mut O) {
        fixed(out, code::UUID, self.0);
    }
}

impl Encode for [u8] {
    #[inline]
    fn encode<O: Output>(&self, out: &mut O) {
        variable(out, code::BINARY8, code::BINARY32, self);
    }
}

impl Encode for str {
    #[inline]
    fn encode<O: Output>(&self, out: &mut O) {
        variable(out, code::STRING8, code::STRING32, self.as_bytes());
    }
}

impl Encode for Symbol<'_> {
    #[inline]
    fn encode<O: Output>(&self, out: &mut O) {
        variable(out, code::SYMBOL8, code::SYMBOL32, self.as_str().as_bytes());
    }
}

impl Encode for Descriptor<'_> {
    fn encode<O: Output>(&self, out: &mut O) {
        match self {
            Self::Code(code) => code.encode(out),
            Self::Symbol(symbol) => symbol.encode(out),
        }
    }
}

impl Encode for Described<'_> {
    fn encode<O: Output>(&self, out: &mut O) {
        out.put_byte(code::DESCRIBED);
        self.descriptor.encode(out);
        out.put(self.encoded);
    }
}

impl Encode for List<'_> {
    fn encode<O: Output>(&self, out: &mut O) {
        if self.count == 0 {
            out.put_byte(code::LIST0);
        } else {
            compound(
                out,
                code::LIST8,
                code::LIST32,
                self.count,
                &[],
                self.elements,
            );
        }
    }
}

impl Encode for Map<'_> {
    fn encode<O: Output>(&self, out: &mut O) {
        compound(out, code::MAP8, code::MAP32, self.count, &[], self.elements);
    }
}

impl Encode for Array<'_> {
    fn encode<O: Output>(&self, out: &mut O) {
        let shared = self.constructor.code;
        let Some(descriptor) = self.constructor.descriptor else {
            compound(
                out,
                code::ARRAY8,
                code::ARRAY32,
                self.count,
                &[shared],
                self.elements,
            );
            return;
        };
        // The descriptor's length is not known, so the header is completed afterwards.
        let mut writer = CompoundWriter::start(out, code::ARRAY8, code::ARRAY32);
        writer.out.put_byte(code::DESCRIBED);
        descriptor.encode(writer.out);
        writer.out.put_byte(shared);
        writer.out.put(self.elements);
        writer.count = self.count;
        writer.finish();
    }
}

impl Encode for Value<'_> {
    fn encode<O: Output>(&self, out: &mut O) {
        match self {
            Self::Null => out.put_byte(code::NULL),
            Self::Boolean(value) => value.encode(out),
            Self::Ubyte(value) => value.encode(out),
            Self::Ushort(value) => value.encode(out),
            Self::Uint(value) => value.encode(out),
            Self::Ulong(value) => value.encode(out),
            Self::Byte(value) => value.encode(out),
            Self::Short(value) => value.encode(out),
            Self::Int(value) => value.encode(out),
            Self::Long(value) => value.encode(out),
            Self::Float(value) => fixed(out, code::FLOAT, value.to_be_bytes()),
            Self::Double(value) => fixed(out, code::DOUBLE, value.to_be_bytes()),
            Self::Decimal32(value) => fixed(out, code::DECIMAL32, *value),
            Self::Decimal64(value) => fixed(out, code::DECIMAL64, *value),
            Self::Decimal128(value) => fixed(out, code::DECIMAL128, *value),
            Self::Char(value) => fixed(out, code::CHAR, u32::from(*value).to_be_bytes()),
            Self::Timestamp(value) => value.encode(out),
            Self::Uuid(value) => value.encode(out),
            Self::Binary(value) => value.encode(out),
            Self::String(value) => value.encode(out),
            Self::Symbol(value) => value.encode(out),
            Self::List(value) => value.encode(out),
            Self::Map(value) => value.encode(out),
            Self::Array(value) => value.encode(out),
            Self::Described(value) => value.encode(out),
        }
    }

    #[inline]
    fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }
}

#[inline]
fn fixed<O: Output, const N: usize>(out: &mut O, code: u8, bytes: [u8; N]) {
    out.put_byte(code);
    out.put(&bytes);
}

#[inline]
fn variable<O: Output>(out: &mut O, short: u8, long: u8, bytes: &[u8]) {
    variable_start(out, short, long, bytes.len());
    out.put(bytes);
}

#[inline]
fn variable_start<O: Output>(out: &mut O, short: u8, long: u8, size: usize) {
    match u8::try_from(size) {
        Ok(size) => out.put(&[short, size]),
        Err(_) => fixed(out, long, size32(size)),
    }
}

/// Writes the constructor and size of a binary; its bytes must follow.
pub(crate) fn binary_start<O: Output>(out: &mut O, size: usize) {
    variable_start(out, code::BINARY8, code::BINARY32, size);
}

fn compound<O: Output>(
    out: &mut O,
    short: u8,
    long: u8,
    count: u32,
    constructor: &[u8],
    elements: &[u8],
) {
    let size = constructor.len() + elements.len();
    match (u8::try_from(size + 1), u8::try_from(count)) {
        (Ok(size), Ok(count)) => out.put(&[short, size, count]),
        _ => {
            fixed(out, long, size32(size + 4));
            out.put(&count.to_be_bytes());
        }
    }
    out.put(constructor);
    out.put(elements);
}

/// A size of four bytes.
///
/// # Panics
///
/// The type system has no values of 4 GiB, and every value that this crate encodes is bounded by a frame or a message far below.
fn size32(size: usize) -> [u8; 4] {
    u32::try_from(size)
        .expect("an encoded value is smaller than 4 GiB")
        .to_be_bytes()
}

/// Writes the elements of a list, map or array whose number and size are not known before.
///
/// The header is written in its short form and replaced by the long one if the elements need it. Null elements of a composite
/// value are held back and omitted at its end.
#[derive(Debug)]
pub struct CompoundWriter<'o, O: Output> {
    pub(crate) out: &'o mut O,
    start: usize,
    count: u32,
    pending_nulls: u32,
    short: u8,
    long: u8,
}

/// Size of the short header: code, size and count of one byte each.
const SHORT_HEADER: usize = 3;
/// Size of the long header: code, size and count of four bytes each.
const LONG_HEADER: usize = 9;

impl<'o, O: Output> CompoundWriter<'o, O> {
    #[inline]
    fn start(out: &'o mut O, short: u8, long: u8) -> Self {
        let start = out.position();
        out.put(&[short, 0, 0]);
        Self {
            out,
            start,
            count: 0,
            pending_nulls: 0,
            short,
            long,
        }
    }

    /// Appends an element.
    #[inline]
    pub fn push(&mut self, value: &(impl Encode + ?Sized)) {
        value.encode(self.out);
        self.count += 1;
    }

    /// Appends an element that `write` encodes as exactly one value.
    pub fn push_with(&mut self, write: impl FnOnce(&mut O)) {
        write(self.out);
        self.count += 1;
    }

    /// Appends a field of a composite value, which is omitted if it and all fields after it are null.
    #[inline]
    pub(crate) fn field(&mut self, value: &impl Encode) {
        if value.is_null() {
            self.pending_nulls += 1;
            return;
        }
        for _ in 0..std::mem::take(&mut self.pending_nulls) {
            self.out.put_byte(code::NULL);
            self.count += 1;
        }
        self.push(value);
    }

    /// Completes the header.
    #[inline]
    pub fn finish(self) {
        let Self {
            out,
            start,
            count,
            short,
            long,
            ..
        } = self;
        debug_assert!(
            short != code::MAP8 || count.is_multiple_of(2),
            "a map has keys and values"
        );
        let body = out.position() - start - SHORT_HEADER;
        if count == 0 && short == code::LIST8 {
            out.truncate_to(start);
            out.put_byte(code::LIST0);
        } else if let (Ok(size), Ok(count)) = (u8::try_from(body + 1), u8::try_from(count)) {
            out.written(start)[1..3].copy_from_slice(&[size, count]);
        } else {
            out.open_gap(start, LONG_HEADER - SHORT_HEADER);
            let header = out.written(start);
            header[0] = long;
            header[1..5].copy_from_slice(&size32(body + 4));
            header[5..9].copy_from_slice(&count.to_be_bytes());
        }
    }
}

/// Starts a list.
pub fn list<O: Output>(out: &mut O) -> CompoundWriter<'_, O> {
    CompoundWriter::start(out, code::LIST8, code::LIST32)
}

/// Starts a map. Keys and values are pushed in turn.
pub fn map<O: Output>(out: &mut O) -> CompoundWriter<'_, O> {
    CompoundWriter::start(out, code::MAP8, code::MAP32)
}

/// Writes an array of symbols.
pub(crate) fn symbols<'a, O: Output>(
    out: &mut O,
    symbols: impl Iterator<Item = Symbol<'a>> + Clone,
) {
    let is_long = symbols.clone().any(|symbol| symbol.as_str().len() > 255);
    let mut writer = CompoundWriter::start(out, code::ARRAY8, code::ARRAY32);
    writer.out.put_byte(if is_long {
        code::SYMBOL32
    } else {
        code::SYMBOL8
    });
    for symbol in symbols {
        let bytes = symbol.as_str().as_bytes();
        if is_long {
            writer.out.put(&size32(bytes.len()));
        } else {
            writer.out.put_byte(bytes.len() as u8);
        }
        writer.out.put(bytes);
        writer.count += 1;
    }
    writer.finish();
}

/// Writes the descriptor of a described type; its value must follow.
#[inline]
pub(crate) fn descriptor<O: Output>(out: &mut O, code: u8) {
    out.put(&[code::DESCRIBED, code::SMALLULONG, code]);
}

/// Writes a value with a symbolic descriptor.
pub fn encode_described<O: Output>(
    out: &mut O,
    symbol: Symbol<'_>,
    value: &(impl Encode + ?Sized),
) {
    out.put_byte(code::DESCRIBED);
    symbol.encode(out);
    value.encode(out);
}
