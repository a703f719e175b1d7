//! Handles: numbers that stand for objects, looked up in a table.
//!
//! A handle has 16 bits of a random tag of this copy of the library, 16 bits that count the objects of its slot, and 32 bits that name the
//! slot. A slot whose count has reached its end is not used again, so a stale handle never names a later object.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::process;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

#[cfg(feature = "notes")]
use refrain_ffi::{Assistant, Conversation, Notes};
use refrain_ffi::{Engine, ErrorKind, FfiError, History, Job, Session};

/// An object of the library. 0 is none.
pub type Handle = u64;

/// The objects that a handle may stand for in a call.
pub(crate) trait Typed: Sized {
    const NAME: &'static str;

    fn of(object: &Object) -> Option<&Arc<Self>>;

    fn object(self: Arc<Self>) -> Object;
}

/// Writes [`Object`] from one table: type, name in messages.
macro_rules! objects {
    ($($(#[$condition:meta])? $type:ident $name:literal;)*) => {
        /// An object behind a handle.
        #[derive(Clone)]
        pub(crate) enum Object {
            $(
                $(#[$condition])?
                $type(Arc<$type>),
            )*
        }

        impl Object {
            fn name(&self) -> &'static str {
                match self {
                    $(
                        $(#[$condition])?
                        Self::$type(_) => $name,
                    )*
                }
            }

            pub(crate) fn close(&self) -> Result<(), FfiError> {
                match self {
                    $(
                        $(#[$condition])?
                        Self::$type(object) => object.close(),
                    )*
                }
            }
        }

        $(
            $(#[$condition])?
            impl Typed for $type {
                const NAME: &'static str = $name;

                fn of(object: &Object) -> Option<&Arc<Self>> {
                    match object {
                        Object::$type(object) => Some(object),
                        _ => None,
                    }
                }

                fn object(self: Arc<Self>) -> Object {
                    Object::$type(self)
                }
            }
        )*
    };
}

objects! {
    Engine "an engine";
    Session "a session";
    History "a history";
    Job "a job";
    #[cfg(feature = "notes")] Assistant "an assistant";
    #[cfg(feature = "notes")] Conversation "a conversation";
    #[cfg(feature = "notes")] Notes "an index of notes";
}

/// The objects and buffers of this copy of the library in one process.
pub(crate) struct Library {
    process: u32,
    tag: u16,
    /// The tag of the process of which this one is a fork.
    parent: Option<u16>,
    table: RwLock<Table>,
    /// The buffers that C has, by address, with their lengths.
    pub(crate) buffers: Mutex<HashMap<usize, usize>>,
}

#[derive(Default)]
struct Table {
    slots: Vec<Slot>,
    /// Slots without an object that may be used again.
    free: Vec<u32>,
}

struct Slot {
    /// Objects that it has had before.
    count: u16,
    object: Option<Object>,
}

/// The library of this process. Leaked: a process that exits while threads of the library run must not take it from them.
static CURRENT: AtomicPtr<Library> = AtomicPtr::new(ptr::null_mut());

/// Tries to read the table in a signal handler, which may have interrupted a writer.
const TRIES: usize = 1_000;

/// The library of this process. A forked child gets its own: locks of the parent's may be held by threads that are not there.
pub(crate) fn library() -> &'static Library {
    loop {
        let current = CURRENT.load(Ordering::Acquire);
        // SAFETY: what is stored there was leaked below, and is never freed.
        let known = unsafe { current.as_ref() };
        if let Some(library) = known.filter(|library| library.process == process::id()) {
            return library;
        }
        let fresh = Box::into_raw(Box::new(Library::new(known.map(|library| library.tag))));
        match CURRENT.compare_exchange(current, fresh, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: it was made above, and is never freed.
            Ok(_) => return unsafe { &*fresh },
            // SAFETY: it was made above, and nobody else has it.
            Err(_) => drop(unsafe { Box::from_raw(fresh) }),
        }
    }
}

impl Library {
    fn new(parent: Option<u16>) -> Self {
        let mut tag = 0;
        while tag == 0 || Some(tag) == parent {
            tag = RandomState::new().build_hasher().finish() as u16;
        }
        Self { process: process::id(), tag, parent, table: RwLock::default(), buffers: Mutex::default() }
    }

    /// A handle for an object.
    pub(crate) fn insert(&self, object: Object) -> Handle {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let index = table.free.pop().unwrap_or_else(|| {
            table.slots.push(Slot { count: 0, object: None });
            (table.slots.len() - 1) as u32
        });
        let slot = &mut table.slots[index as usize];
        slot.object = Some(object);
        u64::from(self.tag) << 48 | u64::from(slot.count) << 32 | u64::from(index)
    }

    /// The object of a handle.
    ///
    /// # Errors
    /// [`ErrorKind::NullHandle`], [`ErrorKind::ForeignHandle`], [`ErrorKind::StaleHandle`], [`ErrorKind::Forked`].
    pub(crate) fn get(&self, handle: Handle) -> Result<Object, FfiError> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        self.find(&table, handle).cloned()
    }

    /// The object of a type.
    ///
    /// # Errors
    /// As [`get`](Self::get), and [`ErrorKind::WrongHandle`].
    pub(crate) fn typed<T: Typed>(&self, handle: Handle) -> Result<Arc<T>, FfiError> {
        let object = self.get(handle)?;
        let wrong = || {
            FfiError::new(
                ErrorKind::WrongHandle,
                format!("the handle is of {}, not {}", object.name(), T::NAME),
            )
        };
        T::of(&object).cloned().ok_or_else(wrong)
    }

    /// Takes the object of a handle, which is stale from now on.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub(crate) fn remove(&self, handle: Handle) -> Result<Object, FfiError> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        self.find(&table, handle)?;
        let index = handle as u32;
        let slot = &mut table.slots[index as usize];
        let object = slot.object.take();
        // One that has no number left stays empty.
        if let Some(count) = slot.count.checked_add(1) {
            slot.count = count;
            table.free.push(index);
        }
        object.ok_or_else(stale)
    }

    /// Cancels a job without waiting, allocating or freeing, in a signal handler too.
    ///
    /// # Errors
    /// The kind alone: an error with a message would allocate. [`ErrorKind::Busy`]: another call changes the table now.
    pub(crate) fn cancel(&self, handle: Handle) -> Result<(), ErrorKind> {
        for _ in 0..TRIES {
            let Ok(table) = self.table.try_read() else {
                std::hint::spin_loop();
                continue;
            };
            return match self.place(&table, handle)? {
                Object::Job(job) => {
                    job.cancel();
                    Ok(())
                }
                _ => Err(ErrorKind::WrongHandle),
            };
        }
        Err(ErrorKind::Busy)
    }

    fn find<'a>(&self, table: &'a Table, handle: Handle) -> Result<&'a Object, FfiError> {
        self.place(table, handle).map_err(|kind| match kind {
            ErrorKind::NullHandle => FfiError::new(kind, "the handle is 0"),
            ErrorKind::Forked => FfiError::new(
                kind,
                "the handle belongs to the parent process, whose threads a fork does not copy",
            ),
            ErrorKind::ForeignHandle => {
                FfiError::new(kind, "the handle was not made by this copy of the library")
            }
            _ => stale(),
        })
    }

    fn place<'a>(&self, table: &'a Table, handle: Handle) -> Result<&'a Object, ErrorKind> {
        let (tag, count, index) = ((handle >> 48) as u16, (handle >> 32) as u16, handle as u32);
        match tag {
            _ if handle == 0 => Err(ErrorKind::NullHandle),
            tag if Some(tag) == self.parent => Err(ErrorKind::Forked),
            tag if tag != self.tag => Err(ErrorKind::ForeignHandle),
            _ => {
                let slot = table.slots.get(index as usize).ok_or(ErrorKind::ForeignHandle)?;
                // (A count that is not reached yet was made up.)
                match slot.object.as_ref().filter(|_| slot.count == count) {
                    Some(object) => Ok(object),
                    None if count > slot.count => Err(ErrorKind::ForeignHandle),
                    None => Err(ErrorKind::StaleHandle),
                }
            }
        }
    }
}

