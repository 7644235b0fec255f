//! Suggestions for misspelled names.

use crate::error::PredictError;

/// The name among `names` with the least edit distance to `given`. `None` when the distance exceeds
/// a third of the length of `given`, or when `given` has more than 64 characters.
#[must_use]
pub fn nearest<'a>(given: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    /// Longer input is not compared, which bounds the work.
    const LONGEST: usize = 64;
    let given: Vec<char> = given.chars().take(LONGEST + 1).collect();
    if LONGEST < given.len() {
        return None;
    }
    let most = (given.len() / 3).max(1);
    let distances = names.into_iter().map(|name| (distance(&given, name), name));
    let (distance, name) = distances.min()?;
    (distance <= most).then_some(name)
}

/// An `InvalidInput` error for a parameter that is not among `names`, with a suggestion if one is
/// near.
#[must_use]
pub fn unknown_parameter<'a>(
    given: &str,
    names: impl IntoIterator<Item = &'a str>,
) -> PredictError {
    let shown: String = given.chars().filter(|c| !c.is_control()).take(64).collect();
    let hint = nearest(given, names).map_or_else(
        || "leave it out".to_owned(),
        |nearest| format!("did you mean '{nearest}'?"),
    );
    PredictError::invalid(format!("parameter '{shown}' is not known; {hint}"))
}

/// Edit distance with transpositions (optimal string alignment).
fn distance(given: &[char], name: &str) -> usize {
    let name: Vec<char> = name.chars().collect();
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=name.len()).collect();
    for (row, letter) in given.iter().enumerate() {
        let mut next = vec![row + 1];
        for (column, other) in name.iter().enumerate() {
            let exchanged = last[column] + usize::from(letter != other);
            let mut least = exchanged.min(last[column + 1] + 1).min(next[column] + 1);
            let swapped =
                0 < row && 0 < column && *letter == name[column - 1] && given[row - 1] == *other;
            if swapped {
                least = least.min(before[column - 1] + 1);
            }
            next.push(least);
        }
        before = std::mem::replace(&mut last, next);
    }
    last.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_pen_finds_its_name_and_another_word_none() {
        let names = ["temperature", "top_p", "max_tokens", "stop"];
        for (given, expected) in [
            ("temprature", Some("temperature")),
            ("temperatrue", Some("temperature")),
            ("max_token", Some("max_tokens")),
            ("topp", Some("top_p")),
            ("colour", None),
            ("", None),
        ] {
            assert_eq!(nearest(given, names), expected, "{given}");
        }
        assert_eq!(nearest(&"x".repeat(100_000), names), None);
        assert_eq!(nearest("stop", []), None);
    }
}
