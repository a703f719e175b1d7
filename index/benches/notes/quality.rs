//! Recall of the five best and mean reciprocal rank, beside tantivy with its default analyzer over the same passages.

use std::collections::HashMap;
use std::error::Error;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use refrain::EngineOptions;
use refrain_index::notes::{
    Embedder as _, ModelEmbedder, NotePassage, NotesIndex, NotesOptions, NotesWriter, Search,
};
use serde_json::Value;
use tantivy::collector::TopDocs;
use tantivy::query::{BooleanQuery, Occur, Query, TermQuery};
use tantivy::schema::{IndexRecordOption, STORED, Schema, TEXT, Value as _};
use tantivy::tokenizer::TokenStream;
use tantivy::{Index, TantivyDocument, Term, doc};

use super::corpus::Rng;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// The environment variable with a model whose vectors rank too.
pub(crate) const EMBEDDER: &str = "REFRAIN_BENCH_EMBEDDER";

/// A request, and the files that answer it.
struct Question {
    text: String,
    files: Vec<PathBuf>,
}

/// Words as notes have them and as questions have them, with the function words of a question.
const LEXICON: [(&str, &[(&str, &str)]); 4] = [
    (
        "when did we talk about the",
        &[
            ("repaired", "repairing"),
            ("meetings", "meeting"),
            ("gardens", "garden"),
            ("invoices", "invoice"),
            ("travelled", "travelling"),
            ("kitchens", "kitchen"),
            ("painted", "painting"),
            ("tickets", "ticket"),
            ("café", "cafe"),
            ("résumés", "resume"),
            ("deliveries", "delivery"),
            ("neighbours", "neighbour"),
            ("contracts", "contract"),
            ("planned", "planning"),
            ("windows", "window"),
            ("engines", "engine"),
        ],
    ),
    (
        "wann haben wir über das gesprochen",
        &[
            ("Häuser", "Haus"),
            ("Verträge", "Vertrag"),
            ("Gärten", "Garten"),
            ("Rechnungen", "Rechnung"),
            ("Reisen", "Reise"),
            ("Küchen", "Küche"),
            ("Straßen", "Strasse"),
            ("Bäume", "Baum"),
            ("Türen", "Tür"),
            ("Nachbarn", "Nachbar"),
            ("Fahrkarten", "Fahrkarte"),
            ("Fenstern", "Fenster"),
            ("Gespräche", "Gespräch"),
            ("Schlüsseln", "Schlüssel"),
            ("Wohnungen", "Wohnung"),
            ("Ärzte", "Arzt"),
        ],
    ),
    (
        "quand avons-nous parlé de la",
        &[
            ("maisons", "maison"),
            ("factures", "facture"),
            ("réparations", "reparation"),
            ("voyages", "voyage"),
            ("fenêtres", "fenêtre"),
            ("clés", "cle"),
            ("jardins", "jardin"),
            ("voisines", "voisine"),
            ("contrats", "contrat"),
            ("billets", "billet"),
            ("cuisines", "cuisine"),
            ("rivières", "riviere"),
            ("réunions", "réunion"),
            ("médecins", "médecin"),
            ("portes", "porte"),
            ("arbres", "arbre"),
        ],
    ),
    (
        "いつ話しましたか",
        &[
            ("東京都の会議", "会議"),
            ("京都の旅行", "旅行"),
            ("新しい契約書", "契約"),
            ("台所の修理", "修理"),
            ("隣の庭園", "庭園"),
            ("歯医者の予約", "予約"),
            ("電車の切符", "切符"),
            ("古い窓枠", "窓枠"),
            ("春の引越し", "引越し"),
            ("銀行の口座", "口座"),
            ("車の保険", "保険"),
            ("友人の結婚式", "結婚"),
            ("夏の花火", "花火"),
            ("料理の教室", "教室"),
            ("図書館の本", "図書館"),
            ("駅前の工事", "工事"),
        ],
    ),
];

