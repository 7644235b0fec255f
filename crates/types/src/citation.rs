//! Citations, in one format for all providers.

use serde_json::{Map, Value};

/// A reference from a passage of an answer to a span of a source. Unknown fields are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Citation {
    /// URL of the source.
    pub url: Option<String>,
    /// The source's title.
    pub title: Option<String>,
    /// Quoted text of the source.
    pub quote: Option<String>,
    /// Id of the source at the provider: of a document, a file or a search result.
    pub source: Option<String>,
    /// Index of the source among those of the request or of a search, from 0.
    pub document: Option<u32>,
    /// The cited span of the source.
    pub place: Option<CitedSpan>,
    /// Start of the passage in the answer's text, in characters (Unicode scalar values) from 0.
    pub start: Option<u32>,
    /// End of the passage, exclusive.
    pub end: Option<u32>,
    /// Opaque token of the provider, which must be sent back unchanged.
    pub token: Option<String>,
}

/// A span of a source, in the provider's own numbering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CitedSpan {
    /// Unit of `from` and `to`.
    pub unit: SpanUnit,
    /// First unit of the span.
    pub from: u32,
    /// End of the span, exclusive.
    pub to: u32,
}

/// Unit of a [`CitedSpan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SpanUnit {
    /// Characters of a text, from 0.
    Characters,
    /// Pages, from 1.
    Pages,
    /// Blocks of a document, from 0.
    Blocks,
    /// Blocks of a search result, from 0.
    Passages,
}

impl SpanUnit {
    const ALL: [Self; 4] = [Self::Characters, Self::Pages, Self::Blocks, Self::Passages];

    /// The stable name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Characters => "characters",
            Self::Pages => "pages",
            Self::Blocks => "blocks",
            Self::Passages => "passages",
        }
    }
}

impl Citation {
    /// Parses the citations of a chunk's column, a JSON array. Malformed entries are skipped.
    #[must_use]
    pub fn from_json(json: &str) -> Vec<Self> {
        let told: Vec<Value> = serde_json::from_str(json).unwrap_or_default();
        told.iter().filter_map(Self::of).collect()
    }

    /// Serializes citations for a chunk's column.
    #[must_use]
    pub fn to_json(citations: &[Self]) -> String {
        let told = citations.iter().map(Self::value);
        Value::Array(told.collect()).to_string()
    }

    /// A JSON object of the known fields.
    #[must_use]
    pub fn value(&self) -> Value {
        let mut told = Map::new();
        let texts = [
            ("url", &self.url),
            ("title", &self.title),
            ("quote", &self.quote),
            ("source", &self.source),
            ("token", &self.token),
        ];
        for (name, text) in texts {
            if let Some(text) = text {
                told.insert(name.to_owned(), text.as_str().into());
            }
        }
        if let Some(place) = self.place {
            told.insert("unit".to_owned(), place.unit.as_str().into());
            told.insert("from".to_owned(), place.from.into());
            told.insert("to".to_owned(), place.to.into());
        }
        let numbers = [
            ("document", self.document),
            ("start", self.start),
            ("end", self.end),
        ];
        for (name, number) in numbers {
            if let Some(number) = number {
                told.insert(name.to_owned(), number.into());
            }
        }
        Value::Object(told)
    }

    fn of(told: &Value) -> Option<Self> {
        let told = told.as_object()?;
        let text = |name: &str| told.get(name)?.as_str().map(str::to_owned);
        let number = |name: &str| u32::try_from(told.get(name)?.as_u64()?).ok();
        let unit = text("unit").and_then(|unit| {
            let mut units = SpanUnit::ALL.into_iter();
            units.find(|known| known.as_str() == unit)
        });
        let place = unit.zip(number("from")).zip(number("to"));
        Some(Self {
            url: text("url"),
            title: text("title"),
            quote: text("quote"),
            source: text("source"),
            document: number("document"),
            place: place.map(|((unit, from), to)| CitedSpan { unit, from, to }),
            start: number("start"),
            end: number("end"),
            token: text("token"),
        })
    }

    /// A URI of the source: its URL, or `document:` with its id or number.
    #[must_use]
    pub fn uri(&self) -> String {
        match (&self.url, &self.source, self.document) {
            (Some(url), _, _) => url.clone(),
            (None, Some(source), _) => format!("document:{source}"),
            (None, None, Some(number)) => format!("document:{number}"),
            (None, None, None) => "document:".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests;
