//! Mistral from Small 3.2 on, Magistral, Ministral 3: `[TOOL_CALLS]NAME[ARGS]{…}`, also with `[CALL_ID]` and an id between.

use std::sync::Arc;

use super::held::{Cursor, Held, Stop};
use super::json_calls::JsonScan;
use super::lark::{Lark, Part};
use super::mistral::{self, MISTRAL, OPEN};
use super::reader::{Body, CallPart, Step};
use super::signature::Signature;
use super::{ToolFormat, WrittenCall};
use crate::work::request::Tools;

const ARGUMENTS: &str = "[ARGS]";
const CALL_ID: &str = "[CALL_ID]";

pub(super) struct MistralArgs;

impl ToolFormat for MistralArgs {
    fn name(&self) -> &'static str {
        "mistral_args"
    }

    fn recognises(&self, template: &str) -> bool {
        template.contains(OPEN) && template.contains(ARGUMENTS)
    }

    fn opens(&self) -> &'static [&'static str] {
        &[OPEN]
    }

    fn controls(&self) -> &'static [&'static str] {
        &[ARGUMENTS, CALL_ID]
    }

    fn calls(&self, lark: &mut Lark<'_>, tools: &Tools, is_begun: bool) -> String {
        lark.each(tools, |lark, function, index| {
            let arguments = lark.json(&format!("arguments_{index}"), &function.parameters);
            lark.sequence(&[Part::Text(&function.name), Part::Marker(ARGUMENTS), Part::Rule(&arguments)])
        });
        let further = lark.sequence(&[Part::Marker(OPEN), Part::Rule("call")]);
        let first = if is_begun { "call".to_owned() } else { further.clone() };
        lark.repeated(first, &further, tools)
    }

    fn body(&self, signatures: &Arc<[Signature]>, marker: &'static str) -> Box<dyn Body> {
        let signatures = Arc::clone(signatures);
        let list = MISTRAL.body(&signatures, marker);
        Box::new(ArgsBody { signatures, list, state: State::Head })
    }

    fn write(&self, calls: &[WrittenCall<'_>]) -> String {
        calls.iter().map(|call| format!("{OPEN}{}{ARGUMENTS}{}", call.name, call.arguments)).collect()
    }

    fn id(&self, id: &str) -> Option<String> {
        mistral::id(id)
    }
}

/// Reads a call.
#[derive(Debug)]
struct ArgsBody {
    signatures: Arc<[Signature]>,
    /// Reads the older form.
    list: Box<dyn Body>,
    state: State,
}

#[derive(Debug)]
enum State {
    Head,
    List,
    Arguments(JsonScan),
}

impl Body for ArgsBody {
    fn step(&mut self, held: &mut Held, out: &mut Vec<CallPart>) -> Step {
        match &mut self.state {
            State::Head => self.head(held, out).map_or_else(Step::from, |()| Step::Again),
            State::List => self.list.step(held, out),
            State::Arguments(scan) => match scan.take(held, out) {
                true => Step::End,
                false => Step::More,
            },
        }
    }
}

impl ArgsBody {
    fn head(&mut self, held: &mut Held, out: &mut Vec<CallPart>) -> Result<(), Stop> {
        let mut cursor = Cursor::new(held.rest());
        cursor.space();
        if matches!(cursor.peek()?, '[' | '{') {
            self.state = State::List;
            return Ok(());
        }
        let name = cursor.run(|c| c != '[' && c != '{' && c != '\n')?.trim();
        if cursor.maybe(CALL_ID)? {
            cursor.run(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')?;
        }
        // Some models leave the marker out.
        cursor.maybe(ARGUMENTS)?;
        cursor.space();
        if cursor.peek()? != '{' {
            return Err(Stop::Bad);
        }
        Signature::find(&self.signatures, name).ok_or(Stop::Bad)?;
        out.push(CallPart::Begin(name.to_owned()));
        held.skip(cursor.at);
        self.state = State::Arguments(JsonScan::default());
        Ok(())
    }
}
