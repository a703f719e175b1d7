//! From a request to tokens, grammar and options. Everything that can be refused is refused here.

use refrain::internals::tokenizer::TokenizerParts as _;
use std::sync::Arc;

use refrain::internals::tokenizer::{Gap, ReasoningMarkers};
use refrain::{
    CancelToken, ChatOptions, GenerateOptions, Message, PromptPassage, Role, SpecialTokens, Task, TextKind,
    TokenId, Tokenizer, TokenizerError,
};
use refrain_grammar::{Grammar, MaskAhead};
use serde_json::json;

use super::auto::AutoMask;
use super::grammars;
use super::logprobs::Logprobs;
use super::prediction::Prediction;
use super::request::{self, Format, Input, Plain, Request, ToolChoice};
use super::stops::Stops;
use super::tool_format::{Form, OutputReader};
use crate::error::{ApiError, ApiResult};
use crate::models::Model;

/// A request that can be computed.
pub(crate) struct Prepared {
    pub(crate) model: Arc<Model>,
    pub(crate) request: Request,
    /// The tokens of each prompt.
    pub(crate) prompts: Vec<Vec<TokenId>>,
    /// Messages or files that were left out because the others fill the context.
    pub(crate) n_left_out: usize,
    /// Whether the prompts are plain texts, whose outputs have no reasoning apart.
    pub(crate) is_plain: bool,
    /// Whether the outputs fill gaps, and end where those do.
    fills_gap: bool,
    asks_for_reasoning: bool,
    constraint: Constraint,
    /// Drafts from the predicted text.
    prediction: Option<Prediction>,
}

/// What constrains an output.
enum Constraint {
    None,
    Grammar(Grammar),
    /// Free text that may call tools; the grammar begins behind the opening marker.
    Auto(Grammar),
}

/// The options of one output, and what reads it.
pub(crate) struct Output {
    pub(crate) options: GenerateOptions,
    pub(crate) logprobs: Option<Logprobs>,
    pub(crate) reader: Option<OutputReader>,
    /// Stop strings of a request with tools.
    pub(crate) stops: Option<Stops>,
    /// Computes the masks of a grammar between the passes.
    pub(crate) ahead: Option<Ahead>,
}

/// Computes the masks of an output between the passes.
pub(crate) enum Ahead {
    Grammar(MaskAhead),
    Auto(AutoMask),
}

impl Ahead {
    /// Computes the mask behind `output`, the tokens so far.
    pub(crate) fn compute(&self, output: &[TokenId]) {
        match self {
            Self::Grammar(ahead) => ahead.compute(output),
            Self::Auto(mask) => mask.compute_ahead(output),
        }
    }
}

/// Prepares a request, all but its grammar.
///
/// # Errors
/// The refusal, with the name of the field.
pub(crate) fn prepare(model: Arc<Model>, mut request: Request, cancel: &CancelToken) -> ApiResult<Prepared> {
    let check = || if cancel.is_cancelled() { Err(ApiError::stopped()) } else { Ok(()) };
    check()?;
    let sampling = request.sampling.over(&model.sampling);
    let vocab_size = model.engine.config().vocab_size;
    sampling.check(vocab_size).map_err(|error| match (error.field(), error.value()) {
        (Some("logit_bias"), Some(token)) if error.limit().is_some() => {
            let message = format!("token {token} is outside the vocabulary of {vocab_size} tokens");
            ApiError::field("logit_bias", message)
        }
        (Some(option), _) => ApiError::field(option, &error),
        _ => ApiError::bad_request(error.to_string()),
    })?;
    let context_len = model.context_len();
    let (prompts, n_left_out) = match &request.input {
        Input::Chat(messages) => {
            let (prompt, n_left_out) = encode_fitting(&model, &request, messages)?;
            (vec![prompt], n_left_out)
        }
        Input::Plain(prompts) => {
            let prompts = prompts.iter().map(|prompt| encode_plain(&model, prompt, request.param));
            (prompts.collect::<ApiResult<_>>()?, 0)
        }
        Input::Gaps(gaps) => {
            let encoded = gaps.iter().map(|gap| encode_gap(&model, &request, gap));
            let (prompts, n_left_out): (_, Vec<usize>) =
                encoded.collect::<ApiResult<Vec<_>>>()?.into_iter().unzip();
            (prompts, n_left_out.iter().sum())
        }
    };
    for prompt in &prompts {
        if prompt.is_empty() {
            return Err(ApiError::field(request.param, "the prompt has no token"));
        }
        if prompt.len() >= context_len {
            return Err(ApiError::context_overflow(prompt.len(), context_len, request.param));
        }
    }
    check()?;
    let prediction = match request.prediction.take() {
        None => None,
        Some(text) => {
            let text = beginning(&text, context_len.saturating_mul(PREDICTED_BYTES_PER_TOKEN));
            let tokens = model.engine.tokenizer().encode(text, SpecialTokens::AsText);
            let tokens = tokens.map_err(|error| ApiError::of_engine(error, "prediction"))?;
            Some(Prediction::new(&prompts[0], &tokens))
        }
    };
    check()?;
    let is_plain = !matches!(request.input, Input::Chat(_));
    let fills_gap = matches!(request.input, Input::Gaps(_));
    let asks_for_reasoning = asks_for_reasoning(model.engine.tokenizer(), &request);
    // The texts are not needed any more, and the request may wait.
    request.input = Input::Plain(Vec::new());
    Ok(Prepared {
        model,
        request,
        prompts,
        n_left_out,
        is_plain,
        fills_gap,
        asks_for_reasoning,
        constraint: Constraint::None,
        prediction,
    })
}

