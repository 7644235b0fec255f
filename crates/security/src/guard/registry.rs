//! The registry with the rights of a principal.

use std::sync::Arc;

use async_trait::async_trait;
use volley_types::egress::EgressPolicy;
use volley_types::registry::{
    ConnectorSpec, CredentialRef, ModelSource, ModelUrlScheme, RegistryCommand, RegistryReply,
    RegistryState,
};
use volley_types::{ConnectorCheck, PredictError, Registry};

use super::{GuardedCluster, action, rights};

#[async_trait]
impl Registry for GuardedCluster {
    fn state(&self) -> Arc<RegistryState> {
        let registry = self.inner.registry.state();
        if !self.is_viewer() {
            return Arc::new(RegistryState {
                revision: registry.revision,
                ..RegistryState::default()
            });
        }
        if self.principal.models().is_all() {
            return registry;
        }
        Arc::new(rights::seen(&registry, self.principal.models()))
    }

    async fn write(&self, command: RegistryCommand) -> Result<RegistryReply, PredictError> {
        let action = action::of(&command);
        let registry = self.inner.registry.state();
        let permitted = rights::permit(&command, &self.principal, &registry)
            .and_then(|()| leads(&command, &self.egress))
            .and_then(|()| {
                self.share
                    .check(&command, self.principal.models(), &registry)
            });
        let registry = self.inner.registry.clone();
        let change = async move {
            permitted?;
            registry.write(command).await
        };
        self.audited(action, change).await
    }

    async fn check_connector(
        &self,
        connector: &ConnectorSpec,
        test: bool,
    ) -> Result<Vec<ConnectorCheck>, PredictError> {
        let mut named = connector.clone();
        for credential in named.credentials_mut() {
            if let CredentialRef::Sealed(name, _) = credential {
                *credential = CredentialRef::Secret(name.clone());
            }
        }
        let command = RegistryCommand::CreateConnector(named);
        rights::permit(&command, &self.principal, &self.inner.registry.state())?;
        leads(&command, &self.egress)?;
        self.inner.registry.check_connector(connector, test).await
    }
}

/// Checks the URLs in `command` against the policy.
fn leads(command: &RegistryCommand, egress: &EgressPolicy) -> Result<(), PredictError> {
    match command {
        RegistryCommand::CreateConnector(spec) | RegistryCommand::UpdateConnector(spec) => {
            let others = spec.policy.endpoints.iter().map(|endpoint| &endpoint.url);
            let mut all = std::iter::once(&spec.url).chain(others);
            all.try_for_each(|url| egress.check("the connector's URL", url).map(drop))
        }
        RegistryCommand::RegisterModel(_, spec) => match &spec.source {
            // Other schemes name buckets and files; the configuration of workers selects their
            // servers.
            ModelSource::Url { url, .. }
                if matches!(url.scheme(), ModelUrlScheme::Http | ModelUrlScheme::Https) =>
            {
                egress.check("the model's URL", url.as_str()).map(drop)
            }
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}
