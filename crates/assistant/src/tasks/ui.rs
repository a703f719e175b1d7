//! Commands for screens: the model chooses a command of an element of a screen, and a grammar allows no other output.

use std::collections::VecDeque;
use std::fmt::Write as _;

use refrain::DryOptions;
use refrain_grammar::{Grammar, Vocabulary};

use crate::assistant::Assistant;
use crate::error::TaskError;
use crate::job::Job;
use crate::layout::Layout;
use crate::options::JobOptions;
use crate::passage::{LeftOut, LeftOutReason, Passage};
use crate::screen::{Command, Screen, UiActions, regex};
use crate::step::{JobEvent, Next, Prompt, Report, Step, Written};

/// Maximum number of steps of a task.
const STEPS_MAX: usize = 256;

/// Maximum length of the screens of a task's steps together, in bytes.
const STEPS_BYTES_MAX: usize = 16 << 20;

/// Maximum characters of the command of a step.
const COMMAND_CHARS_MAX: usize = 1024;

/// Maximum number of commands without their screens in a prompt.
const LISTED_MAX: usize = 32;

/// Maximum number of steps that draft.
const DRAFTING_MAX: usize = 8;

/// Maximum bytes of a token, on average over a screen: more than any text has.
const TOKEN_BYTES_MAX: usize = 64;

/// Maximum number of earlier screens in a prompt.
const SCREENS_MAX: usize = 16;

/// The title of the newest command in a prompt.
const LAST: &str = "Last action";

/// A goal that takes several screens. It holds the steps before: the next prompt shows them, and drafts copy from them.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct UiTask {
    /// What the user wants.
    pub goal: String,
    /// What the agent may do.
    pub actions: UiActions,
    /// Maximum number of earlier screens in a prompt, the newest ones, at most 16. Default: 2. Of the steps before, it shows the commands.
    pub n_screens: usize,
    /// Whether the prompt lists the commands. Default: yes. The model inside the program has learnt prompts without the list.
    pub lists_actions: bool,
    steps: VecDeque<UiStep>,
    n_bytes: usize,
    n_dropped: usize,
}

/// A screen before, and what was done on it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UiStep {
    /// The screen; `None` if it is unknown.
    pub screen: Option<Screen>,
    /// The command, as [`UiCommand::text`].
    pub command: String,
    /// Its screen's text, of which prompts and drafts are made.
    shown: String,
}

impl UiTask {
    /// A goal, without steps.
    pub fn new(goal: impl Into<String>) -> Self {
        Self {
            goal: goal.into(),
            actions: UiActions::default(),
            n_screens: 2,
            lists_actions: true,
            steps: VecDeque::new(),
            n_bytes: 0,
            n_dropped: 0,
        }
    }

    /// Adds a step: a screen, and the command that was carried out on it. A task holds 256 steps, whose screens have 16 MiB of text
    /// together; the oldest steps are dropped and counted.
    pub fn push(&mut self, screen: impl Into<Option<Screen>>, command: impl AsRef<str>) {
        let screen = screen.into();
        let shown = screen.as_ref().map(Screen::to_string).unwrap_or_default();
        self.n_bytes += shown.len();
        let command = one_command(command.as_ref());
        self.steps.push_back(UiStep { screen, command, shown });
        while self.steps.len() > STEPS_MAX || (self.n_bytes > STEPS_BYTES_MAX && self.steps.len() > 1) {
            if let Some(dropped) = self.steps.pop_front() {
                self.n_bytes -= dropped.shown.len();
                self.n_dropped += 1;
            }
        }
    }

    /// The steps, oldest first.
    pub fn steps(&self) -> impl ExactSizeIterator<Item = &UiStep> + DoubleEndedIterator {
        self.steps.iter()
    }

    /// Steps that were dropped, the oldest ones.
    pub fn n_dropped(&self) -> usize {
        self.n_dropped
    }

    /// The command of a text, such as one that a person wrote; `None` if the task does not allow it on this screen. Of the arguments of
    /// an app's action, names and elements are checked.
    pub fn command(&self, screen: &Screen, text: &str) -> Option<Command> {
        Command::read(text, screen, &self.actions)
    }

    /// The number and the title of a step.
    fn title(&self, at: usize) -> String {
        let title = self.steps[at].screen.as_ref().map(Screen::title).unwrap_or_default();
        format!("Step {}: {title}", self.n_dropped + at + 1).trim_end_matches([':', ' ']).to_owned()
    }

