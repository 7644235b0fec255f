//! Metrics restricted to the models that a caller may see, filtered from the text of the node.

use volley_types::ModelScope;

/// The samples of `text` (OpenMetrics) whose label `model` is in `scope`, with the descriptions of
/// their families. Returns all of `text` if the scope contains all models.
pub(crate) fn filter_metrics(text: String, scope: &ModelScope) -> String {
    if scope.is_all() {
        return text;
    }
    let mut seen = String::new();
    // The description of a family precedes its samples and is only copied with one of them.
    let mut described = String::new();
    let mut in_samples = false;
    for line in text.lines().filter(|line| *line != "# EOF") {
        if line.starts_with('#') {
            if in_samples {
                described.clear();
                in_samples = false;
            }
            described.push_str(line);
            described.push('\n');
            continue;
        }
        in_samples = true;
        if model(line).is_some_and(|model| scope.covers(model)) {
            seen.push_str(&std::mem::take(&mut described));
            seen.push_str(line);
            seen.push('\n');
        }
    }
    seen.push_str("# EOF\n");
    seen
}

/// The label `model` of a sample. Model names contain no quotes and no commas.
fn model(line: &str) -> Option<&str> {
    let (_, labels) = line.split_once('{')?;
    let (labels, _) = labels.split_once('}')?;
    labels.split(',').find_map(|label| {
        let value = label.strip_prefix("model=\"")?;
        value.strip_suffix('"')
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use volley_types::ModelPattern;

    use super::*;

    const TEXT: &str = "# HELP volley_requests Predictions.\n# TYPE volley_requests counter\n\
        volley_requests_total{model=\"team-a.x\",code=\"ok\"} 8\n\
        volley_requests_total{model=\"team-b.x\",code=\"ok\"} 2\n\
        # HELP volley_active_streams Streams.\n# TYPE volley_active_streams gauge\n\
        volley_active_streams{model=\"team-b.x\"} 3\n\
        # TYPE volley_workers gauge\nvolley_workers{liveness=\"alive\"} 1\n\
        # TYPE volley_up gauge\nvolley_up 1\n# EOF\n";

    fn of(pattern: &str) -> String {
        let pattern: ModelPattern = pattern.parse().unwrap();
        filter_metrics(TEXT.to_owned(), &ModelScope::new(vec![pattern]))
    }

    #[test]
    fn a_caller_reads_its_own_samples_and_their_descriptions() {
        let own = "# HELP volley_requests Predictions.\n# TYPE volley_requests counter\n\
                   volley_requests_total{model=\"team-a.x\",code=\"ok\"} 8\n# EOF\n";
        assert_eq!(of("team-a.*"), own);
        assert!(of("team-b.*").contains("volley_active_streams{model=\"team-b.x\"} 3\n"));
        assert_eq!(of("team-c.*"), "# EOF\n");
        assert_eq!(
            filter_metrics(TEXT.to_owned(), &ModelScope::default()),
            TEXT
        );
    }

    proptest! {
        #[test]
        fn no_line_of_another_goes_out(lines in proptest::collection::vec("\\PC{0,20}|# \\PC{0,9}|x\\{model=\"(a|b)\\.x\"(,c=\"\\PC{0,5}\")?\\} 1", 0..30)) {
            let text = lines.join("\n") + "\n# EOF\n";
            let own = filter_metrics(text, &ModelScope::new(vec!["a.*".parse().unwrap()]));
            for line in own.lines().filter(|line| !line.starts_with('#')) {
                prop_assert!(line.contains("model=\"a.x\""), "{line}");
            }
        }
    }
}
