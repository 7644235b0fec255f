//! Settings of stores by the lower-case names of their environment variables.

use object_store::aws::AmazonS3ConfigKey;
use object_store::azure::AzureConfigKey;
use object_store::gcp::GoogleConfigKey;

/// Whether `artifacts.options` may contain this key.
pub(crate) fn knows_option(key: &str) -> bool {
    (key.starts_with("aws_") && key.parse::<AmazonS3ConfigKey>().is_ok())
        || (key.starts_with("google_") && key.parse::<GoogleConfigKey>().is_ok())
        || (key.starts_with("azure_") && key.parse::<AzureConfigKey>().is_ok())
}
