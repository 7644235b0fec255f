use proptest::prelude::*;

use super::*;

fn citation() -> impl Strategy<Value = Citation> {
    let text = || proptest::option::of(".{0,20}");
    let number = || any::<Option<u32>>();
    let place = proptest::option::of((0..4_usize, any::<u32>(), any::<u32>()));
    let texts = (text(), text(), text(), text(), text());
    (texts, number(), number(), number(), place).prop_map(|(texts, document, start, end, place)| {
        Citation {
            url: texts.0,
            title: texts.1,
            quote: texts.2,
            source: texts.3,
            token: texts.4,
            document,
            place: place.map(|(unit, from, to)| CitedSpan {
                unit: SpanUnit::ALL[unit],
                from,
                to,
            }),
            start,
            end,
        }
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read(citations in proptest::collection::vec(citation(), 0..4)) {
        let json = Citation::to_json(&citations);
        prop_assert_eq!(Citation::from_json(&json), citations);
    }

    #[test]
    fn no_text_is_a_panic(json in any::<String>()) {
        let none = Citation::from_json(&json);
        prop_assert!(none.len() <= json.len());
        let _ = Citation::from_json(&format!("[{json}, {{\"url\": 1, \"start\": -1}}]"));
    }
}

#[test]
fn a_source_has_a_uri_whatever_is_known_of_it() {
    let mut citation = Citation::default();
    assert_eq!(citation.uri(), "document:");
    citation.document = Some(2);
    assert_eq!(citation.uri(), "document:2");
    citation.source = Some("file-1".to_owned());
    assert_eq!(citation.uri(), "document:file-1");
    citation.url = Some("https://a.example".to_owned());
    assert_eq!(citation.uri(), "https://a.example");
}