/// Sentences around the words, so that each language is recognised.
const FRAMES: [&str; 4] = [
    "Yesterday in the afternoon we wrote down what there is to say about the {}, and then about the {} and the {} as well.",
    "Gestern am Nachmittag haben wir aufgeschrieben, was es über die {} zu sagen gibt, und danach auch über die {} und die {}.",
    "Hier après-midi nous avons noté tout ce qu'il y a à dire sur les {}, et ensuite aussi sur les {} et les {}.",
    "昨日の午後、{}について書きました。それから{}と{}についても話し合いました。",
];

/// Notes under a heading, and questions that say the same in other words.
const PARAPHRASED: [(&str, &str, &[&str]); 15] = [
    (
        "Allergies",
        "Peanuts and penicillin. Ask before eating anything baked.",
        &["What am I allergic to?", "Which medicine must I not take?"],
    ),
    ("Kitchen", "The tap drips. Ada Voss repairs it on 3 May.", &["Who fixes the leaking faucet?"]),
    (
        "Passport",
        "Number K4471, expires in March 2027. Renew at the town hall.",
        &["When do I need a new travel document?"],
    ),
    (
        "Wifi",
        "Network: meadow. Password is on the sticker under the router.",
        &["How do I get online at home?"],
    ),
    ("Car", "Oil change at 60,000 km. Tyres are 205/55 R16.", &["What size are the wheels of my vehicle?"]),
    ("Gym", "Monday squats, Wednesday rows, Friday deadlifts.", &["What do I train on Wednesday?"]),
    ("Birthdays", "Mum 4 June, Tom 12 October, Lena 30 January.", &["When does my mother celebrate?"]),
    (
        "Doctor",
        "Dr Hale, Mill Lane 4. Phone 555 0142. Open until noon on Fridays.",
        &["Who is my physician?"],
    ),
    (
        "Bread",
        "500 g flour, 350 g water, 10 g salt, starter. Bake 45 minutes at 230 degrees.",
        &["How hot must the oven be for a loaf?"],
    ),
    (
        "Berlin trip",
        "Train at 9:12 from platform 7, hotel near the zoo, back on Sunday.",
        &["When do we leave for Germany's capital?"],
    ),
    ("Blood", "Type 0 negative. Last donation in spring.", &["What is my blood group?"]),
    (
        "Insurance",
        "Household policy 77-1203, excess 150. Claims by phone.",
        &["Whom do I call after a burglary?"],
    ),
    (
        "Dog",
        "Rex gets the tablet on the first of each month. Vet: Mrs Nolan.",
        &["When does the puppy get its pill?"],
    ),
    ("Books", "Finished Middlemarch. Next: The Leopard.", &["What should I read next?"]),
    (
        "Taxes",
        "Return is due on 31 July. Receipts in the blue folder.",
        &["When must I file with the revenue office?"],
    ),
];

/// The questions of [`PARAPHRASED`].
pub(crate) fn paraphrased() -> Outcome<()> {
    let folder = tempfile::tempdir()?;
    let notes = folder.path().join("notes");
    fs::create_dir(&notes)?;
    let mut questions = Vec::new();
    for (i, (title, text, asked)) in PARAPHRASED.iter().enumerate() {
        let path = notes.join(format!("{i}.md"));
        fs::write(&path, format!("# {title}\n\n{text}\n"))?;
        let question = |text: &&str| Question { text: (*text).to_owned(), files: vec![path.clone()] };
        questions.extend(asked.iter().map(question));
    }
    compare("in other words", folder.path(), &notes, &questions)
}

