//! Edits of a text by an instruction, with the changes as they are written.
//!
//! A text that fits the context is one window. A longer one is divided into [windows](crate::edit), which are edited one after the other.

mod editing;
mod request;
#[cfg(test)]
mod tests;

use editing::Editing;
pub use request::{Edit, EditRequest};

use crate::assistant::Assistant;
use crate::error::TaskError;
use crate::job::Job;
use crate::options::JobOptions;

impl Assistant {
    /// Edits a text, or a part of it. The changes come as [`JobEvent::Edit`](crate::JobEvent::Edit) while the new text is written. The old text drafts the new one,
    /// from the prompt.
    ///
    /// If the part fits the context, it is shown whole, and the output has room for a text that is a quarter longer, unless
    /// [`JobOptions::answer_tokens`] says otherwise. A longer one is edited in windows that end between sections or paragraphs
    /// ([`JobEvent::Window`](crate::JobEvent::Window)); front matter then stays as it is. An instruction about the text as a whole ("sort it") does not work there.
    /// If the output of a window ends at a limit of tokens, the job ends with it, and the rest of the text is as before.
    ///
    /// # Errors
    /// [`TaskError::Part`]: there is no such part; [`TaskError::Nothing`]: it is empty; [`TaskError::TextTooLarge`];
    /// [`TaskError::RequestTooLong`], [`TaskError::NoRoom`]: the context has no room for the instruction, or for a window beside it.
    pub fn edit(&self, request: EditRequest, options: JobOptions) -> Result<Job<Edit>, TaskError> {
        let (cancel, priority) = (options.cancel.clone(), options.priority);
        let (next, events) = Editing::begin(self, request, options)?;
        Ok(Job::begin(self, cancel, priority, next, events))
    }
}