    /// The passages of a prompt that shows so many earlier screens and so many older commands. What changes least stands first.
    fn passages(&self, screen: &Screen, n_screens: usize, n_commands: usize) -> Vec<Passage> {
        let mut passages = Vec::new();
        if self.lists_actions {
            passages.push(Passage::new("Commands", self.actions.list()));
        }
        let n = self.steps.len();
        // The newest command stands on its own.
        let first_shown = n - n_screens;
        let older = first_shown.min(n.saturating_sub(1));
        let mut commands = String::new();
        for at in older.saturating_sub(n_commands)..older {
            // Writing to a string cannot fail.
            let _ = writeln!(commands, "{}. {}", self.n_dropped + at + 1, self.steps[at].command);
        }
        if !commands.is_empty() {
            passages.push(Passage::new("Earlier actions", commands));
        }
        for at in first_shown..n {
            let UiStep { command, shown, .. } = &self.steps[at];
            passages.push(Passage::new(self.title(at), format!("{shown}\nAction: {command}")));
        }
        passages.push(Passage::new(screen.title(), screen.to_string()));
        passages.extend(self.steps.back().map(|step| Passage::new(LAST, step.command.as_str())));
        passages
    }
}

/// A command on one line, of bounded length. Its quotes stay.
fn one_command(text: &str) -> String {
    let line = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c });
    line.take(COMMAND_CHARS_MAX).collect()
}

/// The next command.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct UiCommand {
    /// The command.
    pub command: Command,
    /// The command as the model wrote it, such as `tap 4 "Sign in"`.
    pub text: String,
    /// How it came about. Its `left_out` names the earlier screens that the task wanted shown and that do not fit.
    pub report: Report,
}

/// The grammar of the commands for a screen.
fn grammar(vocabulary: &Vocabulary, screen: &Screen, actions: &UiActions) -> Result<Grammar, TaskError> {
    // A model may have a token for the end of a command and the line end behind it, so the grammar allows a second line, and the
    // output stops before it.
    const TAIL: &str = r"(\n[^\n]*)?";
    let offered = actions.offered(screen);
    let mut plain = vec![regex(screen, actions)];
    plain.extend(offered.iter().filter(|(_, schema)| schema.is_none()).map(|(name, _)| (*name).to_owned()));
    plain.retain(|regex| !regex.is_empty());
    let plain = (!plain.is_empty()).then(|| format!("({}){TAIL}", plain.join("|")));
    let own: Vec<_> = offered.iter().filter_map(|(name, schema)| Some((name, schema.as_ref()?))).collect();
    match (plain, own.is_empty()) {
        (None, true) => Err(TaskError::Nothing { verb: "choose from" }),
        (Some(plain), true) => Ok(Grammar::regex(vocabulary, &plain)?),
        (plain, false) => {
            let plain = plain.map(|plain| ("PLAIN".to_owned(), format!("PLAIN: /{plain}/\n")));
            let own = own.iter().enumerate().map(|(at, (name, schema))| {
                let rule = format!("own_{at}");
                let text = format!("{rule}: \"{name} \" %json {schema} TAIL?\n");
                (rule, text)
            });
            let (names, rules): (Vec<String>, Vec<String>) = plain.into_iter().chain(own).unzip();
            let rules = rules.concat();
            let lark = format!("start: {}\n{rules}TAIL: /\\n[^\\n]*/\n", names.join(" | "));
            Ok(Grammar::lark(vocabulary, &lark)?)
        }
    }
}

impl Assistant {
    /// Chooses the next command of a task on a screen. The output is constrained to the commands that the task allows and the screen's
    /// elements take, and names elements that are there. Of the task's steps, the prompt shows the newest as far as they fit.
    ///
    /// # Errors
    /// [`TaskError::TextTooLong`]: the screen does not fit the context; [`TaskError::RequestTooLong`];
    /// [`TaskError::Nothing`]: no command is allowed; [`TaskError::Vocabulary`], [`TaskError::Grammar`]. The job ends with
    /// [`TaskError::Incomplete`] if the output room is too small for the command.
    pub fn ui_command(
        &self,
        task: &UiTask,
        screen: Screen,
        mut options: JobOptions,
    ) -> Result<Job<UiCommand>, TaskError> {
        let n_forgotten = self.n_forgotten();
        let (layout, left_out) = self.lay_out_screens(task, &screen, &options)?;
        let grammar = grammar(self.vocabulary()?, &screen, &task.actions)?;
        let kept = self.kept(&options, &layout, n_forgotten);
        let newest = task.steps().rev().take(DRAFTING_MAX);
        let texts = newest.map(|step| self.tokens(&format!("{}\n{}", step.shown, step.command)));
        let texts = texts.collect::<Result<Vec<_>, _>>()?;
        let mut generate = self.last_generate_options(&mut options, &texts);
        // The form of a command repeats words.
        generate.sampling.dry = DryOptions::default();
        generate.stop = vec!["\n".to_owned()];
        let prompt = Prompt::new("ui", layout.turns, grammar.constrain(generate), kept);
        let step = Choosing { screen, actions: task.actions.clone(), left_out };
        Ok(Job::new(self, options.cancel, options.priority, prompt, Box::new(step)))
    }

