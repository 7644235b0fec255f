//! What the providers of remote models share: the parameters of a request, the events of an
//! answer, and the words of errors, in the one form that all are brought to. It knows no provider
//! by name, opens no connection and keeps no state.

pub mod blocks;
pub mod calls;
pub mod citations;
pub mod conversation;
pub mod effort;
pub mod fault;
pub mod framing;
pub mod hosted;
pub mod native;
pub mod neutral;
pub mod normalize;
pub mod options;
pub mod parameters;
pub mod paths;
pub mod provider;
pub mod reserved;
pub mod rows;
pub mod step;
pub mod template;
pub mod typed;
pub mod wire;
