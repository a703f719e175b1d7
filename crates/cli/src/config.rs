//! Defaults of options from a file and from the environment.
//!
//! A setting is an option's long name and its value. From the strongest to the weakest: the command line, the environment
//! (`REFRAIN_MAX_TOKENS`), the table of the command in the file (`[run]`, `[index.add]`), the table above it, the top of
//! the file. A setting is dropped if it conflicts with a stronger one.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, FromArgMatches, ValueHint};
use refrain_files::replace::{Manner, replace_bytes, replace_contents};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::args::{Cli, command_line, is_none};
use crate::failure::{Exit, Failure, usage};
use crate::models;
use crate::terminal::AnswerStream;
use refrain_program::place::{folder_of, home};

/// The variable that names the file.
const FILE_VARIABLE: &str = "REFRAIN_CONFIG";
/// Maximum length of the file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Options of a single call, by their long names: a default would read, write or delete something unasked.
const PER_CALL: [&str; 26] = [
    "help",
    "help-all",
    "version",
    "config",
    "all",
    "in-place",
    "yes",
    "force",
    "undo",
    "query",
    "earlier",
    "within",
    "kind",
    "dates",
    "tag",
    "request",
    "context",
    "changes",
    "before",
    "conversation",
    "text",
    "tokens",
    "raw",
    "out",
    "logits",
    "verify",
];

/// Options whose value is a model.
const MODELS: [&str; 5] = ["model", "add-model", "embedding-model", "embedder", "draft"];

/// Where a setting stands.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Origin {
    Variable(String),
    File { path: PathBuf, line: usize },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Variable(name) => write!(f, "the variable {name}"),
            Self::File { path, line } => write!(f, "{}, line {line}", path.display()),
        }
    }
}

/// An option's default.
#[derive(Debug, Clone)]
struct Setting {
    /// The long name of the option.
    option: String,
    /// One value, or several of an option that may be repeated. A flag has none if it is off.
    values: Vec<OsString>,
    origin: Origin,
    /// A stronger setting has a higher rank: the depth of its table; the environment is above all tables.
    rank: usize,
}

/// The command line with the defaults of the file and the environment.
///
/// # Errors
/// The command line, the file or a variable cannot be used. Help and version are printed and end the program.
pub(crate) fn parse(args: &[OsString]) -> Result<Cli, Failure> {
    let matches = command_line().try_get_matches_from(args).map_err(|error| usage(&error))?;
    let settings = settings(&matches)?;
    if settings.is_empty() {
        return Cli::from_arg_matches(&matches).map_err(|error| usage(&error));
    }
    let path = command_path(&matches);
    let command = with_defaults(command_line(), &path, &settings);
    let parsed = command.try_get_matches_from(args).and_then(|matches| Cli::from_arg_matches(&matches));
    parsed.map_err(|error| {
        let origin =
            settings.iter().find(|setting| is_about(&error, &setting.option)).map(|setting| &setting.origin);
        origin.map_or_else(
            || usage(&error),
            |origin| Failure::usage(first_line(&error), &format!("from {origin}")),
        )
    })
}

/// The command line with its defaults as options, which means the same in a process with other defaults.
pub(crate) fn effective(args: &[OsString]) -> Result<Vec<OsString>, Failure> {
    let matches = command_line().try_get_matches_from(args).map_err(|error| usage(&error))?;
    let (root, path) = (built(), command_path(&matches));
    let command = path.iter().try_fold(&root, |command, name| command.find_subcommand(name));
    let mut effective = args.to_vec();
    // Behind `--` there are no options.
    let end = args.iter().position(|arg| arg == "--").unwrap_or(args.len());
    let mut options = Vec::new();
    for setting in settings(&matches)? {
        let arg = command.into_iter().flat_map(configurable).find(|arg| long(arg) == setting.option);
        let is_flag = arg.is_some_and(|arg| !arg.get_action().takes_values());
        for value in &setting.values {
            let mut option = OsString::from(format!("--{}", setting.option));
            match is_flag {
                true if value == "true" => {}
                true => continue,
                false => {
                    option.push("=");
                    option.push(value);
                }
            }
            options.push(option);
        }
    }
    effective.splice(end..end, options);
    Ok(effective)
}

/// The default of an option of a command, such as the model of `chat`.
pub(crate) fn default_of(command: &str, option: &str) -> Result<Option<OsString>, Failure> {
    let matches = command_line().try_get_matches_from(["refrain", command]).map_err(|error| usage(&error))?;
    let found = settings(&matches)?.into_iter().find(|setting| setting.option == option);
    Ok(found.and_then(|setting| setting.values.into_iter().next()))
}

