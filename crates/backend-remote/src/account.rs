//! Metrics of one connector's calls: results, usage and cost.

use serde::Deserialize;
use volley_provider_kit::reserved::PRICES;
use volley_telemetry::Metrics;
use volley_types::registry::ConnectorSpec;
use volley_types::{ConnectorId, ErrorCode, ParamValue, PredictError, Usage};

/// Number of tokens that a price is for.
const PER: f64 = 1_000_000.0;

/// Prices per million tokens, in any currency.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Prices {
    #[serde(default)]
    prompt: f64,
    /// Price of cached prompt tokens; by default that of other prompt tokens.
    #[serde(default)]
    cached: Option<f64>,
    #[serde(default)]
    completion: f64,
}

impl Prices {
    fn of(connector: &ConnectorSpec) -> Result<Option<Self>, PredictError> {
        let wrong = || {
            PredictError::invalid(
                "parameter 'prices' must be an object with 'prompt', 'cached' and 'completion': \
                 prices per million tokens, not negative",
            )
        };
        let given = match connector.parameters.get(PRICES) {
            None => return Ok(None),
            Some(ParamValue::Json(text) | ParamValue::Text(text)) => text,
            Some(_) => return Err(wrong()),
        };
        let prices: Self = serde_json::from_str(given).map_err(|_| wrong())?;
        let all = [
            prices.prompt,
            prices.cached.unwrap_or(0.0),
            prices.completion,
        ];
        let good = all.iter().all(|price| 0.0 <= *price && price.is_finite());
        good.then_some(Some(prices)).ok_or_else(wrong)
    }

    fn cost(&self, usage: Usage) -> f64 {
        let cached = usage.cached_tokens.min(usage.prompt_tokens);
        let read = f64::from(usage.prompt_tokens - cached) * self.prompt
            + f64::from(cached) * self.cached.unwrap_or(self.prompt);
        (read + f64::from(usage.completion_tokens) * self.completion) / PER
    }
}

/// Reports the metrics of one connector.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    connector: ConnectorId,
    prices: Option<Prices>,
    metrics: Metrics,
}

impl Account {
    /// # Errors
    /// `InvalidInput` for malformed prices.
    pub(crate) fn of(connector: &ConnectorSpec, metrics: Metrics) -> Result<Self, PredictError> {
        Ok(Self {
            connector: connector.id.clone(),
            prices: Prices::of(connector)?,
            metrics,
        })
    }

    /// Records the end of a call to `server`.
    pub(crate) fn called(&self, server: &ConnectorSpec, error: Option<ErrorCode>) {
        self.metrics.upstream_called(server, error);
    }

    /// Records a retry.
    pub(crate) fn retried(&self) {
        self.metrics.upstream_retried(&self.connector);
    }

    /// Records a call to a fallback server.
    pub(crate) fn fell_back(&self) {
        self.metrics.upstream_fell_back(&self.connector);
    }

    /// Records a call that an open circuit breaker rejected.
    pub(crate) fn left_alone(&self) {
        self.metrics.upstream_circuit_open(&self.connector);
    }

    /// Logs and records an answer with a finish reason, but without its final event.
    pub(crate) fn unterminated(&self) {
        tracing::warn!(
            connector = %self.connector,
            "upstream stream ended without its terminator"
        );
        self.metrics.upstream_unterminated(&self.connector);
    }

    /// Records the usage and the cost of a complete answer, or that its server did not report the
    /// usage.
    pub(crate) fn used(&self, usage: Option<Usage>) {
        let Some(usage) = usage else {
            self.metrics.upstream_usage_missing(&self.connector);
            return;
        };
        for (kind, tokens) in [
            ("prompt", usage.prompt_tokens),
            ("cached", usage.cached_tokens),
            ("cache_write", usage.cache_write_tokens),
            ("completion", usage.completion_tokens),
            ("reasoning", usage.reasoning_tokens),
        ] {
            let tokens = u64::from(tokens);
            self.metrics.upstream_tokens(&self.connector, kind, tokens);
        }
        if let Some(prices) = &self.prices {
            let cost = prices.cost(usage);
            self.metrics.upstream_cost(&self.connector, cost);
        }
    }
}

/// Records a call whose answer has begun, when dropped. Without [`CallRecord::ended`] the call
/// counts as cancelled by the caller.
pub(crate) struct CallRecord<'a> {
    account: &'a Account,
    server: &'a ConnectorSpec,
    error: Option<ErrorCode>,
}

impl<'a> CallRecord<'a> {
    pub(crate) fn new(account: &'a Account, server: &'a ConnectorSpec) -> Self {
        Self {
            account,
            server,
            error: Some(ErrorCode::Cancelled),
        }
    }

    /// Sets the result of the call.
    pub(crate) fn ended(&mut self, error: Option<ErrorCode>) {
        self.error = error;
    }
}

impl Drop for CallRecord<'_> {
    fn drop(&mut self) {
        self.account.called(self.server, self.error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prices(text: &str) -> Result<Option<Prices>, PredictError> {
        let mut connector = crate::tests::assignment("http://h/").connector.unwrap();
        let given = ParamValue::Json(text.to_owned());
        connector.parameters.set(PRICES, given).unwrap();
        Prices::of(&connector)
    }

    #[test]
    fn cached_tokens_have_a_price_of_their_own_where_it_is_given() {
        let usage = Usage {
            prompt_tokens: 1_000,
            completion_tokens: 500,
            cached_tokens: 400,
            ..Usage::default()
        };
        let cost = |text: &str| prices(text).unwrap().unwrap().cost(usage);
        let near = |one: f64, other: f64| (one - other).abs() < 1e-12;
        assert!(near(cost(r#"{"prompt":2,"completion":8}"#), 0.006));
        assert!(near(
            cost(r#"{"prompt":2,"cached":0.5,"completion":8}"#),
            0.0054
        ));
        assert!(near(cost("{}"), 0.0));
        for bad in [
            "[-1]",
            "7",
            r#"{"prompt":-1}"#,
            r#"{"promt":1}"#,
            r#"{"prompt":"2"}"#,
        ] {
            assert!(prices(bad).is_err(), "{bad}");
        }
    }
}
