//! `PredictCommand` and `ErrorDetail` ⇄ [`volley_types`].
