//! Signs requests with AWS Signature Version 4.

use std::time::SystemTime;

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{
    PayloadChecksumKind, SignableBody, SignableRequest, SigningParams, SigningSettings, sign,
};
use aws_sigv4::sign::v4;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use url::Url;
use volley_provider_kit::provider::Provider;
use volley_types::PredictError;
use volley_types::registry::ConnectorSpec;

use crate::credential::SigningKeys;

/// The service and region of a server's signed requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signer {
    region: String,
    service: String,
}

impl Signer {
    /// Creates the signer of a connector's server; `None` if requests are not signed. The region
    /// comes from parameter `region`, or else from an AWS host name.
    ///
    /// # Errors
    /// `InvalidInput` if the region is unknown.
    pub fn of(
        provider: &Provider,
        connector: &ConnectorSpec,
        url: &Url,
    ) -> Result<Option<Self>, PredictError> {
        let text = |name: &str| match connector.parameters.get(name) {
            Some(volley_types::ParamValue::Text(text)) => Some(text.clone()),
            _ => None,
        };
        let named = text("service_name");
        let service = match provider.signing_service {
            Some(service) => Some(named.unwrap_or_else(|| service.to_owned())),
            None => named.filter(|_| provider.is_configured()),
        };
        let Some(service) = service else {
            return Ok(None);
        };
        let host = url.host_str().unwrap_or_default();
        let region = text("region").or_else(|| region_of(host).map(str::to_owned));
        let region = region.ok_or_else(|| {
            PredictError::invalid("the connector's URL has no AWS region; set parameter 'region'")
        })?;
        Ok(Some(Self { region, service }))
    }

    /// Adds the signature and the signed headers to `headers`. `now` is the time of the signature.
    ///
    /// # Errors
    /// `InvalidInput` if signing fails with these keys.
    pub fn sign(
        &self,
        keys: &SigningKeys,
        url: &Url,
        headers: &mut HeaderMap,
        body: &[u8],
        now: SystemTime,
    ) -> Result<(), PredictError> {
        let failed = |cause: String| {
            PredictError::invalid("the request cannot be signed with the connector's credential")
                .with_source(cause)
        };
        let token = keys.session_token.clone();
        let identity = Credentials::new(
            keys.access_key.clone(),
            keys.secret_key.clone(),
            token,
            None,
            "connector",
        )
        .into();
        let mut settings = SigningSettings::default();
        settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
        let params = v4::SigningParams::builder()
            .identity(&identity)
            .region(&self.region)
            .name(&self.service)
            .time(now)
            .settings(settings)
            .build()
            .map_err(|error| failed(error.to_string()))?;
        let signed = [(header::CONTENT_TYPE.as_str(), "application/json")];
        let body = SignableBody::Bytes(body);
        let request = SignableRequest::new("POST", url.as_str(), signed.into_iter(), body);
        let request = request.map_err(|error| failed(error.to_string()))?;
        let output = sign(request, &SigningParams::V4(params));
        let (instructions, _) = output
            .map_err(|error| failed(error.to_string()))?
            .into_parts();
        let type_of_body = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, type_of_body);
        for (name, value) in instructions.headers() {
            let pair = HeaderName::try_from(name)
                .ok()
                .zip(HeaderValue::from_str(value).ok());
            let (name, mut value) = pair.ok_or_else(|| failed("a header".to_owned()))?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        Ok(())
    }
}

/// Returns the region in `bedrock-runtime.REGION.amazonaws.com` and similar names, including those
/// of VPC endpoints.
fn region_of(host: &str) -> Option<&str> {
    let mut labels = host.split('.');
    labels.find(|label| label.starts_with("bedrock-runtime") || *label == "sagemaker")?;
    labels.next().filter(|region| region.contains('-'))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_region_is_in_the_host() {
        for (host, region) in [
            (
                "bedrock-runtime.eu-central-1.amazonaws.com",
                Some("eu-central-1"),
            ),
            (
                "vpce-1-2.bedrock-runtime.us-east-1.vpce.amazonaws.com",
                Some("us-east-1"),
            ),
            (
                "bedrock-runtime-fips.us-gov-west-1.amazonaws.com",
                Some("us-gov-west-1"),
            ),
            ("bedrock-runtime", None),
            ("127.0.0.1", None),
        ] {
            assert_eq!(region_of(host), region, "{host}");
        }
    }

    #[test]
    fn a_signature_covers_host_type_body_and_token_and_shows_no_key() {
        let signer = Signer {
            region: "us-east-1".to_owned(),
            service: "bedrock".to_owned(),
        };
        let keys = SigningKeys {
            access_key: "AKIDEXAMPLE".to_owned(),
            secret_key: "canary".to_owned(),
            session_token: Some("token".to_owned()),
        };
        let url = Url::parse("http://127.0.0.1:9/model/a.b-v1:0/converse-stream").unwrap();
        let mut headers = HeaderMap::new();
        headers.insert("x-amz-content-sha256", HeaderValue::from_static("required"));
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_440_938_160);
        signer.sign(&keys, &url, &mut headers, b"{}", now).unwrap();
        let text = |name: &str| headers[name].to_str().unwrap();
        assert_eq!(text("x-amz-date"), "20150830T123600Z");
        assert_eq!(text("x-amz-security-token"), "token");
        let hash = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";
        assert_eq!(text("x-amz-content-sha256"), hash);
        let signature = text("authorization");
        let scope =
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/bedrock/aws4_request";
        assert!(signature.starts_with(scope), "{signature}");
        let over = "content-type;host;x-amz-content-sha256;x-amz-date;x-amz-security-token";
        assert!(signature.contains(over), "{signature}");
        assert!(!format!("{headers:?}").contains("canary"));
    }
}