/// The tokens of a request's first prompt, also of one that leaves no room for an output.
///
/// # Errors
/// The refusal, with the name of the field.
pub(crate) fn tokens(model: &Model, request: &Request) -> ApiResult<Vec<TokenId>> {
    match &request.input {
        Input::Chat(messages) => encode_chat(model, request, messages),
        Input::Plain(prompts) => prompts
            .first()
            .map_or_else(|| Ok(Vec::new()), |prompt| encode_plain(model, prompt, request.param)),
        Input::Gaps(gaps) => {
            gaps.first().map_or_else(|| Ok(Vec::new()), |gap| Ok(encode_gap(model, request, gap)?.0))
        }
    }
}

/// The tokens without the one that begins a text.
pub(crate) fn without_bos<'a>(model: &Model, tokens: &'a [TokenId]) -> &'a [TokenId] {
    let bos = model.engine.tokenizer().bos();
    tokens.strip_prefix(bos.as_slice()).unwrap_or(tokens)
}

/// Bytes of a predicted text per token of the context: more than an output could use.
const PREDICTED_BYTES_PER_TOKEN: usize = 16;

/// The first bytes of a text, up to the end of a character.
fn beginning(text: &str, n_bytes: usize) -> &str {
    &text[..text.floor_char_boundary(n_bytes)]
}

fn encode_plain(model: &Model, prompt: &Plain, param: &str) -> ApiResult<Vec<TokenId>> {
    let tokenizer = model.engine.tokenizer();
    match prompt {
        Plain::Tokens(tokens) => {
            let vocab_size = model.engine.config().vocab_size;
            match tokens.iter().find(|token| token.index() >= vocab_size) {
                Some(token) => {
                    let message =
                        format!("token {} is outside the vocabulary of {vocab_size} tokens", token.0);
                    Err(ApiError::field(param, message))
                }
                None => Ok(tokens.clone()),
            }
        }
        Plain::Text(text) => {
            check_bytes(model, text.len(), param)?;
            let encoded = tokenizer.encode(text, SpecialTokens::AsText);
            let tokens = encoded.map_err(|error| ApiError::of_engine(error, param))?;
            // As `Session::append_text` begins a text.
            let bos = tokenizer.bos().filter(|bos| tokenizer.adds_bos() && tokens.first() != Some(bos));
            Ok(bos.into_iter().chain(tokens).collect())
        }
    }
}

/// The prompt of a text with a gap, and how many files it leaves out. If it does not fit together with an output, files are left out, from the first one on.
fn encode_gap(model: &Model, request: &Request, gap: &request::Gap) -> ApiResult<(Vec<TokenId>, usize)> {
    let (tokenizer, context_len) = (model.engine.tokenizer(), model.context_len());
    if !tokenizer.can_infill() {
        let message = "the vocabulary of the model has no tokens to fill in a gap";
        return Err(ApiError::unsupported(gap.param, message));
    }
    let request::Gap { before, after, files, .. } = gap;
    check_bytes(model, before.len().saturating_add(after.len()), request.param)?;
    let room = request.max_tokens.unwrap_or(1).clamp(1, (context_len / 4).max(1));
    // Longer files cannot fit, so they are not tokenized.
    let mut n_bytes = context_len.saturating_mul(TOKEN_BYTES_MAX);
    let n_too_long = files.iter().rev().position(|(name, text)| {
        let left = n_bytes.checked_sub(name.len() + text.len());
        n_bytes = left.unwrap_or(0);
        left.is_none()
    });
    let n_too_long = n_too_long.map_or(0, |from_end| files.len() - from_end);
    let from = |start: usize| {
        let gap = Gap { before, after, files: &files[start..] };
        tokenizer.encode_gap(gap).map_err(|error| ApiError::of_engine(error, request.param))
    };
    // Fewer files have fewer tokens.
    let (mut least, mut most) = (n_too_long, files.len());
    while least < most {
        let middle = least.midpoint(most);
        match from(middle)?.len() + room <= context_len {
            true => most = middle,
            false => least = middle + 1,
        }
    }
    Ok((from(least)?, least))
}

