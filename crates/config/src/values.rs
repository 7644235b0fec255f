//! Values of configuration keys: durations, sizes and counts.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const LONGEST: Duration = Duration::from_secs(30 * 24 * 3_600);
const LARGEST: u64 = 1 << 60;
const MOST: usize = 1_000_000_000;

/// Binary units of sizes, the largest first.
const BINARY: [(&str, u64); 4] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
];
const OTHER: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];

/// A duration with a unit, such as `30s` or `1m 30s`, from 1 ms to 30 days.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeSpan(pub Duration);

impl FromStr for TimeSpan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let duration = humantime::parse_duration(text)
            .map_err(|error| format!("'{text}' is not a duration such as \"30s\": {error}"))?;
        if duration < Duration::from_millis(1) || LONGEST < duration {
            return Err(format!("'{text}' is not between 1ms and 30 days"));
        }
        Ok(Self(duration))
    }
}

impl fmt::Display for TimeSpan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(formatter)
    }
}

/// A number of bytes with a unit, such as `16MiB`, from 1 B to 1 EiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl Size {
    /// The size as a length in memory.
    #[must_use]
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const WRONG: &str = "is not a size such as \"16MiB\"; the units are B, KiB, MiB, GiB and \
                             TiB (powers of 1024), and kB, MB, GB and TB (powers of 1000)";
        let text = text.trim();
        let number = |c: char| c.is_ascii_digit() || c == '.';
        let unit = text.trim_start_matches(number).trim_start();
        // `bytesize` also accepts a number without a unit, reads `16m` as megabytes, and saturates
        // on overflow. Only the documented units are accepted here.
        let known = BINARY.iter().map(|(name, _)| *name).chain(OTHER);
        if !known.into_iter().any(|name| name == unit) {
            return Err(format!("'{text}' {WRONG}"));
        }
        let parsed: Result<bytesize::ByteSize, _> = text.parse();
        let bytes = parsed.map_err(|_| format!("'{text}' {WRONG}"))?.as_u64();
        if bytes == 0 || LARGEST < bytes {
            return Err(format!("'{text}' is not between 1B and 1048576TiB"));
        }
        Ok(Self(bytes))
    }
}

/// Exact: a whole number of the largest binary unit that divides the size.
impl fmt::Display for Size {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = BINARY
            .iter()
            .find(|(_, bytes)| self.0.is_multiple_of(*bytes));
        let (name, bytes) = unit.copied().unwrap_or(("B", 1));
        write!(formatter, "{}{name}", self.0 / bytes)
    }
}

/// A number of things, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Count(pub usize);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let count = usize::deserialize(deserializer)?;
        if count == 0 || MOST < count {
            return Err(Error::custom(format!(
                "{count} is not between 1 and {MOST}"
            )));
        }
        Ok(Self(count))
    }
}

impl Serialize for Count {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

/// A visitor for strings that parse as `T`. Any other type is rejected with the expected format.
struct Text<T>(&'static str, std::marker::PhantomData<T>);

impl<T: FromStr<Err = String>> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.0)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

impl<'de> Deserialize<'de> for TimeSpan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let what = "a duration with a unit such as \"30s\"";
        deserializer.deserialize_str(Text(what, std::marker::PhantomData))
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let what = "a size with a unit such as \"16MiB\"";
        deserializer.deserialize_str(Text(what, std::marker::PhantomData))
    }
}

impl Serialize for TimeSpan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_size_is_read_as_it_is_written(bytes in 1..=LARGEST, shift in 0..60_u32) {
            for size in [Size(bytes), Size((bytes >> shift).max(1)), Size(1 << shift)] {
                prop_assert_eq!(size.to_string().parse(), Ok(size));
            }
        }

        #[test]
        fn a_duration_is_read_as_it_is_written(millis in 1..30 * 24 * 3_600_000_u64) {
            let span = TimeSpan(Duration::from_millis(millis));
            prop_assert_eq!(span.to_string().parse(), Ok(span));
        }
    }

    #[test]
    fn sizes_have_a_unit() {
        for (text, bytes) in [
            ("12GiB", 12 << 30),
            ("1 KiB", 1_024),
            ("1.5MiB", 3 << 19),
            ("64kB", 64_000),
            ("3TB", 3_000_000_000_000),
            ("7B", 7),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for wrong in [
            "4096",
            "16M",
            "16m",
            "16mib",
            "16Mi",
            "",
            "MiB",
            "0B",
            "-1B",
            "1e3KiB",
            "99999999999TiB",
            "2000000TiB",
        ] {
            assert!(wrong.parse::<Size>().is_err(), "{wrong}");
        }
        assert_eq!(Size(16 << 20).to_string(), "16MiB");
        assert_eq!(Size(1_000).to_string(), "1000B");
    }

    #[test]
    fn durations_have_a_unit_and_bounds() {
        assert_eq!("1m 30s".parse(), Ok(TimeSpan(Duration::from_secs(90))));
        for wrong in ["30", "", "0s", "1us", "31days", "soon", "-1s"] {
            assert!(wrong.parse::<TimeSpan>().is_err(), "{wrong}");
        }
    }
}
