//! `WorkerReport` and `Assignments` ⇄ [`volley_types::worker`].