/// Refuses a text that cannot fit, before it is tokenized: no token has more than so many bytes on average.
fn check_bytes(model: &Model, n_bytes: usize, param: &str) -> ApiResult<()> {
    let context_len = model.context_len();
    if n_bytes / TOKEN_BYTES_MAX <= context_len {
        return Ok(());
    }
    let message = format!("{n_bytes} bytes of text do not fit the context of {context_len} tokens");
    Err(ApiError::field(param, message).with_code("context_length_exceeded"))
}

/// More bytes than a token has in any text: runs of spaces are the longest.
const TOKEN_BYTES_MAX: usize = 128;

/// The prompt of a conversation, and how many messages it leaves out. If the conversation does not fit and may be cut, it begins at the
/// earliest message of the user from which it fits. Instructions stay, and so does the last turn.
fn encode_fitting(
    model: &Model,
    request: &Request,
    messages: &[Message],
) -> ApiResult<(Vec<TokenId>, usize)> {
    let whole = encode_chat(model, request, messages);
    let fits = |encoded: &ApiResult<Vec<TokenId>>| match encoded {
        Ok(tokens) => tokens.len() < model.context_len(),
        Err(error) => error.code != Some("context_length_exceeded"),
    };
    if !request.truncates || fits(&whole) {
        return Ok((whole?, 0));
    }
    let is_user = |&(_, message): &(usize, &Message)| message.role == Role::User;
    let starts: Vec<usize> =
        messages.iter().enumerate().filter(is_user).skip(1).map(|(index, _)| index).collect();
    let from = |start: usize| {
        let stays = |&(index, message): &(usize, &Message)| {
            index >= start || matches!(message.role, Role::System | Role::Developer)
        };
        messages.iter().enumerate().filter(stays).map(|(_, message)| message.clone()).collect::<Vec<_>>()
    };
    let encode_from = |start: usize| encode_chat(model, request, &from(start));
    // Fewer messages have fewer tokens.
    let n_too_early = starts.partition_point(|&start| !fits(&encode_from(start)));
    match starts.get(n_too_early).or(starts.last()) {
        None => Ok((whole?, 0)),
        Some(&start) => Ok((encode_from(start)?, messages.len() - from(start).len())),
    }
}

