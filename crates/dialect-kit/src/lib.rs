//! Shared code of dialects: conversion of bodies to requests, and of chunks to responses.
//!
//! Reading order: [`requests`] (the model of a request), [`answer`] and [`pieces`] (parsing of
//! chunks), [`sse`] (streaming of chunks), [`tensors`] (JSON to Arrow and back).

pub mod answer;
pub mod beside;
pub mod blocks;
pub mod catalogue;
pub mod chat;
pub mod citations;
pub mod clock;
pub mod envelope;
pub mod events;
pub mod generation;
pub mod health;
pub mod inputs;
pub mod messages;
pub mod openai_error;
pub mod parameters;
pub mod peers;
pub mod pieces;
pub mod ranking;
pub mod refusal;
pub mod requests;
pub mod rollout;
pub mod row_details;
pub mod sse;
pub mod supplement;
pub mod tensors;
pub mod tools;
pub mod vectors;
