use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures::FutureExt;
use parking_lot::Mutex;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use serde_json::json;
use volley_types::Role;

use super::*;

const ISSUER: &str = "https://id.example.org/";

type Sign = Box<dyn Fn(&[u8]) -> Vec<u8>>;

/// An identity provider with one key.
struct Provider {
    id: &'static str,
    algorithm: &'static str,
    sign: Sign,
    jwk: Value,
}

impl Provider {
    fn ecdsa(id: &'static str) -> Self {
        let random = SystemRandom::new();
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random);
        let document = document.unwrap();
        let pair =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, document.as_ref(), &random)
                .unwrap();
        let point = pair.public_key().as_ref()[1..].to_vec();
        let jwk = json!({
            "kty": "EC", "crv": "P-256", "kid": id, "alg": "ES256", "use": "sig",
            "x": base64(&point[..32]), "y": base64(&point[32..]),
        });
        Self {
            id,
            algorithm: "ES256",
            sign: Box::new(move |text| pair.sign(&random, text).unwrap().as_ref().to_vec()),
            jwk,
        }
    }

    fn ed25519(id: &'static str) -> Self {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        let pair = Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap();
        let x = base64(pair.public_key().as_ref());
        Self {
            id,
            algorithm: "EdDSA",
            sign: Box::new(move |text| pair.sign(text).as_ref().to_vec()),
            jwk: json!({ "kty": "OKP", "crv": "Ed25519", "kid": id, "x": x }),
        }
    }

    fn token(&self, claims: &Value) -> String {
        let header = json!({ "alg": self.algorithm, "typ": "JWT", "kid": self.id });
        self.signed(&header, claims)
    }

    fn signed(&self, header: &Value, claims: &Value) -> String {
        let text = format!(
            "{}.{}",
            base64(header.to_string().as_bytes()),
            base64(claims.to_string().as_bytes())
        );
        let signature = base64(&(self.sign)(text.as_bytes()));
        format!("{text}.{signature}")
    }
}

fn base64(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn now_s() -> u64 {
    crate::now_ms() / 1_000
}

fn claims() -> Value {
    json!({
        "iss": ISSUER, "aud": ["volley", "other"], "sub": "ada", "exp": now_s() + 600,
        "groups": ["everybody", "ml"], "org": { "team": "team-a" }, "models": ["team-a.*"],
    })
}

fn with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[name] = value;
    claims
}

fn rules() -> ClaimRules {
    ClaimRules {
        roles_claim: "groups".to_owned(),
        roles: [
            ("everybody".to_owned(), Role::Viewer),
            ("ml".to_owned(), Role::ModelAdmin),
        ]
        .into(),
        tenant_claim: Some("org.team".to_owned()),
        models_claim: Some("models".to_owned()),
    }
}

fn issuers(keys: &[&Value], rules: ClaimRules, algorithms: &[&str]) -> Issuers {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("jwks.json");
    std::fs::write(&file, json!({ "keys": keys }).to_string()).unwrap();
    Issuers::new(vec![IssuerConfig {
        issuer: ISSUER.to_owned(),
        audience: "volley".to_owned(),
        algorithms: algorithms.iter().map(ToString::to_string).collect(),
        keys: KeySource::File(file),
        rules,
    }])
    .unwrap()
}

#[test]
fn a_tenants_token_that_names_no_models_reaches_the_tenants_own() {
    let provider = Provider::ecdsa("k1");
    let unnamed = ClaimRules {
        models_claim: None,
        ..rules()
    };
    let limited = issuers(&[&provider.jwk], unnamed.clone(), &["ES256"]);
    let ada = limited.identify(&provider.token(&claims())).unwrap();
    assert_eq!(ada.models().patterns()[0].to_string(), "team-a.*");
    let all = issuers(&[&provider.jwk], rules(), &["ES256"]);
    let all = all.identify(&provider.token(&with("models", json!(["*"]))));
    assert!(all.unwrap().models().is_all());
    let nobodys = ClaimRules {
        tenant_claim: None,
        ..unnamed
    };
    let nobodys = issuers(&[&provider.jwk], nobodys, &["ES256"]);
    let ada = nobodys.identify(&provider.token(&claims())).unwrap();
    assert!(ada.models().is_all());
}