fn stale() -> FfiError {
    FfiError::new(ErrorKind::StaleHandle, "the handle was freed")
}

#[cfg(test)]
mod tests {
    use refrain_ffi::{EngineOptions, ErrorKind};

    use super::*;

    fn engine() -> Object {
        let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/target.gguf");
        let options = EngineOptions { measure_ms: Some(0), threads: Some(1), ..EngineOptions::new(model) };
        Object::Engine(Engine::open(options, None).unwrap())
    }

    #[test]
    fn a_slot_is_used_until_its_numbers_end_and_no_handle_twice() {
        let library = Library::new(None);
        let object = engine();
        let mut seen = std::collections::HashSet::new();
        for _ in 0..70_000 {
            let handle = library.insert(object.clone());
            assert!(seen.insert(handle));
            drop(library.remove(handle).unwrap());
            assert_eq!(library.get(handle).err().map(|error| error.kind()), Some(ErrorKind::StaleHandle));
        }
        assert_eq!(library.table.read().unwrap().slots.len(), 2);
    }

    #[test]
    fn handles_of_others_are_told_apart() {
        let (parent, library) = (Library::new(None), Library::new(None));
        let kind = |library: &Library, handle| library.get(handle).err().map(|error| error.kind());
        let handle = parent.insert(engine());
        if parent.tag != library.tag {
            assert_eq!(kind(&library, handle), Some(ErrorKind::ForeignHandle));
        }
        assert_eq!(kind(&Library::new(Some(parent.tag)), handle), Some(ErrorKind::Forked));
        assert_eq!(kind(&parent, 0), Some(ErrorKind::NullHandle));
        assert_eq!(kind(&parent, handle + 1), Some(ErrorKind::ForeignHandle), "a slot that is not there");
        assert_eq!(
            kind(&parent, handle + (1 << 32)),
            Some(ErrorKind::ForeignHandle),
            "a count not reached yet"
        );
        assert_eq!(kind(&parent, handle), None);
        assert_eq!(
            parent.typed::<Session>(handle).err().map(|error| error.kind()),
            Some(ErrorKind::WrongHandle)
        );
        assert_eq!(parent.cancel(handle), Err(ErrorKind::WrongHandle));
    }
}
