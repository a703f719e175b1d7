//! Outputs on disk, from which later sessions draft.

use std::path::Path;
use std::sync::{Arc, Weak};

use refrain::TokenId;
use refrain_index::history::{HistoryKey, HistoryLog};

use crate::engine::EngineInner;
use crate::error::FfiError;
use crate::guard::{Guarded, Made};
use crate::options::{HistoryOptions, key, namespace};

/// The outputs of an engine's model in a folder, made by [`Engine::history`](crate::Engine::history). A session that has it drafts from
/// them, and adds each output of a job that was not cancelled. (An assistant has a store of its own.)
///
/// Several processes may open one folder: one writes, the others hand in.
#[cfg_attr(feature = "uniffi", derive(uniffi::Object))]
pub struct History(Arc<Guarded<HistoryInner>>);

pub(crate) struct HistoryInner {
    log: HistoryLog,
    namespace: String,
}

impl HistoryInner {
    /// Keeps an output.
    pub(crate) fn append(&self, output: &[TokenId]) -> Result<(), FfiError> {
        if output.is_empty() {
            return Ok(());
        }
        self.log.append(&self.namespace, output)?;
        Ok(self.log.maintain()?)
    }

    /// The outputs as a draft source.
    pub(crate) fn add_to(&self, session: &mut refrain::Session) -> Result<(), FfiError> {
        Ok(session.add_source(Box::new(self.log.source(&self.namespace)))?)
    }
}

impl Made for HistoryInner {
    fn sync(&self) -> Result<(), FfiError> {
        Ok(self.log.sync()?)
    }
}

impl History {
    pub(crate) fn open(engine: &EngineInner, options: &HistoryOptions) -> Result<Arc<Self>, FfiError> {
        let mut of_log = refrain_index::HistoryOptions::default();
        of_log.key = key(options.key.as_deref())?;
        let namespace = namespace(options.namespace.as_deref())?.to_owned();
        let log = HistoryLog::open(Path::new(&options.folder), HistoryKey::of(engine.engine()), of_log)?;
        let inner = Arc::new(Guarded::new(HistoryInner { log, namespace }));
        let child: Weak<Guarded<HistoryInner>> = Arc::downgrade(&inner);
        engine.registry().add(child);
        Ok(Arc::new(Self(inner)))
    }

    pub(crate) fn inner(&self) -> Result<Arc<HistoryInner>, FfiError> {
        self.0.call(|inner| Ok(Arc::clone(inner)))
    }

    /// Closes the object. Sessions that have the history keep it. Allowed twice.
    ///
    /// # Errors
    /// [`Forked`](crate::ErrorKind::Forked), [`Reentrant`](crate::ErrorKind::Reentrant).
    pub fn close(&self) -> Result<(), FfiError> {
        self.0.close()
    }
}

#[cfg_attr(feature = "uniffi", uniffi::export)]
impl History {
    /// Forgets the outputs of the namespace, in every file.
    ///
    /// # Errors
    /// [`InUse`](crate::ErrorKind::InUse): another process writes the folder. [`Io`](crate::ErrorKind::Io) and others of objects.
    pub fn forget(&self) -> Result<(), FfiError> {
        self.0.call(|inner| Ok(inner.log.forget_namespace(&inner.namespace).map(drop)?))
    }

    /// Reads the outputs of other processes, and makes all durable.
    ///
    /// # Errors
    /// [`Io`](crate::ErrorKind::Io), [`Damaged`](crate::ErrorKind::Damaged) and others of objects.
    pub fn maintain(&self) -> Result<(), FfiError> {
        self.0.call(|inner| Ok(inner.log.maintain()?))
    }
}