/// Writes the default model of all commands into the file with defaults, which has none yet. Returns the file.
pub(crate) fn remember_model(name: &str) -> Result<PathBuf, Failure> {
    let matches =
        command_line().try_get_matches_from(["refrain", "config"]).map_err(|error| usage(&error))?;
    let Some((path, text)) = file(&matches)? else {
        let problem = "there is no folder for the file with defaults";
        return Err(Failure::usage(problem, "name the file with REFRAIN_CONFIG"));
    };
    let failed = |error: std::io::Error| {
        Failure::new(
            Exit::Failed,
            format!("cannot write `{}`: {error} (name the model with --model)", path.display()),
        )
    };
    let text = with_model(&text.unwrap_or_default(), name);
    if path.exists() {
        replace_contents(&path, text.as_bytes())?;
    } else {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).map_err(failed)?;
        replace_bytes(&path, Manner::Private, text.as_bytes())?;
    }
    Ok(path)
}

/// The text of a file with this model at the top: before the first table, where a key is of no table.
fn with_model(text: &str, name: &str) -> String {
    let (mark, text) = text.strip_prefix('\u{feff}').map_or(("", text), |text| ("\u{feff}", text));
    // Names of models are letters, digits and a few signs; others are escaped as JSON escapes them, which TOML reads.
    let name = serde_json::to_string(name).expect("a text has a JSON form");
    format!("{mark}model = {name}\n{text}")
}

/// `refrain config`: prints the file's path, and each setting with its origin.
pub(crate) fn show(args: &[OsString]) -> Result<Exit, Failure> {
    let mut out = AnswerStream::stdout();
    let matches = command_line().try_get_matches_from(args).map_err(|error| usage(&error))?;
    let root = built();
    match file(&matches)? {
        None => out.line("no file: `--config FILE`, REFRAIN_CONFIG, or a home folder names one")?,
        Some((path, text)) => {
            let state = if text.is_some() { "" } else { " (does not exist)" };
            out.line(&format!("{}{state}", path.display()))?;
            for (table, setting) in text.iter().flat_map(|text| read(&root, &path, text)).flatten() {
                out.line(&format!("{}{} = {}", prefix(&table), setting.option, shown(&setting)))?;
            }
        }
    }
    let mut options: Vec<&str> =
        commands(&root).iter().flat_map(|(_, command)| configurable(command)).map(long).collect();
    options.sort_unstable();
    options.dedup();
    for setting in options.into_iter().filter_map(of_variable) {
        out.line(&format!("{} = {}", setting.origin, shown(&setting)))?;
    }
    Ok(Exit::Done)
}

fn prefix(table: &[String]) -> String {
    if table.is_empty() { String::new() } else { format!("[{}] ", table.join(".")) }
}

fn shown(setting: &Setting) -> String {
    if setting.option == "token" {
        return "(secret)".to_owned();
    }
    let values: Vec<_> = setting.values.iter().map(|value| value.to_string_lossy()).collect();
    crate::terminal::visible(&values.join(", ")).into_owned()
}

/// The names of the command and its subcommands.
fn command_path(matches: &ArgMatches) -> Vec<String> {
    let first = matches.subcommand();
    std::iter::successors(first, |(_, matches)| matches.subcommand())
        .map(|(name, _)| name.to_owned())
        .collect()
}

/// The matches of the last subcommand.
fn last_matches(matches: &ArgMatches) -> &ArgMatches {
    let mut last = matches;
    while let Some((_, next)) = last.subcommand() {
        last = next;
    }
    last
}

/// The whole command line; built, so that each command knows the global options.
fn built() -> Command {
    let mut command = command_line();
    command.build();
    command
}

/// Every command below `root` with its path, `root` included.
fn commands(root: &Command) -> Vec<(Vec<String>, &Command)> {
    let mut all = vec![(Vec::new(), root)];
    let mut next = 0;
    while let Some((path, command)) = all.get(next).cloned() {
        let below = command.get_subcommands();
        all.extend(below.map(|below| ([&path[..], &[below.get_name().to_owned()]].concat(), below)));
        next += 1;
    }
    all
}

/// The options of a command that settings may change.
fn configurable(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|arg| arg.get_long().is_some_and(|long| !PER_CALL.contains(&long)))
}

fn long(arg: &Arg) -> &str {
    arg.get_long().unwrap_or_default()
}

