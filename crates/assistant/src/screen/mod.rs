//! Screens of apps as text: their elements, and the commands and actions that they take.

mod actions;
mod command;
mod elements;
mod error;
mod forms;
mod verb;

pub use actions::{UiAction, UiActions};
pub(crate) use command::regex;
pub use command::{Command, Direction};
pub use elements::{Element, Role, Screen};
pub use error::{ActionError, ScreenError, ScreenForm};
pub use verb::UiVerb;
