//! Settings of a Python model: the parameters of its version.

use std::time::Duration;

use serde_json::{Map, Value};
use volley_types::{ParamValue, Parameters, PredictError};

use crate::sandbox::Sandbox;

/// Programming interfaces that the host knows, and `auto`.
const INTERFACES: [&str; 5] = ["auto", "plain", "inferless", "mlserver", "triton"];
/// Most processes of one replica.
const MAX_INSTANCES: usize = 64;

/// How a replica runs its model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    /// Programming interface, or `auto`.
    pub(crate) interface: String,
    /// Interpreter: a path, or a version such as `3.12`.
    pub(crate) python: Option<String>,
    /// Processes of the replica; the model's files may set a default.
    pub(crate) instances: Option<usize>,
    /// How long a cancelled call may go on before its process is killed.
    pub(crate) cancel_grace: Duration,
    /// How long a process may take to load the model.
    pub(crate) load_timeout: Duration,
    /// Memory in bytes of one process and all that it starts.
    pub(crate) memory_limit: Option<u64>,
    /// Processes and threads of one process and all that it starts.
    pub(crate) task_limit: Option<u64>,
    /// GPUs of one process.
    pub(crate) gpus: Option<u64>,
    /// What the code may not reach.
    pub(crate) sandbox: Sandbox,
    /// All other parameters, for the host and the model.
    pub(crate) own: Map<String, Value>,
}

impl Settings {
    /// Reads the parameters of a version.
    ///
    /// # Errors
    /// `InvalidInput` that names the parameter.
    pub(crate) fn read(parameters: &Parameters) -> Result<Self, PredictError> {
        let interface = parameters
            .text("interface")
            .unwrap_or_else(|| "auto".to_owned());
        if !INTERFACES.contains(&interface.as_str()) {
            return Err(PredictError::invalid(format!(
                "parameter 'interface' must be one of {}",
                INTERFACES.join(", ")
            )));
        }
        let instances = parameters.unsigned("instances")?;
        let instances = instances.map(|count| usize::try_from(count).unwrap_or(usize::MAX));
        checked(instances.unwrap_or(1), "parameter 'instances'")?;
        let seconds = |name: &str, default: f64| -> Result<Duration, PredictError> {
            let seconds = parameters.float(name)?.unwrap_or(default);
            Duration::try_from_secs_f64(seconds)
                .ok()
                .filter(|span| !span.is_zero() && *span <= Duration::from_secs(86_400))
                .ok_or_else(|| {
                    let message = format!("parameter '{name}' must be from 0 to 86400 seconds");
                    PredictError::invalid(message)
                })
        };
        let sandbox = match parameters.text("sandbox") {
            None => Sandbox::None,
            Some(name) => Sandbox::from_name(&name).ok_or_else(|| {
                let names = Sandbox::NAMES;
                PredictError::invalid(format!("parameter 'sandbox' must be {names}"))
            })?,
        };
        let task_limit = parameters.unsigned("task_limit")?;
        if task_limit == Some(0) {
            return Err(PredictError::invalid(
                "parameter 'task_limit' must be 1 or more",
            ));
        }
        let own = parameters.iter().filter(|(name, _)| {
            !matches!(
                *name,
                "interface"
                    | "python"
                    | "instances"
                    | "cancel_grace_seconds"
                    | "load_timeout_seconds"
                    | "memory_limit_bytes"
                    | "task_limit"
                    | "gpus"
                    | "sandbox"
            )
        });
        Ok(Self {
            interface,
            python: parameters.text("python"),
            instances,
            cancel_grace: seconds("cancel_grace_seconds", 5.0)?,
            load_timeout: seconds("load_timeout_seconds", 600.0)?,
            memory_limit: parameters.unsigned("memory_limit_bytes")?,
            task_limit,
            gpus: parameters.unsigned("gpus")?,
            sandbox,
            own: own
                .map(|(name, value)| (name.to_owned(), json(value)))
                .collect(),
        })
    }
}

/// Checks a number of processes that `what` sets.
///
/// # Errors
/// `InvalidInput` when it is out of range.
pub(crate) fn checked(instances: usize, what: &str) -> Result<usize, PredictError> {
    match (1..=MAX_INSTANCES).contains(&instances) {
        true => Ok(instances),
        false => {
            let message = format!("{what} must be from 1 to {MAX_INSTANCES}");
            Err(PredictError::invalid(message))
        }
    }
}

/// A parameter as JSON.
pub(crate) fn json(value: &ParamValue) -> Value {
    match value {
        ParamValue::Bool(value) => (*value).into(),
        ParamValue::Int(value) => (*value).into(),
        ParamValue::Float(value) => (*value).into(),
        ParamValue::Text(value) => value.as_str().into(),
        ParamValue::Json(text) => {
            serde_json::from_str(text).unwrap_or_else(|_| text.as_str().into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_a_setting_belongs_to_the_model() {
        let parameters: Parameters = [
            ("instances".to_owned(), ParamValue::Int(3)),
            ("k".to_owned(), ParamValue::Float(0.5)),
            ("names".to_owned(), ParamValue::Json("[\"a\"]".to_owned())),
        ]
        .into_iter()
        .collect();
        let settings = Settings::read(&parameters).unwrap();
        assert_eq!(settings.instances, Some(3));
        assert_eq!(settings.interface, "auto");
        let own = serde_json::json!({ "k": 0.5, "names": ["a"] });
        assert_eq!(Value::Object(settings.own), own);
    }

    #[test]
    fn a_wrong_setting_is_named() {
        for (name, value) in [
            ("interface", ParamValue::Text("cog".to_owned())),
            ("instances", ParamValue::Int(0)),
            ("cancel_grace_seconds", ParamValue::Float(-1.0)),
            ("sandbox", ParamValue::Text("network".to_owned())),
            ("task_limit", ParamValue::Int(0)),
            ("gpus", ParamValue::Text("all".to_owned())),
        ] {
            let parameters: Parameters = [(name.to_owned(), value)].into_iter().collect();
            let error = Settings::read(&parameters).unwrap_err();
            assert!(error.message.contains(&format!("'{name}'")), "{error}");
        }
    }
}
