//! Conversations in files: `/save` and `/load` of `chat`.
//!
//! A file is one JSON object: the format's name, the id under which the store has kept the conversation, and the turns with the notes
//! that they show.

use std::io::Read;
use std::path::{Path, PathBuf};

use refrain::{Message, Role};
use refrain_assistant::{ConversationId, Turn};
use refrain_files::open_regular;
use refrain_files::replace::{Manner, replace_bytes};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

const FORMAT: &str = "refrain conversation 1";
/// Maximum length of a file, in bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Maximum number of turns.
const TURNS_MAX: usize = 10_000;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    format: String,
    id: u64,
    turns: Vec<SavedTurn>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedTurn {
    role: String,
    text: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reasoning: Option<String>,
    /// The notes that the turn shows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    notes: Vec<PathBuf>,
    /// The user's words, if the text has passages too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    asked: Option<String>,
    keep: bool,
}

/// Writes a conversation into a file that only its owner can read. A file of something else is not replaced.
pub(crate) fn save(file: &Path, id: ConversationId, turns: &[Turn]) -> Result<(), Failure> {
    if file.symlink_metadata().is_ok() && load(file).is_err() {
        let problem = format!("`{}` is there, and is no conversation", file.display());
        return Err(Failure::input(problem, "choose another name"));
    }
    let turns = turns.iter().map(|turn| SavedTurn {
        role: turn.message.role.name().to_owned(),
        text: turn.message.content.clone(),
        reasoning: turn.message.reasoning_content.clone(),
        notes: turn.notes.clone(),
        asked: turn.asked.clone(),
        keep: turn.keep,
    });
    let saved = Saved { format: FORMAT.to_owned(), id: id.0, turns: turns.collect() };
    // A path that is not Unicode has no JSON form.
    let json = serde_json::to_string_pretty(&saved).map_err(|error| {
        Failure::input(format!("the conversation cannot be saved: {error}"), "rename the note")
    })?;
    if json.len() as u64 > FILE_BYTES_MAX || saved.turns.len() > TURNS_MAX {
        let problem = format!(
            "the conversation is longer than {TURNS_MAX} turns or {FILE_BYTES_MAX} bytes, the limits of /load"
        );
        return Err(Failure::input(problem, "/clear starts a new one"));
    }
    Ok(replace_bytes(file, Manner::Private, json.as_bytes())?)
}

/// Reads a conversation.
pub(crate) fn load(file: &Path) -> Result<(ConversationId, Vec<Turn>), Failure> {
    let name = file.display();
    let refused = |problem: String| {
        Failure::input(format!("`{name}`: {problem}"), "/load reads what /save has written")
    };
    let mut json = String::new();
    let read = open_regular(file).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut json));
    let n_bytes = read.map_err(|error| refused(error.to_string()))?;
    if n_bytes as u64 > FILE_BYTES_MAX {
        return Err(refused(format!("longer than the limit of {FILE_BYTES_MAX} bytes")));
    }
    let saved: Saved =
        serde_json::from_str(&json).map_err(|error| refused(format!("no conversation: {error}")))?;
    if saved.format != FORMAT {
        return Err(refused(format!("the format is {:?} and not {FORMAT:?}", saved.format)));
    }
    if saved.turns.len() > TURNS_MAX {
        return Err(refused(format!("{} turns, the limit is {TURNS_MAX}", saved.turns.len())));
    }
    let turn = |(index, turn): (usize, SavedTurn)| {
        let role = match turn.role.as_str() {
            "system" if index == 0 => Role::System,
            "user" => Role::User,
            "assistant" => Role::Assistant,
            other => return Err(refused(format!("turn {} has the role {other:?}", index + 1))),
        };
        let mut message = Message::new(role, turn.text);
        message.reasoning_content = turn.reasoning;
        let mut shown = Turn::new(message);
        (shown.notes, shown.asked, shown.keep) = (turn.notes, turn.asked, turn.keep);
        Ok(shown)
    };
    let turns = saved.turns.into_iter().enumerate().map(turn).collect::<Result<_, _>>()?;
    Ok((ConversationId(saved.id), turns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_comes_back_and_other_files_stay() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("talk.json");
        let mut turns = [
            Turn::new(Message::new(Role::User, "Where?\n\u{1b}[2J")),
            Turn::new(Message::new(Role::Assistant, "Here.")),
        ];
        turns[0].notes = vec![PathBuf::from("/n/a.md")];
        turns[0].asked = Some("Where?".to_owned());
        turns[1].keep = false;
        for _ in 0..2 {
            save(&file, ConversationId(u64::MAX), &turns).unwrap();
            let (id, loaded) = load(&file).unwrap();
            assert_eq!((id, &loaded[..]), (ConversationId(u64::MAX), &turns[..]));
        }
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        }
        let other = folder.path().join("letter.txt");
        std::fs::write(&other, "Dear Ada").unwrap();
        assert!(save(&other, ConversationId(1), &turns).unwrap_err().line().contains("no conversation"));
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "Dear Ada");
    }

    #[test]
    fn bad_files_are_refused_with_their_place() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("talk.json");
        let turn = |role: &str| format!(r#"{{"role":"{role}","text":"x","keep":true}}"#);
        let saved =
            |format: &str, turns: &str| format!(r#"{{"format":"{format}","id":1,"turns":[{turns}]}}"#);
        let many = vec![turn("user"); TURNS_MAX + 1].join(",");
        let cases = [
            (String::new(), "no conversation"),
            ("[".repeat(100_000), "no conversation"),
            (saved("refrain conversation 2", ""), "the format"),
            (saved(FORMAT, &turn("tool")), "turn 1 has the role"),
            (saved(FORMAT, &[turn("user"), turn("system")].join(",")), "turn 2 has the role"),
            (saved(FORMAT, &many), "the limit is 10000"),
        ];
        for (text, word) in cases {
            std::fs::write(&file, &text).unwrap();
            let line = load(&file).unwrap_err().line();
            assert!(line.contains(word) && line.contains("talk.json"), "{line}");
        }
        assert!(load(folder.path()).is_err() && load(&folder.path().join("nowhere")).is_err());
    }
}
