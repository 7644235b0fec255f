//! Volley flight.