/// Notes that name three things each; a question asks for the three of one note, in other forms.
pub(crate) fn generated() -> Outcome<()> {
    let folder = tempfile::tempdir()?;
    let notes = folder.path().join("notes");
    fs::create_dir(&notes)?;
    let mut rng = Rng(23);
    let mut questions = Vec::new();
    for i in 0..800 {
        let language = i % LEXICON.len();
        let (opening, pairs) = LEXICON[language];
        let mut chosen: Vec<usize> = Vec::new();
        while chosen.len() < 3 {
            let word = rng.below(pairs.len());
            if !chosen.contains(&word) {
                chosen.push(word);
            }
        }
        let text = chosen
            .iter()
            .fold(FRAMES[language].to_owned(), |text, &word| text.replacen("{}", pairs[word].0, 1));
        let path = notes.join(format!("{i}.md"));
        fs::write(&path, text)?;
        let asked: Vec<&str> = chosen.iter().map(|&word| pairs[word].1).collect();
        chosen.sort_unstable();
        questions.push((
            language,
            chosen,
            Question { text: format!("{opening} {}", asked.join(" ")), files: vec![path] },
        ));
    }
    // Several notes may name the same three things; each of them answers.
    let mut files: HashMap<(usize, Vec<usize>), Vec<PathBuf>> = HashMap::new();
    for (language, chosen, question) in &questions {
        files.entry((*language, chosen.clone())).or_default().extend(question.files.clone());
    }
    let questions: Vec<Question> = questions
        .into_iter()
        .map(|(language, chosen, question)| Question {
            files: files[&(language, chosen)].clone(),
            ..question
        })
        .collect();
    compare("generated, four languages", folder.path(), &notes, &questions)
}

/// Rows with a `prompt` that contains the pieces of `context`: the rest of the prompt asks for the row's pieces.
pub(crate) fn recorded(rows: &Path) -> Outcome<()> {
    let folder = tempfile::tempdir()?;
    let notes = folder.path().join("notes");
    fs::create_dir(&notes)?;
    let mut by_subtask: HashMap<String, Vec<Question>> = HashMap::new();
    for (i, line) in fs::read_to_string(rows)?.lines().enumerate() {
        let row: Value = serde_json::from_str(line)?;
        let pieces: Vec<&str> = match &row["context"] {
            Value::String(piece) => vec![piece],
            Value::Array(pieces) => pieces.iter().filter_map(Value::as_str).collect(),
            _ => continue,
        };
        let mut text = row["prompt"].as_str().unwrap_or_default().to_owned();
        let mut files = Vec::new();
        for (j, piece) in pieces.iter().filter(|piece| !piece.trim().is_empty()).enumerate() {
            text = text.replace(piece, " ");
            let path = notes.join(format!("{i}-{j}.txt"));
            fs::write(&path, piece)?;
            files.push(path);
        }
        if !files.is_empty() && !text.trim().is_empty() {
            let subtask = row["subtask"].as_str().unwrap_or("rows").to_owned();
            by_subtask.entry(subtask).or_default().push(Question { text, files });
        }
    }
    let mut subtasks: Vec<_> = by_subtask.into_iter().collect();
    subtasks.sort_by(|a, b| a.0.cmp(&b.0));
    for (subtask, questions) in &subtasks {
        compare(subtask, folder.path(), &notes, questions)?;
    }
    Ok(())
}

fn compare(what: &str, folder: &Path, notes: &Path, questions: &[Question]) -> Outcome<()> {
    let mut writer = NotesWriter::open(&folder.join("index"), NotesOptions::default())?;
    writer.add(&[notes])?;
    writer.update(&mut |_, _| ControlFlow::Continue(()))?;
    drop(writer);
    let index = NotesIndex::open(&folder.join("index"))?;
    let passages = index.passages_of(notes)?;
    let ours = score(questions, |question| {
        let hits = index.search(&Search::new(question, 10))?;
        Ok(hits.into_iter().map(|hit| hit.passage.path).collect())
    })?;
    let plain = Plain::new(&passages)?;
    let theirs = score(questions, |question| plain.search(question))?;
    println!("{what}: {} questions, {} passages", questions.len(), passages.len());
    let mut all = vec![("stored notes", ours), ("tantivy's defaults", theirs)];
    if let Some(model) = std::env::var_os(EMBEDDER) {
        all.extend(by_meaning(Path::new(&model), &folder.join("index"), &passages, questions)?);
    }
    for (name, (recall, mrr)) in all {
        println!("  {name:<20} recall@5 {recall:.3}   MRR {mrr:.3}");
    }
    Ok(())
}

/// Recall and reciprocal rank of a ranking.
type Quality = (f64, f64);

