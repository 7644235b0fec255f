//! Azure OpenAI: OpenAI's bodies and answers, a deployment in the URL, and a key of its own kind.

use super::{Format, openai};

pub(super) const FORMAT: Format = Format {
    key_prefix: "",
    ..openai::FORMAT
};
