//! Azure OpenAI: OpenAI's bodies and answers, a deployment in the URL, and a key of its own kind.

use volley_provider_kit::format::Format;

use crate::openai;

pub(super) const FORMAT: Format = Format {
    key_prefix: "",
    ..openai::FORMAT
};