/// By the vectors of a model alone, and fused with words.
fn by_meaning(
    model: &Path,
    index: &Path,
    passages: &[NotePassage],
    questions: &[Question],
) -> Outcome<[(&'static str, Quality); 2]> {
    let embedder = ModelEmbedder::open(model, EngineOptions::default())?;
    let texts: Vec<String> =
        passages.iter().map(|passage| format!("{}\n\n{}", passage.title, passage.text)).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let vectors = embedder.embed(&texts).map_err(|error| error.to_string())?;
    let meaning = score(questions, |question| {
        let query = embedder.embed_query(question).map_err(|error| error.to_string())?;
        let likeness = |vector: &Vec<f32>| -> f32 { vector.iter().zip(&query).map(|(a, b)| a * b).sum() };
        let mut ranked: Vec<(f32, &NotePassage)> = vectors.iter().map(likeness).zip(passages).collect();
        ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
        Ok(ranked.into_iter().take(10).map(|(_, passage)| passage.path.clone()).collect())
    })?;
    let mut writer = NotesWriter::open(index, NotesOptions::default())?;
    writer.embed(&embedder, &mut |_, _| ControlFlow::Continue(()))?;
    drop(writer);
    let index = NotesIndex::open(index)?;
    let both = score(questions, |question| {
        let mut search = Search::new(question, 10);
        search.embedder = Some(&embedder);
        let hits = index.search(&search)?;
        Ok(hits.into_iter().map(|hit| hit.passage.path).collect())
    })?;
    Ok([("meaning alone", meaning), ("words and meaning", both)])
}

/// Recall of the five best files, and mean reciprocal rank within ten passages.
fn score(questions: &[Question], search: impl Fn(&str) -> Outcome<Vec<PathBuf>>) -> Outcome<(f64, f64)> {
    let (mut n_found, mut ranks) = (0_u32, 0.0);
    for question in questions {
        let found = search(&question.text)?;
        if let Some(rank) = found.iter().position(|path| question.files.contains(path)) {
            n_found += u32::from(rank < 5);
            ranks += 1.0 / (rank + 1) as f64;
        }
    }
    let n = questions.len() as f64;
    Ok((f64::from(n_found) / n, ranks / n))
}

/// tantivy as its first example sets it up: title and body as `TEXT`, every word of the request optional.
struct Plain {
    index: Index,
    passages: Vec<PathBuf>,
}

impl Plain {
    fn new(passages: &[NotePassage]) -> Outcome<Self> {
        let mut schema = Schema::builder();
        let title = schema.add_text_field("title", TEXT);
        let body = schema.add_text_field("body", TEXT);
        let number = schema.add_u64_field("number", STORED);
        let index = Index::create_in_ram(schema.build());
        let mut writer = index.writer_with_num_threads(1, 50_000_000)?;
        for (i, passage) in passages.iter().enumerate() {
            writer.add_document(
                doc!(title => passage.title.as_str(), body => passage.text.as_str(), number => i as u64),
            )?;
        }
        writer.commit()?;
        Ok(Self { index, passages: passages.iter().map(|passage| passage.path.clone()).collect() })
    }

    fn search(&self, question: &str) -> Outcome<Vec<PathBuf>> {
        let schema = self.index.schema();
        let fields = [schema.get_field("title")?, schema.get_field("body")?];
        let mut analyzer = self.index.tokenizer_for_field(fields[1])?;
        let mut tokens = analyzer.token_stream(question);
        let mut clauses: Vec<(Occur, Box<dyn Query>)> = Vec::new();
        while tokens.advance() {
            for field in fields {
                let term = Term::from_field_text(field, &tokens.token().text);
                clauses.push((Occur::Should, Box::new(TermQuery::new(term, IndexRecordOption::WithFreqs))));
            }
        }
        let searcher = self.index.reader()?.searcher();
        let found =
            searcher.search(&BooleanQuery::new(clauses), &TopDocs::with_limit(10).order_by_score())?;
        let number = schema.get_field("number")?;
        let paths = found.into_iter().map(|(_, address)| {
            let document: TantivyDocument = searcher.doc(address)?;
            let i = document.get_first(number).and_then(|value| value.as_u64()).unwrap_or_default();
            Ok(self.passages[i as usize].clone())
        });
        paths.collect()
    }
}
