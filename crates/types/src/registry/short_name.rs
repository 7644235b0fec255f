//! `Copy` names of 1 to 31 lower-case letters, digits and `_`.

/// Declares a type of such names: documentation, type name, and noun for errors.
macro_rules! short_name {
    ($(#[$meta:meta])* $name:ident, $what:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name {
            bytes: [u8; Self::MAX_LEN],
            length: u8,
        }

        impl $name {
            /// Maximum length of a name in bytes.
            pub const MAX_LEN: usize = 31;

            /// Validates `name`.
            ///
            /// # Errors
            /// `InvalidInput` if the name is malformed.
            pub fn new(name: &str) -> Result<Self, $crate::error::PredictError> {
                Self::parse(name).ok_or_else(|| {
                    $crate::error::PredictError::invalid(format!(
                        concat!($what, " must be 1 to {} lower-case letters, digits and '_'"),
                        Self::MAX_LEN
                    ))
                })
            }

            /// Creates a name from a literal. In a constant, a malformed name fails to compile.
            ///
            /// # Panics
            /// If the name is malformed.
            #[must_use]
            pub const fn from_static(name: &'static str) -> Self {
                match Self::parse(name) {
                    Some(name) => name,
                    None => panic!(concat!($what, " is malformed")),
                }
            }

            const fn parse(name: &str) -> Option<Self> {
                let given = name.as_bytes();
                if given.is_empty() || Self::MAX_LEN < given.len() {
                    return None;
                }
                let mut bytes = [0; Self::MAX_LEN];
                let mut at = 0;
                while at < given.len() {
                    if !matches!(given[at], b'a'..=b'z' | b'0'..=b'9' | b'_') {
                        return None;
                    }
                    bytes[at] = given[at];
                    at += 1;
                }
                // The length is at most `MAX_LEN`.
                let length = given.len() as u8;
                Some(Self { bytes, length })
            }

            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                let bytes = &self.bytes[..usize::from(self.length)];
                // It was validated as ASCII.
                std::str::from_utf8(bytes).unwrap_or_default()
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{:?}", self.as_str())
            }
        }
    };
}

pub(crate) use short_name;
