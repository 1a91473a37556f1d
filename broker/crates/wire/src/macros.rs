//! Implementations of [`Wire`](crate::Wire) from lists of fields and variants.

/// Implements [`Wire`](crate::Wire) for a struct: its fields in this order.
///
/// ```
/// struct Binding { key: String, priority: u8 }
/// wire::wire_struct!(Binding { key: String, priority: u8 });
/// ```
#[macro_export]
macro_rules! wire_struct {
    ($name:ty { $($field:ident : $type:ty),* $(,)? }) => {
        impl $crate::Wire for $name {
            const MIN_LEN: usize = 0 $(+ <$type as $crate::Wire>::MIN_LEN)*;

            fn put(&self, out: &mut $crate::bytes::BytesMut) {
                $(<$type as $crate::Wire>::put(&self.$field, out);)*
            }

            fn get(from: &mut $crate::Reader<'_>) -> $crate::Decoded<Self> {
                Ok(Self { $($field: from.get::<$type>()?),* })
            }
        }
    };
}

/// Implements [`Wire`](crate::Wire) for a struct with one unnamed field.
#[macro_export]
macro_rules! wire_newtype {
    ($name:ident($type:ty)) => {
        impl $crate::Wire for $name {
            const MIN_LEN: usize = <$type as $crate::Wire>::MIN_LEN;

            fn put(&self, out: &mut $crate::bytes::BytesMut) {
                <$type as $crate::Wire>::put(&self.0, out);
            }

            fn get(from: &mut $crate::Reader<'_>) -> $crate::Decoded<Self> {
                from.get::<$type>().map($name)
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
        $tag:literal = $variant:ident $( ( $($one:ident : $one_type:ty),+ ) )? $( { $($field:ident : $type:ty),* $(,)? } )?
    ),* $(,)? }) => {
        impl $crate::Wire for $name {
            fn put(&self, out: &mut $crate::bytes::BytesMut) {
                match self {
                    $($name::$variant $( ( $($one),+ ) )? $( { $($field),* } )? => {
                        <u8 as $crate::Wire>::put(&$tag, out);
                        $( $(<$one_type as $crate::Wire>::put($one, out);)+ )?
                        $( $(<$type as $crate::Wire>::put($field, out);)* )?
                    })*
                }
            }

            fn get(from: &mut $crate::Reader<'_>) -> $crate::Decoded<Self> {
                match from.u8()? {
                    $($tag => Ok($name::$variant
                        $( ( $(from.get::<$one_type>()?),+ ) )?
                        $( { $($field: from.get::<$type>()?),* } )?
                    ),)*
                    other => Err(from.error($crate::DecodeCause::Tag($what, other))),
                }
            }
        }
    };
}
