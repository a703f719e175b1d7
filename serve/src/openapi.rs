//! The OpenAPI document of this server.

use serde_json::{Value, json};

pub(crate) fn document() -> Value {
    json!({})
}
