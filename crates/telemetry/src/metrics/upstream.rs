//! Metrics of upstream calls: results, tokens and costs.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use volley_types::registry::ConnectorSpec;
use volley_types::{ConnectorId, ErrorCode};

use super::Metrics;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ConnectorLabel {
    connector: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabel {
    connector: String,
    provider: String,
    code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TokenLabel {
    connector: String,
    kind: &'static str,
}

/// The metrics of remote models.
#[derive(Default)]
pub(super) struct Upstream {
    calls: Family<CallLabel, Counter>,
    retries: Family<ConnectorLabel, Counter>,
    fallbacks: Family<ConnectorLabel, Counter>,
    left_alone: Family<ConnectorLabel, Counter>,
    tokens: Family<TokenLabel, Counter>,
    usage_missing: Family<ConnectorLabel, Counter>,
    unterminated: Family<ConnectorLabel, Counter>,
    cost: Family<ConnectorLabel, Counter<f64, AtomicU64>>,
}

fn label(connector: &ConnectorId) -> ConnectorLabel {
    ConnectorLabel {
        connector: connector.to_string(),
    }
}

impl Metrics {
    /// Counts a finished call to an upstream by its error; `None` when the response was complete.
    /// `server` is the upstream as a connector of its own.
    pub fn upstream_called(&self, server: &ConnectorSpec, error: Option<ErrorCode>) {
        let label = CallLabel {
            connector: server.id.to_string(),
            provider: server.provider.to_string(),
            code: error.map_or("ok", ErrorCode::as_str),
        };
        self.0.upstream.calls.get_or_create(&label).inc();
    }

    /// Counts a retry of a call.
    pub fn upstream_retried(&self, connector: &ConnectorId) {
        let retries = &self.0.upstream.retries;
        retries.get_or_create(&label(connector)).inc();
    }

    /// Counts a call to a fallback upstream.
    pub fn upstream_fell_back(&self, connector: &ConnectorId) {
        let fallbacks = &self.0.upstream.fallbacks;
        fallbacks.get_or_create(&label(connector)).inc();
    }

    /// Counts a call that an open circuit breaker rejected.
    pub fn upstream_circuit_open(&self, connector: &ConnectorId) {
        let left_alone = &self.0.upstream.left_alone;
        left_alone.get_or_create(&label(connector)).inc();
    }

    /// Counts the tokens of a response by kind: `prompt`, its parts `cached` and `cache_write`,
    /// `completion`, and its part `reasoning`.
    pub fn upstream_tokens(&self, connector: &ConnectorId, kind: &'static str, tokens: u64) {
        let connector = connector.to_string();
        let label = TokenLabel { connector, kind };
        self.0.upstream.tokens.get_or_create(&label).inc_by(tokens);
    }

    /// Counts a complete response without a token count.
    pub fn upstream_usage_missing(&self, connector: &ConnectorId) {
        let missing = &self.0.upstream.usage_missing;
        missing.get_or_create(&label(connector)).inc();
    }

    /// Counts a response with a finish reason but without a terminator.
    pub fn upstream_unterminated(&self, connector: &ConnectorId) {
        let unterminated = &self.0.upstream.unterminated;
        unterminated.get_or_create(&label(connector)).inc();
    }

    /// Counts the cost of a response, in the currency of the connector's prices.
    pub fn upstream_cost(&self, connector: &ConnectorId, cost: f64) {
        let costs = &self.0.upstream.cost;
        costs.get_or_create(&label(connector)).inc_by(cost);
    }
}

impl Upstream {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "upstream_calls",
            "Calls to the servers of remote models that ended. A retry counts again",
            self.calls.clone(),
        );
        registry.register(
            "upstream_retries",
            "Calls to the server of a remote model that were repeated",
            self.retries.clone(),
        );
        registry.register(
            "upstream_fallbacks",
            "Calls to fallback servers of a connector",
            self.fallbacks.clone(),
        );
        registry.register(
            "upstream_circuit_open",
            "Calls rejected by an open circuit breaker",
            self.left_alone.clone(),
        );
        registry.register(
            "upstream_tokens",
            "Tokens of complete responses, as reported by the servers of remote models",
            self.tokens.clone(),
        );
        registry.register(
            "upstream_usage_missing",
            "Complete responses whose server did not report token counts",
            self.usage_missing.clone(),
        );
        registry.register(
            "upstream_unterminated",
            "Responses with a finish reason but without a terminal event. They are delivered",
            self.unterminated.clone(),
        );
        registry.register(
            "upstream_cost",
            "Cost of remote models, from the prices of their connectors",
            self.cost.clone(),
        );
    }
}