/// The settings for this command line.
fn settings(matches: &ArgMatches) -> Result<Vec<Setting>, Failure> {
    if matches.get_one::<PathBuf>("config").is_some_and(|file| is_none(file)) {
        return Ok(Vec::new());
    }
    let (root, path) = (built(), command_path(matches));
    let Some(command) = path.iter().try_fold(&root, |command, name| command.find_subcommand(name)) else {
        return Ok(Vec::new());
    };
    let mut candidates: Vec<Setting> = configurable(command).map(long).filter_map(of_variable).collect();
    if let Some((file, Some(text))) = file(matches)? {
        let of_file = read(&root, &file, &text)?.into_iter();
        candidates.extend(of_file.filter(|(table, _)| path.starts_with(table)).map(|(_, setting)| setting));
    }
    candidates.sort_by_key(|setting| std::cmp::Reverse(setting.rank));
    let given = last_matches(matches);
    let is_given = |arg: &&Arg| given.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let given: Vec<&Arg> = command.get_arguments().filter(is_given).collect();
    let mut kept: BTreeMap<&str, Setting> = BTreeMap::new();
    for setting in candidates {
        // A weaker setting, or one for another command below the same table.
        let Some(arg) = configurable(command).find(|arg| long(arg) == setting.option) else { continue };
        if kept.contains_key(long(arg)) || given.iter().any(|other| other.get_id() == arg.get_id()) {
            continue;
        }
        let conflicts = |other: &Arg| {
            let against = |one: &Arg, other: &Arg| {
                command.get_arg_conflicts_with(one).iter().any(|arg| arg.get_id() == other.get_id())
            };
            against(arg, other) || against(other, arg)
        };
        let rival = kept
            .values()
            .find(|kept| configurable(command).find(|arg| long(arg) == kept.option).is_some_and(conflicts));
        match rival {
            Some(rival) if rival.rank == setting.rank => {
                let problem = format!(
                    "`{}` ({}) and `{}` exclude each other",
                    setting.option, setting.origin, rival.option
                );
                return Err(Failure::usage(problem, &format!("see {}", rival.origin)));
            }
            Some(_) => {}
            None if given.iter().any(|other| conflicts(other)) => {}
            None => drop(kept.insert(long(arg), setting)),
        }
    }
    Ok(kept.into_values().collect())
}

/// The setting of an option in the environment; an empty variable is none.
fn of_variable(option: &str) -> Option<Setting> {
    let name = format!("REFRAIN_{}", option.replace('-', "_").to_uppercase());
    let value = std::env::var_os(&name).filter(|value| !value.is_empty())?;
    Some(Setting {
        option: option.to_owned(),
        values: vec![value],
        origin: Origin::Variable(name),
        rank: usize::MAX,
    })
}

/// The file's path and text; no text if the user named none and there is none.
fn file(matches: &ArgMatches) -> Result<Option<(PathBuf, Option<String>)>, Failure> {
    let named = match matches.get_one::<PathBuf>("config") {
        Some(path) => Some(path.clone()),
        None => std::env::var_os(FILE_VARIABLE).map(PathBuf::from),
    };
    let is_named = named.is_some();
    // An empty name is no file.
    let path = named.or_else(default_file).filter(|path| !path.as_os_str().is_empty() && !is_none(path));
    let Some(path) = path else { return Ok(None) };
    let mut text = String::new();
    let read = File::open(&path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text));
    match read {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !is_named => Ok(Some((path, None))),
        Err(error) => {
            Err(Failure::input(format!("cannot read `{}`: {error}", path.display()), "check --config"))
        }
        Ok(n_bytes) if n_bytes as u64 > FILE_BYTES_MAX => {
            let problem = format!("`{}` is longer than {FILE_BYTES_MAX} bytes", path.display());
            Err(Failure::input(problem, "a file of settings is short"))
        }
        Ok(_) => Ok(Some((path, Some(text)))),
    }
}

/// `refrain/config.toml` in the user's folder of settings.
fn default_file() -> Option<PathBuf> {
    let folder = match cfg!(windows) {
        true => folder_of("APPDATA"),
        false => folder_of("XDG_CONFIG_HOME").or_else(|| home(".config")),
    };
    folder.map(|folder| folder.join("refrain").join("config.toml"))
}

