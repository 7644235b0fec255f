//! Endpoints that reference other connectors by id.

use serde_json::{Map, Value};
use volley_types::registry::RegistryState;
use volley_types::{ConnectorId, ErrorCode, PredictError};

use super::render;
use volley_http_edge::body::Fields;

/// Fields that an endpoint copies from the referenced connector.
const TAKEN: [&str; 5] = ["url", "model", "provider", "credential", "headers"];

/// Replaces the references in `endpoints` with the current server of each referenced connector.
/// Fields of the endpoint itself take precedence.
///
/// # Errors
/// `NotFound` for an unknown id; `InvalidInput` for a connector with parameters, a template or
/// endpoints.
pub(super) fn resolve(
    body: &mut Map<String, Value>,
    registry: &RegistryState,
) -> Result<(), PredictError> {
    let Some(Value::Array(endpoints)) = body.get_mut("endpoints") else {
        return Ok(());
    };
    for endpoint in endpoints.iter_mut().filter_map(Value::as_object_mut) {
        let Some(id) = endpoint.text("connector_id")?.map(ConnectorId::new) else {
            continue;
        };
        let id = id?;
        let other = registry.connectors.get(&id).ok_or_else(|| {
            PredictError::new(ErrorCode::NotFound, format!("no connector '{id}' exists"))
        })?;
        let templated = other.request_body.is_some() || !other.parameters.is_empty();
        if templated || !other.policy.endpoints.is_empty() {
            return Err(PredictError::invalid(format!(
                "connector '{id}' has 'parameters', a 'request_body' or 'endpoints', which an \
                 endpoint cannot have: give the endpoint's 'url' and its other fields instead"
            )));
        }
        endpoint.remove("connector_id");
        let Value::Object(told) = render(other) else {
            continue;
        };
        for (name, value) in told {
            if TAKEN.contains(&name.as_str()) && !value.is_null() {
                endpoint.entry(name).or_insert(value);
            }
        }
    }
    Ok(())
}
