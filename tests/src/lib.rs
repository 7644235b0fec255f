//! Whole-cluster stories.