/// Renders the messages with tools and documents, through the template where it shows them, else as text.
fn encode_chat(model: &Model, request: &Request, messages: &[Message]) -> ApiResult<Vec<TokenId>> {
    let tokenizer = model.engine.tokenizer();
    if let Some(_error) = tokenizer.chat_template_error() {
        return Err(ApiError::field(request.param, "the chat template of the model cannot be used"));
    }
    if !tokenizer.has_chat_template() {
        let message = "the model has no chat template; `/v1/completions` continues plain text";
        return Err(ApiError::field(request.param, message));
    }
    check_bytes(model, messages.iter().map(|message| message.content.len()).sum(), request.param)?;
    let (messages, begun) = match messages.split_last() {
        Some((last, before)) if request.continues => (before, Some(last)),
        _ => (messages, None),
    };
    let mut messages = messages.to_vec();
    let mut options = ChatOptions::default();
    options.enable_thinking = request.thinking;
    if let Some(effort) = &request.effort {
        if *model.knows_effort.get_or_init(|| knows_effort(tokenizer)) {
            set_effort(&mut options, effort.level);
        } else if effort.level != effort.neutral {
            let message = "the chat template of the model knows no levels; `none` and `chat_template_kwargs.enable_thinking` switch reasoning";
            return Err(ApiError::unsupported(effort.path, message));
        }
    }
    for (name, value) in &request.variables {
        options.set_variable(name.as_str(), value.clone()).map_err(|_| {
            ApiError::field("chat_template_kwargs", "a variable has a name with a fixed meaning in templates")
        })?;
    }
    let has_calls =
        messages.iter().any(|message| !message.tool_calls.is_empty() || message.role == Role::Tool);
    let callable = request.tools.callable();
    if has_calls || !callable.is_empty() {
        // With a named function the others are shown too: the prompt then has the same beginning for every choice.
        let shown: Vec<_> = match request.tools.choice {
            ToolChoice::None => Vec::new(),
            _ => request.tools.functions.iter().collect(),
        };
        model.told().show(&mut messages, &mut options, &shown);
    }
    let encode = |messages: &[Message], options: &ChatOptions| {
        let of_tokenizer = |error: TokenizerError| ApiError::of_engine(error, request.param);
        let mut tokens = tokenizer.encode_chat(messages, options, true).map_err(of_tokenizer)?;
        if let Some(begun) = begun {
            if tokenizer.reasoning_splitter(&tokens).kind() == TextKind::Reasoning {
                let message = "the chat template begins with reasoning, so no answer can be continued";
                return Err(ApiError::unsupported("continue_final_message", message));
            }
            // As the model would have written it.
            let text = tokenizer.encode(&begun.content, SpecialTokens::AsText).map_err(of_tokenizer)?;
            tokens.extend(text);
        }
        Ok(tokens)
    };
    if request.documents.is_empty() {
        return encode(&messages, &options);
    }
    let documents = request.documents.iter();
    let documents = documents.map(|document| json!({ "title": document.title, "text": document.text }));
    let without_documents = encode(&messages, &options)?;
    options.documents = documents.collect();
    let with_documents = encode(&messages, &options)?;
    options.documents.clear();
    let shows_documents = with_documents != without_documents;
    if shows_documents {
        return Ok(with_documents);
    }
    let passages: Vec<_> = request
        .documents
        .iter()
        .map(|document| PromptPassage::new(&document.title, &document.text))
        .collect();
    let Some(asked) = messages.iter_mut().rev().find(|message| message.role == Role::User) else {
        return Err(ApiError::field("documents", "there is no message of a user about them"));
    };
    asked.content = Task::Answer.user_message(&passages, &asked.content);
    encode(&messages, &options)
}

/// Sets a level of reasoning. Without an effect if the template's own variables name another one.
fn set_effort(options: &mut ChatOptions, level: &'static str) {
    let _ = options.set_variable("reasoning_effort", level.into());
}

/// Whether the chat template reads the level of reasoning: it renders a message differently with two of them.
fn knows_effort(tokenizer: &Tokenizer) -> bool {
    let render = |level| {
        let mut options = ChatOptions::default();
        set_effort(&mut options, level);
        tokenizer.encode_chat(&[Message::new(Role::User, "x")], &options, true).ok()
    };
    render("low") != render("high")
}

fn constraint(prepared: &Prepared, cancel: &CancelToken) -> ApiResult<Constraint> {
    let Prepared { model, request, .. } = prepared;
    let prompt = prepared.prompts[0].as_slice();
    let has_tools = !request.tools.callable().is_empty();
    let object = json!({ "type": "object" });
    let answer = match &request.format {
        Format::Text | Format::Gbnf(_) => None,
        Format::JsonObject => Some((&object, "response_format")),
        Format::JsonSchema { schema, path } => Some((schema, &**path)),
    };
    let gbnf = match &request.format {
        Format::Gbnf(_) if has_tools => {
            return Err(ApiError::unsupported("grammar", "is not supported together with tools"));
        }
        Format::Gbnf(text) => Some(text),
        _ => None,
    };
    if request.continues && (has_tools || answer.is_some() || gbnf.is_some()) {
        let message = "is not supported together with tools or a format of the answer";
        return Err(ApiError::unsupported("continue_final_message", message));
    }
    let tokenizer = model.engine.tokenizer();
    let is_open = tokenizer.reasoning_splitter(prompt).kind() == TextKind::Reasoning;
    let calls = |form| grammars::calls(model, &request.tools, is_open, form, cancel);
    let is_required = request.tools.choice.is_required();
    let grammar = match (answer, gbnf) {
        (_, Some(text)) => grammars::gbnf(model, text, cancel)?,
        (None, None) if !has_tools => return Ok(Constraint::None),
        (None, None) if !is_required => return Ok(Constraint::Auto(calls(Form::BehindMarker)?)),
        (Some((schema, path)), None) if !has_tools => grammars::json(model, schema, path, cancel)?,
        // Whichever the model begins.
        (Some((schema, path)), None) if !is_required => calls(Form::CallsOr { schema, path })?,
        _ => calls(Form::Calls)?,
    };
    if has_tools && model.told().format.has_channels() {
        // This grammar has the reasoning in it.
        return Ok(Constraint::Grammar(grammar));
    }
    let markers = tokenizer.reasoning_markers();
    match markers.filter(|_| is_open || prepared.asks_for_reasoning) {
        None => Ok(Constraint::Grammar(grammar)),
        Some(markers) => {
            let after =
                grammar.after(&markers.close).map_err(|error| ApiError::of_grammar(&error, request.param))?;
            Ok(Constraint::Grammar(after))
        }
    }
}

