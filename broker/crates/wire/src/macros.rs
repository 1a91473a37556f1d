//! Implementations of [`Wire`](crate::Wire) from lists of fields and variants.

/// The encoding of a field.
#[doc(hidden)]
#[macro_export]
macro_rules! field_encoding {
    () => {
        $crate::Plain
    };
    ($encoding:ty) => {
        $encoding
    };
}

/// Implements [`Wire`](crate::Wire) for a struct: its fields in this order. A field has the encoding of its type, or the
/// [`Encoding`](crate::Encoding) behind `as`.
///
/// ```
/// struct Binding { key: String, priority: u8 }
/// wire::wire_struct!(Binding { key: String, priority: u8 });
/// ```
#[macro_export]
macro_rules! wire_struct {
    ($name:ty { $($field:ident : $type:ty $(as $encoding:ty)?),* $(,)? }) => {
        impl $crate::Wire for $name {
            const MIN_LEN: usize = 0
                $(+ <$crate::field_encoding!($($encoding)?) as $crate::Encoding<$type>>::MIN_LEN)*;

            fn put(&self, out: &mut $crate::bytes::BytesMut) {
                $(<$crate::field_encoding!($($encoding)?) as $crate::Encoding<$type>>::put(&self.$field, out);)*
            }

            fn get(from: &mut $crate::Reader<'_>) -> $crate::Decoded<Self> {
                Ok(Self {
                    $($field: <$crate::field_encoding!($($encoding)?) as $crate::Encoding<$type>>::get(from)?),*
                })
            }
        }
    };
}

/// Implements [`Wire`](crate::Wire) for a struct with one unnamed field.
#[macro_export]
macro_rules! wire_newtype {
    ($name:ident($type:ty $(as $encoding:ty)?)) => {
        impl $crate::Wire for $name {
            const MIN_LEN: usize = <$crate::field_encoding!($($encoding)?) as $crate::Encoding<$type>>::MIN_LEN;

            fn put(&self, out: &mut $crate::bytes::BytesMut) {
                <$crate::field_encoding!($($encoding)?) as $crate::Encoding<$type>>::put(&self.0, out);
            }

            fn get(from: &mut $crate::Reader<'_>) -> $crate::Decoded<Self> {
                <$crate::field_encoding!($($encoding)?) as $crate::Encoding<$type>>::get(from).map($name)
            }
        }
    };
}

/// Implements [`Wire`](crate::Wire) for an enum: a tag of one byte, then the fields of the variant. Tags are never used
/// again for something else. The text names the type in errors.
///
/// ```
/// enum Destination { Queue(String), Exchange { name: String }, Nowhere }
/// wire::wire_enum!(Destination, "a destination" {
///     1 = Queue(name: String),
///     2 = Exchange { name: String },
///     3 = Nowhere,
/// });
/// ```
#[macro_export]
macro_rules! wire_enum {
    ($name:ident, $what:literal { $(
        $tag:literal = $variant:ident
            $( ( $($one:ident : $one_type:ty $(as $one_encoding:ty)?),+ ) )?
            $( { $($field:ident : $type:ty $(as $encoding:ty)?),* $(,)? } )?
    ),* $(,)? }) => {
        impl $crate::Wire for $name {
            fn put(&self, out: &mut $crate::bytes::BytesMut) {
                match self {
                    $($name::$variant $( ( $($one),+ ) )? $( { $($field),* } )? => {
                        <u8 as $crate::Wire>::put(&$tag, out);
                        $( $(<$crate::field_encoding!($($one_encoding)?) as $crate::Encoding<$one_type>>::put($one, out);)+ )?
                        $( $(<$crate::field_encoding!($($encoding)?) as $crate::Encoding<$type>>::put($field, out);)* )?
                    })*
                }
            }

            fn get(from: &mut $crate::Reader<'_>) -> $crate::Decoded<Self> {
                match from.u8()? {
                    $($tag => Ok($name::$variant
                        $( ( $(<$crate::field_encoding!($($one_encoding)?) as $crate::Encoding<$one_type>>::get(from)?),+ ) )?
                        $( { $($field: <$crate::field_encoding!($($encoding)?) as $crate::Encoding<$type>>::get(from)?),* } )?
                    ),)*
                    other => Err(from.error($crate::DecodeCause::Tag($what, other))),
                }
            }
        }
    };
}
