//! What an agent may do: the kinds of commands, and the app's own actions, whose arguments name elements of the screen.

use serde_json::{Map, Value, json};

use super::elements::Screen;
use super::error::ActionError;
use super::verb::UiVerb;

/// Maximum length of actions as JSON, in bytes.
const JSON_BYTES_MAX: usize = 256 << 10;

/// Maximum number of an app's own actions, of keys, and of apps.
const OWN_MAX: usize = 64;
const KEYS_MAX: usize = 64;
const APPS_MAX: usize = 500;

/// Maximum characters of a name of an action, a key or an app.
const NAME_CHARS_MAX: usize = 64;

/// Maximum values of a choice that a prompt lists.
const LISTED_MAX: usize = 8;

/// The key of a schema that says that a value is the id of an element.
const ELEMENT: &str = "x-element";

/// What an agent may do on the screens of a task. The default is every kind of command, with six keys and any app.
#[derive(Debug, Clone, PartialEq)]
pub struct UiActions {
    verbs: Vec<UiVerb>,
    keys: Vec<String>,
    apps: Vec<String>,
    own: Vec<UiAction>,
}

/// An action of the app.
#[derive(Debug, Clone, PartialEq)]
pub struct UiAction {
    name: String,
    description: String,
    /// The schema of its arguments, an object; `None`: it has none.
    parameters: Option<Map<String, Value>>,
    elements: Vec<Parameter>,
}

/// An argument that is the id of an element.
#[derive(Debug, Clone, PartialEq)]
struct Parameter {
    name: String,
    /// The command that the element must take; `None`: it may be any with an id.
    verb: Option<UiVerb>,
}

impl Default for UiActions {
    fn default() -> Self {
        let keys = ["enter", "tab", "escape", "backspace", "home", "recents"].map(str::to_owned).to_vec();
        Self { verbs: UiVerb::ALL.to_vec(), keys, apps: Vec::new(), own: Vec::new() }
    }
}

impl UiActions {
    /// Reads actions: an object with any of `commands` (words of [`UiVerb::name`]), `keys`, `apps` and `actions`, or a list of actions.
    /// An action is an object of `name`, `description` and `parameters`, as functions of a chat are. A missing key is the default.
    ///
    /// # Errors
    /// [`ActionError`], with the JSON pointer of the place.
    pub fn from_json(text: &str) -> Result<Self, ActionError> {
        let value = parse(text)?;
        let mut actions = Self::default();
        let given = match &value {
            Value::Array(_) => &Map::from_iter([("actions".to_owned(), value)]),
            Value::Object(given) => given,
            _ => return Err(field("", "neither an object nor a list")),
        };
        for (key, value) in given {
            let pointer = format!("/{key}");
            let list = value.as_array().ok_or_else(|| field(&pointer, "no list"))?;
            let texts = || -> Result<Vec<String>, ActionError> {
                let texts = list.iter().enumerate().map(|(at, value)| match value {
                    Value::String(text) => Ok(text.clone()),
                    _ => Err(field(&format!("{pointer}/{at}"), "no text")),
                });
                texts.collect()
            };
            actions = match key.as_str() {
                "commands" => {
                    let verb = |(at, name): (usize, String)| {
                        UiVerb::of(&name)
                            .ok_or_else(|| field(&format!("{pointer}/{at}"), "the name of no command"))
                    };
                    let verbs = texts()?.into_iter().enumerate().map(verb).collect::<Result<Vec<_>, _>>()?;
                    actions.with_verbs(&verbs)
                }
                "keys" => actions.with_keys(texts()?)?,
                "apps" => actions.with_apps(texts()?)?,
                "actions" => list.iter().enumerate().try_fold(actions, |actions, (at, value)| {
                    actions.with_action(UiAction::of(value, &format!("{pointer}/{at}"))?)
                })?,
                _ => return Err(field(&pointer, "unknown: the keys are commands, keys, apps and actions")),
            };
        }
        Ok(actions)
    }

    /// The same with these kinds of commands alone. The app's own actions stay.
    #[must_use]
    pub fn with_verbs(mut self, verbs: &[UiVerb]) -> Self {
        self.verbs = UiVerb::ALL.into_iter().filter(|verb| verbs.contains(verb)).collect();
        self
    }

