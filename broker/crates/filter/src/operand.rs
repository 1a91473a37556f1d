use std::cmp::Ordering;

use codec_amqp10::Value;

/// A value in the evaluation of a filter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operand<'a> {
    /// No value, and the result of operations that have none. Predicates over it are unknown.
    Null,
    /// True or false.
    Boolean(bool),
    /// Any integer type, a character's number, or milliseconds since the Unix epoch.
    Integer(i128),
    /// A floating-point number.
    Float(f64),
    /// A string, symbol or binary. Filters compare them by their bytes, whichever of these types they have.
    Bytes(&'a [u8]),
    /// A universally unique id. Equal to the binary of its 16 bytes.
    Uuid([u8; 16]),
    /// A value of a type that filters do not compare: lists, maps, arrays, decimals, described types.
    Opaque,
}

impl<'a> From<Value<'a>> for Operand<'a> {
    fn from(value: Value<'a>) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Boolean(value) => Self::Boolean(value),
            Value::Ubyte(value) => Self::Integer(value.into()),
            Value::Ushort(value) => Self::Integer(value.into()),
            Value::Uint(value) => Self::Integer(value.into()),
            Value::Ulong(value) => Self::Integer(value.into()),
            Value::Byte(value) => Self::Integer(value.into()),
            Value::Short(value) => Self::Integer(value.into()),
            Value::Int(value) => Self::Integer(value.into()),
            Value::Long(value) => Self::Integer(value.into()),
            Value::Float(value) => Self::Float(value.into()),
            Value::Double(value) => Self::Float(value),
            Value::Char(value) => Self::Integer(u32::from(value).into()),
            Value::Timestamp(value) => Self::Integer(value.0.into()),
            Value::Uuid(value) => Self::Uuid(value.0),
            Value::Binary(value) => Self::Bytes(value),
            Value::String(value) => Self::Bytes(value.as_bytes()),
            Value::Symbol(value) => Self::Bytes(value.as_str().as_bytes()),
            Value::Decimal32(_)
            | Value::Decimal64(_)
            | Value::Decimal128(_)
            | Value::List(_)
            | Value::Map(_)
            | Value::Array(_)
            | Value::Described(_) => Self::Opaque,
        }
    }
}

impl From<Option<bool>> for Operand<'_> {
    fn from(truth: Option<bool>) -> Self {
        truth.map_or(Self::Null, Self::Boolean)
    }
}

impl Operand<'_> {
    /// The truth value. Operands other than booleans are unknown.
    pub(crate) fn truth(self) -> Option<bool> {
        match self {
            Self::Boolean(value) => Some(value),
            _ => None,
        }
    }

    /// The bytes of a string, symbol, binary or UUID.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Uuid(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The order of two numbers or two byte strings. None for other pairs and NaN.
    fn order(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Integer(left), Self::Integer(right)) => Some(left.cmp(right)),
            (Self::Float(left), Self::Float(right)) => left.partial_cmp(right),
            (Self::Integer(left), Self::Float(right)) => order_exactly(*left, *right),
            (Self::Float(left), Self::Integer(right)) => {
                order_exactly(*right, *left).map(Ordering::reverse)
            }
            _ => Some(self.bytes()?.cmp(other.bytes()?)),
        }
    }

    /// Equality without null: operands of different types are not equal.
    #[inline]
    pub(crate) fn equals(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Bytes(left), Self::Bytes(right)) => left == right,
            (Self::Boolean(left), Self::Boolean(right)) => left == right,
            _ => self.order(other) == Some(Ordering::Equal),
        }
    }
}

/// Compares an integer with a float without rounding the integer.
fn order_exactly(integer: i128, float: f64) -> Option<Ordering> {
    /// 2^127, the first float above all integers.
    const LIMIT: f64 = 170_141_183_460_469_231_731_687_303_715_884_105_728.0;
    if float.is_nan() {
        return None;
    }
    if float >= LIMIT {
        return Some(Ordering::Less);
    }
    if float < -LIMIT {
        return Some(Ordering::Greater);
    }
    let whole = float.trunc();
    // Within the range of i128 after the comparisons above.
    let order = integer.cmp(&(whole as i128));
    Some(order.then_with(|| {
        whole
            .partial_cmp(&float)
            // Neither is NaN.
            .unwrap_or(Ordering::Equal)
    }))
}

