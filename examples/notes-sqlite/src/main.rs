//! Notes in SQLite: rows that have changed go into the index, and an answer names the rows that it is from.
//!
//! ```sh
//! cargo run --release --manifest-path examples/notes-sqlite/Cargo.toml -- notes.db MODEL "Who repairs the tap?"
//! ```
//!
//! The database stays the only copy of the notes. Triggers number its changes, and the index stores the number up to which it has them: in
//! one step with the rows, so that a kill at any moment loses none and repeats none. An index that is deleted, or was damaged and emptied,
//! has no number, and gets all rows again.

use std::env::args;
use std::error::Error;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use refrain::{Engine, EngineOptions};
use refrain_assistant::{AnswerRequest, Assistant, JobOptions, Prompts, Template};
use refrain_index::NoteFilter;
use refrain_index::notes::{Metadata, NotesOptions, NotesWriter};
use rusqlite::{Connection, OptionalExtension};

/// Rows of a transaction of the index.
const BATCH: usize = 200;

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS note (
        id INTEGER PRIMARY KEY, folder TEXT NOT NULL, title TEXT NOT NULL, body TEXT NOT NULL, edited INTEGER NOT NULL DEFAULT (unixepoch())
    );
    CREATE TABLE IF NOT EXISTS change (number INTEGER PRIMARY KEY AUTOINCREMENT, note INTEGER NOT NULL);
    CREATE TRIGGER IF NOT EXISTS note_new AFTER INSERT ON note BEGIN INSERT INTO change (note) VALUES (new.id); END;
    CREATE TRIGGER IF NOT EXISTS note_edit AFTER UPDATE ON note BEGIN INSERT INTO change (note) VALUES (new.id); END;
    CREATE TRIGGER IF NOT EXISTS note_gone AFTER DELETE ON note BEGIN INSERT INTO change (note) VALUES (old.id); END;
";

fn main() -> Result<(), Box<dyn Error>> {
    let given: Vec<String> = args().skip(1).collect();
    let [database, model, question] = &given[..] else {
        return Err("usage: notes-sqlite DATABASE MODEL QUESTION".into());
    };
    let database = Connection::open(database)?;
    database.execute_batch(SCHEMA)?;
    if database.query_row("SELECT count(*) FROM note", [], |row| row.get::<_, i64>(0))? == 0 {
        add_samples(&database)?;
    }
    let index = PathBuf::from(format!("{}.index", given[0]));
    sync(&database, &index)?;

    let mut prompts = Prompts::default();
    prompts.answer = Template::new(
        "Answer the question from the notes. Cite the notes as [1].\n\n{cited_passages}\n\nQuestion: {request}",
    )?;
    let engine = Engine::open(model, EngineOptions::default())?;
    let assistant = Assistant::builder(engine).notes(&index).prompts(prompts).build()?;
    let mut request = AnswerRequest::new(question.as_str());
    // The ids begin with the folder of the note, so a folder of the app is one of the search.
    request.filter = NoteFilter::within(["document:/home", "document:/work"]);
    let answer = assistant.answer(request, JobOptions::default())?.run()?;
    println!("{}", answer.text.trim());
    for (number, passage) in (1..).zip(&answer.passages) {
        let id = passage.source.as_ref().and_then(|source| source.document_id());
        let id = id.map(|id| String::from_utf8_lossy(&id).into_owned()).unwrap_or_default();
        println!("[{number}] row {id}: {}", passage.title);
    }
    Ok(())
}

/// Brings the index in agreement with the database.
fn sync(database: &Connection, index: &Path) -> Result<(), Box<dyn Error>> {
    let mut writer = NotesWriter::open(index, NotesOptions::default())?;
    let known = writer.cursor().and_then(|cursor| std::str::from_utf8(cursor).ok()?.parse::<i64>().ok());
    let mut changed = database.prepare(
        "SELECT note, max(number) AS last FROM change WHERE number > ?1 GROUP BY note ORDER BY last",
    )?;
    let changed = changed.query_map([known.unwrap_or(0)], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let changed: Vec<(i64, i64)> = changed.collect::<Result<_, _>>()?;
    let mut row = database.prepare("SELECT folder, title, body, edited FROM note WHERE id = ?1")?;
    for batch in changed.chunks(BATCH) {
        let mut transaction = writer.transaction();
        for &(note, last) in batch {
            let found: Option<(String, String, String, i64)> = row
                .query_row([note], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))
                .optional()?;
            // A row may have moved to another folder.
            for folder in ["home", "work"] {
                let id = format!("{folder}/{note}");
                match &found {
                    Some((of, title, body, edited)) if of == folder => {
                        let title = Some(title.clone());
                        let metadata = Metadata { title, date: Some(*edited), ..Metadata::default() };
                        transaction.put(id.as_bytes(), body, &metadata)?;
                    }
                    _ => drop(transaction.remove(id.as_bytes())?),
                }
            }
            transaction.set_cursor(Some(last.to_string().as_bytes()))?;
        }
        transaction.commit()?;
    }
    println!(
        "{} rows have changed; the index has {} documents",
        changed.len(),
        writer.documents_since(0).put.len()
    );
    // What was replaced and removed leaves no byte in the index.
    writer.maintain()?;
    writer.close(&mut |_, _| ControlFlow::Continue(()), &mut |_| {})?;
    Ok(())
}

fn add_samples(database: &Connection) -> rusqlite::Result<()> {
    let mut insert = database.prepare("INSERT INTO note (folder, title, body) VALUES (?1, ?2, ?3)")?;
    for note in [
        ["home", "Kitchen", "The tap in the kitchen drips. Ada Voss repairs it on 3 May."],
        ["home", "Roof", "The roof of the shed leaks. Nobody repairs it before the summer."],
        ["work", "Trip to Oslo", "The train to Oslo leaves at 7:40. The hotel is near the harbour. #travel"],
    ] {
        insert.execute(note)?;
    }
    Ok(())
}