    /// The same with these names of keys, of letters, digits, `_`, `-` and `+`. Without any, `key` is not allowed.
    ///
    /// # Errors
    /// [`ActionError::TooMany`], [`ActionError::Name`].
    pub fn with_keys<S: Into<String>>(
        mut self,
        keys: impl IntoIterator<Item = S>,
    ) -> Result<Self, ActionError> {
        let is_of = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '+');
        self.keys = names("keys", keys, KEYS_MAX, is_of)?;
        if self.keys.is_empty() {
            self.verbs.retain(|&verb| verb != UiVerb::Key);
        }
        Ok(self)
    }

    /// The same with these apps, the only ones that `open` may name. Without any, it may name every app.
    ///
    /// # Errors
    /// [`ActionError::TooMany`], [`ActionError::Name`].
    pub fn with_apps<S: Into<String>>(
        mut self,
        apps: impl IntoIterator<Item = S>,
    ) -> Result<Self, ActionError> {
        self.apps = names("apps", apps, APPS_MAX, |c| c != '"' && !c.is_control())?;
        Ok(self)
    }

    /// The same with a further action of the app.
    ///
    /// # Errors
    /// [`ActionError::TooMany`], [`ActionError::Duplicate`].
    pub fn with_action(mut self, action: UiAction) -> Result<Self, ActionError> {
        if self.own.len() == OWN_MAX {
            return Err(ActionError::TooMany { what: "actions", given: OWN_MAX + 1, max: OWN_MAX });
        }
        if self.own.iter().any(|other| other.name == action.name) {
            return Err(ActionError::Duplicate { name: action.name });
        }
        self.own.push(action);
        Ok(self)
    }

    /// The kinds of commands.
    pub fn verbs(&self) -> &[UiVerb] {
        &self.verbs
    }

    /// The keys.
    pub fn keys(&self) -> &[String] {
        &self.keys
    }

    /// The apps; empty: any.
    pub fn apps(&self) -> &[String] {
        &self.apps
    }

    /// The app's own actions.
    pub fn own(&self) -> &[UiAction] {
        &self.own
    }

    /// A line for each command, as the prompt lists them.
    pub(crate) fn list(&self) -> String {
        let verbs = self.verbs.iter().map(|&verb| self.line(verb));
        verbs.chain(self.own.iter().map(UiAction::line)).collect::<Vec<_>>().join("\n")
    }

    /// The line of a kind of commands in a prompt.
    fn line(&self, verb: UiVerb) -> String {
        match verb {
            UiVerb::Tap => "tap ID \"LABEL\": touch an element".to_owned(),
            UiVerb::LongPress => "long_press ID \"LABEL\": touch an element for long".to_owned(),
            UiVerb::Type => "type ID \"TEXT\": write into an element".to_owned(),
            UiVerb::Scroll => "scroll up, scroll down: show what is above or below".to_owned(),
            UiVerb::Swipe => "swipe up, down, left or right, swipe ID left: move a finger".to_owned(),
            UiVerb::Back => "back: go to the screen before".to_owned(),
            UiVerb::Key => format!("key {}: press a key", self.keys().join(", key ")),
            UiVerb::Open => match self.apps() {
                [] => "open \"APP\": open an app".to_owned(),
                apps => format!("open \"{}\": open an app", apps.join("\", open \"")),
            },
            UiVerb::Wait => "wait: wait for the screen to change".to_owned(),
            UiVerb::Ask => "ask \"QUESTION\": ask the user".to_owned(),
            UiVerb::Done => "done: the goal is reached".to_owned(),
            UiVerb::NoAction => "none: no command leads to the goal".to_owned(),
        }
    }

    /// The app's actions that this screen allows, with the schemas of their arguments.
    pub(crate) fn offered(&self, screen: &Screen) -> Vec<(&str, Option<Value>)> {
        let offered = self.own.iter().filter_map(|action| Some((&*action.name, action.schema(screen)?)));
        offered.collect()
    }

    /// The arguments of the own action with this name, if the text behind the name are some for this screen.
    pub(super) fn read<'a>(
        &self,
        name: &str,
        arguments: Option<&'a str>,
        screen: &Screen,
    ) -> Option<&'a str> {
        let action = self.own.iter().find(|action| action.name == name)?;
        action.schema(screen)?;
        match (action.properties(), arguments) {
            (None, None) => Some("{}"),
            (Some(properties), Some(arguments)) => {
                let given: Map<String, Value> = serde_json::from_str(arguments).ok()?;
                let is_required = |name: &str| action.required().any(|required| required == name);
                let is_known = given.keys().all(|key| properties.contains_key(key));
                let is_there = action.required().all(|key| given.contains_key(key));
                let is_on_screen = action.elements.iter().all(|parameter| match given.get(&parameter.name) {
                    Some(Value::String(id)) => parameter.ids(screen).any(|other| other == id),
                    Some(_) => false,
                    None => !is_required(&parameter.name),
                });
                (is_known && is_there && is_on_screen).then_some(arguments)
            }
            _ => None,
        }
    }
}