/// Whether the output certainly begins with reasoning although the prompt has not opened it. A model that only may reason answers at once
/// under a grammar, because a grammar behind a marker that never comes would constrain nothing.
fn asks_for_reasoning(tokenizer: &Tokenizer, request: &Request) -> bool {
    let is_chat = matches!(request.input, Input::Chat(_));
    // gpt-oss writes the header of its answer itself.
    let always = tokenizer.reasoning_markers().is_some_and(ReasoningMarkers::writes_header);
    is_chat && (always || request.thinking == Some(true))
}

impl Prepared {
    /// Whether [`constrain`](Self::constrain) has work.
    pub(crate) fn has_grammar(&self) -> bool {
        !self.request.tools.callable().is_empty() || !matches!(self.request.format, Format::Text)
    }

    /// Compiles the grammar of the outputs, if they have one. It may wait for other grammars, and for no other work.
    ///
    /// # Errors
    /// The refusal, with the name of the field.
    pub(crate) fn constrain(self, cancel: &CancelToken) -> ApiResult<Self> {
        let constraint = constraint(&self, cancel)?;
        if cancel.is_cancelled() { Err(ApiError::stopped()) } else { Ok(Self { constraint, ..self }) }
    }

    /// With its grammar, if that is kept.
    pub(crate) fn constrain_kept(self) -> Result<Self, Box<Self>> {
        // The kept ones are looked at first.
        let cancelled = CancelToken::new();
        cancelled.cancel();
        match constraint(&self, &cancelled) {
            Ok(constraint) => Ok(Self { constraint, ..self }),
            Err(_) => Err(Box::new(self)),
        }
    }

    /// Outputs in all.
    pub(crate) fn n_outputs(&self) -> usize {
        self.prompts.len() * self.request.n
    }

    /// The prompt of an output.
    pub(crate) fn prompt(&self, output: usize) -> &[TokenId] {
        &self.prompts[output / self.request.n]
    }

    /// The options of an output.
    pub(crate) fn output(&self, output: usize, cancel: &CancelToken) -> Output {
        let (request, prompt) = (&self.request, self.prompt(output));
        let mut sampling = request.sampling.over(&self.model.sampling);
        // Each output has a seed of its own, and the first one that of the request.
        sampling.seed = sampling.seed.map(|seed| seed.wrapping_add((output % request.n) as u64));
        let room = self.model.context_len() - prompt.len();
        let has_tools = !request.tools.callable().is_empty();
        let mut options = GenerateOptions {
            max_tokens: request.max_tokens.unwrap_or(room).min(room),
            sampling,
            stop: if has_tools { Vec::new() } else { request.stop.clone() },
            stop_tokens: match self.fills_gap {
                true => self.model.engine.tokenizer().infill_ends().to_vec(),
                false => Vec::new(),
            },
            cancel: cancel.clone(),
            ..GenerateOptions::default()
        };
        let logprobs = request.logprobs.map(Logprobs::new);
        if let Some(logprobs) = &logprobs {
            options.processors.push(Box::new(logprobs.clone()));
        }
        let (mut reader, mut ahead) = (None, None);
        match &self.constraint {
            Constraint::None => {}
            Constraint::Grammar(grammar) => {
                let (constrained, masks) = grammar.constrain_ahead(options);
                (options, ahead) = (constrained, Some(Ahead::Grammar(masks)));
            }
            Constraint::Auto(grammar) => {
                let (engine, format) = (&self.model.engine, self.model.told().format);
                let mask = AutoMask::new(engine, format, &request.tools, grammar, prompt);
                options.processors.push(Box::new(mask.clone()));
                ahead = Some(Ahead::Auto(mask));
            }
        }
        let stops = (has_tools && !request.stop.is_empty()).then(|| Stops::new(&request.stop));
        if has_tools {
            let answers_json = !matches!(request.format, Format::Text);
            reader = Some(OutputReader::new(self.model.told().format, &request.tools, answers_json));
        }
        if let Some(prediction) = &self.prediction {
            options.sources.push(Box::new(prediction.clone()));
        }
        Output { options, logprobs, reader, stops, ahead }
    }
}
