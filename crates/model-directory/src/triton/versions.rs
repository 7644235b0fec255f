//! `version_policy`: the versions in a repository that are served. Pure.

use super::fields::{messages, number, one_of, plain};
use super::text::Message;

/// The fields of `version_policy`, of which it has one.
const POLICIES: [&str; 3] = ["latest", "all", "specific"];

/// The selection of served versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Versions {
    /// This number of the highest versions.
    Latest(usize),
    All,
    Specific(Vec<String>),
}

impl Default for Versions {
    fn default() -> Self {
        Self::Latest(1)
    }
}

impl Versions {
    pub(crate) fn read(message: &Message) -> Result<Self, String> {
        let Some(policy) = messages(message, "version_policy")?.pop() else {
            return Ok(Self::default());
        };
        let mut others = policy.0.iter().map(|(field, _)| field.as_str());
        if let Some(other) = others.find(|field| !POLICIES.contains(field)) {
            return Err(format!(
                "'version_policy' has the unknown policy '{other}'; the policies are {}",
                POLICIES.join(", ")
            ));
        }
        one_of(policy, &POLICIES)?;
        if let Some(specific) = messages(policy, "specific")?.pop() {
            let versions = specific.all("versions");
            let versions = versions.map(|value| plain::<u64>(value, "versions"));
            let versions: Vec<u64> = versions.collect::<Result<_, _>>()?;
            if versions.is_empty() {
                return Err("'specific' in 'version_policy' has no 'versions'".to_owned());
            }
            let names = versions.iter().map(u64::to_string);
            return Ok(Self::Specific(names.collect()));
        }
        if policy.last("all").is_some() {
            return Ok(Self::All);
        }
        let Some(latest) = messages(policy, "latest")?.pop() else {
            return Ok(Self::default());
        };
        match number(latest, "num_versions")?.unwrap_or(1) {
            0 => Err("'num_versions' is 0; at least one version is served".to_owned()),
            count => Ok(Self::Latest(count)),
        }
    }

    /// The served versions among the existing ones `there`, in [`order`].
    ///
    /// # Errors
    /// A description of a declared version that does not exist.
    pub(crate) fn of(&self, there: &[String]) -> Result<Vec<String>, String> {
        let mut there = there.to_vec();
        there.sort_by(|a, b| order(a, b));
        let chosen: Vec<String> = match self {
            Self::All => there,
            // Names only count as the latest version if no number does.
            Self::Latest(count) => {
                let first = there.len().saturating_sub(*count);
                let latest = there.split_off(first);
                let numbers = latest.iter().any(|name| is_number(name));
                let fits = |name: &String| !numbers || is_number(name);
                latest.into_iter().filter(fits).collect()
            }
            Self::Specific(wanted) => {
                if let Some(missing) = wanted.iter().find(|name| !there.contains(name)) {
                    return Err(format!(
                        "'version_policy' names version {missing}, which does not exist"
                    ));
                }
                there.retain(|name| wanted.contains(name));
                there
            }
        };
        Ok(chosen)
    }
}

fn is_number(name: &str) -> bool {
    name.parse::<u64>().is_ok()
}

/// The order of versions: names before numbers, so that the highest number is last.
pub fn order(a: &str, b: &str) -> std::cmp::Ordering {
    match (a.parse::<u64>(), b.parse::<u64>()) {
        (Ok(a), Ok(b)) => a.cmp(&b),
        (Ok(_), Err(_)) => std::cmp::Ordering::Greater,
        (Err(_), Ok(_)) => std::cmp::Ordering::Less,
        (Err(_), Err(_)) => a.cmp(b),
    }
}

#[cfg(test)]
mod tests {
    use super::super::text;
    use super::*;

    #[test]
    fn a_policy_chooses_of_what_is_there() {
        let there = ["2", "10", "1", "beta"].map(str::to_owned);
        for (policy, chosen) in [
            ("", Ok(vec!["10"])),
            ("version_policy { latest { } }", Ok(vec!["10"])),
            (
                "version_policy { latest { num_versions: 2 } }",
                Ok(vec!["2", "10"]),
            ),
            (
                "version_policy { latest { num_versions: 9 } }",
                Ok(vec!["1", "2", "10"]),
            ),
            (
                "version_policy: { all { } }",
                Ok(vec!["beta", "1", "2", "10"]),
            ),
            (
                "version_policy { specific { versions: [ 10, 1 ] } }",
                Ok(vec!["1", "10"]),
            ),
            (
                "version_policy { specific { versions: 3 } }",
                Err("version 3"),
            ),
        ] {
            let versions = Versions::read(&text::parse(policy).unwrap()).unwrap();
            match (versions.of(&there), chosen) {
                (Ok(found), Ok(chosen)) => assert_eq!(found, chosen, "{policy}"),
                (Err(error), Err(told)) => assert!(error.contains(told), "{error}"),
                (found, chosen) => panic!("{policy}: {found:?}, not {chosen:?}"),
            }
        }
        let named = ["beta", "alpha"].map(str::to_owned);
        assert_eq!(Versions::default().of(&named).unwrap(), ["beta"]);
        let none = text::parse("version_policy { latest { num_versions: 0 } }").unwrap();
        assert!(Versions::read(&none).is_err());
        for (policy, told) in [
            ("lates { }", "'lates'"),
            ("latest { } all { }", "'latest' and 'all'"),
            ("specific { }", "'versions'"),
        ] {
            let policy = text::parse(&format!("version_policy {{ {policy} }}")).unwrap();
            let error = Versions::read(&policy).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
    }
}
