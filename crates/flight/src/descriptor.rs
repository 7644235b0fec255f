//! Conversion of Flight descriptors.

use std::time::Instant;

use arrow_flight::FlightDescriptor;
use arrow_flight::flight_descriptor::DescriptorType;
use volley_proto::predict::v1::PredictCommand;
use volley_proto::predict_command::{self, PredictHead};
use volley_types::{ModelName, ModelRef, ModelVersion, Parameters, PredictError};

use crate::udf::function;

/// One of the two schemas of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The request's rows.
    Input,
    /// The response's rows.
    Output,
}

/// A command with only the name of `model`: it describes the model's own rows.
pub(crate) fn command_of(model: &ModelRef) -> FlightDescriptor {
    let command = PredictCommand {
        model: model.name.to_string(),
        version: model.version.map_or(0, |version| version.0),
        ..PredictCommand::default()
    };
    FlightDescriptor::new_cmd(predict_command::encode(&command))
}

/// A descriptor for `model`: `[name]` or `[name:version]`.
pub(crate) fn of_model(model: &ModelRef) -> FlightDescriptor {
    FlightDescriptor::new_path(vec![model.to_string()])
}

/// Parses the call of a `DoExchange` descriptor.
///
/// # Errors
/// `InvalidInput` for a malformed descriptor.
pub(crate) fn head(
    descriptor: &FlightDescriptor,
    now: Instant,
) -> Result<PredictHead, PredictError> {
    match descriptor.r#type() {
        DescriptorType::Cmd => {
            predict_command::from_wire(predict_command::decode(&descriptor.cmd)?, now)
        }
        DescriptorType::Path => {
            let (model, parameters) = called(&descriptor.path)?;
            let head = PredictHead::plain(model);
            Ok(PredictHead { parameters, ..head })
        }
        DescriptorType::Unknown => Err(untyped()),
    }
}

/// The name in a path descriptor, with its options; `None` for commands.
pub(crate) fn name(descriptor: &FlightDescriptor) -> Option<&str> {
    match (descriptor.r#type(), descriptor.path.as_slice()) {
        (DescriptorType::Path, [name, ..]) => Some(name),
        _ => None,
    }
}

/// The model of a path, and the options of a function's name.
fn called(path: &[String]) -> Result<(ModelRef, Parameters), PredictError> {
    match path {
        [name] => function::parse_name(name),
        _ => Ok((model_of_path(path)?, Parameters::default())),
    }
}

/// The model and options of a function's descriptor, and the schema that `GetSchema` requests.
///
/// # Errors
/// `InvalidInput` for a malformed descriptor.
pub(crate) fn function_of(
    descriptor: &FlightDescriptor,
) -> Result<(ModelRef, Parameters, Side), PredictError> {
    match descriptor.path.split_last() {
        Some((last, name)) if !name.is_empty() && last == "output" => {
            called(name).map(|(model, options)| (model, options, Side::Output))
        }
        _ => called(&descriptor.path).map(|(model, options)| (model, options, Side::Input)),
    }
}

/// The model of a descriptor, for discovery.
///
/// # Errors
/// `InvalidInput` for a malformed descriptor.
pub(crate) fn model(descriptor: &FlightDescriptor) -> Result<ModelRef, PredictError> {
    Ok(schema_of(descriptor)?.0)
}

/// The model and the schema of a `GetSchema` descriptor; by default the input schema.
///
/// # Errors
/// `InvalidInput` for a malformed descriptor.
pub(crate) fn schema_of(descriptor: &FlightDescriptor) -> Result<(ModelRef, Side), PredictError> {
    match descriptor.r#type() {
        DescriptorType::Cmd => {
            let head = head(descriptor, Instant::now())?;
            Ok((head.model, Side::Input))
        }
        DescriptorType::Path => match descriptor.path.split_last() {
            Some((last, model)) if !model.is_empty() && last == "output" => {
                Ok((model_of_path(model)?, Side::Output))
            }
            Some((last, model)) if !model.is_empty() && last == "input" => {
                Ok((model_of_path(model)?, Side::Input))
            }
            _ => Ok((model_of_path(&descriptor.path)?, Side::Input)),
        },
        DescriptorType::Unknown => Err(untyped()),
    }
}

fn untyped() -> PredictError {
    PredictError::invalid(
        "the descriptor must be a path with the model's name, or a command that begins with 'VLY1'",
    )
}

fn model_of_path(path: &[String]) -> Result<ModelRef, PredictError> {
    match path {
        [model] => model.parse(),
        [name, version] => {
            let version = version.parse().map(ModelVersion).map_err(|_| {
                PredictError::invalid(
                    "the second part of a path descriptor must be a version number",
                )
            })?;
            Ok(ModelRef {
                name: ModelName::new(name.as_str())?,
                version: Some(version),
            })
        }
        _ => Err(PredictError::invalid(
            "a path descriptor must have the model's name, and may have a version after it",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(parts: &[&str]) -> FlightDescriptor {
        FlightDescriptor::new_path(parts.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn paths_name_a_model_and_a_side() {
        let cases = [
            (vec!["m"], "m", Side::Input),
            (vec!["m:2"], "m:2", Side::Input),
            (vec!["m", "2"], "m:2", Side::Input),
            (vec!["m", "output"], "m", Side::Output),
            (vec!["m", "2", "output"], "m:2", Side::Output),
            (vec!["m:2", "input"], "m:2", Side::Input),
            (vec!["output"], "output", Side::Input),
        ];
        for (parts, model, side) in cases {
            assert_eq!(
                schema_of(&path(&parts)).unwrap(),
                (model.parse().unwrap(), side),
                "{parts:?}"
            );
        }
    }

    #[test]
    fn bad_descriptors_are_invalid_input() {
        for bad in [
            FlightDescriptor::default(),
            path(&[]),
            path(&["a", "b"]),
            path(&["a", "1", "2"]),
            path(&["a//b"]),
            path(&["/a"]),
            FlightDescriptor::new_cmd(&b"no"[..]),
            FlightDescriptor::new_cmd(&b"VLY1\xff"[..]),
        ] {
            assert_eq!(
                head(&bad, Instant::now()).unwrap_err().code,
                volley_types::ErrorCode::InvalidInput,
                "{bad:?}"
            );
        }
    }
}
