//! Options that Python names by strings.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use refrain::{Drafting, KvType, Quantize, Role};
use refrain_assistant::{Length, Priority};

use crate::errors::Failure;
use crate::rows::Kind;

/// The exception for an argument that is none of several types.
pub(crate) fn wrong_type(expected: &str, given: &Bound<'_, PyAny>) -> PyErr {
    let name = given.get_type().name().map_or_else(|_| "unknown".to_owned(), |name| name.to_string());
    PyTypeError::new_err(format!("expected {expected}, got {name}"))
}

/// Strings that end an output: one, or several.
pub(crate) struct Stop(pub(crate) Vec<String>);

impl<'py> FromPyObject<'_, 'py> for Stop {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        // (A string is a sequence of strings too.)
        match object.extract::<String>() {
            Ok(one) => Ok(Self(vec![one])),
            Err(_) => object.extract().map(Self),
        }
    }
}

/// A value by its name.
///
/// # Errors
/// [`Failure::Choice`] with the allowed names.
fn by_name<T: Copy>(option: &'static str, given: &str, choices: &[(&'static str, T)]) -> Result<T, Failure> {
    let found = choices.iter().find(|(name, _)| *name == given);
    found.map(|&(_, value)| value).ok_or_else(|| Failure::Choice {
        option,
        given: given.to_owned(),
        choices: choices.iter().map(|(name, _)| *name).collect(),
    })
}

pub(crate) fn quantize(given: &str) -> Result<Quantize, Failure> {
    let choices = [
        ("keep", Quantize::Keep),
        ("f32", Quantize::F32),
        ("q8_0", Quantize::Q8_0),
        ("q4_0", Quantize::Q4_0),
    ];
    by_name("quantize", given, &choices)
}

pub(crate) fn drafting(given: &str) -> Result<Drafting, Failure> {
    let choices = [("auto", Drafting::Auto), ("draft_model", Drafting::DraftModel), ("off", Drafting::Off)];
    by_name("drafting", given, &choices)
}

pub(crate) fn kv_type(given: &str) -> Result<KvType, Failure> {
    let known: Vec<_> = KvType::ALL.iter().map(|&kv_type| (kv_type.name(), kv_type)).collect();
    by_name("kv_type", given, &known)
}

pub(crate) fn role(given: &str) -> Result<Role, Failure> {
    let roles = [Role::System, Role::Developer, Role::User, Role::Assistant, Role::Tool];
    by_name("role", given, &roles.map(|role| (role.name(), role)))
}

pub(crate) fn kind(given: &str) -> Result<Kind, Failure> {
    let kinds = [
        ("logits", Kind::Logits),
        ("log_probabilities", Kind::LogProbabilities),
        ("probabilities", Kind::Probabilities),
    ];
    by_name("kind", given, &kinds)
}

pub(crate) fn priority(given: &str) -> Result<Priority, Failure> {
    let priorities = [
        ("foreground", Priority::Foreground),
        ("interactive", Priority::Interactive),
        ("background", Priority::Background),
    ];
    by_name("priority", given, &priorities)
}

pub(crate) fn length(given: &str) -> Result<Length, Failure> {
    by_name("length", given, &[("short", Length::Short), ("medium", Length::Medium), ("long", Length::Long)])
}

/// The key of a store.
///
/// # Errors
/// [`Failure::Range`]: it has another length.
pub(crate) fn key(given: Option<&[u8]>) -> Result<Option<[u8; 32]>, Failure> {
    let of_length = |given: &[u8]| {
        let range = |_| Failure::Range { option: "bytes of key", given: given.len(), min: 32, max: 32 };
        given.try_into().map_err(range)
    };
    given.map(of_length).transpose()
}
