//! `sequence_batching`: models whose requests form sequences, with their controls and states. Pure.

use std::path::Path;
use std::time::Duration;

use volley_onnx_runtime::ort::value::{Outlet, TensorElementType, ValueType};

use super::fields::{messages, number, one_of, plain, string, word};
use super::tensor::element;
use super::text::{Message, Value};

/// Triton's default for the maximum idle time of a sequence.
const IDLE: Duration = Duration::from_secs(1);
/// Maximum size of an initial state file, in bytes.
const MAX_STATE_BYTES: u64 = 64 << 20;
/// Maximum number of concurrent sequences, regardless of the file.
const MOST: usize = 65_536;

/// The kinds of control inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlKind {
    /// Whether this is the first request of its sequence.
    Start,
    /// Whether this is the last request of its sequence.
    End,
    /// Whether the row holds a request.
    Ready,
    /// The id of the sequence.
    Id,
}

/// A control input, which the server sets.
#[derive(Clone, Debug, PartialEq)]
pub struct Control {
    /// The name of the graph's input.
    pub input: String,
    /// The kind of value that the input receives.
    pub kind: ControlKind,
    /// The input's element type.
    pub element: TensorElementType,
    /// The values for false and true.
    pub values: [f64; 2],
}

/// A state, which each request of a sequence passes to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// The input that receives the state.
    pub input: String,
    /// The output that returns the state.
    pub output: String,
    /// The state's element type.
    pub element: TensorElementType,
    /// Without the batch dimension; a dynamic dimension starts with size 0.
    pub dims: Vec<i64>,
    /// File name of the initial state, in the directory `initial_state`.
    file: Option<String>,
    /// Content of the file: the raw elements.
    pub data: Option<Vec<u8>>,
}

/// The configuration of a sequence model.
#[derive(Clone, Debug, PartialEq)]
pub struct Sequences {
    /// Maximum idle time of a sequence.
    pub idle: Duration,
    /// The control inputs.
    pub controls: Vec<Control>,
    /// The states.
    pub states: Vec<State>,
    /// Maximum number of concurrent sequences; `None` means the number of rows in a run.
    pub candidates: Option<usize>,
    /// Time that an idle model waits for other sequences.
    pub window: Duration,
    /// Preferred sizes of a run, in rows.
    pub preferred: Vec<usize>,
}

impl Sequences {
    /// Reads `sequence_batching`; `None` if the configuration has none.
    ///
    /// # Errors
    /// A description with the malformed or unsupported field.
    pub(super) fn read(message: &Message) -> Result<Option<Self>, String> {
        let Some(batching) = messages(message, "sequence_batching")?.pop() else {
            return Ok(None);
        };
        for field in ["iterative_sequence", "generative_sequence"] {
            if batching
                .last(field)
                .is_some_and(|value| *value == Value::Word("true".to_owned()))
            {
                return Err(format!("'{field}' is not supported"));
            }
        }
        let idle: Option<u64> = number(batching, "max_sequence_idle_microseconds")?;
        let idle = idle.filter(|idle| *idle != 0).map(Duration::from_micros);
        let controls = messages(batching, "control_input")?.into_iter();
        let controls = controls.map(Control::all).collect::<Result<Vec<_>, _>>()?;
        let states = messages(batching, "state")?.into_iter().map(State::read);
        one_of(batching, &["direct", "oldest"])?;
        let oldest = messages(batching, "oldest")?.pop();
        let direct = messages(batching, "direct")?.pop();
        let strategy = oldest.or(direct);
        let candidates = oldest.map(|oldest| number(oldest, "max_candidate_sequences"));
        let candidates = candidates.transpose()?.flatten();
        let delay = strategy.map(|it| number(it, "max_queue_delay_microseconds"));
        let preferred = strategy
            .into_iter()
            .flat_map(|it| it.all("preferred_batch_size"));
        Ok(Some(Self {
            idle: idle.unwrap_or(IDLE),
            controls: controls.into_iter().flatten().collect(),
            states: states.collect::<Result<_, _>>()?,
            candidates: candidates.map(|count: usize| count.clamp(1, MOST)),
            window: Duration::from_micros(delay.transpose()?.flatten().unwrap_or(0)),
            preferred: preferred
                .map(|size| plain(size, "preferred_batch_size"))
                .collect::<Result<_, _>>()?,
        }))
    }