impl UiAction {
    /// An action without arguments. Its name has small letters, digits and `_`, begins with a letter, and is no other command's.
    ///
    /// # Errors
    /// [`ActionError::Name`].
    pub fn new(name: &str, description: &str) -> Result<Self, ActionError> {
        Self::named(name, description, "/name")
    }

    fn named(name: &str, description: &str, pointer: &str) -> Result<Self, ActionError> {
        let is_of = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let begins = name.starts_with(|c: char| c.is_ascii_lowercase());
        if !begins || name.len() > NAME_CHARS_MAX || !name.chars().all(is_of) || UiVerb::of(name).is_some() {
            return Err(ActionError::Name { pointer: pointer.to_owned() });
        }
        let description = description.split_whitespace().collect::<Vec<_>>().join(" ");
        Ok(Self { name: name.to_owned(), description, parameters: None, elements: Vec::new() })
    }

    /// Reads an action: `{"name": …, "description": …, "parameters": {…}}`. The parameters are a JSON Schema of type `object`. A
    /// property with `"x-element": true` is the id of an element that is on the screen; with `"x-element": "type"` (or `tap`,
    /// `long_press`, `swipe`) of one that takes this command.
    ///
    /// # Errors
    /// [`ActionError`]. What the grammar cannot express is refused when the action is first used ([`TaskError::Grammar`](crate::TaskError::Grammar)).
    pub fn from_json(text: &str) -> Result<Self, ActionError> {
        Self::of(&parse(text)?, "")
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn of(value: &Value, pointer: &str) -> Result<Self, ActionError> {
        let given = value.as_object().ok_or_else(|| field(pointer, "no object"))?;
        let known = ["name", "description", "parameters"];
        if let Some(key) = given.keys().find(|key| !known.contains(&key.as_str())) {
            let problem = "unknown: the keys are name, description and parameters";
            return Err(field(&format!("{pointer}/{key}"), problem));
        }
        let text = |key: &str| match given.get(key) {
            Some(Value::String(text)) => Ok(text.as_str()),
            None => Ok(""),
            Some(_) => Err(field(&format!("{pointer}/{key}"), "no text")),
        };
        let action = Self::named(text("name")?, text("description")?, &format!("{pointer}/name"))?;
        match given.get("parameters") {
            Some(schema) => action.of_parameters(schema, &format!("{pointer}/parameters")),
            None => Ok(action),
        }
    }

    fn of_parameters(mut self, schema: &Value, pointer: &str) -> Result<Self, ActionError> {
        let mut schema = schema.as_object().ok_or_else(|| field(pointer, "no object"))?.clone();
        if schema.entry("type").or_insert_with(|| "object".into()) != "object" {
            return Err(field(&format!("{pointer}/type"), "not `object`"));
        }
        // A model would fill them with anything.
        schema.entry("additionalProperties").or_insert(false.into());
        let properties = schema.entry("properties").or_insert_with(|| json!({}));
        let within = format!("{pointer}/properties");
        let properties = properties.as_object_mut().ok_or_else(|| field(&within, "no object"))?;
        for (name, property) in properties.iter_mut() {
            let at = format!("{within}/{}", escaped(name));
            let Some(element) = property.as_object_mut().and_then(|property| property.remove(ELEMENT)) else {
                continue;
            };
            let verb = match &element {
                Value::Bool(true) => None,
                Value::String(name) => match UiVerb::of(name) {
                    Some(verb @ (UiVerb::Tap | UiVerb::LongPress | UiVerb::Type | UiVerb::Swipe)) => {
                        Some(verb)
                    }
                    _ => return Err(field(&format!("{at}/{ELEMENT}"), "no command of an element")),
                },
                _ => return Err(field(&format!("{at}/{ELEMENT}"), "neither `true` nor a command")),
            };
            let others = property.as_object().into_iter().flatten();
            for (key, value) in others {
                let is_of =
                    matches!(key.as_str(), "description" | "title") || (key == "type" && value == "string");
                if !is_of {
                    return Err(field(&format!("{at}/{}", escaped(key)), "not for the id of an element"));
                }
            }
            self.elements.push(Parameter { name: name.clone(), verb });
        }
        if let Some(place) = pointer_of(&schema, ELEMENT) {
            let problem = "an element is a property of the parameters themselves";
            return Err(field(&format!("{pointer}{place}"), problem));
        }
        self.parameters = Some(schema);
        Ok(self)
    }

    /// The properties of its arguments; `None` if it has none.
    fn properties(&self) -> Option<&Map<String, Value>> {
        let properties = self.parameters.as_ref()?.get("properties")?.as_object()?;
        (!properties.is_empty()).then_some(properties)
    }

    fn required(&self) -> impl Iterator<Item = &str> {
        let required = self.parameters.as_ref().and_then(|schema| schema.get("required")?.as_array());
        required.into_iter().flatten().filter_map(Value::as_str)
    }

    /// The schema of its arguments on a screen, `Some(None)` without arguments; `None` if the screen has no element for it.
    #[allow(clippy::option_option, reason = "an action without arguments is offered on every screen")]
    fn schema(&self, screen: &Screen) -> Option<Option<Value>> {
        if self.properties().is_none() {
            return Some(None);
        }
        let mut schema = self.parameters.clone()?;
        // Options of the compiler: no white space between the parts.
        let options = json!({ "whitespace_flexible": false, "coerce_one_of": false, "lenient": false });
        schema.insert("x-guidance".to_owned(), options);
        let properties = schema.get_mut("properties")?.as_object_mut()?;
        for parameter in &self.elements {
            let ids: Vec<&str> = parameter.ids(screen).collect();
            if ids.is_empty() && self.required().any(|required| required == parameter.name) {
                return None;
            }
            match ids.is_empty() {
                true => drop(properties.remove(&parameter.name)),
                false => drop(properties.insert(parameter.name.clone(), json!({ "enum": ids }))),
            }
        }
        Some(Some(Value::Object(schema)))
    }

    /// Its line in a prompt.
    fn line(&self) -> String {
        let shape = |(name, property): (&String, &Value)| {
            let is_element = self.elements.iter().any(|parameter| parameter.name == *name);
            format!("\"{name}\": {}", if is_element { "\"ID\"".to_owned() } else { shape(property) })
        };
        let arguments = self.properties().map(|properties| {
            format!(" {{{}}}", properties.iter().map(shape).collect::<Vec<_>>().join(", "))
        });
        let (arguments, about) = (arguments.unwrap_or_default(), &self.description);
        let colon = if about.is_empty() { "" } else { ": " };
        format!("{}{arguments}{colon}{about}", self.name)
    }
}

impl Parameter {
    /// The ids of the elements that it may name.
    fn ids<'a>(&self, screen: &'a Screen) -> impl Iterator<Item = &'a str> + use<'a> {
        let verb = self.verb;
        let elements = screen.elements().iter();
        let elements = elements.filter(move |element| verb.is_none_or(|verb| element.takes(verb)));
        elements.filter_map(|element| element.id.as_deref())
    }
}

