//! A request to a model that writes text, whatever endpoint it came from.

use refrain::{Message, Sampling, TokenId};
use refrain_assistant::Priority;
use serde_json::Value;

/// A checked request. Ranges that depend on the model are checked when it is prepared.
#[derive(Debug)]
pub(crate) struct Request {
    /// `None`: the first model.
    pub(crate) model: Option<String>,
    pub(crate) input: Input,
    /// The field that has the input, for errors.
    pub(crate) param: &'static str,
    /// Outputs per prompt.
    pub(crate) n: usize,
    pub(crate) sampling: SamplingFields,
    /// `None`: as many as fit the context.
    pub(crate) max_tokens: Option<usize>,
    pub(crate) stop: Vec<String>,
    /// Probabilities of the tokens, and of this many others at each place.
    pub(crate) logprobs: Option<usize>,
    /// Whether the tokens of the prompts have probabilities too.
    pub(crate) scores_prompts: bool,
    pub(crate) format: Format,
    pub(crate) tools: Tools,
    /// A text that the output probably has.
    pub(crate) prediction: Option<String>,
    pub(crate) cache_key: Option<String>,
    pub(crate) documents: Vec<Document>,
    /// Whether the model reasons; `None`: the template's default.
    pub(crate) thinking: Option<bool>,
    /// How much it reasons, for a template that knows it.
    pub(crate) effort: Option<Effort>,
    /// Whether the output continues the last message, which is one of the model.
    pub(crate) continues: bool,
    /// Whether the oldest messages are left out if they do not fit the context.
    pub(crate) truncates: bool,
    /// Further variables of the template.
    pub(crate) variables: Vec<(String, Value)>,
    /// Whether the output is drafted. The text is the same without drafts.
    pub(crate) drafts: bool,
    pub(crate) priority: Priority,
}

impl Request {
    /// A request that states nothing but its input, with one greedy output.
    pub(crate) fn of_input(model: Option<String>, input: Input, param: &'static str) -> Self {
        Self {
            model,
            input,
            param,
            n: 1,
            sampling: SamplingFields::default(),
            max_tokens: None,
            stop: Vec::new(),
            logprobs: None,
            scores_prompts: false,
            format: Format::Text,
            tools: Tools::default(),
            prediction: None,
            cache_key: None,
            documents: Vec::new(),
            thinking: None,
            effort: None,
            continues: false,
            truncates: false,
            variables: Vec::new(),
            drafts: true,
            priority: Priority::Interactive,
        }
    }
}

/// The prompt, or several.
#[derive(Debug)]
pub(crate) enum Input {
    Chat(Vec<Message>),
    Plain(Vec<Plain>),
    Gaps(Vec<Gap>),
}

/// A prompt without a chat template.
#[derive(Debug)]
pub(crate) enum Plain {
    Text(String),
    Tokens(Vec<TokenId>),
}

/// A text with a gap, which the output fills.
#[derive(Debug)]
pub(crate) struct Gap {
    pub(crate) before: String,
    pub(crate) after: String,
    /// Names and texts of other files, the nearest last. If they do not fit the context, the first ones are left out.
    pub(crate) files: Vec<(String, String)>,
    /// The field that has the text behind the gap, for errors.
    pub(crate) param: &'static str,
}

impl Gap {
    /// A gap without other files.
    pub(crate) fn new(before: impl Into<String>, after: impl Into<String>, param: &'static str) -> Self {
        Self { before: before.into(), after: after.into(), files: Vec::new(), param }
    }
}

/// Sampling options that a request states; the others are those of the model.
#[derive(Debug, Default)]
pub(crate) struct SamplingFields {
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) top_k: Option<usize>,
    pub(crate) min_p: Option<f32>,
    pub(crate) frequency_penalty: Option<f32>,
    pub(crate) presence_penalty: Option<f32>,
    pub(crate) repetition_penalty: Option<f32>,
    /// Newest tokens that the penalties see; `usize::MAX`: all.
    pub(crate) penalty_window: Option<usize>,
    pub(crate) dry: Dry,
    pub(crate) logit_bias: Vec<(TokenId, f32)>,
    pub(crate) seed: Option<u64>,
}