    /// Checks that the graph has the declared controls and states.
    ///
    /// # Errors
    /// A description of the missing input or output, or of the different type.
    pub fn check(&self, inputs: &[Outlet], outputs: &[Outlet]) -> Result<(), String> {
        let has = |there: &[Outlet], name: &str, wanted: TensorElementType| {
            let outlet = there.iter().find(|outlet| outlet.name() == name);
            let outlet = outlet.ok_or_else(|| format!("the graph has no '{name}'"))?;
            match outlet.dtype() {
                ValueType::Tensor { ty, .. } if *ty == wanted => Ok(()),
                other => Err(format!(
                    "'{name}' is {wanted} here, but {other} in the graph"
                )),
            }
        };
        for control in &self.controls {
            has(inputs, &control.input, control.element)?;
        }
        for state in &self.states {
            has(inputs, &state.input, state.element)?;
            has(outputs, &state.output, state.element)?;
        }
        Ok(())
    }

    /// Reads the files of initial states.
    pub(super) fn read_files(&mut self, directory: &Path) -> Result<(), String> {
        for state in &mut self.states {
            let Some(file) = &state.file else { continue };
            let path = directory.join("initial_state").join(file);
            let input = &state.input;
            let told = || format!("the 'data_file' of the state '{input}' does not exist");
            let size = std::fs::metadata(&path).map_err(|_| told())?;
            if !size.is_file() || MAX_STATE_BYTES < size.len() {
                return Err(format!(
                    "the 'data_file' of the state '{input}' is not a file, or is larger than 64 MiB"
                ));
            }
            state.data = Some(std::fs::read(&path).map_err(|_| told())?);
        }
        Ok(())
    }

    /// Whether the server sets this input, so that callers do not send it.
    pub fn gives(&self, input: &str) -> bool {
        let mut controls = self.controls.iter().map(|control| &control.input);
        controls.any(|name| name == input) || self.states.iter().any(|it| it.input == input)
    }

    /// Whether this output is a state, so that callers do not receive it.
    pub fn keeps(&self, output: &str) -> bool {
        self.states.iter().any(|state| state.output == output)
    }

    /// A summary for people.
    pub fn told(&self) -> String {
        let strategy = match self.candidates {
            Some(most) => format!("oldest first, {most} at a time"),
            None => "direct".to_owned(),
        };
        format!("{strategy}; {} states", self.states.len())
    }
}

impl Control {
    fn all(message: &Message) -> Result<Vec<Self>, String> {
        let input = string(message, "name")?.ok_or("a 'control_input' has no name")?;
        let controls = messages(message, "control")?.into_iter();
        controls
            .map(|control| Self::read(&input, control))
            .collect()
    }

    fn read(input: &str, control: &Message) -> Result<Self, String> {
        let kind = match word(control, "kind")?.as_deref() {
            None | Some("CONTROL_SEQUENCE_START") => ControlKind::Start,
            Some("CONTROL_SEQUENCE_END") => ControlKind::End,
            Some("CONTROL_SEQUENCE_READY") => ControlKind::Ready,
            Some("CONTROL_SEQUENCE_CORRID") => ControlKind::Id,
            Some(other) => {
                return Err(format!(
                    "the control '{other}' of '{input}' is not supported"
                ));
            }
        };
        if kind == ControlKind::Id {
            let name = word(control, "data_type")?.unwrap_or_default();
            let wrong = || format!("the id of sequences in '{input}' cannot be '{name}'");
            let element = element(&name).ok_or_else(wrong)?;
            let offered = [
                TensorElementType::Uint64,
                TensorElementType::Int64,
                TensorElementType::Uint32,
                TensorElementType::Int32,
                TensorElementType::String,
            ];
            if !offered.contains(&element) {
                return Err(wrong());
            }
            return Ok(Self {
                input: input.to_owned(),
                kind,
                element,
                values: [0.0, 1.0],
            });
        }
        for (field, element) in [
            ("int32_false_true", TensorElementType::Int32),
            ("fp32_false_true", TensorElementType::Float32),
            ("bool_false_true", TensorElementType::Bool),
        ] {
            let values: Vec<f64> = control
                .all(field)
                .map(|value| match value {
                    Value::Word(word) if word == "true" => Ok(1.0),
                    Value::Word(word) if word == "false" => Ok(0.0),
                    value => plain(value, field),
                })
                .collect::<Result<_, _>>()?;
            match values.as_slice() {
                [] => {}
                [no, yes] => {
                    return Ok(Self {
                        input: input.to_owned(),
                        kind,
                        element,
                        values: [*no, *yes],
                    });
                }
                _ => return Err(format!("'{field}' of '{input}' must be two values")),
            }
        }
        Err(format!(
            "the control '{input}' has no values for false and true"
        ))
    }
}