    /// The prompt with as many of the wanted earlier screens, the newest first, as fit; and those that do not.
    fn lay_out_screens(
        &self,
        task: &UiTask,
        screen: &Screen,
        options: &JobOptions,
    ) -> Result<(Layout, Vec<LeftOut>), TaskError> {
        let room = self.context_len() - self.answer_tokens(options);
        let known = task.steps().rev().take_while(|step| step.screen.is_some()).count();
        let (mut n_screens, mut n_commands) = (task.n_screens.min(known).min(SCREENS_MAX), LISTED_MAX);
        let wanted = n_screens;
        // The longest prompts would only be measured to be refused.
        let bytes_max = room.saturating_mul(TOKEN_BYTES_MAX);
        let mut n_bytes: usize = task.steps().rev().take(n_screens).map(|step| step.shown.len()).sum();
        while n_screens > 0 && n_bytes > bytes_max {
            n_bytes -= task.steps[task.steps.len() - n_screens].shown.len();
            n_screens -= 1;
        }
        let layout = loop {
            let passages = task.passages(screen, n_screens, n_commands);
            match self.lay_out_whole(&self.prompts().ui, &passages, &task.goal, room) {
                Err(TaskError::TextTooLong { .. }) if n_screens > 0 => n_screens -= 1,
                Err(TaskError::TextTooLong { .. }) if n_commands > 0 && task.steps.len() > 1 => {
                    n_commands /= 4
                }
                layout => break layout?,
            }
        };
        let n = task.steps.len();
        let mut left_out = Vec::new();
        for at in (n - wanted..n - n_screens).rev() {
            let n_tokens = self.tokens(&task.steps[at].shown)?.len();
            left_out.push(LeftOut {
                title: task.title(at),
                source: None,
                n_tokens,
                reason: LeftOutReason::Context,
            });
        }
        Ok((layout, left_out))
    }
}

struct Choosing {
    screen: Screen,
    actions: UiActions,
    left_out: Vec<LeftOut>,
}

impl Choosing {
    fn command(&self, text: &str) -> Option<Command> {
        Command::read(text, &self.screen, &self.actions)
    }
}

impl Step<UiCommand> for Choosing {
    fn accepts(&self, text: &str) -> Result<(), TaskError> {
        match self.command(text) {
            Some(_) => Ok(()),
            None => Err(TaskError::Incomplete { text: text.to_owned() }),
        }
    }

    fn written(
        self: Box<Self>,
        written: Written,
        _events: &mut VecDeque<JobEvent<UiCommand>>,
    ) -> Result<Next<UiCommand>, TaskError> {
        match self.command(&written.text) {
            Some(command) => {
                let report = written.report(self.left_out);
                Ok(Next::Done(UiCommand { command, text: written.text, report }))
            }
            None => Err(TaskError::Incomplete { text: written.text }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_holds_its_newest_steps() {
        let mut task = UiTask::new("Go on.");
        let screen = Screen::new("List", [("item", "Next")]).unwrap();
        for n in 0..300 {
            task.push((n > 297).then(|| screen.clone()), format!("tap {n}\nx"));
        }
        assert_eq!((task.steps().len(), task.n_dropped()), (STEPS_MAX, 300 - STEPS_MAX));
        assert_eq!(task.steps().last().unwrap().command, "tap 299 x");
        task.lists_actions = false;
        let shown = |n_screens| {
            let passages = task.passages(&screen, n_screens, 3);
            passages.into_iter().map(|passage| (passage.title, passage.text)).collect::<Vec<_>>()
        };
        let pair = |title: &str, text: &str| (title.to_owned(), text.to_owned());
        let (now, last) = (pair("List", "1 item \"Next\""), pair("Last action", "tap 299 x"));
        let older = pair("Earlier actions", "297. tap 296 x\n298. tap 297 x\n299. tap 298 x\n");
        assert_eq!(shown(0), [older, now.clone(), last.clone()]);
        let step = |n| pair(&format!("Step {}: List", n + 1), &format!("1 item \"Next\"\nAction: tap {n} x"));
        let older = pair("Earlier actions", "296. tap 295 x\n297. tap 296 x\n298. tap 297 x\n");
        assert_eq!(shown(2), [older, step(298), step(299), now, last]);
    }

    #[test]
    fn the_screens_of_a_task_are_bounded() {
        let label = "x".repeat(120);
        let screen = Screen::new("", (0..1000).map(|_| ("item", label.as_str()))).unwrap();
        let mut task = UiTask::new("Go on.");
        (0..200).for_each(|_| task.push(screen.clone(), "scroll down"));
        assert!(task.n_bytes <= STEPS_BYTES_MAX && task.n_dropped() > 0);
        assert_eq!(task.n_bytes, task.steps().map(|step| step.shown.len()).sum::<usize>());
    }
}
