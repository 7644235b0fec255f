//! Names of models with a `/` in paths. Clients write `/v1/models/Qwen/Qwen3-8B` as often as
//! `/v1/models/Qwen%2FQwen3-8B`: before routing, the parts of such a name are joined to one segment
//! of the path. Pure, except for the layer around the router.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use http::Uri;
use http::uri::PathAndQuery;
use tower::ServiceExt;

/// Path literals that are followed by the name of a model, alias or pipeline.
const BEFORE_NAMES: [&str; 6] = ["models", "aliases", "pipelines", "tasks", "tei", "tgi"];
/// The parameter before a name.
const ALGORITHM: &str = "{algorithm}";

/// The paths of all routes.
#[derive(Debug, Default)]
pub struct Templates(Vec<Vec<String>>);

/// Wraps `router`, which has these paths.
pub fn joined(router: Router, templates: Templates) -> Router {
    let templates = Arc::new(templates);
    let service = tower::service_fn(move |mut request: Request| {
        let (router, templates) = (router.clone(), templates.clone());
        async move {
            if let Some(uri) = templates.join(request.uri()) {
                *request.uri_mut() = uri;
            }
            let answered: Result<Response, _> = router.oneshot(request).await;
            answered
        }
    });
    Router::new().fallback_service(service)
}

impl Templates {
    /// The templates of routes with these paths.
    pub fn new<'a>(paths: impl Iterator<Item = &'a str>) -> Self {
        Self(
            paths
                .map(|path| segments(path).map(str::to_owned).collect())
                .collect(),
        )
    }

    /// The URI with the parts of a name joined; `None` if a route matches the unchanged path, or if
    /// no route matches the joined path.
    fn join(&self, uri: &Uri) -> Option<Uri> {
        let path = self.join_path(uri.path())?;
        let text = match uri.query() {
            Some(query) => format!("{path}?{query}"),
            None => path,
        };
        let mut parts = uri.clone().into_parts();
        parts.path_and_query = Some(PathAndQuery::try_from(text).ok()?);
        Uri::from_parts(parts).ok()
    }

    fn join_path(&self, path: &str) -> Option<String> {
        let given: Vec<_> = segments(path).collect();
        // The shortest match has a prefix and a name of two parts.
        if given.len() < 3 || self.0.iter().any(|route| is_route(route, &given)) {
            return None;
        }
        // The route with the most literals wins: a name that ends like a route needs `%2F`.
        let fits = self.0.iter().filter_map(|route| fit(route, &given));
        let (name, length) = fits.min_by_key(|(_, length)| *length)?;
        let joined = given[name..name + length].join("%2F");
        let all = given[..name]
            .iter()
            .chain(std::iter::once(&joined.as_str()))
            .chain(&given[name + length..])
            .fold(String::new(), |all, part| all + "/" + part);
        Some(all)
    }
}

fn segments(path: &str) -> impl Iterator<Item = &str> {
    path.strip_prefix('/').unwrap_or(path).split('/')
}

fn is_parameter(segment: &str) -> bool {
    segment.starts_with('{')
}

fn matches(template: &str, given: &str) -> bool {
    if is_parameter(template) {
        !given.is_empty()
    } else {
        template == given
    }
}

fn is_route(route: &[String], given: &[&str]) -> bool {
    let same = |(template, given): (&String, &&str)| matches(template, given);
    route.len() == given.len() && route.iter().zip(given).all(same)
}

/// Start and number of segments of the name if `given` matches `route`.
fn fit(route: &[String], given: &[&str]) -> Option<(usize, usize)> {
    let more = given.len().checked_sub(route.len())?;
    let is_name = |at: &usize| {
        let before = at.checked_sub(1).map(|before| route[before].as_str());
        is_parameter(&route[*at])
            && before.is_some_and(|it| BEFORE_NAMES.contains(&it) || it == ALGORITHM)
    };
    let name = (0..route.len()).rev().find(is_name)?;
    let length = more + 1;
    let (before, after) = (&route[..name], &route[name + 1..]);
    let same = |(template, given): (&String, &&str)| matches(template, given);
    let parts = &given[name..name + length];
    let fits = before.iter().zip(given).all(same)
        && after.iter().zip(&given[name + length..]).all(same)
        && parts.iter().all(|part| !part.is_empty());
    fits.then_some((name, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_name_become_one_segment() {
        let templates = Templates::new(
            [
                "/v1/models",
                "/v1/models/{id}",
                "/v1/streams/{id}",
                "/v2/models/{model}/infer",
                "/v2/models/{model}/ready",
                "/v2/models/{model}/versions/{version}/infer",
                "/_plugins/_ml/models/{id}/_deploy",
                "/_plugins/_ml/_predict/{algorithm}/{id}",
                "/tei/{model}",
                "/tei/{model}/embed",
            ]
            .into_iter(),
        );
        for (path, wanted) in [
            ("/v1/models/Qwen/Qwen3-8B", "/v1/models/Qwen%2FQwen3-8B"),
            ("/v1/models/a/b/c", "/v1/models/a%2Fb%2Fc"),
            ("/v2/models/a/b/infer", "/v2/models/a%2Fb/infer"),
            (
                "/v2/models/a/b/versions/2/infer",
                "/v2/models/a%2Fb/versions/2/infer",
            ),
            (
                "/_plugins/_ml/models/a/b/_deploy",
                "/_plugins/_ml/models/a%2Fb/_deploy",
            ),
            (
                "/_plugins/_ml/_predict/remote/a/b",
                "/_plugins/_ml/_predict/remote/a%2Fb",
            ),
            ("/tei/a/b/embed", "/tei/a%2Fb/embed"),
            ("/tei/a/b", "/tei/a%2Fb"),
        ] {
            assert_eq!(templates.join_path(path).as_deref(), Some(wanted), "{path}");
        }
        for path in [
            "/v1/models",
            "/v1/models/a",
            "/v1/models/a%2Fb",
            "/v1/models/a//b",
            "/v1/models//",
            "/v1/streams/a/b",
            "/v2/models/a/ready",
            "/v2/models/a/versions/2/infer",
            "/other/a/b",
            "/",
            "*",
        ] {
            assert_eq!(templates.join_path(path), None, "{path}");
        }
        let uri: Uri = "http://h/v1/models/a/b?all=true".parse().unwrap();
        let joined = templates.join(&uri).unwrap();
        assert_eq!(joined.to_string(), "http://h/v1/models/a%2Fb?all=true");
    }
}
