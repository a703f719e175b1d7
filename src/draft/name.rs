//! Names of draft sources.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The name of a draft source, unique within its session. Cloning it costs a reference count.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct SourceName(Arc<str>);

impl SourceName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for SourceName {
    fn from(name: &str) -> Self {
        Self(Arc::from(name))
    }
}

impl From<String> for SourceName {
    fn from(name: String) -> Self {
        Self(Arc::from(name))
    }
}

impl From<SourceName> for String {
    fn from(name: SourceName) -> Self {
        name.0.as_ref().to_owned()
    }
}

impl PartialEq<str> for SourceName {
    fn eq(&self, name: &str) -> bool {
        self.as_str() == name
    }
}

impl PartialEq<&str> for SourceName {
    fn eq(&self, name: &&str) -> bool {
        self.as_str() == *name
    }
}

impl fmt::Display for SourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