#[test]
fn a_token_gives_what_its_claims_say() {
    for provider in [Provider::ecdsa("k1"), Provider::ed25519("k1")] {
        let issuers = issuers(&[&provider.jwk], rules(), &["ES256", "EdDSA"]);
        let token = provider.token(&claims());
        assert!(Issuers::is_token(&token));
        let ada = issuers.identify(&token).unwrap();
        assert_eq!(ada.role(), Some(Role::ModelAdmin));
        assert_eq!(ada.tenant().unwrap().as_str(), "team-a");
        assert_eq!(ada.models().patterns()[0].to_string(), "team-a.*");
        assert_eq!(ada.who(), format!("token of ada by {ISSUER}"));
    }
}

#[test]
fn tokens_that_openssl_signed_are_taken() {
    let signed: Value = serde_json::from_str(include_str!("signed_by_openssl.json")).unwrap();
    let key = &signed["jwks"]["keys"][0];
    let rules = ClaimRules {
        roles_claim: "volley_role".to_owned(),
        roles: [].into(),
        tenant_claim: None,
        models_claim: None,
    };
    let issuers = issuers(&[key], rules, &["RS256", "PS256"]);
    for algorithm in ["RS256", "PS256"] {
        let token = signed[algorithm].as_str().unwrap();
        assert_eq!(issuers.identify(token).unwrap().role(), Some(Role::Viewer));
        let (rest, _) = token.rsplit_once('.').unwrap();
        let other = signed[if algorithm == "RS256" {
            "PS256"
        } else {
            "RS256"
        }]
        .as_str();
        let (_, signature) = other.unwrap().rsplit_once('.').unwrap();
        assert!(issuers.identify(&format!("{rest}.{signature}")).is_err());
    }
}

#[test]
fn what_is_wrong_with_a_token_is_said() {
    let provider = Provider::ecdsa("k1");
    let issuers = issuers(&[&provider.jwk], rules(), &["ES256"]);
    for (claims, word) in [
        (with("exp", json!(now_s() - 120)), "expired"),
        (with("nbf", json!(now_s() + 600)), "not valid yet"),
        (with("aud", json!("another")), "another audience"),
        (with("iss", json!("https://evil.example/")), "issuer"),
        (with("sub", Value::Null), "wrong"),
        (with("exp", Value::Null), "wrong"),
    ] {
        let refused = issuers.identify(&provider.token(&claims)).unwrap_err();
        assert_eq!(refused.code, ErrorCode::Unauthenticated, "{claims}");
        assert!(
            refused.message.contains(word) || refused.message.contains("claims exp"),
            "{}",
            refused.message
        );
    }
    for (claims, word) in [
        (with("groups", json!(["strangers"])), "groups"),
        (with("groups", json!(7)), "groups"),
        (with("models", json!([])), "models"),
        (with("org", json!({ "team": ["a", "b"] })), "org.team"),
    ] {
        let refused = issuers.identify(&provider.token(&claims)).unwrap_err();
        assert_eq!(refused.code, ErrorCode::PermissionDenied, "{claims}");
        assert!(refused.message.contains(word), "{}", refused.message);
    }
}

