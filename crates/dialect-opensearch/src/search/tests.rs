use proptest::prelude::*;

use super::*;

fn documents() -> Vec<Value> {
    vec![
        json!({ "name": "Story teller", "model_state": "DEPLOYED", "created_time": 30, "tags": ["a"] }),
        json!({ "name": "text-embed", "model_state": "REGISTERED", "created_time": 10, "on": true }),
        json!({ "name": "text-rerank", "model_state": "DEPLOYED", "created_time": 20, "group": "g" }),
    ]
}

fn run(body: &Value) -> Result<Value, PredictError> {
    let asked = SearchQuery {
        size: None,
        from: None,
    };
    let search = Search::read(body.as_object().unwrap(), &asked)?;
    let documents = documents();
    let ids = (0..documents.len()).map(|index| index.to_string());
    let show = |id: &str| documents.get(id.parse::<usize>().ok()?).cloned();
    Ok(search.run(".index", ids, show))
}

fn found(query: Value) -> String {
    let told = run(&json!({ "query": query })).unwrap();
    let hits = told["hits"]["hits"].as_array().unwrap();
    let ids = hits
        .iter()
        .map(|hit| hit["_id"].as_str().unwrap().to_owned());
    ids.collect()
}

#[test]
fn every_kind_of_query_finds_what_it_says() {
    for (query, expected) in [
        (json!({ "match_all": {} }), "012"),
        (json!({ "match_none": {} }), ""),
        (json!({ "term": { "model_state": "DEPLOYED" } }), "02"),
        (
            json!({ "term": { "name.keyword": { "value": "text-embed" } } }),
            "1",
        ),
        (json!({ "term": { "created_time": 20 } }), "2"),
        (json!({ "term": { "on": true } }), "1"),
        (json!({ "terms": { "_id": ["0", "2", "7"] } }), "02"),
        (json!({ "ids": { "values": ["1"] } }), "1"),
        (json!({ "match": { "name": "TEXT story" } }), "012"),
        (
            json!({ "match": { "name": { "query": "text embed", "operator": "and" } } }),
            "1",
        ),
        (json!({ "match_phrase": { "name": "story teller" } }), "0"),
        (json!({ "match_phrase": { "name": "teller story" } }), ""),
        (
            json!({ "multi_match": { "query": "g", "fields": ["name", "group^2"] } }),
            "2",
        ),
        (json!({ "prefix": { "name": "text-" } }), "12"),
        (
            json!({ "wildcard": { "name": { "value": "*-R?rank", "case_insensitive": true } } }),
            "2",
        ),
        (json!({ "exists": { "field": "group" } }), "2"),
        (
            json!({ "range": { "created_time": { "gt": 10, "lte": 30 } } }),
            "02",
        ),
        (json!({ "term": { "tags": "a" } }), "0"),
        (
            json!({ "bool": {
                "must": [{ "term": { "model_state": "DEPLOYED" } }],
                "must_not": { "exists": { "field": "group" } },
            } }),
            "0",
        ),
        (
            json!({ "bool": { "should": [{ "term": { "_id": "1" } }, { "term": { "group": "g" } }] } }),
            "12",
        ),
        (
            json!({ "bool": { "filter": { "match_all": {} }, "minimum_should_match": 1,
                              "should": [{ "term": { "_id": "1" } }] } }),
            "1",
        ),
    ] {
        assert_eq!(found(query.clone()), expected, "{query}");
    }
}

#[test]
fn a_page_is_sorted_counted_and_cut() {
    let body = json!({
        "query": { "bool": {} }, "sort": [{ "created_time": { "order": "desc" } }],
        "from": 1, "size": 1, "_source": ["na*"],
    });
    let told = run(&body).unwrap();
    assert_eq!(told["hits"]["total"]["value"], 3);
    let hit = json!({ "_index": ".index", "_id": "2", "_score": null, "sort": [20],
                      "_source": { "name": "text-rerank" } });
    assert_eq!(told["hits"]["hits"], json!([hit]));
    let body = json!({ "sort": "name.keyword", "_source": false });
    let told = run(&body).unwrap();
    assert_eq!(
        told["hits"]["hits"][0],
        json!({ "_index": ".index", "_id": "0", "_score": null, "sort": ["Story teller"] })
    );
    // Documents without the field come last in both directions.
    for order in ["asc", "desc"] {
        let told = run(&json!({ "sort": { "group": order } })).unwrap();
        assert_eq!(told["hits"]["hits"][0]["_id"], "2");
    }
}

#[test]
fn what_is_not_understood_is_refused() {
    let many: Vec<_> = (0..2_000).map(Value::from).collect();
    for body in [
        json!({ "query": { "fuzzy": { "name": "x" } } }),
        json!({ "query": { "match_all": {}, "term": {} } }),
        json!({ "query": {} }),
        json!({ "query": { "term": { "a": 1, "b": 2 } } }),
        json!({ "query": { "term": { "a": { "b": 1 } } } }),
        json!({ "query": { "terms": { "a": "b" } } }),
        json!({ "query": { "terms": { "a": many } } }),
        json!({ "query": { "range": { "a": { "from": 1 } } } }),
        json!({ "query": { "bool": { "must": 1 } } }),
        json!({ "query": { "wildcard": { "a": 1 } } }),
        json!({ "aggs": {} }),
        json!({ "size": -1 }),
        json!({ "sort": [{ "a": "up" }] }),
        json!({ "_source": 1 }),
    ] {
        let error = run(&body).unwrap_err();
        assert_eq!(error.code, volley_types::ErrorCode::InvalidInput, "{body}");
    }
}

fn value() -> impl Strategy<Value = Value> {
    let names = prop::sample::select(vec![
        "query", "bool", "must", "should", "term", "terms", "match", "range", "gt", "ids",
        "values", "sort", "order", "size", "_source", "field", "exists", "wildcard", "name",
        "prefix",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[*?a-z\\\\]{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 4, move |inner| {
        let object = prop::collection::btree_map(names.clone(), inner.clone(), 0..3);
        prop_oneof![
            prop::collection::vec(inner, 0..4).prop_map(Value::from),
            object.prop_map(|fields| {
                let fields = fields
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), value));
                Value::Object(fields.collect())
            }),
        ]
    })
}

proptest! {
    #[test]
    fn no_body_makes_it_panic(query in value(), sort in value()) {
        let _ = run(&json!({ "query": query, "sort": sort }));
        let _ = run(&json!({ "query": { "bool": { "must": [query] } } }));
    }

    #[test]
    fn a_pattern_fits_what_it_was_made_of(text in "[a-c*?\\\\]{0,8}", start in 0_usize..4) {
        let start: String = text.chars().take(start).collect();
        prop_assert!(super::query::glob("*", &text));
        let query = json!({ "prefix": { "name": start } });
        let search = json!({ "query": query });
        let asked = SearchQuery { size: None, from: None };
        let search = Search::read(search.as_object().unwrap(), &asked).unwrap();
        let told = search.run("i", std::iter::once("0".to_owned()), |_| Some(json!({ "name": text })));
        prop_assert_eq!(&told["hits"]["total"]["value"], 1);
    }
}