impl SamplingFields {
    /// These options over the model's.
    pub(crate) fn over(&self, defaults: &Sampling) -> Sampling {
        let mut sampling = defaults.clone();
        let set = |field: &mut f32, given: Option<f32>| *field = given.unwrap_or(*field);
        set(&mut sampling.temperature, self.temperature);
        // The smallest share that leaves the best token: OpenAI allows 0.
        set(&mut sampling.top_p, self.top_p.map(|p| p.max(f32::MIN_POSITIVE)));
        set(&mut sampling.min_p, self.min_p);
        set(&mut sampling.frequency_penalty, self.frequency_penalty);
        set(&mut sampling.presence_penalty, self.presence_penalty);
        set(&mut sampling.repetition_penalty, self.repetition_penalty);
        let Dry { multiplier, base, allowed_length, window, breakers } = &self.dry;
        set(&mut sampling.dry.multiplier, *multiplier);
        set(&mut sampling.dry.base, *base);
        sampling.dry.allowed_length = allowed_length.unwrap_or(sampling.dry.allowed_length);
        sampling.dry.window = window.unwrap_or(sampling.dry.window);
        sampling.dry.breakers = breakers.clone().unwrap_or(sampling.dry.breakers);
        sampling.penalty_window = self.penalty_window.unwrap_or(sampling.penalty_window);
        sampling.top_k = self.top_k.unwrap_or(sampling.top_k);
        sampling.logit_bias.extend_from_slice(&self.logit_bias);
        sampling.seed = self.seed.or(sampling.seed);
        sampling
    }
}

/// Options of DRY that a request states.
#[derive(Debug, Default)]
pub(crate) struct Dry {
    pub(crate) multiplier: Option<f32>,
    pub(crate) base: Option<f32>,
    pub(crate) allowed_length: Option<usize>,
    pub(crate) window: Option<usize>,
    pub(crate) breakers: Option<Vec<String>>,
}

/// A level of reasoning, and the field that names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Effort {
    pub(crate) level: &'static str,
    /// The level that means the model's default where the template knows none.
    pub(crate) neutral: &'static str,
    pub(crate) path: &'static str,
}

/// The form of the output.
#[derive(Debug, Clone)]
pub(crate) enum Format {
    Text,
    JsonObject,
    /// JSON under a schema, which is at `path` in the request.
    JsonSchema {
        schema: Value,
        path: String,
    },
    /// A text of a grammar in GBNF, the field `grammar`.
    Gbnf(String),
}

/// The tools that the model may call.
#[derive(Debug, Default)]
pub(crate) struct Tools {
    pub(crate) functions: Vec<Function>,
    pub(crate) choice: ToolChoice,
    pub(crate) is_parallel: bool,
}

/// A function that the model may call.
#[derive(Debug, Clone)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    /// A schema of type `object`.
    pub(crate) parameters: Value,
    /// The place of the schema in the request.
    pub(crate) path: String,
}

/// Which tools the model calls.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum ToolChoice {
    None,
    #[default]
    Auto,
    Required,
    Named(String),
    Allowed {
        names: Vec<String>,
        is_required: bool,
    },
}

impl ToolChoice {
    /// Whether the output is a call.
    pub(crate) fn is_required(&self) -> bool {
        match self {
            Self::None | Self::Auto => false,
            Self::Required | Self::Named(_) => true,
            Self::Allowed { is_required, .. } => *is_required,
        }
    }
}

impl Tools {
    /// The functions that may be called.
    pub(crate) fn callable(&self) -> Vec<&Function> {
        let is_callable = |function: &&Function| match &self.choice {
            ToolChoice::None => false,
            ToolChoice::Auto | ToolChoice::Required => true,
            ToolChoice::Named(name) => function.name == *name,
            ToolChoice::Allowed { names, .. } => names.contains(&function.name),
        };
        self.functions.iter().filter(is_callable).collect()
    }
}

/// A passage that comes with a request.
#[derive(Debug, Clone)]
pub(crate) struct Document {
    pub(crate) title: String,
    pub(crate) text: String,
    pub(crate) url: Option<String>,
}
