//! Draft sources written in Python.
//!
//! The engine asks such a source once per step, holding the interpreter's lock meanwhile. What it proposes is verified like every draft,
//! so it cannot change the output; what it raises ends its part in the drafting, and nothing else.

use std::sync::Arc;

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use refrain::TokenId;
use refrain::drafting::DraftSource;
use refrain::internals::draft::{Anchor, Candidate, Candidates, Cursor, EvidenceClass, VERIFY_ROWS_MAX};

use crate::errors::Failure;

/// Tokens of a proposal: more would not fit a verification batch, whose root is no proposal.
const TOKENS_MAX: usize = VERIFY_ROWS_MAX - 1;

/// The claim of a token without a probability. The builder assumes as much of a draft model before it has judged any claim; what it
/// learns about the source corrects it.
const PROBABILITY: f32 = 0.7;

/// The name of the source: its `name`, or that of its class.
///
/// # Errors
/// `name` is no string, or the object has no method `propose`.
fn name_of(object: &Bound<'_, PyAny>) -> PyResult<String> {
    if !object.getattr("propose")?.is_callable() {
        return Err(pyo3::exceptions::PyTypeError::new_err("the propose of a draft source is not callable"));
    }
    match object.getattr_opt("name")? {
        Some(name) => name.extract(),
        None => Ok(object.get_type().name()?.to_string()),
    }
}

/// The sources of a Python sequence of objects.
///
/// # Errors
/// As [`name_of`].
pub(crate) fn sources(objects: Vec<Bound<'_, PyAny>>, vocab_size: usize) -> PyResult<Vec<PythonSource>> {
    let source = |object: Bound<'_, PyAny>| {
        let name = name_of(&object)?;
        let object = Arc::new(object.unbind());
        Ok(PythonSource { name, object, vocab_size, chain: Vec::new(), is_off: false })
    };
    objects.into_iter().map(source).collect()
}

/// An object with a method `propose`, for one session or one sequence.
#[derive(Clone)]
pub(crate) struct PythonSource {
    name: String,
    object: Arc<Py<PyAny>>,
    vocab_size: usize,
    /// What it has proposed behind the committed tokens of this step.
    chain: Vec<(TokenId, f32)>,
    /// Whether it has raised, and is asked no more.
    is_off: bool,
}

impl PythonSource {
    fn ask(&mut self, committed: &[TokenId]) {
        self.chain.clear();
        if self.is_off {
            return;
        }
        // (At the interpreter's end there is nobody to ask.)
        Python::try_attach(|py| match self.call(py, committed) {
            Ok(chain) => self.chain = chain,
            // Ctrl-C during `propose` is for the program, not for the source: it is raised where signals are looked for.
            Err(error) if error.is_instance_of::<PyKeyboardInterrupt>(py) => interrupt(py),
            Err(error) => {
                self.is_off = true;
                let failure = Failure::Source { name: self.name.clone(), cause: error };
                PyErr::from(failure).write_unraisable(py, Some(self.object.bind(py)));
            }
        });
    }

    fn call(&self, py: Python<'_>, committed: &[TokenId]) -> PyResult<Vec<(TokenId, f32)>> {
        let tokens = PyList::new(py, committed.iter().map(|token| token.0))?;
        let proposed = self.object.bind(py).call_method1("propose", (tokens,))?;
        let mut chain = Vec::new();
        for item in proposed.try_iter()?.take(TOKENS_MAX) {
            let item = item?;
            let (token, probability): (u32, f32) = match item.cast::<PyTuple>() {
                Ok(pair) => pair.extract()?,
                Err(_) => (item.extract()?, PROBABILITY),
            };
            if token as usize >= self.vocab_size {
                return Err(Failure::Token { token, vocab_size: self.vocab_size }.into());
            }
            if !(0.0..=1.0).contains(&probability) {
                return Err(Failure::Probability { given: probability }.into());
            }
            chain.push((TokenId(token), probability));
        }
        Ok(chain)
    }
}

/// Raises Ctrl-C again, for the next look at signals.
fn interrupt(py: Python<'_>) {
    let raised = py.import("_thread").and_then(|thread| thread.call_method0("interrupt_main"));
    if let Err(error) = raised {
        error.write_unraisable(py, None);
    }
}

/// Cursors are positions in the chain.
impl DraftSource for PythonSource {
    fn name(&self) -> &str {
        &self.name
    }

    fn evidence(&self) -> EvidenceClass {
        EvidenceClass::Plain
    }

    fn truncate(&mut self, _len: usize) {
        self.chain.clear();
    }

    fn anchors(&mut self, committed: &[TokenId], out: &mut Vec<Anchor>) {
        self.ask(committed);
        if !self.chain.is_empty() {
            out.push(Anchor { cursor: Cursor(0), match_len: 0 });
        }
    }

    fn expand(&mut self, frontier: &[Cursor], out: &mut Candidates) {
        for (parent, &Cursor(at)) in frontier.iter().enumerate() {
            if let Some(&(token, probability)) = self.chain.get(at as usize) {
                let (parent, next) = (parent as u32, Cursor(at + 1));
                out.push(Candidate { parent, token, probability, match_len: 0, count: 0, next });
            }
        }
    }

    fn memory_usage(&self) -> u64 {
        (self.chain.capacity() * size_of::<(TokenId, f32)>()) as u64
    }

    fn fork(&self) -> Box<dyn DraftSource> {
        Box::new(self.clone())
    }
}
