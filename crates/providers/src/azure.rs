//! Azure OpenAI: OpenAI's format with a deployment in the URL and the key in `api-key`.

use volley_provider_kit::provider::{Page, Provider, part_of_url};
use volley_types::registry::ProviderName;

use crate::openai;

pub(crate) static PROVIDER: Provider = Provider {
    name: ProviderName::from_static("azure"),
    page: Page {
        endpoint: "OpenAI's at Azure, `…/openai/deployments/NAME/chat/completions?api-version=…`",
        key: "`api-key`",
        url: "path `/openai/deployments/`, host `*.openai.azure.com`",
    },
    route: "/openai/deployments/{model}/chat/completions",
    other_routes: &[("/completions", false)],
    recognizes: |address| {
        address.path.starts_with("openai/deployments/") || address.is_of("openai.azure.com")
    },
    model_of_url: |url| part_of_url(url, "/openai/deployments/", '/'),
    key_header: "api-key",
    key_prefix: "",
    names: Some(openai::NAMES),
    ..openai::CHAT
};
