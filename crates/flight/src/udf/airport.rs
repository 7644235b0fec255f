//! The catalogue that DuckDB's Airport attaches: one schema, `models`, in which every model is a
//! scalar function. Its messages are MessagePack.

use arrow_flight::{FlightDescriptor, FlightInfo, IpcMessage, SchemaAsIpc};
use arrow_ipc::writer::IpcWriteOptions;
use arrow_schema::{ArrowError, Schema};
use volley_types::{ErrorCode, ModelName, PredictError, Signature, Task};

use super::caller::UdfCaller;
use super::function::Function;
use super::msgpack::{Value, encode, map};
use super::types::widest;

/// The one schema of the catalogue. Not `main`: DuckDB looks for that one in itself.
pub(crate) const SCHEMA: &str = "models";

const LIST_SCHEMAS: &str = "list_schemas";
const CATALOG_VERSION: &str = "catalog_version";
const CREATE_TRANSACTION: &str = "create_transaction";

/// The actions that Airport calls, with what they are for.
pub(crate) const ACTIONS: [(&str, &str); 3] = [
    (
        LIST_SCHEMAS,
        "DuckDB's Airport: the schemas of the catalogue",
    ),
    (
        CATALOG_VERSION,
        "DuckDB's Airport: changes when models come and go",
    ),
    (
        CREATE_TRANSACTION,
        "DuckDB's Airport: there are no transactions",
    ),
];

/// Only `scalar_function` is offered.
///
/// # Errors
/// `Unimplemented` for every other operation.
pub(crate) fn check_operation(caller: &UdfCaller) -> Result<(), PredictError> {
    match caller.operation.as_deref() {
        Some("scalar_function") => Ok(()),
        _ => Err(PredictError::new(
            ErrorCode::Unimplemented,
            "models are scalar functions; there are no tables or table functions here",
        )),
    }
}

/// A model's function as an entry of the catalogue that the caller has attached.
///
/// # Errors
/// `Internal` when Arrow cannot write its schemas.
pub(crate) fn info(
    name: &ModelName,
    signature: &Signature,
    function: &Function,
    caller: &UdfCaller,
) -> Result<FlightInfo, PredictError> {
    let stability = match signature.task {
        Task::Generate | Task::Events => "volatile",
        _ => "consistent_within_query",
    };
    let extra = encode(&map([("stability", stability.into())]));
    let about = format!("The model {name}, which does {}", signature.task.as_str());
    let metadata = map([
        ("type", "scalar_function".into()),
        ("schema", SCHEMA.into()),
        ("catalog", caller.catalog.as_str().into()),
        ("name", name.as_str().into()),
        ("comment", about.as_str().into()),
        (
            "input_schema",
            Value::Binary(schema_bytes(&named(function))?),
        ),
        ("action_name", Value::Nil),
        ("description", about.as_str().into()),
        ("extra_data", Value::Binary(extra)),
    ]);
    let info = FlightInfo::new()
        .try_with_schema(&function.result)
        .map_err(unwritable)?
        .with_descriptor(FlightDescriptor::new_path(vec![name.to_string()]))
        .with_total_records(-1)
        .with_total_bytes(-1)
        .with_app_metadata(encode(&metadata));
    Ok(info)
}

/// The arguments without metadata, which DuckDB would compare, and as wide as they may be: DuckDB
/// casts an INTEGER or a FLOAT to what is wider by itself, and never a DOUBLE to a FLOAT.
fn named(function: &Function) -> Schema {
    let fields = function.args.fields().iter();
    let wide = fields.map(|field| {
        let field = field.as_ref().clone().with_metadata(Default::default());
        let kind = widest(field.data_type());
        field.with_data_type(kind)
    });
    Schema::new(wide.collect::<Vec<_>>())
}

fn schema_bytes(schema: &Schema) -> Result<Vec<u8>, PredictError> {
    let message: IpcMessage = SchemaAsIpc::new(schema, &IpcWriteOptions::default())
        .try_into()
        .map_err(unwritable)?;
    Ok(message.0.to_vec())
}

fn unwritable(error: ArrowError) -> PredictError {
    PredictError::internal("the function's schema could not be written", error)
}

/// The answer to one of [`ACTIONS`]; `None` for other actions. `models` are those that the
/// caller may call.
pub(crate) fn act(action: &str, models: &[ModelName]) -> Option<Vec<u8>> {
    let version = || {
        map([
            ("catalog_version", version(models).into()),
            ("is_fixed", false.into()),
        ])
    };
    Some(match action {
        LIST_SCHEMAS => compressed(&encode(&map([
            ("contents", nowhere()),
            ("schemas", Value::Array(vec![schema_entry()])),
            ("version_info", version()),
        ]))),
        CATALOG_VERSION => encode(&version()),
        CREATE_TRANSACTION => encode(&map([("identifier", Value::Nil)])),
        _ => return None,
    })
}

fn schema_entry() -> Value {
    map([
        ("name", SCHEMA.into()),
        (
            "description",
            "The models that are deployed, as functions".into(),
        ),
        ("tags", map([])),
        ("contents", nowhere()),
        ("is_default", true.into()),
    ])
}

/// No contents to fetch: `ListFlights` has them.
fn nowhere() -> Value {
    map([
        ("sha256", "".into()),
        ("url", Value::Nil),
        ("serialized", Value::Nil),
    ])
}

/// The same for the same models (FNV-1a over their names).
fn version(models: &[ModelName]) -> u64 {
    let mut names: Vec<_> = models.iter().map(ModelName::as_str).collect();
    names.sort_unstable();
    let bytes = names.iter().flat_map(|name| name.bytes().chain([0]));
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // DuckDB keeps it as a signed number.
    hash >> 1
}

/// `bytes` in the envelope that Airport reads: their number, and a Zstandard frame of them, here
/// in raw blocks.
fn compressed(bytes: &[u8]) -> Vec<u8> {
    const BLOCK: usize = 128 << 10;
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd];
    // One segment, with its size in four bytes.
    frame.push(0b1010_0000);
    frame.extend(length.to_le_bytes());
    let blocks = bytes.chunks(BLOCK);
    let last = blocks.len().saturating_sub(1);
    for (index, block) in blocks.enumerate() {
        let size = u32::try_from(block.len()).unwrap_or(u32::MAX);
        let header = size << 3 | u32::from(index == last);
        frame.extend(&header.to_le_bytes()[..3]);
        frame.extend(block);
    }
    encode(&Value::Array(vec![length.into(), Value::Binary(frame)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_catalogue_changes_with_its_models() {
        let names = |names: &[&str]| -> Vec<ModelName> {
            names
                .iter()
                .map(|name| ModelName::new(*name).unwrap())
                .collect()
        };
        let version = |models: &[&str]| act(CATALOG_VERSION, &names(models)).unwrap();
        assert_eq!(version(&["a", "b"]), version(&["b", "a"]));
        assert_ne!(version(&["a"]), version(&["a", "b"]));
        assert_ne!(version(&["ab"]), version(&["a", "b"]));
        assert!(act("drop_table", &[]).is_none());
    }

    #[test]
    fn a_frame_of_many_blocks_holds_all_bytes() {
        let bytes = vec![7; (128 << 10) + 5];
        let envelope = compressed(&bytes);
        let overhead = envelope.len() - bytes.len();
        // Envelope: 1 + 5 + 5; frame: 4 + 1 + 4 and two block headers of 3.
        assert_eq!(overhead, 11 + 9 + 6);
    }
}
