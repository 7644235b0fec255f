//! A model's signature as one schema: inputs first, then outputs, with the number of inputs in its
//! metadata.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_schema::{Fields, Schema, SchemaRef};
use volley_types::{Signature, Task};

/// Metadata key: number of input fields.
const INPUTS: &str = "volley.inputs";
/// Metadata key: task of the model.
const TASK: &str = "volley.task";

/// The schema that describes `signature`.
pub(crate) fn describe(signature: &Signature) -> Schema {
    let (input, output) = (signature.input.fields(), signature.output.fields());
    // The metadata of the model's files is included.
    let mut metadata = signature.input.metadata().clone();
    metadata.extend([
        (INPUTS.to_owned(), input.len().to_string()),
        (TASK.to_owned(), signature.task.as_str().to_owned()),
    ]);
    let fields: Fields = input.iter().chain(output).cloned().collect();
    Schema::new_with_metadata(fields, metadata)
}

/// The signature that `schema` describes; `None` when it describes none.
pub(crate) fn signature_of(schema: &Schema) -> Option<Signature> {
    let inputs: usize = schema.metadata().get(INPUTS)?.parse().ok()?;
    let task = Task::from_name(schema.metadata().get(TASK)?)?;
    let (input, output) = schema.fields().split_at_checked(inputs)?;
    let mut metadata = schema.metadata().clone();
    metadata.retain(|key, _| ![INPUTS, TASK].contains(&key.as_str()));
    Some(Signature {
        task,
        input: side(input, metadata),
        output: side(output, HashMap::new()),
    })
}

fn side(fields: &[arrow_schema::FieldRef], metadata: HashMap<String, String>) -> SchemaRef {
    Arc::new(Schema::new_with_metadata(Fields::from(fields), metadata))
}

#[cfg(test)]
mod tests {
    use volley_types::signature::ModelMetadata;

    use super::*;

    #[test]
    fn a_described_signature_reads_back() {
        let signature = Signature::generation();
        assert_eq!(signature_of(&describe(&signature)), Some(signature.clone()));
        let served = ModelMetadata {
            versions: vec!["3".to_owned()],
            config: None,
        };
        let served = served.on(signature);
        assert_eq!(signature_of(&describe(&served)), Some(served));
        assert_eq!(signature_of(&Schema::empty()), None);
        let lying = Schema::new_with_metadata(
            Fields::empty(),
            HashMap::from([(INPUTS.into(), "9".into()), (TASK.into(), "tensors".into())]),
        );
        assert_eq!(signature_of(&lying), None);
    }
}
