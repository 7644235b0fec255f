//! Calls to remote models, what they used, and what that cost.

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

/// What is counted of remote models.
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
    /// Counts a call to one of a connector's servers that ended, by its error; `None` when its
    /// answer was whole. `server` is that server, as a connector of its own.
    pub fn upstream_called(&self, server: &ConnectorSpec, error: Option<ErrorCode>) {
        let label = CallLabel {
            connector: server.id.to_string(),
            provider: server.provider.to_string(),
            code: error.map_or("ok", ErrorCode::as_str),
        };
        self.0.upstream.calls.get_or_create(&label).inc();
    }

    /// Counts a call that is made to a server again.
    pub fn upstream_retried(&self, connector: &ConnectorId) {
        let retries = &self.0.upstream.retries;
        retries.get_or_create(&label(connector)).inc();
    }

    /// Counts a call to a server that is there for when the others fail.
    pub fn upstream_fell_back(&self, connector: &ConnectorId) {
        let fallbacks = &self.0.upstream.fallbacks;
        fallbacks.get_or_create(&label(connector)).inc();
    }

    /// Counts a call that was not made because its server had failed too often.
    pub fn upstream_circuit_open(&self, connector: &ConnectorId) {
        let left_alone = &self.0.upstream.left_alone;
        left_alone.get_or_create(&label(connector)).inc();
    }

    /// Counts the tokens of an answer, of one kind: `prompt`, `cached` and `cache_write` (parts of
    /// the former), `completion` or `reasoning` (part of the former).
    pub fn upstream_tokens(&self, connector: &ConnectorId, kind: &'static str, tokens: u64) {
        let connector = connector.to_string();
        let label = TokenLabel { connector, kind };
        self.0.upstream.tokens.get_or_create(&label).inc_by(tokens);
    }

    /// Counts a whole answer whose server did not tell its tokens.
    pub fn upstream_usage_missing(&self, connector: &ConnectorId) {
        let missing = &self.0.upstream.usage_missing;
        missing.get_or_create(&label(connector)).inc();
    }

    /// Counts an answer that told why it ends, and whose terminator never came.
    pub fn upstream_unterminated(&self, connector: &ConnectorId) {
        let unterminated = &self.0.upstream.unterminated;
        unterminated.get_or_create(&label(connector)).inc();
    }

    /// Counts what an answer cost, in the currency of the connector's prices.
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