/// How a prompt shows a value.
fn shape(schema: &Value) -> String {
    if let Some(choices) = schema.get("enum").and_then(Value::as_array) {
        return choices.iter().take(LISTED_MAX).map(Value::to_string).collect::<Vec<_>>().join("|");
    }
    match schema.get("type").and_then(Value::as_str) {
        Some("string") => "\"TEXT\"",
        Some("integer" | "number") => "NUMBER",
        Some("boolean") => "true|false",
        _ => "VALUE",
    }
    .to_owned()
}

fn parse(text: &str) -> Result<Value, ActionError> {
    if text.len() > JSON_BYTES_MAX {
        return Err(ActionError::TooLong { given: text.len(), max: JSON_BYTES_MAX });
    }
    // The parser refuses more than 128 levels.
    serde_json::from_str(text)
        .map_err(|error| ActionError::NotJson { line: error.line(), column: error.column() })
}

fn field(pointer: &str, problem: &'static str) -> ActionError {
    ActionError::Field { pointer: pointer.to_owned(), problem }
}

/// A key in a JSON pointer.
fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// The pointer of a key, at any depth.
fn pointer_of(schema: &Map<String, Value>, key: &str) -> Option<String> {
    let mut open: Vec<(String, &Value)> =
        schema.iter().map(|(key, value)| (format!("/{}", escaped(key)), value)).collect();
    while let Some((pointer, value)) = open.pop() {
        if pointer.rsplit('/').next() == Some(key) {
            return Some(pointer);
        }
        match value {
            Value::Object(values) => {
                open.extend(values.iter().map(|(key, value)| (format!("{pointer}/{}", escaped(key)), value)));
            }
            Value::Array(values) => {
                open.extend(values.iter().enumerate().map(|(at, value)| (format!("{pointer}/{at}"), value)));
            }
            _ => {}
        }
    }
    None
}