impl State {
    fn read(message: &Message) -> Result<Self, String> {
        let name =
            |field| string(message, field)?.ok_or_else(|| format!("a 'state' has no '{field}'"));
        let input = name("input_name")?;
        let kind = word(message, "data_type")?.unwrap_or_default();
        let dims = message.all("dims").map(|dim| plain(dim, "dims"));
        let initial = messages(message, "initial_state")?.pop();
        let file = initial
            .map(|initial| string(initial, "data_file"))
            .transpose()?
            .flatten();
        if file
            .as_ref()
            .is_some_and(|file| file.contains(['/', '\\']) || file == "..")
        {
            return Err(format!(
                "'data_file' of '{input}' is not the name of a file"
            ));
        }
        Ok(Self {
            output: name("output_name")?,
            element: element(&kind)
                .ok_or_else(|| format!("the state '{input}' has the data type '{kind}'"))?,
            dims: dims.collect::<Result<_, String>>()?,
            file,
            data: None,
            input,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::text;
    use super::*;

    fn read(text: &str) -> Result<Option<Sequences>, String> {
        Sequences::read(&text::parse(text).unwrap())
    }

    #[test]
    fn controls_and_states_are_read() {
        let read = read(
            "sequence_batching {
               max_sequence_idle_microseconds: 5000000
               oldest { max_candidate_sequences: 8 max_queue_delay_microseconds: 100 }
               control_input [
                 { name: 'START' control [ { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } ] },
                 { name: 'ID' control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] } ]
               state [ { input_name: 'in' output_name: 'out' data_type: TYPE_FP32 dims: [ 2 ] } ] }",
        );
        let read = read.unwrap().unwrap();
        assert_eq!(read.idle, Duration::from_secs(5));
        assert_eq!(read.candidates, Some(8));
        assert_eq!(read.controls[0].kind, ControlKind::Start);
        assert_eq!(read.controls[1].element, TensorElementType::Uint64);
        assert_eq!(read.states[0].dims, [2]);
        assert!(read.gives("START") && read.gives("in") && !read.gives("x"));
        assert!(read.keeps("out") && !read.keeps("y"));
    }

    #[test]
    fn what_is_not_offered_is_refused_by_its_name() {
        assert_eq!(read(""), Ok(None));
        for (text, told) in [
            ("iterative_sequence: true", "iterative_sequence"),
            ("direct { } oldest { }", "'direct' and 'oldest'"),
            ("control_input { control { } }", "no name"),
            ("control_input { name: 'S' control { } }", "no values"),
            ("control_input { name: 'S' control { kind: NONE } }", "NONE"),
            (
                "control_input { name: 'S' control { fp32_false_true: 1 } }",
                "two values",
            ),
            (
                "state { input_name: 'a' data_type: TYPE_FP32 }",
                "output_name",
            ),
            (
                "state { input_name: 'a' output_name: 'b' data_type: TYPE_X }",
                "TYPE_X",
            ),
        ] {
            let error = read(&format!("sequence_batching {{ {text} }}")).unwrap_err();
            assert!(error.contains(told), "{text}: {error}");
        }
    }
}