/// A comparison of two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Comparison {
    /// Unknown if an operand is null. Operands of different types are not equal and have no order.
    #[inline]
    pub(crate) fn apply(self, left: &Operand<'_>, right: &Operand<'_>) -> Option<bool> {
        if matches!(left, Operand::Null) || matches!(right, Operand::Null) {
            return None;
        }
        Some(match self {
            Self::Equal => left.equals(right),
            Self::NotEqual => !left.equals(right),
            Self::Less => left.order(right).is_some_and(Ordering::is_lt),
            Self::LessOrEqual => left.order(right).is_some_and(Ordering::is_le),
            Self::Greater => left.order(right).is_some_and(Ordering::is_gt),
            Self::GreaterOrEqual => left.order(right).is_some_and(Ordering::is_ge),
        })
    }
}

/// An arithmetic operation on two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    /// The quotient of two integers may have a fraction.
    Divide,
    /// The quotient of two integers is an integer, as in Java.
    DivideWhole,
    Remainder,
}

impl Arithmetic {
    /// Null if an operand is not a number, and if the result is not defined or not finite.
    pub(crate) fn apply<'a>(self, left: Operand<'a>, right: Operand<'a>) -> Operand<'a> {
        if let (Operand::Integer(left), Operand::Integer(right)) = (left, right) {
            let exact = match self {
                Self::Add => left.checked_add(right),
                Self::Subtract => left.checked_sub(right),
                Self::Multiply => left.checked_mul(right),
                // The one overflow, of the least integer by -1, has the result 0.
                Self::Remainder => {
                    return match right {
                        0 => Operand::Null,
                        _ => Operand::Integer(left.wrapping_rem(right)),
                    };
                }
                Self::DivideWhole if right == 0 => return Operand::Null,
                Self::DivideWhole => left.checked_div(right),
                Self::Divide => None,
            };
            if let Some(exact) = exact {
                return Operand::Integer(exact);
            }
        }
        let (Some(left), Some(right)) = (as_float(left), as_float(right)) else {
            return Operand::Null;
        };
        let result = match self {
            Self::Add => left + right,
            Self::Subtract => left - right,
            Self::Multiply => left * right,
            Self::Divide | Self::DivideWhole => left / right,
            Self::Remainder => return Operand::Null,
        };
        if result.is_finite() {
            Operand::Float(result)
        } else {
            Operand::Null
        }
    }
}

fn as_float(operand: Operand<'_>) -> Option<f64> {
    match operand {
        Operand::Integer(value) => Some(value as f64),
        Operand::Float(value) => Some(value),
        _ => None,
    }
}

/// The number with the other sign; null for other operands.
pub(crate) fn negate(operand: Operand<'_>) -> Operand<'_> {
    match operand {
        Operand::Integer(value) => match value.checked_neg() {
            Some(value) => Operand::Integer(value),
            None => Operand::Float(-(value as f64)),
        },
        Operand::Float(value) => Operand::Float(-value),
        _ => Operand::Null,
    }
}

/// A constant of a compiled filter.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Constant {
    Null,
    Boolean(bool),
    Integer(i128),
    Float(f64),
    Bytes(Box<[u8]>),
    Uuid([u8; 16]),
}

impl Constant {
    /// The operand in memory of its own. None for an opaque operand.
    pub(crate) fn from_operand(operand: Operand<'_>) -> Option<Self> {
        Some(match operand {
            Operand::Null => Self::Null,
            Operand::Boolean(value) => Self::Boolean(value),
            Operand::Integer(value) => Self::Integer(value),
            Operand::Float(value) => Self::Float(value),
            Operand::Bytes(value) => Self::Bytes(value.into()),
            Operand::Uuid(value) => Self::Uuid(value),
            Operand::Opaque => return None,
        })
    }

    #[inline]
    pub(crate) fn operand(&self) -> Operand<'_> {
        match self {
            Self::Null => Operand::Null,
            Self::Boolean(value) => Operand::Boolean(*value),
            Self::Integer(value) => Operand::Integer(*value),
            Self::Float(value) => Operand::Float(*value),
            Self::Bytes(value) => Operand::Bytes(value),
            Self::Uuid(value) => Operand::Uuid(*value),
        }
    }
}