#[test]
fn the_header_of_a_token_decides_nothing() {
    let (own, stranger) = (Provider::ecdsa("k1"), Provider::ecdsa("k1"));
    let issuers = issuers(&[&own.jwk], rules(), &["ES256"]);
    let refused = |token: String| {
        let refused = issuers.identify(&token).unwrap_err();
        assert_eq!(refused.code, ErrorCode::Unauthenticated, "{token}");
    };
    refused(stranger.token(&claims()));
    let unknown = Provider {
        id: "k2",
        ..Provider::ecdsa("k2")
    };
    refused(unknown.token(&claims()));
    // A shared secret equal to the public key, and no signature.
    let body = base64(claims().to_string().as_bytes());
    for algorithm in ["HS256", "none"] {
        let header = base64(
            json!({ "alg": algorithm, "kid": "k1" })
                .to_string()
                .as_bytes(),
        );
        refused(format!("{header}.{body}.{}", base64(b"signature")));
    }
    // A valid signature with other claims.
    let token = own.token(&claims());
    let parts: Vec<_> = token.split('.').collect();
    let more = base64(with("groups", json!(["ml"])).to_string().as_bytes());
    refused(format!("{}.{more}.{}", parts[0], parts[2]));

    // A critical extension.
    let header = json!({ "alg": "ES256", "kid": "k1", "crit": ["b64"], "b64": true });
    refused(own.signed(&header, &claims()));

    let pinned = |algorithm: &str| {
        Issuers::new(vec![IssuerConfig {
            issuer: ISSUER.to_owned(),
            audience: "volley".to_owned(),
            algorithms: vec![algorithm.to_owned()],
            keys: KeySource::Url("https://id.example.org/keys".to_owned()),
            rules: rules(),
        }])
    };
    assert!(pinned("ES256").is_ok());
    for algorithm in ["HS256", "none", ""] {
        assert!(pinned(algorithm).is_err(), "{algorithm}");
    }
}

#[tokio::test(start_paused = true)]
async fn keys_are_fetched_kept_and_renewed_when_a_token_names_a_new_one() {
    let (first, second) = (Provider::ecdsa("k1"), Provider::ecdsa("k2"));
    let published = Arc::new(Mutex::new(None::<Value>));
    let issuers = Issuers::new(vec![IssuerConfig {
        issuer: ISSUER.to_owned(),
        audience: "volley".to_owned(),
        algorithms: vec!["ES256".to_owned()],
        keys: KeySource::Url("https://id.example.org/keys".to_owned()),
        rules: rules(),
    }]);
    let issuers = Arc::new(issuers.unwrap());
    let answers = published.clone();
    let fetch: FetchKeys = Arc::new(move |url| {
        assert_eq!(url, "https://id.example.org/keys");
        let found = answers.lock().clone();
        let found = found.ok_or_else(|| PredictError::new(ErrorCode::Unavailable, "down"));
        futures::future::ready(found.map(|keys| keys.to_string().into_bytes())).boxed()
    });
    let fresh = tokio::spawn(issuers.clone().keep_fresh(fetch, Duration::from_secs(10)));

    let token = first.token(&claims());
    assert_eq!(
        issuers.identify(&token).unwrap_err().code,
        ErrorCode::Unavailable
    );
    *published.lock() = Some(json!({ "keys": [first.jwk] }));
    tokio::time::sleep(Duration::from_secs(40)).await;
    issuers.identify(&token).unwrap();

    // The provider rotates its keys: the first token with the new key is rejected, later ones are
    // accepted.
    *published.lock() = Some(json!({ "keys": [first.jwk, second.jwk] }));
    let rotated = second.token(&claims());
    assert!(issuers.identify(&rotated).is_err());
    tokio::time::sleep(Duration::from_secs(31)).await;
    issuers.identify(&rotated).unwrap();

    // An empty key set, published by accident, is ignored.
    *published.lock() = Some(json!({ "keys": [] }));
    tokio::time::sleep(Duration::from_secs(1_000)).await;
    issuers.identify(&rotated).unwrap();
    fresh.abort();
}

proptest::proptest! {
    #[test]
    fn no_text_breaks_it(text in "[A-Za-z0-9_.-]{0,80}", raw in ".{0,40}") {
        let provider = Provider::ed25519("k1");
        let issuers = issuers(&[&provider.jwk], rules(), &["EdDSA"]);
        proptest::prop_assert!(issuers.identify(&text).is_err());
        let body = base64(raw.as_bytes());
        let token = [body.as_str(); 3].join(".");
        proptest::prop_assert!(issuers.identify(&token).is_err());
    }
}
