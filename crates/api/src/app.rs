//! What handlers work with.

use std::sync::Arc;

use volley_security::{Gatekeeper, Principal};
use volley_types::arrow_messages::OpenArrow;
use volley_types::{Control, Intake};

use crate::answering::AnsweredBy;
use crate::models::ModelStore;
use crate::oip::shared_memory::SharedMemory;
use crate::oip::statistics::Statistics;
use crate::opensearch::batch::Everywhere;
use crate::resume::Resume;
use crate::{ApiConfig, EncodeMetrics};

/// What a handler works with: the cluster, with the rights of who asks.
pub(crate) struct App {
    pub(crate) control: Arc<dyn Control>,
    pub(crate) metrics: EncodeMetrics,
    pub(crate) config: ApiConfig,
    pub(crate) principal: Arc<Principal>,
    pub(crate) resume: Resume,
    pub(crate) statistics: Arc<Statistics>,
    pub(crate) shared_memory: Arc<SharedMemory>,
    pub(crate) batches: Everywhere,
    pub(crate) models: Option<Arc<dyn ModelStore>>,
    pub(crate) arrow: Option<OpenArrow>,
    pub(crate) answered_by: AnsweredBy,
    pub(crate) gate: Arc<Gatekeeper>,
    pub(crate) intake: Intake,
}