fn names<S: Into<String>>(
    what: &'static str,
    given: impl IntoIterator<Item = S>,
    max: usize,
    is_of: impl Fn(char) -> bool,
) -> Result<Vec<String>, ActionError> {
    let mut names: Vec<String> = Vec::new();
    for name in given {
        let name = name.into();
        let is_name = name.chars().all(&is_of) && (1..=NAME_CHARS_MAX).contains(&name.chars().count());
        if !is_name {
            return Err(ActionError::Name { pointer: format!("/{what}/{}", names.len()) });
        }
        if names.len() == max {
            return Err(ActionError::TooMany { what, given: max + 1, max });
        }
        names.push(name);
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::screen::{Command, Element};

    const ARCHIVE: &str = r#"{"name": "archive", "description": "Moves a mail.", "parameters": {
        "properties": {"element": {"x-element": true}, "to": {"x-element": "type"}, "folder": {"enum": ["old", "spam"]}},
        "required": ["element"]}}"#;

    fn screen() -> Screen {
        let element = |role, label, id: &str| Element::new(role, label).with_id(id);
        Screen::new("Mail", [element("item", "Ada", "e4"), element("text", "Inbox", "e5").taking(&[])])
            .unwrap()
    }

    #[test]
    fn arguments_are_tied_to_the_elements() {
        let actions = UiActions::default().with_action(UiAction::from_json(ARCHIVE).unwrap()).unwrap();
        let offered = actions.offered(&screen());
        let schema = offered[0].1.as_ref().unwrap();
        assert_eq!(schema["properties"]["element"], json!({ "enum": ["e4", "e5"] }));
        // No element takes text, and none is demanded.
        assert_eq!(
            (&schema["properties"].get("to"), &schema["additionalProperties"]),
            (&None, &json!(false))
        );
        let read = |text: &str| Command::read(text, &screen(), &actions);
        let arguments = r#"{"element":"e4","folder":"old"}"#;
        let own = Command::Own { name: "archive".to_owned(), arguments: arguments.to_owned() };
        assert_eq!(read(&format!("archive {arguments}")), Some(own));
        for broken in [
            "archive",
            "archive {}",
            "archive {\"element\":\"e9\"}",
            "archive {\"element\":4}",
            "archive {\"element\":\"e4\",\"x\":1}",
            "archive {\"element\":\"e4\",\"to\":\"e4\"}",
            "forward {}",
        ] {
            assert_eq!(read(broken), None, "{broken}");
        }
        assert_eq!(
            actions.list().lines().last(),
            Some(r#"archive {"element": "ID", "to": "ID", "folder": "old"|"spam"}: Moves a mail."#)
        );
    }

    #[test]
    fn an_action_without_its_element_is_not_offered() {
        let parameters = r#"{"properties": {"in": {"x-element": "type"}}, "required": ["in"]}"#;
        let action =
            UiAction::from_json(&format!(r#"{{"name": "fill", "parameters": {parameters}}}"#)).unwrap();
        let actions = UiActions::default().with_action(action).unwrap();
        assert!(actions.offered(&screen()).is_empty());
        let plain = UiActions::default().with_action(UiAction::new("refresh", "").unwrap()).unwrap();
        assert_eq!(plain.offered(&screen()), [("refresh", None)]);
        let own = Command::Own { name: "refresh".to_owned(), arguments: "{}".to_owned() };
        assert_eq!(Command::read("refresh", &screen(), &plain), Some(own));
    }

    #[test]
    fn bad_actions_name_the_place() {
        let pointer = |text: &str| match UiActions::from_json(text) {
            Err(ActionError::Field { pointer, .. } | ActionError::Name { pointer }) => pointer,
            other => panic!("{text}: {other:?}"),
        };
        let action = |parameters: &str| format!(r#"[{{"name": "a", "parameters": {parameters}}}]"#);
        assert_eq!(pointer("3"), "");
        assert_eq!(pointer(r#"{"verbs": []}"#), "/verbs");
        assert_eq!(pointer(r#"{"commands": ["tap", "jump"]}"#), "/commands/1");
        assert_eq!(pointer(r#"{"keys": ["a b"]}"#), "/keys/0");
        assert_eq!(pointer(r#"{"apps": [4]}"#), "/apps/0");
        assert_eq!(pointer(r#"[{"name": "tap"}]"#), "/actions/0/name");
        assert_eq!(pointer(r#"[{"name": "a", "args": 1}]"#), "/actions/0/args");
        assert_eq!(pointer(&action(r#"{"type": "array"}"#)), "/actions/0/parameters/type");
        let within = "/actions/0/parameters/properties/";
        assert_eq!(
            pointer(&action(r#"{"properties": {"a/b": {"x-element": "done"}}}"#)),
            format!("{within}a~1b/x-element")
        );
        assert_eq!(
            pointer(&action(r#"{"properties": {"a": {"x-element": true, "enum": []}}}"#)),
            format!("{within}a/enum")
        );
        assert_eq!(
            pointer(&action(r#"{"properties": {"a": {"items": {"x-element": true}}}}"#)),
            format!("{within}a/items/x-element")
        );
        assert_eq!(UiActions::from_json("{\n,"), Err(ActionError::NotJson { line: 2, column: 1 }));
        let twice = UiActions::from_json(r#"[{"name": "a"}, {"name": "a"}]"#);
        assert_eq!(twice, Err(ActionError::Duplicate { name: "a".to_owned() }));
        let many: Vec<String> = (0..=OWN_MAX).map(|n| format!("{{\"name\": \"a{n}\"}}")).collect();
        let many = UiActions::from_json(&format!("[{}]", many.join(",")));
        assert_eq!(many, Err(ActionError::TooMany { what: "actions", given: 65, max: 64 }));
        let long = " ".repeat(JSON_BYTES_MAX + 1);
        assert!(matches!(UiActions::from_json(&long), Err(ActionError::TooLong { .. })));
    }

    #[test]
    fn commands_keys_and_apps_are_chosen() {
        let json = r#"{"commands": ["done", "tap", "key"], "keys": [], "apps": ["Mail", "Our notes"]}"#;
        let actions = UiActions::from_json(json).unwrap();
        assert_eq!(actions.verbs(), [UiVerb::Tap, UiVerb::Done]);
        assert_eq!(actions.apps(), ["Mail", "Our notes"]);
        assert_eq!(Command::read("back", &screen(), &actions), None);
    }
}