/// All settings of a file, each with its table.
fn read(root: &Command, path: &Path, text: &str) -> Result<Vec<(Vec<String>, Setting)>, Failure> {
    let line_at = |offset: usize| 1 + text.bytes().take(offset).filter(|&byte| byte == b'\n').count();
    let refused = |offset: usize, problem: String| {
        let place = format!("{}, line {}", path.display(), line_at(offset));
        Failure::input(format!("{place}: {problem}"), "`refrain COMMAND --help` lists the options")
    };
    let table = DeTable::parse(text)
        .map_err(|error| refused(error.span().map_or(0, |span| span.start), error.message().to_owned()))?;
    let commands = commands(root);
    let mut read = Vec::new();
    let mut tables: Vec<(Vec<String>, DeTable<'_>)> = vec![(Vec::new(), table.into_inner())];
    while let Some((name, table)) = tables.pop() {
        for (key, value) in table {
            let (offset, value_offset) = (key.span().start, value.span().start);
            let key = key.into_inner().into_owned();
            let value = match value.into_inner() {
                DeValue::Table(below) => {
                    let name = [&name[..], &[key]].concat();
                    if !commands.iter().any(|(path, _)| *path == name) {
                        return Err(refused(offset, format!("no command `{}`", name.join(" "))));
                    }
                    tables.push((name, below));
                    continue;
                }
                value => value,
            };
            let below = commands.iter().filter(|(path, _)| path.starts_with(&name));
            let found = below.flat_map(|(_, command)| configurable(command)).find(|arg| long(arg) == key);
            let arg =
                found.ok_or_else(|| refused(offset, format!("no option `{key}` that can have a default")))?;
            let values = values(arg, value, path)
                .map_err(|problem| refused(value_offset, format!("`{key}` {problem}")))?;
            let origin = Origin::File { path: path.to_owned(), line: line_at(offset) };
            read.push((name.clone(), Setting { option: key, values, origin, rank: name.len() }));
        }
    }
    Ok(read)
}

/// A value of the file as the command line would have it. Relative paths start at the file's folder.
fn values(arg: &Arg, value: DeValue<'_>, file: &Path) -> Result<Vec<OsString>, String> {
    let is_flag = !arg.get_action().takes_values();
    let is_path = arg.get_value_hint() == ValueHint::AnyPath;
    let text = match value {
        DeValue::Boolean(on) if is_flag => on.to_string(),
        _ if is_flag => return Err("is true or false".to_owned()),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        // `-` is standard input, and `none` no folder.
        DeValue::String(text) if is_path && !matches!(&*text, "" | "-" | "none") => {
            let path = text.strip_prefix("~/").and_then(home);
            let below = file.parent().unwrap_or(Path::new("")).join(&*text);
            // A pulled model has a name, unless the file's folder has a file of this path.
            if MODELS.contains(&long(arg)) && !below.exists() && models::as_name(Path::new(&*text)).is_some()
            {
                return Ok(vec![text.into_owned().into()]);
            }
            return Ok(vec![path.unwrap_or(below).into()]);
        }
        DeValue::String(text) => text.into_owned(),
        DeValue::Array(array) => {
            let each = array.into_iter().map(Spanned::into_inner).map(|value| match value {
                DeValue::Array(_) => Err("is a list of values".to_owned()),
                value => values(arg, value, file),
            });
            return Ok(each.collect::<Result<Vec<_>, _>>()?.concat());
        }
        other => return Err(format!("is a {}", other.type_str())),
    };
    Ok(vec![text.into()])
}

/// `command` with the settings as defaults of the subcommand at `path`.
fn with_defaults(command: Command, path: &[String], settings: &[Setting]) -> Command {
    let command = match path.split_first() {
        Some((name, below)) => {
            command.mut_subcommand(name, |command| with_defaults(command, below, settings))
        }
        None => command,
    };
    // A global option stands at the root.
    let ids: Vec<(String, &Setting)> = (settings.iter())
        .filter_map(|setting| {
            let arg = command.get_arguments().find(|arg| arg.get_long() == Some(&setting.option))?;
            (path.is_empty() || arg.is_global_set()).then(|| (arg.get_id().to_string(), setting))
        })
        .collect();
    ids.into_iter().fold(command, |command, (id, setting)| {
        command.mut_arg(id, |arg| arg.default_values(setting.values.clone()))
    })
}

/// Whether an error of the command line names an option.
fn is_about(error: &clap::Error, option: &str) -> bool {
    let Some(ContextValue::String(arg)) = error.get(ContextKind::InvalidArg) else { return false };
    let name = arg.trim_start_matches('-');
    name.strip_prefix(option).is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '=', '[']))
}

fn first_line(error: &clap::Error) -> String {
    let rendered = error.to_string();
    rendered.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
}
