//! The grammar that the command line asks for.

use std::path::Path;
use std::{fs, io};

use refrain::{DryOptions, Engine, GenerateOptions, Sampling};
use refrain_assistant::JobOptions;
use refrain_grammar::{GRAMMAR_BYTES_MAX, Grammar, JsonOptions, Vocabulary, is_gbnf};

use crate::args::{GrammarArgs, SamplingArgs};
use crate::failure::Failure;

/// A grammar that was given, with its file read.
pub(crate) struct Given {
    text: Text,
    after: Option<String>,
}

enum Text {
    JsonSchema(String),
    Regex(String),
    Choices(Vec<String>),
    Lark(String),
    Gbnf(String),
}

impl Given {
    /// Reads the grammar that the options name; `None` if they name none.
    pub(crate) fn read(args: &GrammarArgs) -> Result<Option<Self>, Failure> {
        let text = if let Some(schema) = &args.json_schema {
            let is_text = schema.trim_start().starts_with('{') || ["true", "false"].contains(&schema.trim());
            let schema = if is_text { schema.clone() } else { read(Path::new(schema))? };
            Text::JsonSchema(schema)
        } else if let Some(regex) = &args.regex {
            Text::Regex(regex.clone())
        } else if !args.choice.is_empty() {
            Text::Choices(args.choice.clone())
        } else if let Some(path) = &args.grammar {
            let text = read(path)?;
            if is_gbnf(&text) { Text::Gbnf(text) } else { Text::Lark(text) }
        } else if args.grammar_after.is_some() {
            let advice = "name it with --json-schema, --regex, --choice or --grammar";
            return Err(Failure::usage("--grammar-after needs a grammar", advice));
        } else {
            return Ok(None);
        };
        Ok(Some(Self { text, after: args.grammar_after.clone() }))
    }

    /// Compiles it for the engine's model.
    pub(crate) fn compile(&self, engine: &Engine) -> Result<Grammar, Failure> {
        let vocabulary = Vocabulary::of_engine(engine)?;
        let grammar = match &self.text {
            Text::JsonSchema(schema) => Grammar::json_schema(&vocabulary, schema, JsonOptions::default())?,
            Text::Regex(regex) => Grammar::regex(&vocabulary, regex)?,
            Text::Choices(choices) => Grammar::choices(&vocabulary, choices)?,
            Text::Lark(grammar) => Grammar::lark(&vocabulary, grammar)?,
            Text::Gbnf(grammar) => Grammar::gbnf(&vocabulary, grammar)?,
        };
        Ok(match &self.after {
            Some(marker) => grammar.after(marker)?,
            None => grammar,
        })
    }
}

/// The options with the grammar. Its form repeats text, so loops are broken only if the command line asks for it.
pub(crate) fn constrained(
    mut options: JobOptions,
    grammar: &Grammar,
    sampling: &Sampling,
    args: &SamplingArgs,
) -> JobOptions {
    let dry = if args.names_dry() { sampling.dry.clone() } else { DryOptions::default() };
    let GenerateOptions { processors, sources, .. } = grammar.constrain(GenerateOptions::default());
    let sampling = Sampling { dry, ..sampling.clone() };
    (options.sampling, options.processors, options.sources) = (Some(sampling), processors, sources);
    options
}

/// Reads a file of at most one byte more than a grammar may have, so that a longer one is refused by its length.
fn read(path: &Path) -> Result<String, Failure> {
    use std::io::Read;
    let problem = |error: std::io::Error| {
        Failure::input(
            format!("cannot read `{}`: {error}", path.display()),
            "check the path and its permissions",
        )
    };
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(problem)?;
    file.take(GRAMMAR_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(problem)?;
    if bytes.len() > GRAMMAR_BYTES_MAX {
        // Refused by its length, wherever it was cut.
        return Ok(String::from_utf8_lossy(&bytes).into_owned());
    }
    String::from_utf8(bytes).map_err(|error| problem(io::Error::new(io::ErrorKind::InvalidData, error)))
}
